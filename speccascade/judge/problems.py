"""What samplers are asked: pairs of small models, settings, and the answer.

A problem has two Markov chains over V tokens, a drafter and a verifier, whose
logits are tables: of the last token, of the last two, or of all tokens. A
sampler that is lossless writes what the verifier's chain would write, so the
right distribution is a product of table entries.
"""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import functools
import itertools

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
    q_logits: [V] * n + [V], the drafter's logits after the last n tokens, the
      oldest first. Zeros come before the first token of a text.
    p_logits: the verifier's, of the same shape.
    gamma: tokens that a block drafts.
    num_tokens: how many tokens to write; the rest is truncated.
    temperature: of both models.
    top_k: of both models; None keeps all tokens.
    top_p: of both models, after temperature and top-k; None keeps all tokens.
    prompts: the tokens before each row's text. A sampler gets one, unless it
      is asked for several rows.
    eos: the token that ends a text, which may be shorter then; what is written
      after it is truncated. None where no token does.
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
  eos: int | None = None

  @property
  def vocab_size(self) -> int:
    return self.p_logits.shape[-1]

  @property
  def prompt(self) -> tuple[int, ...]:
    """The tokens before the first row's text."""
    return self.prompts[0]

  def drafter(self, tokens) -> np.ndarray:
    """Returns the drafter's logits after some tokens, prompt included, [V]."""
    return self.q_logits[self._context(tokens)]

  def verifier(self, tokens) -> np.ndarray:
    """Returns the verifier's logits after some tokens, prompt included, [V]."""
    return self.p_logits[self._context(tokens)]

  def rows(self, tokens) -> tuple[np.ndarray, np.ndarray]:
    """Returns (q, p), [V] each, as sampled after some tokens."""
    context = self._context(tokens)
    q, p = self.tables
    return q[context], p[context]

  def _context(self, tokens) -> tuple[int, ...]:
    """Returns the index of a table's row."""
    context = last_tokens(tokens, self.p_logits.ndim - 1)
    if min(context) < 0 or max(context) >= self.vocab_size:
      raise ValueError(
        f"the text {list(context)} has a token outside the vocabulary, which is"
        f" 0 to {self.vocab_size - 1}"
      )
    return context

  @functools.cached_property
  def tables(self) -> tuple[np.ndarray, np.ndarray]:
    """(q, p), [V] * n + [V] each: the distributions as sampled."""
    settings = self.temperature, self.top_k, self.top_p
    return tuple(
      probabilities(x, *settings) for x in (self.q_logits, self.p_logits)
    )

  def targets(self, target: ClaimedTarget | None = None) -> np.ndarray:
    """Returns the claimed rows, [V] * n + [V]; None claims the verifier's."""
    q, p = self.tables
    if target is None:
      return p
    pi = np.asarray(target(q, p))
    if pi.shape != p.shape or pi.dtype.kind != "f":
      raise ValueError(
        f"target returned {pi.dtype} of shape {pi.shape} for rows (q, p) of"
        f" shape {p.shape}; return probabilities of the same shape"
      )
    if not (np.all(pi >= 0) and np.allclose(pi.sum(-1), 1, atol=1e-4)):
      raise ValueError(
        "target returned rows that are not distributions: each must be"
        " nonnegative and sum to 1"
      )
    return pi

  def cut(self, text: tuple) -> tuple:
    """Returns what counts of a text: to its end, or to `num_tokens`."""
    text = text[: self.num_tokens]
    if self.eos in text:
      text = text[: text.index(self.eos) + 1]
    return text

  def claimed(self, target: ClaimedTarget | None = None) -> Law:
    """Returns the distribution of the tokens that a right sampler writes.

    Args:
      target: the claimed distribution of a token; None is the verifier's.

    Returns:
      The probability of each text of a row; with several prompts, of each
      tuple of texts, whose rows are independent.
    """
    pi = self.targets(target)
    rows = [
      chain(pi, prompt, self.num_tokens, self.eos) for prompt in self.prompts
    ]
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


def last_tokens(tokens, num: int) -> tuple[int, ...]:
  """Returns the last `num` tokens of a text, after zeros where it has fewer."""
  last = [int(token) for token in tokens[-num:]]
  return (*[0] * (num - len(last)), *last)


def chain(
  table: np.ndarray, before: tuple, length: int, eos: int | None = None
) -> Law:
  """Returns the distribution of the next `length` tokens of a chain.

  Args:
    table: [V] * n + [V] the distribution after the last n tokens.
    before: the tokens before.
    length: number of tokens.
    eos: the token that ends a text; None where none does.
  """
  law: Law = {(): 1.0}
  for size in range(length):
    grown: Law = {}
    for text, chance in law.items():
      if len(text) < size or (text and text[-1] == eos):
        grown[text] = chance
        continue
      row = table[last_tokens((*before, *text), table.ndim - 1)]
      for token, more in enumerate(row.tolist()):
        if more > 0:
          grown[*text, token] = chance * more
    law = grown
  return law


def distance(law: Law, other: Law) -> float:
  """Returns the total variation between two distributions."""
  keys = law.keys() | other.keys()
  return 0.5 * sum(abs(law.get(k, 0.0) - other.get(k, 0.0)) for k in keys)


def random_logits(
  size: int, seed: int, order: int = 1
) -> tuple[np.ndarray, np.ndarray]:
  """Returns logits [V] * n + [V] of a drafter and a verifier that differ."""
  rng = np.random.Generator(np.random.PCG64([size, seed]))
  shape = (size,) * (order + 1)
  q = rng.normal(0, 1.2, shape)
  return q, 0.3 * q + rng.normal(0, 1.2, shape)


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
  # It is the last one or the first: the inverse of a cumulative distribution
  # draws it from the largest numbers or the least, which are tried.
  rare = p.copy()
  for row, token in enumerate((2, 0, 2)):
    others = np.delete(p[row], token)
    rare[row, token] = np.log(1e-4 * np.exp(others).sum())
  yield "a rare token", q, rare
  tied = np.log(np.array([[0.4, 0.4, 0.2], [0.25, 0.25, 0.5], [1, 1, 1]]))
  yield "ties", np.roll(tied, 1, axis=0), tied


def history_logits(
  length: int, soft: Iterable[int], seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns logits [3] * n + [3] of a drafter and a verifier that see it all.

  Tokens 1 and 2 are written, never 0. Zeros come before the text alone, so
  that each text has a row of its own. The n-th token and those before it are
  certain, but where they are soft.

  Args:
    length: n, the most tokens that a text has, without its last.
    soft: how many tokens are before those that are not certain.
    seed: of the random logits.
  """
  shape = (3,) * (length + 1)
  q, p = np.full(shape, -np.inf), np.full(shape, -np.inf)
  q[..., 1] = p[..., 1] = 0
  rng = np.random.Generator(np.random.PCG64([length, seed]))
  for size in sorted(soft):
    for text in itertools.product((1, 2), repeat=size):
      context = last_tokens(text, length)
      q[context][1:] = rng.normal(0, 0.7, 2)
      # The other way round: enough is rejected, and enough accepted.
      p[context][1:] = -q[context][1:] * rng.uniform(0.3, 1.2)
  return q, p


def prefix_logits() -> tuple[np.ndarray, np.ndarray]:
  """Returns logits [3, 3] with a prefix that block verification accepts less.

  Token 0 is drafted twice as often as the verifier writes it. In the row after
  it the residual of a prefix with the ratio 1/2, max(0, p / 2 - q), has two
  tokens, in other shares than max(0, p - q) has them.
  """
  q = [[0.8, 0.02, 0.18], [0.3, 0.3, 0.4], [0.2, 0.5, 0.3]]
  p = [[0.4, 0.2, 0.4], [0.5, 0.3, 0.2], [0.4, 0.2, 0.4]]
  return np.log(q), np.log(p)


def step_problems() -> Iterator[Problem]:
  """Yields the problems of one verifier step."""
  for label, q, p in pairs():
    for gamma in (1, 2):
      yield Problem(f"{label}, gamma {gamma}", q, p, gamma, gamma + 1)
  yield Problem("V = 2, gamma 3", *random_logits(2, 1), 3, 4)
  # A residual of the last token, and of others.
  yield Problem("V = 4, gamma 1", *random_logits(4, 11), 1, 2)
  yield Problem("a prefix ratio below 1, gamma 2", *prefix_logits(), 2, 3)
  yield Problem("V = 2, gamma 4", *random_logits(2, 1), 4, 5)
  yield from _long_blocks()


def _long_blocks() -> Iterator[Problem]:
  """Yields blocks of 8 drafts, of which a few are uncertain at a time.

  So there are few texts. Any two drafts are uncertain together in some block,
  or in the block of "V = 2, gamma 4".
  """
  halves = (1, 2), (3, 4), (5, 6), (7, 8)
  for one, other in itertools.combinations(halves, 2):
    drafts = (*one, *other)
    if drafts == (1, 2, 3, 4):
      continue
    # Draft n comes after n - 1 tokens. The bonus, after 8, is uncertain
    # together with the last draft.
    soft = [n - 1 for n in drafts] + [8] * (8 in drafts)
    logits = history_logits(8, soft, 1)
    label = ", ".join(map(str, drafts))
    yield Problem(f"gamma 8, uncertain drafts {label}", *logits, 8, 9)


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
  yield Problem("a prefix ratio below 1, gamma 2", *prefix_logits(), 2, 2)
  yield Problem("sees two tokens, gamma 1", *random_logits(2, 3, 2), 1, 3)
  whole = history_logits(2, range(3), 1)
  yield Problem("sees all tokens, gamma 2", *whole, 2, 3)
  late = history_logits(6, (3, 5), 1)
  yield Problem("gamma 6, uncertain drafts 4, 6", *late, 6, 7)
  yield Problem("token 1 ends the text, gamma 1", q, p, 1, 2, eos=1)

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
