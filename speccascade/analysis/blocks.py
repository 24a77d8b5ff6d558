"""Blocks in which speculative decoding writes texts that are known already.

Of a token x that was drawn from the target's law pi after its prefix, it is
known how likely the drafter had proposed it and it was accepted, had it been
drafted: min(q, pi)(x) / pi(x). Given the text these events are independent of
each other. So the number of blocks that the text took has a law that needs no
decoding, for every gamma.
"""

from typing import NamedTuple

import numpy as np

from speccascade.analysis import checks


class ExpectedBlocks(NamedTuple):
  """Expectations for each text. G = gamma.

  Attributes:
    num: [..., N] blocks.
    examined: [..., N, G] blocks that examined draft j, inside the text.
    accepted: [..., N, G] blocks that accepted it.
  """

  num: np.ndarray
  examined: np.ndarray
  accepted: np.ndarray


def blocks_of_texts(rates, lengths, gamma: int) -> ExpectedBlocks:
  """Returns what writing texts takes, in expectation.

  The chance that a block begins at a token is carried along the text: a block
  that begins at t and accepts j of its drafts ends at t + j, whose token is the
  correction or the bonus.

  Args:
    rates: [..., N, T], how likely the draft of each token was accepted.
    lengths: [N] tokens of the texts, EOS included.
    gamma: drafted tokens per block.

  >>> blocks = blocks_of_texts([[1, 1, 0, 1, 1, 1]], [6], 2)
  >>> blocks.num, blocks.accepted
  (array([2.]), array([[2., 2.]]))
  """
  rates = checks.probability("rates", rates)
  gamma = checks.count("gamma", gamma, 1)
  num = rates.shape[-1]
  inside = np.arange(num) < np.asarray(lengths)[:, None]
  begins = np.zeros((*rates.shape[:-1], num + gamma + 1))
  begins[..., 0] = 1
  examined, accepted = np.zeros((2, *rates.shape[:-1], gamma))
  for start in range(num):
    reach = begins[..., start] = begins[..., start] * inside[:, start]
    for j in range(min(gamma, num - start)):
      reach = reach * inside[:, start + j]
      passed = reach * rates[..., start + j]
      examined[..., j] += reach
      accepted[..., j] += passed
      begins[..., start + j + 1] += reach - passed
      reach = passed
    begins[..., start + gamma + 1] += reach
  return ExpectedBlocks(begins[..., :num].sum(-1), examined, accepted)
