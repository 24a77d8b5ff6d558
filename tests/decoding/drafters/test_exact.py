"""The law of nested proposals, by exact enumeration of the compiled drafters.

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
from speccascade.decoding import target as targets
from speccascade.decoding.emission import Prefix
from speccascade.decoding.execution import BlockSettings
from speccascade.decoding.review import draft, score, verify
from tests.decoding.drafters import exact

DRAFT, ACCEPT, DRAW = range(3)  # tags of a round
SMALL = exact.markov([["1/2", "1/2"], ["1/2", "1/2"]])
# Accepts the less likely of SMALL's drafts half the time, without lenience ...
MEDIUM = exact.markov([["3/4", "1/4"], ["1/4", "3/4"]])
# ... and with lenience 3, when its realised law is that of MEDIUM.
SHARP = exact.markov([["11/12", "1/12"], ["1/12", "11/12"]])
# With lenience 2 its realised law is that of MEDIUM, too.
STEEP = exact.markov([["7/8", "1/8"], ["1/8", "7/8"]])
# Accepts the likelier of MEDIUM's tokens half the time.
LARGE = exact.markov([["3/8", "5/8"], ["5/8", "3/8"]])
LARGE_LAW = np.array([[3, 5], [5, 3]]) / 8
SAMPLING = Sampling.create(1.0)


def copier(width):
  """Copies; a table of its own for what is new: 0 -> 1, 1 -> 1."""
  return MaxGramDrafter.create([1, 1], width=width, vocab_size=2)


def small(width=1):
  return AutoregressiveDrafter(SMALL, width)


def reviewed(drafter, reviewer, width, lenience=1, **how):
  return VerticalDrafter(
    drafter,
    reviewer,
    jnp.float32(1 - 1 / lenience),
    width,
    target=targets.lossless if lenience == 1 else targets.lossy,
    **how,
  )


def rounds(cells, num):
  """Returns the paths of `num` rounds."""
  return exact.nested(cells, [(i,) for i in range(num)])


# One round of a pair that drafts one token: its draft, whether it is accepted,
# the token behind it.
NEURAL = {(DRAFT,): [2], (ACCEPT,): [2], (DRAW,): [4]}
COPIED = {(ACCEPT,): [4], (DRAW,): [4]}
# Two drafters in a row: the first at path 0. The copied token meets 7/8 or 1/8.
ROW = {(DRAFT, 0): [2], (ACCEPT,): [2, 8], (DRAW,): [8]}

CASES = {
  "lossless": (reviewed(small(), MEDIUM, 2), rounds(NEURAL, 2)),
  "lenient": (reviewed(small(), SHARP, 2, 3), rounds(NEURAL, 2)),
  "copied": (reviewed(copier(1), MEDIUM, 2), rounds(COPIED, 2)),
  # A copy is reviewed without lenience.
  "copied, lenient": (reviewed(copier(1), MEDIUM, 3, 3), rounds(COPIED, 3)),
  "lenient, the reviewer's bonus": (
    reviewed(small(), STEEP, 3, 2, bonus="verifier"),
    rounds({(DRAFT,): [2], (ACCEPT,): [2], (DRAW,): [8]}, 3),
  ),
  # Which drafter wrote a token depends on what was rejected before, and with
  # lenience so does the law that it is drawn from.
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
    rounds(
      exact.nested(rounds(NEURAL, 1), [(DRAFT,)])
      | {(ACCEPT,): [2], (DRAW,): [8]},
      2,
    ),
  ),
  "three models, lenient below": (
    reviewed(reviewed(small(), SHARP, 1, 3), LARGE, 2),
    rounds(
      exact.nested(rounds(NEURAL, 1), [(DRAFT,)])
      | {(ACCEPT,): [2], (DRAW,): [8]},
      2,
    ),
  ),
}


def start(drafter, digits):
  """Returns tokens, lengths and inputs of a fresh decode, one per row."""
  rows = digits.num_rows
  tokens = jnp.zeros((rows, 10), jnp.int32)
  return tokens, jnp.ones((rows,), jnp.int32), jnp.ones((rows, 2), jnp.int32)


WITH_BONUS = ("lossless", "lenient", "copied, lenient")


@pytest.mark.parametrize(
  ("name", "bonus_law"),
  [(name, False) for name in CASES] + [(name, True) for name in WITH_BONUS],
)
def test_stated_laws_are_those_drawn_from(name, bonus_law, monkeypatch):
  drafter, cells = CASES[name]
  if bonus_law:
    # One token more is needed, and may take one more round.
    cells = rounds(exact.below(cells, 0), drafter.width + 1)
  digits = exact.Digits(cells)
  digits.patch(monkeypatch)

  @jax.jit
  def propose(drafter, keys):
    tokens, length, inputs = start(drafter, digits)
    state = drafter.prefill(inputs, capacity=10)
    _, proposal = drafter.propose(
      state,
      tokens,
      length,
      keys,
      SAMPLING,
      bonus_law=bonus_law,
      active=length > 0,
    )
    return proposal

  proposal = propose(drafter, digits.keys())
  assert not proposal.bad.any()
  assert np.all(np.asarray(proposal.count) == drafter.width)
  groups = exact.assert_drawn_from(proposal.tokens, proposal.q)
  assert groups > (1 if "copied" in name else 2)
  if bonus_law:
    # Every time the realised law is MEDIUM's.
    last = np.asarray(proposal.tokens)[:, -1]
    law = np.exp(np.asarray(MEDIUM.table[0]))[last]
    np.testing.assert_allclose(proposal.q[:, -1], law, atol=1e-5)


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
  digits.patch(monkeypatch)

  @jax.jit
  def one_round(drafter, verifier, keys):
    tokens, length, inputs = start(drafter, digits)
    prefix = Prefix(tokens, length, length > 0)
    settings = BlockSettings(sampling=SAMPLING, target=targets.lossless)
    state = drafter.prefill(inputs, capacity=10)
    _, proposal = draft(drafter, state, prefix, keys, settings)
    state = verifier.prefill(inputs, capacity=10)
    _, logits = score(verifier, state, prefix, proposal)
    return verify(proposal, logits, keys, settings)

  block = one_round(drafter, LARGE, digits.keys())
  new, accepted = np.asarray(block.new), np.asarray(block.verdict.num_accepted)
  assert set(accepted) == set(range(drafter.width + 1))
  for i in range(drafter.width + 1):
    # Of the rows whose block reaches token i.
    rows = new[accepted >= i]
    _, first, groups = np.unique(
      rows[:, :i], axis=0, return_index=True, return_inverse=True
    )
    law = exact.shares(groups.reshape(-1), rows[:, i], 2)
    context = rows[first, i - 1] if i else [0]
    np.testing.assert_allclose(law, LARGE_LAW[context], atol=1e-6)
