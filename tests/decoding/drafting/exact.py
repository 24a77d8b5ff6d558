"""Every random number of a drafter, enumerated through its own compiled code.

A row of the batch is one assignment of all the uniforms that a proposal (or a
whole round) reads. Where every threshold of a toy is a multiple of 1/n, the n
middles (0.5 + i) / n stand for the whole interval, and all rows together are
the exact law: each is equally likely, nothing is sampled, nothing is written a
second time.
"""

import jax.numpy as jnp
import numpy as np

from tests.decoding import randomness


class Digits:
  """The uniforms of each path, and how many cells each is cut into.

  Attributes:
    num_rows: the number of assignments.
  """

  def __init__(self, cells: dict[tuple[int, ...], list[int]]):
    """Takes path of `fold_in` data -> cells of each uniform read there."""
    size = randomness.code(max(cells, key=randomness.code)) + 1
    width = max(map(len, cells.values()))
    self._cells = np.zeros((size, width), np.int32)
    self._strides = np.ones((size, width), np.int32)
    stride = 1
    for path, counts in cells.items():
      for i, count in enumerate(counts):
        self._cells[randomness.code(path), i] = count
        self._strides[randomness.code(path), i] = stride
        stride *= count
    self.num_rows = stride

  def choose(self, monkeypatch):
    """Replaces the randomness of the core; returns the keys of the rows."""
    randomness.choose(monkeypatch, self._read)
    return randomness.keys(self.num_rows)

  def _read(self, rows, codes, num):
    # A path that is not in the list reads NaN, which no test survives.
    codes = jnp.minimum(codes, len(self._cells) - 1)
    cells = jnp.asarray(self._cells)[codes, :num]
    strides = jnp.asarray(self._strides)[codes, :num]
    digit = (rows[:, None] // strides) % jnp.maximum(cells, 1)
    u = (digit.astype(jnp.float32) + 0.5) / cells.astype(jnp.float32)
    return jnp.where(cells > 0, u, jnp.nan)


def nested(depth_paths: dict, prefixes) -> dict:
  """Returns the paths below each of the prefixes."""
  return {
    (*prefix, *path): cells
    for prefix in prefixes
    for path, cells in depth_paths.items()
  }


def below(paths: dict, first: int) -> dict:
  """Returns the paths that start with `first`, without it."""
  return {p[1:]: cells for p, cells in paths.items() if p[0] == first}


def shares(known, tokens, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns ([K], [K, V]): what was drawn by rows that know the same.

  The first row of each of the K groups, and the share of each token in it.

  Args:
    known: [N, ...], what each row knows.
    tokens: [N] int.
    vocab_size: V.
  """
  _, first, groups = np.unique(
    known, axis=0, return_index=True, return_inverse=True
  )
  counts = np.zeros((len(first), vocab_size))
  np.add.at(counts, (groups.reshape(-1), tokens), 1)
  return first, counts / counts.sum(-1, keepdims=True)


def assert_drawn_from(tokens, q) -> int:
  """Asserts that token i of all rows has distribution q_i, whatever is known so
  far.

  What is known is the tokens before it and every stated distribution up to its
  own: the acceptance of a verifier step looks at nothing else.

  Args:
    tokens: [N, G], equally likely rows.
    q: [N, G+1, V] the stated distributions.

  Returns:
    How many different things there were to know.
  """
  tokens, q = np.asarray(tokens), np.asarray(q)
  rows, width = tokens.shape
  seen = 0
  for i in range(width):
    laws = q[:, : i + 1].reshape(rows, -1).round(5)
    known = np.concatenate([tokens[:, :i], laws], axis=1)
    first, drawn = shares(known, tokens[:, i], q.shape[2])
    np.testing.assert_allclose(drawn, q[first, i], atol=1e-5)
    seen += len(drawn)
  return seen
