"""The counts in the header of a GGUF file, checked before anything is read.

The package `gguf` believes what a header says: it makes an object for each item
of an array, as many as are promised, past the end of the file too. So a damaged
file of a kilobyte can fill the memory.
"""

import mmap
import os
import struct

from speccascade.checkpoints.errors import CheckpointError

_MAGIC = b"GGUF"
_START = 24  # bytes of the magic, the version and two counts
_STRING, _ARRAY = 8, 9  # types of values
# Bytes of a value, by the number of its type.
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MOST_DIMENSIONS = 4
# Settings and arrays of a file; the largest Llama has some 1,200 arrays.
_MOST_ENTRIES = 2**16
# Items of all arrays of the metadata; Llama 3's tokenizer has 540,000. Each
# costs the package up to 1,400 bytes.
_MOST_ITEMS = 2**20
_MOST_BYTES = 2**28  # of a header


def check(path: str | os.PathLike, where: str) -> None:
  """Checks that a file holds what its header promises, and no more than fits.

  The values themselves, and the data of arrays after the header, are not read.

  Args:
    path: of a local file.
    where: the file, for messages.

  Raises:
    CheckpointError: it is no GGUF file, is cut off, or has a count that no file
      of its size, or no model, can have.
  """
  with open(path, "rb") as file:
    size = os.fstat(file.fileno()).st_size
    if size < _START:
      raise CheckpointError(
        f"{where} has {size} bytes, and the header of a GGUF file has {_START}"
        " or more: copy it again"
      )
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
      _Walk(content, where).whole_header()


class _Walk:
  """Goes through a header once.

  Args:
    content: the file.
    where: the file, for messages.
  """

  def __init__(self, content: mmap.mmap, where: str):
    self._content, self._where = content, where
    self._place, self._items, self._order = 0, 0, "<"

  def whole_header(self):
    """Goes to the end of the header; raises CheckpointError."""
    if self._content[: len(_MAGIC)] != _MAGIC:
      raise CheckpointError(
        f"{self._where} does not begin with GGUF: it is no GGUF file"
      )
    self._skip(len(_MAGIC), "the magic")
    if self._number("I", "the version") & 0xFFFF == 0:
      self._order = ">"  # written where bytes have the other order
    arrays = self._number("Q", "the count of arrays")
    settings = self._number("Q", "the count of settings")
    for count, what in ((arrays, "arrays"), (settings, "settings")):
      if count > _MOST_ENTRIES:
        raise self._damaged(f"says that it has {count:,} {what}", _MOST_ENTRIES)
    for _ in range(settings):
      self._string("the name of a setting")
      self._value(self._number("I", "the type of a setting"))
    for _ in range(arrays):
      self._string("the name of an array")
      dimensions = self._number("I", "the dimensions of an array")
      if dimensions > _MOST_DIMENSIONS:
        raise self._damaged(
          f"says that an array has {dimensions:,} dimensions", _MOST_DIMENSIONS
        )
      # Each dimension; then the type and the place of the data.
      self._skip(8 * dimensions + 4 + 8, "the description of an array")

  def _value(self, kind: int):
    if kind != _ARRAY:
      self._plain(kind, 1)
      return
    kind = self._number("I", "the type of a list")
    count = self._number("Q", "the count of a list")
    self._items += count
    if self._items > _MOST_ITEMS:
      raise self._damaged(
        f"says that a list of its metadata has {count:,} items", _MOST_ITEMS
      )
    self._plain(kind, count)

  def _plain(self, kind: int, count: int):
    """Goes past values that have no parts."""
    if kind == _STRING:
      for _ in range(count):
        self._string("a text")
    elif kind in _WIDTHS:
      self._skip(count * _WIDTHS[kind], "values")
    else:
      raise CheckpointError(
        f"{self._where} has a value of type {kind} at byte {self._place:,},"
        " which is not read: it is damaged, copy it again"
      )

  def _string(self, what: str):
    self._skip(self._number("Q", f"the length of {what}"), what)

  def _number(self, form: str, what: str) -> int:
    """Returns an integer: "I" of 32 bits or "Q" of 64, without sign."""
    place = self._skip(struct.calcsize(f"<{form}"), what)
    return struct.unpack_from(self._order + form, self._content, place)[0]

  def _skip(self, size: int, what: str) -> int:
    """Goes past some bytes; returns where they begin."""
    begin, end = self._place, self._place + size
    if end > len(self._content):
      raise CheckpointError(
        f"{self._where} is truncated or damaged: {what} should be"
        f" {size:,} bytes from byte {begin:,} on, and the file has"
        f" {len(self._content):,}: copy it again"
      )
    if end > _MOST_BYTES:
      raise self._damaged(f"has a header of {end:,} bytes or more", _MOST_BYTES)
    self._place = end
    return begin

  def _damaged(self, what: str, most: int) -> CheckpointError:
    return CheckpointError(
      f"{self._where} {what}, want {most:,} at most: it is damaged, copy it"
      " again"
    )
