"""Each known error is caught and named, and the right sampler is not."""

import functools

import pytest

from speccascade import judge
from speccascade.judge import known_errors, problems
from tests import toy

ALL = {"settings": ("temperature", "top_k", "top_p"), "num_rows": 2}
# Error -> the problem in which it is shown here, by enumeration.
SHOWN = {
  known_errors.SharedNoise: "top-k 2, temp",
  known_errors.ReplacementFromVerifier: "V = 2, one round",
  known_errors.AbsoluteResidual: "V = 3, one round",
  known_errors.ResidualOfNextPlace: "V = 3, one round",
  known_errors.EagerBlock: "V = 2, gamma 2, two rounds",
  known_errors.ArgmaxDrafts: "V = 2, one round",
  known_errors.TypicalAcceptance: "V = 3, one round",
  known_errors.ColdDrafter: "V = 2, one round",
  known_errors.TopPFirst: "top-p 0.8, temperature 1.7",
  known_errors.VerifierUnfiltered: "top-k 2, temperature 1.7",
  known_errors.VerifierWithoutTemperature: "temperature 1.7",
  known_errors.SameNumbersEveryRound: "V = 2, two rounds",
  known_errors.SameNumbersEveryRow: "two equal rows",
}


def test_the_list_is_whole():
  assert {*SHOWN, known_errors.AcceptsAtZero} == {*judge.KNOWN_ERRORS}
  names = {error.name for error in judge.KNOWN_ERRORS}
  assert len(names) == len(judge.KNOWN_ERRORS)


SLOW = (known_errors.EagerBlock, known_errors.SameNumbersEveryRow)


@pytest.mark.parametrize(
  "error", toy.nightly(SHOWN, [error for error in SHOWN if error not in SLOW])
)
def test_an_error_is_caught_and_named(error):
  sampler = known_errors.sampler_of(error)
  judgement = judge.judge_sampler(sampler, exact=True, only=SHOWN[error], **ALL)
  assert not judgement.passed
  assert judgement.smallest.tv > 1e-3
  assert error.name in judgement.causes
  assert judgement.verdict.startswith(f"{error.__name__}: WRONG in ")
  assert f"Likely cause: {'; or '.join(judgement.causes)}." in str(judgement)


@pytest.mark.parametrize("error", known_errors.STEP_ERRORS)
def test_an_error_of_a_step_is_caught_and_named(error):
  step = known_errors.step_of(error)
  if error is known_errors.AcceptsAtZero:
    judgement = judge.judge_step(step, only="disjoint supports, gamma 1")
    assert judgement.passed
    (warning,) = judgement.warnings
    assert warning.startswith("a uniform of exactly 0")
    return
  only = "V = 2, gamma 2" if error is known_errors.EagerBlock else "bility 0"
  judgement = judge.judge_step(step, only=only)
  assert not judgement.passed
  assert judgement.causes == (error.name,)


def test_the_right_step_passes():
  step = known_errors.step_of(judge.RightSampler)
  for only in ("V = 2", "one-hot", "q = p, gamma"):
    judgement = judge.judge_step(step, only=only)
    judgement.check()
    assert judgement.warnings == ()


def test_the_right_sampler_passes():
  sampler = known_errors.sampler_of(judge.RightSampler)
  for only in ("bility 0, one", "disjoint supports, one", "top-p 0.8, temp"):
    judge.judge_sampler(sampler, exact=True, only=only, **ALL).check()


@pytest.mark.slow
@pytest.mark.parametrize(
  "error", judge.KNOWN_ERRORS, ids=lambda error: error.__name__
)
def test_an_error_has_one_name_in_all_problems(error):
  sampler = known_errors.sampler_of(error)
  judgement = judge.judge_sampler(sampler, exact=True, **ALL)
  if error is known_errors.AcceptsAtZero:
    assert judgement.passed
    return
  assert judgement.causes == (error.name,)


@pytest.mark.slow
def test_the_right_sampler_passes_in_all_problems():
  sampler = known_errors.sampler_of(judge.RightSampler)
  judge.judge_sampler(sampler, exact=True, **ALL).check()
  judge.judge_step(known_errors.step_of(judge.RightSampler)).check()


@pytest.mark.parametrize(
  ("error", "only"),
  toy.nightly(
    [
      (known_errors.ReplacementFromVerifier, "V = 2, one round"),
      *(
        (error, only)
        for error, only in SHOWN.items()
        if "rows" not in only
        and error is not known_errors.ReplacementFromVerifier
      ),
    ],
    [(known_errors.ReplacementFromVerifier, "V = 2, one round")],
  ),
)
def test_samples_show_an_error_too(error, only):
  sampler = known_errors.sampler_of(error)
  judgement = judge.judge_sampler(sampler, only=only, resolution=0.1, **ALL)
  assert not judgement.passed
  assert error.name in judgement.causes


def test_a_claim_that_is_no_verifier():
  """A sampler of a mixture is right of the mixture, and wrong of p."""
  mixture = lambda q, p: (q + p) / 2

  def sampler(problem, seed):
    q, p = problem.tables
    mixed = known_errors.RightSampler(problem, seed)
    text = list(problem.prompt)
    for _ in range(problem.num_tokens):
      text.append(mixed.draw(mixture(q, p)[text[-1]]))
    return text[1:]

  ask = functools.partial(
    judge.judge_sampler, sampler, exact=True, only="V = 2, one round"
  )
  ask(target=mixture).check()
  ask(claimed=lambda problem: problem.claimed(mixture)).check()
  wrong = ask()
  assert not wrong.passed
  assert wrong.causes == ()
  q, p = problems.Problem("", *problems.random_logits(2, 1)).tables
  assert "It is none of the known errors" in wrong.verdict
  assert wrong.smallest.tv < abs(q - p).sum()
