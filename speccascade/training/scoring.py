"""What of an evaluation is decoded, and scored by a task's metrics."""

from typing import Any

import numpy as np

from speccascade.data.prompting import Prompting


def decoded(task, prompting: Prompting, evaluating, lengths) -> dict[str, Any]:
  """Returns what of `Evaluation` concerns decoding: sources and score.

  Targets and predictions pass the task's postprocessor, as in seqio. Decoder-
  only models are not decoded.

  Args:
    task: of seqio, or None.
    prompting: has the vocabulary in use.
    evaluating: a `finetune.Evaluating`.
    lengths: feature -> most tokens.
  """
  from speccascade.data import reading, tasks

  num, vocabulary = evaluating.num_decoded, prompting.vocabulary
  if evaluating.decoded_task_name:
    task = tasks.get(evaluating.decoded_task_name, vocabulary)
  metrics = getattr(task, "metric_fns", None)
  if num == 0 or not metrics or prompting.prompted:
    return {}
  dataset = reading.open_split(task, evaluating.split, lengths)
  dataset = dataset.take(-1 if num is None else num)
  examples = list(reading.guarded(dataset.as_numpy_iterator(), task))
  finish = task.postprocess_fn or (lambda text, **_: text)
  decode = lambda ids: vocabulary.decode(ids.tolist())
  to_text = getattr(vocabulary, "text", decode)
  finished = lambda texts, is_target: [
    finish(text, example=example, is_target=is_target)
    for text, example in zip(texts, examples)
  ]
  targets = [example["targets_pretokenized"].decode() for example in examples]
  targets = finished(targets, is_target=True)

  def score(outputs: list[np.ndarray]) -> dict[str, float]:
    predictions = finished(map(to_text, outputs), is_target=False)
    scores = {}
    for metric in metrics:
      scores |= metric(targets, predictions)
    return scores

  sources = [np.asarray(example["inputs"], np.int32) for example in examples]
  return {"sources": sources, "score": score}
