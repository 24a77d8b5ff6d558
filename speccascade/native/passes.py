"""A pass of a decoder over a few tokens, or of an encoder, in one call."""

from collections.abc import Sequence
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native.operations import call
from speccascade.native.panels import Panels, Shared, packed_shape

# In the order of enum Activation in rows.h; names of flax.linen.
ACTIVATIONS = ("linear", "relu", "gelu", "silu")
# In the order of enum Kind in pass.cc.
KINDS = ("cached", "source", "mlp", "own", "rotary")


class Sublayer(NamedTuple):
  """One part of a layer: x + f(norm(x)).

  Attributes:
    kind: "cached", attention to a cache that the tokens are written to first;
      "rotary", the same where queries and keys are turned, and heads may share
      keys; "source", attention to keys and values that stay; "own", of an
      encoder's tokens to each other; or "mlp".
    scale: [E] float32, of the norm.
    kernels: `Panels`: query, key, value and out; query and out for "source"; or
      an MLP's inner ones, whose results are multiplied, and the outer.
    kept: nothing for an MLP. "own": a bias [H, 2 N - 1], entry j is that of a
      key at distance j - (N - 1) from the query. "cached": keys [B, H, D, L],
      values [B, H, L, D], and biases [B, H, 2 L - 1]. "rotary": keys, values,
      cosines and sines [B, N, D / 2], then biases of query, key and value, if
      any, then scales [D] of norms of query and key, if any. "source": keys,
      values, and a mask [B, 1, 1, L] that is added. All float32.
    window: of attention to a cache: how many slots back a token sees, itself
      included; None is all.
  """

  kind: str
  scale: Any
  kernels: tuple[Panels, ...]
  kept: tuple = ()
  window: int | None = None

  @property
  def has_bias(self) -> bool:
    """Whether queries, keys and values have biases."""
    return self.kind == "rotary" and len(self.kept) >= 7

  @property
  def has_norm(self) -> bool:
    """Whether queries and keys are normed."""
    return self.kind == "rotary" and len(self.kept) in (6, 9)

  def operands(self, batch: int, num_fed: int) -> list:
    """Returns what the call reads, in order, with the shapes wanted."""
    width, inner = self.scale.shape[0], self.kernels[0].num_out
    columns, shapes = inner, []  # of keys and values
    if self.kind == "own":
      shapes = [(self.kept[0].shape[0], 2 * num_fed - 1)]
    elif self.kind != "mlp":
      _, heads, dim, slots = self.kept[0].shape
      columns = heads * dim
      shapes = [(batch, heads, dim, slots), (batch, heads, slots, dim)]
      if self.kind == "rotary":
        inner = max(inner // columns, 1) * columns
        shapes += [(batch, num_fed, dim // 2)] * 2
        shapes += [(inner,), (columns,), (columns,)] * self.has_bias
        shapes += [(dim,)] * 2 * self.has_norm
      else:
        inner, is_cached = columns, self.kind == "cached"
        bias = (batch, heads, 2 * slots - 1)
        shapes.append(bias if is_cached else (batch, 1, 1, slots))
    kernels = [(width, inner)] + [(width, columns)] * (len(self.kernels) - 2)
    kernels += [(inner, width)]
    arrays = (*self.kept, self.scale, *self.kernels)
    return list(zip(arrays, [*shapes, (width,), *kernels], strict=True))


class _Operands:
  """What a call reads, each checked; what of it the native code must be told.

  Attributes:
    arrays: in order, without those of kernels, which come last.
    shared: those of kernels.
    columns: of each kernel.
    num_weights: of all kernels.
    like: `Panels`, of the kind that all are of.
  """

  def __init__(self, like: Panels):
    self.arrays, self.shared, self.columns = [], Shared(), []
    self.num_weights, self.like = 0, like

  def add(self, array, shape: tuple, dtype=jnp.float32):
    """Adds an array, or panels [in, out], of this shape.

    Raises:
      ValueError: its shape or dtype is another.
    """
    if isinstance(array, Panels):
      if not array.fits(shape, self.like):
        raise ValueError(
          f"kernel {len(self.columns)} of a native pass is {array}, wanted a"
          f" kernel {shape}, like {self.like}"
        )
      self.columns.append(array.num_out)
      self.num_weights += math.prod(packed_shape(shape, array.array.dtype))
      self.shared.add(array)
      return
    if (array.shape, array.dtype) != (shape, dtype):
      raise ValueError(
        f"operand {len(self.arrays)} of a native pass is {array.dtype}"
        f"{array.shape}, wanted {jnp.dtype(dtype)}{shape}"
      )
    self.arrays.append(array)

  def add_table(self, table, width: int) -> dict[str, np.int64]:
    """Adds a table [V, E] of vectors, of panels the columns; returns V, and the
    first of the panels."""
    if not isinstance(table, Panels):
      self.add(table, (table.shape[0], width))
      return {"vocab": np.int64(table.shape[0]), "panel": np.int64(0)}
    _Operands(self.like).add(table, (width, table.num_out))
    self.arrays.append(table.array)
    return {"vocab": np.int64(table.num_out), "panel": np.int64(table.first)}

  def call(self, name: str, results: Sequence, aliases: dict, **attributes):
    """Returns what the native code makes of them; see `jax.ffi`."""
    return call(
      name,
      [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in results],
      *self.arrays,
      *self.shared.arrays,
      aliases=aliases,
      num_arrays=np.int64(len(self.shared.arrays)),
      **self.shared.places(),
      columns=np.asarray(self.columns, np.int32),
      num_weights=np.int64(self.num_weights),
      rounds=self.like.rounds,
      **attributes,
    )


def _codes(names, known) -> np.ndarray:
  return np.asarray([known.index(name) for name in names], np.int32)


def decoder_pass(
  tokens,
  table,
  start,
  count,
  sublayers,
  scale,
  head,
  *,
  activations,
  read=None,
  factor=1.0,
  epsilon=1e-6,
):
  """Feeds a block of tokens through sublayers, a last norm and a head.

  A position's result is the same to the bit whatever rows and positions stand
  beside it. The caches are written in place where nothing else reads them;
  what is not finite is written as 0. Rows that are fed nothing cost nothing,
  nor do places that no row is fed. The results of what is not fed are 0, but
  for a place that is read past the fed ones: it means nothing.

  Args:
    tokens: [B, N] int32; an id past an end of the table is that of the end.
    table: [V, E] float32, vectors of tokens; or `Panels` [E, V].
    start: [B] int32, the slot of each row's first token; start + N <= L.
    count: [B] int32, tokens fed to each row.
    sublayers: `Sublayer`s, at least one of them with a cache.
    scale: [E] float32, of the last norm.
    head: `Panels`, [E, V]; all panels are of one kind. None where the tokens
      are only written to the caches.
    activations: of an MLP's inner kernels, one or two of `ACTIVATIONS`.
    read: [B, R] int32 in 0..N-1, the positions wanted; None means all.
    factor: of the logits.
    epsilon: of the norms.

  Returns:
    ((keys, values) of each cached sublayer, logits [B, R, V], hidden [B, R, E]
    after the last norm); without a head the logits and hidden are None.

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  (batch, num_fed), [width] = tokens.shape, scale.shape
  if read is None:
    read = jnp.zeros((batch, 0), jnp.int32)
  operands = _Operands(sublayers[0].kernels[0])
  operands.add(tokens, tokens.shape, jnp.int32)
  place = operands.add_table(table, width)
  for array in (start, count):
    operands.add(array, (batch,), jnp.int32)
  operands.add(read, (batch, read.shape[1]), jnp.int32)
  results, num_read = [], read.shape[1] or num_fed
  if head is not None:
    results = [(batch, num_read, n) for n in (width, head.num_out)]
  num_made = len(results)
  aliases = {}
  for part in sublayers:
    if part.kind in ("cached", "rotary"):
      for cache in part.kept[:2]:
        aliases[len(operands.arrays) + len(results) % 2] = len(results)
        results.append(cache.shape)
    for array, shape in part.operands(batch, num_fed):
      operands.add(array, shape)
  num_slots = min(shape[3] for shape in results[num_made::2])
  if num_fed > num_slots:
    raise ValueError(f"{num_fed} tokens do not fit {num_slots} slots")
  if head is not None:
    operands.add(scale, (width,))
    operands.add(head, (width, head.num_out))
  results = operands.call(
    "DecoderPass",
    results,
    aliases,
    kinds=_codes([part.kind for part in sublayers], KINDS),
    windows=np.asarray([part.window or 0 for part in sublayers], np.int32),
    activations=_codes(activations, ACTIVATIONS),
    **place,
    num_slots=np.int64(num_slots),
    has_bias=any(part.has_bias for part in sublayers),
    has_norm=any(part.has_norm for part in sublayers),
    has_head=head is not None,
    width=np.int64(width),
    epsilon=np.float32(epsilon),
    factor=np.float32(factor),
  )
  caches = tuple(zip(results[num_made::2], results[num_made + 1 :: 2]))
  hidden, logits = results[:num_made] or (None, None)
  return caches, logits, hidden


def encoder_pass(
  tokens, table, mask, sublayers, scale, kept, *, num_heads, activations
):
  """Encodes a source, and makes the keys and values that a decoder looks at.

  Arguments as of `decoder_pass`, with tokens [B, S], and:

  Args:
    mask: [B, 1, 1, S] float32, added to the scores of each key.
    sublayers: `Sublayer`s, "own" and "mlp".
    kept: (key, value) of each decoder layer, `Panels` [E, H * D].
    num_heads: H of these.

  Returns:
    For each pair of `kept`, keys [B, H, D, S] and values [B, H, S, D].

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  (batch, num_fed), [width] = tokens.shape, scale.shape
  operands = _Operands(kept[0][0])
  operands.add(tokens, tokens.shape, jnp.int32)
  place = operands.add_table(table, width)
  operands.add(mask, (batch, 1, 1, num_fed))
  for part in sublayers:
    for array, shape in part.operands(batch, num_fed):
      operands.add(array, shape)
  operands.add(scale, (width,))
  results, dim = [], kept[0][0].num_out // num_heads
  for pair in kept:
    for kernel in pair:
      operands.add(kernel, (width, num_heads * dim))
    results.append((batch, num_heads, dim, num_fed))
    results.append((batch, num_heads, num_fed, dim))
  results = operands.call(
    "EncoderPass",
    results,
    {},
    kinds=_codes([part.kind for part in sublayers], KINDS),
    activations=_codes(activations, ACTIVATIONS),
    **place,
    width=np.int64(width),
    epsilon=np.float32(1e-6),
  )
  return tuple(zip(results[::2], results[1::2]))
