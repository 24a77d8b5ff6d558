"""Several targets behind one compiled program, one of them chosen as it runs.

Methods of one execution differ in their target alone, a few operations beside
two models, and a program takes seconds to compile. A family of them is one
program in which a traced number says which target it is.
"""

from collections.abc import Callable
import dataclasses
import functools

import jax
import jax.numpy as jnp

from speccascade.decoding.target import Target

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Family:
  """Targets that share a program; static.

  Attributes:
    targets: alike in what they need of the drafter.
  """

  targets: tuple[Target, ...]

  def choose(self, index: Array) -> "Choice":
    """Returns the target of a traced number, int32 []."""
    return Choice(self.targets, index)


@dataclasses.dataclass(frozen=True)
class Choice:
  """A `Target` to executions; only the chosen one is computed.

  Attributes:
    targets: of the family.
    index: int32 [], traced.
  """

  targets: tuple[Target, ...]
  index: Array

  @property
  def uses_q(self) -> bool:
    return self.targets[0].uses_q

  def switch(self, branch: Callable, *operands):
    """Returns `branch(target, *operands)` of the chosen target."""
    branches = [functools.partial(branch, one) for one in self.targets]
    return jax.lax.switch(self.index, branches, *operands)

  def __call__(self, q, p, *, alpha=0.0, sampled=None):
    def call(target, q, p, alpha, sampled):
      return target(q, p, alpha=alpha, sampled=sampled)

    return self.switch(call, q, p, alpha, sampled)


def read(target: Target | Choice, function: Callable, *operands):
  """Returns `function(target, *operands)`, of the chosen target of a choice.

  Args:
    target: one, or a choice.
    function: gives results of one shape and dtype for all targets.
    *operands: arrays, and pytrees of them.
  """
  if isinstance(target, Choice):
    return target.switch(function, *operands)
  return function(target, *operands)


def flag(target: Target | Choice, has: Callable[[Target], bool]) -> Array:
  """Returns [] bool, whether the target, or the chosen one, has a property."""
  if isinstance(target, Choice):
    return jnp.asarray([has(one) for one in target.targets])[target.index]
  return jnp.asarray(has(target))
