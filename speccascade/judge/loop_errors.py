"""Known errors of the loop around a verifier step; see `known_errors`.

What the verifier sees of the text, what ends it, and how several candidates for
a place are tried.
"""

import itertools

import numpy as np

from speccascade.judge.problems import Problem
from speccascade.judge.right_sampler import RightSampler


class ContextBehind(RightSampler):
  """The verifier's rows are those of the text without its last token."""

  name = "the verifier's context is one token behind"

  def context(self, text, drafts):
    return (text + drafts)[:-1]


class ShortContext(RightSampler):
  """Each pass is given the last token alone, as if nothing were cached."""

  name = "the verifier sees the last token alone"

  def context(self, text, drafts):
    return (text + drafts)[-1:]


class StaleContext(RightSampler):
  """Rejected drafts stay in the verifier's cache; the text follows them.

  In the other form the cache is cut to the length of the text, but the last
  token was never fed: the rejected draft is in its place.
  """

  name = "drafts that were rejected stay in the verifier's context"
  in_place = False

  @classmethod
  def variants(cls):
    return cls, StaleSlot

  def begin(self):
    self.cached: list[int] = []
    self.num_fed = 0

  def context(self, text, drafts):
    return self.cached + text[self.num_fed :] + drafts

  def verify(self, tokens, q, p):
    emitted = super().verify(tokens, q, p)
    self.fed = list(tokens), len(emitted) - 1
    return emitted

  def round(self, text):
    emitted = super().round(text)
    drafts, num_accepted = self.fed
    self.cached = self.context(text, drafts)
    self.num_fed = len(text) + num_accepted
    if self.in_place:
      self.cached = self.cached[: len(text) + len(emitted)]
      # A bonus token has no draft in its place.
      self.num_fed = len(self.cached)
    return emitted


class StaleSlot(StaleContext):
  """A rejected draft stays in the place of its replacement."""

  in_place = True


class EosRejected(RightSampler):
  """A drafted end is not verified, but taken for a rejection."""

  name = "a drafted EOS is taken for a rejection"

  @classmethod
  def applies(cls, problem: Problem) -> bool:
    return problem.eos is not None

  def accepts(self, token, q, p):
    return token != self.problem.eos and super().accepts(token, q, p)


class SeveralCandidates(RightSampler):
  """Several candidates are drawn for a place, and tried without an error.

  They are tried in the order in which they were drawn. After each rejection the
  residual takes the place of p (recursive rejection sampling).

  Source: Miao et al. (SpecInfer, arXiv 2305.09781), section 4.3.
  """

  num = 2
  most_tokens = 2

  def accepts(self, token, q, p):
    # A draw from weights, of which the judge knows the cells at once.
    chance = min(1.0, p[token] / q[token])
    return bool(self.draw([1 - chance, chance]))

  def tried(self, candidates: list[int], q: np.ndarray) -> list[int]:
    """Returns the candidates in the order in which they are tried."""
    return candidates

  def round(self, text):
    q = self.probs(self.problem.drafter(text), "drafter")
    p = self.probs(self.problem.verifier(text), "verifier")
    for token in self.tried([self.draft(q) for _ in range(self.num)], q):
      if self.accepts(token, q, p):
        after = self.problem.verifier([*text, token])
        return [token, self.draw(self.probs(after, "verifier"))]
      left = np.maximum(p - q, 0)
      p = left / left.sum() if left.sum() > 0 else p
    return [self.draw(p)]


def _sorted_by_q(candidates, q):
  return sorted(candidates, key=lambda token: -q[token])


def _merged(candidates, q):
  return list(dict.fromkeys(candidates))


def _merged_and_sorted(candidates, q):
  return sorted({*candidates})


def _forms(cls, orders) -> tuple[type, ...]:
  """Returns an error with 2 and with 3 candidates, in each of some orders."""

  def form(num, order):
    tried = lambda self, candidates, q: order(candidates, q)
    return type(cls.__name__, (cls,), {"num": num, "tried": tried})

  return tuple(form(*each) for each in itertools.product((2, 3), orders))


class SortedCandidates(SeveralCandidates):
  """Independent candidates are tried from the likeliest on."""

  name = "candidates are sorted before they are tried"

  def tried(self, candidates, q):
    return _sorted_by_q(candidates, q)

  @classmethod
  def variants(cls):
    return _SORTED


class MergedCandidates(SeveralCandidates):
  """Independent candidates that repeat each other are tried once."""

  name = "candidates that repeat each other are merged"

  def tried(self, candidates, q):
    return _merged(candidates, q)

  @classmethod
  def variants(cls):
    return _MERGED


_SORTED = _forms(SortedCandidates, (_sorted_by_q, lambda x, q: sorted(x)))
_MERGED = _forms(MergedCandidates, (_merged, _merged_and_sorted))
