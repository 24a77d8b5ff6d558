"""Compares the outputs of a method with the greedy verifier's outputs."""

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.records import prompts
from speccascade.inference.batches.sources import Source
from speccascade.inference.measuring.study import Outputs, Study
from speccascade.models.sharding.partitioning import fetch

# The largest difference of two logits that count as a tie. The rounding of
# float32 sums depends on the shapes in which they are computed, and a block has
# another shape than a single token.
TIE = 1e-4


def count_identical(
  study: Study, outputs: Outputs, verifier_outputs: Outputs
) -> dict[str, int]:
  """Counts the examples for which a method wrote the verifier's tokens.

  Args:
    study: the verifier, and the examples that were decoded.
    outputs: the outputs of the method.
    verifier_outputs: the outputs of the verifier alone, decoded greedily.

  Returns:
    "identical": the number of examples with the verifier's tokens.
    "near_ties": the number of examples whose first different token is a near
      tie: after the common prefix, the verifier's logits of the two tokens
      differ by `TIE` or less.
    "num_examples": the number of all examples.
  """
  num_identical = num_ties = 0
  for example in study.examples:
    tokens = outputs.tokens[0, example.index]
    verifier_tokens = verifier_outputs.tokens[0, example.index]
    if np.array_equal(tokens, verifier_tokens):
      num_identical += 1
      continue
    length = min(len(tokens), len(verifier_tokens))
    differences = np.flatnonzero(tokens[:length] != verifier_tokens[:length])
    # Without a difference one output is the beginning of the other. No two
    # tokens can be compared then, and the example counts as different.
    if differences.size:
      place = int(differences[0])
      logits = logits_after(study, example, verifier_tokens[:place])
      gap = abs(logits[tokens[place]] - logits[verifier_tokens[place]])
      num_ties += int(gap <= TIE)
  return {
    "identical": num_identical,
    "near_ties": num_ties,
    "num_examples": len(study.examples),
  }


def logits_after(study: Study, example: Source, prefix) -> np.ndarray:
  """Returns the verifier's logits for the token after a prefix.

  Args:
    study: the verifier.
    example: the example whose input the verifier reads.
    prefix: [N] int32, the tokens that the output begins with.

  Returns:
    [V] float32.
  """
  inputs = study.pad_examples([example], 1, study.lengths[-1:])
  # One padded width for all prefixes, so that one program is compiled.
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
