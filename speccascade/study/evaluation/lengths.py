"""How long answers are, relative to the exact output of the same sampling.

A lossy rule may write longer or shorter answers than the verifier alone. Then
its time per token does not say what a user waits for: an answer that takes 0.8
of the time a token and 1.4 times the tokens is late. Rows therefore have the
lengths of their answers, and the ratio to the lengths of the verifier's.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, NotRequired, TypedDict

import numpy as np

from speccascade.settings import fields
from speccascade.tasks import corpus_scores

# Lengths of an example's answers by the example's index.
Lengths = Mapping[int, float]
_DIGITS = 4  # decimals of a mean length over trials
_Ratio = Annotated[float, fields.Bounds(0)]


class RelativeLength(TypedDict):
  """Tokens of a method's answers over those of the exact verifier's.

  "value" is the ratio of both sums over the examples, "low" and "high" are the
  ends of its 95% interval, a bootstrap over examples in pairs. "num_examples"
  is the number of examples that both answered. "replicates" are the ratios of
  resampled examples: for equally many examples the i-th resample has the
  examples of the i-th replicate of a `Score`.
  """

  value: _Ratio
  low: _Ratio
  high: _Ratio
  num_examples: fields.Positive
  replicates: NotRequired[list[_Ratio]]


def answer_lengths(
  tokens: Mapping[tuple[int, int], Sequence[int]],
) -> dict[int, float]:
  """Returns the mean tokens of each example's answers over its trials.

  Args:
    tokens: the tokens of each answer, EOS included, by trial and index.

  >>> answer_lengths({(0, 4): [7, 1], (1, 4): [7, 7, 1], (0, 2): [1]})
  {2: 1.0, 4: 2.5}
  """
  by_index: dict[int, list[int]] = {}
  for (_, index), answer in sorted(tokens.items()):
    by_index.setdefault(index, []).append(len(answer))
  return {
    index: round(float(np.mean(by_index[index])), _DIGITS)
    for index in sorted(by_index)
  }


def relative_length(own: Lengths, exact: Lengths) -> RelativeLength | None:
  """Returns how long answers are relative to the exact verifier's, in pairs.

  Only examples that both answered count.

  Args:
    own: the lengths of the method's answers by example.
    exact: the lengths of the answers of the verifier alone at the sampling of
      the method.

  Returns:
    The ratio; None where no example has both answers, or the exact answers
    have no token.

  >>> ratio = relative_length({0: 3.0, 1: 6.0, 7: 9.0}, {0: 2.0, 1: 4.0})
  >>> [ratio[name] for name in ("value", "low", "high", "num_examples")]
  [1.5, 1.5, 1.5, 2]
  """
  shared = sorted(own.keys() & exact.keys())
  sums = np.array([[own[i], exact[i]] for i in shared]).reshape(-1, 2)
  if not sums[:, 1].any():
    return None
  entry = corpus_scores.Statistics(
    "relative_length", sums, _ratio_of_totals, signature=""
  ).entry(replicates=corpus_scores.REPLICATES)
  del entry["signature"]
  return RelativeLength(**entry)


def _ratio_of_totals(totals: np.ndarray) -> float:
  own, exact = totals
  return own / exact if exact else np.nan
