"""What happens to a draft at one position of four tokens, in numbers, drawn.

  python -m speccascade.report.worked_example

Writes docs/worked_example.svg. The numbers come from the functions that a
decode calls; the page of methods prints them, too. Run the command again after
a change of them.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
import sys
from typing import NamedTuple

import jax.numpy as jnp

from speccascade import cli
from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.rules import defers
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.programs.methods import METHODS
from speccascade.runtime import files
from speccascade.study.report import styles, templates

TOKENS = ("sleeps", "sings", "reads", "waits")
# The two models after the same text, at temperature 1.
DRAFTER = (0.6, 0.2, 0.15, 0.05)
VERIFIER = (0.35, 0.45, 0.1, 0.1)
LOSSLESS, CASCADE = "spec_decode", "spec_cascade_token_v3"
ALPHA = 0.3
FIGURE = "worked_example.svg"
# Okabe and Ito's blue and vermilion, which the colour-blind can tell apart.
ACCEPTED, RESIDUAL, GREY = "#0072b2", "#d55e00", "#5a5e66"
_SIZE = (10.2, 5.2)  # inches
_BAR, _SHIFT = 0.39, 0.205  # width of a bar, and its distance from the token
_FONT = 8.5  # points
_TOP = 0.76  # of the axis, in probability
_LEAST = 0.05  # probability of a part that is high enough for its number
_ROW = 0.076  # from a row of numbers to the next, in heights of the axis


class DraftOutcome(NamedTuple):
  """What happens to a draft of one token.

  Attributes:
    token: the token.
    q: the drafter's probability of the token: how often it is drafted.
    p: the verifier's probability of the token.
    pi: the target's probability of the token: how often it is emitted.
    chance: min(1, pi / q), the probability that a draft of it is accepted.
    accepted: min(q, pi), how often it is drafted and accepted.
    rejected: max(0, q - pi), how often it is drafted and rejected.
    residual: max(0, pi - q), how often it replaces a rejected draft.
    replaces: norm(max(0, pi - q)), the probability that it is the token drawn
      in place of a rejected draft.
    left: the left side of the rule for the token; None without a rule.
    right: the right side of the rule for the token; None without a rule.
    deferred: whether the rule defers, left < right; False without a rule.
  """

  token: str
  q: float
  p: float
  pi: float
  chance: float
  accepted: float
  rejected: float
  residual: float
  replaces: float
  left: float | None = None
  right: float | None = None
  deferred: bool = False


@dataclasses.dataclass(frozen=True)
class WorkedDraft:
  """One position, by one method.

  Attributes:
    method: the name of the method.
    alpha: the method's alpha; None where it takes none.
    outcomes: what happens to a draft of each token.
  """

  method: str
  alpha: float | None
  outcomes: Sequence[DraftOutcome]

  @property
  def name(self) -> str:
    """The method as one types it, with its alpha."""
    return (
      self.method if self.alpha is None else f"{self.method} {self.alpha:g}"
    )

  @property
  def target(self) -> str:
    """The letter of the target: "p" for a lossless method, else "pi"."""
    return "p" if self.method == LOSSLESS else "pi"

  @property
  def accepted(self) -> float:
    """The probability that a draft is accepted, sum min(q, pi)."""
    return sum(outcome.accepted for outcome in self.outcomes)


def work_out(method: str, alpha: float | None = None) -> WorkedDraft:
  """Returns what a speculative method does with a draft of each token.

  Args:
    method: the name of a method that has a target.
    alpha: the method's alpha; None for a method that takes none.

  >>> round(work_out("spec_decode").accepted, 3)
  0.7
  """
  target = METHODS[method].target
  if target is None:
    raise ValueError(
      f"{method} has no target; wanted a method whose output has one, such as"
      f" {CASCADE}"
    )
  several = outcomes(target, alpha or 0.0, DRAFTER, VERIFIER, TOKENS)
  return WorkedDraft(method, alpha, several)


def outcomes(
  target: Target,
  alpha: float,
  drafter: Sequence[float],
  verifier: Sequence[float],
  tokens: Sequence[str],
) -> list[DraftOutcome]:
  """Returns what a target does with a draft of each token of a position.

  Args:
    target: what the output is sampled from.
    alpha: its alpha; of no effect on a target that takes none.
    drafter: q of each token, at temperature 1.
    verifier: p of each token.
    tokens: the tokens.
  """
  q, p = jnp.asarray(drafter), jnp.asarray(verifier)
  pi, left, right = target(q, p, alpha=alpha)
  columns = {
    "q": q,
    "p": p,
    "pi": pi,
    "chance": jnp.minimum(1, numerics.ratio(pi, q)),
    "accepted": jnp.minimum(q, pi),
    "rejected": jnp.maximum(0, q - pi),
    "residual": jnp.maximum(0, pi - q),
    "replaces": numerics.residual(pi, q),
  }
  if left is not None and right is not None:
    # A position rule has one pair of sides for all tokens.
    sides = {"left": left, "right": right, "deferred": defers(left, right)}
    columns |= {x: jnp.broadcast_to(y, q.shape) for x, y in sides.items()}
  return [
    DraftOutcome(token, **{x: y[place].item() for x, y in columns.items()})
    for place, token in enumerate(tokens)
  ]


def examples() -> list[WorkedDraft]:
  """Returns the position by lossless speculation, and by a cascade."""
  return [work_out(LOSSLESS), work_out(CASCADE, ALPHA)]


def markdown() -> str:
  """Returns the worked draft of the page of methods."""
  lossless, cascade = examples()
  return templates.load("study/report/worked_example.md").render(
    lossless=lossless,
    cascade=cascade,
    figure=FIGURE,
    decimal=decimal,
    rows=map(_cells, cascade.outcomes),
  )


def _cells(outcome: DraftOutcome) -> list[str]:
  """Returns the row of a token in the table of the page."""
  decision = "-"
  if outcome.left is not None:
    sides = f"{outcome.left:.3g}", f"{outcome.right:.3g}"
    decision = "{} < {}: defers" if outcome.deferred else "{} >= {}: keeps it"
    decision = decision.format(*sides)
  numbers = (outcome.pi, outcome.chance, outcome.accepted, outcome.residual)
  return [
    outcome.token,
    decimal(outcome.q),
    decimal(outcome.p),
    decision,
    *map(decimal, numbers),
  ]


def decimal(number: float) -> str:
  """Returns a probability with two decimals, as page and figure have it."""
  return f"{number:.2f}"


def main(argv: list[str] | None = None) -> int:
  """Writes the figure; returns the exit code."""
  parser = cli.Parser("report.worked_example", __doc__)
  parser.add_argument(
    "--output_file",
    type=cli.path,
    default=pathlib.Path("docs") / FIGURE,
    help="where the figure goes (%(default)s)",
  )
  return parser.run(write, argv)


def write(output_file: pathlib.Path):
  """Writes the figure as an SVG, whole or not at all, and prints its path."""
  files.write_whole(output_file, svg())
  print(f"figure: {output_file}")


def svg() -> str:
  """Returns the figure as an SVG whose letters are text."""
  plt = styles.pyplot()
  with plt.rc_context({"svg.fonttype": "none"}):
    figure = draw(examples())
    content = styles.file_bytes(figure, "svg").decode()
  plt.close(figure)
  # matplotlib ends some lines with blanks, which editors would take away.
  lines = content.splitlines()
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
