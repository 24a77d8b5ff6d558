"""A pass of a whole decoder over a few tokens, in one call."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native import library
from speccascade.native.panels import WIDTH, Panels

# In the order of enum Activation in rows.h; names of flax.linen.
ACTIVATIONS = ("linear", "relu", "gelu", "silu")
KINDS = ("cached", "source", "mlp")  # in the order of enum Kind in pass.cc


class Sublayer(NamedTuple):
  """One part of a decoder layer: x + f(norm(x)).

  Attributes:
    kind: "cached", attention to a cache that the tokens are written to first;
      "source", attention to keys and values that stay; or "mlp".
    scale: [E] float32, of the norm.
    kernels: `Panels`: query, key, value and out; query and out; or the inner
      ones, whose results are multiplied, and the outer.
    kept: nothing for an MLP; keys [B, H, D, L], values [B, H, L, D] and a bias:
      "cached": [H, 2 L - 1], entry j is that of a key at distance j - (L - 1)
      from the query; "source": [B, 1, 1, L]. All float32.
  """

  kind: str
  scale: Any
  kernels: tuple[Panels, ...]
  kept: tuple = ()

  def operands(self, batch: int, width: int) -> list:
    """Returns what the call reads, in order, with the shapes wanted."""
    inner, shapes = self.kernels[0].num_out, []
    if self.kind != "mlp":
      _, heads, dim, slots = self.kept[0].shape
      inner = heads * dim
      shapes = [(batch, heads, dim, slots), (batch, heads, slots, dim)]
      is_cached = self.kind == "cached"
      shapes += [(heads, 2 * slots - 1) if is_cached else (batch, 1, 1, slots)]
    kernels = [(width, inner)] * (len(self.kernels) - 1) + [(inner, width)]
    given = (*self.kept, self.scale, *self.kernels)
    return list(zip(given, [*shapes, (width,), *kernels], strict=True))


def decoder_pass(
  x,
  start,
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
  what is not finite is written as 0.

  Args:
    x: [B, N, E] float32, the tokens' vectors.
    start: [B] int32, the slot of each row's first token; start + N <= L.
    sublayers: `Sublayer`s, at least one of them cached.
    scale: [E] float32, of the last norm.
    head: `Panels`, [E, V]; all panels have one dtype.
    activations: of an MLP's inner kernels, one or two of `ACTIVATIONS`.
    read: [B, R] int32 in 0..N-1, the positions wanted; None means all.
    factor: of the logits.
    epsilon: of the norms.

  Returns:
    ((keys, values) of each cached sublayer, logits [B, R, V], hidden [B, R, E]
    after the last norm).

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  batch, num_fed, width = x.shape
  if read is None:
    read = jnp.zeros((batch, 0), jnp.int32)
  given = [(x, x.shape), (start, (batch,)), (read, (batch, read.shape[1]))]
  aliases, caches = {}, []
  for part in sublayers:
    if part.kind == "cached":
      for i in range(2):
        aliases[len(given) + i] = 2 + len(caches)
        caches.append(jax.ShapeDtypeStruct(part.kept[i].shape, jnp.float32))
    given += part.operands(batch, width)
  given += [(scale, (width,)), (head, (width, head.num_out))]
  operands, columns, num_weights = [], [], 0
  for i, (array, shape) in enumerate(given):
    dtype = jnp.int32 if i in (1, 2) else jnp.float32
    is_wide = True
    if isinstance(array, Panels):
      columns.append(array.num_out)
      is_wide = array.num_out == shape[1]
      dtype = head.array.dtype
      shape = (-(-shape[1] // WIDTH), shape[0], WIDTH)
      array = array.array
      num_weights += array.size
    if not is_wide or (array.shape, array.dtype) != (shape, dtype):
      raise ValueError(
        f"operand {i} of a decoder pass is {array.dtype}{array.shape}, wanted "
        f"{jnp.dtype(dtype)}{shape}"
      )
    operands.append(array)
  num_slots = min(shape.shape[3] for shape in caches[::2])
  if num_fed > num_slots:
    raise ValueError(f"{num_fed} tokens do not fit {num_slots} slots")
  num_read = read.shape[1] or num_fed
  results = [
    jax.ShapeDtypeStruct((batch, num_read, n), jnp.float32)
    for n in (width, head.num_out)
  ]
  call = jax.ffi.ffi_call(
    library.target("DecoderPass"),
    [*results, *caches],
    vmap_method="sequential",
    input_output_aliases=aliases,
  )
  codes = lambda names, known: np.asarray([*map(known.index, names)], np.int32)
  hidden, logits, *caches = call(
    *operands,
    kinds=codes([part.kind for part in sublayers], KINDS),
    activations=codes(activations, ACTIVATIONS),
    columns=np.asarray(columns, np.int32),
    num_weights=np.int64(num_weights),
    num_slots=np.int64(num_slots),
    epsilon=np.float32(epsilon),
    factor=np.float32(factor),
  )
  return tuple(zip(caches[::2], caches[1::2])), logits, hidden
