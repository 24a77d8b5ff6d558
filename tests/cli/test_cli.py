"""Checks what mains print and return, for right and wrong command lines."""

import os
import pathlib
import re
import subprocess
import sys

import gin
import pytest

from speccascade import cli
from speccascade.cli import gin_setup
from speccascade.generate.run import Run
from tests import cli_target

BASE = """
from __gin__ import dynamic_registration
from tests import cli_target

MODEL_DIR = %gin.REQUIRED
TRAIN_STEPS = %gin.REQUIRED
RATE = 0.5
cli_target.work:
  model_dir = %MODEL_DIR
  steps = %TRAIN_STEPS
  rate = %RATE
"""


@pytest.fixture
def base(tmp_path):
  path = tmp_path / "base.gin"
  path.write_text(BASE)
  cli_target.CALLS.clear()
  yield path
  gin.clear_config()


def main():
  cli.configure(cli_target.work)()


def run(*args, main=main):
  with pytest.raises(SystemExit) as stopped:
    cli.run(main, "Summary line.\n\nMore.", ["prog", *map(str, args)])
  return stopped.value.code


def fails(capfd, *args, code=1, main=main):
  """Runs a command that must fail, and returns the one line it prints."""
  assert run(*args, main=main) == code
  err = capfd.readouterr().err
  assert err.startswith("error: ")
  assert err.count("\n") == 1, err
  return err[len("error: ") : -1]


REQUIRED = ("--gin.MODEL_DIR='out'", "--gin.TRAIN_STEPS=7")


def test_files_then_bindings(base, tmp_path):
  later = tmp_path / "later.gin"
  later.write_text("RATE = 0.25\nTRAIN_STEPS = 1\n")
  assert run(f"--gin_file={base}", f"--gin_file={later}", *REQUIRED) == 0
  assert cli_target.CALLS == [("out", 7, 0.25)]
  # gin_bindings is the long form; a parameter is bound by a part of its name.
  bindings = ("--gin_bindings=RATE = 0.75", "--gin.work.steps=9")
  assert run(f"--gin_file={base}", *REQUIRED, *bindings) == 0
  assert cli_target.CALLS[1:] == [("out", 9, 0.75)]

  # A binding may define a macro of its own.
  bindings = ("--gin.MINE=4", "--gin.work.steps=%MINE")
  assert run(f"--gin_file={base}", *REQUIRED, *bindings) == 0
  assert cli_target.CALLS[2:] == [("out", 4, 0.5)]


def test_search_paths(base, capfd):
  args = ("--gin_file=base.gin", *REQUIRED)
  line = fails(capfd, *args)
  assert line.startswith(f"no gin file base.gin in {os.getcwd()}")
  assert run(*args, f"--gin_search_paths={base.parent}") == 0


def test_own_configs_are_found_from_anywhere(tmp_path, monkeypatch, caplog):
  monkeypatch.chdir(tmp_path)
  for name in ("configs/models/t5_1_1_small.gin", "models/t5_1_1_small.gin"):
    gin_setup.parse([name], [])
    # gin logs every folder that has not the file.
    assert not caplog.records
    assert gin.query_parameter("%MODEL") is not None


def test_missing_macros_are_all_named(base, capfd):
  line = fails(capfd, f"--gin_file={base}")
  assert line.startswith("MODEL_DIR, TRAIN_STEPS must be given")
  assert "--gin.MODEL_DIR=VALUE" in line
  # A macro that is used and never set at all.
  base.write_text(BASE.replace("RATE = 0.5\n", ""))
  assert fails(capfd, f"--gin_file={base}", *REQUIRED).startswith(
    "RATE must be"
  )
  assert not cli_target.CALLS


def test_wrong_bindings(base, capfd):
  assert fails(capfd, "--gin.A=1") == "no config uses A: no --gin_file"
  line = fails(capfd, f"--gin_file={base}", "--gin.MODEL_DIR=out/dir")
  assert "strings need quotes: --gin.MODEL_DIR='\"text\"'" in line
  for value in ("(5,", '"""'):  # a value that ends inside a token of Python
    line = fails(capfd, f"--gin_file={base}", f"--gin.MODEL_DIR={value}")
    assert line.startswith("--gin.MODEL_DIR = ")


def test_near_misses(base, capfd):
  file = f"--gin_file={base}"
  line = fails(capfd, file, *REQUIRED, "--gin.MODLE_DIR='x'")
  assert line.startswith("no config uses MODLE_DIR, did you mean MODEL_DIR?")
  line = fails(capfd, file, *REQUIRED, "--gin.cli_target.wrok.steps=1")
  assert "did you mean cli_target.work?" in line
  # Another module's name is not near, but has a function of that name.
  line = fails(capfd, file, *REQUIRED, "--gin.settings.work.steps=1")
  assert "did you mean cli_target.work?" in line
  line = fails(capfd, file, *REQUIRED, "--gin.work.stps=1")
  assert line.endswith("did you mean steps?")
  base.write_text(BASE + "cli_target.wrk.rate = 1\n")
  assert "wrk" in fails(capfd, file, *REQUIRED)


def test_unbound_parameter(base, capfd):
  file = f"--gin_file={base}"
  unbound = lambda: cli.configure(cli_target.unbound)()
  line = fails(capfd, file, *REQUIRED, main=unbound)
  assert line.startswith("cli_target.unbound needs folder: set")
  # The function may be one level further down, where gin itself calls it.
  base.write_text(
    "from __gin__ import dynamic_registration\n"
    "from tests import cli_target\n"
    "cli_target.outer.make = @cli_target.unbound\n"
  )
  line = fails(capfd, file, main=lambda: cli.configure(cli_target.outer)())
  assert line.startswith("unbound needs folder")


def test_library_errors_are_one_line(base, capfd):
  file = f"--gin_file={base}"
  line = fails(capfd, file, *REQUIRED, "--gin.TRAIN_STEPS=-1")
  assert line.startswith("steps is -1, want 0 or more")
  assert run(file, *REQUIRED, "--gin.TRAIN_STEPS=-1", "--verbose") == 1
  assert "Traceback" in capfd.readouterr().err
  # A bug of ours keeps its traceback.
  with pytest.raises(KeyError):
    cli.run(main, "", ["prog", file, *REQUIRED, "--gin.RATE=None"])


def test_a_setting_is_named_as_the_user_knows_it(base, capfd):
  base.write_text(
    BASE + "SIZE = 2\ncli_target.typed.size = %SIZE\n"
    "cli_target.typed.rate = 0.25\n"
  )
  file, main = f"--gin_file={base}", lambda: cli.configure(cli_target.typed)()
  assert run(file, *REQUIRED, "--gin.SIZE=3", main=main) == 0
  assert cli.command_line_names() == {"MODEL_DIR", "TRAIN_STEPS", "SIZE"}
  line = fails(capfd, file, *REQUIRED, "--gin.SIZE='3'", main=main)
  assert line.startswith("SIZE is '3'; wanted a whole number from 1")
  line = fails(capfd, file, *REQUIRED, "--gin.typed.rate=None", main=main)
  assert line == "typed.rate is None; wanted a number"


def test_macros_in_a_circle(base, capfd):
  base.write_text(f"{BASE}ONE = %TWO\nTWO = %ONE\n")
  line = fails(capfd, f"--gin_file={base}", *REQUIRED)
  assert line == "ONE = %TWO = %ONE: a macro of itself"


def test_paths_of_home(monkeypatch):
  monkeypatch.setenv("HOME", "/home/one")
  assert cli.path("~/a") == Run("~/a").folder == pathlib.Path("/home/one/a")


def test_interrupt(base, capfd):
  def stop():
    raise KeyboardInterrupt

  args = (f"--gin_file={base}", *REQUIRED)
  assert fails(capfd, *args, code=130, main=stop) == "interrupted"


def test_help_for_a_reader_that_has_seen_enough():
  reader, writer = os.pipe()
  os.close(reader)
  command = [sys.executable, "-m", "speccascade.decode", "--help"]
  done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
  os.close(writer)
  assert (done.returncode, done.stderr) == (0, b"")


def test_help_lists_macros(base, tmp_path, capfd):
  base.write_text(BASE.replace("RATE = 0.5", "RATE = 0.5  # of work"))
  later = tmp_path / "later.gin"
  later.write_text(f"include '{base}'\nRATE = 0.75\nNAMES = [\n  'a',\n]\n")
  assert run("--help", f"--gin_file={later}") == 0
  # The settings come before the flags of a job of several processes.
  listed = capfd.readouterr().out.partition("\nSettings of ")[2]
  listed = listed.partition("\n\nFlags of a job")[0].splitlines()
  assert [line.split() for line in listed[1:]] == [
    ["MODEL_DIR", "=", "required"],
    ["TRAIN_STEPS", "=", "required"],
    ["RATE", "=", "0.75", "of", "work"],
    ["NAMES", "=", "[", "..."],
  ]
  assert fails(capfd, "--help", "--gin_file=nowhere.gin") == (
    "no gin file nowhere.gin"
  )
  for content, says in ((b"include '%s'\n", "itself"), (b"\xff", "be read")):
    later.write_bytes(content.replace(b"%s", bytes(later)))
    assert says in fails(capfd, "--help", f"--gin_file={later}")
  cli.start(main, "", ["prog", "--help"], skeleton="configs/runs/decode.gin")
  out = capfd.readouterr().out
  [line] = re.findall(
    "^  METHOD = required +listed by python -m (.+) --table$", out, re.M
  )
  assert line == "speccascade.report.methods_page"
  assert "DRAFTER_CHECKPOINT = required " in out  # which decode.gin includes


def test_dry_run_prints_a_config_that_parses_to_itself(base, tmp_path, capfd):
  assert run(f"--gin_file={base}", *REQUIRED, "--dry_run") == 0
  assert not cli_target.CALLS
  text = capfd.readouterr().out
  copy = tmp_path / "copy.gin"
  copy.write_text(text)
  gin_setup.parse([copy.name], [], [str(tmp_path)])
  main()
  assert cli_target.CALLS == [("out", 7, 0.5)]
  again = gin_setup.resolved_config()
  strip = lambda s: "\n".join(s.strip().splitlines()[1:])
  assert strip(again) == strip(text)


@pytest.mark.needs_tf
def test_tensorflow_loads_silently():
  code = (
    "from speccascade.cli import quiet; tf = quiet.import_tensorflow();"
    "import os; os.write(2, b'kept\\n'); assert tf.constant(1).numpy() == 1"
  )
  command = [sys.executable, "-c", code]
  done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
  assert done.stderr == "kept\n"


def test_no_error_is_longer_than_a_paragraph(capsys):
  for text in ("a " * 5000, "a" * 5000, f"TREE is {[1] * 2000}; leave it out"):
    assert cli.fail(text, 7) == 7
    said = capsys.readouterr().err
    assert len(said) < 1300
    assert said.startswith(f"error: {text[:90]}")
    assert said.endswith(f"{text.strip()[-9:]}\n")
