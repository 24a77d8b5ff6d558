"""Draws what `benchmarks.drafters` measured: one panel for each kind of text.

  python -m benchmarks.drafters_figure rows.jsonl --output_file drafters.png

A line of a panel is a drafter with the block that was fastest for it, over all
texts of its temperature: how many times as fast as the verifier alone it is,
with its 95% interval. A disc is T = 1, a ring greedy decoding.
"""

from collections.abc import Mapping, Sequence
import json
import pathlib
from typing import Any

import numpy as np

from speccascade import cli
from speccascade.runtime import files
from speccascade.study.report import styles

_COLOURS = {0.0: "#0072b2", 1.0: "#d55e00"}  # by temperature
_ROW = 0.23  # inches


def fastest(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
  """Returns the lines of each drafter's best block, by (drafter, temperature).

  The best block has the highest geometric mean of the speed-ups over texts.

  Args:
    lines: as `benchmarks.drafters` writes them.
  """
  by_block: dict[tuple, list[Mapping[str, Any]]] = {}
  for line in lines:
    block = str(line["tree"] or line["gamma"])
    key = line["drafter"], line["temperature"], block
    by_block.setdefault(key, []).append(line)
  best: dict[tuple, tuple[float, list[Mapping[str, Any]]]] = {}
  for (drafter, temperature, _), group in by_block.items():
    mean = float(np.mean(np.log([line["speedup"][0] for line in group])))
    if mean > best.get((drafter, temperature), (-np.inf, []))[0]:
      best[drafter, temperature] = mean, group
  return [line for _, group in best.values() for line in group]


def draw(lines: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
  """Draws the lines of best blocks, and writes a PNG or an SVG.

  Args:
    lines: as `fastest` returns them.
    path: of the figure.
  """
  texts = list(dict.fromkeys(line["texts"] for line in lines))
  drafters = list(dict.fromkeys(line["drafter"] for line in lines))
  temperatures = sorted({line["temperature"] for line in lines})
  height = 1.0 + _ROW * len(drafters) * len(temperatures)
  figure, axes = styles.pyplot().subplots(
    1, len(texts), sharey=True, sharex=True, figsize=(9.0, height)
  )
  for axis, name in zip(np.atleast_1d(axes), texts):
    axis.axvline(1, color="#888888", linewidth=0.8)
    for line in lines:
      if line["texts"] != name:
        continue
      shift = temperatures.index(line["temperature"]) / len(temperatures)
      place = drafters.index(line["drafter"]) + 0.6 * shift
      value, low, high = line["speedup"]
      colour = _COLOURS.get(line["temperature"], "#000000")
      axis.plot([low, high], [place, place], color=colour, linewidth=1.2)
      face = "white" if line["temperature"] == 0 else colour
      axis.plot(
        value, place, "o", color=colour, markerfacecolor=face, markersize=5
      )
    axis.set_title(name, fontsize=9)
    axis.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    axis.tick_params(labelsize=8)
    for side in ("top", "right", "left"):
      axis.spines[side].set_visible(False)
  first = np.atleast_1d(axes)[0]
  first.set_yticks(np.arange(len(drafters)) + 0.15, drafters)
  first.invert_yaxis()
  words = {0.0: "greedy", 1.0: "T = 1"}
  for temperature in temperatures:
    colour = _COLOURS.get(temperature, "#000000")
    face = "white" if temperature == 0 else colour
    label = words.get(temperature, f"T = {temperature:g}")
    first.plot(
      [], [], "o", color=colour, markerfacecolor=face, label=label, markersize=5
    )
  figure.supxlabel("times as fast as the verifier alone, 95%", fontsize=9)
  figure.legend(
    loc="upper left", ncols=len(temperatures), frameon=False, fontsize=8
  )
  figure.tight_layout()
  files.write_whole(path, styles.file_bytes(figure, path.suffix[1:]))


def main():
  parser = cli.Parser("drafters_figure", __doc__, "benchmarks")
  add = parser.add_argument
  add("rows", type=pathlib.Path, nargs="+", help="files of --rows")
  add("--output_file", type=pathlib.Path, required=True, help=".png or .svg")
  add("--drafters", nargs="*", help="those to draw, in order (all)")
  args = parser.parse_args()
  if args.output_file.suffix not in (".png", ".svg"):
    parser.error(f"{args.output_file} is neither .png nor .svg: give one")
  lines = [
    json.loads(line)
    for path in args.rows
    for line in path.read_text(encoding="utf-8").splitlines()
    if line.strip()
  ]
  chosen = fastest(lines)
  if args.drafters:
    names = args.drafters
    if missing := set(names) - {line["drafter"] for line in chosen}:
      parser.error(f"the rows have no {', '.join(sorted(missing))}")
    chosen = [line for line in chosen if line["drafter"] in names]
    chosen.sort(key=lambda line: names.index(line["drafter"]))
  draw(chosen, args.output_file)
  print(f"{args.output_file} has {len(chosen)} points")


if __name__ == "__main__":
  main()
