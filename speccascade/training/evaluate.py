"""Evaluation during training: loss, token accuracy, and decoded quality.

The modules that read tasks are imported when the examples are read, so the
package `training` itself needs neither seqio nor TensorFlow.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from speccascade.decoding.laws.draws import row_keys
from speccascade.models.architectures import drafts_alone
from speccascade.models.parameters import Config, network
from speccascade.models.sharding.partitioning import fetch, layout_of
from speccascade.settings import fields
from speccascade.tasks.task_scores import TaskMetrics, TaskScores
from speccascade.text.arrays import order_by_length, pad
from speccascade.training import (
  losses,
  states,
  training_batches,
  verifier_tuning,
  written_text,
)
from speccascade.training.batch_checks import check_batch
from speccascade.training.kinds import kind_of
from speccascade.training.lesson import Reading
from speccascade.training.trainer import TrainingRun
from speccascade.training.training_data import TrainingData

# Scores the token ids of outputs, in the order of their sources.
Score = Callable[[list[np.ndarray]], Mapping[str, float]]

EOS_ID = 1
# Sources are padded to a multiple of this many tokens, so that few shapes are
# compiled.
WIDTH = 16


@functools.partial(jax.jit, static_argnums=(0, 4))
def _measure(module, params, batch, teacher, layout):
  """Returns the metrics of a batch, see `lesson.Metrics`."""
  weights, _ = losses.normalize(batch, None)
  reading = Reading(
    module, params, batch, weights, teacher=teacher, layout=layout
  )
  return kind_of(module.config).measure(reading)


def teacher_forced(
  config: Config,
  params: Any,
  batches: Iterable[Mapping[str, np.ndarray]],
  teacher: states.Teacher | None = None,
) -> dict[str, float]:
  """Returns means over the target tokens of held-out batches.

  The mean "loss" in nats has neither label smoothing nor z-loss, so runs with
  different objectives can be compared. "accuracy" is the share of target tokens
  with the highest logit. With a teacher there are two more means: "divergence"
  from the teacher in nats, and "acceptance", the chance that the teacher's
  speculative sampling at temperature 1 accepts a draft. Draft heads and
  look-ahead embeddings, whose teacher is their verifier, have the metrics of
  `lesson.by_depth`, and `head_losses.measure` adds those of a verifier that is
  tuned.

  Args:
    config: the architecture.
    params: the model's parameters. Parameters that lie on a mesh are evaluated
      there.
    batches: held-out batches, each read once. Rows without targets have no
      weight.
    teacher: the teacher, or None.

  Raises:
    ValueError: a batch does not fit the model, or there is no target token.
  """
  module, layout = network(config), layout_of(params)
  # Totals over batches are float64: float32 would lose small batches in them.
  totals: dict[str, float] = collections.defaultdict(float)
  weights: dict[str, float] = collections.defaultdict(float)
  for number, batch in enumerate(batches):
    batch = check_batch(batch, config, number)
    if layout is not None:
      batch = layout.rows(batch)
    for name, (value, weight) in fetch(
      _measure(module, params, batch, teacher, layout)
    ).items():
      totals[name] += float(value)
      weights[name] += float(weight)
  if not weights["loss"]:
    raise ValueError("there are no target tokens to evaluate on")
  is_tuned = verifier_tuning.is_joint(params)
  names = kind_of(config).metric_names(config, teacher is not None, is_tuned)
  # A head that looks past the end of every text has no target.
  return {name: totals[name] / max(weights[name], 1e-9) for name in names}


def greedy(
  config: Config,
  params: Any,
  sources: Sequence[np.ndarray],
  *,
  max_decode_len: int,
  batch_size: int = 32,
  eos_id: int = EOS_ID,
) -> list[np.ndarray]:
  """Returns the greedy output for each source, by the method `verifier`.

  Args:
    config: the architecture of an encoder-decoder.
    params: the model's parameters.
    sources: N arrays of token ids with their EOS, without padding.
    max_decode_len: most tokens of an output, EOS included.
    batch_size: rows decoded at once; sources of similar lengths share a batch.
    eos_id: the token that ends an output.

  Returns:
    N int32 arrays in the order of `sources`, with their EOS.
  """
  model = written_text.model_of(config, params)
  outputs: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sources)
  order = order_by_length(sources)
  for start in range(0, len(order), batch_size):
    indices = order[start : start + batch_size]
    batch = [sources[i] for i in indices]
    # The last source of a batch is its longest. A width of 21 becomes 32.
    width = WIDTH * -(-max(len(batch[-1]), 1) // WIDTH)
    # Rows that the last batch lacks are copies, whose outputs are not read: all
    # batches of a width have one shape.
    tokens, lengths = written_text.write(
      model,
      pad(batch, batch_size, width),
      row_keys(0, 0, np.arange(batch_size)),  # greedy draws nothing
      limit=max_decode_len,
      eos_id=eos_id,
      temperature=0.0,
    )
    for row, i in enumerate(indices):
      outputs[i] = tokens[row, : lengths[row]]
  return outputs


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What a model is measured on while it trains; calling it measures.

  Attributes:
    batches: held-out batches for the loss and the accuracy, each read once.
    sources: token ids of the sources that are decoded greedily; () decodes
      nothing.
    score: a function from the outputs' token ids, in the order of `sources`, to
      metrics, e.g. {"bleu": 31.2}; None decodes nothing.
    max_decode_len: most tokens of an output.
    batch_size: rows decoded at once.
    eos_id: the token that ends an output.
    teacher: see `teacher_forced`.
  """

  batches: Sequence[Mapping[str, np.ndarray]]
  sources: Sequence[np.ndarray] = ()
  score: Score | None = None
  max_decode_len: int = 128
  batch_size: int = 32
  eos_id: int = EOS_ID
  teacher: states.Teacher | None = None

  @property
  def _is_decoding(self) -> bool:
    return self.score is not None and len(self.sources) > 0

  def names(self, config: Config, *, is_tuned: bool = False) -> list[str]:
    """Returns the names of the metrics that a call measures.

    The names of `score` are the names that it returns for empty outputs.

    Args:
      config: the architecture, or draft heads.
      is_tuned: whether the verifier of draft heads is tuned with them.
    """
    has_teacher = self.teacher is not None
    names = [*kind_of(config).metric_names(config, has_teacher, is_tuned)]
    if self._is_decoding:
      names += self.score([np.zeros(0, np.int32)] * len(self.sources))
    return names

  def __call__(self, config: Config, params: Any) -> dict[str, float]:
    """Returns the metrics of `teacher_forced` and of `score`, by name."""
    metrics = teacher_forced(config, params, self.batches, self.teacher)
    if self._is_decoding:
      outputs = greedy(
        config,
        params,
        self.sources,
        max_decode_len=self.max_decode_len,
        batch_size=min(self.batch_size, len(self.sources)),
        eos_id=self.eos_id,
      )
      scores = self.score(outputs)
      metrics |= {name: float(value) for name, value in scores.items()}
    return metrics


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
  teacher: states.Teacher | None,
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
  sources, score = (), None
  if drafts_alone(model):
    sources, score = task_decoding(data, evaluating)
  return Evaluation(
    list(training_batches.eval_batches(held_out, **data.shapes)),
    sources=sources,
    score=score,
    max_decode_len=evaluating.max_decode_len,
    # Decoding holds a cache for each row, so a large training batch is split.
    batch_size=min(data.batch_size, 64),
    eos_id=data.prompting.vocabulary.eos_id,
    teacher=teacher,
  )


def task_decoding(
  data: TrainingData, evaluating: Evaluating
) -> tuple[Sequence[np.ndarray], Score | None]:
  """Returns the sources of a task and the function that scores their outputs.

  They are two fields of an `Evaluation`. Targets and predictions pass through
  the task's postprocessor, as in seqio. Nothing is decoded for a task without
  metrics, and for decoder-only models.

  Args:
    data: has the task, the vocabulary in use and the most tokens of a feature.
    evaluating: which examples are decoded, and of which task.
  """
  from speccascade.tasks import reading, tasks

  num, vocabulary = evaluating.num_decoded, data.prompting.vocabulary
  task = data.task
  if evaluating.decoded_task_name:
    task = tasks.get(evaluating.decoded_task_name, vocabulary)
  metrics = getattr(task, "predict_metric_fns", None)
  if num == 0 or not metrics or data.prompting.prompted:
    return (), None
  lengths = dict(data.task_feature_lengths)
  dataset = reading.open_split(task, evaluating.split, lengths)
  dataset = dataset.take(-1 if num is None else num)
  examples = list(reading.guard(dataset.as_numpy_iterator(), task))

  def to_text(ids):
    # `text` of the package's own vocabularies ends before EOS and leaves
    # padding out. Vocabularies of seqio have `decode` alone.
    if hasattr(vocabulary, "text"):
      return vocabulary.text(ids)
    return vocabulary.decode(ids.tolist())

  scores = TaskScores(
    task.name,
    TaskMetrics(functions=tuple(metrics)),
    task.postprocess_fn,
    features=examples,
    targets=[x["targets_pretokenized"].decode() for x in examples],
  )

  def score(outputs: list[np.ndarray]) -> dict[str, float]:
    values = scores.scores(range(len(outputs)), list(map(to_text, outputs)))
    return {name: each["value"] for name, each in values.items()}

  def source(example) -> Sequence[int]:
    if data.prompting.format == "source":
      return example["inputs"]
    text = example["inputs_pretokenized"].decode()
    ids, _ = data.prompting.tokens(text, lengths["inputs"], "", True)
    return ids

  return [np.asarray(source(x), np.int32) for x in examples], score
