"""What has a reference in plain JAX, and kernels for a GPU beside it."""

from collections.abc import Mapping
import dataclasses
import importlib
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from speccascade.native.gpu import choice, kernel_tables
from speccascade.native.lowering import device_kind, platform


class UnavailableError(ValueError):
  """An implementation was asked for by its name, and cannot run here."""


class Operation:
  """An operation, computed by XLA or by a kernel written for a GPU.

  A subclass has a `reference`, the sizes by which tables know it, and the
  modules of its kernels. They are imported where a program is traced that has
  them. A module has two functions, which take what `reference` does:

    configuration(*arrays, **options): a frozen dataclass of numbers, such as
      columns, stages and warps, worked out from the sizes. What
      `configurations.json` has of these sizes replaces its fields.
    run(*arrays, configuration, interpret, **options): what `reference`
      returns; `interpret` computes the kernel with JAX's operations.

  A call takes the arrays and options of `reference`, and two more:

    implementation: "xla" is the reference, "triton" or "cuda" a kernel in this
      language, "interpreted" the Triton kernel computed with JAX's operations,
      "emulated" the CUDA kernel run on a CPU, thread by thread.
      None takes what `gpu_kernels` asks for, else what `defaults.json` says,
      and falls back to the next best where that cannot run.
    configuration: of the kernel; None takes the best one known.

  Raises:
    UnavailableError: the implementation that was named cannot run here.

  Attributes:
    name: the operation's name in tables and messages.
    modules: the modules of its kernels, by language.
  """

  name: ClassVar[str]
  modules: ClassVar[Mapping[str, str]]

  def reference(self, *arrays: Any, **options: Any) -> Any:
    """Returns the result, computed with JAX's operations."""
    raise NotImplementedError

  def key(self, *arrays: Any, **options: Any) -> str:
    """Returns the sizes by which tables know a call."""
    raise NotImplementedError

  def unfit(self, *arrays: Any, **options: Any) -> str | None:
    """Returns why no kernel computes a call; None where they all do."""
    del arrays, options
    return None

  def missing(self, implementation: str) -> str | None:
    """Returns why an implementation cannot run here; None if it can."""
    choice.check(implementation)
    if implementation == "xla":
      return None
    language = _language(implementation)
    if language not in self.modules:
      return f"there is no kernel in {language}"
    if implementation not in choice.ANYWHERE and platform() != "gpu":
      return f"the program is for a {platform().upper()}"
    try:
      importlib.import_module(self.modules[language])
    except ImportError as error:
      return f"jax {jax.__version__} lacks what it is written with ({error})"
    return None

  def choose(
    self, implementation: str | None, *arrays: Any, **options: Any
  ) -> str:
    """Returns the implementation of a call; see `Operation`."""
    if implementation is None:
      first = choice.preferred(self.name, self.key(*arrays, **options))
      *kernels, plain = choice.FALLBACKS[first]
      if self.unfit(*arrays, **options):
        return plain
      return next((x for x in kernels if self.missing(x) is None), plain)
    reason = self.missing(implementation)
    if reason is None and implementation != "xla":
      reason = self.unfit(*arrays, **options)
    if reason is not None:
      raise UnavailableError(
        f"implementation={implementation!r} of {self.name} cannot run:"
        f" {reason}; give 'xla', or None for the best that can"
      )
    return implementation

  def __call__(
    self,
    *arrays: Any,
    implementation: str | None = None,
    configuration: Any = None,
    **options: Any,
  ) -> Any:
    name = self.choose(implementation, *arrays, **options)
    if name == "xla":
      return self.reference(*arrays, **options)
    language = _language(name)
    module = importlib.import_module(self.modules[language])
    if configuration is None:
      timed = kernel_tables.configuration(
        device_kind(), self.name, language, self.key(*arrays, **options)
      )
      configuration = dataclasses.replace(
        module.configuration(*arrays, **options), **timed
      )
    return module.run(
      *arrays,
      configuration=configuration,
      interpret=name in choice.ANYWHERE,
      **options,
    )


def not_float32(logits: jax.Array) -> str | None:
  """Returns why no kernel takes logits of another dtype; None if one does."""
  if logits.dtype == jnp.float32:
    return None
  return f"the logits are {logits.dtype}"


def _language(implementation: str) -> str:
  """Returns the language of an implementation's kernel."""
  return choice.ANYWHERE.get(implementation, implementation)
