"""A T5 or a Llama, fed in any way; what two that are the same say."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding.loops import prompts

NEEDS_NATIVE = pytest.mark.skipif(
  not native.is_available(),
  reason="no C++ compiler, or SPECCASCADE_NATIVE=0, or not one CPU device",
)

# Where a row is fed nothing, or a block is wider than its count, these tokens
# are fed; nothing may depend on them.
GARBAGE = 77
CAPACITY = 24  # as the golden greedy decodes, to share compiled programs


@functools.partial(jax.jit, static_argnames="capacity")
def prefill(lm, inputs, capacity=CAPACITY):
  return lm.prefill(inputs, capacity=capacity)


@jax.jit
def extend(lm, state, tokens, count, read=None, depth=None, ancestors=None):
  return lm.extend(
    state, tokens, count, read=read, depth=depth, ancestors=ancestors
  )


keep = jax.jit(lambda lm, *args: lm.keep(*args))


def int32(values):
  return jnp.asarray(values, jnp.int32)


def feed(lm, state, block, count):
  """Returns (state, float32 logits [B, N, V])."""
  state, out = extend(lm, state, int32(block), int32(count))
  return state, np.asarray(out.logits)


def greedy(lm, inputs, num):
  """Returns [B, num], the likeliest tokens one by one, after an end too."""
  state, token = prefill(lm, inputs), prompts.start(lm, inputs)
  tokens = []
  for _ in range(num):
    state, logits = feed(lm, state, token[:, None], [1] * len(inputs))
    token = logits[:, 0].argmax(-1)
    tokens.append(token)
  return np.stack(tokens, 1)


def close(got, want, rtol=1e-5):
  """Asserts that they differ by a share of the largest at most."""
  got, want = (np.asarray(x, np.float32) for x in (got, want))
  atol = rtol * np.abs(want).max()
  np.testing.assert_allclose(got, want, atol=atol, rtol=0)


def assert_alike(run, lms, states, tokens, count, read=None):
  """Feeds a block to two models that are the same.

  Args:
    run: `extend`, or like it.
    lms: the two, of which the second is packed.
    states: a list of their states; it gets those after.
    tokens: [B, N].
    count: [B].
    read: [B, R], or None.
  """
  outs, read = [], None if read is None else int32(read)
  for i, lm in enumerate(lms):
    states[i], out = run(lm, states[i], int32(tokens), int32(count), read)
    outs.append(out)
  fed = np.asarray(count) > 0
  if read is None:
    fed = np.arange(tokens.shape[1]) < np.asarray(count)[:, None]
  close(outs[1].logits[fed], outs[0].logits[fed])
  close(outs[1].hidden[fed], outs[0].hidden[fed])
  assert not np.any(outs[1].logits[~fed])
  assert np.std(outs[0].logits) > 0.05


class Fed:
  """A model, and what it says of texts that it is fed.

  Attributes:
    lm: the model.
    inputs: sources, or prompts, of three rows.
    tokens: [3, CAPACITY], what the rows are fed, one token a slot.
    close: asserts that logits are the same, to 1e-5 of the largest (bfloat16:
      to three of its roundings).
  """

  def __init__(self, lm, inputs):
    self.lm, self.inputs = lm, inputs
    is_wide = lm.module.config.dtype == "float32"
    self.close = functools.partial(close, rtol=1e-5 if is_wide else 3 * 2**-8)
    rng = np.random.default_rng(0)
    self.tokens = rng.integers(2, lm.vocab_size, (3, CAPACITY), np.int32)

  def start(self):
    return prefill(self.lm, self.inputs)

  @functools.cached_property
  def one_by_one(self):
    """[3, CAPACITY, V], the logits when tokens are fed one at a time."""
    state, logits = self.start(), []
    for i in range(CAPACITY):
      block = self.tokens[:, i : i + 1]
      state, each = feed(self.lm, state, block, [1, 1, 1])
      logits.append(each[:, 0])
    np.testing.assert_array_equal(state.length, CAPACITY)
    return np.stack(logits, 1)

  def feed_next(self, state, width, count):
    """Feeds the next tokens to each row; asserts that it says what it should.

    Returns:
      The state after them.
    """
    length = np.asarray(state.length)
    block = np.full((3, width), GARBAGE, np.int32)
    for b, (first, num) in enumerate(zip(length, count)):
      block[b, :num] = self.tokens[b, first : first + num]
    state, logits = feed(self.lm, state, block, count)
    np.testing.assert_array_equal(state.length, length + count)
    for b, (first, num) in enumerate(zip(length, count)):
      if num:
        want = self.one_by_one[b, first : first + num]
        self.close(logits[b, :num], want)
    return state
