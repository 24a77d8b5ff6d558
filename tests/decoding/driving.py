"""The compiled decoders, driven along every path that they can take.

The uniforms of a decode are replaced by chosen ones: each row of a batch is one
path, and its uniforms lie just inside the edges of the cells that lead along
it. So the program that ships is seen to switch where the exact distribution
says it does, in every round, with its caches as they are by then.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.programs import decoders
from tests import toy_chains
from tests.decoding import enumeration, randomness

INSIDE = 2e-6  # from the edge of a cell; float32 numbers near 1 are 6e-8 apart
NARROW = 1e-5  # cells below this are left out
DRAFT, ACCEPT, DRAW = range(3)  # tags of a round's uniforms


def run(decoder, pair, tables, alpha, sampling, monkeypatch):
  """Decodes with chosen uniforms; returns one result for each table.

  Args:
    decoder: a `Decoder`.
    pair: a `toy.Pair`.
    tables: [E, stage, P, R, 3, G] float32 each: for every path P and round R
      the uniforms of the three tags; stage 1 is that of a rewrite.
    alpha: as a user gives it, perhaps by phase.
    sampling: a `Sampling`.
    monkeypatch: pytest's.
  """
  alpha = jax.tree.map(
    jnp.asarray, decoders.host_alpha(decoder.method.execution, alpha)
  )
  threshold = jnp.asarray(decoder.draft_length.threshold, jnp.float32)
  program, _ = decoder.program(sampling.greedy)

  @jax.jit
  def decode(table, alpha, threshold):
    def read(rows, codes, num):
      # The last digits are round and tag; a rewrite has one more before them.
      rewrite = (codes >= randomness.BASE**3).astype(jnp.int32)
      step, tag = (
        codes // randomness.BASE**i % randomness.BASE - 1 for i in (1, 0)
      )
      return table[rewrite, rows, step, tag, :num]

    randomness.choose(monkeypatch, read)
    num = table.shape[1]
    inputs, rngs = pair.inputs(num), randomness.keys(num)
    return program.run(*pair.models(), inputs, rngs, alpha, threshold, sampling)

  results = [decode(jnp.asarray(table), alpha, threshold) for table in tables]
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
  q_low, q_high = cell_of(law.q)
  follow, gamma = pair.next_context(), block.drafts.shape[1]
  ways = {context: [] for context in range(pair.num_contexts)}
  for context, cells_here in ways.items():
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
          cells_here.append(
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
  return ways


def answers(count: int, verification: str) -> list[tuple[bool, ...]]:
  """Returns the patterns of yes and no that a verifier step distinguishes."""
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


def paths(pair, cells, length: int) -> list[Path]:
  """Returns every decode of at most `length` tokens.

  Args:
    pair: says what follows, and where the decodes start.
    cells: a function from how many tokens each round so far emitted to the
      cells of the next round, of each context.
    length: most tokens, EOS counted.
  """
  follow = pair.next_context()

  @functools.cache
  def grow(context, room, past):
    grown = []
    for cell in cells(past)[context]:
      new, here = [], context
      for token in cell.new[:room]:
        new.append(token)
        here = follow[here, token]
        if token == toy_chains.EOS:
          break
      rest = [Path(1.0, (), ())]
      if new[-1] != toy_chains.EOS and len(new) < room:
        rest = grow(here, room - len(new), (*past, len(new)))
      step = (cell, tuple(new))
      grown += [
        Path(
          cell.weight * path.weight,
          (step, *path.rounds),
          (*new, *path.tokens),
        )
        for path in rest
      ]
    return grown

  return grow(pair.start, length, ())


def tables(paths: list[Path], width: int) -> list[np.ndarray]:
  """Returns [1, P, R, 3, G] for the low and the high edges; 0.5 elsewhere.

  Args:
    paths: whose rounds draft as many tokens as `width`, or fewer.
    width: G.
  """
  num_rounds = max(len(path.rounds) for path in paths)
  both = np.full((2, 1, len(paths), num_rounds, 3, width), 0.5, np.float32)
  for row, path in enumerate(paths):
    for r, (cell, _) in enumerate(path.rounds):
      for table, edge in zip(both, (cell.low, cell.high)):
        table[0, row, r, :, : edge.shape[1]] = edge
  low, high = both
  return [low, np.minimum(high, np.float32(1 - 2**-24))]
