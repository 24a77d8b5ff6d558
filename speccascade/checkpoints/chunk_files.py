"""Which file holds a chunk of an array: for messages, after something failed.

A zarr array's own files are its chunks. In OCDBT, which Orbax writes, a B-tree
says for each chunk in which data file it lies, from which byte to which; it
holds the small ones itself.
"""

import os
import pathlib

Place = tuple[str, int]  # a file, and the byte of it where something ends


def holding(array, chunk: str) -> str:
  """Returns the file that holds a chunk of an array, as far as it is known."""
  spec = array.kvstore.spec().to_json()
  if spec["driver"] != "ocdbt":
    return _url(spec, chunk)
  places = _places(array)
  return places.get(chunk, (_url(spec["base"], ""), 0))[0]


def fault(array) -> str | None:
  """Returns in words which file of an array's chunks is missing or cut short.

  Args:
    array: tensorstore's. Only local files are looked at.
  """
  for file, end in _places(array).values():
    if not file.startswith("/"):
      continue
    if not os.path.isfile(file):
      return f"{file} is missing"
    if os.path.getsize(file) < end:
      return f"{file} is truncated"
  return None


def _places(array) -> dict[str, Place]:
  """Returns where each chunk is, of an array in OCDBT whose tree is sound."""
  import tensorstore as ts

  store = array.kvstore
  spec = store.spec().to_json()
  if spec["driver"] != "ocdbt":
    return {}
  base, root = store.base, _url(spec["base"], "")
  places = {}

  def walk(location: str, prefix: str):
    node = ts.ocdbt.dump(base, location).result()
    for entry in node["entries"]:
      name = prefix + entry["key"].decode()
      if "location" in entry:
        cut = entry.get("subtree_common_prefix_length", 0)
        walk(entry["location"], name[: len(prefix) + cut])
      elif name.startswith(spec["path"]):
        place = _place(entry.get("indirect_value", location), root)
        places[name.removeprefix(spec["path"])] = place

  try:
    manifest = ts.ocdbt.dump(base).result()
    walk(manifest["versions"][-1]["root"]["location"], "")
  except (ValueError, LookupError):
    pass  # the tree itself is damaged, which the error says
  return places


def _place(location: str, root: str) -> Place:
  """Returns a place from, e.g., "value:ocdbt.process_0/:d/92bd89:0:6202"."""
  _, *path, start, length = location.split(":")
  return root + "".join(path), int(start) + int(length)


def _url(spec: dict, name: str) -> str:
  if spec["driver"] == "file":
    return str(pathlib.PurePosixPath(spec["path"])) + "/" + name
  return f"{spec['driver']}:{spec.get('bucket', '')}/{spec['path']}{name}"
