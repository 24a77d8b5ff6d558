"""What happens to a draft at one position of four tokens, in numbers.

The page of methods prints the numbers, which come from the functions that a
decode calls. docs/worked_example.svg shows them as a drawing.
"""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.rules import defers
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.programs.methods import METHODS
from speccascade.study.report import templates

TOKENS = ("sleeps", "sings", "reads", "waits")
# The two models after the same text, at temperature 1.
DRAFTER = (0.6, 0.2, 0.15, 0.05)
VERIFIER = (0.35, 0.45, 0.1, 0.1)
LOSSLESS, CASCADE = "spec_decode", "spec_cascade_token_v3"
ALPHA = 0.3
FIGURE = "worked_example.svg"


class DraftOutcome(NamedTuple):
  """What happens to a draft of one token.

  Attributes:
    token: the token.
    q: the drafter's probability of the token: how often it is drafted.
    p: the verifier's probability of the token.
    pi: the target's probability of the token: how often it is emitted.
    chance: min(1, pi / q), the probability that a draft of it is accepted.
    accepted: min(q, pi), how often it is drafted and accepted.
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
