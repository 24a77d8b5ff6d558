"""Whether a method wrote the tokens of the greedy verifier."""

from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.types import LanguageModel
from speccascade.evaluation.efficiency import Counts
from speccascade.inference import batching
from speccascade.inference.inputs import Source

# Float32 sums depend on the shapes they are made in: choices this close tie.
TIE = 1e-4


@dataclasses.dataclass(frozen=True)
class Outputs:
  """What a point wrote: tokens by (trial, index), and its counts."""

  tokens: dict[tuple[int, int], np.ndarray]
  counts: Counts


def agreement(
  verifier: LanguageModel,
  examples: Sequence[Source],
  own: Outputs,
  alone: Outputs,
  *,
  length: int,
  max_decode_len: int,
) -> dict:
  """Returns how many examples have the greedy verifier's tokens.

  Where they first differ, the two choices count as a near tie if the verifier's
  logits of both lie within `TIE` after the common prefix.

  Args:
    verifier: the large model.
    examples: those decoded.
    own: what the method wrote.
    alone: what the verifier wrote.
    length: the sources are padded to it.
    max_decode_len: most tokens, EOS counted.
  """
  same = ties = 0
  for example in examples:
    mine, theirs = (out.tokens[0, example.index] for out in (own, alone))
    if np.array_equal(mine, theirs):
      same += 1
      continue
    num = min(len(mine), len(theirs))
    differs = np.flatnonzero(mine[:num] != theirs[:num])
    if differs.size:
      at = int(differs[0])
      logits = logits_after(
        verifier, example, theirs[:at], length, max_decode_len
      )
      ties += abs(logits[mine[at]] - logits[theirs[at]]) <= TIE
  return {
    "identical": same,
    "near_ties": int(ties),
    "num_examples": len(examples),
  }


def logits_after(
  model: LanguageModel, example: Source, prefix, length, max_decode_len
) -> np.ndarray:
  """Returns [V], the logits of the token after a prefix [num] of tokens."""
  inputs, _ = batching.pad_batch([example], 1, [length])
  fed = np.zeros((1, max_decode_len), np.int32)
  fed[0, 1 : 1 + len(prefix)] = prefix  # after the start token
  count = jnp.int32(len(prefix) + 1)
  return np.asarray(_logits(model, inputs, fed, count))[0]


@jax.jit
def _logits(model, inputs, fed, count):
  """Returns [1, V], the logits after the first `count` tokens of `fed`."""
  state = model.prefill(inputs, capacity=fed.shape[1])
  counts = jnp.full((1,), count)
  _, out = model.extend(state, fed, counts, read=counts[:, None] - 1)
  return out.logits[:, 0]
