"""Wrong language models, and the tests that must notice; as in `core`."""

_MODELS = "speccascade/models/"
_MARKOV = _MODELS + "markov_lm.py"
_NGRAM = _MODELS + "ngram_lm.py"
_BIGRAM = _MODELS + "bigram_table.py"
_CACHE = _MODELS + "t5/cache.py"
_LAYERS = _MODELS + "t5/layers.py"
_NETWORK = _MODELS + "t5/network.py"
_PRODUCTS = _MODELS + "t5/products.py"
_T5_LM = _MODELS + "t5_lm.py"
_TESTS = "tests/models/"
_CHAINS = _TESTS + "test_markov_lm.py::"
_NGRAMS = _TESTS + "test_ngram_lm.py::"
_T5 = _TESTS + "test_network.py::"
_BLOCKS = _TESTS + "test_t5_lm.py::"

MUTANTS = [
  # Chains and counts.
  {
    "name": "a node of a tree sees its cousins",
    "file": _MARKOV,
    "old": "hit = ancestors & (depth[:, None, :] == wanted[:, :, None])",
    "new": "hit = depth[:, None, :] == wanted[:, :, None]",
    "tests": [_CHAINS + "test_a_tree_equals_its_paths_and_one_is_kept"],
  },
  {
    "name": "a kept path is read from the start of the row",
    "file": _MARKOV,
    "old": "jnp.take_along_axis(state.tokens, start[:, None] + path, axis=1)",
    "new": "jnp.take_along_axis(state.tokens, path, axis=1)",
    "tests": [_CHAINS + "test_a_tree_equals_its_paths_and_one_is_kept"],
  },
  {
    "name": "a rewind of a chain lengthens it",
    "file": _MARKOV,
    "old": "state.replace(length=jnp.minimum(state.length, length))",
    "new": "state.replace(length=length)",
    "tests": [_CHAINS + "test_rewind_only_lowers"],
  },
  {
    "name": "an unseen context has the counts of another",
    "file": _NGRAM,
    "old": "jnp.where(found[..., None], level.probs[number], 0)",
    "new": "level.probs[number]",
    "tests": [_NGRAMS + "test_law_equals_the_twin[3-4-2]"],
  },
  {
    "name": "a search among children stops one short",
    "file": _NGRAM,
    "old": "jnp.where(going & below, middle + 1, low)",
    "new": "jnp.where(going & below, middle, low)",
    "tests": [_NGRAMS + "test_law_equals_the_twin[3-4-2]"],
  },
  {
    "name": "behind a padded token there is no law",
    "file": _NGRAM,
    "old": "jnp.pad(first.backoff, (0, more), constant_values=1)",
    "new": "jnp.pad(first.backoff, (0, more))",
    "tests": [_NGRAMS + "test_further_tokens_have_no_probability"],
  },
  {
    "name": "true and false are token ids",
    "file": _BIGRAM,
    "old": "all(type(value) is int for value in table)",
    "new": "all(isinstance(value, int) for value in table)",
    "tests": [_TESTS + "test_bigram_table.py::test_bad_files"],
  },
  # The T5.
  {
    "name": "the reach of a batch is that of its first row",
    "file": _NETWORK,
    "old": "reach = jnp.max(start) + num_fed",
    "new": "reach = start[0] + num_fed",
    "tests": [_BLOCKS + "test_the_longest_row_sets_how_far_all_look"],
  },
  {
    "name": "packed rows see each other's source",
    "file": _NETWORK,
    "old": "      source_masks.append("
    "_same(decoder_segment_ids, encoder_segment_ids))\n",
    "new": "",
    "tests": [_T5 + "test_packed_rows_equal_t5x"],
  },
  {
    "name": "of several masks the last one counts",
    "file": _NETWORK,
    "old": "    seen = seen & mask\n",
    "new": "    seen = mask\n",
    "tests": [_T5 + "test_packed_rows_equal_t5x"],
  },
  {
    "name": "a query sees one slot too many",
    "file": _CACHE,
    "old": "jnp.arange(by_offset.shape[1]) >= capacity",
    "new": "jnp.arange(by_offset.shape[1]) > capacity",
    "tests": [_BLOCKS + "test_one_token_at_a_time_equals_t5x"],
  },
  {
    "name": "in a tree the distance has the other sign",
    "file": _CACHE,
    "old": "between = depth[:, None, :] - depth[:, :, None]",
    "new": "between = depth[:, :, None] - depth[:, None, :]",
    "tests": [_BLOCKS + "test_tree_equals_its_paths_and_one_is_kept[float32]"],
  },
  {
    "name": "a loop over rows writes the first ones only",
    "file": _CACHE,
    "old": "jax.lax.fori_loop(0, slots.shape[0], write_row, slots)",
    "new": "jax.lax.fori_loop(0, MAX_UNROLLED_ROWS, write_row, slots)",
    "tests": [_BLOCKS + "test_many_rows_equal_few"],
  },
  {
    "name": "one row's last slots are never written",
    "file": _CACHE,
    "old": "fits = start[0] + new[0].shape[3] <= cache[0].shape[3]",
    "new": "fits = start[0] + new[0].shape[3] < cache[0].shape[3]",
    "tests": [_BLOCKS + "test_row_alone_equals_row_in_batch"],
  },
  {
    "name": "attention misses the slot behind a size",
    "file": _LAYERS,
    "old": "(reach > size).astype(jnp.int32)",
    "new": "(reach > size + 1).astype(jnp.int32)",
    "tests": [_T5 + "test_attention_looks_at_every_slot_within_reach"],
  },
  {
    "name": "a norm subtracts the mean",
    "file": _LAYERS,
    "old": "jnp.mean(jnp.square(x), axis=-1, keepdims=True)",
    "new": "jnp.var(x, axis=-1, keepdims=True)",
    "tests": [_T5 + "test_logits_equal_the_numpy_twin[False]"],
  },
  {
    "name": "a tied output is not scaled",
    "file": _LAYERS,
    "old": "table.T) * x.shape[-1] ** -0.5",
    "new": "table.T)",
    "tests": [_T5 + "test_logits_equal_the_numpy_twin[True]"],
  },
  {
    "name": "a row of any width is cut into slices",
    "file": _PRODUCTS,
    "old": "    and kernel.shape[0] % NUM_SLICES == 0\n",
    "new": "",
    "tests": [_T5 + "test_one_row_is_multiplied_in_slices_on_a_cpu"],
  },
  {
    "name": "a kernel's gradient is that of the first slope",
    "file": _PRODUCTS,
    "old": "slopes = slope.reshape(-1, slope.shape[-1])",
    "new": "slopes = 0 * slope.reshape(-1, slope.shape[-1])"
    " + slope.reshape(-1, slope.shape[-1])[:1]",
    "tests": [_T5 + "test_loss_and_gradients_equal_t5x"],
  },
  {
    "name": "the head is cast to the activations' dtype",
    "file": _T5_LM,
    "old": "jnp.asarray(leaf, jnp.float32 if is_head else config.dtype)",
    "new": "jnp.asarray(leaf, config.dtype)",
    "tests": [_BLOCKS + "test_params_are_cast_once_but_the_head"],
  },
  {
    "name": "a kept path has the length of its tree",
    "file": _T5_LM,
    "old": "state.replace(caches=caches, length=start + count)",
    "new": "state.replace(caches=caches, length=state.length)",
    "tests": [_BLOCKS + "test_tree_equals_its_paths_and_one_is_kept[float32]"],
  },
  {
    "name": "NaN stays in the cache of a T5",
    "file": "speccascade/models/t5/cache.py",
    "old": "jnp.where(jnp.isfinite(x), x, 0) for x in new",
    "new": "x for x in new",
    "tests": [
      "tests/models/test_t5_lm.py::test_a_token_without_a_law_spoils_no_other"
    ],
  },
]
