"""Examples in batches of one size and a few lengths, decoded by one point."""

from collections import Counter
from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.data.training_batches import order_by_length, pad
from speccascade.decoding import Decoded, decode_continuously, row_keys
from speccascade.decoding.loops import prompts
from speccascade.decoding.programs.decoders import Decoder
from speccascade.inference.batches.sources import Source, longest
from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Run
from speccascade.models.sharding.partitioning import DATA, fetch
from speccascade.runtime import memory
from speccascade.runtime.progress import note

# Sources are padded to one of these shares of the longest allowed length.
_BUCKETS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
_MULTIPLE = 8
# The keys of the programs that ran in this process; see `Batches.program_key`.
EXECUTED_PROGRAMS = set()


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
  batch: Sequence[Source],
  rows: int,
  lengths: Sequence[int],
  *,
  prompted: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns ([rows, S] int32 tokens, [rows] int32 indices).

  A short batch is filled with copies of its last example, whose rows are not
  read. S is the least of `lengths` that holds all of them; padding is 0 after
  sources, and `prompts.PAD` after prompts, where 0 may be a token.
  """
  width, padding = bucket_of(longest(batch), lengths), prompts.PAD * prompted
  tokens = [example.tokens for example in batch]
  indices = [example.index for example in batch]
  indices += indices[-1:] * (rows - len(batch))
  return pad(tokens, rows, width, padding), np.array(indices, np.int32)


class NoDistributionError(ValueError):
  """A model gave NaN, +inf, or no finite logit at all."""


@dataclasses.dataclass
class Speed:
  """Tokens that were decoded, and the seconds that it took.

  Attributes:
    tokens: emitted by programs, by whether they were compiled meanwhile.
    seconds: of these.
  """

  tokens: Counter = dataclasses.field(default_factory=Counter)
  seconds: Counter = dataclasses.field(default_factory=Counter)

  def add(self, num: int, seconds: float, is_first: bool):
    """Counts a batch."""
    self.tokens[is_first] += num
    self.seconds[is_first] += seconds

  def __str__(self) -> str:
    """Tokens a second: without compiling, where that can be told apart."""
    for is_first, compiling in ((False, "left out"), (True, "included")):
      if seconds := self.seconds[is_first]:
        rate = self.tokens[is_first] / seconds
        return f"{rate:.4g} tokens/s, compiling {compiling}"
    return "decoded before"


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
  """Decodes examples in batches of one size, by one point.

  Attributes:
    pair: the models.
    point: method and settings.
    run: rows, lengths of outputs, seed, and what is recorded.
    eos_id: id that ends a row, or several.
    lengths: source lengths that batches are padded to, ascending.
    shared: whether the methods of a family share a program; see `Decoder`.
    speed: of `decode_all`.
  """

  pair: ModelPair
  point: Point
  run: Run
  eos_id: int | tuple[int, ...]
  lengths: Sequence[int]
  shared: bool = False
  speed: Speed = dataclasses.field(default_factory=Speed, init=False)

  @functools.cached_property
  def decoder(self) -> Decoder:
    """The point's compiled program."""
    return self.point.decoder(
      max_decode_len=self.run.max_decode_len,
      eos_id=self.eos_id,
      trace=self.run.trace,
      log_probs=self.run.log_probs,
      shared=self.shared,
    )

  def check(self):
    """Raises ValueError where the models cannot decode it, or it cannot fit."""
    run, lms = self.run, [model.lm for model in self.pair.models]
    # The laws of a block in float32, and the keys and values.
    laws = 4 * self.point.verify_width * sum(lm.vocab_size for lm in lms)
    # A prompt is kept like what follows it.
    slots = run.max_decode_len + self.pair.prompted * max(self.lengths)
    kept = slots * sum(getattr(lm, "slot_bytes", 0) for lm in lms)
    layout = self.pair.layout
    memory.check(
      run.batch_size * (laws + kept) / (layout.sizes[DATA] if layout else 1),
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
    """Returns what `call` takes for up to `batch_size` examples, or what
    `decode_continuously` does for more: all that need not be timed."""
    rows = max(self.run.batch_size, len(batch))
    inputs, indices = pad_batch(
      *(batch, rows, self.lengths), prompted=self.pair.prompted
    )
    drafter = self.pair.drafter_of(inputs, self.run.max_decode_len)
    rows = (jnp.asarray(inputs), row_keys(self.run.seed, trial, indices))
    if self.pair.layout is not None:
      rows = self.pair.layout.rows(rows)
    return drafter, self.pair.verifier_lm, *rows

  def call(self, prepared: tuple) -> Decoded:
    """Decodes what `prepare` made; padded rows too, and unchecked."""
    return self.decoder(*prepared, self.point.alpha, self.point.sampling)

  def decode(self, batch: Sequence[Source], trial: int = 0) -> Decoded:
    """Returns the `Decoded` of up to `batch_size` examples, padded rows too, in
    NumPy arrays.

    Raises:
      NoDistributionError: a model gave none; example and step are named.
    """
    decoded = fetch(self.call(self.prepare(batch, trial)))
    EXECUTED_PROGRAMS.add(self.program_key(batch))
    check_finite(decoded, batch)
    return decoded

  def _decode(
    self, batch: Sequence[Source], trial: int, tick: Callable
  ) -> Decoded:
    """Returns the rows of `_batched`, in NumPy arrays; ticks as they end."""
    if len(batch) <= self.run.batch_size:
      decoded = self.decode(batch, trial)
      tick(len(batch))
      return decoded
    places, parts = [], []
    for some, decoded in decode_continuously(
      self.decoder,
      *self.prepare(batch, trial),
      self.point.alpha,
      self.point.sampling,
      rows=self.run.batch_size,
    ):
      check_finite(decoded, [batch[place] for place in some])
      EXECUTED_PROGRAMS.add(self.program_key(batch))
      places.append(some)
      parts.append(decoded)
      tick(len(some))
    return _joined(parts, np.concatenate(places))

  def decode_all(
    self,
    examples: Sequence[Source],
    trial: int = 0,
    tick: Callable[[int], object] = lambda num: None,
  ) -> Decoded:
    """Returns the `Decoded` of all examples in their order, in NumPy arrays.

    Like lengths are decoded together; with REFILL a row that ended makes room
    for the next example of such a length.

    Args:
      examples: one or more.
      trial: see `row_keys`.
      tick: called with the examples decoded since.

    Raises:
      NoDistributionError: a model gave none; example and step are named.
    """
    parts, missing = [], self.missing_programs(examples)
    for batch in self._batched(examples):
      program, began = self.program_key(batch), time.monotonic()
      if is_first := program not in EXECUTED_PROGRAMS:
        place = missing.index(program) + 1
        note(f"compiling {place} of {len(missing)}")
      decoded = self._decode(batch, trial, tick)
      parts.append(decoded)
      num = int(decoded.lengths[: len(batch)].sum())
      self.speed.add(num, time.monotonic() - began, is_first)
      if is_first:
        note("")
    # Only the last batch has rows that pad it, after all others.
    return _joined(parts, _in_order(examples))

  def missing_programs(self, examples: Sequence[Source]) -> list[tuple]:
    """Returns what tells apart the programs that `decode_all` would compile."""
    programs = map(self.program_key, self._batched(examples))
    return [
      key for key in dict.fromkeys(programs) if key not in EXECUTED_PROGRAMS
    ]

  def _batched(self, examples: Sequence[Source]) -> list[list[Source]]:
    """Returns what is decoded together: more than `batch_size` examples where
    they follow each other through the rows."""
    order, size = _in_order(examples), self.run.batch_size
    batches = [
      [examples[i] for i in order[start : start + size]]
      for start in range(0, len(order), size)
    ]
    if not self._refills:
      return batches
    alike = itertools.groupby(batches, self._width)
    return [list(itertools.chain(*group)) for _, group in alike]

  @property
  def _refills(self) -> bool:
    """Whether rows that end make room: on one device, and where a batch brings
    nothing else by row, as the inputs of drafters of another vocabulary."""
    pair, can = self.pair, self.point.spec.execution.is_one_loop
    can &= pair.shared is None and pair.layout is None
    return self.run.refill and can

  def _width(self, batch: Sequence[Source]) -> int:
    return bucket_of(longest(batch), self.lengths)

  def program_key(self, batch: Sequence[Source]) -> tuple:
    """Returns what tells the compiled program of a batch from others."""
    size = self.run.batch_size
    return *self._static, size, self._width(batch), len(batch) > size

  @functools.cached_property
  def _static(self) -> tuple:
    needs, traced = self.point.spec.execution, [self.point.sampling]
    if needs.needs_drafter:
      traced.append(self.pair.drafter_lm)
    if needs.needs_verifier:
      traced.append(self.pair.verifier_lm)
    program, _ = self.decoder.program(self.point.sampling.greedy)
    leaves, tree = jax.tree.flatten(traced)
    return program, tree, *map(jax.typeof, leaves)

  def program_examples(self, examples: Sequence[Source]) -> dict[tuple, tuple]:
    """Returns {what tells a program: (this, an example)}, batch by batch."""
    first = {self._width([x]): x for x in reversed(examples)}
    return {self.program_key([x]): (self, x) for x in first.values()}


def forget_programs():
  """Drops all compiled programs of this process, and that they ran."""
  jax.clear_caches()
  EXECUTED_PROGRAMS.clear()


def _in_order(examples: Sequence[Source]) -> np.ndarray:
  """Returns the examples' places in the order of being decoded."""
  return order_by_length([example.tokens for example in examples])


def _joined(parts: Sequence[Decoded], places: np.ndarray) -> Decoded:
  """Returns the rows of all parts, which came in the order of `places`."""
  at = np.argsort(places)
  return jax.tree.map(lambda *rows: np.concatenate(rows)[at], *parts)


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
