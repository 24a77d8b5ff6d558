"""The compiled decoders, driven along every path that they can take.

The uniforms of a decode are replaced by chosen ones: each row of a batch is one
path, and its uniforms lie just inside the edges of the cells that lead along
it. So the program that ships is seen to switch where the exact law says it
does, in every round, with its caches as they are by then.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding import draws
from tests import toy
from tests.decoding import enumeration

INSIDE = 2e-6  # from the edge of a cell; float32 numbers near 1 are 6e-8 apart
NARROW = 1e-5  # cells below this are left out
DRAFT, ACCEPT, DRAW = range(3)  # tags of a round's uniforms


class Key:
  """Stands in for keys: remembers what was folded in."""

  def __init__(self, rows, folded=()):
    self.rows, self.folded, self.shape = rows, folded, rows.shape


def run(decoder, models, tables, alpha, sampling, monkeypatch):
  """Decodes with given uniforms; returns one result for each table.

  Args:
    decoder: a `Decoder`.
    models: (drafter, verifier).
    tables: [E, stage, P, R, 3, G] float32 each: for every path P and round R
      the uniforms of the three tags; stage 1 is that of a rewrite.
    alpha: as a user gives it.
    sampling: a `Sampling`.
    monkeypatch: pytest's.
  """
  table = None

  def fold_in(key, data):
    return Key(key.rows, (*key.folded, data))

  def uniforms(key, num):
    *rewrite, step, tag = key.folded
    stage = 1 if rewrite else 0
    return table[stage, key.rows, step, tag, :num]

  monkeypatch.setattr(draws, "fold_in", fold_in)
  monkeypatch.setattr(draws, "uniforms", uniforms)
  alpha = jnp.asarray(decoder.method.execution.host_alpha(alpha), jnp.float32)
  program, _ = decoder.program(sampling.greedy)
  threshold = jnp.asarray(decoder.draft_length.threshold, jnp.float32)

  @jax.jit
  def decode(given, alpha, threshold):
    nonlocal table
    table = given
    rows = jnp.arange(given.shape[1])
    return program.run(
      *models,
      jnp.ones((len(rows), 1), jnp.int32),
      Key(rows),
      alpha,
      threshold,
      sampling,
    )

  results = [decode(jnp.asarray(t), alpha, threshold) for t in tables]
  monkeypatch.undo()
  return jax.tree.map(np.asarray, results)


def cell_of(law: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns (low, high), [..., V]: uniforms at both ends of a token's cell."""
  top = np.cumsum(law, axis=-1)
  top = top / top[..., -1:]
  low = np.concatenate([np.zeros_like(top[..., :1]), top[..., :-1]], axis=-1)
  return low + INSIDE, top - INSIDE


@dataclasses.dataclass(frozen=True)
class Cell:
  """One way in which a round can go.

  Attributes:
    weight: its probability.
    context: where the round starts.
    draft: index of the draft.
    count: tokens drafted.
    accepted: how many of them were accepted.
    new: the tokens written, before any cut.
    low: [3, G] uniforms, at the low edge of the cell.
    high: [3, G].
  """

  weight: float
  context: int
  draft: int
  count: int
  accepted: int
  new: tuple
  low: np.ndarray
  high: np.ndarray


def cells(pair, law, block: enumeration.Block, verification) -> dict:
  """Returns for each context the cells of a round."""
  made = {}
  q_low, q_high = cell_of(law.q)
  follow, gamma = pair.next_context(), block.drafts.shape[1]
  for context in range(pair.num_contexts):
    made[context] = []
    for d, draft in enumerate(block.drafts):
      if block.draft_prob[context, d] < NARROW:
        continue
      count = int(block.count[context, d])
      low, high = np.full((3, gamma), 0.5), np.full((3, gamma), 0.5)
      here = context
      for i in range(count):
        low[DRAFT, i] = q_low[here, draft[i]]
        high[DRAFT, i] = q_high[here, draft[i]]
        here = follow[here, draft[i]]
      for bits in answers(count, verification):
        chance, n = 1.0, 0
        for i, yes in enumerate(bits):
          t = block.thresholds[context, d, i]
          chance *= t if yes else 1 - t
          low[ACCEPT, i] = 0.0 if yes else t + INSIDE
          high[ACCEPT, i] = t - INSIDE if yes else 1 - 1e-7
          n = i + 1 if yes else n
        if chance < NARROW:
          continue
        token_low, token_high = cell_of(block.token[context, d, n])
        for token, prob in enumerate(block.token[context, d, n]):
          if prob < NARROW:
            continue
          low[DRAW, 0], high[DRAW, 0] = token_low[token], token_high[token]
          made[context].append(
            Cell(
              block.draft_prob[context, d] * chance * prob,
              context,
              d,
              count,
              n,
              (*(int(x) for x in draft[:n]), token),
              low.copy(),
              high.copy(),
            )
          )
  return made


def answers(count: int, verification: str) -> list[tuple[bool, ...]]:
  """Returns the patterns of yes and no that a verifier step tells apart."""
  if verification == "block":
    return list(itertools.product([False, True], repeat=count))
  some = [(True,) * n + (False,) for n in range(count)]
  return [*some, (True,) * count]


@dataclasses.dataclass(frozen=True)
class Path:
  """A whole decode: its rounds, each a cell and the tokens it emitted."""

  weight: float
  rounds: tuple
  tokens: tuple


def paths(pair, cells: dict, length: int) -> list[Path]:
  """Returns every decode of at most `length` tokens."""
  follow = pair.next_context()

  @functools.cache
  def grow(context, room):
    made = []
    for cell in cells[context]:
      new, here = [], context
      for token in cell.new[:room]:
        new.append(token)
        here = follow[here, token]
        if token == toy.EOS:
          break
      step = (cell, tuple(new))
      if new[-1] == toy.EOS or len(new) == room:
        made.append(Path(cell.weight, (step,), tuple(new)))
        continue
      made += [
        Path(
          cell.weight * rest.weight, (step, *rest.rounds), (*new, *rest.tokens)
        )
        for rest in grow(here, room - len(new))
      ]
    return made

  return grow(0, length)


def tables(made: list[Path], gamma: int) -> list[np.ndarray]:
  """Returns [1, P, R, 3, G] for the low and the high edges; 0.5 elsewhere."""
  most = max(len(path.rounds) for path in made)
  low = np.full((1, len(made), most, 3, gamma), 0.5, np.float32)
  high = low.copy()
  for row, path in enumerate(made):
    for r, (cell, _) in enumerate(path.rounds):
      low[0, row, r], high[0, row, r] = cell.low, cell.high
  return [low, np.minimum(high, np.float32(1 - 2**-24))]
