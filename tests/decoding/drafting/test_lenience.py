"""Lenience of Cascade Speculative Drafting: what a cascade proposes, its calls.

The outer review is exact and hides every error of it, so that these tests look
at the proposals themselves, compare them with the algorithm by hand, and look
at what a cascade's confidence does to an outer rule that reads it.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import Sampling, cascade_drafter
from speccascade.decoding.verification import steps
from speccascade.models.markov_lm import MarkovLM
from tests import toy
from tests.decoding.drafting import models
from tests.decoding.drafting.test_max_gram import reference

V = 6

# Algorithm 1 by hand, greedy.


@dataclasses.dataclass
class ByHand:
  """A cascade as Chen et al.'s Algorithm 1 decides it, for one source.

  Attributes:
    laws: of each neural drafter, [V, V, V] by the last two tokens.
    table: the bigrams.
    source: the tokens that may be copied.
    lenience: l.
    calls: forward passes of each neural drafter.
  """

  laws: list
  table: np.ndarray
  source: list
  lenience: float

  def __post_init__(self):
    self.calls = [0] * len(self.laws)

  def law(self, model, text):
    return self.laws[model][text[-2] if len(text) > 1 else 0, text[-1]]

  def row(self, matrix, level, text):
    """Returns the tokens of a level, and q(x) of each (None for copies)."""
    tokens, probs = [], []
    for j in range(level, len(matrix)):
      more = self.part(matrix, j, matrix[level][j], text + tokens)
      tokens, probs = tokens + more[0], probs + more[1]
    return tokens, probs

  def part(self, matrix, j, width, text):
    """Returns what drafter j adds: `width` tokens, and q(x) of each."""
    tokens, probs = [], []
    if j == len(self.laws):
      return reference(self.source, text, width, self.table), [None] * width
    while len(tokens) < width:
      drafts, q = self.row(matrix, j + 1, text + tokens)
      if not drafts:  # it has no drafter: it writes one by itself
        drafts, q = [], []
      self.calls[j] += 1
      for x, q_x in zip([*drafts, None], [*q, None]):
        p = self.law(j, text + tokens)
        best = int(np.argmax(p))
        # Without lenience (l = 1) only the arg-max itself is kept.
        lenient = self.lenience > 1 and q_x is not None
        keeps = x == best or (lenient and q_x <= self.lenience * p[x])
        tokens.append(x if keeps else best)
        probs.append(p[tokens[-1]])
        if not keeps:
          break
    return tokens[:width], probs[:width]


MATRICES = {
  "one neural": [[4, 1], [0, 3]],
  "two neural": [[3, 2, 3], [0, 2, 2], [0, 0, 2]],
  "small and copies below medium": [[4, 0, 0], [0, 2, 2], [0, 0, 0]],
  "no copies at the top": [[3, 1, 0], [0, 1, 3], [0, 0, 2]],
}


@pytest.mark.parametrize(
  ("name", "lenience"),
  toy.nightly(
    itertools.product(MATRICES, (1.0, 3.0)),
    quick=[
      ("one neural", 1.0),
      ("two neural", 3.0),
      ("small and copies below medium", 3.0),
    ],
  ),
)
def test_greedy_proposals_are_the_algorithms(name, lenience):
  rows, matrix = 200, MATRICES[name]
  num, bottom = len(matrix) - 1, models.copier(V)
  logits = [models.tables(seed, rows, V, likeness=0.4) for seed in range(num)]
  laws = [np.asarray(jax.nn.softmax(x, axis=-1)) for x in logits]
  chains = [MarkovLM(x) for x in logits]
  drafter = cascade_drafter(chains, bottom, matrix, lenience=lenience)
  inputs = models.sources(rows)
  # Two tokens, as many as a reviewer reads beside its first block in one pass.
  prefix = np.random.default_rng(3).integers(2, V, (rows, 2)).astype(np.int32)
  prefix[:, 0] = 0
  proposal = models.propose(
    drafter,
    inputs,
    toy.GREEDY,
    tokens=jnp.asarray(np.pad(prefix, ((0, 0), (0, 10)))),
    length=jnp.full((rows,), 2, jnp.int32),
  )
  different = 0
  for i in range(1, rows):  # source 0 begins with the pad id
    source = [int(x) for x in inputs[i] if x]
    table = np.asarray(bottom.next_token)
    by_hand = ByHand([x[i] for x in laws], table, source, lenience)
    expected, _ = by_hand.row(matrix, 0, prefix[i].tolist())
    assert proposal.tokens[i].tolist() == expected
    # A model stands in several places: its passes are counted together.
    calls = [0] * num
    for model, number in zip(drafter.models, proposal.calls[i].tolist()):
      calls[[model is x for x in chains].index(True)] += number
    assert calls == by_hand.calls
    strict = dataclasses.replace(by_hand, lenience=1.0)
    different += expected != strict.row(matrix, 0, prefix[i].tolist())[0]
  if lenience > 1 and name != "one neural":  # which reviews nothing but copies
    assert different > rows // 10
  else:
    assert different == 0


# Confidence, sampled: chains over tokens 0 to 6.

BLOCKS = {"verify": steps.block_verify}
LENIENT = {
  "token by token": (2, False, [[3, 0], [0, 2]], {}),
  "as a whole": (2, False, [[3, 0], [0, 2]], BLOCKS),
  "copies": (1, True, [[3, 0], [0, 2]], {}),
  "in a row": (2, True, [[2, 1, 0], [0, 1, 2], [0, 0, 2]], {}),
}


def lenient(name):
  """Returns a cascade of chains over 7 tokens, and the verifier after it."""
  num, copies, matrix, options = LENIENT[name]
  small, verifier = toy.sources()
  other = np.random.default_rng(1).normal(0, 1.5, small.table.shape)
  medium = MarkovLM(jnp.asarray(small.table + other, jnp.float32) / 2)
  bottom = models.copier(7) if copies else None
  chains = (medium, small)[-num:]
  drafter = cascade_drafter(chains, bottom, matrix, lenience=3.0, **options)
  return drafter, verifier


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", LENIENT)
def test_confidence_is_the_law_at_temperature_1(name, temperature):
  """Also where no drafter is asked and where a token was copied."""
  drafter, _ = lenient(name)
  inputs, keys = toy.rows(64)
  sampling = Sampling.create(temperature)
  proposal = models.propose(drafter, inputs, sampling, keys=keys)
  q1, q = (np.asarray(x)[:, :-1] for x in (proposal.q1, proposal.q))
  assert q1.min() >= 0
  np.testing.assert_allclose(q1.sum(-1), 1, atol=1e-5)
  if temperature == 1:
    np.testing.assert_allclose(q1, q, atol=1e-6)
  else:
    assert np.abs(q1 - q).max() > 0.1


@pytest.mark.parametrize("name", ["token by token", "copies"])
def test_a_rule_that_cannot_defer_does_not(name):
  """Chow defers where the largest of 7 probabilities is below .12."""
  point = lenient(name), 0.88, Sampling.create(1.0)
  decoded = toy.decode("spec_cascade_chow", *point, log_probs=True)
  assert decoded.stats.deferred.sum() == 0
  inside = np.arange(10) < decoded.lengths[:, None]
  # Whatever was drafted has a confidence, and pi is q.
  q1, q = (x[inside] for x in (decoded.log_probs.q1, decoded.log_probs.q))
  assert np.all(np.isfinite(q1))
  np.testing.assert_allclose(q1, q, atol=1e-5)
