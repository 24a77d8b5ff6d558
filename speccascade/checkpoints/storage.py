"""Reads and writes directories, on a local disk or on Google Cloud Storage.

Both go through tensorstore, which reads public buckets without credentials.
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
from speccascade.settings import fields

_GCS = re.compile(r"gs://([^/]+)/?(.*)", re.DOTALL)
# Google's rules for the name of a bucket.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

# Names of the vocabulary in a directory of Hugging Face.
SENTENCE_PIECE, TOKENIZER = "spiece.model", "tokenizer.json"
PIECES = "tokenizer.model"  # a SentencePiece model of a decoder-only model
TOKENIZER_CONFIG = "tokenizer_config.json"
BYTE_TOKENIZER = "ByT5Tokenizer"  # which has no further file
# Without a network, five retries take about half a minute. The default number
# of retries takes a quarter of an hour.
_RETRIES = {"gcs_request_retries": {"max_retries": 5}}
_FIRST_CONTACT_S = 8.0  # longer than the first answer of a bucket takes
_INDEX_BYTES = 2**28  # more than the JSON of any checkpoint has


def kvstore_spec(url: str) -> dict:
  """Returns tensorstore's spec of a directory, or object, on `gs://`."""
  bucket, path = _GCS.fullmatch(url).groups()
  return {"driver": "gcs", "bucket": bucket, "path": path}


@functools.cache
def context():
  """Returns the tensorstore context that all reads and writes share."""
  import tensorstore as ts

  return ts.Context(_RETRIES)


@functools.cache
def _reach(bucket: str) -> None:
  """Asks a bucket for one name, once in a process."""
  # A bucket that cannot be reached is reported in seconds. Tensorstore's own
  # retries take longer, for every read.
  import tensorstore as ts

  from speccascade.runtime import standard_error

  name = ts.KvStore.KeyRange("a", "a\0")  # the key "a" alone
  try:
    # Without credentials, Google's library writes a page about them.
    with standard_error.native_logs():
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
  """A directory of files, on a local disk or on `gs://`.

  Attributes:
    url: the path, without a slash at its end. A local path is absolute.
    remote: whether the directory is on `gs://`.

  Raises:
    CheckpointError: the path is not a path of a directory, or has a scheme that
      is not supported.
  """

  def __init__(self, path: str | os.PathLike):
    if not isinstance(path, str | os.PathLike):
      raise CheckpointError(f"{path!r:.60} is not a path of a directory")
    path = os.fspath(path)
    self.remote = path.startswith("gs://")
    if self.remote:
      named = _GCS.fullmatch(path)
      if not named:
        raise CheckpointError(
          f"{path!r:.99} names no bucket: want gs://bucket/path"
        )
      if not _BUCKET.fullmatch(named[1]):
        raise CheckpointError(
          f"{path!r:.99} names the bucket {named[1]!r:.60}, which cannot be: a"
          " bucket has 3 to 222 small letters, digits, dots, dashes and"
          " underscores"
        )
    if not self.remote and (scheme := _SCHEME.match(path)):
      raise CheckpointError(
        f"{path!r}: {scheme[0]} is not supported, local paths and gs:// are: "
        "copy it there"
      )
    local = os.path.abspath(os.path.expanduser(path))
    self.url = path.rstrip("/") if self.remote else local
    if not path or not _is_path(local):
      shown = f"{path!r:.60} of {len(path):,} characters" if path else "''"
      raise CheckpointError(f"{shown} is not a path of a directory")
    if "\\" in self.url or not fields.is_utf8(self.url):
      raise CheckpointError(
        f"{path!r:.99} has a backslash, or a byte that is not UTF-8, which"
        " tensorstore takes in no path: rename it"
      )

  def __truediv__(self, name: str) -> "Directory":
    return Directory(f"{self.url}/{name}")

  def __str__(self) -> str:
    return self.url

  def kvstore(self) -> dict:
    """Returns tensorstore's spec of a store whose keys are the files."""
    local = {"driver": "file", "path": self.url}
    spec = kvstore_spec(self.url) if self.remote else local
    path = spec["path"].rstrip("/")
    return spec | {"path": f"{path}/" if path else ""}

  def reach(self) -> None:
    """Raises CheckpointError if the directory's bucket cannot be reached."""
    if self.remote:
      _reach("gs://" + _GCS.fullmatch(self.url)[1])

  def _ask(self, action: str, call: Callable):
    """Returns the result of a call of the directory's key-value store."""
    import tensorstore as ts

    self.reach()
    try:
      store = ts.KvStore.open(self.kvstore(), context=context()).result()
      return call(store).result()
    except ValueError as error:
      raise CheckpointError(f"cannot {action}: {first_line(error)}") from error

  def check_file(self, name: str, most: int | None = None) -> None:
    """Checks that a local name is a regular file, or that nothing has the name.

    Tensorstore waits for a pipe forever. It takes a device, a directory and a
    link to nothing for files that do not exist. A chunk of an array that does
    not exist is read as zeros.

    Args:
      name: name of the file.
      most: the most bytes that the file may have; None for any size.

    Raises:
      CheckpointError: it is something else than a regular file, or too large.
    """
    path = f"{self}/{name}"
    # `lexists` is true for a link to nothing, which `exists` takes for no file.
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
      raise CheckpointError(f"{path} is not a regular file: copy it again")
    if most is not None and status.st_size > most:
      raise CheckpointError(
        f"{path} has {status.st_size:,} bytes, want {most:,} at most"
      )

  def check_files(self) -> int:
    """Checks that all local files in the directory are regular files.

    Returns:
      The bytes of all files together; 0 for a directory on `gs://`.

    Raises:
      CheckpointError: something is not a regular file; see `check_file`.
    """
    if self.remote:
      return 0
    if os.path.isfile(self.url):
      return os.path.getsize(self.url)
    seen, num_bytes = set(), 0
    for folder, folders, names in os.walk(self.url, followlinks=True):
      # A link may lead back to a folder above it. The walk would never end.
      status = os.stat(folder)
      if (status.st_dev, status.st_ino) in seen:
        folders.clear()
        continue
      seen.add((status.st_dev, status.st_ino))
      for name in names:
        Directory(folder).check_file(name)
        num_bytes += os.path.getsize(os.path.join(folder, name))
    return num_bytes

  def read(self, name: str, most: int | None = None) -> bytes | None:
    """Returns the content of a file; None if there is no such file.

    Args:
      name: name of the file.
      most: see `check_file`.
    """
    self.check_file(name, most)
    result = self._ask(f"read {self}/{name}", lambda store: store.read(name))
    return result.value if result.state == "value" else None

  def read_json(self, name: str, parse: Callable = dict):
    """Returns the JSON of a file, after `parse` has checked and converted it.

    Args:
      name: name of the file.
      parse: a function from the JSON value to the result.

    Raises:
      CheckpointNotFoundError: there is no such file.
      CheckpointError: the file is not JSON, or `parse` fails.
    """
    content = self.read(name, _INDEX_BYTES)
    if content is None:
      raise CheckpointNotFoundError(f"{self}/{name} is missing")
    with parsing(f"{self}/{name}"):
      return parse(json.loads(content))

  def has(self, name: str) -> bool:
    """Returns whether the directory has a file of this name."""
    if not self.remote:
      return os.path.isfile(f"{self}/{name}")
    import tensorstore as ts

    key = ts.KvStore.KeyRange(name, name + "\0")  # this key alone
    return bool(self._ask(f"list {self}", lambda store: store.list(key)))

  def vocabulary(self) -> str | None:
    """Returns the path of the directory's vocabulary; None if it has none.

    The SentencePiece model of a T5 is taken before a tokenizer of Hugging Face,
    and that one before the SentencePiece model of a decoder-only model. The
    bytes of ByT5 have no file but the settings that name their tokenizer.
    """
    names = filter(self.has, (SENTENCE_PIECE, TOKENIZER, PIECES))
    if name := next(names, None):
      return f"{self}/{name}"
    settings = {}
    if self.has(TOKENIZER_CONFIG):
      settings = self.read_json(TOKENIZER_CONFIG)
    is_bytes = settings.get("tokenizer_class") == BYTE_TOKENIZER
    return f"{self}/{TOKENIZER_CONFIG}" if is_bytes else None

  def refuse_existing(self) -> None:
    """Raises CheckpointError if anything exists at the directory's path."""
    if self.files() if self.remote else os.path.lexists(self.url):
      raise CheckpointError(
        f"{self} exists already; remove it or give another path"
      )

  def files(self) -> list[str]:
    """Returns the relative paths of all files, in subdirectories too."""
    keys = self._ask(f"list {self}", lambda store: store.list())
    return sorted(key.decode() for key in keys)

  def children(self) -> list[str]:
    """Returns the names of the files and directories directly inside."""
    if self.remote:
      return sorted({key.split("/", 1)[0] for key in self.files()})
    return sorted(os.listdir(self.url)) if os.path.isdir(self.url) else []

  def write(self, name: str, content: bytes) -> None:
    """Writes one file, whole or not at all.

    Raises:
      CheckpointError: the file cannot be written.
    """
    action = f"write {self}/{name}"
    self._ask(action, lambda store: store.write(name, content))

  @contextlib.contextmanager
  def local_copy(self, name: str):
    """Gives a local path of a file. A remote file is copied for the block."""
    if not self.remote:
      yield f"{self}/{name}"
      return
    with tempfile.NamedTemporaryFile() as file:
      file.write(self.read(name) or b"")
      file.flush()
      yield file.name


def _is_path(path: str) -> bool:
  """Returns whether a file system can have a path."""
  try:
    encoded = os.fsencode(path)
  except UnicodeEncodeError:
    return False
  longest_name = max(len(name) for name in encoded.split(b"/"))
  # The limits of Linux, in bytes: 255 for a name and 4,095 for a path.
  return "\0" not in path and longest_name < 256 and len(encoded) < 4096


def read_vocabulary(path: str | os.PathLike) -> bytes:
  """Returns the bytes of a SentencePiece model, local or on `gs://`.

  Raises:
    CheckpointNotFoundError: there is no file at the path.
  """
  folder, name = os.path.split(os.fspath(path))
  model = Directory(folder or ".").read(name)
  if model is None:
    raise CheckpointNotFoundError(f"no vocabulary model at {path}")
  return model


@contextlib.contextmanager
def parsing(where: str):
  """Turns the errors of parsing a damaged file into one line that names it.

  Args:
    where: the file.

  Raises:
    CheckpointError: the block raised an error that damage can cause.
  """
  try:
    yield
  except CheckpointError:
    raise
  except (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,  # Python's parser raises it for deep brackets.
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
  """Returns the first line of an error's message.

  Tensorstore's messages begin with a code and end with a spec in JSON. Both are
  left out.
  """
  text = str(error).strip().split("\n", 1)[0]
  text = re.sub(r"^[A-Z]+(_[A-Z]+)*: ", "", text)
  return re.sub(r"\s*\[(tensorstore_spec|source locations)=.*", "", text)
