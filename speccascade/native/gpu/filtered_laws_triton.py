"""Filtered distributions as one kernel for a GPU, in Pallas.

One program holds a row in its registers. The last token that each filter keeps
is found by halvings, each of which goes over the registers, and none over
memory. XLA sorts, and launches kernels for each halving.

Axes: R rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from speccascade.native.gpu.filtered_laws import FilteredLaw, Filters
from speccascade.native.gpu.row_draws_triton import (
  Configuration,
  draw,
  places,
  row_configuration,
)

_LEAST, _MOST = -(1 << 31), (1 << 31) - 1
_TINY = 2.0**-126  # the least normal number of float32


def configuration(logits: jax.Array, *_: Any, **__: Any) -> Configuration:
  """Returns the configuration of some logits."""
  return row_configuration(logits.shape[1])


class Held(NamedTuple):
  """A part of a row, of tokens in any shape.

  Attributes:
    tokens: int32.
    logits: without NaN; -inf past the row's end.
    weights: exp(logit / T - top / T); 0 past the row's end.
  """

  tokens: jax.Array
  logits: jax.Array
  weights: jax.Array


def last_kept(
  parts: Sequence[Held], size: int, filters: Filters
) -> tuple[jax.Array, jax.Array]:
  """Returns `least` and `last` of a row, scalars; see `FilteredLaw`.

  Args:
    parts: of the row, all of them.
    size: V, static.
    filters: `Filters`, of scalars.
  """
  keys = [jnp.where(x.tokens < size, _key(x.logits), _LEAST) for x in parts]
  weights = [x.weights for x in parts]
  least, last = jnp.int32(_LEAST), jnp.int32(size - 1)
  high = jnp.int32(_LEAST)
  for key in keys:
    high = jnp.maximum(high, jnp.max(key))

  def total(of: Callable[[int], jax.Array], kind: Any) -> jax.Array:
    return functools.reduce(
      jnp.add, [jnp.sum(of(i).astype(kind)) for i in range(len(parts))]
    )

  def cut(values: Sequence[Any], goal: jax.Array, kind: Any) -> None:
    """Cuts after the token with which the values reach a goal."""
    nonlocal least, last

    def mass(keeps: Callable[[int], jax.Array]) -> jax.Array:
      return total(lambda i: jnp.where(keeps(i), values[i], 0), kind)

    least = _bisect(
      lambda key: mass(lambda i: keys[i] >= key) >= goal,
      jnp.int32(_LEAST),
      high,
      32,
    )
    above = mass(lambda i: keys[i] > least)
    # The largest id so that equals below it are too few.
    last = _bisect(
      lambda id_: (
        above + mass(lambda i: (keys[i] == least) & (parts[i].tokens < id_))
        < goal
      ),
      jnp.int32(0),
      jnp.int32(size - 1),
      size.bit_length(),
    )

  def is_kept(i: int) -> jax.Array:
    is_last = (keys[i] == least) & (parts[i].tokens <= last)
    return (keys[i] > least) | is_last

  if filters.top_k is not None and filters.top_k < size:
    cut([1] * len(parts), jnp.int32(filters.top_k), jnp.int32)
    weights = [jnp.where(is_kept(i), x, 0.0) for i, x in enumerate(weights)]
  if filters.top_p is not None:
    share = jnp.minimum(jnp.maximum(filters.top_p, _TINY), 1.0)
    cut(weights, share * total(lambda i: weights[i], jnp.float32), jnp.float32)
  if filters.min_p is not None:
    min_p = filters.min_p
    likely = [is_kept(i) & (x.weights >= min_p) for i, x in enumerate(parts)]
    # The likeliest token is one of them.
    least = functools.reduce(
      jnp.minimum,
      [jnp.min(jnp.where(x, key, _MOST)) for x, key in zip(likely, keys)],
    )
    last = functools.reduce(
      jnp.maximum,
      [
        jnp.max(jnp.where(x & (key == least), part.tokens, 0))
        for x, key, part in zip(likely, keys, parts)
      ],
    )
  return _logit(least), last


def keeps(
  index: jax.Array, logits: jax.Array, least: jax.Array, last: jax.Array
) -> jax.Array:
  """Returns which tokens are kept, bool of the shape of the logits."""
  return (logits > least) | ((logits == least) & (index <= last))


def _key(logits: jax.Array) -> jax.Array:
  """Returns integers that order as the logits do."""
  logits = jnp.where(logits == 0, 0.0, logits)  # -0.0 is 0.0
  bits = jax.lax.bitcast_convert_type(logits, jnp.int32)
  return jnp.where(bits < 0, bits ^ _MOST, bits)


def _logit(key: jax.Array) -> jax.Array:
  """Returns the logit of a key."""
  bits = jnp.where(key < 0, key ^ _MOST, key)
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _bisect(
  holds: Callable[[jax.Array], jax.Array],
  low: jax.Array,
  high: jax.Array,
  halvings: int,
) -> jax.Array:
  """Returns the largest integer in [low, high] at which `holds` is true.

  It is true at `low`, up to some integer, and false after it.
  """

  def narrow(
    _: Any, bounds: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, jax.Array]:
    low, high = bounds
    # Above the middle, without an overflow.
    middle = (low >> 1) + (high >> 1) + ((low | high) & 1)
    yes = holds(middle)
    return jnp.where(yes, middle, low), jnp.where(yes, high, middle - 1)

  return jax.lax.fori_loop(0, halvings, narrow, (low, high))[0]


def _kernel(
  logits_ref: Any,
  temperature_ref: Any,
  *refs: Any,
  tokens: int,
  column: int,
  has: tuple[bool, ...],
  top_k: int | None,
) -> None:
  """Writes what is known of one row."""
  u_ref, top_p_ref, min_p_ref, results = given(refs, has)
  top_ref, total_ref, plain_ref, least_ref, last_ref, *token_refs = results
  row, size = pl.program_id(0), logits_ref.shape[1]
  temperature = temperature_ref[0]

  def load(index: jax.Array) -> jax.Array:
    x = triton.load(
      logits_ref.at[row, index], mask=index < size, other=-jnp.inf
    )
    return jnp.where(x != x, jnp.inf, x)

  index = [places(part, tokens) for part in range(pl.cdiv(size, tokens))]
  x = [load(each) for each in index]
  top = functools.reduce(jnp.maximum, [jnp.max(each) for each in x])
  base = jnp.where(top > -jnp.inf, top, 0.0)

  def weight(x: jax.Array) -> jax.Array:
    return jnp.exp(x / temperature - base / temperature)

  parts = [Held(i, each, weight(each)) for i, each in zip(index, x)]
  filters = filters_at(top_k, top_p_ref, min_p_ref)
  least, last = last_kept(parts, size, filters)

  def kept(index: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(keeps(index, x, least, last), weight(x), 0.0)

  top_ref[row], least_ref[row], last_ref[row] = top, least, last
  plain_ref[row] = sum(jnp.sum(jnp.exp(each - base)) for each in x)
  sums = [jnp.sum(kept(i, each), axis=1) for i, each in zip(index, x)]
  if u_ref is None:
    total_ref[row] = sum(jnp.sum(each) for each in sums)
    return
  token_refs[0][row], total_ref[row] = draw(
    sums, u_ref[row, column], lambda index: kept(index, load(index))
  )


def filters_at(top_k: int | None, top_p_ref: Any, min_p_ref: Any) -> Filters:
  """Returns the filters of a kernel; a reference is None without a filter."""
  shares = (None if x is None else x[0] for x in (top_p_ref, min_p_ref))
  return Filters(top_k, *shares)


def given(
  refs: Sequence[Any], has: tuple[bool, ...]
) -> tuple[Any, Any, Any, tuple[Any, ...]]:
  """Returns three references, None where left out, and those after them."""
  rest = list(refs)
  first, second, third = (rest.pop(0) if each else None for each in has)
  return first, second, third, tuple(rest)


@functools.partial(
  jax.jit, static_argnames=("configuration", "interpret", "column", "top_k")
)
def run(
  logits: jax.Array,
  temperature: jax.Array,
  u: jax.Array | None = None,
  top_p: jax.Array | None = None,
  min_p: jax.Array | None = None,
  *,
  configuration: Configuration,
  interpret: bool,
  top_k: int | None = None,
  column: int = 0,
) -> FilteredLaw:
  """Returns what `FilteredLaws.reference` does."""
  rows = logits.shape[:1]
  number = jax.ShapeDtypeStruct(rows, jnp.float32)
  token = jax.ShapeDtypeStruct(rows, jnp.int32)
  has = (u is not None, top_p is not None, min_p is not None)
  arrays = [logits, temperature.reshape(1)]
  arrays += [] if u is None else [u]
  arrays += [x.reshape(1) for x in (top_p, min_p) if x is not None]
  results = pl.pallas_call(
    functools.partial(
      _kernel,
      tokens=configuration.tokens,
      column=column,
      has=has,
      top_k=top_k,
    ),
    out_shape=[number] * 4 + [token] * (1 + has[0]),
    grid=rows,
    interpret=interpret,
    compiler_params=triton.CompilerParams(
      num_warps=configuration.warps, num_stages=1
    ),
    name="filtered_laws",
  )(*arrays)
  top, total, plain_total, least, last, *tokens = results
  drawn = tokens[0] if tokens else None
  return FilteredLaw(top, total, plain_total, drawn, least, last)
