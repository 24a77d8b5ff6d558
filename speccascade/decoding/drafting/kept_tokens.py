"""Reads a model over the tokens that its cut head keeps: `ColumnReader`.

Laws and draws of drafts then have N columns in place of V. A column that is
drawn becomes the token that it stands for before it is fed. The distributions
of a block are looked up by the tokens at which they are read.

Axes: N kept tokens, V vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.decoding.records.language_model import is_cut_model

Array = jax.Array


class ColumnReader(NamedTuple):
  """How a model, or draft heads, are read while a block is drafted.

  Attributes:
    model: what is read, over the kept tokens where some are kept.
    kept: [N] int32, the token of each column; None where column i is token i.
    columns: [V] int32, as `columns_of` returns them, where some are kept.
  """

  model: Any
  kept: Array | None = None
  columns: Array | None = None

  def token(self, column: Array) -> Array:
    """Returns the tokens of columns of the logits, int32 of any shape."""
    return column if self.kept is None else self.kept[column]

  def spread(self, law: Array) -> Array:
    """Returns a distribution over the columns as one over V tokens."""
    return law if self.columns is None else spread(law, self.columns, 0)


def column_reader(model: Any, most_children: int = 1) -> ColumnReader:
  """Returns how a model is read.

  Args:
    model: a language model or draft heads, whatever they keep.
    most_children: the most drafts that follow one node of a block. Where fewer
      tokens are kept, the model is read over all of them.
  """
  if not is_cut_model(model):
    return ColumnReader(model)
  kept = model.kept_ids
  if kept is None or len(kept) < most_children:
    return ColumnReader(model)
  return ColumnReader(model.over_kept(), kept, model.columns())


def with_columns(part: Any) -> Any:
  """Returns a drafter whose cut models have their `columns` at hand.

  Args:
    part: a `Drafter`, or any tree of models.
  """
  return jax.tree.map(
    lambda leaf: leaf.with_columns() if is_cut_model(leaf) else leaf,
    part,
    is_leaf=is_cut_model,
  )


def columns_of(ids: Array, vocab_size: int) -> Array:
  """Returns [V] int32, the column of each token; N of one that is not kept.

  Args:
    ids: [N] int32, the kept tokens, ascending.
    vocab_size: V.
  """
  none = jnp.full((vocab_size,), len(ids), jnp.int32)
  return none.at[ids].set(
    jnp.arange(len(ids), dtype=jnp.int32),
    indices_are_sorted=True,
    unique_indices=True,
    mode="promise_in_bounds",
  )


def spread(x: Array, columns: Array, fill: float) -> Array:
  """Returns x [..., N] of the kept tokens as [..., V].

  The entries are looked up, not scattered, so that XLA computes them where they
  are read, and no array of V numbers has to lie in memory.

  Args:
    x: logits or probabilities of the kept tokens.
    columns: [V] int32, as `columns_of` returns them.
    fill: what the other tokens have.
  """
  last = x.shape[-1] - 1
  found = x.at[..., jnp.minimum(columns, last)].get(mode="promise_in_bounds")
  return jnp.where(columns <= last, found, jnp.asarray(fill, x.dtype))
