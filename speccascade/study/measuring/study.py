"""What the points of a trade-off have in common: `Study`.

The points differ in the method and its settings. They share a session, which
decodes, and what is measured of them. `Study.batches` decodes examples at a
point, under the clock or without it; `scoring` makes rows of outputs, and
`measure` measures points.
"""

from collections.abc import Sequence
import dataclasses
from typing import Annotated

from speccascade.generate.batches.batching import Batches
from speccascade.generate.batches.sources import Source, Sources
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import PointSettings
from speccascade.generate.records import Outputs
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.settings import fields
from speccascade.tasks import quality


@fields.checked
@dataclasses.dataclass(frozen=True)
class Measuring:
  """What is measured of each point; checked when the record is made.

  Attributes:
    metrics: names in `quality.METRICS`, or functions of yours as
      MODULE:FUNCTION; None takes the metrics of the task, or BLEU.
    num_timed: examples timed at batch 1 against the verifier alone; 0 leaves
      latency out.
    repeats: how often each example is timed.
    agreement: whether greedy outputs are compared with the verifier's outputs.
  """

  metrics: Sequence[Annotated[str, quality.metric]] | None = None
  num_timed: fields.NonNegative = 0
  repeats: fields.Size = 3
  agreement: bool = True


@fields.checked
@dataclasses.dataclass(frozen=True, eq=False)
class Study:
  """A session, and what is measured of the points that it decodes.

  A study is equal to itself alone, since its outputs belong to it.

  Attributes:
    session: the models, the examples, and how they are decoded. The first of
      the examples are timed.
    measuring: what is measured of each point.
    verifier_outputs: the outputs of the verifier alone. A key is the point of
      the verifier at one sampling; a sampling that was not decoded is missing.
  """

  session: Session
  measuring: Measuring = Measuring()
  verifier_outputs: dict[Point, Outputs] = dataclasses.field(
    default_factory=dict, init=False
  )

  @property
  def pair(self) -> ModelPair:
    """The models of the session."""
    return self.session.pair

  @property
  def sources(self) -> Sources:
    """The sources of the session."""
    return self.session.sources

  @property
  def run(self) -> Run:
    """How the session decodes."""
    return self.session.run

  @property
  def examples(self) -> Sequence[Source]:
    """The examples, in the order of the data set."""
    return self.session.examples

  @property
  def timed_examples(self) -> Sequence[Source]:
    """The examples that are decoded under the clock, at batch size 1."""
    return self.examples[: self.measuring.num_timed]

  def with_session(self, **changes) -> "Study":
    """Returns a study like this one of another session.

    Args:
      **changes: fields of the session that get another value.
    """
    session = dataclasses.replace(self.session, **changes)
    return dataclasses.replace(self, session=session)

  def settings(
    self, point: Point, *, trials: int | None = None
  ) -> PointSettings:
    """Returns the settings of a point's row; see `Session.settings`."""
    return self.session.settings(point, trials=trials)

  def batches(
    self,
    point: Point,
    *,
    timed: bool = False,
    shared: bool = True,
    num_rows: int | None = None,
    room: int | None = None,
  ) -> Batches:
    """Returns the `Batches` that decode the examples at a point.

    Args:
      point: the method and its settings.
      timed: whether the batches are timed. They then have one row each, and
        decode the examples under the clock; else all others.
      shared: as in `Session.batches`.
      num_rows: as in `Session.batches`, of what is not timed.
    """
    num_timed, alike, recorded = len(self.timed_examples), None, {}
    # At batch size 1 all examples have one padded length: the timed programs
    # decode the others, too, which saves compiling.
    is_one_shape = self.run.batch_size == 1 and num_timed > 0
    if timed or is_one_shape:
      # One length, so that nothing is compiled while the clock runs.
      alike = self.examples if is_one_shape else self.timed_examples
    if timed and not is_one_shape and num_timed < len(self.examples):
      # What is recorded takes time, and is known of the other examples.
      recorded["log_probs"] = False
    return self.session.batches(
      point,
      shared=shared,
      num_rows=num_rows,
      alike=alike,
      trials=self._trials(point, timed),
      **recorded,
    )

  def _trials(
    self, point: Point, timed: bool
  ) -> list[tuple[int, Sequence[Source]]]:
    """Returns the trials under the clock or without it, with their examples."""
    if timed:
      trials = [(0, self.timed_examples)]
    else:
      # What is decoded under the clock has the outputs of trial 0.
      num_timed = len(self.timed_examples)
      trials = [
        (trial, self.examples if trial else self.examples[num_timed:])
        for trial in range(self.session.num_trials(point))
      ]
    return [(trial, examples) for trial, examples in trials if examples]

  def num_decodes(self, point: Point) -> int:
    """Returns the number of decodes of a point, which is the unit of progress.

    An example counts once for each repeat under the clock, and once for each
    trial.
    """
    num_timed = len(self.timed_examples) * self.measuring.repeats
    return num_timed + len(self.examples) * self.session.num_trials(point)
