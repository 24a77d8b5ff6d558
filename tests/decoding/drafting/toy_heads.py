"""Draft heads that are tables, over chains whose contexts are hidden states."""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np


@struct.dataclass
class TableHeads:
  """Heads over a `MarkovLM` of order 1.

  Attributes:
    table: [K, V, V] float logits: of each head, after each last token.
  """

  table: jax.Array
  width = 2  # the source and one token of context

  @property
  def num_heads(self) -> int:
    return self.table.shape[0]

  @property
  def vocab_size(self) -> int:
    return self.table.shape[-1]

  def head_logits(self, verifier, hidden, num):
    last = hidden[:, -1].astype(jnp.int32)
    return jnp.moveaxis(self.table[:num, last], 0, 1)


def logits_of(laws) -> jax.Array:
  """Returns logits of distributions, float32; -inf at probability 0."""
  with np.errstate(divide="ignore"):
    return jnp.asarray(np.log(laws), jnp.float32)


def of_laws(laws) -> TableHeads:
  """Returns the heads of distributions [K, V, V]."""
  return TableHeads(logits_of(laws))


def laws_ahead(transitions: np.ndarray, num: int, blur: float) -> np.ndarray:
  """Returns the distributions [num, V, V] of a chain of order 1, from two steps
  on.

  Args:
    transitions: [V, V], the distributions of the chain.
    num: how many numbers of steps.
    blur: weight of the uniform distribution in each.
  """
  powers = [np.linalg.matrix_power(transitions, k + 2) for k in range(num)]
  return (1 - blur) * np.stack(powers) + blur / len(transitions)


def ahead(transitions: np.ndarray, num: int, blur: float = 0.0) -> TableHeads:
  """Returns the heads that know a chain of order 1: head k looks k + 1 ahead.

  Args:
    transitions: [V, V], the distributions of the chain.
    num: K.
    blur: weight of the uniform distribution in each head.
  """
  return of_laws(laws_ahead(transitions, num, blur))
