"""Every random number of a drafter, enumerated through its own compiled code.

A row of the batch is one assignment of all the uniforms that a proposal (or a
whole round) reads. Where every threshold of a toy is a multiple of 1/n, the n
middles (0.5 + i) / n stand for the whole interval, and all rows together are
the exact law: each is equally likely, nothing is sampled, nothing is written a
second time. In place of a key a row carries its number and the path of the
`fold_in`s so far.
"""

import jax.numpy as jnp
import numpy as np

from speccascade.decoding import draws
from speccascade.models.markov_lm import MarkovLM

_BASE = 8  # data folded in are below 7, so that paths do not collide


def _code(path) -> int:
  code = 1
  for data in path:
    code = code * _BASE + data + 1
  return code


class Digits:
  """The uniforms of each path, and how many cells each is cut into.

  Attributes:
    num_rows: the number of assignments.
  """

  def __init__(self, cells: dict[tuple[int, ...], list[int]]):
    """Takes path of `fold_in` data -> cells of each uniform read there."""
    size = _code(max(cells, key=_code)) + 1
    width = max(map(len, cells.values()))
    self._cells = np.zeros((size, width), np.int32)
    self._strides = np.ones((size, width), np.int32)
    stride = 1
    for path, counts in cells.items():
      for i, count in enumerate(counts):
        self._cells[_code(path), i] = count
        self._strides[_code(path), i] = stride
        stride *= count
    self.num_rows = stride

  def keys(self):
    row = jnp.arange(self.num_rows, dtype=jnp.int32)
    return jnp.stack([row, jnp.ones_like(row)], axis=1)

  def patch(self, monkeypatch):
    """Replaces the randomness of the core; trace afresh under it."""
    monkeypatch.setattr(draws, "fold_in", self._fold_in)
    monkeypatch.setattr(draws, "uniforms", self._uniforms)

  def _fold_in(self, keys, data):
    code = keys[:, 1] * _BASE + jnp.asarray(data, jnp.int32) + 1
    return jnp.stack([keys[:, 0], code], axis=1)

  def _uniforms(self, keys, num):
    # A path that is not in the list reads NaN, which no test survives.
    code = jnp.minimum(keys[:, 1], len(self._cells) - 1)
    cells = jnp.asarray(self._cells)[code, :num]
    strides = jnp.asarray(self._strides)[code, :num]
    digit = (keys[:, :1] // strides) % jnp.maximum(cells, 1)
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


def markov(rows) -> MarkovLM:
  """Returns a chain from its transition matrix, one number a fraction."""
  law = np.asarray([[eval_fraction(x) for x in row] for row in rows])
  assert np.allclose(law.sum(-1), 1)
  with np.errstate(divide="ignore"):
    return MarkovLM(jnp.asarray(np.log(law), jnp.float32)[None])


def eval_fraction(text) -> float:
  """Returns "3/4" as 0.75."""
  top, _, bottom = str(text).partition("/")
  return int(top) / int(bottom or 1)


def shares(groups, tokens, vocab_size: int) -> np.ndarray:
  """Returns [groups, V], the share of each token among a group's rows.

  Args:
    groups: [N] int, the group of each row, numbered from 0.
    tokens: [N] int.
    vocab_size: V.
  """
  counts = np.zeros((groups.max() + 1, vocab_size))
  np.add.at(counts, (groups, tokens), 1)
  return counts / counts.sum(-1, keepdims=True)


def assert_drawn_from(tokens, q) -> int:
  """Asserts that token i of all rows has law q_i, whatever is known so far.

  What is known is the tokens before it and every stated law up to its own: the
  acceptance of a verifier step looks at nothing else.

  Args:
    tokens: [N, G], equally likely rows.
    q: [N, G+1, V] the stated laws.

  Returns:
    How many different things there were to know.
  """
  tokens, q = np.asarray(tokens), np.asarray(q)
  rows, width = tokens.shape
  seen = 0
  for i in range(width):
    laws = q[:, : i + 1].reshape(rows, -1).round(5)
    known = np.concatenate([tokens[:, :i], laws], axis=1)
    _, first, groups = np.unique(
      known, axis=0, return_index=True, return_inverse=True
    )
    found = shares(groups.reshape(-1), tokens[:, i], q.shape[2])
    np.testing.assert_allclose(found, q[first, i], atol=1e-5)
    seen += len(found)
  return seen
