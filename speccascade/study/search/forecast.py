"""What a sweep is going to measure, and about how long that takes."""

from collections.abc import Sequence
import dataclasses
import itertools
import time

import jax

from speccascade.generate.points.point import Point
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.study import Study
from speccascade.study.search import sweeps
from speccascade.study.search.grid import Curve
from speccascade.study.search.plans import Plan
from speccascade.study.search.shown import Shown
from speccascade.study.search.sweeps import Studies


@dataclasses.dataclass(frozen=True)
class Forecast:
  """The work of a sweep that starts in an empty folder.

  Attributes:
    num_points: the number of planned points.
    most_points: the number of points if every curve of an adaptive sweep uses
      up its budget; `num_points` in any other sweep.
    num_programs: the number of decoders that are compiled. A run also compiles
      small programs, which are not counted.
    compile_s: seconds to compile one decoder, as the verifier's decoder took.
    decode_s: seconds of all decodes, if each decode took the verifier's time.
    num_threads: the number of decoders that are compiled at once.
  """

  num_points: int
  most_points: int
  num_programs: int
  compile_s: float
  decode_s: float
  num_threads: int

  @property
  def seconds(self) -> float:
    """About how long the sweep takes."""
    return self.decode_s + self.num_programs * self.compile_s / self.num_threads

  def __str__(self) -> str:
    points = f"{self.num_points} points"
    if self.most_points > self.num_points:
      points += f", up to {self.most_points}"
    return (
      f"{points}, {self.num_programs} programs of decoders\n"
      f"about {_duration(self.seconds)}: {self.compile_s:.1f} s to compile a"
      f" program, {self.num_threads} at once, and {_duration(self.decode_s)} of"
      " decoding if each point took the large model's time; scores and figures"
      " left out"
    )


def _duration(seconds: float) -> str:
  """Returns a duration in the unit that a reader expects."""
  if seconds < 90:
    return f"{seconds:.0f} s"
  minutes = seconds / 60
  return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def forecast(*, plan: Plan, shown: Shown = Shown(), **settings) -> Forecast:
  """Plans a sweep and times the verifier; writes nothing.

  Args:
    plan: the points of the sweep.
    shown: the points whose tokens are shown.
    **settings: the other settings of `sweeps.sweep`.

  Raises:
    ValueError: a setting, a model or an input does not fit, as in the sweep.
  """
  studies, curves = sweeps.prepare(plan=plan, **settings)
  study = studies.study
  most_by_curve = [
    max(len(curve.points), plan.curve_budget if curve.grid.alphas else 0)
    for curve in curves
  ]
  verifier = _time_verifier(study, curves)
  decode_s = sum(
    num * _decode_s(studies.of(curve), curve.base, verifier)
    for curve, num in zip(curves, most_by_curve)
  )
  return Forecast(
    num_points=sum(len(curve.points) for curve in curves),
    most_points=sum(most_by_curve),
    num_programs=_num_programs(studies, curves, shown),
    compile_s=verifier.compile_s,
    decode_s=decode_s,
    num_threads=study.session.num_threads,
  )


def _num_programs(
  studies: Studies, curves: Sequence[Curve], shown: Shown
) -> int:
  """Returns how many decoders are compiled."""
  programs = set()
  for curve, timed in itertools.product(curves, (True, False)):
    batches = studies.of(curve).batches(curve.base, timed=timed)
    programs |= batches.needed_programs().keys()
  # A program that records a trace is another program.
  examples = [studies.middle(curve) for curve in shown.select(curves)]
  traced = {
    each.study.batches(each.point).program_key(each.study.examples[:1])
    for each in examples
  }
  return len(programs) + len(traced)


@dataclasses.dataclass(frozen=True)
class _VerifierTimes:
  """What the verifier alone takes."""

  compile_s: float
  example_s: float  # as the timed examples are decoded
  batch_s: float  # 0 where every example is decoded as the timed ones are


def _time_verifier(study: Study, curves: Sequence[Curve]) -> _VerifierTimes:
  """Compiles the verifier alone, and decodes one example and one batch."""
  alone, num_timed = (
    point_timing.reference(curves[0].base),
    len(study.timed_examples),
  )
  whole = study.run.batch_size
  decode_s, compile_s = {1: 0.0, whole: 0.0}, 0.0
  parts = [
    (True, study.timed_examples[:1]),
    (False, study.examples[num_timed:]),
  ]
  for is_timed, examples in parts:
    batches = study.batches(alone, timed=is_timed)
    size = batches.num_rows
    # At batch 1 the second part runs the program of the first part.
    if not examples or decode_s[size]:
      continue
    seconds = []
    for _ in range(2):
      start = time.monotonic()
      jax.block_until_ready(batches.decode(examples[:size]))
      seconds.append(time.monotonic() - start)
    # The first call compiles the program, and the second call finds it.
    first_s, decode_s[size] = seconds
    compile_s = max(compile_s, first_s - decode_s[size])
  batch_s = decode_s[whole] if whole > 1 else 0.0
  return _VerifierTimes(compile_s, decode_s[1], batch_s)


def _decode_s(study: Study, point: Point, verifier: _VerifierTimes) -> float:
  """Returns seconds of a point, if its decodes take the verifier's time."""
  num_timed = len(study.timed_examples) * study.measuring.repeats
  num_others = study.num_decodes(point) - num_timed
  # The outputs of the timed examples are scored too, and not decoded again.
  num_others -= len(study.timed_examples)
  if not verifier.batch_s:
    return (num_timed + num_others) * verifier.example_s
  num_batches = -(-num_others // study.run.batch_size)
  return num_timed * verifier.example_s + num_batches * verifier.batch_s
