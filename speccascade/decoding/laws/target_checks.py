"""Trying a target on fixed pairs: is pi a distribution?"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws.rules import Pair
from speccascade.decoding.laws.targets import Target, target

Array = jax.Array


def as_target(function: Callable[..., Array], **fields: Any) -> Target:
  """Returns a user's function `(q, p) -> pi` as a `Target`, after trying it.

  Args:
    function: gets the sampled pair, [..., V] each, and returns pi [..., V].
    **fields: further fields of `Target`.

  Raises:
    ValueError: pi is not a distribution; see `check`.

  >>> mix = as_target(lambda q, p: (q + p) / 2)
  >>> float(mix.probs(jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]))[0])
  0.75
  """
  name = getattr(function, "__name__", "target")

  def pi_of_sampled(
    q: Array, p: Array, *, alpha: Array, sampled: Pair
  ) -> Array:
    return function(*sampled)

  result = target(**({"name": name} | fields))(pi_of_sampled)
  check(result)
  return result


def check(
  candidate: Target, *, alpha: float | None = None, vocab_size: int = 7
) -> None:
  """Tries a target on fixed random pairs; raises unless pi is a distribution.

  The pairs hold zeros, ties, one-hot rows and q = p.

  Args:
    candidate: the target.
    alpha: where to try it; None tries three numbers of its range.
    vocab_size: V of the pairs.

  Raises:
    ValueError: a pi has a wrong shape, a negative entry, or a sum other than 1.
      The message gives the sum.
  """
  q, p = trial_pairs(vocab_size)
  low, high = np.clip(candidate.interval.ends(vocab_size), -2, 2)
  alphas = (low + (high - low) * x for x in (0.1, 0.5, 0.9))
  for a in alphas if alpha is None else [alpha]:
    pi = np.asarray(candidate.probs(q, p, alpha=a))
    where = f"target {candidate.name} at alpha {a:g}"
    if pi.shape != p.shape:
      raise ValueError(
        f"{where} returns shape {pi.shape} for pairs of shape {p.shape}; it"
        " must return a distribution over the same V tokens"
      )
    sums = pi.sum(-1)
    worst = int(np.argmax(np.abs(sums - 1)))
    if not abs(sums[worst] - 1) <= 1e-4:
      raise ValueError(
        f"{where} is not a distribution: it sums to {sums[worst]:.4g} on a"
        " trial pair; make every row sum to 1"
      )
    if not pi.min() >= -1e-6:
      raise ValueError(
        f"{where} is not a distribution: it gives a token probability"
        f" {pi.min():.4g}; wanted none below 0"
      )


def trial_pairs(vocab_size: int = 7, dtype: Any = np.float32) -> Pair:
  """Returns fixed pairs (q, p), [N, V] each: random, and the awkward ones.

  There are zeros, ties, one-hot rows, rows with q = p, and rows whose q and p
  have no token in common, as all happen in sampled pairs.
  """
  rng = np.random.default_rng(0)
  q, p = rng.dirichlet(np.full(vocab_size, 0.5), (2, 24))
  q[4:8, ::2] = 0
  p[6:10, 1::2] = 0
  q[10] = p[11] = 1 / vocab_size
  q[12:15] = np.eye(vocab_size)[:3]
  p[14:17] = np.eye(vocab_size)[2]
  p[17:19] = q[17:19]
  q, p = (x / x.sum(-1, keepdims=True) for x in (q, p))
  return jnp.asarray(q, dtype), jnp.asarray(p, dtype)
