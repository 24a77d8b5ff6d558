"""Max-Gram: drafts by copying what followed the longest repeated suffix."""

from collections.abc import Sequence

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.loops import prompts
from speccascade.decoding.types import Proposal

Array = jax.Array


class MaxGramDrafter(struct.PyTreeNode):
  """Copies from the source and from what was generated; costs next to nothing.

  The longest suffix of the generated tokens that occurs in the text (source,
  then the generated tokens but the last) is looked up, the leftmost occurrence
  wins, and the tokens after it are the draft. Where they do not fill the block
  the search is repeated once among the generated tokens, draft included; a
  bigram chain fills the rest. A prompt and what was generated after it are one
  text: all of that counts as generated.

  A proposal is deterministic, so its law is one-hot: it has no confidence.

  Attributes:
    next_token: [V] int32, the likeliest token after each.
    width: static, most tokens of a proposal.
    prompted: static, whether it drafts for a model that goes on from prompts.
    fills: static, whether the bigram chain fills a block; else a proposal ends
      where nothing more can be copied, and may be empty.
  """

  next_token: Array
  width: int = struct.field(pytree_node=False)
  prompted: bool = struct.field(pytree_node=False, default=False)
  fills: bool = struct.field(pytree_node=False, default=True)

  @classmethod
  def create(
    cls,
    next_token: Sequence[int] | Array | np.ndarray | None,
    *,
    width: int,
    vocab_size: int,
    prompted: bool = False,
  ) -> "MaxGramDrafter":
    """Returns a drafter; a table shorter than the vocabulary is padded with 0.

    Without a table it only copies, and fills no block.

    Raises:
      ValueError: the table is longer than the vocabulary, or holds other ids.
    """
    fills = next_token is not None
    table = jnp.asarray([0] if next_token is None else next_token, jnp.int32)
    if table.shape[0] > vocab_size:
      raise ValueError(
        f"the bigram table has {table.shape[0]} entries, the vocabulary"
        f" {vocab_size} rows; give a table made with the pair's vocabulary"
      )
    low, high = int(jnp.min(table)), int(jnp.max(table))
    if low < 0 or high >= vocab_size:
      raise ValueError(
        f"the bigram table names token {low if low < 0 else high}; ids run from"
        f" 0 to {vocab_size - 1}"
      )
    table = jnp.pad(table, (0, vocab_size - table.shape[0]))
    return cls(table, width, prompted, fills)

  models = ()
  has_confidence = False

  @property
  def vocab_size(self) -> int:
    return self.next_token.shape[0]

  def prefill(self, inputs: Array, *, capacity: int) -> Array:
    """Returns the source text, [B, S] int32, padded with 0; or the prompt's."""
    return prompts.align(inputs) if self.prompted else inputs

  def rewind(self, state: Array, length: Array) -> Array:
    return state

  def catch_up(
    self, state: Array, tokens: Array, upto: Array, *, wide: int
  ) -> Array:
    return state

  def propose(
    self,
    state: Array,
    tokens: Array,
    length: Array,
    rngs: Array,
    sampling: Sampling,
    *,
    bonus_law: bool,
    active: Array,
  ) -> tuple[Array, Proposal]:
    """See `types.Drafter`; the law at the bonus position is the next copy."""
    drafts, count = self._copy(state, tokens, length)
    if self.fills:
      count = jnp.full_like(length, self.width + 1)
    q = jax.nn.one_hot(drafts, self.vocab_size, dtype=jnp.float32)
    return state, Proposal(
      tokens=drafts[:, : self.width],
      count=jnp.minimum(count, self.width),
      q=q,
      q1=q,
      copied=jnp.ones(drafts.shape, bool),
      calls=jnp.zeros((length.shape[0], 0), jnp.int32),
      bad=jnp.zeros(drafts.shape, bool),
      knows_bonus=count > self.width,
      writer=-1,
    )

  def _copy(
    self, source: Array, tokens: Array, length: Array
  ) -> tuple[Array, Array]:
    """Returns the width + 1 tokens after each prefix, [B, G+1] int32, and how
    many tokens there were to copy, [B]; in one native call where there are."""
    if native.takes():
      return native.copies(
        source,
        tokens,
        length,
        self.next_token,
        num=self.width + 1,
        prompted=self.prompted,
      )
    return jax.vmap(self._copy_row)(source, tokens, length)

  def _copy_row(
    self, source: Array, tokens: Array, length: Array
  ) -> tuple[Array, Array]:
    """Returns the same of one row, by the definition."""
    num = self.width + 1
    if self.prompted:  # whose last token is the first one of `tokens`
      before = jnp.sum(source != prompts.PAD, dtype=jnp.int32) - 1
      tokens = jax.lax.dynamic_update_slice(
        jnp.pad(source, (0, tokens.shape[0])), tokens, (before,)
      )
      source, length = source[:0], before + length
    source_len = jnp.sum(source > 0, dtype=jnp.int32)
    text = jnp.pad(source, (0, tokens.shape[0]))
    text = jax.lax.dynamic_update_slice(text, tokens, (source_len,))
    chunk, copied = find_continuation(
      text, source_len + length - 1, tokens, length, num
    )
    # Once more, in the generated tokens with the first chunk after them.
    longer = jnp.pad(tokens, (0, num))
    longer = jax.lax.dynamic_update_slice(longer, chunk, (length,))
    end = length + copied
    more, copied_more = find_continuation(
      longer, jnp.where(copied < num, end - 1, 0), longer, end, num
    )
    longer = jax.lax.dynamic_update_slice(
      jnp.pad(longer, (0, num)), more, (end,)
    )
    filled = copied + copied_more

    def chain(previous: Array, step: Array) -> tuple[Array, Array]:
      token = jnp.where(
        step < filled, longer[length + step], self.next_token[previous]
      )
      return token, token

    _, drafts = jax.lax.scan(chain, longer[length - 1], jnp.arange(num))
    return drafts, filled


def find_continuation(
  text: Array, text_len: Array, tokens: Array, length: Array, num: int
) -> tuple[Array, Array]:
  """Returns what follows the longest suffix of the tokens found in the text.

  Args:
    text: [M] int32, of which the first `text_len` count.
    text_len: scalar int32.
    tokens: [L] int32, of which the first `length` count; its suffixes are
      searched for.
    length: scalar int32, 1 or more.
    num: static, most tokens to return.

  Returns:
    ([num] int32, scalar int32 how many of them were found): the tokens after
    the leftmost occurrence of the longest suffix, within the text.
  """
  size = text.shape[0]
  place = jnp.arange(size, dtype=jnp.int32)
  padded = jnp.concatenate([jnp.full((tokens.shape[0],), -1, jnp.int32), text])

  def match_one_more(matched: Array, ends: Array) -> Array:
    """Keeps of the places where `matched` tokens agree those of one more."""
    shifted = jax.lax.dynamic_slice(
      padded, (tokens.shape[0] - matched,), (size,)
    )
    token = tokens[jnp.maximum(length - 1 - matched, 0)]
    return ends & (shifted == token) & (matched < length)

  def is_matched(carry: dict) -> Array:
    return jnp.any(carry["longer_ends"])

  def lengthen(carry: dict) -> dict:
    matched, ends = carry["matched"], carry["longer_ends"]
    return {
      "matched": matched + 1,
      "ends": ends,
      "longer_ends": match_one_more(matched, ends),
    }

  everywhere = place < text_len
  last_token = match_one_more(jnp.int32(0), everywhere)
  carry = {
    "matched": jnp.int32(1),
    "ends": everywhere,
    "longer_ends": last_token,
  }
  ends = jax.lax.while_loop(is_matched, lengthen, carry)["ends"]
  first = jnp.min(jnp.where(ends, place, size)) + 1
  is_found = jnp.any(last_token)
  count = jnp.where(is_found, jnp.clip(text_len - first, 0, num), 0)
  index = jnp.minimum(first + jnp.arange(num), size - 1)
  return text[index], count
