"""Feeds a T5 or a Llama in any way, and compares two models that are alike."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding.records import prompts

NEEDS_NATIVE = pytest.mark.skipif(
  not native.is_available(),
  reason="no C++ compiler, or SPECCASCADE_NATIVE=0, or not one CPU device",
)

# Fills the places of a block that a row is not fed; nothing may depend on it.
GARBAGE = 77
CAPACITY = 24  # of the golden greedy decodes, too, to share compiled programs


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
  """Returns [B, num], the likeliest tokens one by one, also after an end."""
  state, token = prefill(lm, inputs), prompts.start(lm, inputs)
  tokens = []
  for _ in range(num):
    state, logits = feed(lm, state, token[:, None], [1] * len(inputs))
    token = logits[:, 0].argmax(-1)
    tokens.append(token)
  return np.stack(tokens, 1)


def close(actual, wanted, rtol=1e-5):
  """Asserts that arrays differ by at most a share of the largest number."""
  actual, wanted = (np.asarray(x, np.float32) for x in (actual, wanted))
  atol = rtol * np.abs(wanted).max()
  np.testing.assert_allclose(actual, wanted, atol=atol, rtol=0)


def assert_alike(run, lms, states, tokens, count, read=None):
  """Feeds a block to a model and its packed twin, and compares the outputs.

  Args:
    run: `extend`, or a function like it.
    lms: the model, then the packed one.
    states: a list of the models' states; the states after the block replace
      them.
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
  """A model, its inputs, and the logits after each token that it is fed.

  Attributes:
    lm: the model.
    inputs: sources or prompts of three rows.
    tokens: [3, CAPACITY], the tokens that rows are fed, one a slot.
    close: asserts that logits are equal to 1e-5 of the largest, in bfloat16 to
      three of its roundings.
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
      state, step_logits = feed(self.lm, state, block, [1, 1, 1])
      logits.append(step_logits[:, 0])
    np.testing.assert_array_equal(state.length, CAPACITY)
    return np.stack(logits, 1)

  def feed_next(self, state, width, count):
    """Feeds the next tokens to each row, and checks the logits.

    Returns:
      The state after the block.
    """
    length = np.asarray(state.length)
    block = np.full((3, width), GARBAGE, np.int32)
    for b, (first, num) in enumerate(zip(length, count)):
      block[b, :num] = self.tokens[b, first : first + num]
    state, logits = feed(self.lm, state, block, count)
    np.testing.assert_array_equal(state.length, length + count)
    for b, (first, num) in enumerate(zip(length, count)):
      if num:
        wanted = self.one_by_one[b, first : first + num]
        self.close(logits[b, :num], wanted)
    return state
