"""Catching up: in one pass where that is enough, in several where it is not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.records import feeding
from tests.decoding.drafting import models

NARROW, WIDE, READ = 3, 5, 2


@functools.partial(jax.jit, static_argnames=("wide", "read"))
def feed_to(lm, state, tokens, upto, wide, read=READ):
  return feeding.feed_to(
    lm,
    state,
    tokens,
    upto,
    first=upto - read,
    read=read,
    narrow=NARROW,
    wide=wide,
  )


def test_rows_are_fed_apart_whatever_they_lack():
  lm = models.audited(0, 6, 5)
  rng = np.random.default_rng(0)
  tokens = jnp.asarray(rng.integers(0, 5, (6, 20)), jnp.int32)
  # One by one, for the logits after every token.
  expected, state = [], lm.prefill(models.sources(6), capacity=20)
  count = jnp.ones((6,), jnp.int32)
  for t in range(20):
    state, out = lm.extend(state, tokens[:, t : t + 1], count)
    expected.append(np.asarray(out.logits[:, 0]))
  expected = np.stack(expected, 1)
  fed = lm.prefill(models.sources(6), capacity=25)
  for upto, passes in (
    # In one narrow pass, or not at all.
    ([3, 2, 0, 1, 3, 2], [1, 1, 0, 1, 1, 1]),
    # Some lack up to WIDE, which makes the pass wide for all.
    ([8, 5, 4, 2, 3, 2], [1, 1, 1, 1, 0, 0]),
    # 12 = 5 + 4 + 3, 6 = 3 + 3; the others one pass.
    ([20, 11, 9, 14, 5, 2], [3, 2, 1, 3, 1, 0]),
  ):
    before = np.asarray(fed.length)
    upto = np.array(upto, np.int32)
    fed, logits, counted = feed_to(lm, fed, tokens, upto, WIDE)
    assert counted.tolist() == passes
    assert fed.length.tolist() == np.maximum(upto, before).tolist()
    for row, end in enumerate(upto):
      # Tokens that were held before are not read again.
      for i in range(READ):
        at = end - READ + i
        if passes[row] and at >= before[row]:
          np.testing.assert_allclose(logits[row, i], expected[row, at])


def test_rows_that_need_nothing_get_zeros():
  lm = models.audited(0, 6, 5)
  fed = lm.prefill(models.sources(6), capacity=9)
  tokens = jnp.ones((6, 9), jnp.int32)
  upto = jnp.asarray([2, 0, 2, 0, 0, 0], jnp.int32)
  _, logits, passes = feed_to(lm, fed, tokens, upto, NARROW)
  assert passes.tolist() == [1, 0, 1, 0, 0, 0]
  assert np.all(np.asarray(logits)[[1, 3, 4, 5]] == 0)
  assert np.all(np.isfinite(logits))


def test_a_rewind_holds_no_more_than_before():
  lm = models.audited(0, 2, 5)
  tokens = jnp.asarray([[0, 2, 3, 4, 2, 3]] * 2, jnp.int32)
  fed = lm.prefill(models.sources(2), capacity=9)
  fed, _, _ = feed_to(lm, fed, tokens, jnp.asarray([2, 5], jnp.int32), WIDE, 1)
  fed = lm.rewind(fed, jnp.asarray([4, 4], jnp.int32))
  assert fed.length.tolist() == [2, 4]
  upto = jnp.asarray([5, 5], jnp.int32)
  _, logits, passes = feed_to(lm, fed, tokens, upto, WIDE, 1)
  assert passes.tolist() == [1, 1]
  # After 4 2 (a chain of order 2), whatever was held before.
  np.testing.assert_allclose(logits[:, 0], lm.table[:, 4, 2])
