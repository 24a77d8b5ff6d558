"""Quality on the generated task, by what its grammar knows of a source."""

from collections.abc import Sequence

import numpy as np

from speccascade.data.generated import examples
from speccascade.evaluation import quality


def valid(
  predictions: Sequence[str], inputs: Sequence[str]
) -> list[quality.Statistics]:
  """Share of predictions that are right renderings of their sources.

  Exact: every right rendering counts, also where a source has more of them
  than the references list.

  Args:
    predictions: N German texts.
    inputs: N English sentences of the task.

  Raises:
    ValueError: unequal counts, none, or a source that is not of the task.
  """
  if len(predictions) != len(inputs) or not len(inputs):
    raise ValueError(
      f"{len(predictions)} predictions for {len(inputs)} sources: want one each"
    )
  right = [
    examples.is_rendering(source, prediction)
    for prediction, source in zip(predictions, inputs)
  ]
  sums = np.stack([np.asarray(right, np.float64), np.ones(len(right))], axis=1)
  return [
    quality.Statistics("valid", sums, _percent, f"grammar:{examples.VERSION}")
  ]


def _percent(sums) -> float:
  return 100 * sums[0] / sums[1]


def evaluate(
  predictions: Sequence[str], inputs: Sequence[str]
) -> dict[str, float]:
  """BLEU and chrF against up to 8 references, exact match and `valid`.

  Args:
    predictions: N German texts.
    inputs: N English sentences of the task; the grammar gives the references.

  Returns:
    "bleu", "chrf", "exact_match" (one of the references) and "valid" (any
    right rendering), each 0 to 100.
  """
  references = [examples.references(source) for source in inputs]
  statistics = [
    *quality.bleu(predictions, references),
    *quality.chrf(predictions, references),
    *quality.exact_match(predictions, references),
    *valid(predictions, inputs),
  ]
  return {entry.name: entry.value for entry in statistics}


def ceilings(split: str = "test", count: int = 1_000) -> dict[str, float]:
  """BLEU of a model that knows the grammar, against the drawn target alone.

  Returns:
    "greedy": the most probable rendering; "sampled": an independent draw.
    Against the up to 8 references the first is 100.
  """
  several = examples.pairs(split, 0, count)
  drawn = [one.targets for one in several]
  greedy = [one.references[0] for one in several]
  sampled = [examples.draw(one.inputs, seed=i) for i, one in enumerate(several)]
  return {
    "greedy": quality.bleu(greedy, drawn)[0].value,
    "sampled": quality.bleu(sampled, drawn)[0].value,
  }
