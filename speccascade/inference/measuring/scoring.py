"""Scores the outputs of a point, and makes its result row."""

from collections.abc import Sequence

from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Costs, Counts
from speccascade.evaluation.timing import Latency
from speccascade.inference.batches.sources import Source
from speccascade.inference.measuring.environment import environment
from speccascade.inference.measuring.study import Outputs, Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows import records
from speccascade.inference.rows.results import ResultRow


def score_outputs(
  study: Study,
  point: Point,
  outputs: Outputs,
  *,
  latency: Latency | None,
  costs: Costs | None,
  agreement: dict | None,
) -> ResultRow:
  """Returns the row of a point's outputs.

  Args:
    study: the models, the examples and the settings of all points.
    point: the method and its settings.
    outputs: the outputs of all examples and trials.
    latency: the latency of the point, or None.
    costs: the costs of the pair, or None.
    agreement: the result of `agreement.count_identical`, or None.
  """
  by_index = {example.index: example for example in study.examples}
  # Outputs are ordered by trial and index, so that the bootstrap resamples the
  # examples of every point alike.
  examples, texts = [], []
  for trial, index in sorted(outputs.tokens):
    examples.append(by_index[index])
    tokens = outputs.tokens[trial, index]
    texts.append(records.text_of(study.vocabulary, tokens))
  return result_row(
    study,
    point,
    outputs.counts,
    examples,
    texts,
    latency=latency,
    costs=costs,
    agreement=agreement,
    log_probs=outputs.log_probs,
  )


def result_row(
  study: Study,
  point: Point,
  counts: Counts,
  examples: Sequence[Source] = (),
  texts: Sequence[str] = (),
  *,
  latency: Latency | None = None,
  costs: Costs | None = None,
  agreement: dict | None = None,
  trials: int | None = None,
  log_probs: Sequence[dict] = (),
) -> ResultRow:
  """Returns the row of a point that was decoded.

  Args:
    study: the models, the examples and the settings of all points.
    point: the method and its settings.
    counts: the counts, summed over all outputs.
    examples: the example of each text. Trials repeat an example.
    texts: the texts of the outputs. Without texts the row has no quality.
    latency: the latency of the point, or None.
    costs: the costs of the pair, or None.
    agreement: the result of `agreement.count_identical`, or None.
    trials: the number of trials that the row states; see `Study.settings`.
    log_probs: the log-probabilities of the outputs in parts, as
      `efficiency.mean_log_probs` takes them.
  """
  predicted_speedup = measured_speedup = None
  if costs is not None:
    num_heads = study.num_heads_of(point)
    predicted_speedup = point.predicted_speedup(counts, costs, num_heads)
  if latency is not None:
    measured_speedup = 1 / latency.relative_latency
  return ResultRow(
    settings=study.settings(point, trials=trials),
    label=point.spec.label,
    counts=counts,
    efficiency=efficiency.summary(counts),
    quality=study.score(examples, texts),
    latency=latency,
    costs=costs,
    predicted_speedup=predicted_speedup,
    measured_speedup=measured_speedup,
    agreement=agreement,
    num_truncated=study.sources.num_cut,
    environment=environment(study.pair.layout),
    num_parameters=study.pair.num_parameters,
    log_probs=efficiency.mean_log_probs(log_probs),
    sharpness=efficiency.sharpness(log_probs),
  )
