"""The one module that reads JAX's private state of a job of several processes.

Tried with jax 0.10.2. It uses these names, which JAX does not document:

  jax._src.distributed.global_state     the state of the job
    .client                             None before jax.distributed.initialize
    .process_id, .num_processes         this process, and how many there are
  client.key_value_set(name, value, allow_overwrite=)
  client.key_value_dir_get(prefix)      [(name, value)] of the job's store

There is no public way. `jax.process_index()` starts the devices, and this
package asks which process it is before it may do so (reading flags, locking a
folder). The key-value store of JAX's coordination service has no public
interface. A JAX that renames one of these raises AttributeError or TypeError
here, and `tests/runtime/test_processes.py` fails.
"""

import sys
from typing import Any


def _state() -> Any:
  """Returns JAX's state of the job; None if this process is the whole job."""
  # Only a process that has imported JAX can have joined a job. Importing JAX
  # here would cost a second in command lines that do not need it.
  if "jax" not in sys.modules:
    return None
  from jax._src import distributed

  state = distributed.global_state
  return state if state.client is not None else None


def index() -> int:
  """Returns the number of this process, from 0; 0 outside a job."""
  state = _state()
  return state.process_id if state else 0


def count() -> int:
  """Returns how many processes the job has; 1 outside a job."""
  state = _state()
  return state.num_processes if state else 1


def set_value(name: str, value: str) -> None:
  """Stores a string in the job's key-value store, over an older one.

  Args:
    name: the key; parts are separated by "/".
    value: the text.
  """
  _state().client.key_value_set(name, value, allow_overwrite=True)


def read_values(prefix: str) -> list[tuple[str, str]]:
  """Returns the (name, value) pairs whose names begin with `prefix`/."""
  return _state().client.key_value_dir_get(f"{prefix}/")
