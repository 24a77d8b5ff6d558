"""What happens to a draft at one position of four tokens, in numbers.

The numbers come from the functions that a decode calls. The page of methods
prints them, and `python -m speccascade.report.worked_example` draws them.
"""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.rules import defers
from speccascade.decoding.programs.methods import METHODS

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
  q, p = jnp.asarray(DRAFTER), jnp.asarray(VERIFIER)
  pi, left, right = target(q, p, alpha=0.0 if alpha is None else alpha)
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
  outcomes = [
    DraftOutcome(token, **{x: y[place].item() for x, y in columns.items()})
    for place, token in enumerate(TOKENS)
  ]
  return WorkedDraft(method, alpha, outcomes)


def examples() -> list[WorkedDraft]:
  """Returns the position by lossless speculation, and by a cascade."""
  return [work_out(LOSSLESS), work_out(CASCADE, ALPHA)]


def markdown() -> str:
  """Returns the worked draft of the page of methods."""
  lossless, cascade = examples()
  head = (
    "| token | q | p | the rule | pi | a draft of it is accepted | accepted:"
    " min(q, pi) | residual: max(0, pi - q) |"
  )
  lines = [head, "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
  for outcome in cascade.outcomes:
    numbers = (outcome.pi, outcome.chance, outcome.accepted, outcome.residual)
    cells = [outcome.token, decimal(outcome.q), decimal(outcome.p)]
    cells += [_decision(outcome), *map(decimal, numbers)]
    lines.append(f"| {' | '.join(cells)} |")
  dropped = sum(outcome.q for outcome in cascade.outcomes if outcome.deferred)
  fates = [
    f"- A draft *{outcome.token}* {_fate(outcome, dropped)}"
    for outcome in cascade.outcomes
  ]
  return "\n\n".join(
    [
      f"![Four tokens: what is drafted, and what is emitted]({FIGURE})",
      f"In numbers, by `{cascade.name}`:",
      "\n".join(lines),
      "\n".join(fates),
      _kept(cascade),
      f"{_replacement(cascade)} In all `{cascade.name}` accepts"
      f" {decimal(cascade.accepted)} of the drafts here, and"
      f" `{lossless.name}`, whose target is p, accepts"
      f" {decimal(lossless.accepted)}.",
    ]
  )


def decimal(number: float) -> str:
  """Returns a probability with two decimals, as page and figure have it."""
  return f"{number:.2f}"


def _decision(outcome: DraftOutcome) -> str:
  """Returns what the rule decides about a token, with its two sides."""
  if outcome.left is None or outcome.right is None:
    return "-"
  sign, verdict = ("<", "defers") if outcome.deferred else (">=", "keeps it")
  return f"{outcome.left:.3g} {sign} {outcome.right:.3g}: {verdict}"


def _fate(outcome: DraftOutcome, dropped: float) -> str:
  """Returns what happens to a draft of a token, where `dropped` is eta."""
  if not outcome.deferred:
    return (
      "is always accepted: the rule keeps the token, and pi ="
      f" {decimal(outcome.pi)} is no less than q = {decimal(outcome.q)}."
    )
  share = f"{decimal(outcome.pi)} / {decimal(outcome.q)}"
  return (
    f"is accepted with probability pi / q = {share} ="
    f" {decimal(outcome.chance)}: the rule defers, and of the mass eta ="
    f" {decimal(dropped)} that the rule took from q the token gets eta p ="
    f" {decimal(dropped)} x {decimal(outcome.p)} back."
  )


def _kept(worked: WorkedDraft) -> str:
  """Returns what a draft is called that is accepted where the rule defers."""
  names = [f"*{x.token}*" for x in worked.outcomes if x.deferred]
  return (
    f"So an accepted draft {' or '.join(names)} is a draft that was kept"
    " although the rule deferred. The page of who wrote each token marks such"
    " drafts ([reports.md](reports.md#who-wrote-each-token))."
  )


def _replacement(worked: WorkedDraft) -> str:
  """Returns what is drawn in place of a rejected draft, in words."""
  drawn = ", ".join(
    f"*{outcome.token}* with {decimal(outcome.replaces)}"
    for outcome in worked.outcomes
    if outcome.replaces > 0
  )
  return (
    f"A draft is rejected with probability {decimal(1 - worked.accepted)}, and"
    f" the token in its place is drawn from norm(max(0, pi - q)): {drawn}."
  )
