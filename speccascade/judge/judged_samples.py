"""Counts the texts of a sampler, and compares the counts with a law."""

import collections
import dataclasses

import numpy as np

from speccascade.judge import goodness
from speccascade.judge.judged_runs import tokens_of, tokens_of_rows
from speccascade.judge.judgement import JudgedProblem
from speccascade.judge.problems import Law, Problem


def judge_by_samples(sampler, problem, claimed, resolution, level, batch, seed):
  """Returns (`JudgedProblem`, counts or None)."""
  keys = list(claimed)
  expected = np.array([claimed[key] for key in keys])
  num = goodness.num_samples(expected, resolution, level / 2)
  counts: collections.Counter = collections.Counter()
  num_rows = len(problem.prompts)
  try:
    if batch is None:
      for i in range(num):
        counts[tokens_of_rows(sampler(problem, seed + i), problem)] += 1
    else:
      times = max(1, batch // num_rows)
      wide = dataclasses.replace(problem, prompts=problem.prompts * times)
      for i in range(-(-num // times)):
        counts.update(_count(sampler(wide, seed + i), wide, num_rows))
  except Exception as error:
    note = f"raises {type(error).__name__}: {error}".partition("\n")[0]
    return JudgedProblem(problem.label, len(keys), 1, 0, 0, False, note), None
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
  return line, counts


def _count(written, problem: Problem, num_rows: int) -> dict[tuple, int]:
  """Returns how often a batch has each text, or each tuple of texts."""
  texts = np.array([text[: problem.num_tokens] for text in written])
  if texts.shape != (len(problem.prompts), problem.num_tokens):
    raise ValueError(
      f"the sampler wrote an array {texts.shape} for {len(problem.prompts)}"
      f" prompts and {problem.num_tokens} tokens"
    )
  groups = texts.reshape(-1, num_rows, problem.num_tokens)
  seen, counts = np.unique(groups, axis=0, return_counts=True)
  keys = [tuple(tokens_of(row) for row in group) for group in seen]
  return {
    key if num_rows > 1 else key[0]: int(num) for key, num in zip(keys, counts)
  }


def p_value(counts: dict, law: Law) -> float:
  """Returns the p-value of counted texts, by chi-square."""
  keys = sorted(counts.keys() | law.keys())
  return goodness.p_value(
    np.array([counts.get(key, 0) for key in keys]),
    np.array([law.get(key, 0.0) for key in keys]),
  )
