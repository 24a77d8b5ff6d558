"""How a seqio task scores outputs: by its postprocessor and its metrics."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import numbers

from absl import logging
import numpy as np

# T5's own metrics, as `quality.METRICS` has them. Ours give an interval.
_T5_METRICS = {"bleu": "bleu_intl", "rouge": "rouge"}
_T5_MODULE = "t5.evaluation.metrics"


@dataclasses.dataclass(frozen=True)
class TaskMetrics:
  """The metrics of a task, as far as outputs alone decide them.

  Attributes:
    names: those of the package, as names in `quality.METRICS`.
    functions: all others, functions `(targets, predictions) -> {name: value}`.
  """

  names: tuple[str, ...] = ()
  functions: tuple[Callable, ...] = ()

  @property
  def function_names(self) -> list[str]:
    """The names of the functions."""
    return [_name_of(function) for function in self.functions]

  @classmethod
  def of(cls, task) -> "TaskMetrics":
    """Returns the metrics of a seqio task, and warns of those left out."""
    names, functions = [], []
    for function in getattr(task, "predict_metric_fns", ()):
      name = getattr(function, "metric", None)
      if getattr(function, "__module__", None) == _T5_MODULE:
        name = _T5_METRICS.get(function.__name__)
      if name is None:
        functions.append(function)
      else:
        names.append(name)
    left_out = [
      *getattr(task, "score_metric_fns", ()),
      *getattr(task, "predict_with_aux_metric_fns", ()),
      # seqio's public `metric_objs` has the metric functions too.
      *getattr(task, "_metric_objs_constructor_args", ()),
    ]
    if left_out:
      logging.warning(
        "task %s: only metric functions (targets, predictions) are computed;"
        " left out: %s",
        task.name,
        ", ".join(map(_name_of, left_out)),
      )
    return cls(tuple(names), tuple(functions))


@dataclasses.dataclass(frozen=True)
class TaskScores:
  """What a seqio task computes of outputs, for the examples of a split.

  Attributes:
    name: the task's name, for messages.
    metrics: the metrics.
    postprocess: the task's postprocessor, `(text, example=features,
      is_target=bool) -> value`.
    features: for each example its features, which the postprocessor may read.
    targets: for each example its target as text; None where it has none.
  """

  name: str
  metrics: TaskMetrics
  postprocess: Callable
  features: Sequence[Mapping]
  targets: Sequence[str | None]

  def references(self, index: int) -> list[str]:
    """Returns the right outputs of an example, as texts.

    They are what the postprocessor makes of the target, if that is a text or a
    list of texts, and else the target.
    """
    target = self.targets[index]
    if target is None:
      return []
    texts = _as_texts(self._postprocessed(index, target, is_target=True))
    return [target] if texts is None else texts

  def prediction(self, index: int, text: str) -> str:
    """Returns an output as the metrics of the package compare it.

    The postprocessor is used where its values are texts on both sides.
    """
    target = self.targets[index]
    value = self._postprocessed(index, text, is_target=False)
    if target is None or not isinstance(value, str):
      return text
    wanted = self._postprocessed(index, target, is_target=True)
    return text if _as_texts(wanted) is None else value

  def scores(self, indices: Sequence[int], texts: Sequence[str]) -> dict:
    """Returns {name: score} of the metrics that are not the package's.

    Such a metric is a function of all outputs, so that a score has no
    interval.

    Args:
      indices: the example of each output.
      texts: the outputs.

    Raises:
      ValueError: a metric or the postprocessor fails; the message names it.
    """
    if not self.metrics.functions or not texts:
      return {}
    targets = [
      self._postprocessed(i, self.targets[i], is_target=True) for i in indices
    ]
    predictions = [
      self._postprocessed(i, text, is_target=False)
      for i, text in zip(indices, texts)
    ]
    scores = {}
    for function in self.metrics.functions:
      name = _name_of(function)
      values = self._call(f"metric {name}", function, targets, predictions)
      for key, value in _numbers_of(values).items():
        scores[key] = {
          "value": value,
          "num_examples": len(texts),
          "signature": f"task:{self.name}|metric:{name}",
        }
    return scores

  def _postprocessed(self, index: int, text: str, *, is_target: bool):
    return self._call(
      "postprocessor",
      self.postprocess,
      text,
      example=self.features[index],
      is_target=is_target,
    )

  def _call(self, what: str, function: Callable, *args, **kwargs):
    """Returns what a function of the task returns; its errors are one line."""
    try:
      return function(*args, **kwargs)
    except Exception as error:  # a task's function may raise anything
      reason = " ".join(str(error).split()) or type(error).__name__
      raise ValueError(
        f"{what} of task {self.name}: {type(error).__name__}: {reason:.200}"
      ) from error


def _numbers_of(scores: Mapping) -> dict[str, float]:
  """Returns the finite numbers among the values of a metric function."""
  # A value may be a number, or an object of seqio with a number `value`. Other
  # values, such as histograms, are left out, which a warning says.
  values, left_out = {}, []
  for name, value in scores.items():
    value = getattr(value, "value", value)
    if isinstance(value, np.ndarray) and value.shape == ():
      value = value.item()
    if isinstance(value, numbers.Real) and math.isfinite(value):
      values[name] = float(value)
    else:
      left_out.append(name)
  if left_out:
    logging.warning("no finite numbers, left out: %s", ", ".join(left_out))
  return values


def _as_texts(value) -> list[str] | None:
  """Returns a string, or several, as a list; None for other values."""
  texts = [value] if isinstance(value, str) else value
  is_list = isinstance(texts, list | tuple) and texts
  if not is_list or not all(isinstance(text, str) for text in texts):
    return None
  return list(texts)


def _name_of(metric) -> str:
  """Returns the name of a metric for messages."""
  metric = getattr(metric, "func", metric)  # functools.partial
  return getattr(metric, "__name__", type(metric).__name__)
