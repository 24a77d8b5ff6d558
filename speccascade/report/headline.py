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
from typing import NamedTuple

from speccascade import cli
from speccascade.inference.rows.results import ResultRow, read_rows
from speccascade.report import styles, templates
from speccascade.report.findings import Contender, candidates
from speccascade.report.frontier import IntervalEstimate
from speccascade.report.groups import MeasuredPanel, studies
from speccascade.runtime import files

CASCADE = "spec_cascade"
LARGE_COLOUR = "#000000"
CORNER = {"color": "#009e73", "alpha": 0.08, "linewidth": 0, "zorder": 0}
# Where the words of a dot stand: their offset in points, and their alignment.
PLACES = {
  "above": ((0, 8), "center", "bottom"),
  "below": ((0, -8), "center", "top"),
  "left": ((-10, 6), "right", "bottom"),
}


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
  lossless: Contender
  cascade: Contender
  greedy: MeasuredPanel | None = None
  greedy_lossless: Contender | None = None

  @property
  def title(self) -> str:
    """What the intervals show, as a claim for each temperature, in lines."""
    temperature = self.panel.settings.temperature
    when = f"Sampling at T = {temperature:g}" if temperature else "Greedy"
    return "\n".join(templates.sentences("headline", self, when))


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
  panel = first.panels[-1]
  fits = candidates(panel)
  cascades = [c for c in fits if c.point.method.startswith(CASCADE)]
  plain = [c for c in fits if c.is_plain]
  if not cascades or not plain:
    raise ValueError(
      "the rows need timed points of verifier, of spec_decode, and of a"
      f" {CASCADE}_* that is as good as the verifier: sweep with NUM_TIMED=20"
    )
  better = [c for c in cascades if c.is_faster and c.is_better]
  greedy, fastest = None, None
  if first.panels[0].settings.temperature == 0 and len(first.panels) > 1:
    drafted = candidates(first.panels[0])
    fastest = next((c for c in drafted if c.is_plain), None)
    greedy = first.panels[0] if fastest is not None else None
  return Headline(panel, plain[0], (better or cascades)[0], greedy, fastest)


class Label(NamedTuple):
  """A large dot of the picture, with its words.

  Attributes:
    x: times as fast as the large model, with its interval.
    y: quality, with its interval.
    colour: the colour of the dot and of the words.
    text: the words, in lines.
    where: where the words stand, one of `PLACES`.
    is_hollow: whether the dot is a ring, as those of temperature 0 are.
  """

  x: IntervalEstimate
  y: IntervalEstimate
  colour: str
  text: str
  where: str = "below"
  is_hollow: bool = False


def _labels(shown: Headline) -> list[Label]:
  """Returns the dots of the large model, lossless speculation and cascade."""
  labels = []
  for panel, plain, same, where in (
    (shown.panel, shown.lossless, "distribution", "below"),
    (shown.greedy, shown.greedy_lossless, "tokens", "above"),
  ):
    if panel is None:
      continue
    large, when, is_hollow = panel.large.quality, _when(panel), where == "above"
    labels += [
      Label(
        IntervalEstimate(1.0),
        large,
        LARGE_COLOUR,
        f"large model alone, {when}\n{large.value:.1f} {panel.metric}",
        where,
        is_hollow,
      ),
      Label(
        plain.speedup,
        plain.point.quality,
        styles.style(plain.point.method).color,
        f"lossless speculation, {when}\nlarge model's {same}\n"
        f"{plain.speedup.value:.2f} times as fast",
        where,
        is_hollow,
      ),
    ]
  cascade, quality = shown.cascade, shown.cascade.point.quality
  words = Label(
    cascade.speedup,
    quality,
    styles.style(cascade.point.method).color,
    f"speculative cascade, {_when(shown.panel)}\n{quality.value:.1f}"
    f" {shown.panel.metric}, {cascade.speedup.value:.2f} times as fast",
    "above" if shown.greedy is None else "left",
  )
  return [*labels[:2], words, *labels[2:]]


def _when(panel: MeasuredPanel) -> str:
  """Returns the temperature of a panel, in words."""
  temperature = panel.settings.temperature
  return f"T = {temperature:g}" if temperature else "greedy"


def draw(shown: Headline):
  """Returns the picture as matplotlib's Figure.

  Args:
    shown: what the picture shows.
  """
  panel, large = shown.panel, shown.panel.large
  figure, axis = styles.pyplot().subplots(figsize=(8, 4.6))
  labels = _labels(shown)
  for label in labels:
    fill = "white" if label.is_hollow else label.colour
    x, y, (low, high) = label.x.value, label.y.value, label.y.bounds
    axis.plot(
      x,
      y,
      "o",
      color=label.colour,
      markerfacecolor=fill,
      markeredgewidth=2,
      markersize=10,
      zorder=3,
    )
    bar = {"color": label.colour, "alpha": 0.4, "zorder": 1}
    axis.plot([x, x], [low, high], **bar)
    axis.plot(label.x.bounds, [y, y], **bar)
    offset, across, along = PLACES[label.where]
    heights = {"above": high, "below": low, "left": y}
    axis.annotate(
      label.text,
      (x, heights[label.where]),
      xytext=offset,
      textcoords="offset points",
      ha=across,
      va=along,
      color=label.colour,
      fontsize=9,
      weight="bold",
    )
  ends = [
    (x, y) for each in labels for x in each.x.bounds for y in each.y.bounds
  ]
  _set_limits(axis, ends)
  right, top = axis.get_xlim()[1], axis.get_ylim()[1]
  corner = styles.pyplot().Rectangle(
    (1.0, large.quality.value),
    right - 1.0,
    top - large.quality.value,
    **CORNER,
  )
  axis.add_patch(corner)
  words = axis.annotate(
    f"better and faster than the large model, {_when(panel)}",
    (1.0, large.quality.value),
    xytext=(10, 4),
    textcoords="offset points",
    color="#555555",
    fontsize=7.5,
  )
  words.set_in_layout(False)  # a corner that they do not fit stays small
  axis.axhline(large.quality.value, linestyle=":", color="#888888", zorder=0)
  axis.axvline(1.0, linestyle=":", color="#888888", zorder=0)
  _draw_drafter(axis, panel)
  axis.set_xlabel("times as fast as the large model alone  (faster →)")
  axis.set_ylabel(f"{panel.metric}  (better ↑)")
  axis.set_title(shown.title, fontsize=11 if shown.greedy is None else 10)
  figure.text(0.99, 0.01, _footnote(shown), ha="right", fontsize=7)
  figure.tight_layout(rect=(0, 0.03, 1, 1))
  return figure


def _set_limits(axis, places: Sequence[tuple]):
  """Leaves room for the words around the points."""
  for values, set_limits, share in (
    ([x for x, _ in places], axis.set_xlim, 0.3),
    ([y for _, y in places], axis.set_ylim, 0.4),
  ):
    room = share * (max(values) - min(values))
    set_limits(min(values) - room, max(values) + room)


def _draw_drafter(axis, panel: MeasuredPanel):
  """Draws the small model as an arrow at the edge, which it is far beyond."""
  small = panel.first("drafter")
  if small is None or small.latency is None:
    return
  bottom, top = axis.get_ylim()
  place = (small.quality.value - bottom) / (top - bottom)
  axis.annotate(
    f"small model alone, {_when(panel)}\n{small.quality.value:.1f}"
    f" {panel.metric}, {1 / small.latency.value:.0f} times as fast",
    (1.0, min(max(place, 0.05), 0.95)),
    (-26, 0),
    xycoords="axes fraction",
    textcoords="offset points",
    fontsize=8,
    horizontalalignment="right",
    verticalalignment="center",
    arrowprops={"arrowstyle": "-|>", "color": LARGE_COLOUR, "shrinkB": 0},
  )


def _footnote(shown: Headline) -> str:
  """Returns where the rows come from."""
  row = shown.panel.large.rows[0]
  parts = ["bars are 95% intervals"]
  parts.append(
    f"{row.settings.num_examples} texts, {row.latency.num_examples} timed"
  )
  parts.append(row.environment["device"])
  return "; ".join(parts)


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


def _rows(folder: pathlib.Path) -> list[ResultRow]:
  """Returns the rows of a folder, whose file may be compressed."""
  plain, packed = folder / "rows.jsonl", folder / "rows.jsonl.gz"
  return read_rows(packed if packed.exists() and not plain.exists() else plain)


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
  shown = headline([row for folder in results_dir for row in _rows(folder)])
  figure = draw(shown)
  metadata = {"Date": None} if kind == "svg" else None
  with files.open_whole(str(output_file), "wb") as file:
    figure.savefig(file, format=kind, dpi=150, metadata=metadata)
  styles.pyplot().close(figure)
  print(f"{shown.title}\nThe picture is in {output_file}")


if __name__ == "__main__":
  sys.exit(main())
