"""Feeds a language model the tokens of a prefix that its cache lacks.

A model's cache can lack tokens that it did not write: the verifier
after a block, another drafter of a cascade, or the other side of a
conversation. The model then catches up in wide passes, and not token by token.
"""

import functools

import jax
import jax.numpy as jnp

from speccascade.decoding.records import token_buffers
from speccascade.decoding.records.block_records import Output
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.records.language_model import LanguageModel, State

Array = jax.Array


def feed(
  model: LanguageModel, state: State, token: Array, count: Array
) -> tuple[State, Array]:
  """Feeds one token to each row whose count is 1.

  Args:
    model: the language model.
    state: the model's state.
    token: [B] int32.
    count: [B] int32, 0 or 1.

  Returns:
    The state, and the logits [B, V] after the token.
  """
  state, out = model.extend(state, token[:, None], count)
  return state, out.logits[:, 0]


def feed_block(
  model: LanguageModel,
  state: State,
  tokens: Array,
  count: Array,
  first: Array,
  *,
  width: int,
  read: int = 1,
) -> tuple[State, Array]:
  """Feeds the next `count[b]` <= width tokens of the prefix in one pass.

  Args:
    model: the language model.
    state: the model's state.
    tokens: [B, L] int32, which hold the prefix.
    count: [B] int32, tokens to feed.
    first: [B] int32, index of the first token whose logits are wanted.
    width: static, tokens of the pass.
    read: static, how many logits of each row.

  Returns:
    The state, and the logits [B, read, V] after tokens `first`, `first + 1`,
    ... of the prefix. Logits of tokens that are not fed now are undefined.
  """
  # A cache that holds 4 tokens is fed the tokens 4, 5, 6, ... of the buffer.
  # Indices past its end belong to tokens after `count`, which are ignored.
  block = token_buffers.read_block(tokens, state.length, width)
  # Token `first` = 6 is then at place 2 of the fed block.
  wanted = (first - state.length)[:, None] + jnp.arange(read)[None]
  wanted = jnp.clip(wanted, 0, width - 1)
  state, out = model.extend(state, block, count, read=wanted)
  return state, out.logits


def feed_to(
  model: LanguageModel,
  state: State,
  tokens: Array,
  upto: Array,
  *,
  first: Array,
  read: int,
  narrow: int,
  wide: int,
) -> tuple[State, Array, Array]:
  """Feeds every row up to `upto`, in one pass if `wide` tokens are enough.

  The missing tokens of the prefix go through the model together with the tokens
  whose logits are wanted. Where no row lacks more than `narrow` tokens the pass
  is `narrow`, else it is `wide`. Both passes are compiled, and each iteration
  of the loop runs one of them.

  Args:
    model: the language model.
    state: the model's state, with `wide` free slots after `upto`.
    tokens: [B, L] int32, which hold the prefix.
    upto: [B] int32. Rows that hold this many tokens already are left alone.
    first: [B] int32, index of the first token whose logits are wanted. In rows
      that are fed, `upto - narrow <= first < upto`, and the cache does not hold
      token `first` yet.
    read: static, how many logits of each row: those after tokens `first`,
      `first + 1`, .... Logits after token `upto - 1` are undefined.
    narrow: static, at least `read`.
    wide: static, at least `narrow`.

  Returns:
    The state, the logits [B, read, V] (0 for rows left alone), and [B] int32
    passes made for each row.
  """

  def lacks(carry: tuple[State, Array, Array]) -> Array:
    return jnp.any(carry[0].length < upto)

  def one_pass(width: int, state: State, count: Array) -> tuple[State, Array]:
    return feed_block(
      model, state, tokens, count, first, width=width, read=read
    )

  def feed_some(
    carry: tuple[State, Array, Array],
  ) -> tuple[State, Array, Array]:
    state, logits, passes = carry
    missing = jnp.maximum(upto - state.length, 0)
    # The tokens that are read must be in one pass, the last one. So a pass that
    # is not a row's last leaves at least `narrow` tokens. With wide 5 and
    # narrow 3 a row that lacks 12 tokens is fed 5, 4 and 3, and a row that
    # lacks 6 is fed 3 and 3.
    count = jnp.where(
      missing <= wide, missing, jnp.minimum(missing - narrow, wide)
    )
    if narrow == wide:
      state, new = one_pass(wide, state, count)
    else:
      state, new = jax.lax.cond(
        jnp.max(missing) <= narrow,
        functools.partial(one_pass, narrow),
        functools.partial(one_pass, wide),
        state,
        count,
      )
    # Logits of an earlier pass are overwritten by those of the last one.
    fed = missing > 0
    logits = jnp.where(fed[:, None, None], new, logits)
    return state, logits, passes + fed.astype(jnp.int32)

  out = jax.eval_shape(functools.partial(one_pass, narrow), state, upto)[1]
  logits = jnp.zeros(out.shape, out.dtype)
  passes = jnp.zeros_like(upto)
  return jax.lax.while_loop(lacks, feed_some, (state, logits, passes))


def feed_tree(
  model: LanguageModel,
  state: State,
  last: Array,
  tokens: Array,
  tree: DraftTree,
  count: Array,
) -> tuple[State, Output]:
  """Feeds the last token of the prefix and a tree of drafts, in one pass.

  In a tree the place of a token is its depth, and a token sees its own path.
  Equal siblings have equal paths, so the shape in which the drafts were made
  serves after their children were merged, too.

  Args:
    model: the language model.
    state: the model's state, which lacks the last token of the prefix alone.
    last: [B, 1] int32, the last token of the prefix.
    tokens: [B, N] int32, the drafts.
    tree: static, their shape.
    count: [B] int32, how many of the N + 1 tokens are fed.

  Returns:
    The state with the tokens fed, of which `model.keep` keeps a path, and the
    `Output` at the N + 1 nodes.
  """
  rows = tokens.shape[0]
  depth = jnp.asarray(tree.node_depths)[None]
  sees = jnp.asarray(tree.node_sees)[None]
  return model.extend(
    state,
    jnp.concatenate([last, tokens], axis=1),
    count,
    depth=jnp.broadcast_to(depth, (rows, *depth.shape[1:])),
    ancestors=jnp.broadcast_to(sees, (rows, *sees.shape[1:])),
  )


def parents(depth: Array, ancestors: Array) -> Array:
  """Returns [B, N] int32, how far each token's parent is past a row's length.

  The tokens that earlier calls fed are before the length; so is the token
  before a tree, of which -1 - (W - N) is returned.

  Args:
    depth: [B, W] int32, see `LanguageModel.extend`.
    ancestors: [B, N, W] bool, see `LanguageModel.extend`.
  """
  num, width = ancestors.shape[1:]
  num_before = width - num
  own = depth[:, num_before:]
  is_parent = ancestors & (depth[:, None] == own[..., None] - 1)
  column = jnp.argmax(is_parent, axis=2).astype(jnp.int32)
  column = jnp.where(jnp.any(is_parent, axis=2), column, -1)
  return column - num_before
