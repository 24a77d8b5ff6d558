"""The state of Adafactor, as T5X's train states have it."""

from collections.abc import Mapping
import math

import numpy as np

from speccascade.checkpoints.architecture import flatten, unflatten
from speccascade.checkpoints.errors import CheckpointError

SLOTS = ("v_row", "v_col", "v")  # of Adafactor, for each parameter
_PLACEHOLDER = (1,)  # shape of a slot that Adafactor does not use
_ADVICE = "read the parameters alone (convert: --parameters_only)"


def without_momentum(param_states: dict, params: dict, *, where: str) -> dict:
  """Returns Adafactor's slots of each parameter, from T5X's `param_states`.

  Args:
    param_states: nested dict of arrays, or of anything with a shape.
    params: nested dict of the parameters, or of anything with a shape.
    where: the checkpoint, for messages.

  Raises:
    CheckpointError: the state is another optimizer's, or has momentum.
  """
  flat, parameters = flatten(param_states), flatten(params)
  slots = {f"{name}/{slot}": name for name in parameters for slot in SLOTS}
  subject = f"the optimizer state of {where} has"
  for name, parameter in slots.items():
    if name not in flat:
      raise CheckpointError(
        f"{subject} no {name}: it is not Adafactor's; {_ADVICE}"
      )
    shape, wanted = flat[name].shape, parameters[parameter].shape
    # A slot of zeros has no chunks on disk, so that no file bounds a damaged
    # shape.
    if math.prod(shape) > max(1, math.prod(wanted)):
      raise CheckpointError(
        f"{subject} {name} of shape {list(shape)}, more than its parameter's "
        f"{list(wanted)}; {_ADVICE}"
      )
  for name in sorted(flat.keys() - slots.keys()):
    if name.removesuffix("/m") not in parameters:
      raise CheckpointError(
        f"{subject} {name}, which is not a slot of a parameter; {_ADVICE}"
      )
    if flat[name].shape != _PLACEHOLDER:
      raise CheckpointError(
        f"{subject} momentum ({name}); only Adafactor without it is read;"
        f" {_ADVICE}"
      )
  return unflatten({name: flat[name] for name in slots})


def with_momentum(slots: Mapping) -> dict:
  """Returns T5X's `param_states`: the slots, and an unused momentum for each.

  Args:
    slots: nested dict of Adafactor's slots, `{"v_row", "v_col", "v"}` for each
      parameter.
  """
  flat = flatten(dict(slots))
  for name in dict.fromkeys(name.rsplit("/", 1)[0] for name in flat):
    flat[f"{name}/m"] = np.zeros(_PLACEHOLDER, np.float32)
  return unflatten(flat)
