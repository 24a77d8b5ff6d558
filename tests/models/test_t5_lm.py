"""A T5 against T5X's own numbers, and what its cache is; see also
`test_cached_lm`."""

import dataclasses
import functools
import itertools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import T5LM
from tests import toy
from tests.models.feeding import close, extend, feed, greedy, int32, prefill


@pytest.fixture(scope="module")
def lm(golden_config, golden_params):
  return T5LM.create(golden_config, golden_params)


@pytest.fixture(scope="module")
def inputs(golden_arrays):
  return golden_arrays["in/encoder_input_tokens"]


@pytest.fixture(scope="module")
def tokens():
  """[3, 8], what the rows are fed."""
  return np.random.default_rng(0).integers(2, 512, (3, 8), np.int32)


def test_one_token_at_a_time_equals_t5x(lm, golden_arrays, inputs):
  fed = golden_arrays["in/decoder_input_tokens"]
  state = prefill(lm, inputs)
  for i in range(fed.shape[1]):
    state, logits = feed(lm, state, fed[:, i : i + 1], [1, 1, 1])
    want = golden_arrays["f32/cached_step_logits"][:, i]
    np.testing.assert_allclose(logits[:, 0], want, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
  ("options", "name"),
  [
    *itertools.product(({}, {"kernel_dtype": "float32"}), ("task", "random")),
    ({"dtype": "bfloat16"}, "task"),
  ],
)
def test_greedy_tokens_equal_t5x(
  golden_config, golden_params, golden_arrays, options, name
):
  lm = T5LM.create(golden_config, golden_params, **options)
  suffix = "_bf16" if "dtype" in options else ""
  want = golden_arrays[f"greedy/{name}/tokens{suffix}"]
  source = golden_arrays[f"greedy/{name}/encoder_input_tokens"]
  source = np.pad(source, ((0, 0), (0, 14 - source.shape[1])))
  actual = greedy(lm, source, want.shape[1])
  has_ended = np.cumsum(actual == 1, axis=1) - (actual == 1) > 0
  np.testing.assert_array_equal(np.where(has_ended, 0, actual), want)
  assert has_ended[0, -1] or name == "random"


def test_row_alone_equals_row_in_batch(lm, inputs, tokens):
  alone, batch = prefill(lm, inputs[1:2]), prefill(lm, inputs)
  for block in np.split(np.tile(tokens, 3), 6, axis=1):
    alone, actual = feed(lm, alone, block[1:2], [4])
    batch, want = feed(lm, batch, block, [4, 4, 4])
    close(actual[0], want[1])


def test_many_rows_equal_few(lm, inputs, tokens):
  """Past some number of rows the cache is written by a loop."""
  rows = np.arange(17) % 3
  length = np.arange(17) % 5
  state = prefill(lm, inputs[rows])
  state, _ = feed(lm, state, tokens[rows, :4], np.minimum(length, 4))
  few = prefill(lm, inputs)
  few, _ = feed(lm, few, tokens[:, :4], [4, 4, 4])
  _, actual = feed(lm, state, tokens[rows, 4:8], [4] * 17)
  for b in range(17):
    short = lm.rewind(few, int32([min(length[b], 4)] * 3))
    _, want = feed(lm, short, tokens[:, 4:8], [4] * 3)
    close(actual[b], want[rows[b]])


def test_cache_much_larger_than_needed(lm, golden_arrays):
  """Attention looks back over 128, then 256 of 520 slots; T5X's own logits."""
  arrays = {
    name.split("/")[1]: value
    for name, value in golden_arrays.items()
    if name.startswith("long/")
  }
  state = prefill(lm, arrays["encoder_input_tokens"], 520)
  fed, logits = arrays["decoder_input_tokens"], []
  for first in range(0, fed.shape[1], 10):
    state, block = feed(lm, state, fed[:, first : first + 10], [10, 10])
    logits.append(block)
  logits = np.concatenate(logits, 1)
  np.testing.assert_allclose(
    logits[:, ::10], arrays["logits_every10"], atol=1e-4, rtol=0
  )
  real = arrays["decoder_target_tokens"] != 0
  np.testing.assert_array_equal(logits.argmax(-1)[real], arrays["argmax"][real])


def test_the_longest_row_sets_how_far_all_look(lm, golden_arrays):
  """A short first row does not hide a long row's slots from it."""
  state = prefill(lm, golden_arrays["long/encoder_input_tokens"], 520)
  fed = golden_arrays["long/decoder_input_tokens"][:, :140]
  for first in range(0, 130, 10):
    state, _ = feed(lm, state, fed[:, first : first + 10], [10, 10])
  _, want = feed(lm, state, fed[:, 130:], [10, 10])
  short = lm.rewind(state, int32([3, 130]))
  _, actual = feed(lm, short, fed[:, 130:], [10, 10])
  close(actual[1], want[1])


def test_hidden_gives_the_logits(lm, inputs, tokens):
  state = prefill(lm, inputs)
  _, out = extend(lm, state, int32(tokens[:, :4]), int32([4] * 3))
  kernel = lm.params["decoder"]["logits_dense"]["kernel"]
  want = np.asarray(out.hidden, np.float32) @ np.asarray(kernel)
  # (Compilers skip the rounding of what only the head reads.)
  close(out.logits, want)


def test_tied_model_in_blocks_equals_teacher_forcing():
  tied = {"mlp_activations": ("relu",), "logits_via_embedding": True}
  lm = T5LM.init(toy.t5_config(**tied), jax.random.key(0))
  rng = np.random.default_rng(0)
  source, fed = (rng.integers(2, 40, (2, n), np.int32) for n in (6, 5))
  want = jax.jit(functools.partial(lm.module.apply, enable_dropout=False))(
    {"params": lm.params}, source, fed, fed
  )
  _, actual = feed(lm, prefill(lm, source, 8), fed, [5, 5])
  assert want.shape == (2, 5, 40)
  assert np.std(want) > 0.1
  close(actual, want)


def test_equal_models_are_traced_once(golden_config, golden_params, inputs):
  traces = []

  @jax.jit
  def run(lm, inputs):
    traces.append(lm)
    return lm.extend(
      lm.prefill(inputs, capacity=4), inputs[:, :2], inputs[:, 0]
    )[1].logits

  for _ in range(2):
    config = dataclasses.replace(golden_config)
    run(T5LM.create(config, golden_params), inputs)
  assert len(traces) == 1
  run(T5LM.create(config, golden_params, "bfloat16"), inputs)
  assert len(traces) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_has_the_batch_first(golden_config, golden_params, inputs, dtype):
  lm = T5LM.create(golden_config, golden_params, dtype)
  state = jax.eval_shape(functools.partial(lm.prefill, capacity=5), inputs)
  assert {leaf.shape[0] for leaf in jax.tree.leaves(state)} == {3}
  dtypes = {leaf.dtype for leaf in jax.tree.leaves(state.caches)}
  assert dtypes == {jnp.dtype(dtype)}


def test_params_are_cast_once_but_the_head(golden_config, golden_params):
  lm = T5LM.create(golden_config, golden_params, "bfloat16")
  flat = traverse_util.flatten_dict(lm.params, sep="/")
  wide = {name for name, leaf in flat.items() if leaf.dtype == jnp.float32}
  assert wide == {"decoder/logits_dense/kernel"}
  assert lm.module.config.dtype == "bfloat16"
  assert lm.vocab_size == 512


def without(tree, path):
  flat = traverse_util.flatten_dict(tree, sep="/")
  del flat[path]
  return traverse_util.unflatten_dict(flat, sep="/")


def test_wrong_parameters_are_named(golden_config, golden_params):
  head = "decoder/logits_dense/kernel"
  with pytest.raises(ValueError, match=f"missing {head}"):
    T5LM.create(golden_config, without(golden_params, head))
  tied = dataclasses.replace(golden_config, logits_via_embedding=True)
  with pytest.raises(ValueError, match=f"unexpected {head}"):
    T5LM.create(tied, golden_params)
  wide = dataclasses.replace(golden_config, mlp_dim=96)
  message = (
    r"layers_0/mlp/wi_0/kernel has shape \[32, 64\], \[32, 96\] by the config,"
    r".* and 8 more"
  )
  with pytest.raises(ValueError, match=message) as error:
    T5LM.create(wide, golden_params)
  assert "\n" not in str(error.value)


def test_block_wider_than_the_cache(lm, inputs):
  state = jax.eval_shape(functools.partial(lm.prefill, capacity=4), inputs)
  with pytest.raises(ValueError, match=r"5 tokens .*a cache of 4"):
    jax.eval_shape(lm.extend, state, int32(np.zeros((3, 5))), int32([5] * 3))
