"""Lenience of Cascade Speculative Drafting: what a cascade proposes, its calls.

The outer review is exact and hides every error of it, so that these tests look
at the proposals themselves, and compare them with the algorithm by hand.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import cascade_drafter
from speccascade.models.markov_lm import MarkovLM
from tests import toy
from tests.decoding.drafters import models
from tests.decoding.drafters.test_max_gram import reference

pytestmark = pytest.mark.usefixtures("quick_compiles")

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
      if not drafts:  # nobody drafts for it: it writes one by itself
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


@pytest.mark.parametrize("lenience", [1.0, 3.0])
@pytest.mark.parametrize("name", MATRICES)
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
    want, _ = by_hand.row(matrix, 0, prefix[i].tolist())
    assert proposal.tokens[i].tolist() == want
    # A model stands in several places: its passes are counted together.
    calls = [0] * num
    for model, number in zip(drafter.models, proposal.calls[i].tolist()):
      calls[[model is x for x in chains].index(True)] += number
    assert calls == by_hand.calls
    strict = dataclasses.replace(by_hand, lenience=1.0)
    different += want != strict.row(matrix, 0, prefix[i].tolist())[0]
  if lenience > 1 and name != "one neural":  # which reviews nothing but copies
    assert different > rows // 10
  else:
    assert different == 0
