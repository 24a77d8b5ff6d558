"""Wrong rules, targets, draws and verifier steps; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== decoding/laws/deferral.py
Diff adds alpha <- test_worked_thresholds
@ diff
- return max_prob(q), max_prob(p) - alpha
-
+ return max_prob(q), max_prob(p) + alpha
+
OPT pays more for less variation <- test_worked_thresholds
@ opt
- return max_prob(q), max_prob(p) - alpha * tv
+ return max_prob(q), max_prob(p) + alpha * tv
OPT prices the unscaled pair <-
  test_opt_prices_the_sampled_pair |
  ../loops/test_paths.py::test_speculative_paths[one draft]
- tv = total_variation(*(sampled or (q, p)))
-   return max_prob(q)
+ tv = total_variation(q, p)
+   return max_prob(q)
BiLD's NLL is that of the verifier's own choice <- test_nll_looks_at_the
@ bild_nll
- token = first_argmax(q)
+ token = first_argmax(p)

=== decoding/laws/token_rules.py decoding/laws/test_deferral.py
typical acceptance keeps what is on the line <- test_worked_keep_sets
@ typical
- for_each_token(jnp.nextafter(bound, jnp.full_like(bound, 2)), p)
+ for_each_token(bound, p)

=== decoding/laws/rules.py decoding/laws/test_deferral.py
a tie defers <- test_targets.py::test_position_rules_take_q_or_p
@ defers
- return left < right
+ return left <= right

=== decoding/laws/learned.py
a head speaks for the other model <- test_the_learned_rule_prices_what
@ confidences
- return both[..., 0], both[..., 1]
+ return both[..., 1], both[..., 0]
the learned rule prices the unscaled pair <- test_the_learned_rule_prices_what
@ learned
- tv = total_variation(*(sampled or (q, p)))
+ tv = total_variation(q, p)
a calibration reads the other model <- test_calibrated_rules_compare_what
@ Calibration.__call__
- return self.of_q(max_prob(q)), self.of_p(max_prob(p))
+ return self.of_q(max_prob(p)), self.of_p(max_prob(q))
phi is the drafter's weight <- test_the_mixture_mixes_the_sampled_pair
@ mixture
- return (1 - phi) * q + phi * p
+ return phi * q + (1 - phi) * p
the second largest is the largest <- test_features
@ _second
- jnp.where(index == best[..., None], 0, probs)
+ probs
an increasing function increases beyond its knots <- test_an_increasing
@ Increasing.__call__
- jnp.clip(ratio(x[..., None] - start, width), 0, 1)
+ jnp.maximum(ratio(x[..., None] - start, width), 0)

the price of calibrated OPT is that of the plain pair <-
  test_calibrated_rules_compare
@ opt_calibrated
- right - alpha.alpha * total_variation(*(sampled or (q, p)))
+ right - alpha.alpha * total_variation(q, p)

=== decoding/laws/fitted.py
    decoding/laws/test_learned.py
parameters of other shapes pass <- test_parameters_of_another_rule
@ ParameterKind.check
- str(jax.tree.map(np.shape, tree))
+ type(tree).__name__

=== decoding/laws/numerics.py
the total variation is the whole L1 distance <- test_pairs
@ total_variation
- return jnp.sum(jnp.maximum(p - q, 0), axis=-1)
+ return jnp.sum(jnp.abs(p - q), axis=-1)
an arg-max takes the last of a tie <- test_first_argmax_breaks_ties_to_the
@ first_argmax
- jnp.min(jnp.where(is_max, index, size - 1), axis=-1)
+ jnp.max(jnp.where(is_max, index, 0), axis=-1)
weights are not normalised <- test_normalise
- ratio(weights, jnp.sum(weights, axis=-1, keepdims=True)
+ jnp.where(jnp.any(weights > 0, axis=-1, keepdims=True), weights
KL misses what only q has <- test_pairs[kl-False]
- kl_div(p, q))
+ jnp.where(p > 0, kl_div(p, q), 0))
a small factor is rounded to nothing <- test_kl_of_factor
- factor - 1 - jnp.log(factor))
+ _kl_of_excess(factor - 1))
distributions are made in half precision <- test_narrow_floats_are_widened
- .bits >= 32 else
+ .bits >= 16 else

=== decoding/laws/targets.py
p for pi <- test_position_rules_take_q_or_p
@ defer.choose
- jnp.where(deferred[..., None], p, q)
+ p
a token on the line is dropped <- test_worked_targets
@ _lift.function
- mix(defers(left, right), *sampled)
+ mix(~defers(right, left), *sampled)
kept tokens get nothing of p <- test_worked_targets
@ defer_tokens.mix
- jnp.where(dropped, 0, q) + eta * p
+ jnp.where(dropped, eta * p, q)
confidences are those of the sampled pair <- test_thresholds_are_unscaled_and
@ Target.__call__
- return self.function(q, p, alpha=alpha, sampled=sampled)
+ return self.function(*sampled, alpha=alpha, sampled=sampled)
the dropped mass is that of p <- test_worked_targets
- eta = jnp.sum(jnp.where(dropped, q, 0)
+ eta = jnp.sum(jnp.where(dropped, p, 0)

=== decoding/laws/lossy_targets.py decoding/laws/test_targets.py
Lossy as the table has it, with beta 1 <- test_worked_targets
@ lossy
- return accepted + rejected * residual(p, q)
+ return jnp.maximum(accepted, p)
beta is not solved <- test_lossy_star_against_the_sorting_twin
@ module
- _BETA_STEPS = 30
+ _BETA_STEPS = 1
a budget is measured the other way round <- test_mentored_spends_no_more_than
@ _keep_of_budget
- terms = numerics.kl_terms(p, q)
+ terms = numerics.kl_terms(q, p)
the search for a budget's root ends early <- test_mentored_against_bisection
@ module
- _BUDGET_STEPS = 42
+ _BUDGET_STEPS = 3
a search for the root of a small R begins again and again <-
  test_mentored_spends_its_budget_where_p_is_sharp[1.0-float64]
@ _inverse_beta.newton
- following = jnp.minimum(following, jnp.where(step == 0, bound, s))
+ following = jnp.minimum(following, 1)

=== decoding/laws/target_checks.py decoding/laws/test_targets.py
any function is a target <- test_what_is_not_a_distribution
@ check
- not abs(sums[worst] - 1) <= 1e-4
+ abs(sums[worst] - 1) > 0.5

=== decoding/laws/acceptance_rules.py
Cactus replaces as lossless speculation does <-
  test_worked_numbers[cactus-0.05-pi0]
@ _cactus_replacements.replace
- jnp.maximum(scale * p - q, 0)
+ jnp.maximum(p - q, 0)
Cactus weighs sorted tokens without their c <- test_cactus_where_many
@ _sorted_replacements
- sort(p) * above(weight * scale)
+ sort(p) * above(weight)
a budget in TV is not spent <- test_a_budget_in_total_variation[7]
@ mentored_tv
- wanted = 1 - jnp.maximum(tv - alpha, 0)
+ wanted = 1 - tv

=== decoding/laws/sampling.py
distributions are not filtered by top-k <-
  test_filters_in_float32_keep_the_same_tokens
@ Sampling
- jnp.where(is_kept, logits, -jnp.inf)
+ logits
of equal logits top-k keeps the higher ids <-
  test_laws_against_the_sorting_twin
@ top_k
- (flat == least) & (index <= last)
+ (flat == least) & (index >= last)
top-p drops the token that crosses the line <- test_filters_in_float32_keep_the
@ top_p_mask
- (all_bits > low) | ((all_bits == low) & (all_ids <= last))
+ (all_bits > low) | ((all_bits == low) & (all_ids < last))
the empty set holds the least top-p <- test_the_least_top_p_keeps_one_token
@ top_p_mask
- jnp.maximum(top_p, jnp.asarray(tiny, top_p.dtype)).astype(p.dtype)
+ top_p.astype(p.dtype)
top-p looks at the distribution before temperature <-
  test_filters_in_float32_keep_the
@ Sampling
- _nucleus(law, self.top_p, ids)
+ _nucleus(plain, self.top_p, ids)
min-p looks at the distribution before temperature <- test_min_p_comes_after
@ Sampling
- _likely(law, self.min_p)
+ _likely(plain, self.min_p)
a NaN that top-k drops goes unseen <- test_a_nan_that_top_k_drops_is_seen
@ Sampling
- is_law if kept is logits else is_whole
+ is_law
a maximum over NaN is trusted <- test_a_nan_is_seen_wherever_it_is
@ largest
-   logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)

=== native/draws.h models/test_large_vocabularies.py
natively what sums round away is lost <- test_laws_and_draws[best-1.0-256128]
- lost += (sums - (next - added)) + (x - added);
+ (void)added;

=== native/laws.h decoding/laws/test_sampling.py
natively top-p keeps all of equals <- test_top_p_takes_the_lower_of_equals
- bits == threshold && !is_held(above);
+ bits == threshold;
natively the empty set holds the least top-p <-
  test_the_least_top_p_keeps_one_token
- std::max(top_p, FLT_MIN)
+ top_p
natively top-p drops the token that crosses the line <-
  test_filters_in_float32_keep_the
- last && !is_held(above + mass[last]); last--
+ last && !is_held(above); last--

=== decoding/laws/draws.py decoding/laws/test_sampling.py
rounding draws the last token, mass or none <- test_a_token_without_mass_is
@ _first_above
- last = jnp.max(jnp.where(mass, index, 0), axis=-1)
+ last = jnp.full_like(first, size - 1)
uniforms have 14 bits <- test_uniforms_are_those_of_each_key
- ((first ^ second) >> 9) |
+ ((((first ^ second) >> 9) >> 9) << 9) |
a uniform is half of the hash <- test_uniforms_are_those_of_each_key
- ((first ^ second) >> 9) |
+ (second >> 9) |
a round of the hash mixes in the wrong key word <- test_uniforms_are_those_of
@ _threefry
- x = x + schedule[(i + 1) % 3]
+ x = x + schedule[(i + 2) % 3]
trials share the randomness of the next seed <- test_a_rows_key_is_that_of_its
- _row_keys(key, trial, jnp
+ _row_keys(jax.random.key(seed + trial, impl="threefry2x32"), 0, jnp
a draw forgets the blocks before its own <- test_draw_inverts_the_cumulative_sum
@ _inverted
- jnp.where(block > 0, before[..., 0], 0)
+ jnp.where(block > 1, before[..., 0], 0)

=== decoding/verification/steps.py
missing max(0, .) <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
@ replacement
- jnp.where(is_bonus, pi_n, jnp.maximum(scaled - q_n, 0))
+ jnp.where(is_bonus, pi_n, scaled - q_n)
a rejected draft is replaced from pi <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
@ replacement
- jnp.where(is_bonus, pi_n, jnp.maximum(scaled - q_n, 0))
+ pi_n
missing bonus: the residual is there <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
@ replacement
- jnp.where(is_bonus, pi_n, jnp.maximum(scaled - q_n, 0))
+ jnp.maximum(scaled - q_n, 0)
drafts after a rejected one are accepted <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
@ _num_accepted
- jnp.min(first_no, axis=1, initial=q_x.shape[1])
+ jnp.sum(accept, axis=1, dtype=jnp.int32)
a draft of target probability 0 is accepted at u = 0 <- test_edges
@ _num_accepted
- (u_accept * q_x < pi_x)
+ (u_accept * q_x <= pi_x)
a threshold of 0 is met at u = 0 <- test_edges
@ block_verify
- (u_accept < accept_prob)
+ (u_accept <= accept_prob)
the block's residual is not scaled <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-block]
@ replacement
- scaled = pi_n if scale is None else scale[:, None] * pi_n
+ scaled = pi_n
a block's reach may grow again <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-block]
@ block_verify.chain
- now = jnp.minimum(1, before * change)
+ now = before * change
a block's gain is read one position early <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-block]
- gain = scales[:, 1:], gains[:, 1:]
+ gain = scales[:, 1:], gains[:, :-1]
the end of a short block is taken for its middle <- test_edges
@ block_verify
- jnp.where(index == count[:, None], reach, inner)
+ jnp.where(index == width, reach, inner)

=== decoding/laws/interval.py
    decoding/laws/test_deferral.py::test_ranges[lenient_cs_paper]
the open end of a range is the other one
- if self.low_open else alpha >= low
-     below = used < as_float32(high) if self.high_open
+ if self.high_open else alpha >= low
+     below = used < as_float32(high) if self.low_open

=== decoding/laws/interval.py
    decoding/laws/test_deferral.py::test_a_range_is_that_of
an alpha is finite in float64
@ Interval.contains
- math.isfinite(used)
+ math.isfinite(alpha)
an alpha is above an open end in float64
@ Interval.contains
- used > as_float32(low)
+ alpha > low
an alpha is below an open end in float64
@ Interval.contains
- used < as_float32(high)
+ alpha < high

=== study/papers/theory.py
a block's chances are summed from its start <- test_block_verification_toy
@ expected_block_accepted
- jnp.cumprod(1 - thresholds[..., ::-1], axis=-1)
+ jnp.cumprod(1 - thresholds, axis=-1)
a regret is measured from the plug-in's own estimate <- test_regret_bound_is
@ regret
- best = optimal_deferral(truth, q, p, **costs)
+ best = plug_in_deferral(q, p, **costs)
""")
