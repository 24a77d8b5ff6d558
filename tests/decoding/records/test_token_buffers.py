"""Where a block is cut, and that it is written where it belongs.

What one end and the limit leave of a block is in every distribution that
`test_exact_laws` enumerates.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.records import token_buffers


def test_one_of_several_ends_is_enough():
  new, num = jnp.array([[5, 3, 1], [5, 6, 7]]), jnp.array([3, 3])
  emitted, ended = token_buffers.cut(new, num, num + 1, (1, 3))
  assert emitted.tolist() == [2, 3]
  assert ended.tolist() == [True, False]


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_blocks_are_written_at_each_rows_own_place(platform, monkeypatch):
  def choose(*args, default, **branches):
    return branches.get(platform, default)(*args)

  monkeypatch.setattr(jax.lax, "platform_dependent", choose)
  buffer = token_buffers.start_tokens(jnp.zeros(3, jnp.int32), 7)
  block = jnp.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
  pair = lambda x: (x, x[..., None])
  actual = token_buffers.write_block(
    pair(buffer), pair(block), jnp.array([1, 4, 2])
  )
  expected = [
    [0, 1, 2, 3, 0, 0, 0],
    [0, 0, 0, 0, 4, 5, 6],
    [0, 0, 7, 8, 9, 0, 0],
  ]
  for buffer_written, expected_buffer in zip(actual, pair(np.array(expected))):
    np.testing.assert_array_equal(buffer_written, expected_buffer)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("width", [0, 3])
def test_the_buffer_holds_a_block_written_at_the_end(length, width):
  # A full row holds the start token and T more. While others continue, a block
  # of G + 1 is written after it, too, and must not be moved over its tokens.
  full = jnp.arange(token_buffers.buffer_size(length, width))[None, :, None]
  block = jnp.full((1, width + 1, 1), -1)
  actual = token_buffers.write_block(full, block, jnp.array([1 + length]))
  np.testing.assert_array_equal(actual[0, : 1 + length], full[0, : 1 + length])


def test_a_tpu_writes_no_row_alone():
  buffer, block = jnp.zeros((3, 7, 2)), jnp.ones((3, 2, 2))
  traced = jax.jit(token_buffers.write_block).trace(
    buffer, block, jnp.arange(3)
  )
  on_cpu, on_tpu = (
    traced.lower(lowering_platforms=(name,)).as_text()
    for name in ("cpu", "tpu")
  )
  assert "scatter" in on_cpu
  assert "scatter" not in on_tpu
