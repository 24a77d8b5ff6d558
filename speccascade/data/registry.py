"""Text-to-text tasks in seqio's registry, each registered once."""

from collections.abc import Sequence

from speccascade.data._tf import seqio, tf
from speccascade.data.vocabularies import Vocabulary
from speccascade.evaluation import quality

_SETTINGS: dict[str, object] = {}


def references_of(target: str, example=None, is_target: bool = False):
  """A task's `postprocess_fn`: all right answers where it is given a target."""
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
  """Adds a text-to-text task to seqio's registry, once; returns its name.

  Args:
    name: the task's name.
    source: a seqio data source.
    to_text: preprocessors up to the strings `inputs` and `targets`.
    metrics: names in `quality.METRICS`.
    vocabulary: both features' vocabulary; default T5's.
    settings: what the task was made of. A task of that name and equal settings
      stays; None lets any task stay, such as T5's own.

  Raises:
    ValueError: the name is taken by a task of other settings.
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
