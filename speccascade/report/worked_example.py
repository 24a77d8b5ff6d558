"""Draws what happens to a draft of each of four tokens.

  python -m speccascade.report.worked_example

Writes docs/worked_example.svg. The numbers are those of
`report.worked_draft`, which the page of methods prints too. Run the
command again after a change of them.
"""

from collections.abc import Sequence
import io
import pathlib
import sys

from speccascade import cli
from speccascade.report import styles, worked_draft
from speccascade.report.worked_draft import (
  DraftOutcome,
  WorkedDraft,
  decimal,
)
from speccascade.runtime import files

# Okabe and Ito's blue and vermilion, which the colour-blind can tell apart.
ACCEPTED, RESIDUAL, GREY = "#0072b2", "#d55e00", "#5a5e66"
_SIZE = (10.2, 5.2)  # inches
_BAR, _SHIFT = 0.39, 0.205  # width of a bar, and its distance from the token
_FONT = 8.5  # points
_TOP = 0.76  # of the axis, in probability
_LEAST = 0.05  # probability of a part that is high enough for its number
_ROW = 0.076  # from a row of numbers to the next, in heights of the axis


def main(argv: list[str] | None = None) -> int:
  """Writes the figure; returns the exit code."""
  parser = cli.Parser("report.worked_example", __doc__)
  parser.add_argument(
    "--output_file",
    type=cli.path,
    default=pathlib.Path("docs") / worked_draft.FIGURE,
    help="where the figure goes (%(default)s)",
  )
  return parser.run(write, argv)


def write(output_file: pathlib.Path):
  """Writes the figure as an SVG, whole or not at all, and prints its path."""
  files.write_whole(output_file, svg())
  print(f"figure: {output_file}")


def svg() -> str:
  """Returns the figure as an SVG whose letters are text."""
  plt, file = styles.pyplot(), io.StringIO()
  with plt.rc_context({"svg.fonttype": "none"}):
    figure = draw(worked_draft.examples())
    # Without a date, equal numbers give equal files.
    figure.savefig(file, format="svg", metadata={"Date": None})
  plt.close(figure)
  # matplotlib ends some lines with blanks, which editors would take away.
  lines = file.getvalue().splitlines()
  return "\n".join(line.rstrip() for line in lines) + "\n"


def draw(examples: Sequence[WorkedDraft]):
  """Returns matplotlib's Figure with a panel for each method.

  Args:
    examples: the same position by several methods.
  """
  figure, axes = styles.pyplot().subplots(
    1, len(examples), figsize=_SIZE, sharey=True
  )
  figure.subplots_adjust(
    left=0.135, right=0.995, top=0.865, bottom=0.345, wspace=0.04
  )
  shares = [f"{x.name} accepts {decimal(x.accepted)}" for x in examples]
  figure.suptitle(
    f"Of the same drafts {' and '.join(shares)}", fontsize=12, y=0.97
  )
  for place, (axis, worked) in enumerate(zip(axes, examples)):
    _draw_panel(axis, worked, has_titles=place == 0)
  return figure


def _draw_panel(axis, worked: WorkedDraft, has_titles: bool):
  """Draws one method: for each token q on the left, the target on the right."""
  axis.set_title(f"{worked.name}: {_emits(worked)}", fontsize=9.5)
  for number, outcome in enumerate(worked.outcomes):
    _draw_bars(axis, number, outcome, worked.target)
    for row, (_, cell, colour) in enumerate(_rows(outcome)):
      _write(axis, number, row, cell, color=colour, ha="center")
  if has_titles:
    for row, (title, _, colour) in enumerate(_rows(worked.outcomes[0])):
      _write(axis, -0.55, row, title, color=colour, ha="right")
    axis.set_ylabel("probability", fontsize=_FONT)
  middle = (len(worked.outcomes) - 1) / 2
  last = len(_rows(worked.outcomes[0]))
  _write(axis, middle, last + 0.3, _replacement(worked), ha="center")
  axis.set_xlim(-0.5, len(worked.outcomes) - 0.5)
  axis.set_ylim(0, _TOP)
  axis.set_xticks([])
  axis.tick_params(labelsize=_FONT)
  axis.grid(axis="y", alpha=0.2, linewidth=0.6)
  axis.set_axisbelow(True)


def _emits(worked: WorkedDraft) -> str:
  """Returns what the output of a method is, in words."""
  if worked.target == "p":
    return "the output has the large model's p"
  return "the output has pi, made of q and p"


def _draw_bars(axis, number: int, outcome: DraftOutcome, target: str):
  """Draws the two bars of a token, with their numbers."""
  left, right = number - _SHIFT, number + _SHIFT
  base = {"width": _BAR, "bottom": outcome.accepted}
  dashed = {"edgecolor": ACCEPTED, "linestyle": (0, (3, 2)), "linewidth": 0.9}
  axis.bar([left, right], outcome.accepted, width=_BAR, color=ACCEPTED)
  axis.bar(left, outcome.rejected, facecolor="white", **base, **dashed)
  axis.bar(right, outcome.residual, color=RESIDUAL, **base)
  middle = {"ha": "center", "va": "center", "fontsize": _FONT}
  for place, low, height, colour in (
    (left, 0, outcome.accepted, "white"),
    (right, 0, outcome.accepted, "white"),
    (left, outcome.accepted, outcome.rejected, ACCEPTED),
    (right, outcome.accepted, outcome.residual, "white"),
  ):
    if height >= _LEAST:
      axis.text(
        place, low + height / 2, decimal(height), color=colour, **middle
      )
  tops = ((left, "q", outcome.q), (right, target, outcome.pi))
  for place, name, height in tops:
    text = f"{name} {decimal(height)}"
    axis.text(place, height + 0.024, text, **middle)


def _rows(outcome: DraftOutcome) -> list[tuple[str, str, str]]:
  """Returns (title, cell, colour) of each row below the axis, for a token."""
  rule = "-"
  if outcome.left is not None:
    rule = "defers" if outcome.deferred else "keeps it"
  fate = "always"
  if outcome.chance < 1:
    fate = f"with {decimal(outcome.chance)}"
  return [
    ("token", outcome.token, "black"),
    ("large model's p", decimal(outcome.p), "black"),
    ("drafted, accepted", decimal(outcome.accepted), ACCEPTED),
    ("drafted, rejected", decimal(outcome.rejected), GREY),
    ("drawn in its place", decimal(outcome.residual), RESIDUAL),
    ("the rule", rule, "black"),
    ("a draft is accepted", fate, "black"),
  ]


def _replacement(worked: WorkedDraft) -> str:
  """Returns what is drawn in place of a rejected draft, in words."""
  drawn = [
    f"{outcome.token} {decimal(outcome.replaces)}"
    for outcome in worked.outcomes
    if outcome.replaces > 0
  ]
  return (
    f"in place of a rejected draft ({decimal(1 - worked.accepted)}) is drawn:"
    f" {', '.join(drawn)}"
  )


def _write(axis, place: float, row: float, text: str, **style):
  """Writes a text below the axis."""
  axis.text(
    place,
    -_ROW * (row + 0.8),
    text,
    transform=axis.get_xaxis_transform(),
    va="center",
    fontsize=_FONT,
    **style,
  )


if __name__ == "__main__":
  sys.exit(main())
