"""The exact distribution of a verify function whose uniforms are arguments.

Many rows of chosen uniforms are verified in one call. Uniform after uniform is
cut at each threshold at which the decision changes, which bisection finds; what
a row decides is then the same in a whole box, whose volume is its probability.
"""

from collections.abc import Callable
import itertools
from typing import NamedTuple

import numpy as np

from speccascade.judge import problems as asked
from speccascade.judge import scripted
from speccascade.judge.judged_code import (
  TIME_LIMIT_S,
  JudgedCodeError,
  called,
)
from speccascade.judge.problems import Law, Problem

GRID = np.array(
  [scripted.LOW, *(np.arange(1, 12) / 12 + 0.003).tolist(), scripted.HIGH]
)
BISECTIONS = 42
NARROW = 1e-9
MOST_CUTS = 64
PROBES = 50

# verify(tokens [B, G], q [B, G, V], p [B, G+1, V], u_accept [B, G], u_draw [B])
# -> (num_accepted [B], token [B])
Verify = Callable[..., tuple]


class StepLaw(NamedTuple):
  """What a verify function does with the drafts of a problem.

  Attributes:
    law: of the emitted tokens: those accepted, and the one after them.
    at_zero: emitted tokens that the verifier gives no probability, where
      uniforms are exactly 0 or the largest float32 below 1.
    wrong_probes: of random uniforms: how many are decided otherwise.
    num_probes: how many random uniforms were tried.
  """

  law: Law
  at_zero: frozenset
  wrong_probes: int
  num_probes: int


def verify_law(
  verify: Verify, problem: Problem, time_limit_s: float = TIME_LIMIT_S
) -> StepLaw:
  """Returns what a verify function emits, over all drafts of a problem.

  Raises:
    JudgedCodeError: the function raised, took longer than the limit, or
      returned something else than a decision.
  """
  gamma, q_table = problem.gamma, problem.tables[0]
  chance_of = asked.chain(q_table, problem.prompt, gamma)
  drafts, chance = np.array([*chance_of]), np.array([*chance_of.values()])
  rows = [
    [problem.rows((*problem.prompt, *text[:i])) for i in range(gamma + 1)]
    for text in chance_of
  ]
  q, p = np.moveaxis(np.array(rows), 2, 0)  # [D, G+1, V] each
  q = q[:, :gamma]

  def decide(row, uniforms):
    """Returns [N, 2]: what is decided for drafts `row` and their uniforms."""
    u = uniforms.astype(np.float64)
    given = drafts[row].astype(np.int32), q[row], p[row], u[:, :gamma]
    outcome = called(verify, *given, u[:, gamma], time_limit_s=time_limit_s)
    return _decisions(outcome, len(row), gamma, problem.vocab_size)

  row, low, high = _boxes(decide, len(drafts), gamma + 1)
  decided = decide(row, (low + high) / 2)
  volume = np.prod(high - low, axis=1)

  def emitted(d, num, token):
    return (*drafts[d, : int(num)].tolist(), int(token))

  law: Law = {}
  for d, (num, token), v in zip(row, decided, volume):
    text = emitted(d, num, token)
    law[text] = law.get(text, 0.0) + float(v * chance[d])
  rng = np.random.Generator(np.random.PCG64(0))
  probes = rng.random((PROBES * len(drafts), gamma + 1))
  of = np.repeat(np.arange(len(drafts)), PROBES)
  wrong = num_probes = 0
  for d, u, seen in zip(of, probes, decide(of, probes)):
    inside = (row == d) & np.all((low + 2e-7 < u) & (u < high - 2e-7), axis=1)
    if inside.any():
      num_probes += 1
      wrong += bool(np.any(decided[inside][0] != seen))
  return StepLaw(
    law, _impossible(decide, emitted, len(drafts), p), wrong, num_probes
  )


def _decisions(outcome, num_rows: int, gamma: int, size: int) -> np.ndarray:
  """Returns [N, 2] int, what a verify function decided."""
  wanted = f"return (num_accepted [B], token [B]), integers, B = {num_rows}"
  if not isinstance(outcome, tuple | list) or len(outcome) < 2:
    raise JudgedCodeError(f"it returned {type(outcome).__name__}; {wanted}")
  columns = []
  for name, most, x in (
    ("num_accepted", gamma, outcome[0]),
    ("token", size - 1, outcome[1]),
  ):
    if hasattr(x, "detach"):
      x = x.detach().cpu().numpy()
    try:
      column = np.asarray(x).reshape(-1)
    except ValueError as error:
      raise JudgedCodeError(f"{name} is ragged; {wanted}") from error
    if column.dtype.kind not in "iu" or len(column) != num_rows:
      raise JudgedCodeError(
        f"{name} is {column.dtype} of shape {np.shape(x)}; {wanted}"
      )
    if column.min() < 0 or column.max() > most:
      strange = column[(column < 0) | (column > most)][0]
      raise JudgedCodeError(f"{name} is {strange}, wanted 0 to {most}")
    columns.append(column)
  return np.stack(columns, axis=1)


def _impossible(decide, emitted, num_drafts, p) -> frozenset:
  """Returns what edges of uniforms emit that has probability 0."""
  texts = set()
  every = np.arange(num_drafts)
  ends = (0.0, scripted.HIGH)
  for corner in itertools.product(ends, repeat=p.shape[1]):
    u = np.tile(np.array(corner), (num_drafts, 1))
    for d, (num, token) in zip(every, decide(every, u)):
      text = emitted(d, num, token)
      if any(p[d, i, x] <= 0 for i, x in enumerate(text)):
        texts.add(text)
  return frozenset(texts)


def _boxes(decide, num_rows: int, width: int):
  """Returns (rows [N], low [N, W], high [N, W]) that fill all unit cubes."""
  row = np.arange(num_rows)
  low, high = np.zeros((num_rows, 0)), np.ones((num_rows, 0))
  rng = np.random.Generator(np.random.PCG64(1))
  for column in range(width):
    rest = width - column - 1
    futures = np.concatenate(
      [
        np.full((1, rest), scripted.LOW),
        np.full((1, rest), scripted.HIGH),
        rng.random((4, rest)),
      ]
    )[: 6 if rest else 1]
    num = len(row)
    middle = (low + high) / 2

    def at(box, future, u, middle=middle, futures=futures, row=row):
      """Returns [N, 2]: the decisions with this column at u."""
      uniforms = [middle[box], u[:, None], futures[future]]
      return decide(row[box], np.concatenate(uniforms, axis=1))

    box, future, place = (
      x.reshape(-1)
      for x in np.meshgrid(
        np.arange(num),
        np.arange(len(futures)),
        np.arange(len(GRID)),
        indexing="ij",
      )
    )
    seen = at(box, future, GRID[place]).reshape(num, len(futures), -1, 2)
    changes = np.any(seen[:, :, 1:] != seen[:, :, :-1], axis=-1)
    box, future, place = np.nonzero(changes)
    left, right = GRID[place], GRID[place + 1]
    before, after = seen[box, future, place], seen[box, future, place + 1]
    cuts: list[list[float]] = [[] for _ in range(num)]
    for _ in range(MOST_CUTS):
      if not len(box):
        break
      a, b, b_seen = left.copy(), right.copy(), after.copy()
      for _ in range(BISECTIONS):
        half = (a + b) / 2
        decided = at(box, future, half)
        same = np.all(decided == before, axis=1)
        a, b = np.where(same, half, a), np.where(same, b, half)
        b_seen = np.where(same[:, None], b_seen, decided)
      for x, edge in zip(box, (a + b) / 2):
        cuts[x].append(float(edge))
      # There may be more thresholds between this one and the right end.
      more = np.any(b_seen != after, axis=1)
      box, future, after = box[more], future[more], after[more]
      left, right, before = b[more], right[more], b_seen[more]
    parts = []
    for x in range(num):
      edges = [0.0]
      for edge in sorted(cuts[x]):
        if edge - edges[-1] > NARROW and edge < 1 - NARROW:
          edges.append(edge)
      parts += [(x, *pair) for pair in itertools.pairwise((*edges, 1.0))]
    index = np.array([part[0] for part in parts])
    ends = np.array([part[1:] for part in parts])
    row = row[index]
    low = np.concatenate([low[index], ends[:, :1]], axis=1)
    high = np.concatenate([high[index], ends[:, 1:]], axis=1)
  return row, low, high
