"""Calls of other projects' samplers, one module each; `benchmarks.judge_peers`.

A module imports its project when it is asked to judge, and hands the judge a
function that calls it. Nothing of the projects is part of this repository.
"""

from collections.abc import Callable

import numpy as np

from speccascade import judge


def judge_exactly(
  sampler: Callable, only: str, settings=(), **more
) -> judge.Judgement:
  """Judges a sampler by all its paths, once it has imported what it needs.

  What a library imports late may draw random numbers of its own.
  """
  for size in (2, 3):
    table = np.log(np.full((size, size), 0.5))
    sampler(judge.Problem("to import and build", table, table), 0)
  return judge.judge_sampler(
    sampler, settings=settings, exact=True, only=only, **more
  )
