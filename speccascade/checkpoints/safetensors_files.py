"""The arrays of a model of Hugging Face: one safetensors file, or shards.

`read` takes a function of a file, which returns its arrays by name: `whole`,
`unread` or `shapes`.
"""

from collections.abc import Callable, Collection, Mapping
import contextlib
import functools
import os
import re

from absl import logging
import numpy as np

from speccascade.checkpoints import storage, stored_arrays
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.runtime import files

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# What a model that also reads images has around the names of its text model:
# "language_model.model.norm", or, in newer files, "model.language_model.norm";
# "model.encoder.text_model.norm"; and the names of its other parts.
_INSIDE = re.compile(
  r"^(model\.)?language_model\.|(?<=^model\.encoder\.)text_model\."
)
_NO_TEXT = re.compile(
  r"(model\.)?(encoder\.)?(vision_tower|multi_modal_projector)\."
)


def read(directory: storage.Directory, read_file: Callable) -> dict:
  """Returns the arrays of a text model, by the names that it has alone."""
  arrays = _read_files(directory, read_file)
  texts = [name for name in arrays if not _NO_TEXT.match(name)]
  if num_others := len(arrays) - len(texts):
    _say_left_out(str(directory), num_others)
  return {
    _INSIDE.sub(lambda found: found[1] or "", name): arrays[name]
    for name in texts
  }


@functools.cache
def _say_left_out(where: str, num_arrays: int):
  """Says once that a model also reads images, and is read as a text model."""
  logging.info(
    "%s also reads images: the %d arrays of its vision tower are left out, and"
    " its text model is read",
    where,
    num_arrays,
  )


def _read_files(directory: storage.Directory, read_file: Callable) -> dict:
  """Returns the arrays of all files of a directory, by Hugging Face's names."""
  # An array that the index places in another file than the one that holds it is
  # left out.
  if directory.has(WEIGHTS):
    return read_file(directory, WEIGHTS)

  def parse(index: dict) -> dict[str, str]:
    # A damaged or hostile index must not name files outside the directory.
    for shard in index["weight_map"].values():
      if os.path.basename(shard) != shard or shard in ("", ".", ".."):
        raise CheckpointError(
          f"{directory}/{INDEX} names the file {shard!r:.60}, want one next to "
          "it"
        )
    return index["weight_map"]

  shard_of = directory.read_json(INDEX, parse)
  tensors = {}
  for shard in sorted(set(shard_of.values())):
    directory.check_file(shard)
    if not directory.has(shard):
      raise CheckpointNotFoundError(
        f"{directory}/{shard}, which {INDEX} names, is missing: copy it again"
      )
    arrays = read_file(directory, shard)
    # A shard may hold an array of former weights that the index has moved to
    # another shard. The index says which one counts.
    tensors |= {
      name: array
      for name, array in arrays.items()
      if shard_of.get(name, shard) == shard
    }
  for name, shard in shard_of.items():
    if name not in tensors:
      raise CheckpointError(
        f"{directory}/{shard} has no {name}, which {INDEX} places there"
      )
  return tensors


def whole(
  directory: storage.Directory, name: str, *, leave_out: Collection[str] = ()
) -> dict:
  """Returns each array of a file in float32, by Hugging Face's names.

  Args:
    directory: the directory with the file.
    name: the file.
    leave_out: names of arrays that are not read.
  """
  with opened(directory, name) as file:
    keys = [key for key in file.keys() if key not in leave_out]  # noqa: SIM118
    tensors = {key: file.get_tensor(key) for key in keys}
  return stored_arrays.as_float32(tensors, where=f"{directory}/{name}")


def unread(directory: storage.Directory, name: str) -> dict:
  """Returns each array of a file as an `Unread`, by Hugging Face's names."""

  def read(key, part):
    with opened(directory, name) as file:
      return file.get_slice(key)[part]

  where = f"{directory}/{name}"
  return {
    key: stored_arrays.Unread(shape, functools.partial(read, key)).as_float32(
      key, where
    )
    for key, (shape, _) in shapes(directory, name).items()
  }


def shapes(directory: storage.Directory, name: str) -> dict:
  """Returns (shape, dtype) of each array of a file, by Hugging Face's names."""
  with opened(directory, name) as file:
    slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
    return {
      key: (tuple(array.get_shape()), array.get_dtype())
      for key, array in slices.items()
    }


@contextlib.contextmanager
def opened(directory: storage.Directory, name: str):
  """Gives an open file of safetensors."""
  import ml_dtypes  # noqa: F401  registers bfloat16 with numpy
  import safetensors

  try:
    with (
      directory.local_copy(name) as path,
      safetensors.safe_open(path, framework="np") as file,
    ):
      yield file
  except (safetensors.SafetensorError, OSError, TypeError) as error:
    raise CheckpointError(
      f"{directory}/{name} is truncated or damaged "
      f"({storage.first_line(error)}): copy it again"
    ) from error


def write(
  directory: storage.Directory,
  tensors: Mapping[str, np.ndarray],
  contents: Mapping[str, bytes],
) -> None:
  """Writes a new local directory, whole or not at all.

  Args:
    directory: the directory to create; nothing exists there.
    tensors: the arrays of `WEIGHTS`, by Hugging Face's names.
    contents: {name: content} of the other files.
  """
  from safetensors.numpy import save_file

  with files.make_whole_folder(directory.url) as folder:
    save_file(dict(tensors), folder / WEIGHTS, metadata={"format": "pt"})
    for name, content in contents.items():
      with files.name_file_in_errors(folder / name):
        (folder / name).write_bytes(content)
