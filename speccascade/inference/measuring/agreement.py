"""Whether a method wrote the tokens of the greedy verifier."""

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.loops import prompts
from speccascade.inference.batches.sources import Source
from speccascade.inference.measuring.study import Outputs, Study
from speccascade.models.sharding.partitioning import fetch

# Float32 sums depend on the shapes they are made in: choices this close tie.
TIE = 1e-4


def agreement(study: Study, outputs: Outputs, alone: Outputs) -> dict:
  """Returns how many examples have the greedy verifier's tokens.

  Where they first differ, the two choices count as a near tie if the verifier's
  logits of both lie within `TIE` after the common prefix.

  Args:
    study: the verifier, and the examples decoded.
    outputs: what the method wrote.
    alone: what the verifier wrote.
  """
  same = ties = 0
  for example in study.examples:
    ours, theirs = (out.tokens[0, example.index] for out in (outputs, alone))
    if np.array_equal(ours, theirs):
      same += 1
      continue
    num = min(len(ours), len(theirs))
    differs = np.flatnonzero(ours[:num] != theirs[:num])
    if differs.size:
      at = int(differs[0])
      logits = logits_after(study, example, theirs[:at])
      ties += int(abs(logits[ours[at]] - logits[theirs[at]]) <= TIE)
  num_examples = len(study.examples)
  return {"identical": same, "near_ties": ties, "num_examples": num_examples}


def logits_after(study: Study, example: Source, prefix) -> np.ndarray:
  """Returns [V], the verifier's logits after a prefix [num] of tokens."""
  inputs = study.pad_examples([example], 1, study.lengths[-1:])
  fed = np.zeros((1, study.run.max_decode_len), np.int32)
  fed[0, 0] = prompts.start(study.pair.verifier_lm, inputs)[0]
  fed[0, 1 : 1 + len(prefix)] = prefix
  count = jnp.int32(len(prefix) + 1)
  return fetch(_logits(study.pair.verifier_lm, inputs, fed, count))[0]


@jax.jit
def _logits(model, inputs, fed, count):
  """Returns [1, V], the logits after the first `count` tokens of `fed`."""
  state = model.prefill(inputs, capacity=fed.shape[1])
  counts = jnp.full((1,), count)
  _, out = model.extend(state, fed, counts, read=counts[:, None] - 1)
  return out.logits[:, 0]
