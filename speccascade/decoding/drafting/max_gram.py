"""Max-Gram: drafts that copy what followed the longest repeated suffix.

Source: Chen et al., "Cascade Speculative Drafting" (arXiv 2312.11462).
"""

from collections.abc import Sequence

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records import prompts
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.token_buffers import Prefix, write_block

Array = jax.Array


class MaxGramDrafter(Drafter, struct.PyTreeNode):
  """Copies from the source and from the generated tokens, at almost no cost.

  The drafter searches a text: the source, and after it the generated tokens
  without the last one. It looks for the longest suffix of the generated tokens
  that occurs in this text, takes the leftmost occurrence, and copies the tokens
  after it. For example, with the source 1 2 5 1 2 7, the generated tokens 9 1 2
  and a width of 3 the longest suffix is 1 2; the source begins with it, and the
  draft is 5 1 2.

  Where the copy does not fill the block, the drafter searches once more, in the
  generated tokens with the copy after them. A chain of bigrams fills the rest.
  For a model that continues from prompts, the prompt counts as generated.

  A proposal is deterministic, so its distribution is one-hot. It says nothing
  about confidence.

  Attributes:
    next_token: [V] int32, the likeliest token after each token.
    width: static, the largest number of tokens of a proposal.
    prompted: static, whether it drafts for a model that continues from prompts.
    fills: static, whether the bigram chain fills a block. If not, a proposal
      ends where nothing more can be copied, and may be empty.
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
    """Returns a drafter with a checked table of bigrams.

    Args:
      next_token: the likeliest token after each token. A table that is shorter
        than the vocabulary is padded with 0. Without a table (None) the drafter
        only copies, and does not fill its blocks.
      width: the largest number of tokens of a proposal.
      vocab_size: V.
      prompted: whether it drafts for a model that continues from prompts.

    Raises:
      ValueError: the table is longer than the vocabulary, or holds ids that are
        not in the vocabulary.
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

  has_confidence = False
  passes_mask = False

  @property
  def vocab_size(self) -> int:
    return self.next_token.shape[0]

  def prefill(self, inputs: Array, *, capacity: int) -> tuple[Array]:
    """Returns the texts to search, [B, S] int32 at the left end.

    They are the sources, padded with 0, or the prompts, padded with
    `prompts.PAD`.
    """
    return (prompts.align(inputs) if self.prompted else inputs,)

  def propose(
    self,
    state: tuple[Array],
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[tuple[Array], Proposal]:
    """Copies; q at the bonus is one-hot, unknown without a next copy."""
    # One token more than the width, for the bonus position.
    drafts, count = self._copy(state[0], prefix.tokens, prefix.length)
    if self.fills:
      count = jnp.full_like(count, self.width + 1)
    q = jax.nn.one_hot(drafts, self.vocab_size, dtype=jnp.float32)
    return state, Proposal(
      tokens=drafts[:, : self.width],
      count=jnp.minimum(count, self.width),
      q=q,
      q1=q,
      copied=jnp.ones(drafts.shape, bool),
      calls=jnp.zeros((count.shape[0], 0), jnp.int32),
      bad=jnp.zeros(drafts.shape, bool),
      has_bonus_law=count > self.width,
      writer=-1,
    )

  def _copy(
    self, source: Array, tokens: Array, length: Array
  ) -> tuple[Array, Array]:
    """Returns [B, G+1] tokens after the prefixes, [B] how many were copied."""
    if native.takes():
      return native.copies(
        source,
        tokens,
        length,
        self.next_token,
        num=self.width + 1,
        prompted=self.prompted,
      )
    # All rows at once, without a slice at a place of a row's own: a TPU would
    # go through the rows one by one.
    num = self.width + 1
    if self.prompted:
      # Join the prompt and the tokens into one text. The last token of the
      # prompt is the first of `tokens`, and overwrites itself: the prompt 5 6 7
      # and the tokens 7 8 give 5 6 7 8, which are 2 + 2 tokens.
      before = jnp.sum(source != prompts.PAD, axis=1, dtype=jnp.int32) - 1
      tokens = write_block(_longer(source, tokens.shape[1]), tokens, before)
      source, length = source[:, :0], before + length
    # First search: the source, and the generated tokens without the last one
    # (with it, the whole suffix would be found at its own place).
    source_len = jnp.sum(source > 0, axis=1, dtype=jnp.int32)
    text = write_block(_longer(source, tokens.shape[1]), tokens, source_len)
    chunk, copied = find_continuation(
      text, source_len + length - 1, tokens, length, num
    )
    # Second search, where the first one copied too little: the generated tokens
    # and the copy, again without the last one. A text of 0 tokens is not
    # searched.
    longer = write_block(_longer(tokens, num), chunk, length)
    end = length + copied
    more, copied_more = find_continuation(
      longer, jnp.where(copied < num, end - 1, 0), longer, end, num
    )
    longer = write_block(_longer(longer, num), more, end)
    filled = copied + copied_more

    # The copies, and then the likeliest token after each token.
    def chain(
      previous: Array, step: tuple[Array, Array]
    ) -> tuple[Array, Array]:
      number, copy = step
      token = jnp.where(number < filled, copy, self.next_token[previous])
      return token, token

    copies = _read(longer, length - 1, num + 1).T
    steps = (jnp.arange(num), copies[1:])
    _, drafts = jax.lax.scan(chain, copies[0], steps)
    return drafts.T, filled


def _longer(tokens: Array, num: int) -> Array:
  """Returns [B, N + num]: tokens [B, N] with space for more after them."""
  return jnp.pad(tokens, ((0, 0), (0, num)))


def _read(tokens: Array, start: Array, num: int) -> Array:
  """Returns [B, num] of tokens [B, N], each row from `start` [B] on.

  Past the end it is the last token.
  """
  index = start[:, None] + jnp.arange(num, dtype=jnp.int32)[None]
  index = jnp.minimum(index, tokens.shape[1] - 1)
  return jnp.take_along_axis(tokens, index, axis=1)


def find_continuation(
  text: Array, text_len: Array, tokens: Array, length: Array, num: int
) -> tuple[Array, Array]:
  """Returns the tokens that follow the longest suffix found in each row's text.

  Args:
    text: [B, M] int32, of which the first `text_len` tokens are searched.
    text_len: [B] int32.
    tokens: [B, L] int32, of which the first `length` count. Their suffixes are
      searched for.
    length: [B] int32, 1 or more.
    num: static, the largest number of tokens to return.

  Returns:
    [B, num] int32, the tokens after the leftmost occurrence of the longest
    suffix, and [B] int32, how many of them are within the text.
  """
  # All places of the text are searched at once, and the suffix grows token by
  # token. In the text 1 2 5 1 2 7 and for the tokens 9 1 2:
  #   1 token, "2", ends at the places 1 and 4;
  #   2 tokens, "1 2", end at 1 and 4 as well;
  #   3 tokens, "9 1 2", end nowhere.
  # So 1 is the leftmost end of the longest suffix, and the copy begins at 2.
  size, num_tokens = text.shape[1], tokens.shape[1]
  place = jnp.arange(size, dtype=jnp.int32)[None]
  padded = jnp.pad(text, ((0, 0), (num_tokens, 0)), constant_values=-1)

  def match_one_more(matched: Array, ends: Array) -> Array:
    """Returns where one more token agrees, of the places where `matched` do."""
    # shifted[:, i] is text[:, i - matched], and -1 before a text's start.
    shifted = jax.lax.dynamic_slice_in_dim(
      padded, num_tokens - matched, size, axis=1
    )
    token = _read(tokens, jnp.maximum(length - 1 - matched, 0), 1)
    return ends & (shifted == token) & (matched < length)[:, None]

  def is_matched(carry: dict[str, Array]) -> Array:
    return jnp.any(carry["longer_ends"])

  def lengthen(carry: dict[str, Array]) -> dict[str, Array]:
    matched, ends = carry["matched"], carry["longer_ends"]
    is_longer = jnp.any(ends, axis=1, keepdims=True)
    return {
      "matched": matched + 1,
      "ends": jnp.where(is_longer, ends, carry["ends"]),
      "longer_ends": match_one_more(matched, ends),
    }

  # Invariant: `longer_ends` are the places where `matched` tokens agree, and
  # `ends` those where `matched` - 1 do, or in a row that has none of these, the
  # last ones that it had.
  everywhere = place < text_len[:, None]
  last_token = match_one_more(jnp.int32(0), everywhere)
  carry = {
    "matched": jnp.int32(1),
    "ends": everywhere,
    "longer_ends": last_token,
  }
  ends = jax.lax.while_loop(is_matched, lengthen, carry)["ends"]
  # The place after the leftmost end. Without any end the places are
  # `everywhere`, which `is_found` catches.
  first = jnp.min(jnp.where(ends, place, size), axis=1) + 1
  is_found = jnp.any(last_token, axis=1)
  count = jnp.where(is_found, jnp.clip(text_len - first, 0, num), 0)
  return _read(text, first, num), count
