"""Passes of a model in a hot loop, which `timing` and `round_times` time."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.follower import Follower
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.language_model import (
  LanguageModel,
  prefill_with_states,
)
from speccascade.decoding.records.readers import ReadsStates, reads_states

PASSES = 16  # of a `pass_loop`


class ReaderAlone(struct.PyTreeNode):
  """A reading model as the loops feed models; its states are its own.

  Attributes:
    follower: looks up the states.
    verifier: leaves what the model reads of a prompt.
  """

  follower: Follower
  verifier: LanguageModel

  @classmethod
  def of(
    cls, reader: ReadsStates, verifier: LanguageModel, width: int = 1
  ) -> "ReaderAlone":
    """Returns the model of a reader, for passes of up to `width` tokens."""
    model = reader.reading_model(verifier)
    return cls(Follower(model, width, width), reader.verifier_read(verifier))

  def prefill(self, inputs, *, capacity):
    """Returns the state after a prompt whose states are 0."""
    shapes = jax.eval_shape(
      lambda: prefill_with_states(
        self.verifier,
        inputs,
        capacity=capacity,
        reader=self.follower.model,
      )[1]
    )
    seen = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return self.follower.begin(inputs, seen, capacity=capacity)

  def extend(self, state, tokens, count):
    """Feeds a block. See `LanguageModel`."""
    return self.follower.extend(state, tokens, count)

  def rewind(self, state, length):
    """Lowers the lengths. See `LanguageModel`."""
    inner = self.follower.model.rewind(state.inner, length)
    return state.replace(inner=inner)


def alone(drafter: Any, verifier: LanguageModel, width: int = 1) -> Any:
  """Returns a drafter as a model that loops feed, `width` tokens at most."""
  if reads_states(drafter):
    return ReaderAlone.of(drafter, verifier, width)
  return drafter


HotLoop = Callable[[], Any]


def pass_loop(
  model: LanguageModel, inputs, sampling: Sampling, width: int
) -> Callable[[], Any]:
  """Returns a function that runs `PASSES` passes of a model in a hot loop.

  Args:
    model: the language model.
    inputs: [B, S] int32, the inputs of a batch.
    sampling: how logits become distributions.
    width: tokens of the pass.
  """
  inputs = jnp.asarray(inputs, jnp.int32)
  blocks = Blocks(model, inputs, PASSES + width + 2, sampling, PASSES)
  return blocks.feeding(model)(width)


def prefill_call(model: LanguageModel, inputs) -> Callable[[], Any]:
  """Returns a function in which a model reads inputs, [B, S] int32."""
  return functools.partial(_prefill, model, jnp.asarray(inputs, jnp.int32), 1)


class Blocks(NamedTuple):
  """What the hot loops of a pair have in common; `num` blocks in each."""

  verifier: LanguageModel
  inputs: jax.Array
  capacity: int
  sampling: Sampling
  num: int

  def encoding(self, model: LanguageModel) -> HotLoop:
    """Returns the loop of a model's encoder."""
    return functools.partial(_prefill, model, self.inputs, self.capacity)

  def feeding(self, model: LanguageModel) -> Callable[[int], HotLoop]:
    """Returns a function from a width to the loop that feeds such blocks."""
    # The first loop that feeds makes the state, so that nothing is compiled
    # while the loops are named.
    state = functools.cache(self.encoding(model))
    return lambda width: (
      lambda: _feed_blocks(model, state(), self.sampling, width, self.num)
    )


@functools.partial(jax.jit, static_argnums=(2,))
def _prefill(model, inputs, capacity):
  return model.prefill(inputs, capacity=capacity)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _feed_blocks(model, state, sampling, width, num_blocks):
  """Feeds blocks of `width` tokens, and returns [B] the last token drawn."""
  # Each block starts one position after the block before it, and feeds the
  # token that was drawn after that block. So XLA cannot leave out a pass or run
  # two passes at once.
  rows = jax.tree.leaves(state)[0].shape[0]
  count = jnp.full((rows,), width, jnp.int32)

  def feed_block(index, carry):
    state, token = carry
    tokens = jnp.broadcast_to(token[:, None], (rows, width))
    state, out = model.extend(state, tokens, count)
    # The maximum over the block makes the draw depend on every logit. (A mean
    # of many tokens is slow on a CPU.)
    _, probs = sampling.laws(out.logits)
    u = jnp.full((rows,), 0.5, jnp.float32)
    token = draws.draw(jnp.max(probs, axis=1), u)
    # The extend moved the length by `width`; the next block starts one further.
    return model.rewind(state, jnp.full((rows,), index + 1)), token

  token = jnp.zeros((rows,), jnp.int32)
  _, token = jax.lax.fori_loop(0, num_blocks, feed_block, (state, token))
  return token
