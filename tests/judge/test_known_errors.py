"""Each known error is caught and named, and the right sampler is not."""

import functools
import itertools

import numpy as np
import pytest

from speccascade import judge
from speccascade.judge import judges, known_errors, loop_errors, problems
from tests import toy

ALL = {"settings": ("temperature", "top_k", "top_p"), "num_rows": 2}
# Error -> the problem in which it is shown here, by enumeration.
SHOWN = {
  known_errors.SharedNoise: "top-k 2, temp",
  known_errors.ReplacementFromVerifier: "V = 2, one round",
  known_errors.AbsoluteResidual: "V = 2, one round",
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
  known_errors.ReplacementWithoutDraft: "V = 3, one round",
  known_errors.BonusOfLastDraft: "V = 2, one round",
  known_errors.OneUniform: "V = 2, gamma 2, two rounds",
  known_errors.UnscaledBlock: "a prefix ratio below 1",
  loop_errors.ContextBehind: "V = 2, one round",
  loop_errors.ShortContext: "sees two tokens",
  loop_errors.StaleContext: "sees two tokens",
  loop_errors.EosRejected: "ends the text",
  loop_errors.SortedCandidates: "V = 3, one round",
  loop_errors.MergedCandidates: "V = 3, one round",
}


# Errors that change a distribution by less than 0.05 in the problem above: the
# problem in which samples show them, and the resolution that it takes.
FAINT = {
  known_errors.BonusOfLastDraft: ("V = 2, one round", 0.05),
  loop_errors.MergedCandidates: ("top-k 2, temperature 1.7", 0.05),
}


def test_the_list_is_whole():
  assert {*SHOWN, known_errors.AcceptsAtZero} == {*judge.KNOWN_ERRORS}
  names = {error.name for error in judge.KNOWN_ERRORS}
  assert len(names) == len(judge.KNOWN_ERRORS)


# Steps show some of these; samplers at night, where all problems are asked.
SLOW = (
  known_errors.EagerBlock,
  known_errors.SameNumbersEveryRow,
  known_errors.SharedNoise,
  known_errors.TopPFirst,
  loop_errors.EosRejected,
  known_errors.OneUniform,
  known_errors.UnscaledBlock,
)


def assert_is_caught_and_named(error):
  """Asserts so of the problem in which the error is shown."""
  sampler = known_errors.sampler_of(error)
  judgement = judge.judge_sampler(sampler, exact=True, only=SHOWN[error], **ALL)
  assert not judgement.passed
  assert judgement.smallest.tv > 1e-4
  assert error.name in judgement.causes
  assert judgement.verdict.startswith(f"{error.__name__}: WRONG in ")
  assert f"Likely cause: {'; or '.join(judgement.causes)}." in str(judgement)


@pytest.mark.parametrize("error", [x for x in SHOWN if x not in SLOW])
def test_an_error_is_caught_and_named(error):
  assert_is_caught_and_named(error)


@pytest.mark.parametrize("error", known_errors.STEP_ERRORS)
def test_an_error_of_a_step_is_caught_and_named(error):
  step = known_errors.step_of(error)
  if error is known_errors.AcceptsAtZero:
    judgement = judge.judge_step(step, only="disjoint supports, gamma 1")
    assert judgement.passed
    (warning,) = judgement.warnings
    assert warning.startswith("a uniform of exactly 0")
    return
  only = {
    known_errors.EagerBlock: "V = 2, gamma 2",
    known_errors.UnscaledBlock: "a prefix ratio below 1",
    known_errors.BonusOfLastDraft: "V = 3, gamma 2",
  }.get(error, "bility 0")
  judgement = judge.judge_step(step, only=only)
  assert not judgement.passed
  assert judgement.causes == (error.name,)


class RightBlock(known_errors.UnscaledBlock):
  """Block verification as it is printed."""

  def residual(self, ratio, q, p):
    return np.maximum(ratio * p - q, 0)


class LateReplacement(judge.RightSampler):
  """From the fourth draft on, a rejected draft is replaced from p."""

  def verify(self, tokens, q, p):
    for i, token in enumerate(tokens):
      if not self.accepts(token, q[i], p[i]):
        weights = p[i] if i >= 3 else np.maximum(p[i] - q[i], 0)
        return [*tokens[:i], self.draw(weights)]
    return [*tokens, self.draw(p[-1])]


class LateDraft(judge.RightSampler):
  """From the fifth draft on, all drafts are accepted."""

  def verify(self, tokens, q, p):
    for i, token in enumerate(tokens):
      if i < 4 and not self.accepts(token, q[i], p[i]):
        return [*tokens[:i], self.replacement(q[i], p[i])]
    return [*tokens, self.draw(p[-1])]


class FirstTokens(judge.RightSampler):
  """A rejected draft is never replaced by the fourth token."""

  def replacement(self, q, p):
    left = np.maximum(p - q, 0)
    left[3:] = 0
    return self.draw(left if left.any() else p)


class WithoutTail(judge.RightSampler):
  """Tokens of small probability are never written."""

  def verify(self, tokens, q, p):
    return super().verify(tokens, q, np.where(p < 2e-3, 0, p))


class WithoutHead(judge.RightSampler):
  """The first token is not drawn where its weight is small."""

  def draw(self, weights):
    weights = np.array(weights)
    weights[0] *= weights[0] > 0.05 * weights.sum()
    return super().draw(weights)


class WithoutEnd(judge.RightSampler):
  """A token at one end of the vocabulary is never drawn where it is rare."""

  place = 0

  def draw(self, weights):
    weights = np.array(weights)
    weights[self.place] *= weights[self.place] > 1e-3 * weights.sum()
    return super().draw(weights)


class WithoutLast(WithoutEnd):
  """The same of the last token."""

  place = -1


class KeptNumber(judge.RightSampler):
  """The number that decides on one draft decides on a later one, too."""

  first, later = 0, 4

  def verify(self, tokens, q, p):
    numbers = []
    for i, token in enumerate(tokens):
      kept = i == self.later
      numbers.append(numbers[self.first] if kept else self.rng.random())
      if numbers[-1] * q[i][token] >= p[i][token]:
        return [*tokens[:i], self.replacement(q[i], p[i])]
    return [*tokens, self.draw(p[-1])]


class KeptLate(KeptNumber):
  """The same of drafts further on."""

  first, later = 2, 7


@pytest.mark.parametrize(
  ("error", "only"),
  [
    (FirstTokens, "V = 4"),
    (WithoutTail, "a rare token, gamma 1"),
    (WithoutHead, "a rare token, gamma 1"),
    (WithoutEnd, "a rare token, gamma 1"),
    (WithoutLast, "a rare token, gamma 1"),
    (KeptNumber, "gamma 8, uncertain drafts 1, 2, 5, 6"),
    (KeptLate, "gamma 8, uncertain drafts 3, 4, 7, 8"),
  ],
)
def test_a_fault_that_one_problem_shows(error, only, monkeypatch):
  monkeypatch.setattr(judges, "causes_of_step", lambda *_: ())
  assert not judge.judge_step(known_errors.step_of(error), only=only).passed


def test_every_two_drafts_of_a_long_block_are_uncertain_together():
  together = {*itertools.combinations(range(1, 5), 2)}
  for problem in problems.step_problems():
    if problem.gamma == 8:
      drafts = problem.label.removeprefix("gamma 8, uncertain drafts ")
      numbers = map(int, drafts.split(", "))
      together |= {*itertools.combinations(numbers, 2)}
  assert together == {*itertools.combinations(range(1, 9), 2)}


def test_block_verification_needs_its_scaled_residual():
  """The unscaled one is right where no prefix below 1 leaves a residual."""
  for block, right in (
    (RightBlock, True),
    (known_errors.UnscaledBlock, False),
  ):
    step = known_errors.step_of(block)
    assert judge.judge_step(step, only="prefix ratio").passed is right
    assert judge.judge_step(step, only="V = 2, gamma 2").passed
  sampler = known_errors.sampler_of(RightBlock)
  judge.judge_sampler(sampler, exact=True, only="prefix ratio").check()


@pytest.mark.parametrize("error", [LateReplacement, LateDraft])
def test_a_fault_of_late_drafts_shows(error, monkeypatch):
  # Not one of the known errors, which are all asked for their distributions.
  for causes in ("causes_of_step", "causes_of_sampler"):
    monkeypatch.setattr(judges, causes, lambda *_: ())
  step = known_errors.step_of(error)
  assert judge.judge_step(step, only="gamma 3").passed
  judgement = judge.judge_step(step, only="gamma 8")
  assert not any(line.passed for line in judgement.problems)
  sampler = known_errors.sampler_of(error)
  ask = functools.partial(
    judge.judge_sampler, only="gamma 6", resolution=0.1, false_alarm=1e-4
  )
  assert not ask(sampler).passed
  assert ask(known_errors.sampler_of(judge.RightSampler)).passed


@pytest.mark.slow
def test_what_hid_from_chains_that_see_one_token_shows():
  for error in (*loop_errors.StaleContext.variants(), loop_errors.ShortContext):
    sampler = known_errors.sampler_of(error)
    judgement = judge.judge_sampler(sampler, exact=True, only="sees ")
    assert [line.passed for line in judgement.problems] == [False, False]
    assert judgement.causes == (error.name,)
  judge.judge_sampler(
    known_errors.sampler_of(judge.RightSampler), exact=True, only="sees "
  ).check()


@pytest.mark.slow
def test_candidates_in_the_order_of_their_draws_are_right():
  for only in ("V = 3, one round", "V = 2, one round"):
    sampler = known_errors.sampler_of(loop_errors.SeveralCandidates)
    judge.judge_sampler(sampler, exact=True, only=only).check()
  for form in loop_errors.MergedCandidates.variants():
    sampler = known_errors.sampler_of(form)
    judgement = judge.judge_sampler(sampler, exact=True, only="V = 3, one r")
    assert judgement.causes == (form.name,)


@pytest.mark.slow
def test_a_cause_that_passed_problems_refute_is_not_named():
  """What is the error in one problem, and right in the others, is another."""
  error = known_errors.step_of(known_errors.ReplacementFromVerifier)
  right = known_errors.step_of(judge.RightSampler)

  def step(tokens, q, p):
    return (error if len(p[0]) == 2 else right)(tokens, q, p)

  judgement = judge.judge_step(step, only=", gamma 1")
  assert not judgement.passed
  assert judgement.causes == ()
  assert judge.judge_step(step, only="V = 2, gamma 1").causes

  def sampler(problem, seed):
    wrong = problem.vocab_size == 2
    kind = known_errors.ReplacementFromVerifier if wrong else judge.RightSampler
    return kind(problem, seed).sample()

  for how in ({"exact": True}, {"resolution": 0.1}):
    judgement = judge.judge_sampler(sampler, only="one round", **how)
    assert not judgement.passed
    assert judgement.causes == ()


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
  assert_is_caught_and_named(error)


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
  only, resolution = FAINT.get(error, (only, 0.1))
  sampler = known_errors.sampler_of(error)
  judgement = judge.judge_sampler(
    sampler, only=only, resolution=resolution, **ALL
  )
  assert not judgement.passed
  assert error.name in judgement.causes


def test_a_claim_that_is_not_a_verifier():
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
