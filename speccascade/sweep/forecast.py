"""What a sweep is going to measure, and about how long that takes."""

from collections.abc import Sequence
import dataclasses
import time

import jax

from speccascade.inference.measuring import measure
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.search.grid import Curve
from speccascade.sweep import sweep
from speccascade.sweep.plans import Plan
from speccascade.sweep.runner import Studies
from speccascade.sweep.shown import Shown


@dataclasses.dataclass(frozen=True)
class Forecast:
  """What is ahead of a sweep in an empty folder.

  Attributes:
    num_points: planned; an adaptive sweep ends with up to `most_points`.
    most_points: see there.
    num_programs: decoders that are compiled; a run also compiles small ones.
    compile_s: of one of them, as the verifier's took.
    decode_s: of all decodes, if each took the verifier's time.
    num_threads: that compile at once.
  """

  num_points: int
  most_points: int
  num_programs: int
  compile_s: float
  decode_s: float
  num_threads: int

  @property
  def seconds(self) -> float:
    """About how long it takes."""
    return self.decode_s + self.num_programs * self.compile_s / self.num_threads

  def __str__(self) -> str:
    most = f", up to {self.most_points}" * (self.most_points > self.num_points)
    return (
      f"{self.num_points} points{most}, {self.num_programs} programs of"
      " decoders\n"
      f"about {_minutes(self.seconds)}: {self.compile_s:.1f} s to compile a"
      f" program, {self.num_threads} at once, and {_minutes(self.decode_s)} of"
      " decoding if each point took the large model's time; scores and figures"
      " left out"
    )


def _minutes(seconds: float) -> str:
  if seconds < 90:
    return f"{seconds:.0f} s"
  minutes = seconds / 60
  return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def forecast(*, plan: Plan, shown: Shown = Shown(), **settings) -> Forecast:
  """Plans a sweep and times the verifier; writes nothing.

  Args:
    plan: as in `sweep.sweep`, like the rest.
    shown: likewise.
    **settings: likewise.

  Raises:
    ValueError: as the sweep would.
  """
  study, studies, curves = sweep.planned(plan=plan, **settings)
  numbers = [
    max(len(curve.points), plan.most if curve.grid.alphas else 0)
    for curve in curves
  ]
  compile_s, timed_s, batch_s = _verifier(study, curves)
  decode_s = sum(
    num * _decode_s(studies.of(curve), curve.base, timed_s, batch_s)
    for curve, num in zip(curves, numbers)
  )
  return Forecast(
    num_points=sum(len(curve.points) for curve in curves),
    most_points=sum(numbers),
    num_programs=_num_programs(studies, curves, shown),
    compile_s=compile_s,
    decode_s=decode_s,
    num_threads=study.num_threads,
  )


def _num_programs(
  studies: Studies, curves: Sequence[Curve], shown: Shown
) -> int:
  """Counts what is compiled; a traced program is another one."""
  programs = set()
  for curve in curves:
    programs |= studies.of(curve).programs(curve.base).keys()
  chosen = [studies.middle(curve) for curve in shown.chosen(curves)]
  traced = {next(iter(each.study.programs(each.point))) for each in chosen}
  return len(programs) + len(traced)


def _verifier(
  study: Study, curves: Sequence[Curve]
) -> tuple[float, float, float]:
  """Returns seconds: to compile, of a timed example, of a batch of quality.

  The last is 0 where every example is decoded as the timed ones are.
  """
  alone, num = measure.reference(curves[0].base), len(study.timed)
  whole = study.run.batch_size
  decoded_s, compile_s = {1: 0.0, whole: 0.0}, 0.0
  parts = [(True, study.timed[:1]), (False, study.examples[num:])]
  for is_timed, examples in parts:
    batches = study.batches(alone, timed=is_timed)
    size = batches.run.batch_size
    if not examples or decoded_s[size]:
      continue
    times = []
    for _ in range(2):
      began = time.monotonic()
      jax.block_until_ready(batches.decode(examples[:size]))
      times.append(time.monotonic() - began)
    decoded_s[size] = times[1]
    compile_s = max(compile_s, times[0] - times[1])
  return compile_s, decoded_s[1], decoded_s[whole] if whole > 1 else 0.0


def _decode_s(
  study: Study, point: Point, timed_s: float, batch_s: float
) -> float:
  """Returns what a point takes, if its decodes take the verifier's time."""
  timed = len(study.timed) * study.measuring.repeats
  num = study.num_decodes(point) - timed
  num -= len(study.timed)  # whose outputs score too
  if batch_s:
    return timed * timed_s + -(-num // study.run.batch_size) * batch_s
  return (timed + num) * timed_s
