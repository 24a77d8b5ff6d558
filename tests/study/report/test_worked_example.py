"""The worked example has the numbers of Eq. 11; its figure has them, too."""

import pathlib
import xml.etree.ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.verification.steps import token_verify
from speccascade.study.report import methods_page, worked_example

ROOT = pathlib.Path(__file__).parents[3]
Q, P = np.array(worked_example.DRAFTER), np.array(worked_example.VERIFIER)
COMMITTED = ROOT / "docs" / worked_example.FIGURE


def texts(svg: str) -> list[str]:
  """Returns what an SVG says, text by text."""
  root = xml.etree.ElementTree.fromstring(svg)
  found = root.iter("{http://www.w3.org/2000/svg}text")
  return ["".join(each.itertext()).strip() for each in found]


def test_the_committed_figure_says_what_the_page_says():
  said = " ".join(texts(COMMITTED.read_text("utf-8")))
  page = methods_page.page()
  for worked, letter in zip(worked_example.examples(), ("p", "pi")):
    share = worked_example.decimal(worked.accepted)
    assert f"{worked.name} accepts {share}" in said
    assert share in page
    for outcome in worked.outcomes:
      assert f"{letter} {worked_example.decimal(outcome.pi)}" in said
      assert outcome.token in said
  for outcome in worked.outcomes:  # of the cascade
    numbers = map(worked_example.decimal, (outcome.q, outcome.p))
    assert f"| {outcome.token} | {' | '.join(numbers)} |" in page


def column(worked, name) -> np.ndarray:
  return np.array([getattr(outcome, name) for outcome in worked.outcomes])


def test_the_cascade_in_float64():
  """Token V3: p >= .7 max p keeps the first two; eta = .2 goes to p."""
  kept = (1 - worked_example.ALPHA) * P.max() <= P
  pi = np.where(kept, Q, 0) + Q[~kept].sum() * P
  _, cascade = worked_example.examples()
  assert (column(cascade, "deferred") == ~kept).all()
  for name, values in (
    ("pi", pi),
    ("accepted", np.minimum(Q, pi)),
    ("residual", np.maximum(0, pi - Q)),
    ("chance", np.minimum(1, pi / Q)),
    ("replaces", np.maximum(0, pi - Q) / np.maximum(0, pi - Q).sum()),
  ):
    np.testing.assert_allclose(column(cascade, name), values, atol=1e-6)
  assert cascade.accepted == pytest.approx(0.84)
  # Every case is shown: tokens kept, and tokens that the rule defers for and
  # that may be accepted all the same.
  assert {(x.deferred, x.chance < 1) for x in cascade.outcomes} == {
    (False, False),
    (True, True),
  }


def test_lossless_speculation_has_no_rule():
  lossless, _ = worked_example.examples()
  np.testing.assert_allclose(column(lossless, "pi"), P, atol=1e-6)
  assert {(x.left, x.right, x.deferred) for x in lossless.outcomes} == {
    (None, None, False)
  }
  assert lossless.name == "spec_decode"


@pytest.mark.parametrize("place", range(2))
def test_the_verifier_step_accepts_with_that_chance(place):
  """A uniform just below the chance accepts, and one just above rejects."""
  worked = worked_example.examples()[place]
  num = len(worked.outcomes)
  drafts = jnp.arange(num, dtype=jnp.int32)[:, None]
  q, pi = (
    jnp.broadcast_to(jnp.asarray(column(worked, x), jnp.float32), (num, 2, num))
    for x in ("q", "pi")
  )
  chance = column(worked, "chance")
  for step, wanted in ((-1e-4, 1), (1e-4, 0)):
    inside = (chance + step < 1) & (chance > 0)
    u = jnp.asarray(np.clip(chance + step, 0, 1 - 1e-6), jnp.float32)[:, None]
    verdict = token_verify(
      drafts,
      jnp.ones(num, jnp.int32),
      q,
      pi,
      u,
      jnp.full(num, 0.5, jnp.float32),
    )
    accepted = np.asarray(verdict.num_accepted)
    assert (accepted[inside] == wanted).all()
    assert (accepted[~inside] == 1).all()  # nothing rejects what is certain


def test_a_method_without_a_target_is_refused():
  with pytest.raises(ValueError, match="bild has no target"):
    worked_example.work_out("bild", 0.5)


def test_a_position_rule_decides_for_all_tokens():
  worked = worked_example.work_out("spec_cascade_chow", 0.3)
  assert {x.deferred for x in worked.outcomes} == {True}  # max q = .6 < .7
  assert worked.name == "spec_cascade_chow 0.3"
