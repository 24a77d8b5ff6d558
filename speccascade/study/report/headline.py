"""Draws the one picture of a pair: quality against speed, in words.

  python -m speccascade.report.headline --results_dir=out/curve \\
    --output_file=docs/headline.png

Reads rows.jsonl of a sweep, or of several sweeps of one pair, and takes the
rows of the highest temperature. The picture has the large model, lossless
speculation, and one speculative cascade.
Where the rows have greedy points too, it has the large model and lossless
speculation at temperature 0 beside them. Its title says at which temperature
the points were decoded, and what the intervals of the rows show.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
import sys

from speccascade import cli
from speccascade.runtime import files
from speccascade.study.report import styles, templates
from speccascade.study.report.comparisons import PLAIN
from speccascade.study.report.findings import candidates
from speccascade.study.report.frontier import IntervalEstimate
from speccascade.study.report.groups import MeasuredPanel, studies
from speccascade.study.report.line_panels import DrawnLine, LinePanel
from speccascade.study.report.measured import SMALL, Measured
from speccascade.study.report.plots import Plot
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow

CASCADE = "spec_cascade"
_SCALE = 1.8  # of the dots


@dataclasses.dataclass(frozen=True, eq=False)
class Headline:
  """What the picture shows.

  Attributes:
    panel: the points of the highest temperature.
    lossless: the fastest point of `spec_decode`.
    cascade: the point of a speculative cascade that is named.
    greedy: the points of temperature 0; None where the rows have none, or where
      `panel` has them.
    greedy_lossless: the fastest point of `spec_decode` among them.
  """

  panel: MeasuredPanel
  lossless: Measured
  cascade: Measured
  greedy: MeasuredPanel | None = None
  greedy_lossless: Measured | None = None

  @property
  def title(self) -> str:
    """What the intervals show, as a claim for each temperature, in lines."""
    temperature = self.panel.settings.temperature
    when = f"Sampling at T = {temperature:g}" if temperature else "Greedy"
    is_better = _is_better(self.cascade, self.panel)
    return "\n".join(templates.sentences("headline", self, when, is_better))


def headline(rows: Sequence[ResultRow]) -> Headline:
  """Returns what the picture of a pair shows.

  The cascade is the fastest point that is surely better and surely faster than
  the large model, or else the fastest point that is as good.

  Args:
    rows: the rows of one pair, some of them timed.

  Raises:
    ValueError: the rows lack what the picture shows.
  """
  first, *others = studies(rows)
  if others:
    raise ValueError(
      f"the rows are of {1 + len(others)} pairs or tasks; give those of one"
    )
  lowest, panel = first.panels[0], first.panels[-1]
  cascades = [
    point for point in candidates(panel) if point.method.startswith(CASCADE)
  ]
  lossless = _fastest_lossless(panel)
  if not cascades or lossless is None:
    raise ValueError(
      "the rows need timed points of verifier, of spec_decode, and of a"
      f" {CASCADE}_* that is as good as the verifier: sweep with NUM_TIMED=20"
    )
  better = [
    point
    for point in cascades
    if point.speed.is_above(1) and _is_better(point, panel)
  ]
  shown = Headline(panel, lossless, (better or cascades)[0])
  greedy = _fastest_lossless(lowest)
  if greedy is None or lowest is panel or lowest.settings.temperature > 0:
    return shown
  return dataclasses.replace(shown, greedy=lowest, greedy_lossless=greedy)


def _is_better(point: Measured, panel: MeasuredPanel) -> bool:
  """Returns whether a point is surely better than the large model."""
  return point.quality_gap(panel.large).is_above(0)


def _fastest_lossless(panel: MeasuredPanel) -> Measured | None:
  """Returns the fastest point of `spec_decode`, None without one."""
  return next((x for x in candidates(panel) if x.method == PLAIN), None)


def _dots(shown: Headline) -> list[DrawnLine]:
  """Returns the large model, lossless speculation and cascade, in words."""
  cascade = shown.cascade
  length = ""
  if cascade.has_other_lengths:
    length = f"\nanswers {cascade.relative_length.value:.2f} times as long"
  words = (
    f"speculative cascade, {_when(shown.panel)}\n{cascade.quality.value:.1f}"
    f" {shown.panel.metric}, {cascade.speed.value:.2f} times as fast{length}"
  )
  # Its words come first, and so take the best place.
  dots = [_dot(cascade, words, cascade.speed)]
  for panel, lossless, same in (
    (shown.panel, shown.lossless, "distribution"),
    (shown.greedy, shown.greedy_lossless, "tokens"),
  ):
    if panel is None:
      continue
    large, when = panel.large, _when(panel)
    dots += [
      _dot(
        large,
        f"large model alone, {when}\n{large.quality.value:.1f} {panel.metric}",
        # The row of the large model has an interval about 1.
        IntervalEstimate(1.0),
      ),
      _dot(
        lossless,
        f"lossless speculation, {when}\nlarge model's {same}\n"
        f"{lossless.speed.value:.2f} times as fast",
        lossless.speed,
      ),
    ]
  return dots


def _dot(point: Measured, words: str, speed: IntervalEstimate) -> DrawnLine:
  """Returns a point with its words; greedy points are rings."""
  is_greedy = point.settings.temperature == 0
  return DrawnLine(
    "",
    point.method,
    [speed],
    [point.quality],
    is_hollow=is_greedy,
    words=words,
    scale=_SCALE,
  )


def _when(panel: MeasuredPanel) -> str:
  """Returns the temperature of a panel, in words."""
  temperature = panel.settings.temperature
  return f"T = {temperature:g}" if temperature else "greedy"


def plot(shown: Headline) -> Plot:
  """Returns the picture as a figure of one panel.

  Args:
    shown: what the picture shows.
  """
  panel, when = shown.panel, _when(shown.panel)
  small, large, row = panel.first(SMALL), panel.large, panel.large.rows[0]
  drafters = []
  if small is not None and small.speed is not None:
    quality, speed = small.quality.value, small.speed.value
    words = f"{quality:.1f} {panel.metric}, {speed:.0f} times as fast"
    drafters.append((f"small model alone, {when}\n{words}", (speed, quality)))
  named = (shown.lossless, shown.cascade)
  differ = any(point.has_other_lengths for point in named)
  by_answer = ", by seconds an answer" if differ else ""
  picture = LinePanel(
    "",
    _dots(shown),
    f"times as fast as the large model alone{by_answer}  (faster →)\n"
    "bars are 95%"
    f" intervals; {row.settings.num_examples} texts,"
    f" {row.latency.num_examples} timed; {row.environment['device']}",
    f"{panel.metric}  (better ↑)",
    large=(1.0, large.quality.value),
    corner=f"better and faster than the large model, {when}",
    drafters=drafters,
    margins=(0.3, 0.4),
  )
  return Plot("headline", "", "", "", [picture], claim=shown.title)


def main(argv: list[str] | None = None) -> int:
  """Draws the picture; returns the exit code."""
  parser = cli.Parser("report.headline", __doc__)
  parser.add_argument(
    "--results_dir",
    type=cli.path,
    nargs="+",
    required=True,
    help="the folder of rows, or folders of one pair and task",
  )
  parser.add_argument(
    "--output_file",
    type=cli.path,
    default=pathlib.Path("headline.png"),
    help="a .png or .svg file (%(default)s)",
  )
  return parser.run(write, argv)


def write(results_dir: Sequence[pathlib.Path], output_file: pathlib.Path):
  """Draws the picture of the rows of folders, and prints its claim.

  Args:
    results_dir: the folders of rows.jsonl or rows.jsonl.gz.
    output_file: the picture's file, whose ending says its format.

  Raises:
    ValueError: the rows lack what the picture shows, or the ending is unknown.
  """
  kind = output_file.suffix.removeprefix(".")
  if kind not in ("png", "svg"):
    raise ValueError(f"output_file is {output_file}; want a .png or .svg file")
  rows = []
  for folder in results_dir:
    path = folder / results.FILE_NAME
    rows += results.read_rows(files.find(path) or path)
  shown = headline(rows)
  figure = plot(shown).draw()
  files.write_whole(output_file, styles.file_bytes(figure, kind))
  styles.pyplot().close(figure)
  print(f"{shown.title}\nThe picture is in {output_file}")


if __name__ == "__main__":
  sys.exit(main())
