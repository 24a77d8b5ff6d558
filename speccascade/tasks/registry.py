"""Registers text-to-text tasks with seqio, each of them once."""

from collections.abc import Sequence

from speccascade.tasks import quality
from speccascade.tasks._tf import seqio, tf
from speccascade.tasks.seqio_vocabularies import Vocabulary

# The settings of each task that `register` has registered, by the task's name.
_SETTINGS: dict[str, object] = {}


def references_of(target: str, example=None, is_target: bool = False):
  """Returns all right answers of an example, for a target.

  This is the `postprocess_fn` of tasks. A prediction is returned as it is.

  Args:
    target: the target, or a prediction.
    example: the example's features.
    is_target: whether `target` is the target.
  """
  if is_target and example is not None and "references" in example:
    return [tf.compat.as_text(text) for text in example["references"]]
  return target


def register(
  name: str,
  source,
  to_text: Sequence,
  metrics: Sequence[str],
  vocabulary: Vocabulary | None = None,
  *,
  settings: object = None,
) -> str:
  """Adds a text-to-text task to seqio's registry, and returns its name.

  Args:
    name: the task's name.
    source: a seqio data source.
    to_text: preprocessors that make the strings `inputs` and `targets`.
    metrics: names in `quality.METRICS`.
    vocabulary: the vocabulary of both features; None takes T5's.
    settings: values that identify this task among tasks of the name. A
      registered task with equal settings stays. None lets any registered task
      stay, such as T5's own.

  Raises:
    ValueError: a task with other settings has this name.
  """
  if name in seqio.TaskRegistry.names():
    if settings in (None, _SETTINGS.get(name)):
      return name
    raise ValueError(f"there is a task {name!r} already: choose another name")
  feature = seqio.Feature(vocabulary=vocabulary or Vocabulary(), add_eos=True)
  seqio.TaskRegistry.add(
    name,
    source=source,
    preprocessors=[
      *to_text,
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      seqio.preprocessors.append_eos_after_trim,
    ],
    postprocess_fn=references_of,
    metric_fns=[quality.seqio_metric(metric) for metric in metrics],
    output_features={"inputs": feature, "targets": feature},
  )
  _SETTINGS[name] = settings
  return name
