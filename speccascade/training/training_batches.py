"""Makes batches of NumPy arrays for training and evaluation.

The batch of step k is a function of k alone. In epoch e the rows are shuffled
by a generator that is seeded with (seed, e), and rows that do not fill a batch
are dropped. So a run that resumes at step k sees the batches of an unbroken
run, at no cost.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import itertools

import numpy as np

from speccascade.settings.fields import at_least
from speccascade.text.arrays import FEATURES, TokenArrays

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Bucket:
  """The rows of all batches of one shape.

  Attributes:
    widths: the padded widths (inputs, targets). Prompts have one width, of both
      together.
    batch_size: how many rows a batch has.
    rows: the rows, each a tuple of example indices. A row of several examples
      is packed.
  """

  widths: tuple[int, ...]
  batch_size: int
  rows: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class TrainBatches:
  """The endless, seeded sequence of training batches.

  Attributes:
    arrays: the examples.
    buckets: the shapes of batches, with the rows of each shape.
    seed: seeds the shuffles.
    packed: whether batches have segments and positions.
    prompted: whether inputs are prompts, for decoder-only models.
  """

  arrays: TokenArrays
  buckets: tuple[Bucket, ...]
  seed: int
  packed: bool = False
  prompted: bool = False

  @functools.cached_property
  def steps_per_epoch(self) -> int:
    """How many batches an epoch has."""
    return sum(len(bucket.rows) // bucket.batch_size for bucket in self.buckets)

  def batch(self, step: int) -> Batch:
    """Returns the batch of a step, counted from 0."""
    epoch, position = divmod(step, self.steps_per_epoch)
    plan = self._plan(epoch)
    bucket, rows = plan[position]
    rows = [bucket.rows[i] for i in rows]
    return self.features(rows, bucket.widths)

  def features(self, rows, widths: tuple[int, ...]) -> Batch:
    """Returns the features of some rows, padded to the widths."""
    make_features = causal_features if self.prompted else model_features
    return make_features(self.arrays, rows, widths, self.packed)

  def iterator(self, start: int = 0) -> Iterator[Batch]:
    """Returns an endless iterator over the batches from step `start` on."""
    return map(self.batch, itertools.count(start))

  def _plan(self, epoch: int) -> list[tuple[Bucket, np.ndarray]]:
    """Returns (bucket, [batch_size] indices of its rows) of each batch."""
    if self._last_plan.get("epoch") != epoch:
      rng = np.random.default_rng([self.seed, epoch])
      plan = []
      # The rows of each bucket are shuffled and split into batches.
      for bucket in self.buckets:
        order = rng.permutation(len(bucket.rows))
        size = bucket.batch_size
        num_whole = len(order) // size * size
        batches = order[:num_whole].reshape(-1, size)
        plan += [(bucket, rows) for rows in batches]
      # The batches of all buckets are shuffled together.
      order = rng.permutation(len(plan))
      self._last_plan.update(epoch=epoch, plan=[plan[i] for i in order])
    return self._last_plan["plan"]

  @functools.cached_property
  def _last_plan(self) -> dict:
    """The epoch that was planned last, and its plan."""
    return {}


def train_batches(
  arrays: TokenArrays,
  *,
  batch_size: int,
  seed: int,
  lengths: dict[str, int] | None = None,
  buckets: Sequence[int | tuple[int, int]] | None = None,
  pack: bool = False,
  prompted: bool = False,
) -> TrainBatches:
  """Returns training batches of one shape, of several widths, or packed.

  Args:
    arrays: the examples.
    batch_size: rows of a batch. With buckets, rows of the widest batch.
    seed: seeds the shuffles.
    lengths: {feature: width of the batches}; None takes the longest example.
    buckets: widths in ascending order, or pairs (inputs, targets) of widths. An
      example goes into the first bucket that it fits. Narrower batches have
      more rows, so that all batches have about as many positions.
    pack: whether to put several examples into a row, as T5X does. This excludes
      buckets.
    prompted: whether inputs are prompts. A row then has a prompt and its
      targets, without the last token, which is not fed. Buckets are widths of
      such rows.

  Raises:
    ValueError: there are no examples, an example is wider than the widest
      bucket, there are both buckets and packing, or there are pairs of widths
      for prompts.
  """
  at_least(1, batch_size=batch_size)
  if not len(arrays):
    raise ValueError("no examples to train on")
  if pack and buckets:
    raise ValueError("packing and buckets exclude each other: choose one")
  # [N, 2] tokens of inputs and targets, or [N, 1] of a prompt with its output.
  size = np.stack([arrays.lengths(feature) for feature in FEATURES], 1)
  widest = tuple(lengths[feature] for feature in FEATURES) if lengths else None
  if prompted:
    # The last token of a row is not fed: 4 and 3 tokens have a row of 6.
    size = np.maximum(size.sum(1, keepdims=True) - 1, 0)
    widest = widest and (sum(widest) - 1,)
    if not all(isinstance(width, int) for width in buckets or []):
      raise ValueError(
        f"BUCKETS is {list(buckets)}; prompts and what follows share a row, so"
        " that each is one width"
      )
  widest = widest or tuple(size.max(axis=0).tolist())
  if pack:
    rows = pack_rows(size, arrays.rows, widest, seed)
    bucket = Bucket(widest, batch_size, _fill(rows, batch_size))
    return TrainBatches(arrays, (bucket,), seed, True, prompted)
  num_sides = size.shape[1]
  shapes = [
    (width,) * num_sides if isinstance(width, int) else tuple(width)
    for width in buckets or []
  ]
  filled = _sort_into_buckets(arrays, size, shapes or [widest], batch_size)
  return TrainBatches(arrays, filled, seed, prompted=prompted)


def _sort_into_buckets(
  arrays: TokenArrays,
  size: np.ndarray,
  shapes: Sequence[tuple[int, ...]],
  batch_size: int,
) -> tuple[Bucket, ...]:
  """Returns buckets with the rows of the examples, one example in each row."""
  fits = np.stack([(size <= shape).all(axis=1) for shape in shapes], 1)
  if not fits[:, -1].all():
    _refuse(int(np.argmin(fits[:, -1])), size, shapes[-1], "widest batch")
  first_fit = fits.argmax(axis=1)[arrays.rows]
  rows = [
    [(int(index),) for index in arrays.rows[first_fit == i]]
    for i in range(len(shapes))
  ]
  num_positions = batch_size * max(shapes[-1])
  sizes = [max(1, num_positions // max(shape)) for shape in shapes]
  sizes[-1] = batch_size
  # A bucket that cannot fill a batch joins the next wider one.
  for i in range(len(shapes) - 1):
    if len(rows[i]) < sizes[i]:
      rows[i + 1] = rows[i] + rows[i + 1]
      rows[i] = []
  # Nothing is wider than the last bucket in use, so that its rows are repeated
  # if they do not fill a batch.
  used = [i for i in range(len(shapes)) if rows[i]]
  rows[used[-1]] = _fill(rows[used[-1]], sizes[used[-1]])
  return tuple(Bucket(shapes[i], sizes[i], tuple(rows[i])) for i in used)


def _refuse(index: int, size: np.ndarray, widths: tuple, place: str):
  """Raises ValueError for an example that is too wide."""
  raise ValueError(
    f"example {index} has {' and '.join(map(str, size[index]))}"
    f" {'input and target' if len(widths) > 1 else ''} tokens, the {place}"
    f" takes {' and '.join(map(str, widths))}: truncate the examples with"
    " TASK_FEATURE_LENGTHS or add a width"
  )


def _fill(rows: Sequence, batch_size: int) -> tuple:
  """Returns rows, repeated from the start if they do not fill a batch."""
  num = max(batch_size, len(rows))
  return tuple(itertools.islice(itertools.cycle(rows), num))


def pack_rows(size, rows, widths, seed: int) -> list[tuple[int, ...]]:
  """Returns rows of examples that together fit `widths`, packed as T5X packs.

  The examples come in a seeded order. An example that does not fit into the
  open row begins the next row. Every epoch has the same rows, in another order.

  Args:
    size: [N, 2] tokens of inputs and targets, or [N, 1] of both together.
    rows: [M] indices of the examples to pack.
    widths: the most tokens of a row, for inputs and targets or both together.
    seed: seeds the order.

  Raises:
    ValueError: an example alone does not fit.
  """
  order = np.random.default_rng([seed, len(rows)]).permutation(rows)
  packed, open_row, used = [], [], np.zeros(size.shape[1], np.int64)
  for index in order:
    if open_row and (used + size[index] > widths).any():
      packed.append(tuple(open_row))
      open_row, used = [], np.zeros(size.shape[1], np.int64)
    if (size[index] > widths).any():
      _refuse(index, size, widths, "packed row")
    open_row.append(int(index))
    used = used + size[index]
  packed.append(tuple(open_row))
  return packed


def model_features(
  arrays: TokenArrays,
  rows: Sequence[tuple[int, ...]],
  widths: tuple[int, int],
  packed: bool = False,
) -> Batch:
  """Returns the features of T5X's encoder-decoder models, for some rows.

  They are equal to the features of seqio's EncDecFeatureConverter, which runs
  through a `tf.data` pipeline from its start. Here the rows of any step are
  found by their indices.

  Args:
    arrays: the examples.
    rows: B tuples of example indices. An empty tuple is an empty row.
    widths: the padded widths (inputs, targets).
    packed: whether to add segments, which are numbered from 1, and positions,
      which are numbered from 0 in each segment.

  Returns:
    int32 arrays [B, width]: encoder_input_tokens, decoder_target_tokens,
    decoder_input_tokens (the targets of each segment shifted right, 0 first),
    and decoder_loss_weights (1 on targets). If packed, also
    encoder_segment_ids, decoder_segment_ids, encoder_positions and
    decoder_positions.
  """
  batch = {}
  for feature, name, width in (
    ("inputs", "encoder", widths[0]),
    ("targets", "decoder", widths[1]),
  ):
    tokens, segments, positions = np.zeros((3, len(rows), width), np.int32)
    for b, row in enumerate(rows):
      # Examples of 2 and 3 tokens in a row of 6:
      #   segments   1 1 2 2 2 0
      #   positions  0 1 0 1 2 0
      start = 0
      for number, index in enumerate(row, 1):
        ids = arrays.get(feature, index)
        here = slice(start, start + len(ids))
        tokens[b, here] = ids
        segments[b, here] = number
        positions[b, here] = np.arange(len(ids))
        start += len(ids)
    batch[f"{name}_{feature[:-1]}_tokens"] = tokens
    if packed:
      batch[f"{name}_segment_ids"] = segments
      batch[f"{name}_positions"] = positions
  targets = batch["decoder_target_tokens"]
  shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
  if packed:
    # The shift moved the last token of a segment to the start of the next one.
    shifted = np.where(batch["decoder_positions"] == 0, 0, shifted)
  weights = (targets > 0).astype(np.int32)
  return batch | {
    "decoder_input_tokens": shifted,
    "decoder_loss_weights": weights,
  }


def causal_features(
  arrays: TokenArrays,
  rows: Sequence[tuple[int, ...]],
  widths: tuple[int],
  packed: bool = False,
) -> Batch:
  """Returns the features of decoder-only models, for some rows.

  A text is a prompt and its output. All tokens of the text but the last are
  fed, without a start token. Only the output is learned.

  Args:
    arrays: the examples. Their inputs are prompts of one token or more.
    rows: B tuples of example indices. An empty tuple is an empty row.
    widths: (the padded width,).
    packed: whether to add segments, which are numbered from 1, and positions,
      which are numbered from 0 in each segment.

  Returns:
    int32 arrays [B, width]: decoder_input_tokens, decoder_target_tokens, and
    decoder_loss_weights (1 if the target is a token of the output). If packed,
    also decoder_segment_ids and decoder_positions. If the arrays have `hidden`,
    also teacher_hidden, float16 [B, width, E]: of each fed token, or 0 where
    nothing is learned if the arrays hold no others.
  """
  hidden = None
  if arrays.hidden is not None:
    emb_dim = arrays.hidden[0].shape[-1]
    hidden = np.zeros((len(rows), *widths, emb_dim), np.float16)
  shape = (5, len(rows), *widths)
  fed, targets, weights, segments, positions = np.zeros(shape, np.int32)
  for b, row in enumerate(rows):
    start = 0
    for number, index in enumerate(row, 1):
      prompt, output = (arrays.get(feature, index) for feature in FEATURES)
      ids = np.concatenate([prompt, output])
      # A prompt 5 6 and an output 7 1 in a row of 4:
      #   fed      5 6 7 0
      #   targets  6 7 1 0
      #   weights  0 1 1 0    the last prompt token learns the first output
      here = slice(start, start + len(ids) - 1)
      fed[b, here], targets[b, here] = ids[:-1], ids[1:]
      learned = slice(start + len(prompt) - 1, here.stop)
      weights[b, learned] = 1
      if hidden is not None:
        stored = arrays.hidden[index]
        is_whole = len(stored) == len(ids) - 1
        hidden[b, here if is_whole else learned] = stored
      segments[b, here] = number
      positions[b, here] = np.arange(len(ids) - 1)
      start = here.stop
  batch = {
    "decoder_input_tokens": fed,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": weights,
  }
  if packed:
    batch |= {"decoder_segment_ids": segments, "decoder_positions": positions}
  if hidden is not None:
    batch["teacher_hidden"] = hidden
  return batch


def eval_batches(arrays: TokenArrays, **shapes) -> Iterator[Batch]:
  """Yields batches in which every example is once.

  The last batch of a shape may have empty rows, which are all padding. Their
  loss weights are 0, so that sums over weights are sums over examples. The
  repetitions of a mixture are left out.

  Args:
    arrays: the examples.
    **shapes: batch_size, lengths, buckets and prompted of `train_batches`.
  """
  unique = dataclasses.replace(arrays, rows=np.arange(len(arrays)))
  batches = train_batches(unique, seed=0, **shapes)
  seen = set()
  for bucket in batches.buckets:
    # A bucket may repeat rows to fill a batch; see `_fill`.
    rows = [row for row in dict.fromkeys(bucket.rows) if row not in seen]
    seen.update(rows)
    for start in range(0, len(rows), bucket.batch_size):
      batch_rows = rows[start : start + bucket.batch_size]
      batch_rows += [()] * (bucket.batch_size - len(batch_rows))
      yield batches.features(batch_rows, bucket.widths)
