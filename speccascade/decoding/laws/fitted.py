"""Parameters that were fitted to text, and the alpha that travels with them.

A learned rule is a rule `(q, p, alpha)` like any other, but for the arrays that
training left. A decoder passes them as a part of alpha, so that they are traced
arguments: rules whose arrays have equal shapes share one compiled program.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


class FittedAlpha(struct.PyTreeNode):
  """The alpha of a learned rule, together with the rule's parameters.

  Attributes:
    alpha: scalar, the price of deferring.
    parameters: a pytree of arrays, of the rule's `ParameterKind`.
  """

  alpha: Array | float
  parameters: Any


@dataclasses.dataclass(frozen=True)
class ParameterKind:
  """What kind of parameters a learned rule or target takes.

  Attributes:
    name: the kind's name in files of parameters.
    plug_in: a function that returns parameters which correct nothing. With them
      the rule is the plug-in rule that it refines.
  """

  name: str
  plug_in: Callable[[], Any]

  def check(self, alpha: Any, label: str) -> None:
    """Checks what a user passes as alpha.

    Args:
      alpha: a `FittedAlpha`, or a number, which selects the plug-in.
      label: the name of the method, for the message.

    Raises:
      ValueError: the parameters are of another kind.
    """
    if not isinstance(alpha, FittedAlpha):
      return
    shapes, wanted = (
      str(jax.tree.map(np.shape, tree))
      for tree in (alpha.parameters, self.plug_in())
    )
    if shapes != wanted:
      raise ValueError(
        f"{label} takes parameters of the kind {self.name!r}, and was given"
        f" others; give those of this kind in the file that `rule_files.read`"
        " reads"
      )


def with_parameters(
  alpha: Any, kind: ParameterKind | None, dtype: Any
) -> Array | FittedAlpha:
  """Returns alpha as a rule reads it, in the float type of its distributions.

  Args:
    alpha: a number or a scalar array; or a `FittedAlpha`.
    kind: of the rule's parameters; None for a rule without parameters.
    dtype: the float type.

  Returns:
    A scalar array for a rule without parameters, and a `FittedAlpha` for a
    rule with parameters. A number selects the rule's plug-in.
  """
  if kind is not None and not isinstance(alpha, FittedAlpha):
    alpha = FittedAlpha(alpha, kind.plug_in())
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), alpha)


def number_of(alpha: Any) -> Any:
  """Returns alpha without the parameters that may travel with it."""
  return alpha.alpha if isinstance(alpha, FittedAlpha) else alpha
