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
import stat
import tempfile

from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)

_GCS = re.compile(r"gs://([^/]+)/?(.*)", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

# What a directory of Hugging Face's names its vocabulary.
SENTENCE_PIECE, TOKENIZER = "spiece.model", "tokenizer.json"
# About half a minute without a network; the default is a quarter of an hour.
_RETRIES = {"gcs_request_retries": {"max_retries": 5}}
_FIRST_CONTACT_S = 8.0  # with a bucket, where it can be reached at all
_INDEX_BYTES = 2**28  # more than the JSON of any checkpoint


def kvstore_spec(url: str) -> dict:
  """Returns tensorstore's name of a directory (or object) on `gs://`."""
  bucket, path = _GCS.fullmatch(url).groups()
  return {"driver": "gcs", "bucket": bucket, "path": path}


@functools.cache
def context():
  """Returns the tensorstore context shared by everything read here."""
  import tensorstore as ts

  return ts.Context(_RETRIES)


@functools.cache
def _reach(bucket: str) -> None:
  """Asks a bucket for one name, so that one out of reach is told in seconds.

  Raises:
    CheckpointError: it cannot be reached, or wants credentials.
  """
  import tensorstore as ts

  from speccascade.cli import quiet

  name = ts.KvStore.KeyRange("a", "a\0")
  try:
    with quiet.native_logs():  # where there are no credentials, at length
      store = ts.KvStore.open(kvstore_spec(bucket), context=context()).result()
      store.list(name).result(timeout=_FIRST_CONTACT_S)
  except (ValueError, TimeoutError) as error:
    reason = first_line(error) or f"no answer in {_FIRST_CONTACT_S:.0f} s"
    raise CheckpointError(
      f"cannot reach {bucket}: {reason}; copy what is wanted where there is a "
      f"network (gcloud storage cp -r {bucket}/... FOLDER) and give the copy; a"
      " private bucket wants gcloud auth application-default login first"
    ) from error


class Directory:
  """A directory of files, local or remote.

  Attributes:
    url: where it is, without a trailing slash; local ones are absolute.
    remote: True on `gs://`.

  Raises:
    CheckpointError: the path is none, or of a scheme that is not supported.
  """

  def __init__(self, path: str | os.PathLike):
    if not isinstance(path, str | os.PathLike):
      raise CheckpointError(f"{path!r:.60} is no path of a directory")
    path = os.fspath(path)
    self.remote = path.startswith("gs://")
    if self.remote and not _GCS.fullmatch(path):
      raise CheckpointError(f"{path!r} names no bucket: want gs://bucket/path")
    if not self.remote and (scheme := _SCHEME.match(path)):
      raise CheckpointError(
        f"{path!r}: {scheme[0]} is not supported, local paths and gs:// are: "
        "copy it there"
      )
    local = os.path.abspath(os.path.expanduser(path))
    self.url = path.rstrip("/") if self.remote else local
    try:
      longest = max(map(len, os.fsencode(local).split(b"/")))
      is_path = path and "\0" not in path and longest < 256
      is_path = is_path and len(os.fsencode(local)) < 4096
    except UnicodeEncodeError:
      is_path = False
    if not is_path:
      what = f"{path!r:.60} of {len(path):,} characters" if path else "''"
      raise CheckpointError(f"{what} is no path of a directory")

  def __truediv__(self, name: str) -> "Directory":
    return Directory(f"{self.url}/{name}")

  def __str__(self) -> str:
    return self.url

  def kvstore(self) -> dict:
    """Returns the tensorstore key-value store whose keys are its files."""
    local = {"driver": "file", "path": self.url}
    spec = kvstore_spec(self.url) if self.remote else local
    path = spec["path"].rstrip("/")
    return spec | {"path": f"{path}/" if path else ""}

  def reach(self) -> None:
    """Raises CheckpointError where it is in a bucket out of reach."""
    if self.remote:
      _reach("gs://" + _GCS.fullmatch(self.url)[1])

  def _ask(self, what: str, call):
    """Returns the result of a call of its key-value store.

    Raises:
      CheckpointError: it says what cannot be done, e.g. "list gs://a/b".
    """
    import tensorstore as ts

    self.reach()
    try:
      store = ts.KvStore.open(self.kvstore(), context=context()).result()
      return call(store).result()
    except ValueError as error:
      raise CheckpointError(f"cannot {what}: {first_line(error)}") from error

  def check_file(self, name: str, most: int | None = None) -> None:
    """Checks that a local name, if anything has it, is that of a regular file.

    Tensorstore waits for a pipe, and reads a device, a directory and a link to
    nothing as a file that is not there; of an array's chunk that means zeros.

    Args:
      name: of the file.
      most: its most bytes.

    Raises:
      CheckpointError: it is something else, or larger.
    """
    path = f"{self}/{name}"
    if self.remote or not os.path.lexists(path):
      return
    try:
      status = os.stat(path)
    except OSError as error:
      raise CheckpointNotFoundError(
        f"{path} is a link to nothing that can be read ({error.strerror}): copy"
        " the checkpoint again, with what its links name"
      ) from error
    if not stat.S_ISREG(status.st_mode):
      raise CheckpointError(f"{path} is no regular file: copy it again")
    if most is not None and status.st_size > most:
      raise CheckpointError(
        f"{path} has {status.st_size:,} bytes, want {most:,} at most"
      )

  def check_files(self) -> int:
    """Checks that local files under it are regular; returns all bytes."""
    if os.path.isfile(self.url):
      return os.path.getsize(self.url)
    seen, num_bytes = set(), 0  # a link may lead back
    walk = os.walk("" if self.remote else self.url, followlinks=True)
    for folder, folders, names in walk:
      status = os.stat(folder)
      if (status.st_dev, status.st_ino) in seen:
        folders.clear()
        continue
      seen.add((status.st_dev, status.st_ino))
      for name in names:
        Directory(folder).check_file(name)
        num_bytes += os.path.getsize(os.path.join(folder, name))
    return num_bytes

  def read(self, name: str) -> bytes | None:
    """Returns the content of a file, or None where there is none."""
    self.check_file(name)
    result = self._ask(f"read {self}/{name}", lambda store: store.read(name))
    return result.value if result.state == "value" else None

  def read_json(self, name: str, parse: Callable = dict):
    """Returns what `parse` makes of the JSON in a file.

    Raises:
      CheckpointNotFoundError: there is no such file.
      CheckpointError: it is no JSON, or `parse` cannot use it.
    """
    self.check_file(name, _INDEX_BYTES)
    content = self.read(name)
    if content is None:
      raise CheckpointNotFoundError(f"{self}/{name} is missing")
    with parsing(f"{self}/{name}"):
      return parse(json.loads(content))

  def has(self, name: str) -> bool:
    """Says whether it holds a file of this name."""
    if not self.remote:
      return os.path.isfile(f"{self}/{name}")
    import tensorstore as ts

    key = ts.KvStore.KeyRange(name, name + "\0")  # this key alone
    return bool(self._ask(f"list {self}", lambda store: store.list(key)))

  def vocabulary(self) -> str | None:
    """Returns the path of the vocabulary in it; None where there is none.

    T5's, in SentencePiece, goes before a tokenizer of Hugging Face.
    """
    names = filter(self.has, (SENTENCE_PIECE, TOKENIZER))
    return next((f"{self}/{name}" for name in names), None)

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


def read_vocabulary(path: str | os.PathLike) -> bytes:
  """Returns the file of a SentencePiece model, local or on `gs://`."""
  folder, name = os.path.split(os.fspath(path))
  model = Directory(folder or ".").read(name)
  if model is None:
    raise CheckpointNotFoundError(f"no vocabulary model at {path}")
  return model


@contextlib.contextmanager
def parsing(where: str):
  """Makes what a file of the wrong kind raises one line that names the file."""
  try:
    yield
  except CheckpointError:
    raise
  except (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,  # of brackets too deep for Python's parser
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
  ) as error:
    reason = f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")
    raise CheckpointError(
      f"{where} cannot be parsed ({reason:.200})"
    ) from error


def first_line(error: BaseException) -> str:
  """Returns an error's message without tensorstore's codes and specs."""
  text = str(error).strip().split("\n", 1)[0]
  text = re.sub(r"^[A-Z]+(_[A-Z]+)*: ", "", text)
  return re.sub(r"\s*\[(tensorstore_spec|source locations)=.*", "", text)
