"""Products, attention, laws of logits and draws from them, in one call each.

XLA's CPU backend packs a kernel anew at every product of two or more rows. Here
it is packed once, when a model is made for decoding. Attention reads a cache in
place. `speccascade.decoding` defines the laws; its functions call these where
they can.
"""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.native import library

WIDTH = 64  # PANEL in shared.h


def call(handler: str, results, *operands, aliases=None, **static):
  """Returns what a handler makes of the operands; see `jax.ffi.ffi_call`."""
  run = jax.ffi.ffi_call(
    library.target(handler),
    results,
    vmap_method="sequential",
    input_output_aliases=aliases,
  )
  return run(*operands, **static)


@struct.dataclass
class Panels:
  """A kernel [in, out] as panels of its columns; it has no gradient.

  Attributes:
    array: [P, in, 64] float32, or [P, ceil(in / 2), 64, 2] bfloat16, weights of
      two inputs side by side; P = ceil(out / 64). What is past an end is 0.
    shape: (in, out), static.
    rounds: whether rows are rounded to bfloat16 before they are multiplied, as
      a TPU does by default; static. Sums are float32.
  """

  array: jax.Array
  shape: tuple[int, int] = struct.field(pytree_node=False)
  rounds: bool = struct.field(pytree_node=False, default=False)

  @property
  def num_out(self) -> int:
    return self.shape[1]

  def columns(self, index):
    """Returns columns [..., in] of the kernel, for int32 index [...]."""
    index = jnp.clip(index, 0, self.num_out - 1)
    columns = self.array[index // WIDTH, :, index % WIDTH]
    return columns.reshape(*index.shape, -1)[..., : self.shape[0]]

  def __str__(self) -> str:
    about = f"panels {self.array.dtype}{self.array.shape} of a kernel"
    return f"{about} {self.shape}{', rows rounded' * self.rounds}"

  def fits(self, shape: tuple[int, int], like: "Panels") -> bool:
    """Whether the kernel has this shape, and the kind of another."""
    dtype = like.array.dtype
    mine = (self.shape, self.array.shape, self.array.dtype, self.rounds)
    return mine == (shape, packed_shape(shape, dtype), dtype, like.rounds)


def packed_shape(shape: tuple[int, int], dtype) -> tuple[int, ...]:
  """Returns the shape of the panels of a kernel [in, out]."""
  num_in, num_panels = shape[0], -(-shape[1] // WIDTH)
  if jnp.dtype(dtype) == jnp.bfloat16:
    return num_panels, -(-num_in // 2), WIDTH, 2
  return num_panels, num_in, WIDTH


def pack(kernel, dtype, rounds=False) -> Panels:
  """Returns the panels of a kernel [in, out], in float32 or bfloat16."""
  kernel = np.asarray(kernel)
  array = np.zeros(packed_shape(kernel.shape, dtype), jnp.dtype(dtype))
  words = array if array.ndim == 4 else array[..., None]
  step = words.shape[3]  # inputs side by side
  for panel, i in np.ndindex(len(words), step):
    part = kernel[i::step, panel * WIDTH : (panel + 1) * WIDTH]
    words[panel, : part.shape[0], : part.shape[1], i] = part
  return Panels(jnp.asarray(array), kernel.shape, rounds)


def products(x, kernels) -> list:
  """Returns x times each kernel, [..., out], computed and returned in float32.

  A row's result is the same to the bit whatever rows stand beside it.

  Args:
    x: [..., in] float32.
    kernels: `Panels` of one kind, all with these inputs.

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  for kernel in kernels:
    fits = kernel.fits((x.shape[-1], kernel.num_out), kernels[0])
    if not fits or x.dtype != jnp.float32:
      raise ValueError(f"rows {x.dtype}{x.shape} do not fit {kernel}")
  results = [
    jax.ShapeDtypeStruct((*x.shape[:-1], kernel.num_out), jnp.float32)
    for kernel in kernels
  ]
  panels = [kernel.array for kernel in kernels]
  rounds = kernels[0].rounds
  return call("RowsTimesPanels", results, x, *panels, rounds=rounds)


def attend(query, key, value, bias, reach=None):
  """Returns softmax(query key + bias) value, [B, N, H, D], all in float32.

  A query's result is the same to the bit whatever queries and rows stand beside
  it, and however far past the last slot that it sees `reach` is.

  Args:
    query: [B, N, H, D] float32, as what follows.
    key: [B, H, D, L].
    value: [B, H, L, D].
    bias: [B, H, N, L]; its first three axes may be 1 long. A slot at -1e10
      below another has weight 0.
    reach: [B] int32, how many slots of a row need be looked at: those after
      must be masked. None means all.

  Raises:
    ValueError: shapes or dtypes do not fit.
  """
  num_rows, num_queries, num_heads, head_dim = query.shape
  num_slots = key.shape[-1]
  if reach is None:
    reach = jnp.full((num_rows,), num_slots, jnp.int32)
  axes = zip(bias.shape, (num_rows, num_heads, num_queries))
  wanted = (
    (num_rows, num_heads, head_dim, num_slots),
    (num_rows, num_heads, num_slots, head_dim),
    (*(n if size == n else 1 for size, n in axes), num_slots),
    (num_rows,),
  )
  operands = (query, key, value, bias, reach)
  dtypes = [x.dtype for x in operands]
  fits = tuple(x.shape for x in operands[1:]) == wanted
  if not fits or dtypes != [jnp.float32] * 4 + [jnp.int32]:
    shapes = ", ".join(f"{x.dtype}{x.shape}" for x in operands)
    raise ValueError(
      f"query, key, value, bias and reach do not fit each other: {shapes}"
    )
  result = jax.ShapeDtypeStruct(query.shape, jnp.float32)
  return call("Attend", result, *operands)


def takes(*arrays) -> bool:
  """Whether there are native handlers, and all arrays are float32."""
  is_float32 = all(x.dtype == jnp.float32 for x in arrays)
  return is_float32 and library.is_available()


def laws(logits, temperature, u, *, column: int, greedy: bool):
  """Returns (law [..., V], token [...] drawn from it, is it a law [...]).

  Args:
    logits: [..., V] float32; a row with NaN, +inf, or nothing but -inf gives no
      law.
    temperature: [] float32; not used where greedy.
    u: [..., N] float32 uniforms in [0, 1); None where no token is wanted, which
      is then 0. Not used where greedy.
    column: static, which of the N to use.
    greedy: static; the law is one-hot at the first of the largest logits.
  """
  if u is None:
    u = jnp.zeros((*logits.shape[:-1], 0), jnp.float32)
  results = (
    jax.ShapeDtypeStruct(logits.shape, jnp.float32),
    jax.ShapeDtypeStruct(u.shape[:-1], jnp.int32),
    jax.ShapeDtypeStruct(u.shape[:-1], jnp.bool_),
  )
  static = {"column": np.int64(column), "greedy": greedy}
  return call("LawsOfLogits", results, logits, temperature, u, **static)


def nucleus(law, top_p):
  """Returns the smallest set of likeliest tokens that holds `top_p`, as a law.

  Args:
    law: [..., V] float32.
    top_p: [] float32 in (0, 1]; of equal probabilities the lower ids are taken.
  """
  result = jax.ShapeDtypeStruct(law.shape, jnp.float32)
  return call("Nucleus", result, law, top_p)


def draw(weights, u):
  """Returns a token [...] int32 of weights [..., V] by inverse cumulative sum.

  Args:
    weights: [..., V] float32, none negative.
    u: [...] float32 uniforms in [0, 1).
  """
  result = jax.ShapeDtypeStruct(u.shape, jnp.int32)
  return call("Draw", result, weights, u)


def overlap(q, p):
  """Returns sum_v min(q, p), [...] float32, of two laws [..., V] float32."""
  result = jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32)
  return call("Overlap", result, q, p)


def replacement(num_accepted, count, q, pi, scale, u):
  """Returns the token after the accepted drafts, [B] int32.

  Args:
    num_accepted: [B] int32, n.
    count: [B] int32; where it is n the token is drawn from pi.
    q: [B, G+1, V] float32.
    pi: [B, G+1, V] float32.
    scale: [B] float32; elsewhere the weights are max(0, scale pi_n - q_n), or
      pi_n where they are all 0.
    u: [B] float32 uniforms in [0, 1).
  """
  result = jax.ShapeDtypeStruct(u.shape, jnp.int32)
  return call("Replacement", result, num_accepted, count, q, pi, scale, u)


def copies(source, tokens, length, next_token, *, num: int, prompted: bool):
  """Returns what Max-Gram copies, and then chains, after each row's prefix.

  Args:
    source: [B, S] int32, a text and its padding; see `MaxGramDrafter`.
    tokens: [B, L] int32.
    length: [B] int32, 1 or more, how many of them count.
    next_token: [V] int32.
    num: static, tokens to return.
    prompted: static, whether sources are prompts.

  Returns:
    ([B, num] int32, [B] int32 how many of them were copied).
  """
  results = (
    jax.ShapeDtypeStruct((*length.shape, num), jnp.int32),
    jax.ShapeDtypeStruct(length.shape, jnp.int32),
  )
  texts = (source, tokens, length, next_token)
  return call("Copies", results, *texts, prompted=prompted)
