"""Look-ahead embeddings: the verifier's own network drafts a block in one pass.

Axes: B rows, L token buffer, G depth of a block, V vocabulary, K look-ahead
embeddings, A of them in a pass.
"""

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.depth_laws import DepthDrafter
from speccascade.decoding.drafting.kept_tokens import column_reader
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.draft_tree import (
  GREEDY_AND_RANDOM,
  DraftTree,
  Drawing,
)
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class LookaheadDrafter(DepthDrafter, struct.PyTreeNode):
  """Drafts with look-ahead embeddings that follow the text, in one pass.

  The pass reads the tokens of the text that the cache lacks, the last token of
  the text among them, and after it look-ahead embeddings 1, 2, .... The output
  at the last token is the verifier's own distribution of the next token, and
  the output at embedding i is a distribution of the token i places later. So
  the first draft of a block is drawn from the verifier's distribution p itself,
  and embedding i drafts the token after draft i. After the pass the cache is
  rewound to the text: no later pass sees an embedding.

  The distribution of draft j is conditional on the text alone: it does
  not depend on drafts 1 to j - 1, which the pass has not read. Each draft is
  drawn from the distribution that is stated for it, and independently of the
  others given the text. So a lossless method writes exactly the verifier's
  distribution. It accepts the first draft of each block with probability sum_v
  min(p, q), which is 1 but for rounding: p and q are one distribution, computed
  in passes of other widths. In a tree all nodes of one depth have one
  distribution.

  At the position after the last draft there is a distribution where one
  embedding more is left; else the target at that place is the verifier.

  The drafter has a cache of its own, as large as the verifier's. One pass of
  the verifier's network for each block drafts, and another one verifies.

  Attributes:
    model: a language model that reads look-ahead embeddings, see
      `Lookahead.language_model`.
    num_ahead: static, K.
    depth: static, see `DepthDrafter`; at most K + 1.
    tree: static, see `DepthDrafter`.
    drawing: static, see `DepthDrafter`.

  Source: Monea et al., "PaSS: Parallel Speculative Sampling" (arXiv
  2311.13581), whose drafts are chains. That drafts are drawn from the
  distributions at the embeddings, and verified by the ratio of the verifier to
  these distributions, follows Leviathan et al. (arXiv 2211.17192). Trees, and
  the distribution at the place after the last draft, are this package's.
  """

  model: LanguageModel
  num_ahead: int = struct.field(pytree_node=False)
  depth: int = struct.field(pytree_node=False)
  tree: DraftTree | None = struct.field(pytree_node=False, default=None)
  drawing: Drawing = struct.field(pytree_node=False, default=GREEDY_AND_RANDOM)

  @property
  def parts(self) -> tuple[LanguageModel]:
    return (self.model,)

  @property
  def spare_slots(self) -> int:
    # A pass writes at most G + 1 tokens, and G embeddings after them.
    return 2 * self.depth + 1

  def propose(
    self,
    state: tuple[State],
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[tuple[State], Proposal]:
    """Drafts in one pass.

    Raises:
      ValueError: the block is deeper than K + 1.
    """
    if self.depth > self.num_ahead + 1:
      raise ValueError(
        f"a block of depth {self.depth} needs {self.depth - 1} look-ahead"
        f" embeddings, and there are {self.num_ahead}; make it less deep"
      )
    # The last token of the text gives the distribution of the first draft.
    has_bonus = needs_bonus_law and self.num_ahead >= self.depth
    num = self.depth - 1 + has_bonus
    # A block writes G + 1 tokens at most, and the cache held all tokens before
    # it: so many of them may be missing now.
    (held,), length = state, prefix.length
    missing = length - held.length
    block = self._block(
      prefix.tokens, held.length, missing, self.depth + 1, num
    )
    count = jnp.where(prefix.active, missing + num, 0)
    # Where 3 tokens are missing they are at places 0, 1 and 2 of the block.
    # Places 2, 3, ... are read: the last token, and the embeddings after it.
    read = (missing - 1)[:, None] + jnp.arange(num + 1, dtype=jnp.int32)[None]
    read = jnp.clip(read, 0, block.shape[1] - 1)
    reader = column_reader(self.model, self.most_children)
    held, out = reader.model.extend(held, block, count, read=read)
    # No later pass sees an embedding.
    held = self.model.rewind(held, length)
    drafted = self.draft(out.logits, rngs, sampling, prefix.active, reader)
    return (held,), drafted

  def _block(
    self, tokens: Array, held: Array, missing: Array, most: int, num: int
  ) -> Array:
    """Returns the block of a pass, [B, most + num] int32."""
    # With 3 tokens missing of a vocabulary of 100, most = 4 and num = 2 a row
    # is t t t 100 101, and one place after them that is not fed.
    place = jnp.arange(most + num, dtype=jnp.int32)[None]
    index = jnp.clip(held[:, None] + place, 0, tokens.shape[1] - 1)
    text = jnp.take_along_axis(tokens, index, axis=1)
    ahead = place - missing[:, None]
    return jnp.where(ahead < 0, text, self.vocab_size + ahead)
