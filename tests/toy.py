"""Toy models for the decoders: the judge's chains, and larger ones.

The pairs are drawn once and fixed, see `toy_chains.ChainPair.random`. Their
confidences cross, so that every rule defers in some contexts and keeps in
others.
"""

import functools

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Decoder,
  Sampling,
  decode_continuously,
  row_keys,
)
from speccascade.decoding.records import prompts
from speccascade.decoding.records.automaton import NONE
from speccascade.decoding.records.block_records import Output
from speccascade.decoding.records.drafter import is_drafter
from speccascade.models import T5Config, tree_windows
from speccascade.models.markov_lm import FiniteContext, MarkovLM
from tests import toy_chains

GREEDY = Sampling.create(0.0)
LEVEL = 1e-6  # of a chi-square test
BATCH = 20_000  # rows that are sampled at a time

# Two worked pairs (q, p). TV is .3 in both. Entropies: H(q1) 1.1421200, H(p1)
# 1.2798542; H(q2) is H(p1) (the same numbers in another order), H(p2) .9142856.
WORKED = {
  1: (np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.4, 0.3, 0.1])),
  2: (np.array([0.3, 0.4, 0.2, 0.1]), np.array([0.1, 0.7, 0.15, 0.05])),
}

# Seeds at which every rule has an alpha where pi differs from p and from q.
_SEEDS = {(3, 2): 30, (4, 1): 17}


class Pair(toy_chains.ChainPair):
  """A pair of chains that decoders can run."""

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
  return Pair.random(vocab_size, order, seed)


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
    table[..., toy_chains.EOS] += eos
  return tuple(MarkovLM(jnp.asarray(x, jnp.float32)) for x in (q, p))


@struct.dataclass
class WholeLM(FiniteContext):
  """A model whose every distribution depends on all tokens before it, and their
  places.

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
    hidden = numbers[..., None].astype(jnp.float32)
    return state, Output(logits=self.table[numbers], hidden=hidden)

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
  """Returns a chain of order 1 from its [V, V] distributions."""
  with np.errstate(divide="ignore"):
    return MarkovLM(jnp.asarray(np.log(laws), jnp.float32)[None])


def moving(moves: dict[int, int], size: int, rest: float = 0.02) -> MarkovLM:
  """Returns a chain with the given moves; every other token has `rest`."""
  laws = np.full((size, size), rest)
  for last, token in moves.items():
    laws[last, token] = 1 - (size - 1) * rest
  return markov(laws)


def rows(num: int):
  """Returns (inputs, keys) of a batch with one row for each source."""
  index = jnp.arange(num)
  return index[:, None].astype(jnp.int32), row_keys(0, 0, index)


def decode(
  method,
  models,
  alpha=None,
  sampling=GREEDY,
  *,
  inputs=None,
  keys=None,
  constraints=NONE,
  **how,
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
    constraints: what texts are held to, and what ends them.
    **how: settings of `Decoder`; 10 tokens at most by default, and gamma 3, or
      the width of a `Drafter`.
  """
  method = METHODS[method] if isinstance(method, str) else method
  inputs = models[1].table.shape[0] if inputs is None else inputs
  if isinstance(inputs, int):
    inputs, _ = rows(inputs)
  keys = row_keys(0, 0, jnp.arange(len(inputs))) if keys is None else keys
  alpha = method.default_alpha if alpha is None else alpha
  gamma = models[0].width if is_drafter(models[0]) else 3
  how = {"gamma": gamma, "max_decode_len": 10, "eos_id": toy_chains.EOS} | how
  decoded = Decoder(method, **how)(
    *models, inputs, keys, alpha, sampling, constraints
  )
  return jax.tree.map(np.asarray, decoded)


def greedily(method, models, **how):
  """Returns what a method writes greedily: the verifier's own tokens, asserted.

  Args:
    method: its name.
    models: (drafter, verifier).
    **how: as `decode` takes it. The verifier alone ignores its shape of blocks.
  """
  shape = ("gamma", "tree", "drafts", "drawing", "verification")
  plain = {name: x for name, x in how.items() if name not in shape}
  alone = decode("verifier", (None, models[1]), **plain)
  decoded = decode(method, models, **how)
  assert np.all(decoded.bad_step == -1)
  np.testing.assert_array_equal(decoded.tokens, alone.tokens)
  np.testing.assert_array_equal(decoded.lengths, alone.lengths)
  return decoded


def sample(method, models, alpha, sampling, *, inputs, num, seed, **how):
  """Returns how often each text was written; see `counts`.

  Args:
    method: as in `decode`.
    models: (drafter, verifier).
    alpha: None for the default.
    sampling: a `Sampling`.
    inputs: a function from a number of rows to their inputs.
    num: how many texts, in batches of at most `BATCH`.
    seed: of the keys.
    **how: settings of `Decoder`, `max_decode_len` among them.
  """
  total = 0
  for start in range(0, num, BATCH):
    rows = min(BATCH, num - start)
    decoded = decode(
      method,
      models,
      alpha,
      sampling,
      inputs=inputs(rows),
      keys=row_keys(seed, 0, jnp.arange(rows) + start),
      **how,
    )
    assert np.all(decoded.bad_step == -1)
    total += counts(decoded, models[1].vocab_size, how["max_decode_len"])
  return total


def finish(stream, rounds: int = 1):
  """Returns what a stream wrote in a turn, after all rows of it ended."""
  while not stream.ended.all():
    stream.advance(rounds)
  return stream.decoded


def refilled(decoder, *call, rows: int, **how):
  """Yields (places, part) of a continuous batch, which has each row once."""
  _, _, inputs, *_ = call
  seen = []
  for places, part in decode_continuously(decoder, *call, rows=rows, **how):
    seen += places.tolist()
    yield places, part
  assert sorted(seen) == list(range(len(inputs)))


def counts(decoded, vocab_size: int, length: int, rows=slice(None)):
  """Returns how often some rows wrote each sequence, in `chain_law`'s order."""
  tokens, lengths = decoded.tokens[rows], decoded.lengths[rows]
  index = toy_chains.sequence_index(tokens, lengths, vocab_size)
  size = sum(vocab_size**n for n in range(1, length + 1))
  return np.bincount(index, minlength=size)


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
