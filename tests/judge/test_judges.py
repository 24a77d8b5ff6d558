"""The judges themselves: their promises, and what they refuse."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from speccascade import judge
from speccascade.decoding import Sampling
from speccascade.decoding.verification import steps
from speccascade.judge import (
  goodness,
  judged_code,
  judged_samples,
  known_errors,
  problems,
)
from tests import toy

Q_P = problems.random_logits(3, 1)


def verify_in_numpy(tokens, q, p, u_accept, u_draw):
  """Token verification of one row, float64."""
  for i, x in enumerate(tokens):
    if u_accept[i] * q[i][x] >= p[i][x]:
      left = np.maximum(p[i] - q[i], 0)
      left = left if left.any() else p[i]
      return i, np.searchsorted(np.cumsum(left), u_draw * left.sum(), "right")
  return len(tokens), np.searchsorted(np.cumsum(p[-1]), u_draw, "right")


def verify_of_ours(name):
  """Returns a verifier step of the package, as the judge calls it."""

  @jax.jit
  def decide(tokens, q, p, u_accept, u_draw):
    q = jax.numpy.pad(q, ((0, 0), (0, 1), (0, 0)))
    count = jax.numpy.full(len(tokens), tokens.shape[1], jax.numpy.int32)
    verdict = steps.VERIFY[name](tokens, count, q, p, u_accept, u_draw)
    return verdict.num_accepted, verdict.token

  def verify(*arrays):
    # One size of batch, so that little is compiled.
    size = -(-len(arrays[0]) // 4096) * 4096
    wide = [np.resize(x, (size, *x.shape[1:])) for x in arrays]
    num, token = decide(*wide)
    return num[: len(arrays[0])], token[: len(arrays[0])]

  return verify


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
  ("name", "only"),
  toy.nightly(
    [
      ("token", "bility 0"),
      ("block", "bility 0"),
      ("token", ""),
      ("block", ""),
    ],
    [("token", "bility 0"), ("block", "bility 0")],
  ),
)
def test_our_steps_are_right(name, only):
  judgement = judge.judge_verify(
    verify_of_ours(name), tolerance=1e-8, only=only
  )
  judgement.check()
  assert judgement.warnings == ()


def test_a_function_of_one_row():
  judge.judge_verify(
    judge.rows(verify_in_numpy), tolerance=1e-9, only="gamma 1"
  ).check()


def test_a_wrong_verify_function_is_named():
  def wrong(tokens, q, p, u_accept, u_draw):
    num, token = verify_in_numpy(tokens, q, p, u_accept, u_draw)
    if num < len(tokens):
      token = np.searchsorted(np.cumsum(p[num]), u_draw, "right")
    return num, token

  judgement = judge.judge_verify(judge.rows(wrong), only="V = 2, gamma 1")
  assert judgement.causes == (
    "a rejected draft is replaced from p, not from the residual",
  )


def test_decisions_between_uniforms_are_noticed():
  def compares(tokens, q, p, u_accept, u_draw):
    return 0, int(u_accept[0] < u_draw)

  judgement = judge.judge_verify(judge.rows(compares), only="V = 2, gamma 1")
  assert not judgement.passed
  assert "compares uniforms with each other" in judgement.smallest.note


def test_zero_is_noticed():
  def at_most(tokens, q, p, u_accept, u_draw):
    closed = [-1e-9 if u == 0 else u for u in u_accept]
    return verify_in_numpy(tokens, q, p, closed, u_draw)

  judgement = judge.judge_verify(
    judge.rows(at_most), only="disjoint supports, gamma 1"
  )
  assert judgement.passed
  assert len(judgement.warnings) == 1


# Samples.


def drawn(table_of):
  """Returns a sampler in batches, whose tokens are drawn from a table."""

  def sampler(problem, seed):
    table = np.cumsum(table_of(problem), axis=-1)
    rng = np.random.default_rng(seed)
    order, texts = table.ndim - 1, np.array(problem.prompts)
    num_before = texts.shape[1]
    texts = np.pad(texts, ((0, 0), (order, 0)))
    for _ in range(problem.num_tokens):
      reach = table[tuple(texts[:, -order:].T)]
      token = (reach <= rng.random(len(texts))[:, None]).sum(1)
      token = np.minimum(token, problem.vocab_size - 1)
      texts = np.concatenate([texts, token[:, None]], axis=1)
    return texts[:, order + num_before :]

  return sampler


RIGHT = drawn(lambda problem: problem.tables[1])


def test_false_alarms_are_as_rare_as_promised():
  problem = problems.Problem("one round", *Q_P)
  right, alarms = problem.claimed(), 0
  for run in range(1000):
    answer = judged_samples.judge_by_samples(
      RIGHT,
      problem,
      right,
      resolution=0.2,
      level=0.05,
      batch=1024,
      seed=1_000_000 * run,
    )
    alarms += not answer.line.passed
  # Half of the level is spent on the total variation, whose bound is generous.
  assert 10 < alarms <= 50


def test_all_problems_share_the_promise():
  settings = ("temperature", "top_k", "top_p")
  judgement = judge.judge_sampler(
    RIGHT, settings=settings, num_rows=2, batch=2**15
  )
  judgement.check()
  assert {x.num_samples >= 2**15 for x in judgement.problems} == {True}


@pytest.mark.parametrize("exact", [False, True])
def test_rows_may_end_at_lengths_of_their_own(exact):
  """What is written past the tokens that were asked for is cut."""

  def sampler(problem, seed):
    rows = known_errors.sampler_of(judge.RightSampler)(problem, seed)
    return [[*rows[0], 0, 0], *rows[1:]] if len(problem.prompts) > 1 else rows

  judge.judge_sampler(
    sampler, num_rows=2, only="two ", exact=exact, resolution=0.1
  ).check()


def test_a_law_at_the_resolution_is_noticed():
  """A mixture whose total variation from p is just the resolution."""
  problem = problems.Problem("", *Q_P)
  q, p = problem.tables

  def mixed(share):
    return problem.claimed(lambda q, p: share * q + (1 - share) * p)

  shares = np.linspace(0, 1, 201)
  right = problem.claimed()
  share = min(s for s in shares if problems.distance(mixed(s), right) >= 0.05)
  sampler = drawn(lambda problem: share * q + (1 - share) * p)
  problem = dataclasses.replace(problem, label="the resolution")
  for seed in range(20):
    answer = judged_samples.judge_by_samples(
      sampler,
      problem,
      right,
      resolution=0.05,
      level=1e-3,
      batch=4096,
      seed=1000 * seed,
    )
    assert not answer.line.passed


def test_the_noise_floor_holds():
  rng = np.random.default_rng(0)
  law = np.array([0.5, 0.3, 0.1, 0.06, 0.04])
  counts = rng.multinomial(2000, law, 20_000)
  tv = 0.5 * np.abs(counts / 2000 - law).sum(1)
  for level in (0.1, 0.01):
    assert np.mean(tv > goodness.noise_floor(law, 2000, level)) <= level


# Filters.


@pytest.mark.usefixtures("float64")
def test_filters_are_the_products():
  tables = [x for _, *pair in problems.pairs() for x in pair]
  rows = np.concatenate([x for x in tables if x.shape == (3, 3)])
  for settings in (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 2},
    {"temperature": 1.6, "top_p": 0.75},
    {"temperature": 0.6, "top_k": 2, "top_p": 0.6},
  ):
    _, expected = Sampling.create(**settings).laws(jax.numpy.asarray(rows))
    actual = problems.probabilities(rows, **settings)
    np.testing.assert_allclose(actual, expected, atol=1e-7)


# What is refused.


@pytest.mark.parametrize(
  ("written", "message"),
  [
    ([0], "wrote 1 tokens of 2"),
    ([0.5, 0.5], "tokens are of type float64"),
    ([2, 2, 0], "raises"),
  ],
)
def test_what_no_sampler_writes(written, message):
  def sampler(problem, seed):
    if written == [2, 2, 0]:
      raise KeyError("nothing there")
    return written

  for exact in (False, True):
    judgement = judge.judge_sampler(
      sampler, only="V = 3, one round", exact=exact
    )
    assert not judgement.passed
    assert message in str(judgement)


def test_a_token_of_probability_0_is_named():
  sampler = drawn(lambda problem: np.full((3, 3), 1 / 3))
  judgement = judge.judge_sampler(
    sampler, only="one-hot distributions, one round", batch=4096
  )
  assert "wrote (0, 0), which has probability 0" in judgement.verdict


def test_a_step_must_emit_tokens():
  ask = functools.partial(judge.judge_step, only="V = 2, gamma 1")
  for emitted in ([], [0, 0, 0], [7]):
    judgement = ask(lambda tokens, q, p, emitted=emitted: emitted)
    assert "it raises ValueError" in judgement.verdict


def test_what_is_asked_wrongly():
  with pytest.raises(ValueError, match="settings has top_q"):
    judge.judge_sampler(RIGHT, settings=["top_q"])
  with pytest.raises(ValueError, match="no problem has 'V = 9'"):
    judge.judge_verify(RIGHT, only="V = 9")
  with pytest.raises(ValueError, match="of type list; give a func"):
    judge.judge_step([0])
  for wrong in ({"tolerance": 0}, {"tolerance": "x"}, {"time_limit_s": None}):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .*; wanted"):
      judge.judge_verify(RIGHT, **wrong)
  for target, message in (
    (lambda q, p: p[0], r"target returned float64 of shape \(2,\)"),
    (lambda q, p: 2 * p, "not distributions"),
  ):
    with pytest.raises(ValueError, match=message):
      judge.judge_step(RIGHT, target=target, only="V = 2, gamma 1")
  wrong, only = drawn(lambda problem: problem.tables[0]), "one-hot distrib"
  judgement = judge.judge_sampler(wrong, only=only, batch=4096)
  with pytest.raises(AssertionError, match="WRONG"):
    judgement.check()


def test_tokens_of_arrays():
  assert judged_code.tokens_of(np.array([[1], [2]])) == (1, 2)
  assert judged_code.tokens_of([np.int32(3)]) == (3,)
