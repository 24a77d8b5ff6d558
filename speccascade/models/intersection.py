"""A drafter of another vocabulary, as a model over the verifier's ids.

The drafter proposes only tokens that both vocabularies have: its distribution
is restricted to the shared tokens and renormalised. It reads every token of the
verifier's, one for one: a shared token as itself, any other token as one of the
drafter's own tokens that stands for it.

Its distribution is therefore a function of the verifier's tokens alone. Each
method has the target that the table states, with this distribution as q: a
lossless method has the verifier's distribution, whatever token stands for
another.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, Self

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws.numerics import check_shape
from speccascade.decoding.records import prompts
from speccascade.decoding.records.block_records import Output
from speccascade.decoding.records.language_model import (
  Array,
  LanguageModel,
  State,
)
from speccascade.models import cut_head, tree_windows


class IntersectionState(struct.PyTreeNode):
  """What an `IntersectionLM` remembers. Every leaf has axis 0 = B.

  Attributes:
    drafter: the state of the drafter's model.
    first: [B] int32, the drafter's id that the first pass feeds.
  """

  drafter: Any
  first: Array

  @property
  def length(self) -> Array:
    """[B] int32, tokens held; the verifier's tokens are as many."""
    return self.drafter.length


@struct.dataclass
class IntersectionLM:
  """A language model of another vocabulary, used as a `LanguageModel`.

  Logits are restricted to the shared tokens before anything else: temperature,
  top-k, top-p and the arg-max see the distribution over shared tokens.

  Attributes:
    model: the language model, with a vocabulary of its own.
    to_drafter: [V] int32, the id that the model reads for each of the
      verifier's ids.
    is_shared: [V] bool, whether that id is the same token. No two shared tokens
      are the same token of the drafter.
    inputs: [B, S'] int32, the inputs of a batch in the drafter's ids, padded as
      `prefill` takes them. None reads the verifier's inputs token by token.

  Source: Timor et al. (ICML 2025, arXiv 2502.05202), token-level intersection.
  What stands for a token that the drafter lacks is ours.
  """

  model: LanguageModel
  to_drafter: Array
  is_shared: Array
  inputs: Array | None = None

  @property
  def vocab_size(self) -> int:
    """V, the number of the verifier's tokens."""
    return self.to_drafter.shape[0]

  @property
  def prompted(self) -> bool:
    """Whether the inputs are prompts."""
    return self.model.prompted

  @property
  def module(self) -> Any:
    """The network of the model; None where the model has none."""
    return getattr(self.model, "module", None)

  @property
  def slot_bytes(self) -> int:
    """Bytes that the cache takes for one token of one row."""
    return getattr(self.model, "slot_bytes", 0)

  def prefill(self, inputs: Array, *, capacity: int) -> IntersectionState:
    """Feeds `self.inputs`, or else the inputs. See `LanguageModel`.

    Raises:
      ValueError: `self.inputs` has another number of rows.
    """
    ids = self.inputs
    if ids is None:
      pad = prompts.PAD if self.prompted else 0
      ids = jnp.where(inputs == pad, pad, self.to_drafter[inputs])
    check_shape("inputs of the drafter", ids, (len(inputs), ids.shape[1]))
    state = self.model.prefill(ids, capacity=capacity)
    return IntersectionState(state, prompts.start(self.model, ids))

  def extend(
    self,
    state: State,
    tokens: Array,
    count: Array,
    *,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[State, Output]:
    """Feeds a block, token by token. See `LanguageModel`.

    Raises:
      ValueError: what is said of a tree does not fit; see `tree_windows.check`.
    """
    tree_windows.check(tokens, depth, ancestors)
    num_fed = tokens.shape[1]
    first, steps = state.length, jnp.arange(num_fed, dtype=jnp.int32)[None]
    if depth is not None:
      first = tree_windows.first_slot(first, num_fed, depth)
      steps = tree_windows.depth_of_fed(depth, num_fed)
    place = first[:, None] + steps
    # The first token is the end of a prompt, and the drafter may spell that end
    # in another way than the verifier.
    fed = jnp.where(place == 0, state.first[:, None], self.to_drafter[tokens])
    drafter, out = self.model.extend(
      state.drafter, fed, count, read=read, depth=depth, ancestors=ancestors
    )
    logits = out.logits[..., self.to_drafter]
    logits = jnp.where(self.is_shared[None, None], logits, -jnp.inf)
    out = dataclasses.replace(out, logits=logits)
    return state.replace(drafter=drafter), out

  def cut_to(self, ids: Sequence[int] | np.ndarray) -> Self:
    """Returns the model with a head that keeps some shared tokens.

    Args:
      ids: ids of the verifier. Those that are not shared are left out.

    Raises:
      ValueError: no id is shared, an id is out of range or stands twice, or
        the model has no head that can be cut; see `cut_head.kept`.
    """
    kept = cut_head.kept(ids, self.vocab_size, self.vocab_size, {})
    kept = kept[np.asarray(self.is_shared)[kept]]
    if not kept.size:
      raise ValueError("no id that a head is cut to is shared")
    model: Any = self.model
    return dataclasses.replace(
      self,
      model=model.cut_to(np.asarray(self.to_drafter)[kept]),
      is_shared=self.is_shared & np.isin(np.arange(self.vocab_size), kept),
    )

  def rewind(self, state: State, length: Array) -> State:
    """Lowers the lengths to `length` [B]. See `LanguageModel`."""
    return state.replace(drafter=self.model.rewind(state.drafter, length))

  def keep(
    self, state: State, start: Array, path: Array, count: Array
  ) -> State:
    """Keeps one path of a fed tree. See `LanguageModel`."""
    drafter = self.model.keep(state.drafter, start, path, count)
    return state.replace(drafter=drafter)


def with_inputs(drafter: Any, inputs: Array) -> Any:
  """Returns a drafter whose models of another vocabulary read these inputs.

  Args:
    drafter: a language model, a tuple of language models, or a `Drafter`.
    inputs: [B, S'] int32; see `IntersectionLM`.
  """

  def is_intersection(part):
    return isinstance(part, IntersectionLM)

  def read(part):
    return part.replace(inputs=inputs) if is_intersection(part) else part

  return jax.tree.map(read, drafter, is_leaf=is_intersection)
