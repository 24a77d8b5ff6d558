"""Runs the judged code, and reads the tokens that it writes."""

import numpy as np

from speccascade.judge.problems import Problem
from speccascade.judge.scripted import Script


def tokens_of(what) -> tuple:
  """Returns a tuple of integers from a list, an array or a tensor.

  Raises:
    ValueError: it is no list of tokens.
  """
  if hasattr(what, "detach"):
    what = what.detach().cpu().numpy()
  array = np.asarray(what)
  if array.dtype.kind not in "iu":
    raise ValueError(
      f"tokens are of type {array.dtype}; return a list or an array of integers"
    )
  return tuple(array.reshape(-1).tolist())


def tokens_of_rounds(
  step, problem: Problem, num_rounds: int, script: Script
) -> tuple:
  """Returns the tokens of some rounds, whose drafts the judge draws."""
  q_table, p_table = problem.tables
  text: list[int] = list(problem.prompt)
  for block in range(num_rounds):
    drafts: list[int] = []
    path = [text[-1]]
    for i in range(problem.gamma):
      state = ("drafts of the judge", block, i)
      drafts.append(script.choice(state, q_table[path[-1]].tolist()))
      path.append(drafts[-1])
    q, p = q_table[path[:-1]], p_table[path]
    emitted = tokens_of(step(np.array(drafts), q.copy(), p.copy()))
    if not 1 <= len(emitted) <= problem.gamma + 1:
      raise ValueError(
        f"a block of {problem.gamma} drafts emits {len(emitted)} tokens"
      )
    if not all(0 <= token < problem.vocab_size for token in emitted):
      raise ValueError(f"{emitted} has tokens outside the vocabulary")
    text += emitted
  return tuple(text[len(problem.prompt) :])


def tokens_of_sampler(
  sampler, problem: Problem, seed: int, script: Script
) -> tuple:
  """Returns the tokens of a sampler."""
  return tokens_of_rows(sampler(problem, seed), problem)


def tokens_of_rows(written, problem: Problem) -> tuple:
  """Returns the text of the row, or the texts of the rows, cut."""
  several = len(problem.prompts) > 1
  texts = (
    [tokens_of(row) for row in written] if several else [tokens_of(written)]
  )
  for text in texts:
    if len(text) < problem.num_tokens:
      raise ValueError(
        f"the sampler wrote {len(text)} tokens of {problem.num_tokens}"
      )
  cut = tuple(text[: problem.num_tokens] for text in texts)
  return cut if several else cut[0]
