"""The distribution of nested proposals, by exact enumeration of the compiled
drafters.

Toys over two tokens: a rejected draft leaves one other token, so that every
threshold is a simple fraction; see `exact`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  AutoregressiveDrafter,
  HorizontalDrafter,
  MaxGramDrafter,
  Sampling,
  VerticalDrafter,
)
from speccascade.decoding.laws import lossy_targets, targets
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.decoding.verification import steps
from speccascade.decoding.verification.review import draft, score, verify
from speccascade.decoding.verification.review_records import BlockSettings
from tests import toy
from tests.decoding.drafting import exact, models

DRAFT, ACCEPT, DRAW = range(3)  # tags of a round


def symmetric(same, other) -> np.ndarray:
  """Returns the distributions of a chain that stays with weight `same`."""
  return np.array([[same, other], [other, same]]) / (same + other)


SMALL, MEDIUM_LAW, LARGE_LAW = symmetric(1, 1), symmetric(3, 1), symmetric(3, 5)
# MEDIUM accepts the less likely of SMALL's drafts half the time, without
# lenience; with lenience 3 the realised distribution over SHARP is MEDIUM's,
# with 2 over STEEP. LARGE accepts the likelier of MEDIUM's tokens half the
# time.
MEDIUM, SHARP, STEEP, LARGE = (
  toy.markov(x)
  for x in (MEDIUM_LAW, symmetric(11, 1), symmetric(7, 1), LARGE_LAW)
)
SAMPLING = Sampling.create(1.0)


def copier(width, table=(1, 1)):
  """Copies; a table of its own for what is new: 0 -> 1, 1 -> 1."""
  return MaxGramDrafter.create(table, width=width, vocab_size=2)


def small(width=1):
  return AutoregressiveDrafter(toy.markov(SMALL), width)


def reviewed(drafter, reviewer, width, lenience=1, **options):
  return VerticalDrafter(
    drafter,
    reviewer,
    jnp.float32(1 - 1 / lenience),
    width,
    target=targets.lossless if lenience == 1 else lossy_targets.lossy,
    **options,
  )


def rounds(cells, num):
  """Returns the paths of `num` rounds."""
  return exact.nested(cells, [(i,) for i in range(num)])


# One round of a pair that drafts one token: its draft, whether it is accepted,
# the token after it.
NEURAL = {(DRAFT,): [2], (ACCEPT,): [2], (DRAW,): [4]}
COPIED = {(ACCEPT,): [4], (DRAW,): [4]}
# Two drafters in a row: the first at path 0. The copied token meets 7/8 or 1/8.
ROW = {(DRAFT, 0): [2], (ACCEPT,): [2, 8], (DRAW,): [8]}
# A pair drafts one token of a round of the pair above.
THREE = exact.nested(rounds(NEURAL, 1), [(DRAFT,)])
THREE |= {(ACCEPT,): [2], (DRAW,): [8]}

CASES = {
  "lossless": (reviewed(small(), MEDIUM, 2), rounds(NEURAL, 2)),
  "lenient": (reviewed(small(), SHARP, 2, 3), rounds(NEURAL, 2)),
  "copied": (reviewed(copier(1), MEDIUM, 2), rounds(COPIED, 2)),
  # Blocks of two verified as a whole; the first threshold is 0 or 1.
  "blocks": (
    reviewed(small(2), MEDIUM, 2, verify=steps.block_verify),
    rounds({(DRAFT,): [2, 2], (ACCEPT,): [1, 4], (DRAW,): [4]}, 2),
  ),
  # A copy is reviewed without lenience.
  "copied, lenient": (reviewed(copier(1), MEDIUM, 3, 3), rounds(COPIED, 3)),
  "lenient, the reviewer's bonus": (
    reviewed(small(), STEEP, 3, 2, bonus="verifier"),
    rounds({(DRAFT,): [2], (ACCEPT,): [2], (DRAW,): [8]}, 3),
  ),
  # Which drafter wrote a token depends on what was rejected before, and with
  # lenience so does the distribution that it is drawn from.
  "in a row, lenient": (
    reviewed(HorizontalDrafter((small(), copier(1))), STEEP, 2, 2),
    rounds(ROW, 2),
  ),
  "reviewed, then copied": (
    HorizontalDrafter((reviewed(small(), MEDIUM, 1), copier(1))),
    exact.nested(rounds(NEURAL, 1), [(0,)]),
  ),
  "three models": (
    reviewed(reviewed(small(), MEDIUM, 1), LARGE, 2),
    rounds(THREE, 2),
  ),
  "three models, lenient below": (
    reviewed(reviewed(small(), SHARP, 1, 3), LARGE, 2),
    rounds(THREE, 2),
  ),
}


WITH_BONUS = ("lossless", "lenient", "blocks", "copied, lenient")


@pytest.mark.parametrize(
  ("name", "needs_bonus_law"),
  toy.nightly(
    [(name, False) for name in CASES] + [(name, True) for name in WITH_BONUS],
    quick=[
      ("lenient", False),
      ("lenient, the reviewer's bonus", False),
      ("in a row, lenient", False),
      ("three models, lenient below", False),
      ("blocks", True),
      ("copied, lenient", True),
    ],
  ),
)
def test_stated_laws(name, needs_bonus_law, monkeypatch):
  drafter, cells = CASES[name]
  if needs_bonus_law:
    # One token more is needed, and may take one more round.
    cells = rounds(exact.below(cells, 0), drafter.width + 1)
  digits = exact.Digits(cells)
  keys = digits.choose(monkeypatch)
  inputs = jnp.ones((digits.num_rows, 2), jnp.int32)

  @jax.jit
  def propose(drafter, inputs, keys):
    # Not the compiled one, which has another randomness.
    return models.propose.__wrapped__(
      drafter, inputs, SAMPLING, keys=keys, needs_bonus_law=needs_bonus_law
    )

  proposal = propose(drafter, inputs, keys)
  assert not proposal.bad.any()
  assert np.all(np.asarray(proposal.count) == drafter.width)
  # At temperature 1 the confidence is the distribution that is drawn from.
  stated = slice(drafter.width + needs_bonus_law)
  q1, q = (x[:, stated] for x in (proposal.q1, proposal.q))
  np.testing.assert_allclose(q1, q, atol=1e-6)
  groups = exact.assert_drawn_from(proposal.tokens, proposal.q)
  assert groups > (1 if "copied" in name else 2)
  if needs_bonus_law:
    # Every time the realised distribution is MEDIUM's.
    law = MEDIUM_LAW[np.asarray(proposal.tokens)[:, -1]]
    np.testing.assert_allclose(proposal.q[:, -1], law, atol=1e-5)


def one_round(drafter, keys, target, alpha=0.0, written=(0,)):
  """Returns the `Review` by LARGE of a block after what is written."""
  rows = keys.shape[0]

  @jax.jit
  def run(drafter, verifier, keys):
    inputs = jnp.zeros((rows, 2), jnp.int32)
    tokens = jnp.tile(jnp.pad(jnp.array(written), (0, 9)), (rows, 1))
    length = jnp.full(rows, len(written))
    prefix = Prefix(tokens, length, length > 0)
    settings = BlockSettings(sampling=SAMPLING, target=target, alpha=alpha)
    state = drafter.prefill(inputs, capacity=10)
    _, proposal = draft(drafter, state, prefix, keys, settings)
    state = verifier.prefill(inputs, capacity=10)
    _, out = score(verifier, state, prefix, proposal)
    return verify(proposal, out.logits, keys, settings)

  return run(drafter, LARGE, keys)


@pytest.mark.parametrize(
  "name", ["lossless", "lenient", "in a row, lenient", "reviewed, then copied"]
)
def test_outer_review_gives_the_verifiers_law(name, monkeypatch):
  drafter, inner = CASES[name]
  if name == "in a row, lenient":
    # A token that the first drafter cannot draw is accepted with 3/8 or 5/8.
    drafter = drafter.replace(width=1)
    inner = rounds(ROW, 1)
  accept = [8] * drafter.width
  cells = exact.nested(inner, [(DRAFT,)]) | {(ACCEPT,): accept, (DRAW,): [8]}
  digits = exact.Digits(cells)
  keys = digits.choose(monkeypatch)
  block = one_round(drafter, keys, targets.lossless)
  new, accepted = np.asarray(block.new), np.asarray(block.verdict.num_accepted)
  assert set(accepted) == set(range(drafter.width + 1))
  for i in range(drafter.width + 1):
    # Of the rows whose block reaches token i.
    reached = new[accepted >= i]
    first, law = exact.shares(reached[:, :i], reached[:, i], 2)
    context = reached[first, i - 1] if i else [0]
    np.testing.assert_allclose(law, LARGE_LAW[context], atol=1e-6)


ALONE = copier(2, None)
# Drafter, what is written, what is copied before a place without a
# distribution.
BARE = {
  "empty": (ALONE, (0,), ()),
  "full": (ALONE, (0, 1, 0), (1, 0)),
  "row": (HorizontalDrafter((copier(1), copier(1, None))), (0,), (1,)),
}


@pytest.mark.parametrize("name", BARE)
def test_a_bonus_without_a_law_is_the_verifiers(name, monkeypatch):
  """LARGE writes each copy with 5/8: the target keeps 6/8 of them."""
  drafter, written, copies = BARE[name]
  digits = exact.Digits({(ACCEPT,): [8] * 2, (DRAW,): [8]})
  keys = digits.choose(monkeypatch)
  block = one_round(drafter, keys, lossy_targets.lossy, 1 / 6, written)
  new, accepted = np.asarray(block.new), np.asarray(block.verdict.num_accepted)
  for i, copy in enumerate(copies):
    law = np.mean(new[accepted >= i, i] == copy)
    np.testing.assert_allclose(law, 6 / 8, atol=1e-6)
  reached = new[accepted == len(copies), len(copies)]
  law = LARGE_LAW[(*written, *copies)[-1]]
  np.testing.assert_allclose(np.bincount(reached) / len(reached), law)
  known = np.asarray(block.known_q)[:, : len(copies) + 1]
  assert np.all(known.sum(1) == len(copies))
