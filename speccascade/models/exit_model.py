"""An early exit that was taught, as a pair is given it: `TrainedExit`."""

import dataclasses
from typing import Any, Self

from flax import struct
import jax

from speccascade import native
from speccascade.models.cached_lm import CachedLM
from speccascade.models.parameters import prepare
from speccascade.models.sharding.partitioning import Layout
from speccascade.models.taught_exit import ExitConfig, ExitNetwork, merged


class TrainedExit(struct.PyTreeNode):
  """The new layers and the norm of an exit; make it with `create`.

  It drafts as the language model that `language_model` makes of it.

  Attributes:
    params: the parameter tree; its kernels are stored as the verifier's.
    module: static.
  """

  params: Any
  module: ExitNetwork = struct.field(pytree_node=False)

  @classmethod
  def create(
    cls,
    config: ExitConfig,
    params: dict,
    dtype: str | None = None,
    *,
    kernel_dtype: str | None = None,
    donate: bool = False,
    layout: Layout | None = None,
  ) -> Self:
    """Returns the exit of a parameter tree; arguments as in `CachedLM.create`.

    Raises:
      ValueError: the parameters do not fit, or the exit is to lie on a mesh.
    """
    if layout is not None:
      raise ValueError(
        "an early exit that was taught lies on one device, and a mesh is set:"
        " leave MESH out"
      )
    if dtype is not None:
      changes: dict[str, Any] = {"dtype": dtype}
      config = dataclasses.replace(config, **changes)
    tree = prepare(config, params, kernel_dtype, donate=donate)
    return cls(tree, ExitNetwork(config))

  @property
  def config(self) -> ExitConfig:
    """The hyperparameters."""
    return self.module.config

  @property
  def prompted(self) -> bool:
    """Whether the verifier is decoder-only."""
    return self.config.prompted

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.config.vocab_size

  @property
  def num_layers(self) -> int:
    """k, how many layers are the verifier's."""
    return self.config.num_layers

  def language_model(self, verifier: Any) -> CachedLM:
    """Returns the exit as a language model. See `drafter.Exit`.

    Args:
      verifier: the T5, T5Gemma or Llama that it was taught for, on one device.

    Raises:
      ValueError: the verifier is of another architecture, or its kernels are
        stored in another way than the exit's.
    """
    config = self.config
    given = getattr(getattr(verifier, "module", None), "config", None)
    if not isinstance(verifier, CachedLM) or given != dataclasses.replace(
      config.verifier, dtype=getattr(given, "dtype", "")
    ):
      raise ValueError(
        f"an early exit is one of the verifier that it was taught for; a"
        f" {type(verifier).__name__} of another architecture was given"
      )
    params = merged(config, verifier.params, self.params)
    kinds = {_storage(params, f"layers_{i}") for i in (0, config.num_layers)}
    if config.num_new_layers and len(kinds) > 1:
      raise ValueError(
        f"the kernels of an early exit are stored as its verifier's; got"
        f" {' and '.join(sorted(kinds))}: make both with one kernel_dtype"
      )
    module = ExitNetwork(dataclasses.replace(config, dtype=given.dtype))
    return verifier.replace(
      params=params, module=module.network(), num_shared=self.num_layers
    )


def _storage(params: Any, layer: str) -> str:
  """Returns how the kernels of a layer of a decoder are stored."""
  layers = params["decoder"]
  if layer not in layers:
    return ""
  kernel = layers[layer]["self_attention"]["query"]["kernel"]
  if isinstance(kernel, native.Panels):
    return f"panels of {kernel.array.dtype}"
  return f"arrays of {jax.numpy.asarray(kernel).dtype}"
