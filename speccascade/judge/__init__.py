"""Judges samplers: what is a sampler's exact distribution, and is it right?

Importing it imports NumPy alone. docs/judge.md says how to judge a sampler in
ten lines.
"""

from speccascade.judge.judgement import JudgedProblem, Judgement
from speccascade.judge.judges import (
  judge_sampler,
  judge_step,
  judge_verify,
  rows,
)
from speccascade.judge.known_errors import KNOWN_ERRORS
from speccascade.judge.problems import Problem
from speccascade.judge.right_sampler import RightSampler
from speccascade.judge.scripted import NotCoveredError

__all__ = [
  "KNOWN_ERRORS",
  "JudgedProblem",
  "Judgement",
  "NotCoveredError",
  "Problem",
  "RightSampler",
  "judge_sampler",
  "judge_step",
  "judge_verify",
  "rows",
]
