"""Examples in batches of one size and a few lengths, decoded by one point."""

from collections.abc import Callable, Sequence
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import memory
from speccascade.decoding import Decoded, row_keys
from speccascade.decoding.decoders import Decoder
from speccascade.inference.inputs import Source
from speccascade.inference.pair import ModelPair
from speccascade.inference.point import Point
from speccascade.inference.settings import Run

PAD_ID = 0
# Sources are padded to one of these shares of the longest allowed length.
_BUCKETS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
_MULTIPLE = 8


def buckets(max_len: int) -> list[int]:
  """Returns the few lengths that sources are padded to, ascending.

  >>> buckets(64), buckets(100), buckets(4)
  ([8, 16, 24, 32, 48, 64], [16, 32, 40, 56, 80, 100], [4])
  """
  lengths = {
    min(max_len, -(-round(share * max_len) // _MULTIPLE) * _MULTIPLE)
    for share in _BUCKETS
  }
  return sorted(length for length in lengths if length > 0)


def bucket_of(length: int, lengths: Sequence[int]) -> int:
  """Returns the least of the ascending `lengths` that holds `length`."""
  for bucket in lengths:
    if length <= bucket:
      return bucket
  raise ValueError(f"a source of {length} tokens fits none of {list(lengths)}")


def pad_batch(
  batch: Sequence[Source], rows: int, lengths: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns ([rows, S] int32 tokens, [rows] int32 indices).

  A short batch is filled with copies of its last example, whose rows are not
  read. S is the least of `lengths` that holds all of them.
  """
  batch = [*batch, *[batch[-1]] * (rows - len(batch))]
  width = bucket_of(max(len(example.tokens) for example in batch), lengths)
  tokens = np.full((rows, width), PAD_ID, np.int32)
  for row, example in enumerate(batch):
    tokens[row, : len(example.tokens)] = example.tokens
  return tokens, np.array([example.index for example in batch], np.int32)


class NoDistributionError(ValueError):
  """A model gave NaN, +inf, or no finite logit at all."""


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
  """Decodes examples in batches of one size, by one point.

  Attributes:
    pair: the models.
    point: method and settings.
    run: rows, lengths of outputs, seed, and whether to trace.
    eos_id: id that ends a row.
    lengths: source lengths that batches are padded to, ascending.
    shared: whether the methods of a family share a program; see `Decoder`.
  """

  pair: ModelPair
  point: Point
  run: Run
  eos_id: int
  lengths: Sequence[int]
  shared: bool = False

  @functools.cached_property
  def decoder(self) -> Decoder:
    """The point's compiled program."""
    return self.point.decoder(
      max_decode_len=self.run.max_decode_len,
      eos_id=self.eos_id,
      trace=self.run.trace,
      shared=self.shared,
    )

  def check(self):
    """Raises ValueError where the models cannot decode it, or it cannot fit."""
    run, lms = self.run, [model.lm for model in self.pair.models]
    # The laws of a block in float32, and the keys and values.
    laws = 4 * self.point.verify_width * sum(lm.vocab_size for lm in lms)
    kept = run.max_decode_len * sum(getattr(lm, "slot_bytes", 0) for lm in lms)
    memory.check(
      run.batch_size * (laws + kept),
      BATCH_SIZE=run.batch_size,
      MAX_DECODE_LEN=run.max_decode_len,
      GAMMA=self.point.gamma,
    )
    self.decoder.check(
      self.pair.drafter_lm,
      self.pair.verifier_lm,
      self.point.alpha,
      self.point.sampling,
    )

  def prepare(self, batch: Sequence[Source], trial: int = 0) -> tuple:
    """Returns what `call` takes for up to `batch_size` examples: all that need
    not be timed."""
    inputs, indices = pad_batch(batch, self.run.batch_size, self.lengths)
    return jnp.asarray(inputs), row_keys(self.run.seed, trial, indices)

  def call(self, prepared: tuple) -> Decoded:
    """Decodes what `prepare` made; padded rows too, and unchecked."""
    return self.decoder(
      self.pair.drafter_lm,
      self.pair.verifier_lm,
      *prepared,
      self.point.alpha,
      self.point.sampling,
    )

  def decode(self, batch: Sequence[Source], trial: int = 0) -> Decoded:
    """Returns the `Decoded` of up to `batch_size` examples, padded rows too.

    Raises:
      NoDistributionError: a model gave none; example and step are named.
    """
    decoded = self.call(self.prepare(batch, trial))
    check_finite(decoded, batch)
    return decoded

  def decode_all(
    self,
    examples: Sequence[Source],
    trial: int = 0,
    tick: Callable[[int], object] = lambda num: None,
  ) -> Decoded:
    """Returns the `Decoded` of all examples in their order, in NumPy arrays.

    Like lengths are decoded together.

    Args:
      examples: one or more.
      trial: see `row_keys`.
      tick: called with the examples decoded since.

    Raises:
      NoDistributionError: a model gave none; example and step are named.
    """
    size, parts = self.run.batch_size, []
    order = np.argsort([len(e.tokens) for e in examples], kind="stable")
    for start in range(0, len(order), size):
      batch = [examples[i] for i in order[start : start + size]]
      decoded = jax.device_get(self.decode(batch, trial))
      parts.append(decoded)
      tick(len(batch))
    places = np.argsort(order)
    # Only the last batch has rows that pad it, after all others.
    return jax.tree.map(lambda *rows: np.concatenate(rows)[places], *parts)


def check_finite(decoded: Decoded, batch: Sequence[Source]):
  """Raises NoDistributionError where a model gave no distribution."""
  bad = np.asarray(decoded.bad_step)[: len(batch)]
  for row in np.flatnonzero(bad >= 0):
    text = batch[row].text
    raise NoDistributionError(
      f"a model gave NaN, +inf or no finite logit at step {bad[row]} of example"
      f" {batch[row].index} ({text[:40]!r}); check the checkpoint, or set DTYPE"
      " = 'float32'"
    )
