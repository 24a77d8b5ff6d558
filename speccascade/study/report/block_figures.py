"""The figures of blocks: accepted drafts by position, speed over gamma."""

from collections.abc import Iterable, Sequence

from speccascade.study.report import frontier
from speccascade.study.report.figures import MAX_LABELS, PAPERS, make_line
from speccascade.study.report.frontier import IntervalEstimate
from speccascade.study.report.groups import MeasuredPanel
from speccascade.study.report.line_panels import LinePanel
from speccascade.study.report.measured import Clock, Measured
from speccascade.study.report.plots import Plot, SharePanel
from speccascade.study.report.point_tables import points_over_gamma

_MIN_EXAMINED = 20  # examined drafts that make a rate worth drawing


def best_points(panel: MeasuredPanel) -> list[Measured]:
  """Returns the point with the best quality of each speculative curve.

  Of equally good points the one with the highest acceptance rate is returned.
  """

  def rank(point: Measured) -> tuple[float, float]:
    return point.quality.value, point.efficiency["acceptance_rate"] or 0.0

  # One line for each method: lines for all its alphas would hide each other.
  curves = ([p for p in x.points if p.counts.num_blocks] for x in panel.curves)
  best = [max(points, key=rank) for points in curves if points]
  if len(best) > MAX_LABELS:
    best = [point for point in best if point.method in PAPERS]
  return best


def acceptance_by_position(panels: Sequence[MeasuredPanel]) -> Plot:
  """Returns acceptance by position of a block, each method at one alpha."""

  def places_of(point: Measured) -> Iterable[tuple]:
    counts = point.counts
    pairs = zip(counts.accepted_by_position, counts.examined_by_position)
    for position, (accepted, examined) in enumerate(pairs, start=1):
      if examined >= _MIN_EXAMINED:
        rate = frontier.rate_estimate(accepted, examined)
        yield IntervalEstimate(position), rate

  drawn = []
  for panel in panels:
    points = best_points(panel)
    lines = [make_line(p.typed, [p], places_of) for p in points]
    lines = [line for line in lines if line.xs]
    if lines:
      drawn.append(
        LinePanel(
          panel.title,
          lines,
          "position in the block",
          "accepted / examined",
          ticks=range(1, max(len(line.xs) for line in lines) + 1),
        )
      )
  return Plot(
    "acceptance_by_position",
    "Acceptance by position",
    "",
    "The share of examined drafts that were accepted, at each position of a"
    " block, with 95% intervals that take drafts as independent. Each method"
    " has the alpha of its best quality, which is written after its name."
    f" Positions that were examined fewer than {_MIN_EXAMINED} times are left"
    " out.",
    drawn,
  )


def acceptance_histogram(panels: Sequence[MeasuredPanel]) -> Plot:
  """Returns shares of blocks by the number of accepted drafts."""
  drawn = []
  for panel in panels:
    rows = []
    for point in best_points(panel):
      counts = point.counts
      shares = [100 * num / counts.num_blocks for num in counts.accepted_at]
      rows.append((point.typed, shares))
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


def gamma_ablation(
  panels: Sequence[MeasuredPanel], clocks: Sequence[Clock]
) -> Plot:
  """Returns speed against gamma, a panel for each temperature and clock.

  Args:
    clocks: the definitions of latency.
  """

  def places_of(point: Measured) -> list[tuple]:
    return [(IntervalEstimate(point.settings.gamma), point.speed)]

  drawn = []
  timed = [panel.by(clock) for panel in panels for clock in clocks]
  for panel in timed:
    lines = [
      make_line(points[0].typed, points, places_of)
      for points in points_over_gamma(panel)
    ]
    # A single gamma shows no trend, so such a line is left out.
    lines = [line for line in lines if len(line.xs) > 1]
    if lines:
      drawn.append(
        LinePanel(
          f"{panel.title}, {panel.clock.name}",
          lines,
          "gamma",
          panel.clock.axis,
          large=(None, 1.0),
          ticks=sorted({x.value for line in lines for x in line.xs}),
        )
      )
  return Plot(
    "gamma",
    "Block size",
    "",
    "Speed against gamma. Each method has the one alpha that was measured at"
    " most gammas, which is written after its name.",
    drawn,
  )
