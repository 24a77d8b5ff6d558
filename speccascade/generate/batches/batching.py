"""Decodes examples in batches of one size and a few padded lengths: `Batches`.

Every shape of a batch is another program to compile. Batches therefore have one
number of rows, and their inputs are padded to one of a few lengths.
"""

from collections import Counter
from collections.abc import (
  Callable,
  Hashable,
  Mapping,
  MutableMapping,
  Sequence,
)
import dataclasses
import functools
import itertools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding import Decoded, decode_continuously, row_keys
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.programs.decoders import Decoder
from speccascade.decoding.records.automaton import Constraints
from speccascade.decoding.records.phased_alpha import PhasedAlpha
from speccascade.generate.batches import padding
from speccascade.generate.batches.sources import Source
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.models.sharding.partitioning import DATA, fetch
from speccascade.runtime import memory, profiling
from speccascade.runtime.progress import note
from speccascade.text.arrays import order_by_length

# Compiled programs by `Batches.program_key`. Studies share one while it grows,
# so it must not be copied where a study is checked, as a `dict` is.
Programs = MutableMapping[Hashable, Callable[..., Decoded]]


class NoDistributionError(ValueError):
  """A model gave NaN, +inf, or no finite logit at all."""


@dataclasses.dataclass
class Speed:
  """Counts decoded tokens, and the seconds that decoding them took.

  A batch whose program had to be compiled first counts apart from the others.

  Attributes:
    tokens: the numbers of emitted tokens. The key True is for batches whose
      seconds include compiling, and False for the others.
    seconds: the seconds of decoding, by the same keys.
  """

  tokens: Counter = dataclasses.field(default_factory=Counter)
  seconds: Counter = dataclasses.field(default_factory=Counter)

  def add(self, num: int, seconds: float, is_first: bool):
    """Counts a batch.

    Args:
      num: the tokens that the batch emitted.
      seconds: the seconds that the batch took.
      is_first: whether its program was compiled in these seconds.
    """
    self.tokens[is_first] += num
    self.seconds[is_first] += seconds

  def __str__(self) -> str:
    """The tokens a second, without compiling if any batch ran without it."""
    for is_first, compiling in ((False, "left out"), (True, "included")):
      if seconds := self.seconds[is_first]:
        rate = self.tokens[is_first] / seconds
        return f"{rate:.4g} tokens/s, compiling {compiling}"
    return "decoded before"


class PreparedBatch(NamedTuple):
  """The arguments of a `Decoder` for one batch, on the device.

  They serve all points: `call` makes of them what a point takes.

  Attributes:
    drafter: the draft model, or None.
    verifier: the verifier's language model, or None.
    inputs: [B, S] int32, the padded inputs.
    rngs: [B] typed keys, one for each row.
    constraints: what the rows are held to, and what ends them.
  """

  drafter: Any
  verifier: Any
  inputs: jax.Array
  rngs: jax.Array
  constraints: Constraints

  def call(self, point: Point, alpha: Any) -> tuple:
    """Returns all arguments of a `Decoder`, at a point.

    Args:
      point: the method and its settings.
      alpha: as the decoder takes it.
    """
    drafter, *others, constraints = self
    return (
      point.drafter(drafter),
      *others,
      alpha,
      point.sampling,
      constraints,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
  """Decodes examples in batches of one size, by the method of one point.

  Attributes:
    pair: the models.
    point: the method and its settings.
    run: the seed, the length of outputs, and whether rows are refilled.
    num_rows: the number of rows of a batch.
    trials: the number of each trial, with the examples that a study decodes
      by these batches.
    alpha: alpha as the decoder takes it.
    decoder: the `Decoder` of the point. It has one program for each shape.
    lengths: the input lengths that batches are padded to, in ascending order.
    constraints: what outputs are held to, and what ends them.
    programs: the programs of the study, by `program_key`. A program that is
      missing is compiled, and then stored here.
    begins: the entry of `Constraints.begins` of an example, by its own stops;
      empty where no example has any.
    speed: the speed of all calls of `decode_all`.
  """

  pair: ModelPair
  point: Point
  run: Run
  num_rows: int
  trials: Sequence[tuple[int, Sequence[Source]]]
  alpha: Any
  decoder: Decoder
  lengths: Sequence[int]
  constraints: Constraints
  programs: Programs
  begins: Mapping[tuple[str | int, ...], int]
  speed: Speed = dataclasses.field(default_factory=Speed, init=False)

  def check(self):
    """Checks, before anything is compiled, that the batches can be decoded.

    Raises:
      ValueError: the models do not fit the method or its settings, or a batch
        does not fit the memory of the device.
    """
    lms = [model.lm for model in self.pair.models]
    # One float32 distribution for each model and each token of a block.
    composed, width = self.pair.composed, self.point.verify_width
    if composed is not None and self.point.spec.has_blocks:
      width = 1 + composed.width
    distribution_bytes = 4 * width
    distribution_bytes *= sum(lm.vocab_size for lm in lms)
    # The cache of a decoder-only model holds the prompt and the output.
    num_slots = self.run.max_decode_len
    if self.pair.prompted:
      num_slots += max(self.lengths)
    cache_bytes = num_slots * sum(getattr(lm, "slot_bytes", 0) for lm in lms)
    row_bytes = distribution_bytes + cache_bytes
    # A mesh splits the rows of a batch along its data axis.
    layout = self.pair.layout
    parts = 1 if layout is None else layout.sizes[DATA]
    gamma = {"GAMMA": self.point.widest} if self.point.spec.has_blocks else {}
    memory.check(
      self.num_rows * row_bytes / parts,
      BATCH_SIZE=self.num_rows,
      MAX_DECODE_LEN=self.run.max_decode_len,
      **gamma,
    )
    self.decoder.check(
      self.point.drafter(self.pair.drafter_lm),
      self.pair.verifier_lm,
      self.alpha,
      self.point.sampling,
      self.constraints,
    )

  def prepare(self, batch: Sequence[Source], trial: int = 0) -> PreparedBatch:
    """Returns the arguments of a decoder for some examples.

    Padding, keys and the transfer to the device are done here.

    Args:
      batch: the examples. `bind` takes up to `num_rows` of them, and
        `decode_continuously` takes more.
      trial: the number of the trial; see `row_keys`.
    """
    rows = max(self.num_rows, len(batch))
    tokens, indices = padding.pad_batch(
      batch, rows, self.lengths, prompted=self.pair.prompted
    )
    inputs = jnp.asarray(tokens)
    rngs = row_keys(self.run.seed, trial, indices)
    begins = None
    if self.begins:
      states = [self.begins[example.stop] for example in batch]
      states += states[-1:] * (rows - len(batch))
      begins = jnp.asarray(states, jnp.int32)
    if self.pair.layout is not None:
      inputs, rngs, begins = self.pair.layout.rows((inputs, rngs, begins))
    return PreparedBatch(
      drafter=self.pair.drafter_of(tokens, self.run.max_decode_len),
      verifier=self.pair.verifier_lm,
      inputs=inputs,
      rngs=rngs,
      constraints=self.constraints.replace(begins=begins),
    )

  def call(self, prepared: PreparedBatch) -> tuple:
    """Returns all arguments of the decoder for a prepared batch."""
    return prepared.call(self.point, self.alpha)

  def bind(self, prepared: PreparedBatch) -> Callable[[], Decoded]:
    """Returns a function that decodes a prepared batch.

    The arguments are checked and the program is compiled here, so that a call
    only decodes. It returns at once with arrays to wait for. They have rows
    that only pad the batch, and nothing in them is checked; see `check_finite`.
    """
    call = self.call(prepared)
    _, arguments = self.decoder.call(*call)
    key = self._key(prepared.inputs.shape[1], is_continuous=False)
    if key not in self.programs:
      self.programs[key] = self.decoder.lower(*call).compile()
    return profiling.recorded(
      functools.partial(self.programs[key], *arguments),
      self.run.profile_dir,
      profiling.DECODING,
    )

  def decode(self, batch: Sequence[Source], trial: int = 0) -> Decoded:
    """Decodes one batch.

    Args:
      batch: up to `num_rows` examples.
      trial: the number of the trial; see `row_keys`.

    Returns:
      NumPy arrays of `num_rows` rows. Rows after the examples only pad the
      batch.

    Raises:
      NoDistributionError: a model gave no distribution. The message names the
        example and the step.
    """
    decoded = fetch(self.bind(self.prepare(batch, trial))())
    check_finite(decoded, batch)
    return decoded

  def decode_all(
    self,
    examples: Sequence[Source],
    trial: int = 0,
    tick: Callable[[int], object] = lambda num: None,
  ) -> Decoded:
    """Decodes all examples, in as many batches as it takes.

    Examples of like lengths are decoded together, because a batch is padded to
    its longest input. With REFILL a row that ended makes way for the next
    example of its padded length.

    Args:
      examples: one example or more.
      trial: the number of the trial; see `row_keys`.
      tick: called with the number of examples decoded since its last call.

    Returns:
      NumPy arrays with one row for each example, in the order of `examples`.

    Raises:
      NoDistributionError: a model gave no distribution. The message names the
        example and the step.
    """
    order = order_by_length([example.tokens for example in examples])
    batches = self._make_batches([examples[place] for place in order])
    keys = dict.fromkeys(map(self.program_key, batches))
    missing = [key for key in keys if key not in self.programs]
    parts = []
    for batch in batches:
      key = self.program_key(batch)
      if is_new := key not in self.programs:
        number = f"{missing.index(key) + 1} of {len(missing)}"
        note(f"compiling {number}", leave_out=True)
        self.compile(batch)
      # Rows that are refilled compile their programs where they first run.
      start_s, is_first = time.monotonic(), key not in self.programs
      if is_new and not is_first:
        note("")
      if len(batch) > self.num_rows:
        decoded = self._decode_continuously(batch, trial, tick)
      else:
        decoded = self.decode(batch, trial)
        tick(len(batch))
      parts.append(decoded)
      # Rows that only pad the batch are not output.
      num_tokens = int(decoded.lengths[: len(batch)].sum())
      self.speed.add(num_tokens, time.monotonic() - start_s, is_first)
      if is_first:
        note("")
    # Only the last batch has rows that pad it. They come after all others, so
    # that `_join_rows` leaves them out.
    return _join_rows(parts, order)

  def _decode_continuously(
    self, batch: Sequence[Source], trial: int, tick: Callable
  ) -> Decoded:
    """Decodes more than `num_rows` examples; returns them in their order."""
    ended, parts = [], []
    for places, decoded in decode_continuously(
      self.decoder,
      *self.call(self.prepare(batch, trial)),
      rows=self.num_rows,
    ):
      check_finite(decoded, [batch[place] for place in places])
      ended.append(places)
      parts.append(decoded)
      tick(len(places))
    # Its two programs stay where `jax.jit` keeps them.
    self.programs[self.program_key(batch)] = decode_continuously
    return _join_rows(parts, np.concatenate(ended))

  def needed_programs(self) -> dict[Hashable, Sequence[Source]]:
    """Returns by its key each program of all trials, with a batch for it."""
    needed = {}
    for _, examples in self.trials:
      by_length = sorted(examples, key=lambda example: len(example.tokens))
      for batch in self._make_batches(by_length):
        needed[self.program_key(batch)] = batch
    return needed

  def compile(self, batch: Sequence[Source]):
    """Compiles the program of a batch, unless it was compiled before.

    The programs of rows that are refilled are compiled where they first run.
    """
    if len(batch) <= self.num_rows:
      self.bind(self.prepare(batch))

  def _make_batches(self, by_length: Sequence[Source]) -> list[list[Source]]:
    """Returns examples, which ascend in length, in batches of `num_rows`."""
    size = self.num_rows
    batches = [
      list(by_length[start : start + size])
      for start in range(0, len(by_length), size)
    ]
    if not self._refills:
      return batches
    # The batches of one padded length are one long batch, whose examples follow
    # each other through the rows.
    groups = itertools.groupby(batches, self._width)
    return [list(itertools.chain(*group)) for _, group in groups]

  @property
  def _refills(self) -> bool:
    """Whether a row that ended makes way for the next example."""
    # Only the inputs and the keys of a row can be exchanged, and only on one
    # device. A drafter of another vocabulary has inputs of its own for each
    # row.
    return (
      self.run.refill
      and self.point.spec.execution.is_one_loop
      and self.pair.shared is None
      and self.pair.layout is None
    )

  def _width(self, batch: Sequence[Source]) -> int:
    """Returns the length that the inputs of a batch are padded to."""
    return padding.width_of(batch, self.lengths)

  def program_key(self, batch: Sequence[Source]) -> Hashable:
    """Returns what distinguishes the program of a batch."""
    is_continuous = len(batch) > self.num_rows
    return self._key(self._width(batch), is_continuous)

  def _key(self, width: int, is_continuous: bool) -> Hashable:
    return self._static, self.num_rows, width, is_continuous

  @functools.cached_property
  def _static(self) -> tuple:
    """The part of a program's key that all batches have in common."""
    # It is what `jax.jit` looks at besides the shapes of a batch: the static
    # program, and the tree, shapes and types of the traced arguments.
    execution = self.point.spec.execution
    traced = [self.point.sampling, self.constraints]
    # A plain number is traced: every program takes any value.
    if isinstance(self.alpha, FittedAlpha | PhasedAlpha):
      traced.append(self.alpha)
    # A model that the method does not call is not part of its program.
    if execution.needs_drafter:
      traced.append(self.point.drafter(self.pair.drafter_lm))
    if execution.needs_verifier:
      traced.append(self.pair.verifier_lm)
    program, _ = self.decoder.program(self.point.sampling.greedy)
    leaves, tree = jax.tree.flatten(traced)
    return program, bool(self.begins), tree, *map(jax.typeof, leaves)


def _join_rows(parts: Sequence[Decoded], places: np.ndarray) -> Decoded:
  """Returns the first N rows of all parts, in the order of `places` [N]."""
  # Row i belongs to example places[i]. The inverse permutation therefore names
  # the row of each example: places [2, 0, 1] give rows [1, 2, 0].
  rows = np.argsort(places)
  return jax.tree.map(lambda *arrays: np.concatenate(arrays)[rows], *parts)


def check_finite(decoded: Decoded, batch: Sequence[Source]):
  """Checks that every row of a batch had distributions to draw from.

  Args:
    decoded: the result, in arrays of NumPy or of JAX.
    batch: the examples of the first rows; further rows are not checked.

  Raises:
    NoDistributionError: a model gave no distribution. The message names the
      first such example, and the step.
  """
  bad_steps = np.asarray(decoded.bad_step)[: len(batch)]
  bad_rows = np.flatnonzero(bad_steps >= 0)
  if bad_rows.size:
    row = bad_rows[0]
    example = batch[row]
    raise NoDistributionError(
      f"a model gave NaN, +inf or no finite logit at step {bad_steps[row]} of"
      f" example {example.index} ({example.text[:40]!r}); check the checkpoint,"
      " or set DTYPE = 'float32'"
    )
