"""Cascade Speculative Drafting: the drafter that a matrix K describes.

K[i][j] is the number of tokens that drafter j adds to a block of level i. The
drafters are in order of size, the largest first; the last may be a Max-Gram
copier. Level i is a horizontal cascade of the drafters i, i+1, ...: each adds
its tokens where the one before stopped. A neural drafter j does not write its
tokens alone. It reviews drafts of level j + 1, so it is at the top of a
vertical cascade. The speculative loop reviews the blocks of level 0.

Example: a medium model, a small model and a copier, with

      medium small copier
  K = [[5,    14,   10],    level 0
       [0,     1,   10],    level 1
       [0,     0,   10]]    level 2

- Level 2 is the copier: blocks of 10 copied tokens.
- Level 1 drafts for the medium model: the small model adds 1 token, which it
  takes from its review of level 2, and the copier adds 10.
- Level 0 drafts for the verifier: the medium model adds 5 tokens, which it
  takes from reviews of level 1; the small model adds 14, from reviews of level
  2; the copier adds 10. A block has 5 + 14 + 10 = 29 tokens.

The small model is in two places. Each place has a cache of its own.
"""

from collections.abc import Sequence
import math

import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.horizontal import HorizontalDrafter
from speccascade.decoding.drafting.max_gram import MaxGramDrafter
from speccascade.decoding.laws import lossy_targets, targets
from speccascade.decoding.laws.greedy_lenience import lenient_cs_paper
from speccascade.decoding.nested.vertical import VerticalDrafter
from speccascade.decoding.records.block_records import VerifyFunction
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.verification import steps

# One object for all cascades: drafters are equal, and share a compiled program,
# only if their targets are equal, and two targets of the same rule are not.
LENIENT_GREEDY = targets.defer_tokens(lenient_cs_paper)


def increments(
  matrix: Sequence[Sequence[int]], *, meaning: str
) -> list[list[int]]:
  """Returns K as tokens added by each drafter, from either published form.

  Args:
    matrix: [n, n]. Row i describes level i; its entries before column i are 0.
    meaning: "increments", as in the authors' code: entry (i, j) is the number
      of tokens that drafter j adds. "cumulative", as in the paper's tables:
      entry (i, j) is the length of the block when drafter j stops. The row
      (5, 14, 10) of increments is the cumulative row (5, 19, 29).

  Raises:
    ValueError: K is not square, has an entry below 0, or has a cumulative row
      whose numbers fall.
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
    bottom: the Max-Gram copier at the end, or None. It copies from prompts if
      the models continue from prompts.
    matrix: K, with a row and a column for each drafter, `bottom` last.
    meaning: the meaning of K; see `increments`.
    lenience: l >= 1 of the inner reviews. A review accepts a draft x with
      probability min(1, l p(x) / q(x)); in greedy decoding it accepts x if x is
      the arg-max of p or q(x) <= l p(x). Copied tokens are reviewed without
      lenience, and so is the whole block by the verifier. The token after a
      fully accepted block is the reviewer's own.
    verify: the inner verifier step. With `steps.block_verify` and lenience, the
      token after a fully accepted block is drawn from the lenient target, which
      takes one more pass of the inner drafter.

  Raises:
    ValueError: K does not fit the drafters, or adds no token at level 0;
      lenience is below 1, or so large that float32 cannot distinguish 1 / l
      from 0; or the tokens would have no stated distribution.

  Source: Chen et al., "Cascade Speculative Drafting" (arXiv 2312.11462),
  Algorithm 1.
  """
  # Lenience is lossy speculative decoding with 1 - alpha = 1 / l: lenience 3 is
  # alpha 2/3. A lenience of NaN or below 1 gives NaN, which is not below 1.
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
    """Returns how many tokens the other drafters write until drafter j is
    called again.

    The cache of drafter j lacks these tokens, and one wide pass reads them.
    With the K of the module's docstring, a block of level 0 has 29 tokens and
    the verifier adds one:
    - the medium model of level 0 writes 5 of these 30 tokens, and the others
      write 25;
    - the small model of level 0 writes 14 of them, and the others 16;
    - the small model of level 1 runs only while the medium model drafts, so all
      30 may be new to it when the next block begins.
    """
    return sum(matrix[0]) + 1 - (matrix[0][j] if i == 0 else 0)

  def level(i: int) -> Drafter | None:
    """Returns the drafter of level i: drafters i, i+1, ... in a row."""
    parts = [part(i, j) for j in range(i, num) if matrix[i][j]]
    if not parts:
      return None
    return parts[0] if len(parts) == 1 else HorizontalDrafter(tuple(parts))

  def part(i: int, j: int) -> Drafter:
    """Returns drafter j as level i uses it: it adds K[i][j] tokens."""
    width = matrix[i][j]
    if bottom is not None and j == len(models):
      prompted = bottom.prompted or any(model.prompted for model in models)
      return bottom.replace(width=width, prompted=prompted)
    inner = level(j + 1)
    if inner is None:
      # Nothing drafts for it, so it drafts alone. It does not feed its own last
      # draft before it is called again, so its cache lacks one token more.
      return AutoregressiveDrafter(models[j], width, behind=behind(i, j) + 1)
    if is_lenient and not by_token and isinstance(inner, HorizontalDrafter):
      raise ValueError(
        f"row {j + 1} of K has several drafters write a block that a lenient"
        " review verifies as a whole: the distribution of its tokens would"
        " depend on where a block began; use token verification, or lenience 1"
      )
    return VerticalDrafter(
      drafter=inner,
      reviewer=models[j],
      alpha=jnp.asarray(alpha, jnp.float32),
      width=width,
      target=lossy_targets.lossy if is_lenient else targets.lossless,
      greedy_target=LENIENT_GREEDY if is_lenient else None,
      verify=verify,
      bonus="verifier" if by_token else "target",
      behind=behind(i, j),
    )

  outer = level(0)
  if outer is None:
    raise ValueError("the first row of K is all 0: the cascade drafts nothing")
  return outer
