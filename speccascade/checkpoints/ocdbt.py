"""Names the data files of an array in OCDBT, after an error in reading it.

OCDBT is the database in which Orbax keeps several arrays in shared files. A
B-tree has for each chunk the data file, the first byte and the number of bytes.
Tensorstore's errors name the database and the chunk, but not the file. It reads
a file that is missing as an empty one.
"""

import os


def describe_files(array) -> str | None:
  """Returns in words what is wrong with an array's data files, or which it has.

  Returns None for an array that is not in OCDBT.

  Args:
    array: an array of tensorstore.
  """
  spec = array.kvstore.spec().to_json()
  if spec["driver"] != "ocdbt":
    return None
  ends = _ends(array.kvstore.base, spec["path"])
  if spec["base"]["driver"] == "file":
    folder = spec["base"]["path"]
    ends = {folder + name: end for name, end in ends.items()}
    for file, end in ends.items():
      if not os.path.isfile(file):
        return f"{file} is missing"
      if os.path.getsize(file) < end:
        return f"{file} is truncated"
  return f"it is in {' and '.join(sorted(ends)[:2])}" if ends else None


def _ends(base, path: str) -> dict[str, int]:
  """Returns {data file of an array: last byte of it that the array needs}."""
  import tensorstore as ts

  ends: dict[str, int] = {}

  def walk(location: str, prefix: str):
    """Goes through a node of the tree; its keys lack the common prefix."""
    node = ts.ocdbt.dump(base, location).result()
    for entry in node["entries"]:
      name = prefix + entry["key"].decode()
      if "location" in entry:  # a node below this one
        length = entry.get("subtree_common_prefix_length", 0)
        walk(entry["location"], name[: len(prefix) + length])
      elif name.startswith(path):
        # "value:ocdbt.process_0/:d/92bd89:0:6202" is in the file
        # ocdbt.process_0/d/92bd89, from byte 0 on, with 6,202 bytes. A small
        # chunk has no place of its own: it lies in this node.
        place = entry.get("indirect_value", location)
        _, *parts, start, length = place.split(":")
        file, end = "".join(parts), int(start) + int(length)
        ends[file] = max(end, ends.get(file, 0))

  try:
    manifest = ts.ocdbt.dump(base).result()
    walk(manifest["versions"][-1]["root"]["location"], "")
  except (ValueError, LookupError):
    pass  # The tree is damaged, and the error that led here says so.
  return ends
