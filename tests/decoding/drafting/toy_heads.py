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


def of_laws(laws) -> TableHeads:
  """Returns the heads of laws [K, V, V]."""
  with np.errstate(divide="ignore"):
    return TableHeads(jnp.asarray(np.log(laws), jnp.float32))


def ahead(transitions: np.ndarray, num: int, blur: float = 0.0) -> TableHeads:
  """Returns the heads that know a chain of order 1: head k looks k + 1 ahead.

  Args:
    transitions: [V, V], the laws of the chain.
    num: K.
    blur: weight of the uniform law in each head.
  """
  size = len(transitions)
  laws = [
    (1 - blur) * np.linalg.matrix_power(transitions, k + 2) + blur / size
    for k in range(num)
  ]
  return of_laws(np.stack(laws))
