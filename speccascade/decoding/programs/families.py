"""Several targets in one compiled program, one of them chosen as it runs.

Methods of one execution differ in their target alone, a few operations beside
two models, and a program takes seconds to compile. A program of many targets
takes the chosen one's number as a traced argument.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from speccascade.decoding.laws.targets import Target

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Choice:
  """What executions use of a `Target`; only the chosen one is computed.

  Attributes:
    targets: alike in what they need of the drafter.
    index: int32 [], traced.
  """

  targets: tuple[Target, ...]
  index: Array

  @property
  def uses_q(self) -> bool:
    return self.targets[0].uses_q

  @property
  def reads_tokens(self) -> Array:
    """[] bool; see `Target`."""
    flags = [target.reads_tokens for target in self.targets]
    return jnp.asarray(flags)[self.index]

  def at(self, q, p, tokens, *, alpha, sampled) -> tuple[Array, Array, Array]:
    """See `Target.at`."""

    def at(target, q, p, alpha, sampled):
      return target.at(q, p, tokens, alpha=alpha, sampled=sampled)

    return self._switch(at, q, p, alpha, sampled)

  def early(self, q, alpha) -> tuple[Array, Array]:
    """See `Target.early`."""
    return self._switch(Target.early, q, alpha)

  def _switch(self, branch, *operands):
    """Returns `branch(target, *operands)` of the chosen target."""
    branches = [functools.partial(branch, target) for target in self.targets]
    return jax.lax.switch(self.index, branches, *operands)


def choose(targets: tuple[Target, ...], index: Array) -> Target | Choice:
  """Returns the target of a number; one alone is itself, without a branch."""
  return targets[0] if len(targets) == 1 else Choice(targets, index)
