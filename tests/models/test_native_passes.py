"""A decoder's pass as one native call: exact, to the bit, and in place."""

import dataclasses
import functools
import re

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.models import T5LM, native_passes
from speccascade.models.parameters import param_shapes
from speccascade.native import library
from tests import toy
from tests.models.feeding import NEEDS_NATIVE, assert_alike, close

pytestmark = NEEDS_NATIVE
CAPACITY = 40
GATED = toy.t5_config(
  vocab_size=130, emb_dim=40, head_dim=12, mlp_dim=72, num_decoder_layers=2
)
CONFIGS = {
  "gelu": GATED,
  "silu": dataclasses.replace(
    GATED,
    emb_dim=65,
    head_dim=7,
    mlp_dim=131,
    mlp_activations=("silu", "linear"),
  ),
  "relu": dataclasses.replace(
    GATED,
    num_decoder_layers=1,
    mlp_activations=("relu",),
    logits_via_embedding=True,
  ),
}


@functools.cache
def models(name):
  """Returns the same T5 with plain kernels and with packed ones."""
  rng = np.random.default_rng(0)
  params = {
    path: rng.normal(size=shape) / shape[0] ** 0.5 + path.endswith("scale")
    # A table that comes last is not the first kernel of its array.
    for path, shape in reversed(param_shapes(CONFIGS[name]).items())
  }
  params = traverse_util.unflatten_dict(params, sep="/")
  plain = T5LM.create(CONFIGS[name], params)
  packed = T5LM.create(CONFIGS[name], params, kernel_dtype="float32")
  return plain, packed


@functools.partial(jax.jit, static_argnames="rows")
def prefill(lm, rows):
  source = np.random.default_rng(0).integers(2, 130, (rows, 7), np.int32)
  source[::3, 4:] = 0
  return lm.prefill(jnp.asarray(source), capacity=CAPACITY)


def plainly(lm, state, tokens, count, read=None):
  return lm.extend(state, tokens, count, read=read)


extend = jax.jit(plainly)


def tokens_of(rows, width, seed=1):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.integers(2, 130, (rows, width), np.int32))


def known(state):
  """Returns what a state says of fed tokens and of the source's."""
  is_held = jnp.arange(CAPACITY)[None] < state.length[:, None]
  pairs = [(is_held, pair) for pair in state.caches]
  pairs += [(state.source_bias[:, 0, 0] == 0, pair) for pair in state.sources]
  return [
    jnp.where(mask, x, 0)
    for seen, (keys, values) in pairs
    for mask, x in (
      (seen[:, None, None], keys),
      (seen[:, None, :, None], values),
    )
  ]


def test_padding_that_all_rows_have_changes_no_bit():
  """It is not even read: an encoder leaves it out, and 0 in its place."""
  lm = models("gelu")[1]
  source = np.random.default_rng(0).integers(2, 130, (3, 7), np.int32)
  source[1, 4:] = 0
  wide = np.pad(source, ((0, 0), (0, 20)))
  some, more = (lm.prefill(jnp.asarray(x), capacity=9) for x in (source, wide))
  for (keys, values), others in zip(some.sources, more.sources, strict=True):
    for array, other, axis in zip((keys, values), others, (3, 2), strict=True):
      real, rest = jnp.split(other, [7], axis)
      np.testing.assert_array_equal(real, array)
      assert not rest.any()


READ = ([[3, 1], [0, 0], [4, 2]], [[4, 0, 1, 2, 3, 3]] * 3)


@pytest.mark.parametrize(
  ("build", "name"),
  [
    *(("best", name) for name in CONFIGS),
    *toy.nightly([("avx2", "silu"), ("portable", "gelu")]),
  ],
  indirect=["build"],
)
def test_equals_the_plain_path(build, name):
  """Ragged rows, a long block first, and fewer or more positions read."""
  # Compiled for this build: a kept program calls the build it was traced with.
  run = jax.jit(lambda *args: plainly(*args))
  start = jax.jit(lambda lm: prefill.__wrapped__(lm, 3))
  program = str(start.trace(models(name)[1]).jaxpr)
  assert library.target("EncoderPass") in program
  states = [start(lm) for lm in models(name)]
  for width, count, read in (
    (14, [9, 14, 0], None),
    *((5, [0, 5, 1], read) for read in READ),
  ):
    block = tokens_of(3, width)
    assert_alike(run, models(name), states, block, count, read)
    for want, actual in zip(*map(known, states)):
      close(actual, want)


@pytest.mark.parametrize("width", range(1, 9))
def test_blocks_equal_single_steps_to_the_bit(width):
  _, lm = models("gelu")
  tokens = tokens_of(3, 24)
  state, first = prefill(lm, 3), jnp.asarray([5, 0, 2], jnp.int32)
  state, _ = extend(lm, state, tokens[:, :8], first)
  ones, steps, one = jnp.ones(3, jnp.int32), [], state
  for i in range(width):
    one, out = extend(lm, one, tokens[:, 8 + i : 9 + i], ones)
    steps.append(out)
  block, actual = extend(lm, state, tokens[:, 8 : 8 + width], width * ones)
  for field in ("logits", "hidden"):
    want = np.concatenate([getattr(out, field) for out in steps], 1)
    np.testing.assert_array_equal(getattr(actual, field), want)
  jax.tree.map(np.testing.assert_array_equal, block, one)


def test_a_row_is_the_same_to_the_bit_beside_any_others():
  _, lm = models("gelu")
  tokens = tokens_of(32, 4)
  first = jnp.arange(32, dtype=jnp.int32) % 5
  state, _ = extend(lm, prefill(lm, 32), tokens, first)
  _, want = extend(lm, state, tokens, first)
  for rows in (1, 2, 5, 6, 7, 13, 31):
    some = jax.tree.map(lambda x, rows=rows: x[-rows:], state)
    _, actual = extend(lm, some, tokens[-rows:], first[-rows:])
    np.testing.assert_array_equal(actual.logits, want.logits[-rows:])


def test_a_loop_copies_no_cache():
  _, lm = models("gelu")
  state, ones = prefill(lm, 1), jnp.ones(1, jnp.int32)

  @jax.jit
  def run(lm, state):
    def step(_, carry):
      state, token = carry
      state, out = lm.extend(state, token, ones)
      return state, out.logits.argmax(-1).astype(jnp.int32)

    carry = (state, jnp.ones((1, 1), jnp.int32))
    return jax.lax.fori_loop(0, 9, step, carry)

  text = run.lower(lm, state).compile().as_text()
  [body] = [part for part in text.split("\n\n") if "_DecoderPass" in part]
  keys, values = (f"1,3,{n},{m}" for n, m in ((12, 40), (40, 12)))
  makers = re.findall(rf" = f32\[(?:{keys}|{values})\]\S* (\S+?)\(", body)
  assert set(makers) == {"get-tuple-element"}


def test_what_has_no_native_pass_takes_the_plain_one():
  """Activations that the native code does not know."""
  packed = models("gelu")[1]
  config = dataclasses.replace(GATED, mlp_activations=("tanh", "linear"))
  assert native_passes.is_native(GATED, packed.params)
  assert not native_passes.is_native(config, packed.params)


def test_what_does_not_fit_is_refused():
  _, lm = models("gelu")
  state, tokens = prefill(lm, 3), tokens_of(3, 5)
  count = jnp.zeros(3, jnp.int32)
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.caches)
  fewer = jax.tree.map(lambda x: x[:, :, :, :6], state.sources)
  for wrong in (
    state.replace(caches=half),
    state.replace(sources=fewer),
    state.replace(source_bias=state.source_bias[:1]),
    state.replace(length=state.length[:2]),
  ):
    with pytest.raises(ValueError, match=r"operand \d+ of a native pass is"):
      lm.extend(wrong, tokens, count)


def rotary_layer(rng, *, has_biases, has_norms):
  """Attention of 2 heads of 4, with 6 slots, for one row of 2 fed tokens."""
  array = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  kernel = lambda: native.pack(rng.normal(size=(8, 8)), "float32")
  return native.RotaryAttention(
    scale=array(8),
    kernels=native.Projections(kernel(), kernel(), kernel()),
    out=kernel(),
    keys=array(1, 2, 4, 6),
    values=array(1, 2, 6, 4),
    cosines=array(1, 2, 2),
    sines=array(1, 2, 2),
    biases=native.Biases(array(8), array(8), array(8)) if has_biases else None,
    head_norms=native.HeadNorms(array(4), array(4)) if has_norms else None,
  )


def run_layers(layers, activations=("relu",)):
  """Returns the logits of a decoder of these layers, [1, 2, 9]."""
  _, logits, _ = native.decoder_pass(
    tokens=jnp.ones((1, 2), jnp.int32),
    table=jnp.ones((9, 8)),
    start=jnp.zeros(1, jnp.int32),
    count=jnp.full(1, 2, jnp.int32),
    sublayers=layers,
    scale=jnp.ones(8),
    head=native.pack(np.ones((8, 9)), "float32"),
    activations=activations,
  )
  return logits


@pytest.mark.parametrize(
  ("field", "name"), [("has_biases", "biases"), ("has_norms", "norms")]
)
def test_layers_of_which_some_have_a_part_are_refused(field, name):
  """The native code would read the layer without it wrongly, and in silence."""
  rng = np.random.default_rng(0)
  parts = {"has_biases": True, "has_norms": True}
  whole = rotary_layer(rng, **parts)
  lacking = rotary_layer(rng, **{**parts, field: False})
  for layers in ([whole, whole], [lacking, lacking]):
    assert np.isfinite(run_layers(layers)).all()
  message = f"layer 1 of a native pass has {name} .*, layer 0 has none; give"
  with pytest.raises(ValueError, match=message) as error:
    run_layers([lacking, whole])
  assert "\n" not in str(error.value)


def test_an_mlp_wants_an_activation_for_each_inner_kernel():
  rng = np.random.default_rng(0)
  kernel = lambda: native.pack(rng.normal(size=(8, 8)), "float32")
  mlp = native.MlpSublayer(
    jnp.ones(8), inner=(kernel(), kernel()), out=kernel()
  )
  layers = [rotary_layer(rng, has_biases=False, has_norms=False), mlp]
  assert np.isfinite(run_layers(layers, ("relu", "linear"))).all()
  with pytest.raises(ValueError, match=r"2 inner kernels, .*1 activ"):
    run_layers(layers, ("relu",))
