"""Wrong decoders, and the tests that must notice each of them.

A record: name, the file, the text in it (once), what stands there instead, and
the tests, of which at least one has to fail.
"""

_CORE = "speccascade/decoding/"
_EXECUTIONS = _CORE + "executions/"
_AUTOREGRESSIVE = _CORE + "drafters/autoregressive.py"
_TESTS = "tests/decoding/"
_RULES = _TESTS + "test_deferral.py::"
_TARGETS = _TESTS + "test_target.py::"
_STEPS = _TESTS + "test_verification.py::"
_SAMPLING = _TESTS + "test_sampling.py::"
_LOOPS = _TESTS + "test_executions.py::"
_PATHS = _TESTS + "test_paths.py::test_every_path_of_the_speculative_loop"
_STEPWISE = _TESTS + "test_paths.py::test_every_path_of_the_stepwise_loop"
_SEQUENCE = _TESTS + "test_paths.py::test_every_path_of_the_sequence_cascade"

MUTANTS = [
  # Rules.
  {
    "name": "Diff adds alpha",
    "file": _CORE + "deferral.py",
    "old": "return max_prob(q), max_prob(p) - alpha\n",
    "new": "return max_prob(q), max_prob(p) + alpha\n",
    "tests": [_RULES + "test_worked_thresholds"],
  },
  {
    "name": "OPT pays more for less variation",
    "file": _CORE + "deferral.py",
    "old": "return max_prob(q), max_prob(p) - alpha * tv",
    "new": "return max_prob(q), max_prob(p) + alpha * tv",
    "tests": [_RULES + "test_worked_thresholds"],
  },
  {
    "name": "OPT prices the unscaled pair",
    "file": _CORE + "deferral.py",
    "old": "tv = total_variation(*(sampled or (q, p)))\n  return max_prob(q)",
    "new": "tv = total_variation(q, p)\n  return max_prob(q)",
    "tests": [
      _RULES + "test_opt_prices_the_sampled_pair",
      _PATHS + "[one draft]",
    ],
  },
  {
    "name": "the total variation is the whole L1 distance",
    "file": _CORE + "numerics.py",
    "old": "return jnp.sum(jnp.maximum(p - q, 0), axis=-1)",
    "new": "return jnp.sum(jnp.abs(p - q), axis=-1)",
    "tests": [_TESTS + "test_numerics.py::test_pairs"],
  },
  {
    "name": "typical acceptance keeps what is on the line",
    "file": _CORE + "deferral.py",
    "old": "_like(jnp.nextafter(bound, jnp.full_like(bound, 2)), p)",
    "new": "_like(bound, p)",
    "tests": [_RULES + "test_strict_and_not_strict"],
  },
  {
    "name": "an arg-max takes the last of a tie",
    "file": _CORE + "numerics.py",
    "old": "jnp.min(jnp.where(is_max, index, size - 1), axis=-1)",
    "new": "jnp.max(jnp.where(is_max, index, 0), axis=-1)",
    "tests": [
      _TESTS + "test_numerics.py::test_first_argmax_breaks_ties_to_the_"
      "lowest_id"
    ],
  },
  # Targets.
  {
    "name": "p for pi",
    "file": _CORE + "target.py",
    "old": "jnp.where(defer[..., None], p, q)",
    "new": "p",
    "tests": [_TARGETS + "test_position_rules_take_q_or_p"],
  },
  {
    "name": "a tie defers",
    "file": _CORE + "deferral.py",
    "old": "return left < right",
    "new": "return left <= right",
    "tests": [_TARGETS + "test_ties_do_not_defer"],
  },
  {
    "name": "a token on the line is dropped",
    "file": _CORE + "target.py",
    "old": "mix(defers(left, right), *sampled)",
    "new": "mix(~defers(right, left), *sampled)",
    "tests": [_TARGETS + "test_token_rules"],
  },
  {
    "name": "kept tokens get nothing of p",
    "file": _CORE + "target.py",
    "old": "jnp.where(dropped, 0, q) + eta * p",
    "new": "jnp.where(dropped, eta * p, q)",
    "tests": [_TARGETS + "test_token_rules"],
  },
  {
    "name": "confidences are those of the sampled pair",
    "file": _CORE + "target.py",
    "old": "return self.function(q, p, alpha=alpha, sampled=sampled)",
    "new": "return self.function(*sampled, alpha=alpha, sampled=sampled)",
    "tests": [_TARGETS + "test_thresholds_are_unscaled_and_mixtures_scaled"],
  },
  {
    "name": "Lossy as the table has it, with beta 1",
    "file": _CORE + "target.py",
    "old": "return kept + rejected * residual(p, q)",
    "new": "return jnp.maximum(kept, p)",
    "tests": [_TARGETS + "test_lossy_is_the_law_of_the_heuristic"],
  },
  {
    "name": "beta is not solved",
    "file": _CORE + "target.py",
    "old": "_BETA_STEPS = 10",
    "new": "_BETA_STEPS = 1",
    "tests": [_TARGETS + "test_lossy_star_against_the_sorting_twin[float64]"],
  },
  {
    "name": "any function is a target",
    "file": _CORE + "target.py",
    "old": "if not abs(sums[worst] - 1) <= 1e-4:",
    "new": "if abs(sums[worst] - 1) > 0.5:",
    "tests": [
      _TARGETS + "test_a_target_that_sums_to_1_13_is_refused_with_the_sum"
    ],
  },
  # Laws and draws.
  {
    "name": "laws are not filtered by top-k",
    "file": _CORE + "sampling.py",
    "old": "jnp.where(top_k_mask(scaled, self.top_k), scaled, -jnp.inf)",
    "new": "scaled",
    "tests": [_SAMPLING + "test_filters_in_float32_keep_the_same_tokens"],
  },
  {
    "name": "top-p drops the token that crosses the line",
    "file": _CORE + "sampling.py",
    "old": "(bits > low) | (tied & (ids <= last))",
    "new": "(bits > low) | (tied & (ids < last))",
    "tests": [_SAMPLING + "test_filters_in_float32_keep_the_same_tokens"],
  },
  {
    "name": "rounding draws the last token, mass or none",
    "file": _CORE + "draws.py",
    "old": "last = jnp.max(jnp.where(mass, index, 0), axis=-1)",
    "new": "last = jnp.full_like(first, size - 1)",
    "tests": [_SAMPLING + "test_a_token_without_mass_is_never_drawn"],
  },
  {
    "name": "drafts are verified against unfiltered laws",
    "file": _AUTOREGRESSIVE,
    "old": "(token, q, q1, ~is_law(logits))",
    "new": "(token, q1, q1, ~is_law(logits))",
    "tests": [_PATHS + "[lossless]"],
  },
  {
    "name": "weights are not normalised",
    "file": _CORE + "numerics.py",
    "old": "ratio(weights, jnp.sum(weights, axis=-1, keepdims=True), ",
    "new": "jnp.where(jnp.any(weights > 0, axis=-1, keepdims=True), weights, ",
    "tests": [_TESTS + "test_numerics.py::test_normalise"],
  },
  # Verifier steps.
  {
    "name": "missing max(0, .)",
    "file": _CORE + "verification.py",
    "old": "jnp.where(is_bonus, pi_n, jnp.maximum(scaled - q_n, 0))",
    "new": "jnp.where(is_bonus, pi_n, scaled - q_n)",
    "tests": [_STEPS + "test_one_draft_at_its_threshold"],
  },
  {
    "name": "a rejected draft is replaced from pi",
    "file": _CORE + "verification.py",
    "old": "jnp.where(is_bonus, pi_n, jnp.maximum(scaled - q_n, 0))",
    "new": "pi_n",
    "tests": [_STEPS + "test_one_draft_at_its_threshold"],
  },
  {
    "name": "missing bonus: the residual stands there",
    "file": _CORE + "verification.py",
    "old": "jnp.where(is_bonus, pi_n, jnp.maximum(scaled - q_n, 0))",
    "new": "jnp.maximum(scaled - q_n, 0)",
    "tests": [_STEPS + "test_one_draft_at_its_threshold"],
  },
  {
    "name": "drafts behind a rejected one are accepted",
    "file": _CORE + "verification.py",
    "old": "run = jnp.cumprod(accept, axis=1, dtype=jnp.int32)",
    "new": "run = accept.astype(jnp.int32)",
    "tests": [_STEPS + "test_the_first_no_ends_token_verification"],
  },
  {
    "name": "a draft of target probability 0 is accepted at u = 0",
    "file": _CORE + "verification.py",
    "old": "(u_accept * q_x < pi_x)",
    "new": "(u_accept * q_x <= pi_x)",
    "tests": [_STEPS + "test_disjoint_supports"],
  },
  {
    "name": "a threshold of 0 is met at u = 0",
    "file": _CORE + "verification.py",
    "old": "(u_accept < accept_prob)",
    "new": "(u_accept <= accept_prob)",
    "tests": [_STEPS + "test_disjoint_supports"],
  },
  {
    "name": "the block's residual is not scaled",
    "file": _CORE + "verification.py",
    "old": "scaled = pi_n if scale is None else scale[:, None] * pi_n",
    "new": "scaled = pi_n",
    "tests": [_STEPS + "test_the_blocks_residual_is_scaled"],
  },
  {
    "name": "a block's reach may grow again",
    "file": _CORE + "verification.py",
    "old": "now = jnp.minimum(1, before * change)",
    "new": "now = before * change",
    "tests": [_STEPS + "test_the_block_toys_thresholds"],
  },
  # The speculative loop.
  {
    "name": "the bonus comes from p by default",
    "file": _CORE + "review.py",
    "old": 'if target.uses_q and settings.bonus == "verifier":',
    "new": "if target.uses_q:",
    "tests": [_PATHS + "[token]"],
  },
  {
    "name": "p stands one position behind q",
    "file": _CORE + "review.py",
    "old": "p1, p = settings.sampling.laws(logits)",
    "new": "p1, p = settings.sampling.laws(jnp.roll(logits, 1, axis=1))",
    "tests": [_PATHS + "[lossless]"],
  },
  {
    "name": "every block has the same key",
    "file": _EXECUTIONS + "speculative.py",
    "old": "draws.fold_in(rngs, carry.stats.num_blocks)",
    "new": "draws.fold_in(rngs, 0 * carry.stats.num_blocks)",
    "tests": [_PATHS + "[lossless]"],
  },
  {
    "name": "the draw has the uniform of an acceptance",
    "file": _CORE + "review.py",
    "old": "u_draw = draws.uniforms(draws.fold_in(rngs, draws.DRAW_TAG), 1)",
    "new": "u_draw = draws.uniforms(draws.fold_in(rngs, draws.ACCEPT_TAG), 1)",
    "tests": [_PATHS + "[lossless]"],
  },
  {
    "name": "the drafter's cache keeps what was rejected",
    "file": _EXECUTIONS + "speculative.py",
    "old": "models = (drafter.rewind(drafting, held), ",
    "new": "models = (drafting, ",
    "tests": [_PATHS + "[lossless]"],
  },
  {
    "name": "the verifier's cache keeps what was rejected",
    "file": _EXECUTIONS + "speculative.py",
    "old": "verifier.rewind(verifying, held))",
    "new": "verifying)",
    "tests": [_PATHS + "[lossless]"],
  },
  {
    "name": "an EOS inside a block does not end it",
    "file": _CORE + "emission.py",
    "old": "is_eos = (new == eos_id) & (position < num[:, None])",
    "new": "is_eos = (new == eos_id) & (position == num[:, None] - 1)",
    "tests": [_TESTS + "test_emission.py::test_cut"],
  },
  {
    "name": "a block runs over the limit",
    "file": _CORE + "emission.py",
    "old": "  num = jnp.minimum(num, room)\n",
    "new": "",
    "tests": [_TESTS + "test_emission.py::test_cut"],
  },
  {
    "name": "drafts behind an end are counted",
    "file": _EXECUTIONS + "speculative.py",
    "old": "examined = jnp.minimum(block.verdict.examined, emitted)",
    "new": "examined = block.verdict.examined",
    "tests": [_PATHS + "[lossless]"],
  },
  {
    "name": "a verifier's NaN goes unseen",
    "file": _CORE + "review.py",
    "old": "bad = ~is_law(logits) | proposal.bad",
    "new": "bad = proposal.bad",
    "tests": [
      _LOOPS + "test_a_row_that_meets_a_fault_ends_there[spec_decode-nan]"
    ],
  },
  {
    "name": "drafting stops on the sampled law",
    "file": _AUTOREGRESSIVE,
    "old": "active &= numerics.max_prob(q1) >= self.stop.below",
    "new": "active &= numerics.max_prob(q) >= self.stop.below",
    "tests": [_LOOPS + "test_the_drafter_stops_where_the_policy_says[True]"],
  },
  {
    "name": "the law of the bonus is that of the first empty place",
    "file": _AUTOREGRESSIVE,
    "old": "logits = jnp.where(active[:, None], after, logits)",
    "new": "logits = after",
    "tests": [_LOOPS + "test_the_drafter_stops_where_the_policy_says"],
  },
  # The other loops.
  {
    "name": "every step has the same key",
    "file": _EXECUTIONS + "stepwise.py",
    "old": "draws.fold_in(rngs, carry.length - 1)",
    "new": "draws.fold_in(rngs, 0 * carry.length)",
    "tests": [_STEPWISE + "[verifier]"],
  },
  {
    "name": "the asked verifier reads the last token only",
    "file": _EXECUTIONS + "sequential_cascade.py",
    "old": "feeding.feed_to(\n      verifier,\n      large,\n",
    "new": "feeding.feed_to(\n      verifier,\n"
    "      large.replace(length=jnp.maximum(large.length,"
    " prefix.length - 1)),\n",
    "tests": [_LOOPS + "test_token_cascade_is_the_oracle_with_fewer_passes"],
  },
  {
    "name": "the rewrite repeats the discarded draft's randomness",
    "file": _EXECUTIONS + "sequence_cascade.py",
    "old": "draws.fold_in(rngs, REWRITE_TAG)",
    "new": "rngs",
    "tests": [_SEQUENCE + "[seq_cascade_chow]"],
  },
  {
    "name": "a sequence is scored by its sampled law",
    "file": _EXECUTIONS + "one_model.py",
    "old": "plain, _, token = settings.sampling.step(",
    "new": "_, plain, token = settings.sampling.step(",
    "tests": [_SEQUENCE + "[seq_cascade_chow]"],
  },
  {
    "name": "BiLD asks the drafter at once after a rollback",
    "file": _EXECUTIONS + "bild.py",
    "old": "asked = length == state.expected",
    "new": "asked = state.expected > 0",
    "tests": [_LOOPS + "test_bild_worked"],
  },
  {
    "name": "BiLD rolls back what the verifier would say itself",
    "file": _EXECUTIONS + "bild.py",
    "old": "(first < width) & ~same",
    "new": "first < width",
    "tests": [_LOOPS + "test_bild_against_its_decisions_by_hand[2]"],
  },
  {
    "name": "BiLD's window is shorter by one",
    "file": _EXECUTIONS + "bild.py",
    "old": "WINDOW = 10",
    "new": "WINDOW = 9",
    "tests": [_LOOPS + "test_bild_defaults"],
  },
]
