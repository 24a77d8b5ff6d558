"""What metadata.json says of a checkpoint that this package wrote.

It has the format, the version, the kind of model with its architecture, the
vocabulary, and a checksum of these.
"""

from collections.abc import Mapping
import dataclasses
import json
from typing import Any
import zlib

from speccascade.checkpoints import storage
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.architectures import ARCHITECTURES
from speccascade.models.parameters import Config
from speccascade.settings import fields

FORMAT = "speccascade"
VERSION = 1
METADATA = "metadata/metadata.json"
# The architectures, by the names that are recorded.
KINDS = {row.name: config for config, row in ARCHITECTURES.items()}


def of(
  config: Config,
  *,
  step: int,
  vocabulary: Mapping[str, str] | None,
  extra: Mapping[str, Any] | None,
) -> dict[str, Any]:
  """Returns the content of metadata.json.

  Args:
    config: the architecture.
    step: training steps taken.
    vocabulary: `{"path", "sha256"}` of the vocabulary, or None.
    extra: JSON values, or None.
  """
  metadata = {
    "format": FORMAT,
    "version": VERSION,
    "step": int(step),
    "kind": ARCHITECTURES[type(config)].name,
    "config": dataclasses.asdict(config),
    "vocabulary": dict(vocabulary) if vocabulary else None,
    "extra": dict(extra or {}),
  }
  metadata["crc32"] = _checksum(metadata)
  return metadata


def _checksum(values: Mapping) -> int:
  """Returns a CRC-32 of JSON values that the order of keys does not change."""
  return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def read(directory: storage.Directory) -> dict:
  """Returns metadata.json of a step directory that this package wrote.

  Returns:
    The metadata; `config` is one of `KINDS`.

  Raises:
    CheckpointError: the file cannot be parsed, is not as it was written, or is
      of a later version.
  """
  where = f"{directory}/{METADATA}"

  def parse(metadata: dict) -> dict:
    if metadata["format"] != FORMAT:
      raise CheckpointError(
        f"{where} has format {metadata['format']!r:.60}, want {FORMAT!r}"
      )
    if metadata["version"] > VERSION:
      raise CheckpointError(
        f"{where} is of version {metadata['version']!r:.60}; this package "
        f"reads up to {VERSION}: install a later one"
      )
    if metadata.pop("crc32") != _checksum(metadata):
      raise CheckpointError(f"{where} is not as it was written: copy it again")
    for name, kind in {
      "config": dict,
      "vocabulary": dict | None,
      "extra": dict,
    }.items():
      if not isinstance(metadata.setdefault(name), kind):
        raise TypeError(f"{name} is {metadata[name]!r:.60}")
    vocabulary = metadata["vocabulary"] or {}
    if not all(isinstance(value, str) for value in vocabulary.values()):
      raise TypeError(f"vocabulary is {vocabulary!r:.60}")
    kind = metadata["kind"]
    fields.one_of(list(KINDS), kind=kind)
    return metadata | {"config": fields.build(KINDS[kind], metadata["config"])}

  return directory.read_json(METADATA, parse)
