"""Rows to figures, PNG and SVG; no model code."""

from collections.abc import Sequence
import io
import os
import pathlib

from speccascade.inference.results import ResultRow
from speccascade.report.styles import FAMILIES, family


def quality_latency(
  rows: Sequence[ResultRow], metric: str = "bleu", title: str = ""
):
  """Returns a figure of quality against relative latency.

  A panel for each temperature, all methods in it, with the large model's
  quality as a dotted line. Bars are 95% bootstrap intervals of the quality.

  Args:
    rows: with latency and the metric; others are left out.
    metric: name in `ResultRow.quality`.
    title: above the panels.

  Raises:
    ValueError: no row has both.
  """
  plt = pyplot()
  rows = [row for row in rows if row.latency and metric in row.quality]
  if not rows:
    raise ValueError(f"no row has both a latency and {metric}")
  temperatures = sorted({row.settings.temperature for row in rows})
  names = list(dict.fromkeys(row.settings.method for row in rows))
  numbers = {name: i + 1 for i, name in enumerate(names)}
  figure, axes = plt.subplots(
    1,
    len(temperatures),
    figsize=(5.6 * len(temperatures) + 2.6, 6.2),
    sharey=True,
    squeeze=False,
    layout="constrained",
  )
  for axis, temperature in zip(axes[0], temperatures):
    members = [row for row in rows if row.settings.temperature == temperature]
    _panel(axis, members, metric)
    axis.set_title("greedy" if temperature == 0 else f"T = {temperature:g}")
    axis.set_xlabel("relative latency (large model = 1)")
  axes[0][0].set_ylabel(metric.upper() if metric == "bleu" else metric)
  handles = {}
  for axis in axes[0]:
    drawn, families = axis.get_legend_handles_labels()
    handles |= dict(zip(families, drawn))
  figure.legend(
    handles.values(), handles.keys(), loc="outside lower center", ncols=3
  )
  key = figure.legend(
    [plt.Line2D([], [], linestyle="") for _ in names],
    [f"{number}  {name}" for name, number in numbers.items()],
    loc="outside right center",
    fontsize=7,
    handlelength=0,
    handletextpad=0,
    frameon=False,
  )
  for text, name in zip(key.get_texts(), names):
    text.set_color(FAMILIES[family(name)].colour)
  if title:
    figure.suptitle(title)
  figure.draw_without_rendering()  # places the axes, so that labels can be
  for axis, temperature in zip(axes[0], temperatures):
    members = [row for row in rows if row.settings.temperature == temperature]
    _number(axis, members, metric, numbers)
  return figure


def pyplot():
  """Returns pyplot, drawing to files, the same bytes from the same rows."""
  import matplotlib

  matplotlib.use("Agg")
  matplotlib.rcParams["svg.hashsalt"] = "speccascade"  # ids by content
  from matplotlib import pyplot as plt

  return plt


def _panel(axis, rows, metric):
  for row in rows:
    name, colour, _, marker, _ = FAMILIES[family(row.settings.method)]
    score, x = row.quality[metric], row.latency.relative_latency
    low, high = score.get("low"), score.get("high")
    bars = None
    if low is not None:
      bars = [[score["value"] - low], [high - score["value"]]]
    axis.errorbar(
      x,
      score["value"],
      yerr=bars,
      fmt=marker,
      color=colour,
      ecolor=colour + "55",
      markersize=7,
      label=name,
    )
    if row.settings.method == "verifier":
      axis.axhline(score["value"], linestyle=":", color="#000000", linewidth=1)
  axis.axvline(1, linestyle=":", color="#999999", linewidth=1)
  axis.grid(alpha=0.2)


# Where a number may stand, in points from its marker, nearest first.
_PLACES = [
  (dx, dy)
  for ring in (7, 13, 19, 25, 31, 40)
  for dx, dy in (
    (ring, 0),
    (-ring - 4, 0),
    (0, ring),
    (0, -ring - 5),
    (ring, ring),
    (ring, -ring - 4),
    (-ring - 4, ring),
    (-ring - 4, -ring - 4),
  )
]


def _number(axis, rows, metric, numbers):
  """Writes each point's number where it covers no marker or other number."""
  scale = axis.figure.dpi / 72
  at = [
    axis.transData.transform(
      (row.latency.relative_latency, row.quality[metric]["value"])
    )
    / scale
    for row in rows
  ]
  taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
  for row, (x, y) in zip(rows, at):
    text = str(numbers[row.settings.method])
    width = 4.2 * len(text)

    def box(place, x=x, y=y, width=width):
      left, low = x + place[0], y + place[1] - 2
      return left, low, left + width, low + 7

    free = (
      place
      for place in _PLACES
      if not any(_overlap(box(place), other) for other in taken)
    )
    place = next(free, _PLACES[0])
    taken.append(box(place))
    is_far = max(abs(place[0]), abs(place[1])) > 14
    line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.5}
    axis.annotate(
      text,
      (row.latency.relative_latency, row.quality[metric]["value"]),
      xytext=place,
      textcoords="offset points",
      fontsize=7,
      color=FAMILIES[family(row.settings.method)].colour,
      arrowprops=line if is_far else None,
    )


def _overlap(a, b) -> bool:
  """Whether two boxes (left, low, right, high) share area."""
  return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def save(figure, path: str | os.PathLike):
  """Writes `path`.png and `path`.svg, each whole or not at all."""
  from matplotlib import pyplot as plt

  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  for kind in ("png", "svg"):
    data = io.BytesIO()
    # No date: the same rows give the same file.
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(data, format=kind, dpi=150, metadata=metadata)
    whole = path.with_name(f"{path.name}.{kind}")
    part = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    part.write_bytes(data.getvalue())
    os.replace(part, whole)
  plt.close(figure)
