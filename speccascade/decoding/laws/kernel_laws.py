"""The distributions of logits by one kernel for a GPU, as `Sampling` has them.

Axes: R rows, V vocabulary.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.native.gpu import Operation, filtered_laws, row_laws
from speccascade.native.gpu.chain_review import PlaceReviews
from speccascade.native.gpu.filtered_laws import FilteredLaw, is_kept
from speccascade.native.gpu.row_laws import RowLaw

if TYPE_CHECKING:
  from speccascade.decoding.laws.sampling import Sampling

Array = jax.Array
Found = RowLaw | FilteredLaw


def find(
  sampling: "Sampling",
  logits: Array,
  u: Array | None = None,
  column: int = 0,
) -> Found | None:
  """Returns what a kernel for a GPU knows of logits; None without one.

  Args:
    sampling: how logits become distributions.
    logits: [..., V], in at least float32.
    u: as of `Sampling.step`.
    column: as of `Sampling.step`.

  Returns:
    `RowLaw`, or where tokens are filtered `FilteredLaw`, of [R] numbers, R the
    product of [...].
  """
  size = logits.shape[-1]
  operation: Operation = row_laws
  options: dict[str, Any] = {"greedy": sampling.greedy}
  if sampling.filters(size):
    operation, options = filtered_laws, filters_of(sampling)
  kernel = operation.choose(None, logits)
  if kernel == "xla":
    return None
  return operation(
    logits.reshape(-1, size),
    sampling.temperature.astype(logits.dtype),
    None if u is None else u.reshape(-1, u.shape[-1]),
    column=column,
    implementation=kernel,
    **options,
  )


def filters_of(sampling: "Sampling") -> dict[str, Any]:
  """Returns the filters, as kernels for a GPU take them."""
  names = ("top_k", "top_p", "min_p")
  return {name: getattr(sampling, name) for name in names}


def of_places(places: PlaceReviews) -> Found:
  """Returns what is known of the verifier's rows where a chain was reviewed."""
  top, total, plain_total = (
    x.reshape(-1) for x in (places.top, places.total, places.plain_total)
  )
  if places.least is None or places.last is None:
    return RowLaw(top, total, plain_total, None)
  least, last = places.least.reshape(-1), places.last.reshape(-1)
  return FilteredLaw(top, total, plain_total, None, least, last)


def laws_of(
  sampling: "Sampling", logits: Array, found: Found
) -> tuple[Array, Array, Array | None, Array]:
  """Returns the fields of a `Step`, of what a kernel found.

  Args:
    sampling: as of `find`.
    logits: as of `find`.
    found: what it returned.
  """
  *lead, size = logits.shape
  top, total, plain_total = (
    x.reshape(*lead, 1) for x in (found.top, found.total, found.plain_total)
  )
  token = None if found.token is None else found.token.reshape(lead)
  plain = jnp.exp(logits - top) / plain_total
  if sampling.greedy:
    first = token
    if first is None:
      first = numerics.first_argmax(logits, top[..., 0])
    law = jax.nn.one_hot(first, size, dtype=logits.dtype)
  else:
    temperature = sampling.temperature.astype(logits.dtype)
    law = jnp.exp(logits / temperature - top / temperature) / total
  if isinstance(found, FilteredLaw):
    least, last = (x.reshape(lead) for x in (found.least, found.last))
    law = jnp.where(is_kept(logits, least, last), law, 0)
  return plain, law, token, jnp.isfinite(top[..., 0])
