"""Markov chains whose laws are small tables, as models for the decoders.

The pairs are drawn once and fixed. They differ enough that a wrong verifier
step moves the law of the output by a total variation that a test can see, and
their confidences cross, so that every rule defers in some contexts and keeps
in others. Some probabilities are zero.
"""

import dataclasses
import functools

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from speccascade.decoding import METHODS, Decoder, Sampling, row_keys
from speccascade.decoding.loops import prompts
from speccascade.decoding.types import Output, is_drafter
from speccascade.models import T5Config, tree_windows
from speccascade.models.markov_lm import FiniteContext, MarkovLM

EOS = 1
GREEDY = Sampling.create(0.0)
LEVEL = 1e-6  # of a chi-square test

# Two worked pairs (q, p). TV is .3 in both. Entropies: H(q1) 1.1421200, H(p1)
# 1.2798542; H(q2) is H(p1) (the same numbers in another order), H(p2) .9142856.
WORKED = {
  1: (np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.4, 0.3, 0.1])),
  2: (np.array([0.3, 0.4, 0.2, 0.1]), np.array([0.1, 0.7, 0.15, 0.05])),
}

# Seeds at which every rule has an alpha that tells pi from p and from q.
_SEEDS = {(3, 2): 30, (4, 1): 17}


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
  """A drafter and a verifier over V tokens that look at the last n.

  Attributes:
    q_logits: [V] * n + [V] float64, oldest context axis first.
    p_logits: the same, the verifier's.
    prompt: tokens that rows go on from, after others of their own; n or more,
      or none: then a start token is fed.
  """

  q_logits: np.ndarray
  p_logits: np.ndarray
  prompt: tuple[int, ...] = ()

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

  def models(self, dtype=jnp.float32) -> tuple[MarkovLM, MarkovLM]:
    """Returns (drafter, verifier) as language models."""
    return tuple(
      MarkovLM(jnp.asarray(table, dtype)[None], prompted=bool(self.prompt))
      for table in (self.q_logits, self.p_logits)
    )

  def inputs(self, num: int):
    """Returns [num, S] int32: any source, or ragged prompts padded anyhow."""
    if not self.prompt:
      return jnp.ones((num, 1), jnp.int32)
    ragged = padded([(2, 0, 1, 2)[:n] + self.prompt for n in range(5)])
    rows = np.stack([np.roll(ragged, n, axis=1) for n in range(3)])
    rows = rows.reshape(-1, ragged.shape[1])
    return jnp.asarray(rows[np.arange(num) % len(rows)])


@functools.cache
def pair(vocab_size: int = 3, order: int = 2, seed: int | None = None) -> Pair:
  """Returns a fixed pair; the same arguments give the same object."""
  seed = _SEEDS[vocab_size, order] if seed is None else seed
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
  return Pair(q, p)


@functools.cache
def sources(
  num: int = 64, vocab_size: int = 7, order: int = 1, eos: float = 0.5
) -> tuple[MarkovLM, MarkovLM]:
  """Returns (drafter, verifier) with a table for each of `num` sources.

  Args:
    num: K; row b decodes source `inputs[b, 0]`.
    vocab_size: V.
    order: tokens looked at.
    eos: mean logit of the end; the others are normal about 0, all spread 1.5.
  """
  rng = np.random.default_rng([num, vocab_size, order])
  shape = (num, *(vocab_size,) * (order + 1))
  p = rng.normal(0, 1.5, shape)
  q = 0.75 * p + rng.normal(0, 0.8, shape)
  for table in (q, p):
    table[..., EOS] += eos
  return tuple(MarkovLM(jnp.asarray(x, jnp.float32)) for x in (q, p))


@struct.dataclass
class WholeLM(FiniteContext):
  """A model whose every law depends on all tokens before it, and their places.

  Attributes:
    table: [K, V] float logits; a number of the text chooses among them.
    prompted: static, as of any model.
  """

  table: jax.Array
  prompted: bool = struct.field(pytree_node=False, default=True)

  @property
  def vocab_size(self) -> int:
    return self.table.shape[1]

  def extend(
    self, state, tokens, count, *, read=None, depth=None, ancestors=None
  ):
    tree_windows.check(tokens, depth, ancestors)
    held = (state.offset + state.length)[:, None]
    fed = jax.vmap(jax.lax.dynamic_update_slice)(state.tokens, tokens, held)
    place = jnp.arange(tokens.shape[1])[None] if read is None else read
    slots = jnp.arange(fed.shape[1])[None]
    numbers = self.numbers(fed, slots)
    if depth is None:
      numbers = jnp.take_along_axis(numbers, held + place, axis=1)
    else:
      # The chain before the window, and what each node sees of the window.
      columns = jnp.arange(depth.shape[1])[None]
      first = held - (depth.shape[1] - tokens.shape[1])
      before = jnp.where(slots < first, self.weigh(fed, slots), 0).sum(1)
      window = jnp.take_along_axis(fed, first + columns, axis=1)
      weighed = self.weigh(window, first + depth)
      inside = jnp.where(ancestors, weighed[:, None], 0).sum(2)
      numbers = (before[:, None] + inside) % self.table.shape[0]
      numbers = jnp.take_along_axis(numbers, place, axis=1)
    state = state.replace(tokens=fed, length=state.length + count)
    return state, Output(logits=self.table[numbers])

  def weigh(self, text, place):
    """Returns [B, L], what each token at its place adds to a text's number."""
    return (text + 1) * ((5 * place + 3) * (place + 2) % 53)

  def numbers(self, text, place):
    """Returns [B, L], the number of each text up to each of its tokens."""
    return self.weigh(text, place).cumsum(axis=1) % self.table.shape[0]


@functools.cache
def whole(vocab_size: int = 8, **how) -> tuple[WholeLM, WholeLM]:
  """Returns (drafter, verifier) that see the whole text."""
  rng = np.random.default_rng(vocab_size)
  p = rng.normal(0, 1.5, (101, vocab_size))
  q = 0.75 * p + rng.normal(0, 0.8, p.shape)
  return tuple(WholeLM(jnp.asarray(x, jnp.float32), **how) for x in (q, p))


# Ragged, ids 0 among them.
PROMPTS = ((3,), (0, 2), (2, 0, 1, 5), (4, 4, 3), (0, 0, 0, 0, 6))


def padded(texts, side: str = "right", width: int = 8) -> np.ndarray:
  """Returns [B, width] int32, padded at the "left", "right" or "both" ends."""
  rows = np.full((len(texts), width), prompts.PAD, np.int32)
  for row, text in zip(rows, texts):
    start = {"right": 0, "both": 1, "left": width - len(text)}[side]
    row[start : start + len(text)] = text
  return rows


def markov(laws) -> MarkovLM:
  """Returns a chain of order 1 from its [V, V] laws."""
  with np.errstate(divide="ignore"):
    return MarkovLM(jnp.asarray(np.log(laws), jnp.float32)[None])


def moving(moves: dict[int, int], size: int, rest: float = 0.02) -> MarkovLM:
  """Returns a chain that moves as told; every other token has `rest`."""
  laws = np.full((size, size), rest)
  for last, token in moves.items():
    laws[last, token] = 1 - (size - 1) * rest
  return markov(laws)


def rows(num: int):
  """Returns (inputs, keys) of a batch with one row for each source."""
  index = jnp.arange(num)
  return index[:, None].astype(jnp.int32), row_keys(0, 0, index)


def decode(
  method, models, alpha=None, sampling=GREEDY, *, inputs=None, keys=None, **how
):
  """Returns what a method writes, `Decoded` of NumPy arrays.

  Args:
    method: its name, or itself.
    models: (drafter, verifier).
    alpha: None for the default.
    sampling: a `Sampling`.
    inputs: [B, S] or the number of rows, one for each source; None for as many
      as the verifier has sources.
    keys: [B]; None for those of examples 0, 1, ...
    **how: settings of `Decoder`; 10 tokens at most unless told, and gamma 3, or
      the width of a `Drafter`.
  """
  method = METHODS[method] if isinstance(method, str) else method
  inputs = models[1].table.shape[0] if inputs is None else inputs
  if isinstance(inputs, int):
    inputs, _ = rows(inputs)
  keys = row_keys(0, 0, jnp.arange(len(inputs))) if keys is None else keys
  alpha = method.default_alpha if alpha is None else alpha
  gamma = models[0].width if is_drafter(models[0]) else 3
  how = {"gamma": gamma, "max_decode_len": 10, "eos_id": EOS} | how
  decoded = Decoder(method, **how)(*models, inputs, keys, alpha, sampling)
  return jax.tree.map(np.asarray, decoded)


def chain_law(pair: Pair, table: np.ndarray, length: int) -> np.ndarray:
  """Returns the law of sequences drawn from a table; see `sequences`.

  Args:
    pair: gives the contexts.
    table: [S, V], the law of the next token in each context.
    length: most tokens, EOS counted.
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
    else:
      ended[:, EOS] = grown[:, EOS]
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


def counts(decoded, vocab_size: int, length: int, rows=slice(None)):
  """Returns how often some rows wrote each sequence, in `chain_law`'s order."""
  tokens, lengths = decoded.tokens[rows], decoded.lengths[rows]
  index = sequence_index(tokens, lengths, vocab_size)
  size = sum(vocab_size**n for n in range(1, length + 1))
  return np.bincount(index, minlength=size)


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
  """Returns Pearson's p-value; cells that expect less than 10 are pooled.

  A count where the law has no mass gives 0.
  """
  if np.any(counts[law < 1e-12] > 0):
    return 0.0
  expected = law / law.sum() * counts.sum()
  small = expected < 10
  seen = np.append(counts[~small], counts[small].sum())
  expected = np.append(expected[~small], expected[small].sum())
  if expected[-1] < 1e-6:
    seen, expected = seen[:-1], expected[:-1]
  value = np.sum((seen - expected) ** 2 / expected)
  return float(stats.chi2.sf(value, len(expected) - 1))


def tv(law: np.ndarray, other: np.ndarray) -> float:
  """Returns the total variation between two laws."""
  return 0.5 * float(np.abs(law - other).sum())


def t5_config(**sizes) -> T5Config:
  """Returns a tiny architecture, whose heads together are no `emb_dim` wide."""
  layers = dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 1)
  width = {"emb_dim": 24, "num_heads": 3, "head_dim": 4, "mlp_dim": 20}
  return T5Config(**{"vocab_size": 40, **width, **layers, **sizes})


def nightly(cases, quick=()) -> list:
  """Returns the parameters of a test, of which all but quick ones are slow."""
  return [
    pytest.param(
      *(case if isinstance(case, tuple) else [case]),
      marks=[] if case in quick else pytest.mark.slow,
    )
    for case in cases
  ]
