"""Draft heads: a drafter inside the verifier.

The heads read the hidden state that the verifier left at the last token that it
read, and draft all places of a block at once. So there is no second model, and
no second cache.

Axes: B rows, G depth of a block, N drafts, V vocabulary, K heads, D width of a
hidden state.
"""

from typing import Any, NamedTuple

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.depth_laws import DepthDrafter
from speccascade.decoding.drafting.kept_tokens import column_reader
from speccascade.decoding.laws import numerics
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.draft_tree import (
  GREEDY_AND_RANDOM,
  DraftTree,
  Drawing,
)
from speccascade.decoding.records.drafter import Heads
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array

# `HeadsState.read` of a row of which the verifier has left nothing.
_NOTHING = -1


class HeadsState(NamedTuple):
  """What draft heads remember of each row.

  Attributes:
    hidden: [B, D] float32, the verifier's hidden state at a token.
    read: [B] int32, the tokens of the row up to and including that token; -1
      where nothing has been read.
  """

  hidden: Array
  read: Array


class HeadsDrafter(DepthDrafter, struct.PyTreeNode):
  """Drafts with heads over the verifier's last hidden state.

  With n tokens in a row the verifier has read n - 1 of them, since it drew the
  last token itself. Its hidden state at token n - 1 gives the distribution of
  token n by its own output projection, and head k gives a distribution of token
  n + k. So head 1 drafts the first token of a block, head 2 the second one, and
  so on.

  Each head reads only the hidden state: the stated distribution of draft j does
  not depend on the drafts before it, nor on the last token of the row. It is
  the distribution that draft j is drawn from, and so the verification is exact.
  In a tree all nodes of one depth have one distribution.

  In the first round, and after external tokens, there is no hidden
  state of the last token but one. The heads then propose nothing, and the round
  writes one token, which the verifier draws.

  At the position after the last draft the heads have a distribution where there
  is one more head than drafts in depth; else the target at that place is the
  verifier.

  Attributes:
    heads: the heads.
    verifier: the language model that the heads belong to. Heads may share its
      output projection.
    depth: static, see `DepthDrafter`.
    tree: static, see `DepthDrafter`.
    drawing: static, see `DepthDrafter`.

  Source: Cai et al., "Medusa" (arXiv 2401.10774); Stern et al., "Blockwise
  Parallel Decoding for Deep Autoregressive Models" (NeurIPS 2018). That drafts
  are drawn from the heads, and verified by the ratio of the verifier to the
  head, follows Leviathan et al. (arXiv 2211.17192).
  """

  heads: Heads
  verifier: LanguageModel
  depth: int = struct.field(pytree_node=False)
  tree: DraftTree | None = struct.field(pytree_node=False, default=None)
  drawing: Drawing = struct.field(pytree_node=False, default=GREEDY_AND_RANDOM)

  @property
  def vocab_size(self) -> int:
    return self.heads.vocab_size

  @property
  def models(self) -> tuple[Any, ...]:
    # Heads are counted as a model: one evaluation of them is one call.
    return (self.heads,)

  def prefill(self, inputs: Array, *, capacity: int) -> HeadsState:
    rows = inputs.shape[0]
    return HeadsState(
      hidden=jnp.zeros((rows, self.heads.width), jnp.float32),
      read=jnp.full((rows,), _NOTHING, jnp.int32),
    )

  def rewind(self, state: HeadsState, length: Array) -> HeadsState:
    """Forgets all of a row that is cut before its token."""
    read = jnp.where(state.read > length, _NOTHING, state.read)
    return state._replace(read=read)

  def catch_up(
    self, state: HeadsState, tokens: Array, upto: Array, *, wide: int
  ) -> HeadsState:
    """Forgets: the heads have no hidden state of external tokens."""
    read = jnp.where(upto > state.read, _NOTHING, state.read)
    return state._replace(read=read)

  def observe(
    self,
    state: HeadsState,
    hidden: Array,
    path: Array,
    count: Array,
    length: Array,
  ) -> HeadsState:
    """Reads the hidden state of the last accepted token. See `Reader`.

    Raises:
      ValueError: the verifier leaves no hidden states.
    """
    if hidden is None:
      raise ValueError(
        f"a {type(self.verifier).__name__} leaves no hidden states, which draft"
        " heads read; give a drafter of its own"
      )
    node = numerics.of_token(path, jnp.maximum(count - 1, 0))
    last = jnp.take_along_axis(hidden, node[:, None, None], axis=1)[:, 0]
    return HeadsState(last.astype(state.hidden.dtype), length)

  def propose(
    self,
    state: HeadsState,
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[HeadsState, Proposal]:
    # The verifier has read all tokens but the last one.
    known = prefix.active & (state.read == prefix.length - 1)
    num = self.depth
    has_bonus = needs_bonus_law and self.heads.num_heads > num
    reader = column_reader(self.heads, self.most_children)
    logits = reader.model.head_logits(
      self.verifier, state.hidden, num + has_bonus
    )
    return state, self.draft(logits, rngs, sampling, known, reader)
