"""Checks GGUF headers that promise more than a file or model can have."""

import struct

import pytest

from speccascade.checkpoints import CheckpointError, gguf_header, load
from tests.checkpoints.gguf_files import (
  FAULTS,
  STRING,
  file_of,
  setting,
  several,
  text,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_no_file_can_hold_is_refused(tmp_path, fault):
  content, message = FAULTS[fault]
  path = tmp_path / "a.gguf"
  path.write_bytes(content)
  with pytest.raises(CheckpointError) as error:
    gguf_header.check(path, "a.gguf")
  line = str(error.value)
  assert line.startswith("a.gguf ")
  assert message in line
  assert "\n" not in line


def test_a_right_header_is_gone_through(tmp_path):
  arrays = text(b"a") + struct.pack("<IQQIQ", 2, 3, 4, 0, 0)
  settings = (
    setting(b"a.flag", 7, b"\1"),
    setting(b"a.text", STRING, text("ä".encode())),
    several(STRING, 2, text(b"one") + text(b"")),
    several(6, 3, b"\0" * 12),
  )
  path = tmp_path / "a.gguf"
  path.write_bytes(file_of(*settings, num_arrays=1, arrays=arrays))
  gguf_header.check(path, "a.gguf")
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(CheckpointError, match="is truncated or damaged"):
    gguf_header.check(path, "a.gguf")


def test_loading_checks_it_first(tmp_path):
  pytest.importorskip("gguf")
  path = tmp_path / "a.gguf"
  path.write_bytes(FAULTS["10^9 bytes"][0])
  with pytest.raises(CheckpointError, match="1,000,000,000 items"):
    load(path)
