"""What a search asks of each kind of draft model: `KINDS`.

A language model drafts token by token, so the distribution of a draft does not
depend on its place in the block. Draft heads and look-ahead embeddings draft a
block at once: a text has a distribution for each draft that a token may be. So
it has with a state reader, which reads states of its own after the first draft.
"""

from collections.abc import Callable
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.programs import draft_models
from speccascade.decoding.records.drafter import Exit, Heads, Lookahead
from speccascade.decoding.records.language_model import (
  LanguageModel,
  prefill_with_states,
)
from speccascade.decoding.records.readers import ReadsStates
from speccascade.generate import teacher_forcing
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.study.papers import speedup


@dataclasses.dataclass(frozen=True)
class DraftKind:
  """A kind of draft model; see `KINDS`.

  Attributes:
    has_depths: whether each draft of a block has a distribution of its own.
    always: the names of the methods that every sweep measures, with which a
      report compares the others: each model alone that writes a text alone.
    laws: a function of (drafter, verifier, sampling, number of depths, inputs,
      tokens) that returns the distributions of each depth, and those of the
      verifier, before each token of texts; see `acceptance.laws_along`.
    chain_steps: a function of (costs, point) that returns what drafting a chain
      of the point's gamma costs, in steps of the verifier.
    tree_steps: a function of (costs, point, levels) that returns what drafting
      a tree costs.
    describe: a function of (name, costs) that returns the beginning of a
      sentence on what drafting costs.
    levels: a clause on how the levels of a tree are drafted.
  """

  has_depths: bool
  always: tuple[str, ...]
  laws: Callable
  chain_steps: Callable[[Costs, Point], float]
  tree_steps: Callable[[Costs, Point, int], float]
  describe: Callable[[str, Costs], str]
  levels: str

  def num_depths(self, most: int) -> int:
    """Returns how many depths of at most `most` differ in distribution."""
    return most if self.has_depths else 1


def kind_of(pair: ModelPair) -> DraftKind:
  """Returns the kind of a pair's draft model."""
  return KINDS[draft_models.kind_of(pair.drafter_lm)]


def _model_laws(drafter, verifier, sampling, num, inputs, tokens):
  """Returns a language model's distributions, alike at each depth."""
  models = (drafter, verifier)
  of_drafter, of_verifier = (
    _laws(model, sampling, inputs, tokens) for model in models
  )
  return [of_drafter], of_verifier


def _exit_laws(taught, verifier, *arguments):
  """Returns the laws of an early exit that was taught."""
  return _model_laws(taught.language_model(verifier), verifier, *arguments)


@jax.jit
def _laws(model, sampling, inputs, tokens):
  """Returns a model's distributions before each token; see `Sampling.laws`."""
  return sampling.laws(teacher_forcing.read(model, inputs, tokens).logits)


@functools.partial(jax.jit, static_argnums=3)
def _head_laws(heads, verifier, sampling, num, inputs, tokens):
  """Returns draft heads' distributions, from the verifier's states."""
  rows, length = tokens.shape
  out = teacher_forcing.read(verifier, inputs, tokens)
  # Hidden state i is of the token before text token i, so head j drafts text
  # token t from state t - j: the states of head 1 move one place to the right.
  states = out.hidden.reshape(rows * length, -1).astype(jnp.float32)
  logits = heads.head_logits(verifier, states, num)
  logits = logits.reshape(rows, length, num, -1)
  by_head = [
    sampling.laws(jnp.roll(logits[:, :, j], j + 1, axis=1)) for j in range(num)
  ]
  return by_head, sampling.laws(out.logits)


@functools.partial(jax.jit, static_argnums=3)
def _lookahead_laws(lookahead, verifier, sampling, num, inputs, tokens):
  """Returns look-ahead embeddings' distributions after each beginning."""
  model = lookahead.language_model(verifier)
  state = model.prefill(inputs, capacity=tokens.shape[1] + num - 1)
  # As in `LookaheadDrafter`, embeddings follow the last token of a beginning.
  ahead = model.vocab_size + jnp.arange(num - 1, dtype=jnp.int32)
  ahead = jnp.broadcast_to(ahead, (tokens.shape[0], num - 1))
  count = jnp.full((tokens.shape[0],), num, jnp.int32)

  def read(state, token):
    """Returns the state after a token, and the logits [B, num, V] there."""
    length = state.length + 1
    block = jnp.concatenate([token[:, None], ahead], axis=1)
    state, out = model.extend(state, block, count)
    # The embeddings are forgotten.
    return model.rewind(state, length), out.logits

  fed = teacher_forcing.tokens_before(verifier, inputs, tokens)
  _, logits = jax.lax.scan(read, state, fed.T)  # [T, B, num, V]
  logits = jnp.moveaxis(logits, 0, 1)
  # The logits of draft j + 1 at place t are of text token t + j.
  by_draft = [
    sampling.laws(jnp.roll(logits[:, :, j], j, axis=1)) for j in range(num)
  ]
  out = teacher_forcing.read(verifier, inputs, tokens)
  return by_draft, sampling.laws(out.logits)


@functools.partial(jax.jit, static_argnums=3)
def _reader_laws(reader, verifier, sampling, num, inputs, tokens):
  """Returns the laws of a state reader: draft j reads its own states j times.

  All places of the texts are read `num` times, as in training: reading j is of
  the j-th draft of a block that begins j - 1 places earlier.
  """
  rows, length = tokens.shape
  model = reader.reading_model(verifier)
  verifier = reader.verifier_read(verifier)
  verifying, seen = prefill_with_states(
    verifier, inputs, capacity=length, reader=model
  )
  fed = teacher_forcing.tokens_before(verifier, inputs, tokens)
  count = jnp.full((rows,), length, jnp.int32)
  _, out = verifier.extend(verifying, fed, count)
  state, last = model.prefill(inputs, seen, capacity=num * length)
  states, by_draft = model.states_of(out.hidden), []
  # The readings stand one after the other in the cache. With one reading
  # before it, token t sees tokens up to t - 1 of the first one, and itself.
  place = np.arange(length)
  back = place[:, None] - place[None]
  for step in range(num):
    sees = [back >= step]
    sees += [back == step - i for i in range(1, step + 1)]
    ancestors = jnp.asarray(np.concatenate(sees, axis=1))
    depth = jnp.asarray(np.tile(place, step + 1), jnp.int32)
    before = jnp.concatenate([last[:, None], states[:, :-1]], axis=1)
    state, own = model.extend(
      state,
      fed,
      count,
      states=before.astype(last.dtype),
      depth=jnp.broadcast_to(depth[None], (rows, *depth.shape)),
      ancestors=jnp.broadcast_to(ancestors[None], (rows, *ancestors.shape)),
    )
    states, last = own.hidden, jnp.zeros_like(last)
    by_draft.append(sampling.laws(own.logits))
  return by_draft, sampling.laws(out.logits)


def _model_chain_steps(costs: Costs, point: Point) -> float:
  steps = speedup.block_cost(
    point.gamma,
    costs.c,
    v=0.0,
    q2=costs.q2 if point.folds else None,
    bonus_law=not point.folds,
  )
  return float(steps)


def _model_tree_steps(costs: Costs, point: Point, levels: int) -> float:
  """A drafter makes a pass for each level."""
  return costs.c * levels


def _describe_model(name: str, costs: Costs) -> str:
  return f"a step of {name} costs c = {costs.c:.3f}"


def _heads_tree_steps(costs: Costs, point: Point, levels: int) -> float:
  """Heads draft all levels at once; no drafting costs nothing."""
  if not levels:
    return 0.0
  # One head more is asked where the target uses the distribution after the
  # drafts.
  return costs.drawing(levels if point.folds else levels + 1)


def _heads_chain_steps(costs: Costs, point: Point) -> float:
  return _heads_tree_steps(costs, point, point.gamma)


def _describe_heads(name: str, costs: Costs) -> str:
  nums = sorted(costs.heads)
  numbers = ", ".join(map(str, nums))
  steps = ", ".join(f"{costs.heads[num]:.3f}" for num in nums)
  return f"a draft from {numbers} heads of {name} costs {steps}"


_HEADS = DraftKind(
  has_depths=True,
  always=("verifier",),
  laws=_head_laws,
  chain_steps=_heads_chain_steps,
  tree_steps=_heads_tree_steps,
  describe=_describe_heads,
  levels="the heads draft all levels of a tree at once",
)
_MODEL = DraftKind(
  has_depths=False,
  always=("drafter", "verifier"),
  laws=_model_laws,
  chain_steps=_model_chain_steps,
  tree_steps=_model_tree_steps,
  describe=_describe_model,
  levels="a level of a tree is expected to cost the drafter one step",
)
KINDS = draft_models.PerKind[DraftKind](__name__, "KINDS", "what a search asks")
KINDS.register(LanguageModel, _MODEL)
KINDS.register(Heads, _HEADS)
KINDS.register(Lookahead, dataclasses.replace(_HEADS, laws=_lookahead_laws))
KINDS.register(
  Exit, dataclasses.replace(_MODEL, always=("verifier",), laws=_exit_laws)
)
KINDS.register(
  ReadsStates,
  dataclasses.replace(
    _MODEL, has_depths=True, always=("verifier",), laws=_reader_laws
  ),
)
