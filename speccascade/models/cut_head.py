"""An output head that keeps some tokens: a drafter's draft vocabulary.

A small model spends much of a draft on the product with all rows of its head. A
cut head holds the rows of the kept tokens alone, so that products,
distributions and draws are over N tokens instead of V. The embedding stays
whole: the model reads every token.

The cut head lies in a model's parameter tree under `NAME`: "kernel" [E, N] or
its panels, and the kept "ids" [N] int32, ascending. Soft caps and factors of
the logits are the network's, as with the whole head.

Axes: E model width, N kept tokens, V vocabulary.

Source: Zhao et al., "FR-Spec" (arXiv 2502.14856), which keeps the most frequent
tokens of a corpus.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.decoding.drafting import kept_tokens
from speccascade.models.products import matmul
from speccascade.models.sharding.partitioning import Layout, place

NAME = "draft_vocabulary"
# Beside the kernel and the ids, within a program; see `CutModel.with_columns`.
COLUMNS = "columns"


def kept(
  ids: Sequence[int] | np.ndarray,
  vocab_size: int,
  num_rows: int,
  params: Mapping[str, Any],
) -> np.ndarray:
  """Returns the ids that a head is cut to, [N] ascending.

  Args:
    ids: ids in 0..V-1, in any order.
    vocab_size: V.
    num_rows: rows of the head. Ids past them, which never have a finite logit,
      are left out.
    params: the parameters of the model.

  Raises:
    ValueError: no id has a row, an id is out of range or stands twice, or the
      head is cut already.
  """
  found = np.sort(np.asarray(ids).reshape(-1))
  if not np.issubdtype(found.dtype, np.integer) or not found.size:
    raise ValueError(
      f"a head is cut to the ids {found.tolist()!s:.60}; wanted integers, and"
      " one at least"
    )
  wrong = found[(found < 0) | (found >= vocab_size)]
  if wrong.size:
    raise ValueError(
      f"a head is cut to the id {wrong[-1]}; wanted ids from 0 to"
      f" {vocab_size - 1}, which the model has"
    )
  twice = found[1:][found[1:] == found[:-1]]
  if twice.size:
    raise ValueError(f"a head is cut to the id {twice[0]} twice; give it once")
  if NAME in params:
    raise ValueError("the head is cut already; cut the model as it was read")
  found = found[found < num_rows]
  if not found.size:
    raise ValueError("no id that a head is cut to has a row in it")
  return found


def cut(
  params: Mapping[str, Any], ids: np.ndarray, layout: Layout | None = None
) -> dict[str, Any]:
  """Returns a parameter tree whose head keeps some tokens.

  An untied head is left out, as nothing reads it any more. A tied one is the
  table of tokens, and stays.

  Args:
    params: the parameters of a T5, a T5Gemma or a Llama, packed or not, whose
      head is not cut.
    ids: [N] ids of rows of the head, ascending, without repetition.
    layout: where the arrays lie; None on one device.
  """
  decoder = dict(params["decoder"])
  decoder.pop("logits_dense", None)
  head = head_of(params, ids, layout)
  return {**params, "decoder": decoder, NAME: head}


def head_of(
  params: Mapping[str, Any], ids: np.ndarray, layout: Layout | None = None
) -> dict[str, Any]:
  """Returns the cut head of a parameter tree; see `cut`.

  On a mesh that does not divide the kept tokens, each device has the head
  whole.
  """
  dense = params["decoder"].get("logits_dense")
  if dense is None:
    head = params["token_embedder"]["embedding"]
  else:
    head = dense["kernel"]
  index = np.asarray(ids, np.int32)
  kernel: Any
  if isinstance(head, native.Panels):
    kernel = head.cut(jnp.asarray(index))
    return {"kernel": kernel, "ids": jnp.asarray(index)}
  if isinstance(head, native.Quantised):
    return {"kernel": head.rows(jnp.asarray(index)), "ids": jnp.asarray(index)}
  is_table = dense is None

  def columns_of(head: jax.Array) -> jax.Array:
    return head[index].T if is_table else head[:, index]

  if layout is None:
    kernel = columns_of(jnp.asarray(head))
    return {"kernel": kernel, "ids": jnp.asarray(index)}
  mesh_axis = dict(layout.rules)["vocab"]
  num_parts = layout.sizes[mesh_axis] if mesh_axis else 1
  vocab = "vocab" if len(index) % num_parts == 0 else None
  where = layout.sharding("embed", vocab)
  kernel = jax.jit(columns_of, out_shardings=where)(head)
  return {"kernel": kernel, "ids": place(index, layout.sharding())}


def stored_like(head: Mapping[str, Any], like: Any) -> dict[str, Any]:
  """Returns a cut head with its kernel packed, or in eight bits, as another.

  Args:
    head: "kernel" and "ids".
    like: a kernel. Where it is an array, the head stays as it is.
  """
  kernel, kinds = head["kernel"], native.Panels | native.Quantised
  if not isinstance(like, kinds):
    return dict(head)
  if isinstance(kernel, kinds):
    if type(kernel) is type(like) and _kind(kernel) == _kind(like):
      return dict(head)
    kernel = kernel.columns(jnp.arange(kernel.num_out)).T
  if isinstance(like, native.Panels):
    kernel = native.pack(np.asarray(kernel), *_kind(like))
  else:
    kernel = jax.tree.map(jnp.asarray, native.quantise(kernel))
  return {**head, "kernel": kernel}


def _kind(kernel: native.Panels | native.Quantised) -> tuple[Any, bool]:
  """Returns the dtype of weights, and whether rows are rounded."""
  if isinstance(kernel, native.Panels):
    return kernel.array.dtype, kernel.rounds
  return kernel.dtype, False


def logits(x: jax.Array, head: Mapping[str, Any]) -> jax.Array:
  """Returns x [..., E] times the kernel of a cut head, [..., N] float32."""
  x, kernel = x.astype(jnp.float32), head["kernel"]
  if isinstance(kernel, native.Panels):
    [product] = native.products(x, [kernel])
    return product
  if isinstance(kernel, native.Quantised):
    return kernel.times(x)
  return matmul(x, kernel.astype(jnp.float32))


class Cuttable:
  """What models and draft heads whose head may be cut share; see `CutModel`.

  A subclass has `params`, `vocab_size` and a static `is_narrow`.
  """

  if TYPE_CHECKING:  # A dataclass would take these for fields.
    params: Any
    vocab_size: Any
    replace: Any

  @property
  def kept_ids(self) -> jax.Array | None:
    """[N] int32, the tokens of a cut head; None where the head is whole."""
    cut = self.params.get(NAME)
    return None if cut is None else cut["ids"]

  def columns(self) -> jax.Array:
    """Returns [V] int32, the column of each token. See `CutModel`."""
    cut = self.params[NAME]
    if COLUMNS in cut:
      return cut[COLUMNS]
    return kept_tokens.columns_of(cut["ids"], self.vocab_size)

  def with_columns(self) -> Self:
    """Returns the model with `columns` at hand. See `CutModel`."""
    if self.kept_ids is None:
      return self
    cut = {**self.params[NAME], COLUMNS: self.columns()}
    return self.replace(params={**self.params, NAME: cut})

  def over_kept(self) -> Self:
    """Returns the model with the logits [..., N] of the kept tokens alone."""
    return self.replace(is_narrow=True)
