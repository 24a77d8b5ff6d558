"""Directories on local disk and on Google Cloud Storage, in one shape.

Both go through tensorstore, which reads public buckets without credentials;
`etils.epath` would need TensorFlow or gcsfs for `gs://`.
"""

from collections.abc import Callable
import contextlib
import functools
import json
import os
import re
import tempfile

from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)

_GCS = re.compile(r"gs://([^/]+)/?(.*)", re.DOTALL)

# About half a minute without a network; the default is a quarter of an hour.
_RETRIES = {"gcs_request_retries": {"max_retries": 5}}


def kvstore_spec(url: str) -> dict:
  """Returns tensorstore's name of a directory (or object) on `gs://`."""
  bucket, path = _GCS.fullmatch(url).groups()
  return {"driver": "gcs", "bucket": bucket, "path": path}


@functools.cache
def context():
  """Returns the tensorstore context shared by everything read here."""
  import tensorstore as ts

  return ts.Context(_RETRIES)


class Directory:
  """A directory of files, local or remote.

  Attributes:
    url: where it is, without a trailing slash; local ones are absolute.
    remote: True on `gs://`.
  """

  def __init__(self, path: str | os.PathLike):
    path = os.fspath(path)
    self.remote = path.startswith("gs://")
    if self.remote and not _GCS.fullmatch(path):
      raise CheckpointError(f"{path!r} names no bucket: want gs://bucket/path")
    if not self.remote and "://" in path:
      raise CheckpointError(
        f"{path!r}: checkpoints are read from local paths and gs:// only"
      )
    local = os.path.abspath(os.path.expanduser(path))
    self.url = path.rstrip("/") if self.remote else local

  def __truediv__(self, name: str) -> "Directory":
    return Directory(f"{self.url}/{name}")

  def __str__(self) -> str:
    return self.url

  @property
  def name(self) -> str:
    """Its last component."""
    return self.url.rsplit("/", 1)[-1]

  def kvstore(self) -> dict:
    """Returns the tensorstore key-value store whose keys are its files."""
    local = {"driver": "file", "path": self.url}
    spec = kvstore_spec(self.url) if self.remote else local
    path = spec["path"].rstrip("/")
    return spec | {"path": f"{path}/" if path else ""}

  def _ask(self, what: str, call):
    """Returns the result of a call of its key-value store.

    Raises:
      CheckpointError: it says what cannot be done, e.g. "list gs://a/b".
    """
    import tensorstore as ts

    try:
      store = ts.KvStore.open(self.kvstore(), context=context()).result()
      return call(store).result()
    except ValueError as error:
      raise CheckpointError(f"cannot {what}: {first_line(error)}") from error

  def read(self, name: str) -> bytes | None:
    """Returns the content of a file, or None where there is none."""
    result = self._ask(f"read {self}/{name}", lambda store: store.read(name))
    return result.value if result.state == "value" else None

  def read_json(self, name: str, parse: Callable = dict):
    """Returns what `parse` makes of the JSON in a file.

    Raises:
      CheckpointNotFoundError: there is no such file.
      CheckpointError: it is no JSON, or `parse` cannot use it.
    """
    content = self.read(name)
    if content is None:
      raise CheckpointNotFoundError(f"{self}/{name} is missing")
    try:
      return parse(json.loads(content))
    except CheckpointError:
      raise
    except (ValueError, KeyError, TypeError, SyntaxError) as error:
      raise CheckpointError(
        f"{self}/{name} cannot be parsed: {error!r}"
      ) from error

  def has(self, name: str) -> bool:
    """Says whether it holds a file of this name."""
    if not self.remote:
      return os.path.isfile(f"{self}/{name}")
    import tensorstore as ts

    key = ts.KvStore.KeyRange(name, name + "\0")  # this key alone
    return bool(self._ask(f"list {self}", lambda store: store.list(key)))

  def refuse_existing(self) -> None:
    """Raises CheckpointError where there is anything under this name."""
    if self.files() if self.remote else os.path.lexists(self.url):
      raise CheckpointError(
        f"{self} exists already; remove it or give another path"
      )

  def files(self) -> list[str]:
    """Returns the files under it, relative, those of subdirectories too."""
    keys = self._ask(f"list {self}", lambda store: store.list())
    return sorted(key.decode() for key in keys)

  def children(self) -> list[str]:
    """Returns the names directly in it: files and directories."""
    if self.remote:
      return sorted({key.split("/", 1)[0] for key in self.files()})
    return sorted(os.listdir(self.url)) if os.path.isdir(self.url) else []

  def write(self, name: str, content: bytes) -> None:
    """Writes one file, whole or not at all."""
    what = f"write {self}/{name}"
    self._ask(what, lambda store: store.write(name, content))

  @contextlib.contextmanager
  def local_copy(self, name: str):
    """Gives a local path of a file: itself, or a temporary copy of it."""
    if not self.remote:
      yield f"{self}/{name}"
      return
    with tempfile.NamedTemporaryFile() as file:
      file.write(self.read(name) or b"")
      file.flush()
      yield file.name


def first_line(error: BaseException) -> str:
  """Returns an error's message without tensorstore's codes and specs."""
  text = str(error).strip().split("\n", 1)[0]
  text = re.sub(r"^[A-Z]+(_[A-Z]+)*: ", "", text)
  return re.sub(r"\s*\[(tensorstore_spec|source locations)=.*", "", text)
