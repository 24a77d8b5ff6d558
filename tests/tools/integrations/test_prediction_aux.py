"""What T5X stores beside a prediction; needs no T5X."""

import jax
import numpy as np
import pytest

from speccascade.decoding import METHODS, Decoder, row_keys
from speccascade.decoding.programs.methods import Method
from speccascade.generate.batches import decode_counts
from speccascade.tools.integrations import prediction_aux
from tests import toy


def _decoded(method: Method, **settings):
  pair = toy.pair()
  decoder = Decoder(
    method,
    max_decode_len=6,
    eos_id=0,
    trace=True,
    log_probs=True,
    gamma=2,
    **settings,
  )
  inputs = pair.inputs(4)
  return decoder(
    *pair.models(), inputs, row_keys(0, 0, np.arange(4)), 0.0, toy.GREEDY
  )


@pytest.mark.parametrize(
  ("name", "settings"),
  [
    ("verifier", {}),
    ("spec_decode", {}),
    ("spec_decode", {"tree": (-1, -1, 0)}),
  ],
)
def test_what_a_method_does_not_count_is_left_out(name, settings):
  """Chains count no ranks, and the verifier alone has no drafts."""
  decoded = _decoded(METHODS[name], **settings)
  aux = prediction_aux.aux_of(decoded, ["trace", "log_probs"])
  assert ("counts/accepted_by_rank" in aux) == bool(settings)
  assert all(len(x) == 4 for x in jax.tree.leaves(aux))
  # T5X gives lists over examples.
  values = {key: list(np.asarray(value)) for key, value in aux.items()}
  metrics = prediction_aux.decoding_metrics([], [], values)
  counts = decode_counts.total(decode_counts.row_counts(decoded))
  want = decode_counts.summary(counts)
  numbers = {k: v for k, v in want.items() if isinstance(v, int | float)}
  assert metrics == pytest.approx(numbers)
  assert metrics["tokens_per_example"] == np.mean(decoded.lengths)
