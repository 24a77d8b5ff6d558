"""Wrong rules, targets, draws and verifier steps; records as in `core`."""

_CORE = "speccascade/decoding/"
_NUMERICS = _CORE + "numerics.py"
_SAMPLING = _CORE + "sampling.py"
_DRAWS = _CORE + "draws.py"
_DEFERRAL = _CORE + "deferral.py"
_TARGET = _CORE + "target.py"
_REJECTION = _CORE + "verification.py"
_THEORY = _CORE + "theory.py"
_TESTS = "tests/decoding/"
_PAIRS = _TESTS + "test_numerics.py::test_pairs"
_LAWS = _TESTS + "test_sampling.py::"
_RULES = _TESTS + "test_deferral.py::"
_TARGETS = _TESTS + "test_target.py::"
_STEPS = _TESTS + "test_verification.py::"
_LEMMAS = _TESTS + "test_theory.py::"

MUTANTS = [
  {
    "name": "KL misses what only q has",
    "file": _NUMERICS,
    "old": "kl_div(p, q))",
    "new": "jnp.where(p > 0, kl_div(p, q), 0))",
    "tests": [_PAIRS + "[kl-False]"],
  },
  {
    "name": "laws are made in half precision",
    "file": _NUMERICS,
    "old": ".bits >= 32 else",
    "new": ".bits >= 16 else",
    "tests": [_TESTS + "test_numerics.py::test_narrow_floats_are_widened"],
  },
  {
    "name": "uniforms have 14 bits",
    "file": _DRAWS,
    "old": "((first ^ second) >> 9) |",
    "new": "((((first ^ second) >> 9) >> 9) << 9) |",
    "tests": [_LAWS + "test_uniforms_are_those_of_each_key"],
  },
  {
    "name": "a uniform is half of the hash",
    "file": _DRAWS,
    "old": "((first ^ second) >> 9) |",
    "new": "(second >> 9) |",
    "tests": [_LAWS + "test_uniforms_are_those_of_each_key"],
  },
  {
    "name": "a round of the hash mixes in the wrong key word",
    "file": _DRAWS,
    "old": "x = x + schedule[(i + 1) % 3]",
    "new": "x = x + schedule[(i + 2) % 3]",
    "tests": [_LAWS + "test_uniforms_are_those_of_each_key"],
  },
  {
    "name": "trials share the randomness of the next seed",
    "file": _DRAWS,
    "old": "jax.random.fold_in("
    'jax.random.key(seed, impl="threefry2x32"), trial)',
    "new": 'jax.random.key(seed + trial, impl="threefry2x32")',
    "tests": [_LAWS + "test_a_rows_key_is_that_of_its_example"],
  },
  {
    "name": "top-p looks at the law before temperature",
    "file": _SAMPLING,
    "old": "top_p_mask(sampled, self.top_p)",
    "new": "top_p_mask(plain, self.top_p)",
    "tests": [_LAWS + "test_filters_in_float32_keep_the_same_tokens"],
  },
  {
    "name": "a draw forgets the blocks before its own",
    "file": _DRAWS,
    "old": "index < block[..., None]",
    "new": "index < block[..., None] - 1",
    "tests": [_LAWS + "test_draw_inverts_the_cumulative_sum[700]"],
  },
  {
    "name": "a maximum over NaN is trusted",
    "file": _SAMPLING,
    "old": "  logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)\n",
    "new": "",
    "tests": [_LAWS + "test_a_nan_is_seen_wherever_it_stands"],
  },
  {
    "name": "BiLD's NLL is that of the verifier's own choice",
    "file": _DEFERRAL,
    "old": "token = first_argmax(q)",
    "new": "token = first_argmax(p)",
    "tests": [_RULES + "test_nll_looks_at_the_drafters_first_best_token"],
  },
  {
    "name": "the open end of a range is the other one",
    "file": _CORE + "interval.py",
    "old": "if self.low_open else alpha >= low\n"
    "    below = used < as_float32(high) if self.high_open",
    "new": "if self.high_open else alpha >= low\n"
    "    below = used < as_float32(high) if self.low_open",
    "tests": [_RULES + "test_ranges[lenient_cs_paper]"],
  },
  {
    "name": "the dropped mass is that of p",
    "file": _TARGET,
    "old": "eta = jnp.sum(jnp.where(dropped, q, 0)",
    "new": "eta = jnp.sum(jnp.where(dropped, p, 0)",
    "tests": [_TARGETS + "test_token_rules"],
  },
  {
    "name": "a budget is measured the other way round",
    "file": _TARGET,
    "old": "within = numerics.kl(p, q)[..., None] <= alpha",
    "new": "within = numerics.kl(q, p)[..., None] <= alpha",
    "tests": [_TARGETS + "test_mentored_spends_no_more_than_its_budget"],
  },
  {
    "name": "a block's gain is read one position early",
    "file": _REJECTION,
    "old": "jnp.maximum(reach[:, :, None] * pi[:, 1:] - q[:, 1:], 0)",
    "new": "jnp.maximum(reach[:, :, None] * pi[:, :-1] - q[:, :-1], 0)",
    "tests": [_STEPS + "test_the_blocks_residual_is_scaled"],
  },
  {
    "name": "the end of a short block is taken for its middle",
    "file": _REJECTION,
    "old": "jnp.where(index == count[:, None], reach, inner)",
    "new": "jnp.where(index == width, reach, inner)",
    "tests": [_STEPS + "test_short_blocks"],
  },
  {
    "name": "a block's chances are summed from its start",
    "file": _THEORY,
    "old": "jnp.cumprod(1 - thresholds[..., ::-1], axis=-1)",
    "new": "jnp.cumprod(1 - thresholds, axis=-1)",
    "tests": [_LEMMAS + "test_block_verification_toy"],
  },
  {
    "name": "a regret is measured from the plug-in's own estimate",
    "file": _THEORY,
    "old": "best = optimal_deferral(truth, q, p, **costs)",
    "new": "best = plug_in_deferral(q, p, **costs)",
    "tests": [_LEMMAS + "test_regret_bound_is_tight"],
  },
]
