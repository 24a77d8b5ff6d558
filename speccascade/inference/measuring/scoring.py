"""Scores the outputs of a point, and makes its result row."""

from collections.abc import Sequence

from speccascade.evaluation import efficiency, quality
from speccascade.evaluation.efficiency import Costs, Counts
from speccascade.evaluation.timing import Latency
from speccascade.inference.batches.sources import Source
from speccascade.inference.measuring.environment import environment
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.inference.rows.results import ResultRow


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
    quality=score(study, examples, texts),
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


def score(
  study: Study, examples: Sequence[Source], texts: Sequence[str]
) -> dict[str, dict]:
  """Returns the scores of texts; {} where no reference is known.

  The trials of an example are resampled together, because they are no
  independent samples. The resamples are the same for every point, so that the
  replicates of two points can be compared in pairs.

  Args:
    study: the examples, and the metrics that were chosen.
    examples: the example of each text. Trials repeat an example.
    texts: the texts of outputs.
  """
  references = [list(example.references) for example in examples]
  if not texts or not all(references):
    return {}
  indices = [example.index for example in examples]
  task, scores = study.sources.task_scores, {}
  if task is not None and study.measuring.metrics is None:
    scores = task.scores(indices, texts)
  if task is not None:
    texts = [task.prediction(i, text) for i, text in zip(indices, texts)]
  return scores | quality.evaluate(
    metrics_of(study),
    texts,
    references,
    groups=indices,
    replicates=quality.REPLICATES,
  )


def metrics_of(study: Study) -> Sequence[str]:
  """Returns the names in `quality.METRICS` that score the outputs.

  Exact match stands beside the task's own where its targets are short.
  """
  if study.measuring.metrics is not None:
    return study.measuring.metrics
  references = [example.references for example in study.sources.examples]
  return quality.with_exact_match(study.sources.metrics, references)


def metric_names(study: Study) -> list[str]:
  """Returns the names of all metrics that score outputs, also a task's own."""
  names = list(metrics_of(study))
  if study.measuring.metrics is None and study.sources.task_scores:
    names += study.sources.task_scores.metrics.function_names
  return names
