"""What each method of the table says it samples from, on a pair of chains.

This is the reference that a sampler of these methods is judged by. The tables
come from the package's own temperature, filters and targets, in float64.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests import toy_chains
from tests.toy_chains import ChainPair


@dataclasses.dataclass(frozen=True)
class MethodLaws:
  """The distributions of each context, [S, V] each.

  Attributes:
    q1: the drafter's at temperature 1.
    p1: the verifier's.
    q: the drafter's, as sampled.
    p: the verifier's.
    pi: the target's.
  """

  q1: np.ndarray
  p1: np.ndarray
  q: np.ndarray
  p: np.ndarray
  pi: np.ndarray


def in_float64(function):
  """Returns a function that runs in float64: exact distributions need it."""

  @functools.wraps(function)
  def run(*args, **kwargs):
    with jax.enable_x64(True):
      return function(*args, **kwargs)

  return run


@jax.jit
def _laws(sampling, logits):
  return sampling.laws(logits)


@functools.partial(jax.jit, static_argnums=0)
def _target(target, q1, p1, alpha, q, p):
  return target.probs(q1, p1, alpha=alpha, sampled=(q, p))


@in_float64
def laws(pair: ChainPair, target, alpha, sampling) -> MethodLaws:
  """Returns the distributions of a pair under a target.

  Args:
    pair: a `ChainPair`.
    target: a `Target`, such as `METHODS[name].target`.
    alpha: the parameter of the target, a number or a `FittedAlpha`.
    sampling: a `Sampling`.

  """
  q_logits, p_logits = (jnp.asarray(x) for x in pair.flat())
  q1, q = _laws(sampling, q_logits)
  p1, p = _laws(sampling, p_logits)
  alpha = jax.tree.map(lambda leaf: jnp.asarray(leaf, q.dtype), alpha)
  pi = _target(target, q1, p1, alpha, q, p)
  return MethodLaws(*(np.asarray(x) for x in (q1, p1, q, p, pi)))


def text_law(pair: ChainPair, method, sampling, length: int) -> np.ndarray:
  """Returns the distribution of texts of a method at its default alpha.

  The texts are in the order of `toy_chains.sequences`.

  Args:
    pair: a `ChainPair`.
    method: a row of the table.
    sampling: a `Sampling`.
    length: most tokens, EOS counted.
  """
  law = laws(pair, method.target, method.default_alpha, sampling)
  return toy_chains.chain_law(pair, law.pi, length)
