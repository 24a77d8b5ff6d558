"""Control characters of data are shown in messages and output, not sent."""

import os
import subprocess
import sys

import pytest

from speccascade.cli import main as cli_main
from speccascade.runtime import shown_text

HOSTILE = "a\x1b]0;title\x07b\x9b2Jc\u202ed\u2066e\rf\x00g\ud800"
SHOWN = r"a\x1b]0;title\x07b\x9b2Jc\u202ed\u2066e\rf\x00g\ud800"


def test_control_characters_are_shown():
  assert shown_text.visible(HOSTILE) == SHOWN
  # Letters of any language, and lines and tabs, stay as they are.
  for text in ("Ärzte\tund\nPferde", "שלום", "العربية", "👩‍🔬", "中文"):
    assert shown_text.visible(text) == text
  assert shown_text.one_line("\n a \r\n b\x1b \n") == r"a b\x1b"


def test_a_message_is_one_line_without_control_characters(capsys):
  for error in (f"no\nsuch {HOSTILE}", ValueError(f"no\nsuch {HOSTILE}")):
    assert cli_main.fail(error) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith("\n")
    assert said[:-1].isprintable()
    assert r"\x1b]0;title\x07" in said


PRINTS = """
import sys
from speccascade import cli
def main(argv=None):
  parser = cli.Parser("x", "doc")
  return parser.run(lambda: print({text!r}), argv)
sys.exit(main([]))
"""


def test_what_a_command_prints_is_shown():
  code = PRINTS.format(text=HOSTILE)
  done = subprocess.run([sys.executable, "-c", code], capture_output=True)
  assert done.returncode == 0, done.stderr
  assert done.stdout.decode() == SHOWN + "\n"


needs_full = pytest.mark.skipif(
  not os.path.exists("/dev/full"), reason="Linux alone has /dev/full"
)


@needs_full
@pytest.mark.parametrize(
  "command",
  [
    ["-m", "speccascade"],
    ["-m", "speccascade", "--help"],
    ["-m", "speccascade.decode", "--help"],
    ["-m", "speccascade.study.report.headline", "--help"],
    ["-m", "speccascade.study.report.methods_page", "--table"],
    ["-m", "speccascade.judge", "--help"],
    ["-c", PRINTS.format(text="short")],
    ["-c", PRINTS.format(text="long" * 10_000)],
  ],
  ids=" ".join,
)
def test_a_full_disk_under_standard_output_is_named(command):
  with open("/dev/full", "wb") as full:
    done = subprocess.run(
      [sys.executable, *command],
      stdout=full,
      stderr=subprocess.PIPE,
      text=True,
    )
  assert done.returncode == 1
  assert done.stderr == (
    "error: standard output (/dev/full): No space left on device\n"
  )


def test_a_reader_that_stops_is_not_an_error():
  code = PRINTS.format(text="long" * 100)
  reader, writer = os.pipe()
  os.close(reader)
  done = subprocess.run(
    [sys.executable, "-c", code],
    stdout=writer,
    stderr=subprocess.PIPE,
    env={k: x for k, x in os.environ.items() if k != "PYTHONUNBUFFERED"},
  )
  os.close(writer)
  assert (done.returncode, done.stderr) == (0, b"")
