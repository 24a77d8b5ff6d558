"""Checks the counts in the header of a GGUF file, before the file is read.

The package `gguf` believes the header: it creates an object for each promised
item of a list, past the end of the file too. So a damaged file of one kilobyte
can fill the memory.
"""

import mmap
import os
import struct

from speccascade.checkpoints.errors import CheckpointError

_MAGIC = b"GGUF"
_START = 24  # bytes of the magic, the version and two counts
_STRING, _ARRAY = 8, 9  # types of values
# Bytes of a value without parts, by the number of its type.
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MOST_DIMENSIONS = 4
# The most settings, and the most arrays. The largest Llama has 1,200 arrays.
_MOST_ENTRIES = 2**16
# The most items of all lists of the metadata together. The lists of Llama 3's
# tokenizer have 540,000. Each item costs the package up to 1,400 bytes.
_MOST_ITEMS = 2**20
_MOST_BYTES = 2**28  # of the whole header


def check(path: str | os.PathLike, where: str) -> None:
  """Checks that a file has everything that its header promises.

  The values themselves, and the data of arrays after the header, are not read.

  Args:
    path: path of a local file.
    where: the file, for messages.

  Raises:
    CheckpointError: the file is no GGUF file, is cut off, or has a count that
      no file of its size, or no model, can have.
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
  """Goes through a header once, from its first byte to its last."""

  def __init__(self, content: mmap.mmap, where: str):
    self._content, self._where = content, where
    self._place = 0  # the byte that comes next
    self._num_items = 0  # of all lists so far
    self._order = "<"  # of the bytes of a number

  def whole_header(self):
    """Goes to the end of the header; CheckpointError if it is damaged."""
    if self._content[: len(_MAGIC)] != _MAGIC:
      raise CheckpointError(
        f"{self._where} does not begin with GGUF: it is no GGUF file"
      )
    self._skip(len(_MAGIC), "the magic")
    # A small version reads as a large number if a machine of the other byte
    # order wrote the file.
    if self._number("I", "the version") & 0xFFFF == 0:
      self._order = ">"
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
      # 8 bytes for each dimension, 4 for the type, 8 for the place of the data.
      self._skip(8 * dimensions + 4 + 8, "the description of an array")

  def _value(self, kind: int):
    """Goes past the value of a setting, of the type with this number."""
    if kind != _ARRAY:
      self._plain(kind, 1)
      return
    kind = self._number("I", "the type of a list")
    count = self._number("Q", "the count of a list")
    self._num_items += count
    if self._num_items > _MOST_ITEMS:
      raise self._damaged(
        f"says that a list of its metadata has {count:,} items", _MOST_ITEMS
      )
    self._plain(kind, count)

  def _plain(self, kind: int, count: int):
    """Goes past `count` values that have no parts."""
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
    """Goes past a text: its length, then its bytes."""
    self._skip(self._number("Q", f"the length of {what}"), what)

  def _number(self, form: str, what: str) -> int:
    """Reads an integer without sign: "I" of 32 bits, or "Q" of 64 bits."""
    place = self._skip(struct.calcsize(f"<{form}"), what)
    return struct.unpack_from(self._order + form, self._content, place)[0]

  def _skip(self, size: int, what: str) -> int:
    """Goes past `size` bytes, and returns the place of the first of them."""
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
    """Returns the error for a count that is too large."""
    return CheckpointError(
      f"{self._where} {what}, want {most:,} at most: it is damaged, copy it"
      " again"
    )
