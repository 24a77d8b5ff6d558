"""Markov chains whose distributions are small tables, in pairs.

A pair stands for a drafter and a verifier. Whatever a sampler does with such a
pair, the distribution that its output must have is a table, too.
"""

import dataclasses
import functools

import numpy as np

EOS = 1


@dataclasses.dataclass(frozen=True, eq=False)
class ChainPair:
  """A drafter and a verifier over V tokens that look at the last n.

  Attributes:
    q_logits: [V] * n + [V] float64, oldest context axis first.
    p_logits: the same, the verifier's.
    prompt: tokens that rows continue, after others of their own; n or more,
      or none: then a start token is fed.
  """

  q_logits: np.ndarray
  p_logits: np.ndarray
  prompt: tuple[int, ...] = ()

  @classmethod
  def random(cls, vocab_size: int, order: int, seed: int):
    """Returns a pair that is drawn once: the same arguments, the same tables.

    The two models differ enough that a wrong verifier step moves the
    distribution of the output by a total variation that a test can see. Some
    probabilities are zero.
    """
    rng = np.random.default_rng([vocab_size, order, seed])
    shape = (vocab_size,) * (order + 1)
    q = rng.normal(0, 1.1, shape)
    # The verifier shares a part of the drafter's taste.
    p = 0.3 * q + rng.normal(0, 1.3, shape)
    # The end is neither rare nor certain, whatever came before.
    for table in (q, p):
      table[..., EOS] = np.clip(table[..., EOS], -1, 0.5)
    # Zeros: one that only the drafter has, one that only the verifier has.
    flat_q, flat_p = (x.reshape(-1, vocab_size) for x in (q, p))
    flat_q[1, 2] = flat_p[2, 0] = -np.inf
    return cls(q, p)

  @property
  def vocab_size(self) -> int:
    return self.q_logits.shape[-1]

  @property
  def order(self) -> int:
    return self.q_logits.ndim - 1

  @property
  def num_contexts(self) -> int:
    return self.vocab_size**self.order

  def next_context(self) -> np.ndarray:
    """Returns [S, V], the context that follows each context and token.

    Contexts are numbered as the tables are laid out; see `start`.
    """
    context = np.arange(self.num_contexts)[:, None] * self.vocab_size
    return (context + np.arange(self.vocab_size)) % self.num_contexts

  @property
  def start(self) -> int:
    """The context before the first token: zeros, or the prompt's end."""
    weights = self.vocab_size ** np.arange(self.order)[::-1]
    return int(sum(weights * (self.prompt or (0,) * self.order)[-self.order :]))

  def flat(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the two tables as [S, V]."""
    shape = (self.num_contexts, self.vocab_size)
    return self.q_logits.reshape(shape), self.p_logits.reshape(shape)


def chain_law(
  pair: ChainPair, table: np.ndarray, length: int, eos: int | None = EOS
) -> np.ndarray:
  """Returns the distribution of sequences drawn from a table; see `sequences`.

  Args:
    pair: gives the contexts.
    table: [S, V], the distribution of the next token in each context.
    length: most tokens, EOS counted.
    eos: the token that ends a sequence; None where none does.
  """
  follow = pair.next_context()
  mass, context = np.ones(1), np.full(1, pair.start)
  parts = []
  for step in range(1, length + 1):
    grown = mass[:, None] * table[context]
    context = follow[context].reshape(-1)
    ended = np.zeros_like(grown)
    if step == length:
      ended = grown
    elif eos is not None:
      ended[:, eos] = grown[:, eos]
    parts.append(ended.reshape(-1))
    mass = (grown - ended).reshape(-1)
  return np.concatenate(parts)


@functools.cache
def sequences(vocab_size: int, length: int) -> tuple[tuple[int, ...], ...]:
  """Returns the token sequences in the order of `chain_law`'s entries.

  Of 1, 2, ..., `length` tokens, each in order of the number they spell. Those
  that run on after an EOS, or end without one too early, have no mass.
  """
  return tuple(
    tuple(int(x) for x in np.unravel_index(i, (vocab_size,) * size))
    for size in range(1, length + 1)
    for i in range(vocab_size**size)
  )


def sequence_index(tokens: np.ndarray, lengths: np.ndarray, vocab_size: int):
  """Returns [B], the place of decoded rows in `chain_law`'s order."""
  tokens, lengths = np.asarray(tokens), np.asarray(lengths)
  inside = np.arange(tokens.shape[1]) < lengths[:, None]
  number = np.zeros(len(tokens), int)
  for column, here in zip(tokens.T, inside.T):
    number = np.where(here, number * vocab_size + column, number)
  shorter = [sum(vocab_size**i for i in range(1, n)) for n in range(64)]
  return number + np.asarray(shorter, dtype=object)[lengths].astype(int)
