"""Compares the counts of a sampler's texts with a distribution."""

import collections
from collections.abc import Callable
import dataclasses

import numpy as np

from speccascade.judge import goodness
from speccascade.judge.judged_code import (
  TIME_LIMIT_S,
  JudgedCodeError,
  called,
  check_rows,
  check_vocabulary,
  tokens_of,
  tokens_of_rows,
)
from speccascade.judge.judgement import JudgedAnswer, JudgedProblem
from speccascade.judge.problems import Law, Problem


def judge_by_samples(
  sampler: Callable,
  problem: Problem,
  claimed: Law,
  *,
  resolution: float,
  level: float,
  batch: int | None,
  seed: int,
  time_limit_s: float = TIME_LIMIT_S,
) -> JudgedAnswer:
  """Judges a sampler by counts of its texts; see `judges.judge_sampler`.

  Args:
    level: how often a right sampler may be called wrong in this problem.
  """
  keys = list(claimed)
  expected = np.array([claimed[key] for key in keys])
  num = goodness.num_samples(expected, resolution, level / 2)
  counts: collections.Counter = collections.Counter()
  num_rows = len(problem.prompts)
  try:
    if batch is None:
      for i in range(num):
        written = called(sampler, problem, seed + i, time_limit_s=time_limit_s)
        counts[tokens_of_rows(written, problem)] += 1
    else:
      times = max(1, batch // num_rows)
      wide = dataclasses.replace(problem, prompts=problem.prompts * times)
      for i in range(-(-num // times)):
        written = called(sampler, wide, seed + i, time_limit_s=time_limit_s)
        counts.update(_count(written, wide, num_rows))
  except (JudgedCodeError, ValueError, TypeError) as error:
    note = str(error).partition("\n")[0]
    num = sum(counts.values())
    return JudgedAnswer(
      JudgedProblem(problem.label, len(keys), 1.0, 0, num, False, note, True)
    )
  total = sum(counts.values())
  tv = 1 - sum(min(counts.get(key, 0) / total, claimed[key]) for key in claimed)
  bound = goodness.noise_floor(expected, total, level / 2)
  fit = p_value(counts, claimed)
  passed = bool(fit >= level / 2 and tv <= bound)
  note = "" if passed else f"p = {fit:.1e}"
  outside = set(counts) - {key for key in keys if claimed[key] > 0}
  if outside:
    note = f"wrote {min(outside)}, which has probability 0"
  line = JudgedProblem(problem.label, len(keys), tv, bound, total, passed, note)
  return JudgedAnswer(line, counts)


def _count(written, problem: Problem, num_rows: int) -> collections.Counter:
  """Returns how often a batch has each text, or each tuple of texts."""
  check_rows(written, problem)
  texts = np.array([_padded(text, problem) for text in written])
  if texts.shape != (len(problem.prompts), problem.num_tokens):
    raise ValueError(
      f"the sampler wrote an array {texts.shape} for {len(problem.prompts)}"
      f" prompts and {problem.num_tokens} tokens"
    )
  groups = texts.reshape(-1, num_rows, problem.num_tokens)
  seen, counts = np.unique(groups, axis=0, return_counts=True)
  whole: collections.Counter = collections.Counter()
  for group, num in zip(seen, counts):
    key = tuple(problem.cut(tokens_of(row)) for row in group)
    for text in key:
      check_vocabulary(text, problem)
    whole[key if num_rows > 1 else key[0]] += int(num)
  return whole


def _padded(text, problem: Problem):
  """Returns the first tokens; a text that ended early repeats its end."""
  text = text[: problem.num_tokens]
  missing = problem.num_tokens - len(text)
  if missing and len(text) and problem.eos == text[-1]:
    text = [*text, *[problem.eos] * missing]
  return text


def p_value(counts: dict, law: Law) -> float:
  """Returns the p-value of counted texts, by chi-square."""
  keys = sorted(counts.keys() | law.keys())
  return goodness.p_value(
    np.array([counts.get(key, 0) for key in keys]),
    np.array([law.get(key, 0.0) for key in keys]),
  )
