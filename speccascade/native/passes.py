"""A pass of a decoder over a few tokens, or of an encoder, in one call."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native.operands import PassOperands
from speccascade.native.panels import Panels
from speccascade.native.sublayers import (
  KINDS,
  CachedAttention,
  DecoderSublayer,
  EncoderSublayer,
  MlpSublayer,
  RotaryAttention,
  SourceKernels,
  Sublayer,
)

# In the order of enum Activation in rows.h; names of flax.linen.
ACTIVATIONS = ("linear", "relu", "gelu", "silu")
KeysValues = tuple[jax.Array, jax.Array]


def _codes(names: Iterable[str], known: tuple[str, ...]) -> np.ndarray:
  """Returns the place of each name in `known`, which the native code reads."""
  # The order of the names is the order of an enum in the sources.
  return np.asarray([known.index(name) for name in names], np.int32)


def _check_mlps(
  sublayers: Sequence[Sublayer], activations: Sequence[str]
) -> None:
  """Raises ValueError where an MLP has no activation for an inner kernel."""
  for sublayer in sublayers:
    if isinstance(sublayer, MlpSublayer) and len(sublayer.inner) != len(
      activations
    ):
      raise ValueError(
        f"an MLP of a native pass has {len(sublayer.inner)} inner kernels, and"
        f" there are {len(activations)} activations, {tuple(activations)}; give"
        " one activation for each inner kernel"
      )


def _is_in_all_layers(
  sublayers: Sequence[Sublayer], field: str, name: str
) -> bool:
  """Whether the rotary layers have an optional field."""
  # The native code gets one layout for all layers, and would read the operands
  # of a layer that differs as those of the next field.
  rotary = [part for part in sublayers if isinstance(part, RotaryAttention)]
  have = [getattr(part, field) is not None for part in rotary]
  if len(set(have)) > 1:
    raise ValueError(
      f"attention layer {have.index(True)} of a native pass has {name}, layer"
      f" {have.index(False)} has none; give {name} to all layers or to none"
    )
  return True in have


def decoder_attributes(
  operands: PassOperands,
  sublayers: Sequence[DecoderSublayer],
  activations: Sequence[str],
  *,
  width: int,
  epsilon: float,
  factor: float,
  has_head: bool,
  has_tree: bool,
  handed_out: Sequence[int] = (),
) -> dict[str, Any]:
  """Returns what a handler reads of a decoder, apart from its table.

  Args:
    operands: of the call, with all sublayers added.
    sublayers: in order.
    activations: names in `ACTIVATIONS`, one for each inner kernel of an MLP.
    width: E.
    epsilon: added to the mean square in a norm.
    factor: factor of the logits.
    has_head: whether there is a head.
    has_tree: whether the fed tokens are those of trees.
    handed_out: numbers of sublayers whose inputs are a result.

  Raises:
    ValueError: the layers are not alike, or an MLP lacks an activation.
  """
  _check_mlps(sublayers, activations)
  return {
    "kinds": _codes([part.kind for part in sublayers], KINDS),
    "windows": np.asarray([part.window or 0 for part in sublayers], np.int32),
    "activations": _codes(activations, ACTIVATIONS),
    "handed_out": np.asarray(handed_out, np.int32),
    "num_slots": np.int64(operands.num_slots),
    "has_bias": _is_in_all_layers(
      sublayers, "biases", "biases of queries, keys and values"
    ),
    "has_norm": _is_in_all_layers(
      sublayers, "head_norms", "norms of queries and keys"
    ),
    "has_head": has_head,
    "has_tree": has_tree,
    "width": np.int64(width),
    "epsilon": np.float32(epsilon),
    "factor": np.float32(factor),
  }


def decoder_pass(
  tokens: jax.Array,
  table: jax.Array | Panels,
  start: jax.Array,
  count: jax.Array,
  sublayers: Sequence[DecoderSublayer],
  scale: jax.Array,
  head: Panels | None,
  *,
  activations: Sequence[str],
  read: jax.Array | None = None,
  tree: tuple[jax.Array, jax.Array] | None = None,
  factor: float = 1.0,
  epsilon: float = 1e-6,
  state_layers: Sequence[int] = (),
) -> tuple[tuple[KeysValues, ...], jax.Array | None, jax.Array | None]:
  """Feeds a block of tokens through sublayers, a last norm and a head.

  A position's result is the same to the bit whatever the other rows and
  positions. The caches are written in place where nothing else reads them; a
  key or value that is not finite is written as 0. Rows that are fed nothing
  cost nothing, nor do places of the block that no row is fed. The results of
  places that are not fed are 0, except where a wanted position is past the fed
  ones: its result is undefined.

  Args:
    tokens: [B, N] int32; an id past an end of the table is read as that end.
    table: [V, E] float32, vectors of tokens; or `Panels` [E, V].
    start: [B] int32, the slot of each row's first token; start + N <= L.
    count: [B] int32, tokens fed to each row.
    sublayers: in order; at least one has a cache.
    scale: [E] float32, scale of the last norm.
    head: `Panels` [E, V], of any kind. None writes the tokens to the caches,
      and computes nothing else.
    activations: names in `ACTIVATIONS`, one for each inner kernel of an MLP.
    read: [B, R] int32 in 0..N-1, the positions wanted; None means all.
    tree: (depth [B, W] int32, ancestors [B, N, W] bool) of a tree's tokens, as
      of `LanguageModel.extend`; None means that the tokens are a chain, as
      which a tree of one branch has the same results to the bit.
    factor: factor of the logits.
    epsilon: added to the mean square in a norm.
    state_layers: K numbers of cached sublayers, counted from 0, whose inputs
      are the hidden states; see `CachedLM.handing_out`.

  Returns:
    ((keys, values) of each cached sublayer, logits [B, R, V], hidden [B, R, E]
    after the last norm, or [B, R, K E] of the layers); without a head the
    logits and hidden are None.

  Raises:
    ValueError: shapes or dtypes do not fit, or the layers are not alike.
  """
  (batch, num_fed), [width] = tokens.shape, scale.shape
  if read is None:
    read = jnp.zeros((batch, 0), jnp.int32)
  operands = PassOperands(sublayers[0].out)
  # The first arrays are those that the handler names; then come the operands of
  # the sublayers, of the last norm and of the head, as the handler reads them.
  operands.add(tokens, tokens.shape, jnp.int32)
  table_attributes = operands.add_table(table, width)
  for array in (start, count):
    operands.add(array, (batch,), jnp.int32)
  operands.add(read, (batch, read.shape[1]), jnp.int32)
  if tree is not None:
    depth, ancestors = tree
    window = depth.shape[1]
    operands.add(depth, (batch, window), jnp.int32)
    operands.add(ancestors, (batch, num_fed, window), jnp.bool_)
  if head is not None:
    num_read = read.shape[1] or num_fed
    operands.add_result((batch, num_read, width))
    operands.add_result((batch, num_read, head.num_out))
    if state_layers:
      operands.add_result((batch, num_read, len(state_layers) * width))
  num_before = len(operands.results)  # results before the caches
  for part in sublayers:
    operands.add_sublayer(part, batch, num_fed)
  if num_fed > operands.num_slots:
    raise ValueError(f"{num_fed} tokens do not fit {operands.num_slots} slots")
  if head is not None:
    operands.add(scale, (width,))
    operands.add(head, (width, head.num_out), like=head)
  cached = [
    i
    for i, part in enumerate(sublayers)
    if isinstance(part, CachedAttention | RotaryAttention)
  ]
  results = operands.call(
    "DecoderPass",
    **table_attributes,
    **decoder_attributes(
      operands,
      sublayers,
      activations,
      width=width,
      epsilon=epsilon,
      factor=factor,
      has_head=head is not None,
      has_tree=tree is not None,
      handed_out=[cached[layer] for layer in state_layers],
    ),
  )
  caches = results[num_before:]
  pairs = tuple(zip(caches[::2], caches[1::2]))
  if head is None:
    return pairs, None, None
  hidden, logits, *states = results[:num_before]
  hidden = states[0] if states else hidden
  return pairs, logits, hidden


def encoder_pass(
  tokens: jax.Array,
  table: jax.Array | Panels,
  mask: jax.Array,
  sublayers: Sequence[EncoderSublayer],
  scale: jax.Array,
  source_kernels: Sequence[SourceKernels],
  *,
  num_heads: int,
  activations: Sequence[str],
) -> tuple[KeysValues, ...]:
  """Encodes a source, and makes the keys and values that a decoder looks at.

  Args:
    tokens: [B, S] int32; an id past an end of the table is read as that end.
    table: [V, E] float32, vectors of tokens; or `Panels` [E, V].
    mask: [B, 1, 1, S] float32, added to the scores of each key.
    sublayers: in order.
    scale: [E] float32, scale of the last norm.
    source_kernels: the kernels of each decoder layer, each of any kind.
    num_heads: H of the decoder.
    activations: names in `ACTIVATIONS`, one for each inner kernel of an MLP.

  Returns:
    For each decoder layer, keys [B, H, D, S] and values [B, H, S, D].

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  (batch, num_fed), [width] = tokens.shape, scale.shape
  _check_mlps(sublayers, activations)
  operands = PassOperands(source_kernels[0].key)
  operands.add(tokens, tokens.shape, jnp.int32)
  table_attributes = operands.add_table(table, width)
  operands.add(mask, (batch, 1, 1, num_fed))
  for part in sublayers:
    operands.add_sublayer(part, batch, num_fed)
  operands.add(scale, (width,))
  dim = source_kernels[0].key.num_out // num_heads
  for pair in source_kernels:
    for kernel in pair:
      operands.add(kernel, (width, num_heads * dim), like=pair.key)
    operands.add_result((batch, num_heads, dim, num_fed))
    operands.add_result((batch, num_heads, num_fed, dim))
  results = operands.call(
    "EncoderPass",
    kinds=_codes([part.kind for part in sublayers], KINDS),
    activations=_codes(activations, ACTIVATIONS),
    **table_attributes,
    width=np.int64(width),
    epsilon=np.float32(1e-6),
  )
  return tuple(zip(results[::2], results[1::2]))
