"""Lenience of Cascade Speculative Drafting: what a cascade proposes, its calls.

The outer review is exact and hides every error of it, so that these tests look
at the proposals themselves, and compare them with the algorithm by hand.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  MaxGramDrafter,
  Sampling,
  cascade_drafter,
  decoder,
  row_keys,
  verification,
)
from speccascade.models.markov_lm import MarkovLM
from tests.decoding.drafters import models
from tests.decoding.drafters.test_max_gram import reference

V = 6
GREEDY = Sampling.create(0.0)


@jax.jit
def propose(drafter, inputs, tokens, length, sampling):
  state = drafter.prefill(inputs, capacity=tokens.shape[1])
  return drafter.propose(
    state,
    tokens,
    length,
    row_keys(0, 0, jnp.arange(len(length))),
    sampling,
    bonus_law=False,
    active=length > 0,
  )[1]


def chain(rows) -> MarkovLM:
  """Returns a chain of [V, V] laws."""
  return MarkovLM(jnp.log(jnp.asarray(rows, jnp.float32))[None])


@pytest.mark.parametrize(
  ("matrix", "copies"),
  [([[1, 0], [0, 1]], False), ([[1, 0, 0], [0, 1, 1], [0, 0, 0]], True)],
)
def test_a_draft_is_kept_by_its_own_probability(matrix, copies):
  """q(2) = .5, p(2) = .3, l = 3: .5 <= .9 keeps 2, beside Max-Gram too.

  With l = 1.5 the bound is .45, and p's arg-max 3 replaces it.
  """
  small = chain([[0.1, 0.1, 0.5, 0.3]] * 4)
  medium = chain([[0.1, 0.1, 0.3, 0.5]] * 4)
  bottom = None
  if copies:
    bottom = MaxGramDrafter.create([1] * 4, width=1, vocab_size=4)
  for lenience, token in ((3.0, 2), (1.5, 3)):
    drafter = cascade_drafter(
      (medium, small), bottom, matrix, lenience=lenience
    )
    tokens = jnp.zeros((1, 6), jnp.int32)
    one = jnp.ones((1,), jnp.int32)
    proposal = propose(drafter, tokens[:, :2], tokens, one, GREEDY)
    assert proposal.tokens.tolist() == [[token]]


def test_a_copy_has_no_lenience():
  """p(2) = .3 against .5 for 3: a copied 2 goes, whatever l is."""
  medium = chain([[0.1, 0.1, 0.3, 0.5]] * 4)
  bottom = MaxGramDrafter.create([2] * 4, width=1, vocab_size=4)
  drafter = cascade_drafter((medium,), bottom, [[1, 0], [0, 1]], lenience=9.0)
  tokens, one = jnp.zeros((64, 6), jnp.int32), jnp.ones((64,), jnp.int32)
  proposal = propose(drafter, tokens[:, :2], tokens, one, GREEDY)
  assert np.all(np.asarray(proposal.tokens) == 3)
  # Sampled, its stated law is the reviewer's own.
  proposal = propose(drafter, tokens[:, :2], tokens, one, Sampling.create(1.0))
  law = [[0.1, 0.1, 0.3, 0.5]] * 64
  np.testing.assert_allclose(proposal.q[:, 0], law, atol=1e-6)


def test_a_row_says_which_tokens_were_copied():
  small, medium = (MarkovLM(models.tables(seed, 1, V)) for seed in (1, 2))
  bottom = MaxGramDrafter.create([1] * V, width=1, vocab_size=V)
  drafter = cascade_drafter(
    (medium, small), bottom, [[2, 1, 2], [0, 1, 1], [0, 0, 1]], lenience=2.0
  )
  tokens, one = jnp.zeros((1, 9), jnp.int32), jnp.ones((1,), jnp.int32)
  proposal = propose(drafter, tokens[:, :2], tokens, one, Sampling.create(1.0))
  copied = [[False, False, False, True, True]]
  assert proposal.copied[:, :5].tolist() == copied
  # A copy is its own confidence; a reviewed token's is not its sampled law.
  q, q1 = np.asarray(proposal.q), np.asarray(proposal.q1)
  np.testing.assert_array_equal(q[:, 3:5], q1[:, 3:5])


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
  num = len(matrix) - 1
  table = (np.arange(V) * 5 + 2) % V
  logits = [models.tables(seed, rows, V, likeness=0.4) for seed in range(num)]
  laws = [np.asarray(jax.nn.softmax(x, axis=-1)) for x in logits]
  bottom = MaxGramDrafter.create(table, width=1, vocab_size=V)
  chains = [MarkovLM(x) for x in logits]
  drafter = cascade_drafter(chains, bottom, matrix, lenience=lenience)
  rng = np.random.default_rng(3)
  inputs = models.sources(rows)
  # Two tokens, as many as a reviewer reads beside its first block in one pass.
  prefix = rng.integers(2, V, (rows, 2)).astype(np.int32)
  prefix[:, 0] = 0
  tokens = jnp.asarray(np.pad(prefix, ((0, 0), (0, 10))))
  length = jnp.full((rows,), 2, jnp.int32)
  proposal = propose(drafter, inputs, tokens, length, GREEDY)
  different = 0
  for i in range(1, rows):  # source 0 begins with the pad id
    source = [int(x) for x in inputs[i] if x]
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


def test_a_little_lenience_costs_no_calls():
  """The token after a fully accepted block is the reviewer's own."""
  small, medium, large = (
    MarkovLM(models.tables(seed, 48, V, eos=False, likeness=0.7))
    for seed in range(3)
  )
  decode = decoder("cascade_drafting", gamma=1, max_decode_len=20, eos_id=1)
  calls = {}
  for lenience in (1.0, 1.0001):
    drafter = cascade_drafter(
      (medium, small), None, [[3, 2], [0, 2]], lenience=lenience
    )
    out = decode(
      drafter,
      large,
      models.sources(48),
      row_keys(0, 0, jnp.arange(48)),
      0.0,
      Sampling.create(1.0),
    )
    calls[lenience] = np.asarray(out.stats.calls_by_model).sum(0)
  # A draw may cross a threshold that moved by 1e-4; one pass in a hundred.
  np.testing.assert_allclose(calls[1.0001], calls[1.0], rtol=0.01)


def test_a_stated_law_or_none():
  """Lenient blocks verified as a whole, written by several, have none."""
  small, medium = (MarkovLM(models.tables(seed, 1, V)) for seed in (1, 2))
  bottom = MaxGramDrafter.create([1] * V, width=1, vocab_size=V)
  how = {"lenience": 3.0, "verify": verification.block_verify}
  with pytest.raises(ValueError, match="row 1 of K has several drafters"):
    cascade_drafter((medium, small), bottom, MATRICES["two neural"], **how)
  plain = cascade_drafter((medium, small), None, [[2, 1], [0, 2]], **how)
  assert plain.drafters[0].bonus == "target"
  by_token = cascade_drafter((medium,), bottom, [[2, 1], [0, 2]], lenience=3.0)
  assert by_token.drafters[0].bonus == "verifier"


@pytest.mark.parametrize("lenience", [0.5, 1e9, float("nan"), float("inf")])
def test_lenience_is_a_number_of_one_or_more(lenience):
  with pytest.raises(ValueError, match=r"lenience is .*; wanted 1"):
    cascade_drafter(
      (MarkovLM(models.tables(0, 1, V)),), None, [[2]], lenience=lenience
    )
