"""Compiled decoders of the package before the judge: all executions pass."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import judge
from speccascade.decoding import METHODS, Sampling, row_keys
from speccascade.decoding.loops.sequence_cascade import (
  per_token_sequence,
  sequence_cascade,
)
from speccascade.judge import judges, problems
from tests import toy
from tests.decoding.drafting import toy_reader

SEQUENCES = (sequence_cascade, per_token_sequence)
SAMPLED = [
  name
  for name, row in METHODS.items()
  if not row.greedy_only and row.compose is None
]
DAILY = ["spec_cascade_opt", "seq_cascade_chow"]
# Where the default is no use: it is above log V of V = 2, for example.
ALPHA = {
  "seq_cascade_chow": 0.8,
  "seq_cascade_chow_norm": 0.55,
  "spec_cascade_chow_log": 0.5,
  "token_cascade_chow_log": 0.5,
}


def reader_of(problem) -> toy_reader.TableReader:
  """Returns a state reader, which drafts otherwise from states of its own."""
  q = np.asarray(problem.q_logits)
  laws = np.broadcast_to(q, (2, len(q), *q.shape)).copy()
  laws[1] = -laws[1]
  return toy_reader.TableReader(jnp.asarray(laws, jnp.float32))


def decoded(name: str, drafter_of=None, **options):
  """Returns a method as the judge calls a sampler."""

  def sampler(problem, seed):
    # A token past the vocabulary: no row ends early.
    drafter, verifier = toy.Pair(problem.q_logits, problem.p_logits).models()
    if drafter_of is not None:
      drafter = drafter_of(problem)
    result = toy.decode(
      name,
      (drafter, verifier),
      ALPHA.get(name),
      Sampling.create(problem.temperature, problem.top_k, problem.top_p),
      inputs=jnp.zeros((len(problem.prompts), 1), jnp.int32),
      keys=row_keys(seed, 0, jnp.arange(len(problem.prompts))),
      gamma=problem.gamma,
      max_decode_len=problem.num_tokens,
      eos_id=problem.vocab_size,
      **options,
    )
    return result.tokens[:, : problem.num_tokens]

  sampler.__qualname__ = name
  return sampler


def target_of(name: str):
  """Returns what a method claims of the rows (q, p), at temperature 1."""
  row = METHODS[name]
  alpha = ALPHA.get(name, row.default_alpha)
  if name in ("drafter", "verifier"):
    return lambda q, p: q if name == "drafter" else p

  def target(q, p):
    with jax.enable_x64(True):
      return np.asarray(
        row.target.probs(jnp.asarray(q), jnp.asarray(p), alpha=alpha)
      )

  return target


def sequence_law(problem, alpha: float, normed: bool) -> dict:
  """Returns the output of the sequence cascade: a likely draft, or p."""
  # Whole texts are chosen; what is after an end is cut of the choice.
  whole = dataclasses.replace(problem, eos=None)
  q, p = whole.claimed(lambda q, p: q), whole.claimed()
  size = problem.num_tokens if normed else 1
  kept = {
    text: chance
    for text, chance in q.items()
    if np.log(chance) / size >= np.log1p(-alpha)
  }
  left = 1 - sum(kept.values())
  law: dict = {}
  for text in q | p:
    chance = kept.get(text, 0.0) + left * p.get(text, 0.0)
    law[problem.cut(text)] = law.get(problem.cut(text), 0.0) + chance
  return law


def judged(name: str, **how) -> judge.Judgement:
  if METHODS[name].execution in SEQUENCES:
    normed = METHODS[name].execution is per_token_sequence
    how["claimed"] = functools.partial(
      sequence_law, alpha=ALPHA[name], normed=normed
    )
  else:
    how["target"] = target_of(name)
  return judge.judge_sampler(decoded(name), batch=1024, **how)


def test_there_are_twenty():
  assert len(SAMPLED) >= 20
  executions = {id(METHODS[name].execution) for name in SAMPLED}
  others = {id(row.execution) for row in METHODS.values()} - executions
  assert others == {id(METHODS["bild"].execution)}  # It is greedy.


@pytest.mark.parametrize("name", toy.nightly(SAMPLED, DAILY))
def test_a_method_is_right(name):
  judged(name, only="V = 3, one round").check()


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_a_method_is_right_in_all_problems(name):
  judged(name).check()


@pytest.mark.slow
@pytest.mark.parametrize("verification", ["token", "block"])
def test_lossless_decoding_with_all_settings(verification):
  settings = "temperature", "top_k", "top_p"
  sampler = decoded("spec_decode", verification=verification)
  judge.judge_sampler(sampler, settings=settings, batch=1024).check()


def test_a_state_reader_is_lossless():
  sampler = decoded("spec_decode", reader_of)
  problem = "V = 2, gamma 2, two rounds"
  judge.judge_sampler(sampler, only=problem, batch=1024).check()


def test_a_cascade_is_not_lossless(monkeypatch):
  # No known error: naming a cause would ask all of them for distributions.
  monkeypatch.setattr(judges, "causes_of_sampler", lambda *_: ())
  sampler = decoded("spec_cascade_opt")
  judgement = judge.judge_sampler(sampler, only="V = 3, one", batch=1024)
  assert not judgement.passed
  right = problems.Problem("", *problems.random_logits(3, 1))
  expected = problems.distance(
    right.claimed(target_of("spec_cascade_opt")), right.claimed()
  )
  assert abs(judgement.smallest.tv - expected) < judgement.smallest.bound
