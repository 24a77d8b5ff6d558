"""`Session`: the models, the inputs and the programs that decodes share.

`Session.batches` decodes the examples at a point, and `Session.records` makes
records of what was decoded.
"""

from collections.abc import (
  Callable,
  Hashable,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
import concurrent.futures
import dataclasses
import functools
import itertools
import os
from typing import Any

import jax
import numpy as np

from speccascade.constraints import limits, markers
from speccascade.decoding.programs.method import Method
from speccascade.decoding.records.automaton import (
  Constraints,
  TokenAutomaton,
)
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.decode_settings import Records
from speccascade.generate import records
from speccascade.generate.batches import padding
from speccascade.generate.batches.batching import Batches, Programs
from speccascade.generate.batches.sources import Source, Sources
from speccascade.generate.pair.pair_checks import (
  check_sources,
  drafter_window,
)
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points.alpha_phases import Marker
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import (
  PointSettings,
  settings_of,
)
from speccascade.generate.run import Run
from speccascade.models.sharding.partitioning import DATA
from speccascade.runtime import memory, processes
from speccascade.runtime.progress import note
from speccascade.settings import fields
from speccascade.settings.fields import values_of
from speccascade.text.prompting import eos_ids

# Takes the number of decodes since its last call.
Tick = Callable[[int], object]


@fields.checked
@dataclasses.dataclass(frozen=True, eq=False)
class Session:
  """The models, the examples and the programs that decodes share.

  A session is equal to itself alone, since its programs belong to it.

  Attributes:
    pair: the models.
    sources: the examples.
    run: how the examples are decoded.
    programs: the compiled programs, by `Batches.program_key`. A program depends
      on the method, the shapes and the number formats, and not on the examples,
      alpha or the seed. A session that is made from this one by
      `dataclasses.replace` has the same dict, so that it compiles none again.
    methods: the methods of its points, where they are known; a text that passes
      the window of the drafter is refused unless all of them take it.

  Raises:
    ValueError: the mesh does not divide the batch size, or the models do not
      take these examples.
  """

  pair: ModelPair
  sources: Sources
  run: Run
  programs: Programs = dataclasses.field(default_factory=dict)
  methods: tuple[Method, ...] = ()

  def __post_init__(self):
    # A single row is not split along the data axis: each part decodes it whole.
    if self.pair.layout is not None and self.run.batch_size > 1:
      self.pair.layout.check_rows(BATCH_SIZE=self.run.batch_size)
    limit = self.run.max_decode_len
    check_sources(self.pair, self.sources, limit, self.methods)

  @property
  def examples(self) -> Sequence[Source]:
    """The examples, in the order of the data set."""
    return self.sources.examples

  @property
  def vocabulary(self):
    """The vocabulary of the examples' tokens."""
    return self.sources.vocabulary

  def text_of(self, tokens: Sequence[int], example: Source) -> str:
    """Returns the text of an example's output, up to what ended it."""
    limits = self.run.also(example.stop)
    return records.text_of(self.vocabulary, tokens, limits)

  def records(
    self, decoded: Decoded, examples: Sequence[Source], trial: int = 0
  ) -> list[dict]:
    """Returns the records of some examples; see `records.records`.

    Args:
      decoded: what was decoded for them, the first rows of a batch.
      examples: the examples.
      trial: the number of the trial.
    """
    return records.records(decoded, examples, self.vocabulary, trial, self.run)

  @functools.cached_property
  def _constraints(
    self,
  ) -> tuple[Constraints, Mapping[tuple[str | int, ...], int]]:
    """What outputs are held to, and where each begins; see `Batches`."""
    ends = eos_ids(self.vocabulary)
    return limits.constraints(
      self.run,
      self.vocabulary,
      functools.partial(records.text_of, self.vocabulary),
      eos_ids=ends if isinstance(ends, tuple) else (ends,),
      vocab_size=self.pair.models[-1].lm.vocab_size,
      own_stops=(example.stop for example in self.examples),
    )

  @functools.cached_property
  def _markers(self) -> dict[Marker, TokenAutomaton]:
    """The automata of markers that points have had so far."""
    return {}

  def decoder_alpha(self, point: Point) -> Any:
    """Returns alpha as a decoder of these models takes it, perhaps by phase."""
    if not point.has_phases:
      return point.decoder_alpha
    if point.marker not in self._markers:
      self._markers[point.marker] = markers.compiled(
        point.marker,
        self.vocabulary,
        functools.partial(records.text_of, self.vocabulary),
        self.pair.models[-1].lm.vocab_size,
      )
    return point.phased_alpha(self._markers[point.marker])

  @property
  def lengths(self) -> list[int]:
    """The input lengths that batches are padded to, in ascending order.

    The last length holds all examples.
    """
    return padding.buckets(self.sources.max_len, self.run.num_lengths)

  def pad_examples(self, examples: Sequence[Source], rows: int) -> np.ndarray:
    """Returns [rows, S] int32, inputs that are padded to the last of `lengths`.

    Args:
      examples: up to `rows` examples.
      rows: the number of rows.
    """
    tokens, _ = padding.pad_batch(
      examples, rows, self.lengths[-1:], prompted=self.pair.prompted
    )
    return tokens

  def num_trials(self, point: Point) -> int:
    """Returns how often each example is decoded at a point.

    Greedy trials are all alike, so a greedy point has one.
    """
    return 1 if point.sampling.greedy else self.run.trials

  def settings(
    self, point: Point, *, trials: int | None = None
  ) -> PointSettings:
    """Returns the settings of a point's row, by which rows are distinguished.

    Args:
      point: the method and its settings.
      trials: the number of trials that the row states. None states
        `num_trials`.
    """
    return settings_of(
      point,
      max_decode_len=self.run.max_decode_len,
      task=self.sources.task,
      split=self.sources.split,
      num_examples=len(self.examples),
      drafter=self.pair.drafter_name,
      verifier=self.pair.verifier_name,
      seed=self.run.seed,
      trials=trials or self.num_trials(point),
      dtype=self.pair.dtype,
      limits=self.run.limits_text,
    )

  @property
  def own_rows(self) -> int:
    """BATCH_SIZE, or the number of examples where there are fewer.

    Rows that only pad a batch take time. A mesh gets as many as it divides.
    """
    layout = self.pair.layout
    parts = 1 if layout is None else layout.sizes[DATA]
    num = -(-len(self.examples) // parts) * parts
    return min(num, self.run.batch_size)

  def batches(
    self,
    point: Point,
    *,
    shared: bool = True,
    num_rows: int | None = None,
    alike: Sequence[Source] | None = None,
    trials: Sequence[tuple[int, Sequence[Source]]] | None = None,
    room: int | None = None,
    **recorded: bool,
  ) -> Batches:
    """Returns the `Batches` that decode the examples at a point.

    Args:
      point: the method and its settings.
      shared: whether the methods of a family share programs. They do on a CPU
        only, where a program that branches at the method is as fast.
      num_rows: the rows of a batch; None takes BATCH_SIZE, so that sessions of
        other examples share programs.
      alike: examples that are all padded to one length, and decoded one at a
        time, so that one program decodes them. None makes batches of
        `num_rows`, padded to one of `lengths`.
      trials: the trials that the batches decode, each with its number; None
        takes all examples, `num_trials` times.
      room: the most tokens after an example; None takes those of one output.
      **recorded: fields of `Records` in place of the run's.
    """
    run, lengths = self.run, self.lengths
    num_rows = num_rows or run.batch_size
    if alike is not None:
      all_lengths = padding.buckets(self.sources.max_len)
      num_rows, lengths = 1, [padding.width_of(alike, all_lengths)]
    if trials is None:
      numbers = range(self.num_trials(point))
      trials = [(number, self.examples) for number in numbers]
    decoder = point.decoder(
      max_decode_len=run.max_decode_len,
      eos_id=run.end_ids(eos_ids(self.vocabulary)),
      shared=shared and jax.default_backend() == "cpu",
      drafter_window=drafter_window(
        self.pair, self.sources, room or run.max_decode_len, point.spec
      ),
      **values_of(run, Records) | recorded,
    )
    constraints, begins = self._constraints
    return Batches(
      pair=self.pair,
      point=point,
      run=run,
      num_rows=num_rows,
      trials=trials,
      alpha=self.decoder_alpha(point),
      decoder=decoder,
      lengths=lengths,
      constraints=constraints,
      programs=self.programs,
      begins=begins,
    )

  @property
  def num_threads(self) -> int:
    """The number of threads that decode while nothing is timed.

    On a mesh it is 1. The devices of a mesh wait for each other, so all of them
    must run their programs in the same order.
    """
    if self.pair.layout is not None:
      return 1
    return max(1, min(8, os.cpu_count() or 1))

  def compile(self, batches: Iterable[Batches], tick: Tick = lambda num: None):
    """Compiles the programs of points that are missing, several at once.

    Args:
      batches: the batches of all points.
      tick: called with 0 before each program. An error that it raises ends the
        compiling.
    """
    programs = {
      key: (each, batch)
      for each in batches
      for key, batch in each.needed_programs().items()
    }
    missing = [key for key in programs if key not in self.programs]
    # Programs of other points are dropped before they fill the process. All
    # processes of a job must drop them together, as they compile together.
    if missing and processes.agree(memory.holds_many_programs):
      self.programs.clear()
      jax.clear_caches()
      missing = list(programs)
    numbers = itertools.count(1)

    def compile_program(key: Hashable):
      tick(0)
      note(f"compiling {next(numbers)} of {len(missing)}", leave_out=True)
      each, batch = programs[key]
      each.compile(batch)

    list(self.map_in_threads(compile_program, missing))
    note("")

  def map_in_threads(self, function: Callable, items: Sequence) -> Iterator:
    """Yields the result of a function for each item in turn."""
    with concurrent.futures.ThreadPoolExecutor(self.num_threads) as pool:
      yield from pool.map(function, items)
