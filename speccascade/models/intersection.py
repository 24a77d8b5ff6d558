"""A drafter of another vocabulary, as a model over the verifier's ids.

It proposes the tokens that both vocabularies have, and no other: its law is the
drafter's restricted to them and renormalised. It reads every token, one for
one: those that it has as they are, any other as a token of its own that stands
for it. Its law is therefore a function of the verifier's tokens alone, so each
method has the target that the table states, with this law as q: a lossless one
has the verifier's, whatever stands for what.
"""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.loops import prompts
from speccascade.decoding.types import Array, LanguageModel, Output, check_shape


@struct.dataclass
class IntersectionState:
  """What an `IntersectionLM` remembers. Every leaf has axis 0 = B.

  Attributes:
    drafter: the state of its model.
    first: [B] int32, the drafter's id that its first pass feeds.
  """

  drafter: Any
  first: Array

  @property
  def length(self) -> Array:
    """[B] int32, tokens held: as many of the drafter's as of the verifier's."""
    return self.drafter.length


@struct.dataclass
class IntersectionLM:
  """A language model of another vocabulary behind the `LanguageModel` door.

  Logits are restricted before anything else: temperature, top-k and top-p
  filter the law over the shared tokens, and so does the arg-max.

  Attributes:
    model: the language model, of a vocabulary of its own.
    to_drafter: [V] int32, the id that it reads for each of the verifier's.
    is_shared: [V] bool, whether that id is the same token. No two shared tokens
      are one of the drafter's.
    inputs: [B, S'] int32, its own ids of the inputs of a batch, padded as
      `prefill` takes them; None reads the verifier's token by token.

  Source: Timor et al. (ICML 2025, arXiv 2502.05202), token-level intersection.
  What stands for a token that the drafter lacks is ours.
  """

  model: LanguageModel
  to_drafter: Array
  is_shared: Array
  inputs: Array | None = None

  @property
  def vocab_size(self) -> int:
    return self.to_drafter.shape[0]

  @property
  def prompted(self) -> bool:
    return self.model.prompted

  @property
  def module(self):
    """The network of its model, None where it has none."""
    return getattr(self.model, "module", None)

  @property
  def slot_bytes(self) -> int:
    """Bytes that the cache takes for one token of one row."""
    return getattr(self.model, "slot_bytes", 0)

  def prefill(self, inputs: Array, *, capacity: int) -> IntersectionState:
    """Reads its own inputs, where it has some. See `LanguageModel`.

    Raises:
      ValueError: they are of another number of rows.
    """
    read = self.inputs
    if read is None:
      pad = prompts.PAD if self.prompted else 0
      read = jnp.where(inputs == pad, pad, self.to_drafter[inputs])
    check_shape("inputs of the drafter", read, (len(inputs), read.shape[1]))
    state = self.model.prefill(read, capacity=capacity)
    return IntersectionState(state, prompts.start(self.model, read))

  def extend(self, state, tokens, count, **how) -> tuple[Any, Output]:
    """Feeds a block, token by token. See `LanguageModel`."""
    place = state.length[:, None] + jnp.arange(tokens.shape[1])[None]
    # What comes first is the end of a prompt, which it spells its own way.
    fed = jnp.where(place == 0, state.first[:, None], self.to_drafter[tokens])
    drafter, out = self.model.extend(state.drafter, fed, count, **how)
    logits = out.logits[..., self.to_drafter]
    logits = jnp.where(self.is_shared[None, None], logits, -jnp.inf)
    return state.replace(drafter=drafter), out.replace(logits=logits)

  def rewind(self, state, length: Array) -> IntersectionState:
    """Lowers the lengths to `length` [B]. See `LanguageModel`."""
    return state.replace(drafter=self.model.rewind(state.drafter, length))

  def keep(self, state, start, path, count) -> IntersectionState:
    """Keeps one path of a fed tree. See `LanguageModel`."""
    drafter = self.model.keep(state.drafter, start, path, count)
    return state.replace(drafter=drafter)


def with_inputs(drafter, inputs: Array):
  """Returns a drafter whose models of another vocabulary read these inputs.

  Args:
    drafter: a language model, a tuple of them, or a `Drafter`.
    inputs: see `IntersectionLM`.
  """
  is_one = lambda part: isinstance(part, IntersectionLM)
  read = lambda part: part.replace(inputs=inputs) if is_one(part) else part
  return jax.tree.map(read, drafter, is_leaf=is_one)
