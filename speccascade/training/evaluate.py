"""Evaluation during training: loss, token accuracy, and decoded quality."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.data import training_batches as batching
from speccascade.data.prompting import Prompting
from speccascade.decoding.laws.draws import row_keys
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.programs import decoders
from speccascade.models.parameters import Config, network
from speccascade.models.sharding.partitioning import fetched, layout_of
from speccascade.models.t5.config import T5Config
from speccascade.models.t5_lm import T5LM
from speccascade.training import losses, states
from speccascade.training.loop import check_batch

EOS_ID = 1
# Sources are padded to a multiple of this, so that few shapes are compiled.
WIDTH = 16
NAMES = ("loss", "accuracy")
COMPARED = ("divergence", "acceptance")  # with a teacher


@functools.partial(jax.jit, static_argnums=(0, 4))
def _sums(module, params, batch, teacher, layout):
  """Returns loss, right tokens, divergence from a teacher, overlap with it, and
  weight, summed over a batch."""
  logits = states.forward(module, params, batch, layout=layout)
  targets = batch["decoder_target_tokens"]
  weights, _ = losses.normalize(batch, None)
  loss, _ = losses.cross_entropy(logits, targets)
  correct = states.is_correct(logits, targets)
  compared = (0.0, 0.0)
  if teacher is not None:
    taught = teacher.logits(batch, layout)
    compared = (f(taught, logits) for f in (losses.divergence, losses.overlap))
  sums = (loss, correct, *compared, 1.0)
  return jnp.stack([jnp.sum(x * weights) for x in sums])


def teacher_forced(
  config: Config,
  params: Any,
  batches: Iterable[Mapping[str, np.ndarray]],
  teacher: states.Teacher | None = None,
) -> dict[str, float]:
  """Returns the mean "loss" in nats and "accuracy" of the target tokens.

  The loss has neither smoothing nor z-loss, so that runs can be compared. With
  a teacher there are "divergence" from it in nats, and "acceptance": how likely
  its speculative sampling at temperature 1 accepts a draft.

  Args:
    config: the architecture.
    params: its parameters; what lies on a mesh is evaluated there.
    batches: each read once; rows without targets weigh nothing.
    teacher: or None.

  Raises:
    ValueError: there is no target token.
  """
  module, layout = network(config), layout_of(params)
  total = np.zeros(5)
  for number, batch in enumerate(batches):
    batch = check_batch(batch, config, number)
    if layout is not None:
      batch = layout.rows(batch)
    sums = _sums(module, params, batch, teacher, layout)
    total += np.asarray(fetched(sums), np.float64)
  *sums, weight = total
  if weight == 0:
    raise ValueError("there are no target tokens to evaluate on")
  names = NAMES if teacher is None else NAMES + COMPARED
  return dict(zip(names, np.divide(sums, weight).tolist()))


def greedy(
  config: T5Config,
  params: Any,
  sources: Sequence[np.ndarray],
  *,
  max_decode_len: int,
  batch_size: int = 32,
  eos_id: int = EOS_ID,
) -> list[np.ndarray]:
  """Returns the greedy output of each source, by the method `verifier`.

  Args:
    config: the architecture.
    params: its parameters.
    sources: N arrays of token ids, end-of-sequence included, without padding.
    max_decode_len: most tokens of an output, EOS counted.
    batch_size: rows decoded at once; sources of like length go together.
    eos_id: ends an output.

  Returns:
    N int32 arrays; EOS is kept.
  """
  layout = layout_of(params)
  model = T5LM.create(config, params, layout=layout)
  decode = decoders.decoder(
    "verifier", gamma=1, max_decode_len=max_decode_len, eos_id=eos_id
  )
  outputs: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sources)
  order = batching.by_length(sources)
  for start in range(0, len(order), batch_size):
    some = order[start : start + batch_size]
    read = [sources[i] for i in some]
    width = WIDTH * -(-max(len(read[-1]), 1) // WIDTH)
    inputs = batching.padded(read, batch_size, width)
    keys = row_keys(0, 0, np.arange(batch_size))  # greedy draws nothing
    rows, sampling = (jnp.asarray(inputs), keys), Sampling.create(0.0)
    if layout is not None:
      rows = layout.rows(rows)
    decoded = decode(None, model, *rows, 0.0, sampling)
    tokens, lengths = fetched((decoded.tokens, decoded.lengths))
    for row, i in enumerate(some):
      outputs[i] = tokens[row, : lengths[row]]
  return outputs


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What a model is measured on while it trains; calling it measures.

  Attributes:
    batches: for the loss and the accuracy, each read once.
    sources: token ids of what is decoded greedily; () decodes nothing.
    score: from the outputs' token ids, in the order of `sources`, to metrics,
      e.g. {"bleu": 31.2}; None decodes nothing.
    max_decode_len: most tokens of an output.
    batch_size: rows decoded at once.
    eos_id: ends an output.
    teacher: see `teacher_forced`.
  """

  batches: Sequence[Mapping[str, np.ndarray]]
  sources: Sequence[np.ndarray] = ()
  score: Callable[[list[np.ndarray]], Mapping[str, float]] | None = None
  max_decode_len: int = 128
  batch_size: int = 32
  eos_id: int = EOS_ID
  teacher: states.Teacher | None = None

  def names(self) -> list[str]:
    """Returns the names of what a call measures."""
    names = [*NAMES, *(COMPARED if self.teacher is not None else ())]
    if self.score is not None and len(self.sources):
      names += self.score([np.zeros(0, np.int32)] * len(self.sources))
    return names

  def __call__(self, config: Config, params: Any) -> dict[str, float]:
    """Returns what `teacher_forced` and `score` give."""
    metrics = teacher_forced(config, params, self.batches, self.teacher)
    if self.score is not None and len(self.sources):
      outputs = greedy(
        config,
        params,
        self.sources,
        max_decode_len=self.max_decode_len,
        batch_size=min(self.batch_size, len(self.sources)),
        eos_id=self.eos_id,
      )
      metrics |= {k: float(v) for k, v in self.score(outputs).items()}
    return metrics


def decoded(task, prompting: Prompting, evaluating, lengths) -> dict[str, Any]:
  """Returns what of `Evaluation` a task says: sources and score.

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
