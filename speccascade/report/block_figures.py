"""The figures of blocks: accepted drafts by position, latency over gamma."""

from collections.abc import Iterable, Sequence
import itertools

from speccascade.report.drawing import LinePanel, Plot, SharePanel
from speccascade.report.figures import MAX_LABELS, PAPERS
from speccascade.report.groups import PointGroup
from speccascade.report.lines import (
  LabelledPoints,
  PlacesOf,
  make_series,
)
from speccascade.report.measured import Clock, Measured
from speccascade.report.point_tables import points_over_gamma

_MIN_EXAMINED = 20  # examined drafts that make a rate worth drawing


def best_points(panel: PointGroup) -> list[Measured]:
  """Returns the point with the best quality of each speculative curve.

  Of equally good points the one with the highest acceptance rate is returned.
  """

  def rank(point: Measured) -> tuple[float, float]:
    return point.quality.value, point.efficiency["acceptance_rate"] or 0.0

  # One line for each method: lines for all its alphas would hide each other.
  best = []
  for curve in panel.curves:
    points = [point for point in curve.points if point.counts.num_blocks]
    if points:
      best.append(max(points, key=rank))
  return best


def _label_with_alpha(point: Measured) -> str:
  return PointGroup([point]).typed


def acceptance_by_position(panels: Sequence[PointGroup]) -> Plot:
  """Returns acceptance at each position of a block, each method at one alpha.

  Args:
    panels: the points of each temperature.
  """
  drawn = []
  for panel in panels:
    points = best_points(panel)
    # More labels than this do not fit next to the panel.
    if len(points) > MAX_LABELS:
      points = [point for point in points if point.method in PAPERS]
    lines = [
      LabelledPoints(_label_with_alpha(point), [point]) for point in points
    ]
    series = make_series(lines, _acceptance_places)
    if series:
      num = max(len(point.counts.examined_by_position) for point in points)
      drawn.append(
        LinePanel(
          panel.title,
          series,
          "position in the block",
          "accepted / examined",
          steps=range(1, num + 1),
        )
      )
  return Plot(
    "acceptance_by_position",
    "Acceptance by position",
    "",
    "The share of examined drafts that were accepted, at each position of a"
    " block. Each method has the alpha of its best quality, which is written"
    " after its name. Positions that were examined fewer than"
    f" {_MIN_EXAMINED} times are left out.",
    drawn,
  )


def _acceptance_places(point: Measured) -> Iterable[tuple[int, float | None]]:
  """Yields (position, acceptance rate); None for too few examined drafts."""
  rates = point.efficiency["acceptance_by_position"]
  examined = point.counts.examined_by_position
  for position, (rate, num) in enumerate(zip(rates, examined), start=1):
    yield position, rate if num >= _MIN_EXAMINED else None


def acceptance_histogram(panels: Sequence[PointGroup]) -> Plot:
  """Returns shares of blocks by the number of accepted drafts.

  Args:
    panels: the points of each temperature.
  """
  drawn = []
  for panel in panels:
    rows = [
      (_label_with_alpha(point), _accepted_shares(point))
      for point in best_points(panel)
    ]
    if rows:
      drawn.append(SharePanel(panel.title, rows, "drafts accepted"))
  return Plot(
    "acceptance_histogram",
    "Acceptance histogram",
    "",
    "The percentage of blocks by the number of accepted drafts. Each method has"
    " the alpha of its best quality, which is written after its name.",
    drawn,
  )


def _accepted_shares(point: Measured) -> list[float]:
  """Returns shares of blocks in per cent, by the number of accepted drafts."""
  counts = point.counts
  return [100 * num / counts.num_blocks for num in counts.accepted_at]


def gamma_ablation(
  panels: Sequence[PointGroup], clocks: Sequence[Clock]
) -> Plot:
  """Returns latency against gamma, a panel for each temperature and clock.

  Args:
    panels: the points of each temperature.
    clocks: the definitions of latency.
  """
  drawn = []
  for panel, clock in itertools.product(panels, clocks):
    lines = [
      LabelledPoints(_label_with_alpha(points[0]), points)
      for points in points_over_gamma(panel)
    ]
    # A single gamma shows no trend, so such a line is left out.
    series = make_series(lines, _latency_over_gamma(clock), clock, min_dots=2)
    if series:
      gammas = {dot.x.value for line in series for dot in line.dots}
      drawn.append(
        LinePanel(
          f"{panel.title}, {clock.name}",
          series,
          "gamma",
          f"relative latency ({clock.name})",
          level=1,
          steps=sorted(gammas),
        )
      )
  return Plot(
    "gamma",
    "Block size",
    "",
    "Relative latency against gamma. Each method has the one alpha that was"
    " measured at most gammas, which is written after its name.",
    drawn,
  )


def _latency_over_gamma(clock: Clock) -> PlacesOf:
  """Returns the function from a point to (gamma, latency without interval)."""

  def places_of(point: Measured) -> list[tuple]:
    latency = clock.latency_of(point)
    return [(point.settings.gamma, latency.value if latency else None)]

  return places_of
