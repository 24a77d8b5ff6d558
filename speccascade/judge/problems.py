"""What samplers are asked: pairs of small models, settings, and the answer.

A problem has two Markov chains over V tokens, a drafter and a verifier, whose
logits are tables. A sampler that is lossless writes what the verifier's chain
would write, so the right distribution is a product of table entries.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools

import numpy as np

Law = dict[tuple, float]
# From the rows (q, p), [..., V] each, to the distribution that is claimed.
ClaimedTarget = Callable[[np.ndarray, np.ndarray], np.ndarray]


def probabilities(
  logits, temperature: float = 1.0, top_k: int | None = None, top_p=None
) -> np.ndarray:
  """Returns the distribution that is sampled: temperature, top-k, then top-p.

  Top-p keeps the smallest set of tokens that reaches p, the crossing token
  included. Of equal logits the lower token is larger. At temperature 0 all is
  on the largest.

  Args:
    logits: [..., V].
    temperature: at least 0.
    top_k: how many tokens are kept; None keeps all.
    top_p: in (0, 1]; None keeps all.

  >>> probabilities(np.log([0.5, 0.3, 0.2]), top_p=0.6).round(3)
  array([0.625, 0.375, 0.   ])
  """
  logits = np.asarray(logits, np.float64)
  order = np.argsort(-logits, axis=-1, kind="stable")
  rank = np.argsort(order, axis=-1, kind="stable")
  if temperature == 0:
    return (rank == 0).astype(np.float64)
  probs = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
  if top_k is not None:
    probs = np.where(rank < top_k, probs, 0)
  probs = probs / probs.sum(-1, keepdims=True)
  if top_p is not None:
    falling = np.take_along_axis(probs, order, -1)
    before = np.cumsum(falling, -1) - falling
    kept = np.take_along_axis(before < top_p - 1e-12, rank, -1)
    probs = np.where(kept, probs, 0)
    probs = probs / probs.sum(-1, keepdims=True)
  return probs


@functools.lru_cache(maxsize=1024)
def row_probabilities(row: tuple, temperature, top_k, top_p) -> np.ndarray:
  """Returns `probabilities` of one row, and remembers them."""
  return probabilities(np.array(row), temperature, top_k, top_p)


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
  """A pair of models with settings, for a sampler to write some tokens.

  Attributes:
    label: what is asked, in a few words.
    q_logits: [V, V] the drafter's logits after each token.
    p_logits: [V, V] the verifier's.
    gamma: tokens that a block drafts.
    num_tokens: how many tokens to write; more are cut.
    temperature: of both models.
    top_k: of both models; None keeps all tokens.
    top_p: of both models, after temperature and top-k; None keeps all tokens.
    prompts: the tokens before each row's text. A sampler gets one, unless it
      is asked for several rows.
  """

  label: str
  q_logits: np.ndarray
  p_logits: np.ndarray
  gamma: int = 1
  num_tokens: int = 2
  temperature: float = 1.0
  top_k: int | None = None
  top_p: float | None = None
  prompts: tuple[tuple[int, ...], ...] = ((0,),)

  @property
  def vocab_size(self) -> int:
    return self.p_logits.shape[-1]

  @property
  def prompt(self) -> tuple[int, ...]:
    """The tokens before the first row's text."""
    return self.prompts[0]

  def drafter(self, tokens) -> np.ndarray:
    """Returns the drafter's logits after some tokens, prompt included, [V]."""
    return self.q_logits[int(tokens[-1])]

  def verifier(self, tokens) -> np.ndarray:
    """Returns the verifier's logits after some tokens, prompt included, [V]."""
    return self.p_logits[int(tokens[-1])]

  @functools.cached_property
  def tables(self) -> tuple[np.ndarray, np.ndarray]:
    """(q, p), [V, V] each: the distributions as sampled."""
    settings = self.temperature, self.top_k, self.top_p
    return tuple(
      probabilities(x, *settings) for x in (self.q_logits, self.p_logits)
    )

  def claimed(self, target: ClaimedTarget | None = None) -> Law:
    """Returns the law of the tokens that a right sampler writes.

    Args:
      target: the claimed distribution of a token; None is the verifier's.

    Returns:
      The probability of each text of a row; with several prompts, of each
      tuple of texts, whose rows are independent.
    """
    q, p = self.tables
    pi = p if target is None else np.asarray(target(q, p))
    rows = [chain(pi, prompt[-1], self.num_tokens) for prompt in self.prompts]
    if len(rows) == 1:
      return rows[0]
    joint: Law = {(): 1.0}
    for row in rows:
      joint = {
        (*texts, text): chance * more
        for texts, chance in joint.items()
        for text, more in row.items()
      }
    return joint


def chain(table: np.ndarray, last: int, length: int) -> Law:
  """Returns the law of the next `length` tokens of a chain.

  Args:
    table: [V, V] the law after each token.
    last: the token before.
    length: number of tokens.
  """
  law: Law = {(): 1.0}
  for _ in range(length):
    law = {
      (*text, token): chance * more
      for text, chance in law.items()
      for token, more in enumerate(table[text[-1] if text else last].tolist())
      if more > 0
    }
  return law


def distance(law: Law, other: Law) -> float:
  """Returns the total variation between two laws."""
  keys = law.keys() | other.keys()
  return 0.5 * sum(abs(law.get(k, 0.0) - other.get(k, 0.0)) for k in keys)


def random_logits(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the logits [V, V] of a drafter and of a verifier that differ."""
  rng = np.random.Generator(np.random.PCG64([size, seed]))
  q = rng.normal(0, 1.2, (size, size))
  return q, 0.3 * q + rng.normal(0, 1.2, (size, size))


def pairs() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields (label, q_logits, p_logits), from small to large."""
  never = -np.inf
  yield ("V = 2", *random_logits(2, 1))
  q, p = random_logits(3, 1)
  yield "V = 3", q, p
  yield "q = p", q, q.copy()
  # Equal but for the last bits: a rejection is all but impossible, and leaves
  # nothing to draw from.
  yield "q = p, rounded", q, (q + 1e-7).astype(np.float32).astype(np.float64)
  zeros_q, zeros_p = q.copy(), p.copy()
  zeros_q[0, 2] = zeros_q[1, 0] = zeros_p[0, 1] = zeros_p[2, 0] = never
  yield "tokens of probability 0", zeros_q, zeros_p
  apart_q, apart_p = q.copy(), p.copy()
  apart_q[:, 1:] = never
  apart_p[:, 0] = never
  yield "disjoint supports", apart_q, apart_p
  one_q, one_p = np.full((3, 3), never), np.full((3, 3), never)
  one_q[[0, 1, 2], [1, 2, 0]] = one_p[[0, 1, 2], [1, 0, 0]] = 0
  yield "one-hot distributions", one_q, one_p
  yield "one-hot drafter", one_q, p
  tied = np.log(np.array([[0.4, 0.4, 0.2], [0.25, 0.25, 0.5], [1, 1, 1]]))
  yield "ties", np.roll(tied, 1, axis=0), tied


def step_problems() -> Iterator[Problem]:
  """Yields the problems of one verifier step."""
  for label, q, p in pairs():
    for gamma in (1, 2):
      yield Problem(f"{label}, gamma {gamma}", q, p, gamma, gamma + 1)
  yield Problem("V = 2, gamma 3", *random_logits(2, 1), 3, 4)
  yield Problem("V = 4, gamma 1", *random_logits(4, 1), 1, 2)


@functools.lru_cache(maxsize=16)
def sampler_problems(
  settings: tuple[str, ...] = (), num_rows: int = 1
) -> tuple[Problem, ...]:
  """Returns the problems of a whole sampler.

  Args:
    settings: those of temperature, top_k and top_p that the sampler takes.
    num_rows: how many rows it can be asked for at a time.
  """
  return tuple(_sampler_problems(settings, num_rows))


def _sampler_problems(settings, num_rows) -> Iterator[Problem]:
  """Yields the problems of a whole sampler."""
  q, p = random_logits(3, 1)
  for label, q_logits, p_logits in pairs():
    yield Problem(f"{label}, one round", q_logits, p_logits)
  small = random_logits(2, 1)
  yield Problem("V = 2, two rounds", *small, 1, 3)
  yield Problem("V = 2, gamma 2, two rounds", *small, 2, 3)

  def asked(label, **given):
    if all(name in settings for name in given):
      yield Problem(label, q, p, **given)

  yield from asked("temperature 0.6", temperature=0.6)
  yield from asked("temperature 1.7", temperature=1.7)
  yield from asked("greedy", temperature=0.0)
  yield from asked("top-k 2", top_k=2)
  yield from asked("top-p 0.7", top_p=0.7)
  yield from asked("top-k 2, temperature 1.7", top_k=2, temperature=1.7)
  for temperature in (0.5, 1.7):
    label = f"top-p 0.8, temperature {temperature}"
    yield from asked(label, top_p=0.8, temperature=temperature)
  yield from asked("top-k 2, top-p 0.6", top_k=2, top_p=0.6)
  if num_rows > 1:
    for label, prompts in (("rows", ((0,), (1,))), ("equal rows", ((0,),) * 2)):
      yield Problem(f"two {label}", q, p, num_tokens=1, prompts=prompts)
