"""Compiles several targets into one program; a traced index selects one.

Methods of one execution differ in their target alone. A target is a few
operations next to two models, and a program takes seconds to compile. So a
program may hold the targets of several methods, and get the index of one of
them as a traced argument.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

from speccascade.decoding.laws.rules import Pair, Sides
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.loops.execution import Execution
from speccascade.decoding.programs.method import Method
from speccascade.decoding.programs.methods import METHODS

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Choice:
  """Several targets with the methods of one that executions call.

  Only the target at `index` is computed.

  Attributes:
    targets: the targets, which all need the drafter's distribution or all do
      not.
    index: int32 [], traced, the index of the target in use.
  """

  targets: tuple[Target, ...]
  index: Array

  @property
  def uses_q(self) -> bool:
    """See `Target`."""
    return self.targets[0].uses_q

  @property
  def reads_tokens(self) -> Array:
    """[] bool; see `Target`."""
    flags = [target.reads_tokens for target in self.targets]
    return jnp.asarray(flags)[self.index]

  def at(
    self,
    q: Array,
    p: Array,
    tokens: Array | Callable[[Array], Array],
    *,
    alpha: Array,
    sampled: Pair,
  ) -> tuple[Array, Array, Array]:
    """See `Target.at`."""

    def at(
      target: Target, q: Array, p: Array, alpha: Array, sampled: Pair
    ) -> tuple[Array, Array, Array]:
      return target.at(q, p, tokens, alpha=alpha, sampled=sampled)

    return self._switch(at, q, p, alpha, sampled)

  def early(self, q: Array, alpha: Array) -> Sides:
    """See `Target.early`."""
    return self._switch(Target.early, q, alpha)

  def _switch(self, branch: Callable[..., Any], *operands: Any) -> Any:
    """Returns `branch(target, *operands)` of the target at `index`."""
    branches = [functools.partial(branch, target) for target in self.targets]
    return jax.lax.switch(self.index, branches, *operands)


def choose(
  targets: tuple[Target | None, ...], index: Array
) -> Target | Choice | None:
  """Returns the target at an index.

  Args:
    targets: one target, which may be None; or several, none of which is None.
    index: int32 [], traced.

  Returns:
    The target itself where there is one, without a branch in the program.
  """
  if len(targets) == 1:
    return targets[0]
  return Choice(cast(tuple[Target, ...], targets), index)


def family(method: Method, greedy: bool) -> list[Method]:
  """Returns the methods that can share a program: only their targets differ.

  Args:
    method: a row of the table, or a method like one.
    greedy: whether at temperature 0; some methods are defined there alone.

  Returns:
    The family of the method, itself included; the method alone where it is not
    in the table or has no family.
  """

  def kind(member: Method) -> tuple[Execution, bool] | None:
    """Returns what a family has in common; None for a method without one."""
    target = member.target
    if target is None or target.is_lossless or member.compose is not None:
      return None
    # Parameters are arguments of a program, which the other methods lack.
    if member.has_parameters:
      return None
    return member.execution, target.uses_q

  members = [
    member
    for member in METHODS.values()
    if kind(member) is not None
    and kind(member) == kind(method)
    and (greedy or not member.greedy_only)
  ]
  return members if method in members else [method]
