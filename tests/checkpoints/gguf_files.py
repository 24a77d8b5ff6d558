"""Writes GGUF files byte by byte: parts of right files, and wrong files."""

import struct

STRING, LIST = 8, 9
DEEPER = struct.pack("<IQ", LIST, 1)  # a list of one list


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


# Wrong files, with a part of the message about each.
PAST_END = "is truncated or damaged"
FAULTS = {
  "empty": (b"", "cannot be parsed"),
  "short": (b"GGUF\3\0\0\0", PAST_END),
  "other": (b"PK\3\4".ljust(99), "magic invalid"),
  "2^62 bytes": (padded(file_of(several(0, 2**62))), PAST_END),
  "10^9 bytes": (padded(file_of(several(0, 10**9))), PAST_END),
  "10^9 texts": (padded(file_of(several(8, 10**9))), PAST_END),
  "10^9 lists": (padded(file_of(several(LIST, 10**9))), PAST_END),
  "2000 texts": (padded(file_of(several(8, 2000))), PAST_END),
  "2000 bytes": (padded(file_of(several(0, 2000))), PAST_END),
  "deep lists": (file_of(several(LIST, 1, 5000 * DEEPER)), "RecursionError"),
  "no such type": (padded(file_of(setting(b"a", 77, b""))), "is not a valid"),
  "a long text": (
    padded(file_of(setting(b"a", STRING, struct.pack("<Q", 2**63)))),
    PAST_END,
  ),
  "2^60 settings": (padded(file_of(num_settings=2**60)), "cannot be parsed"),
  "2^60 arrays": (padded(file_of(num_arrays=2**60)), PAST_END),
  "2^31 dimensions": (
    padded(file_of(num_arrays=1, arrays=text(b"a") + b"\0\0\0\x80")),
    PAST_END,
  ),
}
