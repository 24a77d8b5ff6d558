"""Cascade Speculative Drafting: the drafter that a matrix K describes.

Level by level: the outer drafter is a horizontal cascade of all drafters, the
largest first; every neural one of them is reviewed in turn, its own drafter
being the cascade of the smaller ones. Composition is nesting drafters; the loop
is the speculative one.
"""

from collections.abc import Sequence
import math

import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.horizontal import HorizontalDrafter
from speccascade.decoding.drafting.max_gram import MaxGramDrafter
from speccascade.decoding.drafting.vertical import VerticalDrafter
from speccascade.decoding.laws import targets
from speccascade.decoding.laws.deferral import lenient_cs_paper
from speccascade.decoding.types import Drafter, LanguageModel, VerifyFunction
from speccascade.decoding.verification import steps

# Made once: equal drafters must share a compiled program.
LENIENT_GREEDY = targets.defer_tokens(lenient_cs_paper)


def increments(
  matrix: Sequence[Sequence[int]], *, meaning: str
) -> list[list[int]]:
  """Returns K as tokens written by each drafter, from either published form.

  Args:
    matrix: [n, n]; row i describes level i, columns before i are 0.
    meaning: "increments", as in the authors' code: entry (i, j) is what
      drafter j adds; "cumulative", as in the paper's tables: it is how far the
      block has come when drafter j stops.

  Raises:
    ValueError: not square, an entry below 0, or a cumulative row that falls.
  """
  size = len(matrix)
  if size == 0 or any(len(row) != size for row in matrix):
    raise ValueError(
      f"K is {[list(row) for row in matrix]}; wanted a square matrix with a row"
      " and a column for each drafter, largest first"
    )
  if meaning not in ("increments", "cumulative"):
    raise ValueError(
      f"the meaning of K is {meaning!r}; wanted 'increments' (the code's) or"
      " 'cumulative' (the paper's tables)"
    )
  result = []
  for i, row in enumerate(matrix):
    added = list(row[i:])
    if meaning == "cumulative":
      added = [b - a for a, b in zip([0, *added], added)]
    if min(added) < 0 or any(row[:i]):
      raise ValueError(
        f"row {i} of K is {list(row)}; wanted {i} zeros, then numbers that are"
        f" {'not falling' if meaning == 'cumulative' else '0 or more'}"
      )
    result.append([0] * i + added)
  return result


def cascade_drafter(
  models: Sequence[LanguageModel],
  bottom: MaxGramDrafter | None,
  matrix: Sequence[Sequence[int]],
  *,
  meaning: str = "increments",
  lenience: float = 1.0,
  verify: VerifyFunction = steps.token_verify,
) -> Drafter:
  """Returns the drafter of a cascade.

  Args:
    models: neural drafters, the largest first; may be empty.
    bottom: the statistical drafter at the end, or None; it goes on from prompts
      where the models do.
    matrix: K, with a row and a column for each drafter, `bottom` last.
    meaning: of K; see `increments`.
    lenience: l >= 1 of the inner reviews: a draft x is accepted with
      probability min(1, l p(x) / q(x)), greedily if it is the arg-max or
      q(x) <= l p(x). Copied tokens and the outer review have none, and the
      token after a fully accepted block is the reviewer's own.
    verify: the inner verifier step. A lenient review that verifies its block as
      a whole draws that last token from the lenient target instead, which takes
      another pass of its drafter.

  Raises:
    ValueError: K does not fit the drafters, or writes nothing; lenience is no
      number of 1 or more, or one whose 1 / l float32 cannot tell from 0; or the
      tokens would have no stated law.

  Source: Chen et al., "Cascade Speculative Drafting" (arXiv 2312.11462),
  Algorithm 1.
  """
  alpha = 1 - 1 / lenience if lenience >= 1 else math.nan
  if not np.float32(alpha) < 1:
    raise ValueError(
      f"lenience is {lenience:g}; wanted 1 (none) or more (1 / (1 - alpha) of"
      " lossy speculative decoding), at most 3e7"
    )
  num = len(models) + (bottom is not None)
  matrix = increments(matrix, meaning=meaning)
  if len(matrix) != num:
    raise ValueError(
      f"K has {len(matrix)} rows for {num} drafters ({len(models)} neural,"
      f" {num - len(models)} statistical); wanted one each"
    )
  is_lenient = lenience > 1
  by_token = verify is steps.token_verify

  def behind(i: int, j: int) -> int:
    """What others add to the prefix before drafter j of level i is asked again.

    On the outermost level the rest of the block, and the token after it; below
    it any of the block, now and then.
    """
    return sum(matrix[0]) + 1 - (matrix[0][j] if i == 0 else 0)

  def level(i: int) -> Drafter | None:
    """The drafter of level i: drafters i, i+1, ... in a row."""
    parts = [part(i, j) for j in range(i, num) if matrix[i][j]]
    if not parts:
      return None
    return parts[0] if len(parts) == 1 else HorizontalDrafter(tuple(parts))

  def part(i: int, j: int) -> Drafter:
    """Drafter j, as level i has it."""
    width = matrix[i][j]
    if bottom is not None and j == len(models):
      prompted = bottom.prompted or any(model.prompted for model in models)
      return bottom.replace(width=width, prompted=prompted)
    inner = level(j + 1)
    if inner is None:
      # It never feeds its own last draft before it is asked again.
      return AutoregressiveDrafter(models[j], width, behind=behind(i, j) + 1)
    if is_lenient and not by_token and isinstance(inner, HorizontalDrafter):
      raise ValueError(
        f"row {j + 1} of K has several drafters write a block that a lenient"
        " review verifies as a whole: the law of its tokens would depend on"
        " where a block began; use token verification, or lenience 1"
      )
    return VerticalDrafter(
      drafter=inner,
      reviewer=models[j],
      alpha=jnp.asarray(alpha, jnp.float32),
      width=width,
      target=targets.lossy if is_lenient else targets.lossless,
      greedy_target=LENIENT_GREEDY if is_lenient else None,
      verify=verify,
      bonus="verifier" if by_token else "target",
      behind=behind(i, j),
    )

  outer = level(0)
  if outer is None:
    raise ValueError("the first row of K is all 0: the cascade drafts nothing")
  return outer
