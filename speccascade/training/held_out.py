"""What a model is measured on while it trains: held-out examples of its data.

The modules that read tasks are imported when the examples are read, so the
package `training` itself needs neither seqio nor TensorFlow.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from speccascade.data import training_batches
from speccascade.data.task_scores import values_of
from speccascade.models.parameters import Config
from speccascade.settings import fields
from speccascade.training.evaluate import Evaluation
from speccascade.training.kinds import kind_of
from speccascade.training.states import Teacher
from speccascade.training.trainer import TrainingRun
from speccascade.training.training_data import TrainingData


@fields.checked
@dataclasses.dataclass(frozen=True)
class Evaluating:
  """What a model is measured on while it trains.

  Attributes:
    split: the split that is held out, of the task or of the files.
    num_examples: how many examples the loss is measured on, the first ones;
      None takes all, 0 evaluates nothing.
    num_decoded: how many examples are decoded greedily and scored by the task's
      metrics, the first ones; None takes all.
    decoded_task_name: the task whose examples are decoded, where the training
      data is a mixture of tasks; None takes the training data's task.
    max_decode_len: most tokens of an output.
  """

  split: str = "validation"
  num_examples: fields.NonNegative | None = 1000
  num_decoded: fields.NonNegative | None = 200
  decoded_task_name: str | None = None
  max_decode_len: fields.Size = 128


def evaluation(
  model: Config,
  data: TrainingData,
  evaluating: Evaluating,
  run: TrainingRun,
  teacher: Teacher | None,
) -> Evaluation | None:
  """Returns the evaluation during training; None where nothing is measured.

  Args:
    model: the architecture, or draft heads.
    data: has the held-out split, and the task whose examples are decoded.
    evaluating: what is measured.
    run: has the seed, and says whether to show a progress bar.
    teacher: the teacher, or None. The teacher of draft heads is their verifier.
  """
  if evaluating.num_examples == 0:
    return None
  held_out = data.read(evaluating.split, evaluating.num_examples, run)
  # Heads change no text, so that nothing is decoded with them.
  decoding = TaskDecoding()
  if not kind_of(model).has_verifier:
    decoding = task_decoding(data, evaluating)
  return Evaluation(
    list(training_batches.eval_batches(held_out, **data.shapes)),
    sources=decoding.sources,
    score=decoding.score,
    max_decode_len=evaluating.max_decode_len,
    # Decoding holds a cache for each row, so a large training batch is cut.
    batch_size=min(data.batch_size, 64),
    eos_id=data.prompting.vocabulary.eos_id,
    teacher=teacher,
  )


class TaskDecoding(NamedTuple):
  """What a task has decoded and scored: two fields of an `Evaluation`.

  Attributes:
    sources: see `Evaluation`.
    score: see `Evaluation`.
  """

  sources: Sequence[np.ndarray] = ()
  score: Callable[[list[np.ndarray]], dict[str, float]] | None = None


def task_decoding(data: TrainingData, evaluating: Evaluating) -> TaskDecoding:
  """Returns the sources of a task and the function that scores their outputs.

  Targets and predictions pass through the task's postprocessor, as in seqio.
  Nothing is decoded for a task without metrics, and for decoder-only models.

  Args:
    data: has the task, the vocabulary in use and the most tokens of a feature.
    evaluating: which examples are decoded, and of which task.
  """
  from speccascade.data import reading, tasks

  num, vocabulary = evaluating.num_decoded, data.prompting.vocabulary
  task = data.task
  if evaluating.decoded_task_name:
    task = tasks.get(evaluating.decoded_task_name, vocabulary)
  metrics = getattr(task, "predict_metric_fns", None)
  if num == 0 or not metrics or data.prompting.prompted:
    return TaskDecoding()
  lengths = dict(data.task_feature_lengths)
  dataset = reading.open_split(task, evaluating.split, lengths)
  dataset = dataset.take(-1 if num is None else num)
  examples = list(reading.guard(dataset.as_numpy_iterator(), task))

  def postprocess(texts, is_target):
    if task.postprocess_fn is None:
      return list(texts)
    return [
      task.postprocess_fn(text, example=example, is_target=is_target)
      for text, example in zip(texts, examples)
    ]

  def to_text(ids):
    # `text` of the package's own vocabularies ends before EOS and leaves
    # padding out. Vocabularies of seqio have `decode` alone.
    if hasattr(vocabulary, "text"):
      return vocabulary.text(ids)
    return vocabulary.decode(ids.tolist())

  targets = [example["targets_pretokenized"].decode() for example in examples]
  targets = postprocess(targets, is_target=True)

  def score(outputs: list[np.ndarray]) -> dict[str, float]:
    predictions = postprocess(map(to_text, outputs), is_target=False)
    scores = {}
    for metric in metrics:
      scores |= values_of(metric(targets, predictions))
    return scores

  sources = [np.asarray(example["inputs"], np.int32) for example in examples]
  return TaskDecoding(sources, score)
