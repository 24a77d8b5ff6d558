"""Writes GGUF files byte by byte: parts of right files, and wrong files."""

import struct

STRING, LIST = 8, 9


def text(content):
  return struct.pack("<Q", len(content)) + content


def setting(name, kind, value):
  return text(name) + struct.pack("<I", kind) + value


def several(kind, count, items=b""):
  return setting(b"a.list", LIST, struct.pack("<IQ", kind, count) + items)


def file_of(*settings, version=3, num_arrays=0, arrays=b"", num_settings=None):
  num = len(settings) if num_settings is None else num_settings
  head = b"GGUF" + struct.pack("<IQQ", version, num_arrays, num)
  return head + b"".join(settings) + arrays


def padded(content):
  """A file of 1,069 bytes, as a small one has room for data."""
  return content.ljust(1069, b"\0")


# Wrong files, with the pattern of the message about each.
FAULTS = {
  "empty": (b"", "has 0 bytes, and the header"),
  "short": (b"GGUF\3\0\0\0", "has 8 bytes, and the header"),
  "other": (b"PK\3\4".ljust(99), "does not begin with GGUF"),
  "2^62 bytes": (padded(file_of(several(0, 2**62))), "has 4,611,686,018,427,"),
  "10^9 bytes": (padded(file_of(several(0, 10**9))), "1,000,000,000 items"),
  "10^9 texts": (padded(file_of(several(8, 10**9))), "1,000,000,000 items"),
  "2000 texts": (padded(file_of(several(8, 2000))), "is truncated or damaged"),
  "2000 bytes": (padded(file_of(several(0, 2000))), "be 2,000 bytes from byte"),
  "lists of lists": (padded(file_of(several(LIST, 2))), "value of type 9 at"),
  "no such type": (padded(file_of(setting(b"a", 77, b""))), "of type 77 at"),
  "a long text": (
    padded(file_of(setting(b"a", STRING, struct.pack("<Q", 2**63)))),
    "a text should be 9,223,372,036,854,775,808 bytes",
  ),
  "2^60 settings": (
    padded(file_of(num_settings=2**60)),
    "606,846,976 settings",
  ),
  "2^60 arrays": (padded(file_of(num_arrays=2**60)), "606,846,976 arrays"),
  "2^31 dimensions": (
    padded(file_of(num_arrays=1, arrays=text(b"a") + b"\0\0\0\x80")),
    "an array has 2,147,483,648 dimensions, want 4 at most",
  ),
}
