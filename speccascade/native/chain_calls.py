"""A chain of drafts in one call: passes of a drafter, and draws from its q.

Axes: B rows, G drafts, L tokens of the buffer, V vocabulary, E model width, N
columns of the head, P passes: G, or G + 1 where the distribution after the last
draft is wanted. N is V unless the head is cut.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native.operands import PassOperands
from speccascade.native.panels import Panels
from speccascade.native.passes import KeysValues, decoder_attributes
from speccascade.native.sublayers import DecoderSublayer


class ChainPrefix(NamedTuple):
  """What a chain follows.

  Attributes:
    tokens: [B, L] int32.
    length: [B] int32, how many of the tokens count.
    held: [B] int32, how many of those the cache holds already.
    end: [B] int32, the next slot of the cache.
    active: [B] bool. Nothing is fed to the other rows after their first pass.
  """

  tokens: jax.Array
  length: jax.Array
  held: jax.Array
  end: jax.Array
  active: jax.Array


class ChainDraws(NamedTuple):
  """How tokens are drawn.

  Attributes:
    u: [B, G] float32 uniforms in [0, 1).
    temperature: [] float32.
    top_p: [] float32; None keeps every token.
    greedy: static, whether a token is the first of the likeliest ones. The
      other attributes are not used then.
  """

  u: jax.Array
  temperature: jax.Array
  top_p: jax.Array | None
  greedy: bool


class ChainStates(NamedTuple):
  """What a drafter reads that reads a hidden state with each token.

  Attributes:
    before: [B, W, E] float32, the states before the first tokens that the cache
      lacks. Later tokens are read with the drafter's own hidden states, after
      its last norm.
    kernel: `Panels` [2 E, E], of the product of [vector of the token, state].
  """

  before: jax.Array
  kernel: Panels


def angles_of_chain(first_width: int, num_passes: int) -> int:
  """Returns how many tokens of a row the passes of a chain may feed."""
  return first_width + num_passes - 1


def draft_chain(
  prefix: ChainPrefix,
  draws: ChainDraws,
  table: jax.Array | Panels,
  sublayers: Sequence[DecoderSublayer],
  scale: jax.Array,
  head: Panels,
  *,
  first_width: int,
  num_passes: int,
  activations: Sequence[str],
  ids: jax.Array | None = None,
  states: ChainStates | None = None,
  factor: float = 1.0,
  epsilon: float = 1e-6,
) -> tuple[tuple[KeysValues, ...], jax.Array, jax.Array, jax.Array, jax.Array]:
  """Drafts a chain after each row's prefix.

  All numbers are, to the bit, those of `decoder_pass`, `laws`, `nucleus` and
  `draw` in turn: a pass over what the cache lacks of the prefix, and then the
  distribution, a token, and a pass over that token, again and again.

  Args:
    prefix: a `ChainPrefix`.
    draws: a `ChainDraws`.
    table: [V, E] float32, vectors of tokens; or `Panels` [E, V].
    sublayers: in order, with angles of `angles_of_chain` tokens of each row
      where they are rotary.
    scale: [E] float32, scale of the last norm.
    head: `Panels` [E, N], of any kind.
    first_width: static, the most tokens that a cache lacks of its prefix: W
      where there are states.
    num_passes: static, P.
    activations: names in `passes.ACTIVATIONS`.
    ids: [N] int32, the token of each column of the head; None where column i is
      token i.
    states: a `ChainStates`; None where tokens are read alone.
    factor: factor of the logits.
    epsilon: added to the mean square in a norm.

  Returns:
    ((keys, values) of each cached sublayer; tokens [B, G] int32; the
    distributions that they were drawn from, [B, G+1, N] float32, 0 at index G
    where P = G; logits [B, P, N] float32; [B, G+1] bool, where logits have no
    distribution).

  Raises:
    ValueError: shapes or dtypes do not fit, or the layers are not alike.
  """
  (batch, num_drafts), [width] = draws.u.shape, scale.shape
  num_columns = head.num_out
  if ids is None:
    ids = jnp.zeros((0,), jnp.int32)
  operands = PassOperands(sublayers[0].out)
  operands.add(prefix.tokens, (batch, prefix.tokens.shape[1]), jnp.int32)
  table_attributes = operands.add_table(table, width)
  for array in (prefix.length, prefix.held, prefix.end):
    operands.add(array, (batch,), jnp.int32)
  operands.add(prefix.active, (batch,), jnp.bool_)
  operands.add(draws.u, (batch, num_drafts))
  top_p = None if draws.greedy else draws.top_p
  operands.add(draws.temperature, ())
  operands.add(jnp.ones((), jnp.float32) if top_p is None else top_p, ())
  operands.add(ids, (num_columns if len(ids) else 0,), jnp.int32)
  if states is None:
    operands.add(jnp.zeros((batch, 0, width)), (batch, 0, width))
  else:
    operands.add(states.before, (batch, first_width, width))
    operands.add(states.kernel, (2 * width, width))
  operands.add_result((batch, num_drafts), jnp.int32)
  operands.add_result((batch, num_drafts + 1, num_columns))
  operands.add_result((batch, num_passes, num_columns))
  operands.add_result((batch, num_drafts + 1), jnp.bool_)
  num_before = len(operands.results)  # results before the caches
  num_angles = angles_of_chain(first_width, num_passes)
  for part in sublayers:
    operands.add_sublayer(part, batch, num_angles)
  if num_angles > operands.num_slots:
    raise ValueError(
      f"a chain of {num_angles} tokens does not fit {operands.num_slots} slots"
    )
  operands.add(scale, (width,))
  operands.add(head, (width, num_columns), like=head)
  results = operands.call(
    "DraftChain",
    first_width=np.int64(first_width),
    num_angles=np.int64(num_angles),
    greedy=draws.greedy,
    has_top_p=top_p is not None,
    **table_attributes,
    **decoder_attributes(
      operands,
      sublayers,
      activations,
      width=width,
      epsilon=epsilon,
      factor=factor,
      has_head=True,
      has_tree=False,
    ),
  )
  tokens, laws, logits, bad = results[:num_before]
  caches = results[num_before:]
  return tuple(zip(caches[::2], caches[1::2])), tokens, laws, logits, bad
