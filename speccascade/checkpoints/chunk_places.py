"""Finds the file that holds a chunk of an array, after an error in reading it.

The chunks of a zarr array are files of its own. In OCDBT, which Orbax writes,
several arrays share data files: a B-tree has for each chunk the data file, the
first byte and the number of bytes. Small chunks are in the tree itself.
"""

import os
import pathlib
from typing import NamedTuple


class Place(NamedTuple):
  """Where a chunk is stored.

  Attributes:
    file: path of the file.
    end: the byte of the file at which the chunk ends.
  """

  file: str
  end: int


def file_of(array, chunk: str) -> str:
  """Returns the file that holds a chunk; the array's folder if none is known.

  Args:
    array: an array of tensorstore.
    chunk: the chunk's name.
  """
  spec = array.kvstore.spec().to_json()
  if spec["driver"] != "ocdbt":
    return _url(spec, chunk)
  place = _places(array).get(chunk)
  return place.file if place else _url(spec["base"], "")


def describe_fault(array) -> str | None:
  """Returns in words what is wrong with the data files of an array in OCDBT.

  Returns None for an array whose chunks are files of its own: tensorstore's
  errors name these.
  """
  places = _places(array)
  for file, end in places.values():
    if not file.startswith("/"):  # not on a local disk
      continue
    if not os.path.isfile(file):
      return f"{file} is missing"
    if os.path.getsize(file) < end:
      return f"{file} is truncated"
  files = sorted({place.file for place in places.values()})
  return f"it is in {' and '.join(files[:2])}" if files else None


def _places(array) -> dict[str, Place]:
  """Returns where each chunk of an array in OCDBT is stored, by its name.

  The result is empty for other arrays, and incomplete if the B-tree is damaged.
  """
  import tensorstore as ts

  store = array.kvstore
  spec = store.spec().to_json()
  if spec["driver"] != "ocdbt":
    return {}
  base, root = store.base, _url(spec["base"], "")
  places = {}

  def walk(location: str, prefix: str):
    """Goes through a node of the tree; its keys lack the common prefix."""
    node = ts.ocdbt.dump(base, location).result()
    for entry in node["entries"]:
      name = prefix + entry["key"].decode()
      if "location" in entry:  # a node below this one
        length = entry.get("subtree_common_prefix_length", 0)
        walk(entry["location"], name[: len(prefix) + length])
      elif name.startswith(spec["path"]):
        # A small chunk has no place of its own: it lies in this node.
        place = _place(entry.get("indirect_value", location), root)
        places[name.removeprefix(spec["path"])] = place

  try:
    manifest = ts.ocdbt.dump(base).result()
    walk(manifest["versions"][-1]["root"]["location"], "")
  except (ValueError, LookupError):
    pass  # The tree is damaged, and the error that led here says so.
  return places


def _place(location: str, root: str) -> Place:
  """Returns a place from OCDBT's text.

  In "value:ocdbt.process_0/:d/92bd89:0:6202" the file is
  ocdbt.process_0/d/92bd89, from byte 0 on, with 6,202 bytes.

  Args:
    location: the text.
    root: path of the store's folder.
  """
  _, *path, start, length = location.split(":")
  return Place(root + "".join(path), int(start) + int(length))


def _url(spec: dict, name: str) -> str:
  """Returns the path, or URL, of a key of a key-value store."""
  if spec["driver"] == "file":
    return str(pathlib.PurePosixPath(spec["path"])) + "/" + name
  return f"{spec['driver']}:{spec.get('bucket', '')}/{spec['path']}{name}"
