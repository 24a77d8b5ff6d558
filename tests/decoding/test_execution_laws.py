"""A distribution of each execution, in seconds: `launch/test.sh --quick` runs
them.

A compiled decoder writes texts on toy chains. They follow the exact
distribution of its execution, and do not follow that of a known mistake. BiLD
is greedy: its tokens are those that its decisions give. Other files of this
folder say more of each execution.
"""

import math

import jax
import numpy as np
import pytest

from speccascade.decoding import METHODS, DraftLength, Sampling
from speccascade.decoding.laws import targets
from speccascade.decoding.loops.bild import bild
from speccascade.decoding.loops.oracle_cascade import oracle_cascade
from speccascade.decoding.loops.sequence_cascade import (
  per_token_sequence,
  sequence_cascade,
)
from speccascade.decoding.loops.sequential_cascade import sequential_cascade
from speccascade.decoding.loops.speculative import speculative
from speccascade.decoding.loops.stepwise import drafter_alone, verifier_alone
from speccascade.judge import goodness
from tests import method_laws, toy, toy_chains
from tests.decoding.loops.test_bild import bild_by_hand

PAIR = toy.pair(3, 2)
LENGTH, TEMPERATURE = 4, 0.8


def laws_of(target, alpha: float) -> method_laws.MethodLaws:
  """Returns the distributions of each context, worked out in float64."""
  return method_laws.laws(PAIR, target, alpha, Sampling.create(TEMPERATURE))


def sequence_law(pair, law, alpha: float, per_token: bool):
  """Returns the distribution of whole texts of the sequence cascade.

  Drafts that are kept, and the verifier's own distribution for the mass that is
  not.

  Args:
    pair: a `toy.Pair`.
    law: the distributions of its contexts.
    alpha: as a user gives it.
    per_token: whether a draft's score is divided by its length.
  """
  q, p, score = (
    toy_chains.chain_law(pair, table, LENGTH)
    for table in (law.q, law.p, law.q1)
  )
  sizes = [len(text) for text in toy_chains.sequences(3, LENGTH)]
  with np.errstate(divide="ignore"):
    score = np.log(score) / (np.array(sizes) if per_token else 1)
  keep = score >= math.log1p(-alpha)
  assert 0.1 < q[keep].sum() < 0.9
  return q * keep + q[~keep].sum() * p


# execution -> method, alpha, the distribution of its tokens, and that of a
# mistake.
OF_TOKENS = {
  drafter_alone: ("drafter", 0.0, "q", "p"),
  verifier_alone: ("verifier", 0.0, "p", "q"),
  oracle_cascade: ("oracle_cascade_diff", 0.1, "pi", "p"),
  sequential_cascade: ("token_cascade_chow", 0.5, "pi", "p"),
  speculative: ("spec_cascade_opt", 0.3, "pi", "p"),
}
# execution -> method, alpha.
OF_TEXTS = {
  sequence_cascade: ("seq_cascade_chow", 0.9),
  per_token_sequence: ("seq_cascade_chow_norm", 0.55),
}


def test_every_execution_has_its_law_here():
  # A new execution takes a line of a table, or a test of its own as BiLD has.
  executions = {row.execution for row in METHODS.values()}
  assert executions == {*OF_TOKENS, *OF_TEXTS, bild}


def assert_texts(name, alpha, law, mistake):
  """Asserts that a method's texts fit a law, and not that of a mistake."""
  counts = toy.sample(
    name,
    PAIR.models(),
    alpha,
    Sampling.create(TEMPERATURE),
    inputs=PAIR.inputs,
    num=20_000,
    seed=0,
    gamma=2,
    max_decode_len=LENGTH,
  )
  assert goodness.p_value(counts, law) > toy.LEVEL
  assert goodness.p_value(counts, mistake) < toy.LEVEL


@pytest.mark.parametrize(
  "execution", OF_TOKENS, ids=[x[0] for x in OF_TOKENS.values()]
)
def test_tokens_have_the_law_of_the_target(execution):
  name, alpha, *tables = OF_TOKENS[execution]
  laws = laws_of(METHODS[name].target, alpha)
  law, mistake = (
    toy_chains.chain_law(PAIR, getattr(laws, table), LENGTH) for table in tables
  )
  assert_texts(name, alpha, law, mistake)


@pytest.mark.parametrize(
  "execution", OF_TEXTS, ids=[x[0] for x in OF_TEXTS.values()]
)
def test_texts_are_kept_or_rewritten(execution):
  name, alpha = OF_TEXTS[execution]
  laws = laws_of(targets.lossless, 0.0)
  law = sequence_law(PAIR, laws, alpha, execution is per_token_sequence)
  drafts = toy_chains.chain_law(PAIR, laws.q, LENGTH)
  assert_texts(name, alpha, law, drafts)


def test_bild_decides_as_by_hand():
  models = toy.sources(num=32, vocab_size=5, eos=-1.0)
  q, p = (np.asarray(jax.nn.softmax(x.table, axis=-1)) for x in models)
  stop = {"draft_length": DraftLength("max_prob", 0.45), "max_decode_len": 20}
  decoded = toy.decode("bild", models, 1.2, **stop)
  rolled_back = decoded.stats.accepted < decoded.stats.drafted
  assert np.any(rolled_back)
  for row, length in enumerate(decoded.lengths):
    tokens, _, _ = bild_by_hand(q[row], p[row], 0.45, 1.2, 20)
    assert decoded.tokens[row, :length].tolist() == tokens
