"""The distributions of rows of logits, and a token of each.

A distribution is a function of a logit and of two numbers of its row, the
largest logit and a sum. So these numbers are all that is computed, and whoever
reads a distribution computes its entries where it reads them.

Axes: R rows, V vocabulary.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.native.gpu.operation import Operation, not_float32
from speccascade.native.gpu.row_draws import invert


class RowLaw(NamedTuple):
  """What is known of rows of logits.

  Attributes:
    top: [R], the largest logit; +inf where one is NaN.
    total: [R], the sum of exp(logit / T - top / T), at the temperature T.
    plain_total: [R], the sum of exp(logit - top).
    token: [R] int32, a draw; None where none was wanted.
  """

  top: jax.Array
  total: jax.Array
  plain_total: jax.Array
  token: jax.Array | None


class RowLaws(Operation):
  """Normalises rows of logits, and draws from them; see `reference`."""

  name = "row_laws"
  modules: ClassVar = {"triton": "speccascade.native.gpu.row_laws_triton"}

  def reference(
    self,
    logits: jax.Array,
    temperature: jax.Array,
    u: jax.Array | None = None,
    *,
    column: int = 0,
    greedy: bool = False,
  ) -> RowLaw:
    """Returns what is known of rows of logits.

    Args:
      logits: [R, V] float32. Of a row with NaN or +inf, or with nothing but
        -inf, all but `top` is undefined.
      temperature: [] float32; not used where greedy.
      u: [R, N] float32 uniforms in [0, 1); None draws no token.
      column: which of the N uniforms draws.
      greedy: whether the token is the first of the largest logits.
    """
    logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)
    top = jnp.max(logits, axis=1)
    plain = jnp.exp(logits - top[:, None])
    weights = jnp.exp(logits / temperature - top[:, None] / temperature)
    token = None
    if u is not None and greedy:
      token = jnp.argmax(logits, axis=1).astype(jnp.int32)
    elif u is not None:
      token = invert(weights, u[:, column])
    return RowLaw(top, jnp.sum(weights, axis=1), jnp.sum(plain, axis=1), token)

  def key(self, logits: jax.Array, *arrays: object, **options: object) -> str:
    """Returns such as "32128 tokens"."""
    del arrays, options
    return f"{logits.shape[-1]} tokens"

  def unfit(
    self, logits: jax.Array, *arrays: object, **options: object
  ) -> str | None:
    """Returns why no kernel takes these logits; None if one does."""
    del arrays, options
    return not_float32(logits)


row_laws = RowLaws()
