"""Reads what a model on Hugging Face's hub says of its arrays, without them.

A file of safetensors begins with a header, which has the names, dtypes and
shapes of its arrays. Headers are read by range requests.
"""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import struct
import tempfile
from typing import Any

from speccascade.checkpoints import hub, hub_errors, hub_names
from speccascade.checkpoints.errors import CheckpointError


@contextlib.contextmanager
def outline(path: str | os.PathLike) -> Iterator[str | os.PathLike]:
  """Gives a folder that has all of a model's files, with holes for arrays.

  The folder is for reading settings and shapes: each number of an array in it
  is 0. Files have their sizes, and take no space on the disk.

  Args:
    path: the name of a model on the hub. Any other path is given as it is, and
      so is the folder in the cache that has all files of the model.

  Raises:
    CheckpointError: the model cannot be read; see `hub.local`.
  """
  if (name := hub_names.parse(path)) is None:
    yield path
    return
  folder = hub.local(path, weights=False)  # pins the revision
  commit = os.path.basename(os.fspath(folder))
  pinned = name._replace(revision=commit)
  if (cached := hub.cached(pinned)) is not None:
    yield cached
    return
  pinned, files = hub.resolve(pinned)
  names = hub.weights_of(pinned, files)
  with tempfile.TemporaryDirectory(prefix="speccascade_hub_") as made:
    place = pathlib.Path(made, f"{name.repo.replace('/', '--')}@{commit}")
    place.mkdir()
    for each in pathlib.Path(folder).iterdir():
      (place / each.name).symlink_to(each.resolve())
    for each in names:
      if (place / each).exists():
        continue
      with hub_errors.explained(pinned) as package:
        header = package.HfApi().parse_safetensors_file_metadata(
          pinned.repo, each, revision=commit
        )
      _write_holes(place / each, header, f"{pinned}/{each}")
    yield str(place)


def _write_holes(path: pathlib.Path, header: Any, where: str) -> None:
  """Writes a file of safetensors that has a header and a hole."""
  described, end = {}, 0
  for name, array in header.tensors.items():
    first, last = array.data_offsets
    described[name] = {
      "dtype": array.dtype,
      "shape": list(array.shape),
      "data_offsets": [first, last],
    }
    end = max(end, last)
  if not 0 <= end < 2**50:
    raise CheckpointError(f"{where} has a header that cannot be right")
  text = json.dumps(described).encode()
  text += b" " * (-len(text) % 8)
  with path.open("wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + end)
