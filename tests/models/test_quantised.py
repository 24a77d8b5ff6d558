"""Kernels in eight bits: what they keep, and the laws of what they draft."""

import functools
import math

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding import Sampling
from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.laws import draws
from speccascade.models import cut_head
from speccascade.models.cached_lm import CachedLM
from speccascade.models.parameters import param_shapes, storage
from speccascade.models.sharding import meshes
from tests import toy
from tests.models import growing
from tests.models.feeding import NEEDS_NATIVE, close, feed, int32
from tests.models.test_cut_head import CONFIGS, CUT, IDS, propose

BLOCK, COUNT = [[3, 40, 5], [7, 8, 9], [2, 4, 6]], [3, 3, 3]


def dequantised(kernel):
  """Returns a kernel [in, out], of float32 numbers, as int8 keeps it."""
  kernel = native.quantise(kernel)
  return (np.float32(kernel.weights) * kernel.scale[:, None]).T


@functools.cache
def twins(name):
  """Returns a network, its twin by hand, and the network in int8 by XLA."""
  config = CONFIGS[name]
  plain = growing.network(config)
  flat = traverse_util.flatten_dict(plain.params, sep="/")
  for path, leaf in flat.items():
    if not storage(config, path, "int8").is_scaled:
      continue
    is_kernel = path.endswith("/kernel")
    kernel = dequantised(np.asarray(leaf if is_kernel else leaf.T))
    flat[path] = jnp.asarray(kernel if is_kernel else kernel.T)
  by_hand = plain.replace(params=traverse_util.unflatten_dict(flat, sep="/"))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(native, "is_available", lambda: False)
    by_xla = growing.network(config, "int8")
  return plain, by_hand, by_xla


def test_a_weight_is_within_half_a_step_and_the_largest_is_kept():
  rng = np.random.default_rng(0)
  kernel = rng.normal(size=(70, 5000)).astype(np.float32)
  kernel *= np.exp(rng.normal(size=5000)).astype(np.float32)
  kernel[:, 7] = 0
  actual = native.quantise(kernel)
  assert actual.weights.dtype == np.int8
  assert actual.shape == (70, 5000)
  assert np.abs(actual.weights.astype(int)).max() == 127
  far = np.abs(dequantised(kernel) - kernel).max(0)
  assert np.all(far <= actual.scale * 0.50001)
  largest = np.abs(kernel).max(0)
  np.testing.assert_allclose(127 * actual.scale, largest, rtol=1e-6)
  assert not actual.weights[7].any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_column_that_is_not_finite_stays_so(wrong):
  kernel = np.ones((4, 3), np.float32)
  kernel[1, 2] = wrong
  x = jnp.ones((2, 4))
  results = [native.quantise(kernel).times(x)]
  if native.is_available():
    results += native.products(x, [native.pack(kernel, "int8")])
  for y in results:
    np.testing.assert_allclose(y[:, :2], 4, rtol=1e-6)
    assert not np.isfinite(y[:, 2]).any()


@pytest.mark.parametrize(
  "name", toy.nightly(CONFIGS, ["t5_tied", "llama", "gemma", "t5gemma"])
)
def test_logits_are_those_of_the_weights_that_int8_keeps(name):
  """By XLA and by the native code; with the whole head and with a cut one."""
  plain, by_hand, by_xla = twins(name)
  wanted, before = (
    feed(lm, growing.start(lm), BLOCK, COUNT)[1] for lm in (by_hand, plain)
  )
  assert np.abs(wanted - before).max() > 1e-3 * np.abs(before).max()
  for lm in (by_xla, growing.network(CONFIGS[name], "int8")):
    _, actual = feed(lm, growing.start(lm), BLOCK, COUNT)
    close(actual, wanted, 3e-5)
    cut = lm.cut_to(IDS)
    _, actual = feed(cut, growing.start(cut), BLOCK, COUNT)
    assert np.all(np.isneginf(actual[..., CUT]))
    kept = sorted(IDS)
    close(actual[..., kept], wanted[..., kept], 3e-5)


def test_a_cut_head_has_the_integers_of_the_whole_one():
  for lm in (twins("llama_tied")[2], growing.network(CONFIGS["llama"], "int8")):
    kernel = lm.cut_to(IDS).params[cut_head.NAME]["kernel"]
    tree = lm.params["token_embedder"]["embedding"]
    if lm.module.config.logits_via_embedding is False:
      tree = lm.params["decoder"]["logits_dense"]["kernel"]
    every, kept = jnp.arange(len(IDS)), jnp.asarray(sorted(IDS))
    np.testing.assert_array_equal(kernel.columns(every), tree.columns(kept))


def test_bytes_are_a_quarter_and_a_scale_for_each_output():
  for name in ("t5_tied", "llama"):
    config, lm = CONFIGS[name], twins(name)[2]
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(lm.params))
    counted = 0
    for path, shape in param_shapes(config).items():
      stored = storage(config, path, "int8")
      counted += math.prod(shape) * (1 if stored.is_scaled else 4)
      if stored.is_scaled:
        counted += 4 * stored.num_out(path, shape)
    assert held == counted


def test_activations_in_bfloat16_meet_the_same_weights():
  """As on a GPU or a TPU: nothing but the logits' product is float32."""
  plain, by_hand, _ = twins("llama")
  config = plain.module.config
  lms = [
    type(plain).create(config, params, "bfloat16", kernel_dtype=kernel_dtype)
    for params, kernel_dtype in ((plain.params, "int8"), (by_hand.params, None))
  ]
  kernel = lms[0].params["decoder"]["layers_0"]["mlp"]["wo"]["kernel"]
  assert isinstance(kernel, native.Quantised)
  actual, wanted = (feed(lm, growing.start(lm), BLOCK, COUNT)[1] for lm in lms)
  close(actual, wanted, 0.05)


@pytest.mark.parametrize("name", ["t5_tied", "gemma"])
def test_it_compiles_for_a_device_that_is_not_a_cpu(name):
  """No host call is left, and kernels reach the product as int8."""
  _, _, lm = twins(name)
  state = growing.start(lm)

  def step(lm, state):
    return lm.extend(state, int32([[3], [4], [5]]), int32([1] * 3))[1].logits

  traced = jax.jit(step).trace(lm, state)
  for platform in ("cuda", "tpu"):
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert "speccascade" not in text
    assert "xi8>" in text


@NEEDS_NATIVE
@pytest.mark.parametrize(
  ("name", "temperature", "is_cut"),
  [("t5_tied", 0.7, False), ("llama_tied", 1.0, True), ("llama", 0.0, False)],
)
def test_a_native_chain_draws_from_the_laws_of_the_steps(
  name, temperature, is_cut, monkeypatch
):
  lms = [growing.network(CONFIGS[name], "int8"), twins(name)[1]]
  if is_cut:
    lms = [lm.cut_to(IDS) for lm in lms]
  tokens = jnp.asarray(np.random.default_rng(0).integers(2, 50, (3, 24)))
  sampling = Sampling.create(temperature)

  def chain(lm):
    state = growing.start(lm)
    return jax.jit(lambda *args: propose(*args))(
      AutoregressiveDrafter(lm, 4, behind=0),
      state,
      (tokens.astype(jnp.int32), state.length + 1, jnp.ones((3,), bool)),
      draws.row_keys(0, 0, np.arange(3)),
      sampling,
    )

  actual, by_hand = map(chain, lms)
  with monkeypatch.context() as patch:
    patch.setattr(CachedLM, "draft_chain", lambda *args, **kwargs: None)
    want = chain(lms[0])
  np.testing.assert_array_equal(actual.tokens, want.tokens)
  np.testing.assert_allclose(actual.q, want.q, atol=1e-6)
  np.testing.assert_array_equal(actual.tokens, by_hand.tokens)
  np.testing.assert_allclose(actual.q, by_hand.q, atol=1e-4)


@pytest.mark.parametrize("name", ["t5", "llama_tied"])
def test_a_model_in_int8_drafts_for_itself(name):
  """Greedy texts are the model's own, and nearly all drafts are accepted."""
  config = CONFIGS[name]
  verifier = growing.network(config, "float32")
  drafter = growing.network(config, "int8")
  actual, wanted = growing.greedy(drafter, verifier)
  np.testing.assert_array_equal(actual.tokens, wanted.tokens)
  accepted = np.sum(actual.stats.accepted) / np.sum(actual.stats.drafted)
  assert accepted > 0.75


def test_a_mesh_is_refused():
  layout = meshes.Mesh({"data": 1, "model": 1}).layout()
  config = CONFIGS["llama"]
  if layout is None:
    layout = object()
  with pytest.raises(ValueError, match="int8 lie on one device, and a mesh"):
    type(twins("llama")[0]).create(
      config, twins("llama")[0].params, kernel_dtype="int8", layout=layout
    )
