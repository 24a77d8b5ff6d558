"""The right sampler in a few lines, which the known errors change."""

import numpy as np

from speccascade.judge.problems import Problem, row_probabilities


class RightSampler:
  """Speculative sampling, without an error.

  Source: Leviathan et al. (arXiv 2211.17192), Algorithm 1.
  """

  name = "none"
  # Longer texts have too many paths to be enumerated as a cause.
  most_tokens = 99

  def __init__(self, problem: Problem | None, seed: int | None = 0):
    self.problem, self.seed = problem, seed
    self.rng = np.random.default_rng(seed)

  @classmethod
  def applies(cls, problem: Problem) -> bool:
    """Returns whether the error can change the distribution of a problem."""
    return True

  @classmethod
  def variants(cls) -> tuple[type, ...]:
    """Returns the forms that the error has, which write different texts."""
    return (cls,)

  def begin(self):
    """Begins a row."""

  def probs(self, logits, who: str) -> np.ndarray:
    """Returns the distribution of "drafter" or "verifier", as sampled."""
    of = self.problem
    return row_probabilities(tuple(logits), of.temperature, of.top_k, of.top_p)

  def draw(self, weights) -> int:
    """Returns a token drawn from weights."""
    weights = np.asarray(weights)
    return int(self.rng.choice(len(weights), p=weights / weights.sum()))

  def draft(self, q) -> int:
    """Returns a drafted token."""
    return self.draw(q)

  def accepts(self, token, q, p) -> bool:
    """Returns whether a drafted token is accepted."""
    return bool(self.rng.random() * q[token] < p[token])

  def replacement(self, q, p) -> int:
    """Returns the token in a rejected draft's place."""
    left = np.maximum(p - q, 0)
    return self.draw(left if left.sum() > 0 else p)

  def verify(self, tokens, q, p) -> list[int]:
    """Returns what a block emits.

    Args:
      tokens: [G] drafts.
      q: [G, V] distribution of each draft.
      p: [G+1, V] the verifier's.
    """
    for i, token in enumerate(tokens):
      if not self.accepts(token, q[i], p[i]):
        return [*tokens[:i], self.replacement(q[i], p[i])]
    return [*tokens, self.draw(p[len(tokens)])]

  def context(self, text: list[int], drafts: list[int]) -> list[int]:
    """Returns what the verifier sees of a text and some drafts after it."""
    return text + drafts

  def round(self, text: list[int]) -> list[int]:
    """Returns what a round adds to a text."""
    of, drafts, q = self.problem, [], []
    for _ in range(of.gamma):
      q.append(self.probs(of.drafter(text + drafts), "drafter"))
      drafts.append(self.draft(q[-1]))
    p = [
      self.probs(of.verifier(self.context(text, drafts[:i])), "verifier")
      for i in range(of.gamma + 1)
    ]
    return self.verify(drafts, np.array(q), np.array(p))

  def sample(self) -> list[int] | list[list[int]]:
    """Returns the tokens of the row, or of each of several rows."""
    texts = []
    for prompt in self.problem.prompts:
      self.begin()
      text = list(prompt)
      while len(text) < len(prompt) + self.problem.num_tokens:
        text += self.round(text)
      texts.append(text[len(prompt) :])
    return texts if len(texts) > 1 else texts[0]
