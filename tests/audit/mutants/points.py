"""Wrong points, grids, advice and cascades; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== generate/points/point.py
a drafter that the bonus asks for nothing reads tokens one by one <- test_whose
- and (not self.spec.target.uses_q or self.bonus == "verifier")
+ and not self.spec.target.uses_q
a drafter that may stop reads two tokens at once <- test_whose_drafters_read
-       and self.policy.policy == "fixed"
the authors' fallback of BiLD is another point than "fixed" <-
  test_the_fallback_of_bild_tells_its_points_apart
@ Point.policy
- self.draft_length == (MAX_PROB, self.spec.execution.fallback)
+ self.draft_length == (MAX_PROB, -1.0)

=== generate/points/point_settings.py generate/points/test_point.py
a fallback of BiLD makes no other point <-
  test_the_fallback_of_bild_tells_its_points_apart
@ settings_of
- spec.has_blocks or length.policy != FIXED
+ spec.has_blocks

=== study/evaluation/efficiency.py generate/points/test_point.py
a cascade is predicted as one drafter <- test_costs_predict_where_calls
- spec.compose is not None or
+ False or

=== decoding/laws/sampling.py generate/points/test_point.py
top-k of 0 is a point of its own <- test_what_changes_nothing
@ SamplingSettings.sampled
- keeps_all or self.is_greedy
+ self.is_greedy

=== study/search/grid.py
an alpha of one's own is measured twice <- test_alphas_of_ones_own_are_sorted
@ custom_grid
- tuple(sorted(set(map(float, alphas))))
+ tuple(sorted(map(float, alphas)))
a grid of one's own is linear <- test_alphas_of_ones_own_are_sorted
- (sorted(set(map(float, alphas)))), scale)
+ (sorted(set(map(float, alphas)))))
a coarse grid is linear <- test_coarse_keeps_ends_and_middle
- for i in places), whole.scale)
+ for i in places))

=== study/search/acceptance.py
    study/search/test_advisor.py::test_rates_are_those_of_each
a lossless method's rates are means over tokens
@ rates_along
- is_own or target.is_lossless
+ is_own
each draft is the last head's <-
  test_heads_advice.py::test_a_text_determines_its
- rates[depth, places, here] = of_rows
+ rates[:, places, here] = of_rows
all parts of texts have the tokens of the first
- = texts.tokens[here]
+ = texts.tokens[: here.stop - start]
a first block drafts nothing <- test_heads_advice.py::test_a_text_determines_its
@ least_place
- return draft if first_drafts else draft + 1
+ return draft + 1

=== study/search/draft_kinds.py
    study/search/test_heads_advice.py::test_a_text_determines_its
a head drafts one token too early
@ _head_laws
- jnp.roll(logits[:, :, j], j + 1, axis=1)
+ jnp.roll(logits[:, :, j], j, axis=1)
an embedding drafts one token too early
@ _lookahead_laws
- jnp.roll(logits[:, :, j], j, axis=1)
+ jnp.roll(logits[:, :, j], j + 1, axis=1)
later tokens see the embeddings
@ _lookahead_laws.read
- return model.rewind(state, length), out.logits
+ return state, out.logits

=== study/search/offers.py
heads draft for nothing <- test_heads_advice.py::test_heads_pay
@ Drafting._block_steps
- steps = self._kind.chain_steps(self.costs, here)
+ steps = 0.0
a loop may cost less than nothing <- test_advisor.py::test_a_loop_costs_nothing
@ Drafting.calibrate
- max(0.0, float(more / num))
+ float(more / num)
a prefill is in units other than the smoothed step <-
  test_advisor.py::test_costs_do
@ make_monotone
- verifier_prefill=costs.verifier_prefill / unit
+ verifier_prefill=costs.verifier_prefill

=== generate/points/advice_files.py generate/points/test_advice.py
advice is of the first alpha <- test_the_nearest_alpha_tells_the_gamma
@ _gamma
- min(gammas, key=lambda other: abs(other - alpha))
+ next(iter(gammas))
advice is of any drafter <- test_advice_is_of_one_drafter_and_of_blocks
- if (offer["drafter"], offer["method"]) == wanted
+ if offer["method"] == point.method

=== generate/pair/cascades.py
a model's calls are those of its last place <- test_a_models_calls_are_counted
- lm is owner)] += int(number)
+ lm is owner)] = int(number)

=== generate/points/draft_costs.py generate/points/test_point.py
costs in milliseconds are believed <- test_costs_in_another_unit_are_refused
@ DraftCosts._of_file
- cost < 1 / _UNIT_FACTOR or (not size and cost > _UNIT_FACTOR)
+ cost < 1 / _UNIT_FACTOR
""")
