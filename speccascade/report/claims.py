"""The titles of figures: what the rows show at the large model's quality."""

from collections.abc import Iterable, Iterator, Sequence

from speccascade.report import winners
from speccascade.report.groups import PointGroup
from speccascade.report.measured import Clock
from speccascade.report.winners import Candidate


def headline_candidate(panel: PointGroup, clock: Clock) -> Candidate | None:
  """Returns the measured point that the title of a figure is about.

  It is the point that the first sentence of a report names, if its whole
  interval says that it is faster than the large model. Else it is the fastest
  point of which that is known, or else the point that the sentence names.

  Args:
    panel: the points of one temperature.
    clock: the definition of latency.

  Returns:
    The candidate; None where no point is as good as the large model, or where
    the large model has no latency.
  """
  lead = winners.lead(panel, clock)
  named = lead.candidate if lead else None
  if named is None or _is_sure(named, clock):
    return named
  fits = winners.candidates(panel, clock)
  return next((each for each in fits if _is_sure(each, clock)), named)


def claim(panels: Sequence[PointGroup], clock: Clock) -> str:
  """Returns what the rows show, a line for each temperature.

  Args:
    panels: the points of each temperature, the main one first.
    clock: the definition of latency.

  Returns:
    The lines; empty where the large model has no latency.
  """
  return "\n".join(_lines(panels, clock))


def _lines(panels: Iterable[PointGroup], clock: Clock) -> Iterator[str]:
  """Yields the claim of each temperature that has one."""
  for panel in panels:
    if panel.large is None or not clock.select_timed([panel.large]):
      continue
    large = f"{panel.large.quality.value:.1f}"
    candidate = headline_candidate(panel, clock)
    if candidate is None:
      yield (
        f"{_when(panel)} no method is as good as the large model, which has"
        f" {large} {panel.metric}"
      )
    else:
      yield (
        f"{_when(panel)} {_speed_clause(candidate, clock)}"
        f"{_quality_clause(candidate, panel)}"
      )


def _is_sure(candidate: Candidate, clock: Clock) -> bool:
  """Returns whether a point is faster than the large model.

  Modelled latency has no interval: its value decides.
  """
  if clock.cost_ratio is not None:
    return candidate.speedup.value > 1
  return winners.is_surely_above_one(candidate.speedup)


def _speed_clause(candidate: Candidate, clock: Clock) -> str:
  """Returns how fast a point is, and whether that pays."""
  verb = "is" if clock.cost_ratio is None else "would be"
  times = f"{verb} {candidate.speedup.value:.2f} times as fast"
  if _is_sure(candidate, clock):
    return f"{typed_name(candidate)} {times} as the large model"
  shown = "shown to be " if candidate.speedup.value > 1 else ""
  return (
    f"no method as good as the large model {verb} {shown}faster:"
    f" {typed_name(candidate)} {times}"
  )


def _quality_clause(candidate: Candidate, panel: PointGroup) -> str:
  """Returns the quality of a point, against the large model's quality."""
  if candidate.point.has_large_distribution:
    is_greedy = panel.settings.temperature == 0
    return f", with the same {'tokens' if is_greedy else 'distribution'}"
  return (
    f", at {candidate.point.quality.value:.1f} {panel.metric} against"
    f" {panel.large.quality.value:.1f}"
  )


def typed_name(candidate: Candidate) -> str:
  """Returns the method of a point as one types it, with its alpha."""
  alpha = candidate.point.settings.alpha
  name = PointGroup([candidate.point]).name
  return name if alpha is None else f"{name} ({alpha:g})"


def _when(panel: PointGroup) -> str:
  """Returns the temperature at the beginning of a claim."""
  temperature = panel.settings.temperature
  return "Greedy," if temperature == 0 else f"At T = {temperature:g}"
