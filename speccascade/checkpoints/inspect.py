"""Prints the contents of a checkpoint, without reading its arrays.

  python -m speccascade.checkpoints.inspect \\
    --source=gs://t5-data/pretrained_models/t5x/t5_1_1_small/checkpoint_1000000

The source is anything that `speccascade.checkpoints.load` reads. Of a model on
Hugging Face's hub, such as google/flan-t5-small, only the settings and the
headers of the weights are downloaded. The
architecture is printed in the form of a gin file. With --check every array is
read too, the optimizer's arrays included, so that damage is found.
"""

from collections.abc import Mapping, Sequence
import math
import os
import sys

from speccascade.checkpoints import (
  adafactor_slots,
  architecture,
  hub,
  hub_headers,
  orbax_io,
  restore,
  step_metadata,
  storage,
  stored_arrays,
)
from speccascade.checkpoints.errors import CheckpointError
from speccascade.runtime import command_line


def describe(source: str) -> str:
  """Returns the contents of a checkpoint, one fact a line.

  Args:
    source: path that `load` reads.

  Raises:
    CheckpointError: there is no checkpoint, or it is damaged.
  """
  with hub_headers.outline(source) as place:
    return _describe(place, hub.recorded(source))


def _describe(place: str | os.PathLike, name: str) -> str:
  """Returns the contents of a checkpoint at a path, which has a name."""
  directory, layout = restore.resolve(place)
  is_of_hub = os.fspath(place) != name
  facts = {"path": name if is_of_hub else directory, "layout": layout}
  if layout in restore.OTHERS:
    shapes, config = restore.OTHERS[layout].shapes(directory)
    facts["step"] = "not said"
    facts["parameters"] = _describe_size(shapes)
    facts["optimizer"] = "none"
    config_source = restore.OTHERS[layout].SAID_BY
  else:
    arrays, metadata = restore.open_arrays(directory, layout, optimizer=True)
    shapes = {
      name: (array.shape, arrays.dtype(name).name)
      for name, array in arrays.arrays.items()
      if name.startswith("target/")
    }
    facts["step"] = arrays.step()
    facts["parameters"] = _describe_size(shapes)
    facts["optimizer"] = _describe_optimizer(arrays, directory)
    config, config_source = metadata.get("config"), step_metadata.METADATA
    if config is None:
      config_source = "the arrays, with the activations of T5 1.0 or 1.1"
      config = architecture.config_of(arrays.params, where=str(directory))
    else:
      vocabulary = metadata["vocabulary"] or {"path": "not said"}
      facts["vocabulary"] = ", sha256 ".join(vocabulary.values())
      facts["checksums"] = "of each chunk" if arrays.has_checksums else "none"
  if not directory.remote:
    where = "on the hub" if is_of_hub else "on disk"
    facts[where] = f"{directory.check_files():,} bytes"
  lines = [f"{name:<12}{fact}" for name, fact in facts.items()]
  fields = [f"  {name} = {value!r}" for name, value in vars(config).items()]
  lines += [
    f"architecture, by {config_source}:",
    f"config.{type(config).__name__}:",
    *fields,
  ]
  return "\n".join(lines)


def _describe_size(shapes: Mapping[str, tuple]) -> str:
  """Returns in words the size of arrays, {name: (shape, dtype)}."""
  count = sum(math.prod(shape) for shape, _ in shapes.values())
  dtypes = ", ".join(sorted({dtype for _, dtype in shapes.values()}))
  return f"{count:,} in {len(shapes)} arrays of {dtypes}"


def _describe_optimizer(
  arrays: stored_arrays.StoredArrays, directory: storage.Directory
) -> str:
  """Returns in words which states of an optimizer a step directory has."""
  facts, prefix = [], "state/param_states/"
  slots = {
    name.removeprefix(prefix): array
    for name, array in arrays.arrays.items()
    if name.startswith(prefix)
  }
  if slots:
    try:
      slots = architecture.unflatten(slots)
      adafactor_slots.without_momentum(slots, arrays.params, where=arrays.where)
      facts.append("Adafactor's slots")
    except CheckpointError as error:
      facts.append(f"not converted: {error}")
  if directory.has("opt_state/_METADATA"):
    facts.append("optax's state, which training resumes from")
  return "; ".join(facts) or "none"


def check(source: str) -> int:
  """Reads every array of a checkpoint, and returns how many there are.

  Args:
    source: path that `load` reads.

  Raises:
    CheckpointError: an array is missing, damaged, or not as it was written.
  """
  directory, layout = restore.resolve(source)
  if layout in restore.OTHERS:
    params, _ = restore.OTHERS[layout].read(directory)
    return len(architecture.flatten(params))
  arrays, _ = restore.open_arrays(directory, layout, optimizer=True)
  items = [arrays]
  if directory.has("opt_state/_METADATA"):
    items.append(orbax_io.open_item(directory, "opt_state"))
  for item in items:
    item.read(item.arrays)
  return sum(len(item.arrays) for item in items)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line, and returns the exit code."""

  def write(source: str | None, named: str | None, is_checked: bool):
    if (source is None) == (named is None):
      raise CheckpointError("give one source: a path, or ORG/NAME of a model")
    source = named if source is None else source
    print(describe(source))
    if is_checked:
      print(f"{check(source)} arrays were read, and none is damaged")

  parser = command_line.Parser("checkpoints.inspect", __doc__)
  parser.add_argument(
    "named",
    nargs="?",
    metavar="SOURCE",
    help="step, run or Hugging Face directory, local or gs://, or ORG/NAME of"
    " a model on Hugging Face's hub",
  )
  parser.add_argument("--source", help="the same")
  parser.add_argument(
    "--check",
    action="store_true",
    dest="is_checked",
    help="read every array, and report what is damaged",
  )
  return parser.run(write, argv)


if __name__ == "__main__":
  sys.exit(main())
