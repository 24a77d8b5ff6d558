"""Batches of numpy arrays for training and evaluation.

Training draws batch k as a function of k alone: epoch e shuffles the rows by a
generator seeded with (seed, e), and what is left over of an epoch is dropped.
So a run that resumes at step k sees what the unbroken run saw, at no cost.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import itertools

import numpy as np

from speccascade.data.arrays import FEATURES, TokenArrays
from speccascade.settings.fields import at_least

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Bucket:
  """Rows of batches that have one shape.

  Attributes:
    widths: (inputs, targets), the padded widths; of prompts (both together,).
    batch_size: rows of a batch.
    rows: the rows, each a tuple of example indices; more than one is packed.
  """

  widths: tuple[int, ...]
  batch_size: int
  rows: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class TrainBatches:
  """The endless, seeded sequence of training batches.

  Attributes:
    arrays: the examples.
    buckets: the shapes, and the rows of each.
    seed: seeds the shuffles.
    packed: whether batches carry segments and positions.
    prompted: whether inputs are prompts, for decoder-only models.
  """

  arrays: TokenArrays
  buckets: tuple[Bucket, ...]
  seed: int
  packed: bool = False
  prompted: bool = False

  @functools.cached_property
  def steps_per_epoch(self) -> int:
    """Batches of an epoch."""
    return sum(len(b.rows) // b.batch_size for b in self.buckets)

  def batch(self, step: int) -> Batch:
    """Returns the batch of a step, counted from 0."""
    epoch, position = divmod(step, self.steps_per_epoch)
    plan = self._plan(epoch)
    bucket, rows = plan[position]
    rows = [bucket.rows[i] for i in rows]
    return self.features(rows, bucket.widths)

  def features(self, rows, widths: tuple[int, ...]) -> Batch:
    """Returns what a model takes, for some rows of these widths."""
    features = causal_features if self.prompted else model_features
    return features(self.arrays, rows, widths, self.packed)

  def iterator(self, start: int = 0) -> Iterator[Batch]:
    """Returns the batches from step `start` on, without end."""
    return map(self.batch, itertools.count(start))

  def _plan(self, epoch: int) -> list[tuple[Bucket, np.ndarray]]:
    if self._plans.get("epoch") != epoch:
      rng = np.random.default_rng([self.seed, epoch])
      plan = []
      for bucket in self.buckets:
        order = rng.permutation(len(bucket.rows))
        size = bucket.batch_size
        whole = len(order) // size * size
        plan += [(bucket, rows) for rows in order[:whole].reshape(-1, size)]
      order = rng.permutation(len(plan))
      self._plans.update(epoch=epoch, plan=[plan[i] for i in order])
    return self._plans["plan"]

  @functools.cached_property
  def _plans(self) -> dict:
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
    batch_size: rows of a batch; with buckets, rows of the widest one.
    seed: seeds the shuffles.
    lengths: feature -> width of the batches; default the longest example.
    buckets: widths in rising order, or (inputs, targets) pairs of them. An
      example goes where it fits first; narrower batches have more rows, so that
      all have about as many positions. With lengths, the last is no wider.
    pack: put several examples in a row, as T5X does; not with buckets.
    prompted: inputs are prompts, and targets go on from them in one row, whose
      width is that of both but for the last token, which is not fed. Buckets
      are widths of rows then.

  Raises:
    ValueError: no examples, an example wider than the widest bucket, both
      buckets and packing, or pairs of widths for prompts.
  """
  at_least(1, batch_size=batch_size)
  if not len(arrays):
    raise ValueError("no examples to train on")
  if pack and buckets:
    raise ValueError("packing and buckets exclude each other: choose one")
  size = np.stack([arrays.lengths(feature) for feature in FEATURES], 1)
  full = tuple(lengths[feature] for feature in FEATURES) if lengths else None
  if prompted:
    size = np.maximum(size.sum(1, keepdims=True) - 1, 0)
    full = full and (sum(full) - 1,)
    if not all(isinstance(width, int) for width in buckets or []):
      raise ValueError(
        f"BUCKETS is {list(buckets)}; prompts and what follows share a row, so"
        " that each is one width"
      )
  full = full or tuple(size.max(axis=0).tolist())
  if pack:
    rows = pack_rows(size, arrays.rows, full, seed)
    bucket = Bucket(full, batch_size, _filled(rows, batch_size))
    return TrainBatches(arrays, (bucket,), seed, True, prompted)
  sides = size.shape[1]
  shapes = [
    (w,) * sides if isinstance(w, int) else tuple(w) for w in buckets or []
  ]
  shapes = shapes or [full]
  fits = np.stack([(size <= shape).all(axis=1) for shape in shapes], 1)
  if not fits[:, -1].all():
    _refuse(int(np.argmin(fits[:, -1])), size, shapes[-1], "widest batch")
  first = fits.argmax(axis=1)[arrays.rows]
  rows = [
    [(int(r),) for r in arrays.rows[first == i]] for i in range(len(shapes))
  ]
  positions = batch_size * max(shapes[-1])
  sizes = [max(1, positions // max(shape)) for shape in shapes]
  sizes[-1] = batch_size
  # A bucket that cannot fill a batch joins the next wider one.
  for i in range(len(shapes) - 1):
    if len(rows[i]) < sizes[i]:
      rows[i + 1] = rows[i] + rows[i + 1]
      rows[i] = []
  used = [i for i in range(len(shapes)) if rows[i]]
  rows[used[-1]] = _filled(rows[used[-1]], sizes[used[-1]])
  filled = (Bucket(shapes[i], sizes[i], tuple(rows[i])) for i in used)
  return TrainBatches(arrays, tuple(filled), seed, prompted=prompted)


def _refuse(i: int, size, widths, what: str):
  raise ValueError(
    f"example {i} has {' and '.join(map(str, size[i]))}"
    f" {'input and target' if len(widths) > 1 else ''} tokens, the {what} takes"
    f" {' and '.join(map(str, widths))}: cut the examples with"
    " TASK_FEATURE_LENGTHS or add a width"
  )


def _filled(rows, batch_size: int) -> tuple:
  """Returns rows, repeated from the start where they do not fill a batch."""
  size = max(batch_size, len(rows))
  return tuple(itertools.islice(itertools.cycle(rows), size))


def pack_rows(size, rows, widths, seed: int) -> list[tuple[int, ...]]:
  """Returns rows of examples that together fit `widths`, as T5X packs.

  Examples come in a seeded order; one that does not fit the open row closes
  it. The rows are the same in every epoch, their order is not.

  Args:
    size: [N, 2] tokens of inputs and targets, or [N, 1] of both together.
    rows: [M] the examples to pack.
    widths: most tokens of a row, of each.
    seed: seeds the order.
  """
  order = np.random.default_rng([seed, len(rows)]).permutation(rows)
  packed, open_row, used = [], [], np.zeros(size.shape[1], np.int64)
  for i in order:
    if open_row and (used + size[i] > widths).any():
      packed.append(tuple(open_row))
      open_row, used = [], np.zeros(size.shape[1], np.int64)
    if (size[i] > widths).any():
      _refuse(i, size, widths, "packed row")
    open_row.append(int(i))
    used = used + size[i]
  packed.append(tuple(open_row))
  return packed


def model_features(
  arrays: TokenArrays,
  rows: Sequence[tuple[int, ...]],
  widths: tuple[int, int],
  packed: bool = False,
) -> Batch:
  """Returns what T5X's encoder-decoder models take, for some rows.

  The arrays are those of seqio's EncDecFeatureConverter, which can only go
  through a `tf.data` pipeline from its start; here any step's rows are indexed.

  Args:
    arrays: the examples.
    rows: B tuples of example indices; an empty tuple is an empty row.
    widths: (inputs, targets), the padded widths.
    packed: whether to add segments and positions, from 1 and from 0.

  Returns:
    int32 arrays [B, width]: encoder_input_tokens, decoder_target_tokens,
    decoder_input_tokens (targets shifted right, 0 first, in each segment),
    decoder_loss_weights (1 on targets); and if packed encoder_segment_ids,
    decoder_segment_ids, encoder_positions, decoder_positions.
  """
  batch = {}
  for feature, name, width in (
    ("inputs", "encoder", widths[0]),
    ("targets", "decoder", widths[1]),
  ):
    tokens, segments, positions = np.zeros((3, len(rows), width), np.int32)
    for b, row in enumerate(rows):
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
  """Returns what decoder-only models take, for some rows.

  A text is a prompt and what follows. All of it but the last token is fed, with
  no start token; only what follows the prompt is learned.

  Args:
    arrays: the examples, their inputs prompts of one token or more.
    rows: as in `model_features`.
    widths: (the padded width,).
    packed: whether to add segments and positions, from 1 and from 0.

  Returns:
    int32 arrays [B, width]: decoder_input_tokens, decoder_target_tokens,
    decoder_loss_weights (1 where the target follows the prompt); and if packed
    decoder_segment_ids, decoder_positions. Where the arrays have `hidden`,
    teacher_hidden float16 [B, width, E] too, 0 where nothing is learned.
  """
  kept = None
  if arrays.hidden is not None:
    widest = arrays.hidden[0].shape[-1]
    kept = np.zeros((len(rows), *widths, widest), np.float16)
  shape = (5, len(rows), *widths)
  fed, targets, weights, segments, positions = np.zeros(shape, np.int32)
  for b, row in enumerate(rows):
    start = 0
    for number, index in enumerate(row, 1):
      prompt, output = (arrays.get(feature, index) for feature in FEATURES)
      ids = np.concatenate([prompt, output])
      here = slice(start, start + len(ids) - 1)
      fed[b, here], targets[b, here] = ids[:-1], ids[1:]
      learned = slice(start + len(prompt) - 1, here.stop)
      weights[b, learned] = 1
      if kept is not None:
        kept[b, learned] = arrays.hidden[index]
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
  if kept is not None:
    batch["teacher_hidden"] = kept
  return batch


def order_by_length(tokens: Sequence[Sequence[int]]) -> np.ndarray:
  """Returns the places [N] of token ids in the order of their lengths."""
  return np.argsort(list(map(len, tokens)), kind="stable")


def pad(
  tokens: Sequence[Sequence[int]], num_rows: int, width: int, padding: int = 0
) -> np.ndarray:
  """Returns [num_rows, width] int32, copies of the last ids where they lack.

  >>> pad([[5, 1], [1]], 3, 2)
  array([[5, 1],
         [1, 0],
         [1, 0]], dtype=int32)
  """
  rows = np.full((num_rows, width), padding, np.int32)
  last = [tokens[-1]] * (num_rows - len(tokens))
  for row, ids in zip(rows, [*tokens, *last], strict=True):
    row[: len(ids)] = ids
  return rows


def eval_batches(arrays: TokenArrays, **shapes) -> Iterator[Batch]:
  """Yields every example once; the last batch of a shape has empty rows.

  An empty row is all padding and its loss weights are 0, so that sums over
  weights are those of the examples alone. Repeats of a mixture are left out.

  Args:
    arrays: the examples.
    **shapes: batch_size, lengths, buckets and prompted of `train_batches`.
  """
  unique = dataclasses.replace(arrays, rows=np.arange(len(arrays)))
  batches = train_batches(unique, seed=0, **shapes)
  seen = set()
  for bucket in batches.buckets:
    rows = [row for row in dict.fromkeys(bucket.rows) if row not in seen]
    seen.update(rows)
    for start in range(0, len(rows), bucket.batch_size):
      some = rows[start : start + bucket.batch_size]
      some += [()] * (bucket.batch_size - len(some))
      yield batches.features(some, bucket.widths)
