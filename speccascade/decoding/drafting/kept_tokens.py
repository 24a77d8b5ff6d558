"""Reads a model over the tokens that its cut head keeps: `ColumnReader`.

Laws and draws of drafts then have N columns in place of V. A column that is
drawn becomes the token that it stands for before it is fed, and the
distributions of a block are spread over the vocabulary once, at its end.

Axes: N kept tokens, V vocabulary.
"""

from typing import Any, NamedTuple

import jax

from speccascade.decoding.records.language_model import CutModel, is_cut_model

Array = jax.Array


class ColumnReader(NamedTuple):
  """How a model, or draft heads, are read while a block is drafted.

  Attributes:
    model: what is read, over the kept tokens where some are kept.
    kept: [N] int32, the token of each column; None where column i is token i.
    cut: the model over all tokens, where some are kept.
  """

  model: Any
  kept: Array | None = None
  cut: CutModel | None = None

  def token(self, column: Array) -> Array:
    """Returns the tokens of columns of the logits, int32 of any shape."""
    return column if self.kept is None else self.kept[column]

  def spread(self, law: Array) -> Array:
    """Returns a distribution over the columns as one over V tokens."""
    return law if self.cut is None else self.cut.spread(law)


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
  return ColumnReader(model.over_kept(), kept, model)
