"""Names of Hugging Face's hub, and paths in its cache.

  org/name                                    a model, the newest revision
  org/name@revision                           a branch, a tag or a commit hash
  hf://datasets/org/name@revision/dir/file    a file of a data set

A local path of the same name is taken first.
"""

import os
import re
from typing import Any, NamedTuple
from urllib import parse as urls

from speccascade.checkpoints.errors import CheckpointError

MODEL, DATASET = "model", "dataset"
_PART = r"[A-Za-z0-9_][\w.-]{0,95}"
_REPO = rf"{_PART}/{_PART}"
_HUB = "hf:/{1,2}"  # a `pathlib.Path` of a name has one slash
_MODEL = re.compile(rf"({_HUB})?({_REPO})(?:@(.+))?", re.ASCII)
_FILE = re.compile(rf"{_HUB}datasets/({_REPO})(?:@([^/]+))?/(.+)", re.ASCII)
# Names of local files and of steps, which no repository has: a path that is
# mistyped is not asked for on a hub.
_LOCAL = re.compile(
  r".*\.(gguf|model|jsonl?|txt|tsv|csv|gz|parquet|gin|msgpack|safetensors|npz)"
  r"|.*/checkpoint_\d+|.*(\.\.|--).*"
)
COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(
  r"(?:.*/)?(model|dataset)s--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})(/.*)?"
)
SHORT = 7  # characters of a commit hash in names of models


class Name(NamedTuple):
  """A name of the hub.

  Attributes:
    repo: "org/name".
    revision: a branch, a tag or a commit hash; "" is the newest one.
    kind: `MODEL` or `DATASET`.
    file: the path of a file in a data set; "" of a model.
  """

  repo: str
  revision: str = ""
  kind: str = MODEL
  file: str = ""

  def __str__(self) -> str:
    name = f"{self.repo}@{self.revision}" if self.revision else self.repo
    return f"hf://datasets/{name}/{self.file}" if self.file else name

  @property
  def place(self) -> dict[str, Any]:
    """The arguments of `huggingface_hub` that say which revision is meant."""
    return {
      "repo_id": self.repo,
      "repo_type": self.kind,
      "revision": self.revision or None,
    }


def parse(path: object) -> Name | None:
  """Returns the name of a model that a path is; None of any other path.

  >>> parse("google/flan-t5-small@main")
  Name(repo='google/flan-t5-small', revision='main', kind='model', file='')
  >>> parse("/home/me/small") is parse("gs://t5-data/small") is None
  True
  """
  text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
  found = isinstance(text, str) and _MODEL.fullmatch(text)
  if not found or _LOCAL.fullmatch(found[2]):
    return None
  if not found[1] and os.path.lexists(text):
    return None
  return Name(found[2], found[3] or "")


def parse_file(path: object) -> Name | None:
  """Returns the name of a data set's file; None of any other path.

  Raises:
    CheckpointError: the path begins with hf:// and names no such file.
  """
  text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
  if not isinstance(text, str) or not text.startswith("hf:/"):
    return None
  found = _FILE.fullmatch(text)
  if not found or ".." in found[3].split("/"):
    raise CheckpointError(
      f"{text!r:.200} names no file of a data set: want"
      " hf://datasets/ORG/NAME/FILE, or hf://datasets/ORG/NAME@REVISION/FILE"
    )
  revision = urls.unquote(found[2] or "")
  return Name(found[1], revision, DATASET, found[3])


def name_of(path: str | os.PathLike | None) -> str | None:
  """Returns "org/name@commit" of a path in the hub's cache; else None.

  >>> name_of(f"/hub/models--google--gemma/snapshots/{'0a' * 20}/config.json")
  'google/gemma@0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a'
  """
  found = _SNAPSHOT.fullmatch(os.fspath(path or ""))
  return f"{found[2]}/{found[3]}@{found[4]}" if found else None


def short_name_of(path: str | os.PathLike) -> str | None:
  """Returns "name@0a1b2c3" of a path in the hub's cache; else None."""
  found = _SNAPSHOT.fullmatch(os.fspath(path))
  return f"{found[3]}@{found[4][:SHORT]}" if found else None
