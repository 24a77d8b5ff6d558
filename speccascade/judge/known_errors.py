"""The known errors of the field, as working examples.

Each error is a working example: a change of a few lines to `RightSampler`. The
judge catches each, and compares what it judges with all of them, to name the
likely cause of a wrong distribution.
"""

import numpy as np

from speccascade.judge import loop_errors
from speccascade.judge.problems import row_probabilities
from speccascade.judge.right_sampler import RightSampler


class SharedNoise(RightSampler):
  """The number that drew a draft also draws its replacement."""

  name = "draft and replacement share their random number"

  def draft(self, q):
    self.u = getattr(self, "u", [])
    self.u.append(self.rng.random())
    return int(np.searchsorted(np.cumsum(q), self.u[-1], side="right"))

  def verify(self, tokens, q, p):
    for i, token in enumerate(tokens):
      if not self.accepts(token, q[i], p[i]):
        left = np.maximum(p[i] - q[i], 0)
        u = self.u[i - len(tokens)] * left.sum()
        drawn = int(np.searchsorted(np.cumsum(left), u, side="right"))
        return [*tokens[:i], drawn]
    return [*tokens, self.draw(p[len(tokens)])]


class ReplacementFromVerifier(RightSampler):
  """A rejected draft is replaced from p, not from the residual."""

  name = "a rejected draft is replaced from p, not from the residual"

  def replacement(self, q, p):
    return self.draw(p)


class ReplacementWithoutDraft(RightSampler):
  """A rejected draft is replaced from p without it; right if q is one-hot."""

  name = "a rejected draft is replaced from p without the draft"

  def verify(self, tokens, q, p):
    for i, token in enumerate(tokens):
      if not self.accepts(token, q[i], p[i]):
        others = np.where(np.arange(len(p[i])) == token, 0, p[i])
        return [*tokens[:i], self.draw(others if others.any() else p[i])]
    return [*tokens, self.draw(p[len(tokens)])]


class BonusOfLastDraft(RightSampler):
  """The token after an accepted block is drawn from the last draft's row."""

  name = "the bonus token is drawn from the row of the last draft"

  def verify(self, tokens, q, p):
    last = [*p[: len(tokens)], p[len(tokens) - 1]]
    return super().verify(tokens, q, np.array(last))


class OneUniform(RightSampler):
  """One uniform decides on all drafts of a block."""

  name = "one uniform decides on all drafts of a block"

  def verify(self, tokens, q, p):
    u = self.rng.random()
    for i, token in enumerate(tokens):
      if u * q[i][token] >= p[i][token]:
        return [*tokens[:i], self.replacement(q[i], p[i])]
    return [*tokens, self.draw(p[len(tokens)])]


class AbsoluteResidual(RightSampler):
  """The residual is |p - q|: its negative part is not clipped."""

  name = "the residual is |p - q| instead of max(0, p - q)"

  def replacement(self, q, p):
    return self.draw(np.abs(p - q) if np.any(p != q) else p)


class ResidualOfNextPlace(RightSampler):
  """The residual is that of the place after the rejected draft."""

  name = "the residual is taken one place too late"

  def verify(self, tokens, q, p):
    for i, token in enumerate(tokens):
      if not self.accepts(token, q[i], p[i]):
        late = min(i + 1, len(tokens) - 1)
        return [*tokens[:i], self.replacement(q[late], p[i + 1])]
    return [*tokens, self.draw(p[len(tokens)])]


class EagerBlock(RightSampler):
  """A block of drafts is accepted where the product of its ratios says so.

  The product alone accepts more than the optimum allows: block verification
  (arXiv 2403.10444) accepts a prefix inside a block with a smaller chance, and
  scales its residual.
  """

  name = "a block rule accepts more than the optimum allows"

  @classmethod
  def applies(cls, problem):
    return problem.gamma > 1

  def verify(self, tokens, q, p):
    reach, num = 1.0, 0
    for i, token in enumerate(tokens):
      reach = min(1.0, reach * p[i][token] / q[i][token])
      if self.rng.random() < reach:
        num = i + 1
    if num == len(tokens):
      return [*tokens, self.draw(p[num])]
    return [*tokens[:num], self.replacement(q[num], p[num])]


class UnscaledBlock(RightSampler):
  """Block verification whose residual is not scaled by the prefix's ratio.

  Source: Sun et al. (arXiv 2403.10444), Algorithm 2, where the residual is
  max(0, r p - q) and r the ratio of the accepted prefix.
  """

  name = "block verification's residual is not scaled by the prefix's ratio"

  @classmethod
  def applies(cls, problem):
    return problem.gamma > 1

  def residual(self, ratio, q, p):
    """Returns the weights of the token after an accepted prefix."""
    return np.maximum(p - q, 0)

  def verify(self, tokens, q, p):
    ratio, num = 1.0, 0
    ratios = [ratio]
    for i, token in enumerate(tokens):
      ratio = min(1.0, ratio * p[i][token] / q[i][token])
      ratios.append(ratio)
      chance = ratio
      if i + 1 < len(tokens):
        left = np.maximum(ratio * p[i + 1] - q[i + 1], 0).sum()
        chance = left / (left + 1 - ratio) if left > 0 else 0.0
      if self.rng.random() < chance:
        num = i + 1
    if num == len(tokens):
      return [*tokens, self.draw(p[num])]
    weights = self.residual(ratios[num], q[num], p[num])
    return [*tokens[:num], self.draw(weights if weights.any() else p[num])]


class ArgmaxDrafts(RightSampler):
  """Drafts are arg-max tokens, and accepted with p / q as if drawn from q."""

  name = "drafts by arg-max are accepted as if they were drawn from q"

  def draft(self, q):
    return int(np.argmax(q))


class TypicalAcceptance(RightSampler):
  """Medusa's typical acceptance: likely enough tokens are accepted.

  Source: Cai et al. (arXiv 2401.10774), section 2.3.1, with epsilon = 0.09 and
  delta = 0.3.
  """

  name = "typical acceptance (Medusa): likely enough drafts are accepted"

  def accepts(self, token, q, p):
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)))
    return bool(p[token] > min(0.09, 0.3 * np.exp(-entropy)))

  def replacement(self, q, p):
    return self.draw(p)


class ColdDrafter(RightSampler):
  """Drafts are drawn at another temperature than their distribution states."""

  name = "drafts are drawn at another temperature than q states"

  def draft(self, q):
    return self.draw(q**2)


class TopPFirst(RightSampler):
  """Top-p before temperature, where sampling alone has it after."""

  name = "top-p before temperature"

  @classmethod
  def applies(cls, problem):
    return problem.top_p is not None and problem.temperature not in (0, 1)

  def probs(self, logits, who):
    of = self.problem
    if of.temperature == 0:
      return super().probs(logits, who)
    kept = row_probabilities(tuple(logits), 1.0, of.top_k, of.top_p)
    masked = np.where(kept > 0, logits, -np.inf)
    return row_probabilities(tuple(masked), of.temperature, None, None)


class VerifierUnfiltered(RightSampler):
  """Top-k and top-p reach the drafter alone."""

  name = "top-k and top-p reach the drafter, not the verifier"

  @classmethod
  def applies(cls, problem):
    return problem.top_k is not None or problem.top_p is not None

  def probs(self, logits, who):
    if who == "drafter":
      return super().probs(logits, who)
    temperature = self.problem.temperature
    return row_probabilities(tuple(logits), temperature, None, None)


class VerifierWithoutTemperature(RightSampler):
  """Temperature reaches the drafter alone."""

  name = "temperature reaches the drafter, not the verifier"

  @classmethod
  def applies(cls, problem):
    return problem.temperature != 1

  def probs(self, logits, who):
    if who == "drafter":
      return super().probs(logits, who)
    of = self.problem
    return row_probabilities(tuple(logits), 1.0, of.top_k, of.top_p)


class SameNumbersEveryRound(RightSampler):
  """Each round starts from the same seed."""

  name = "random numbers are used again in every round"

  def round(self, text):
    self.rng = np.random.default_rng(self.seed)
    return super().round(text)


class SameNumbersEveryRow(RightSampler):
  """Each row of a batch starts from the same seed."""

  name = "the rows of a batch share their random numbers"

  @classmethod
  def applies(cls, problem):
    return len(problem.prompts) > 1

  def sample(self):
    texts = []
    for prompt in self.problem.prompts:
      row = RightSampler(self.problem, self.seed)
      text = list(prompt)
      while len(text) < len(prompt) + self.problem.num_tokens:
        text += row.round(text)
      texts.append(text[len(prompt) :])
    return texts if len(texts) > 1 else texts[0]


class AcceptsAtZero(RightSampler):
  """u <= p / q accepts a token of probability 0 where u is exactly 0.

  The distribution is right but for that chance, 2**-24 with float32 uniforms.
  """

  name = "a uniform of exactly 0 accepts a token of probability 0"

  @classmethod
  def applies(cls, problem):
    return False

  def accepts(self, token, q, p):
    return bool(self.rng.random() * q[token] <= p[token])


KNOWN_ERRORS: tuple[type[RightSampler], ...] = (
  SharedNoise,
  ReplacementFromVerifier,
  ReplacementWithoutDraft,
  BonusOfLastDraft,
  OneUniform,
  AbsoluteResidual,
  ResidualOfNextPlace,
  EagerBlock,
  UnscaledBlock,
  ArgmaxDrafts,
  TypicalAcceptance,
  ColdDrafter,
  TopPFirst,
  VerifierUnfiltered,
  VerifierWithoutTemperature,
  SameNumbersEveryRound,
  SameNumbersEveryRow,
  loop_errors.ContextBehind,
  loop_errors.ShortContext,
  loop_errors.StaleContext,
  loop_errors.EosRejected,
  loop_errors.SortedCandidates,
  loop_errors.MergedCandidates,
  AcceptsAtZero,
)
# Those of the step that verifies given drafts.
STEP_ERRORS = tuple(
  error
  for error in KNOWN_ERRORS
  if error is not SharedNoise
  and error.__module__ == __name__
  and any(name in vars(error) for name in ("accepts", "replacement", "verify"))
)


def sampler_of(error: type[RightSampler]):
  """Returns `sampler(problem, seed) -> tokens` with an error."""

  def sampler(problem, seed=0):
    return error(problem, seed).sample()

  sampler.__qualname__ = error.__name__
  return sampler


def step_of(error: type[RightSampler]):
  """Returns `step(tokens, q, p) -> tokens` with an error."""

  def step(tokens, q, p):
    return error(None, seed=None).verify(list(tokens), q, p)

  step.__qualname__ = error.__name__
  return step
