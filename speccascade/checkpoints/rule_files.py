"""Files of the parameters of learned rules: RULE_PARAMETERS.

A `.npz` file holds the parameters of each kind that was fitted, and what they
were fitted to. The name of an array is the name of its kind and of its place in
the parameters: `heads/kernel`, `calibration/of_q/at`.
"""

from collections.abc import Mapping
import functools
import hashlib
import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from speccascade.decoding.laws.learned import KINDS
from speccascade.runtime import array_files, files

_ABOUT = "about"
# The parameters of all kinds together have some kilobytes.
_BOUNDS = files.FileBounds(size=1 << 24, ratio=1)


class RuleFile(NamedTuple):
  """What a file of rule parameters holds.

  Attributes:
    parameters: {name of a `ParameterKind`: its pytree of float32 arrays}.
    about: what the parameters were fitted to, as JSON holds it.
    digest: 12 hexadecimal digits that identify the file's content.
  """

  parameters: Mapping[str, Any]
  about: Mapping[str, Any]
  digest: str


def write(
  path: str | os.PathLike,
  parameters: Mapping[str, Any],
  about: Mapping[str, Any],
):
  """Writes a file of rule parameters, whole or not at all.

  Args:
    path: the path of the `.npz` file.
    parameters: as in `RuleFile`.
    about: as in `RuleFile`.
  """
  arrays = {_ABOUT: np.array(json.dumps(dict(about)))}
  for kind, tree in parameters.items():
    for name, leaf in _names(kind, tree):
      arrays[name] = np.asarray(leaf, np.float32)
  with files.open_whole(path, "wb") as file:
    np.savez(file, **arrays)


def read(path: str | os.PathLike) -> RuleFile:
  """Returns the parameters of a file; a file that did not change is kept.

  Raises:
    ValueError: the file is not there, is damaged, or holds other arrays.
  """
  found = pathlib.Path(path).expanduser()
  try:
    return _read(str(found), found.stat().st_mtime_ns)
  except OSError as error:
    raise ValueError(
      f"RULE_PARAMETERS {os.fspath(path)!r}: {error.strerror or error}; name"
      " the file that python -m speccascade.learned_rule writes"
    ) from error


@functools.lru_cache(maxsize=8)
def _read(path: str, modified_ns: int) -> RuleFile:
  """Returns the parameters of a file; `modified_ns` identifies the version."""
  try:
    arrays = array_files.read_npz(path, _BOUNDS)
    about = json.loads(str(arrays.pop(_ABOUT, "{}")))
  except ValueError as error:
    raise ValueError(f"RULE_PARAMETERS: {error}") from error
  digest = hashlib.sha256()
  for name in sorted(arrays):
    digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
  parameters = {}
  for name, kind in KINDS.items():
    template = kind.plug_in()
    if any(array.startswith(f"{name}/") for array in arrays):
      leaves = [
        _leaf(path, arrays, place, leaf)
        for place, leaf in _names(name, template)
      ]
      structure = jax.tree.structure(template)
      parameters[name] = jax.tree.unflatten(structure, leaves)
  if not parameters:
    raise ValueError(
      f"RULE_PARAMETERS: {path} holds no parameters of {', '.join(KINDS)}; name"
      " the file that python -m speccascade.learned_rule writes"
    )
  return RuleFile(parameters, about, digest.hexdigest()[:12])


def _names(kind: str, tree: Any) -> list[tuple[str, Any]]:
  """Returns the leaves of a kind's parameters, each with the array's name."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return [
    ("/".join([kind, *(key.name for key in keys)]), leaf)
    for keys, leaf in leaves
  ]


def _leaf(path: str, arrays: Mapping, name: str, wanted: Any) -> np.ndarray:
  """Returns an array of the file."""
  fault = None
  if name not in arrays:
    fault = f"has no array {name}"
  elif arrays[name].shape != wanted.shape:
    shape = list(arrays[name].shape)
    fault = f"has {name} of shape {shape}, wanted {list(wanted.shape)}"
  elif arrays[name].dtype.kind != "f" or not np.isfinite(arrays[name]).all():
    fault = f"has numbers in {name} that are not finite"
  if fault:
    raise ValueError(f"RULE_PARAMETERS: {path} {fault}; fit the rule again")
  return np.asarray(arrays[name], np.float32)
