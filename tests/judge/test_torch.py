"""The judge replaces torch's functions, where torch is installed."""

import pytest

from speccascade import judge

torch = pytest.importorskip("torch")


def test_a_size_by_name():
  def sampler(problem, seed):
    text = list(problem.prompt)
    for _ in range(problem.num_tokens):
      weights = torch.tensor(problem.verifier(text)).softmax(-1)
      u = torch.rand(size=(1,), dtype=torch.float64)
      text.append(int((weights.cumsum(-1) <= u).sum()))
    return text[len(problem.prompt) :]

  judge.judge_sampler(sampler, exact=True, only="V = 2, one").check()
