"""How long the answers of rows are, relative to the exact verifier's.

Rows have the lengths of their answers. Those of older versions do not: the
records of a decode then have them, and without records it is the ratio of the
tokens that both rows counted, which has no interval.
"""

from collections.abc import Sequence
import dataclasses
import pathlib

import numpy as np

from speccascade.generate.batches import decode_counts
from speccascade.settings import fields
from speccascade.study.evaluation import lengths
from speccascade.study.evaluation.lengths import RelativeLength
from speccascade.study.report import frontier
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow


def sample(
  rows: Sequence[ResultRow], exact: Sequence[ResultRow]
) -> np.ndarray | None:
  """Returns the relative length, a mean over seeds, as a sample.

  Args:
    rows: the rows of a point, one for each seed.
    exact: the rows of the verifier alone at the same sampling; or none.

  Returns:
    The ratio and its replicates, [1 + R] float64; [1] where rows do not have
    the lengths of single answers; None where nothing of the verifier is known.
  """
  known = [row.relative_length for row in rows]
  num = rows[0].settings.num_examples
  if not all(each and each["num_examples"] == num for each in known):
    # The row of the verifier may be younger than those that it is compared to.
    paired = _paired(rows, exact)
    known = known if paired is None else [paired]
  if None not in known:
    samples = [np.r_[x["value"], x.get("replicates") or ()] for x in known]
    return frontier.matched(samples).mean(axis=0)
  if not exact:
    return None
  own, alone = (_mean_length(each) for each in (rows, exact))
  return np.array([own / alone]) if own is not None and alone else None


def with_lengths(row: ResultRow, predictions: pathlib.Path | None) -> ResultRow:
  """Returns the row of a decode with the lengths of its answers.

  Args:
    row: the row, which is returned as it is where it has them.
    predictions: the records of the decode, plain or .gz; or None.

  Raises:
    ValueError: a line is not a record; the message has the line's number.
  """
  if row.lengths or predictions is None:
    return row
  tokens: dict[tuple[int, int], list[int]] = {}
  for number, line in enumerate(results.read_lines(predictions), start=1):
    try:
      aux = fields.of_json(line)["aux"]
      if not aux.get("turn"):
        place = aux.get("trial", 0), aux.get("index", number)
        fields.fit("trial and index", place, tuple[int, int])
        tokens[place] = fields.fit("tokens", aux["tokens"], list[int])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise ValueError(
        f"{predictions} line {number} is not a decoded example ({error!r});"
        " remove the file, and decode again"
      ) from error
  own = lengths.answer_lengths(tokens)
  return dataclasses.replace(row, lengths=tuple(own.values()))


def _paired(
  rows: Sequence[ResultRow], exact: Sequence[ResultRow]
) -> RelativeLength | None:
  """Returns the ratio of lengths that both have of all examples, or None."""
  several = [row.lengths for row in (*rows, *exact)]
  if not exact or len({*map(len, several)}) > 1:
    return None
  own, alone = (
    dict(enumerate(np.mean([row.lengths for row in each], axis=0).tolist()))
    for each in (rows, exact)
  )
  return lengths.relative_length(own, alone)


def _mean_length(rows: Sequence[ResultRow]) -> float | None:
  """Returns the tokens of an answer of rows, by their counts."""
  counts = decode_counts.total([row.counts for row in rows])
  return decode_counts.ratio(counts.num_tokens, counts.num_examples)
