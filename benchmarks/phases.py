"""Tabulates and draws rows of a sweep by the phase in which a rule was lossy.

  python -m benchmarks.phases docs/results/smollm2/phases.jsonl.gz \\
    --output_file phases.png

The rows are those of configs/experiments/smollm2/phases.gin: the same methods
and alphas, lossy everywhere, until the marker only, and after it only. What is
exact is `verifier`, and `spec_decode_lossy` at alpha 0. Prints a Markdown table
for each temperature. Rows that differ only in their seed are one line.
"""

from collections.abc import Sequence
import dataclasses
import pathlib

import numpy as np

from speccascade import cli
from speccascade.decoding.programs import methods
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.decode_counts import Counts
from speccascade.runtime import files
from speccascade.study.evaluation import lengths
from speccascade.study.evaluation.lengths import RelativeLength
from speccascade.study.report import styles
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow

NOWHERE, ANSWER, REASONING, EVERYWHERE = PLACES = (
  *("nowhere", "answer", "reasoning"),
  "everywhere",
)
_LOSSLESS = "spec_decode_lossy"  # at alpha 0
# Colours of Okabe and Ito's palette, and markers.
_STYLES = ("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "X"), ("#cc79a7", "D")


@dataclasses.dataclass(frozen=True)
class Line:
  """A point, its seeds together.

  Attributes:
    rows: one for each seed.
    exact: the rows that are exact at the same temperature.
  """

  rows: Sequence[ResultRow]
  exact: Sequence[ResultRow]

  @property
  def place(self) -> str:
    """Where the point is lossy."""
    return place(self.rows[0])

  @property
  def name(self) -> str:
    """The method and its alpha; exact points have none."""
    settings = self.rows[0].settings
    if self.place == NOWHERE:
      return "exact" if self.counts.num_blocks else "the large model alone"
    return f"{settings.method} {settings.alpha:g}"

  @property
  def counts(self) -> Counts:
    """The counts of all seeds."""
    return decode_counts.total([row.counts for row in self.rows])

  @property
  def passes(self) -> float:
    """The large model's passes an answer."""
    return self.counts.verifier_calls / self.counts.num_examples

  @property
  def relative_length(self) -> RelativeLength:
    """How long answers are, relative to all exact answers, in pairs."""
    own, exact = (
      dict(enumerate(np.mean([row.lengths for row in rows], axis=0).tolist()))
      for rows in (self.rows, self.exact)
    )
    ratio = lengths.relative_length(own, exact)
    assert ratio is not None  # some answer has a token
    return ratio

  @property
  def quality(self) -> tuple[float, float, float]:
    """The first metric, with the ends of its interval."""
    scores = [next(iter(row.quality.values())) for row in self.rows]
    replicates = np.mean([score["replicates"] for score in scores], axis=0)
    low, high = np.quantile(replicates, [0.025, 0.975])
    value = np.mean([score["value"] for score in scores])
    return float(value), float(low), float(high)

  @property
  def unread(self) -> float:
    """The percentage of outputs without an answer."""
    scores = [next(iter(row.quality.values())) for row in self.rows]
    return float(np.mean([score["unread"] for score in scores]))

  @property
  def log_prob(self) -> float:
    """The mean log-probability of a token under the large model at T = 1."""
    return float(np.mean([row.log_probs["p1"] for row in self.rows]))


def place(row: ResultRow) -> str:
  """Returns where a row is lossy, one of `PLACES`."""
  settings = row.settings
  is_exact = settings.method == _LOSSLESS and not settings.alpha
  if is_exact or not methods.find(settings.method).uses_alpha:
    return NOWHERE
  if settings.phases is None:
    return EVERYWHERE
  return REASONING if settings.alpha_phase == "before" else ANSWER


def lines(rows: Sequence[ResultRow], temperature: float) -> list[Line]:
  """Returns the lines of a temperature: by method, then by where it is lossy.

  The drafter alone is left out.
  """
  by_point: dict[str, list[ResultRow]] = {}
  for row in rows:
    if row.settings.temperature == temperature and row.counts.verifier_calls:
      settings = dataclasses.replace(row.settings, seed=0)
      by_point.setdefault(settings.key, []).append(row)
  points = list(by_point.values())
  exact = [x for rows in points for x in rows if place(x) == NOWHERE]
  found = [Line(rows, exact) for rows in points]
  names = list(methods.METHODS)

  def order(line: Line) -> tuple:
    settings = line.rows[0].settings
    is_lossy = line.place != NOWHERE
    alpha = settings.alpha or 0.0
    return (
      is_lossy,
      names.index(settings.method),
      alpha,
      PLACES.index(line.place),
    )

  return sorted(found, key=order)


_COLUMNS = (
  *("method", "lossy in", "agrees, %", "no answer, %", "tokens an answer"),
  *("relative length", "tokens a pass", "passes an answer", "log p a token"),
  *("tokens after the marker", "marked, %"),
)


def table(rows: Sequence[ResultRow], temperature: float) -> str:
  """Returns the Markdown table of a temperature."""
  texts = [f"| {' | '.join(_COLUMNS)} |", "| --- | --- " + "| ---: " * 9 + "|"]
  for line in lines(rows, temperature):
    counts, rates = line.counts, decode_counts.summary(line.counts)
    ratio = line.relative_length
    phases = rates.get("tokens_by_phase")
    cells = (
      *(line.name, line.place, _interval(*line.quality, 0)),
      f"{line.unread:.0f}",
      f"{counts.num_tokens / counts.num_examples:.1f}",
      _interval(ratio["value"], ratio["low"], ratio["high"], 2),
      f"{counts.num_tokens / counts.verifier_calls:.2f}",
      *(f"{line.passes:.1f}", f"{line.log_prob:.2f}"),
      f"{phases[1]:.1f}" if phases else "",
      f"{100 * rates['marked_rate']:.0f}" if phases else "",
    )
    texts.append(f"| {' | '.join(cells)} |")
  return "\n".join(texts) + "\n"


def _interval(value: float, low: float, high: float, digits: int) -> str:
  return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def draw(rows: Sequence[ResultRow], path: pathlib.Path) -> None:
  """Draws what each method has by where it is lossy; writes a PNG or an SVG.

  A row of panels for each temperature: agreement, relative length, and passes
  an answer. Exact points are the leftmost.
  """
  temperatures = sorted({row.settings.temperature for row in rows})
  known = [line for t in temperatures for line in lines(rows, t)]
  names = sorted({line.name for line in known if line.place != NOWHERE})
  figure, axes = styles.pyplot().subplots(
    *(len(temperatures), 3),
    squeeze=False,
    figsize=(9.0, 0.6 + 2.4 * len(temperatures)),
  )
  titles = ("agrees with the exact greedy answer, %", "relative length")
  titles += ("passes an answer",)
  for axes_of, temperature in zip(axes, temperatures):
    found = lines(rows, temperature)
    exact = [line for line in found if line.name == "exact"]
    for name in (x for x in names if any(x == y.name for y in found)):
      mine = exact + [line for line in found if line.name == name]
      colour, marker = _STYLES[names.index(name) % len(_STYLES)]
      places = [PLACES.index(line.place) for line in mine]
      quality = np.array([line.quality for line in mine])
      keys = ("value", "low", "high")
      ratio = np.array([[x.relative_length[k] for k in keys] for x in mine])
      for axis, values in zip(axes_of, (quality, ratio)):
        errors = np.abs(values[:, 1:] - values[:, :1]).T
        axis.errorbar(
          *(places, values[:, 0]),
          yerr=errors,
          color=colour,
          marker=marker,
          linewidth=1.2,
          capsize=2,
        )
      axes_of[2].plot(
        places,
        [line.passes for line in mine],
        color=colour,
        marker=marker,
        label=name,
      )
    axes_of[2].legend(fontsize=7, frameon=False)
    for axis, title in zip(axes_of, titles):
      words = "greedy" if temperature == 0 else f"T = {temperature:g}"
      axis.set_title(f"{title}, {words}", fontsize=8)
      axis.set_xticks(range(len(PLACES)), PLACES, fontsize=7)
      axis.tick_params(axis="y", labelsize=7)
      axis.grid(axis="y", color="#e4e4e4", linewidth=0.6)
  figure.supxlabel("where the rule is lossy", fontsize=9)
  figure.tight_layout()
  files.write_whole(path, styles.file_bytes(figure, path.suffix[1:]))


def main() -> None:
  """Prints the tables, and writes the figure if a file is named."""
  parser = cli.Parser("phases", __doc__, "benchmarks")
  add = parser.add_argument
  add("rows", type=pathlib.Path, help="rows.jsonl of the sweep, or its .gz")
  add("--output_file", type=pathlib.Path, help=".png or .svg")
  args = parser.parse_args()
  if args.output_file and args.output_file.suffix not in (".png", ".svg"):
    parser.error(f"{args.output_file} is neither .png nor .svg: give one")
  rows = results.read_rows(args.rows)
  for temperature in sorted({row.settings.temperature for row in rows}):
    print(f"temperature {temperature:g}\n\n{table(rows, temperature)}")
  if args.output_file:
    draw(rows, args.output_file)


if __name__ == "__main__":
  main()
