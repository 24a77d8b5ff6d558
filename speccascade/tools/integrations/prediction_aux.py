"""What T5X stores beside each prediction, and what t5x.eval makes of it.

This module does not import T5X, so that it is tested where T5X is not
installed.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.records.block_records import (
  Decoded,
  LogProbs,
  Trace,
)
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.decode_counts import Counts

_COUNTS = "counts"
_FIELDS = dataclasses.fields(Counts)


def aux_of(decoded: Decoded, recorded: Sequence[str]) -> dict[str, jax.Array]:
  """Returns the aux of T5X's `predict_batch_with_aux`, by name.

  seqio's loggers take no deeper trees, so the names of nested dicts are joined
  by "/".

  Args:
    decoded: a decoded batch of B rows.
    recorded: the fields of `decoded` that were recorded, of `trace` and
      `log_probs`.

  Returns:
    Arrays with B rows: `tokens`, `bad_step`, `counts/NAME` for each counter of
    `decode_counts.Counts` that the method has, and the fields of what was
    recorded. Methods without trees have no `counts/accepted_by_rank`.
  """
  counts = {
    "num_examples": jnp.ones_like(decoded.lengths),
    "num_tokens": decoded.lengths,
    **decoded.stats.by_name(),
  }
  aux = {
    "tokens": decoded.tokens,
    "bad_step": decoded.bad_step,
    _COUNTS: counts,
    **{name: _columns(getattr(decoded, name)) for name in recorded},
  }
  return traverse_util.flatten_dict(aux, sep="/")


def _columns(part: Trace | LogProbs) -> dict:
  """Returns the arrays of a trace or of log-probabilities by name."""
  return part.by_name() if isinstance(part, Trace) else vars(part)


def decoding_metrics(
  targets: Sequence, predictions: Sequence, aux_values: Mapping
) -> dict[str, float]:
  """Returns what decoding cost, for the `metric_fns` of a seqio task.

  t5x.eval then shows these numbers beside the task's quality. They are the
  entries of `decode_counts.summary` that are a single number.

  Args:
    targets: not used.
    predictions: not used.
    aux_values: the aux of `aux_of`, as a list over examples for each name.
  """
  del targets, predictions
  # A counter that the method does not have keeps its default.
  names = {field.name: f"{_COUNTS}/{field.name}" for field in _FIELDS}
  columns = {
    name: np.asarray(aux_values[key]).tolist()
    for name, key in names.items()
    if key in aux_values
  }
  rows = [Counts(**dict(zip(columns, row))) for row in zip(*columns.values())]
  summary = decode_counts.summary(decode_counts.total(rows))
  return {k: v for k, v in summary.items() if isinstance(v, int | float)}
