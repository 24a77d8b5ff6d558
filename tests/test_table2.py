"""launch/table2.sh: its commands can be given, and its tiny size runs."""

import json
import os
import pathlib
import shlex
import subprocess
import sys

import gin
import pytest

from tests import mains

pytestmark = pytest.mark.needs_tf
ROOT = pathlib.Path(__file__).parents[1]


def launch(*flags, **env):
  """Runs the script; returns what subprocess.run does."""
  return subprocess.run(
    ["bash", str(ROOT / "launch/table2.sh"), *flags],
    env={**os.environ, **env},
    capture_output=True,
    text=True,
  )


def commands(*flags) -> list[list[str]]:
  """Returns the words of each command of gin that a dry run prints."""
  done = launch(*flags, "--dry_run")
  assert (done.returncode, done.stderr) == (0, "")
  lines = [shlex.split(x) for x in done.stdout.splitlines() if "--gin_" in x]
  assert all(words[:2] == ["python", "-m"] for words in lines)
  return [words[2:] for words in lines]


@pytest.mark.parametrize(
  ("flags", "steps"),
  [
    ((), 1_001_000),
    (("--full", "--data_dir", "my data"), 1_100_000),
    (("--full", "--text_files=wmt"), 1_100_000),
    (("--tiny", "--output_dir=out/tiny"), 2),
  ],
)
def test_every_command_resolves(flags, steps, capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  small, large, sweep = commands(*flags)
  for name, *words in (small, large):
    assert name == "speccascade.train"
    missing, _ = mains.resolve(words, capsys)
    assert not missing
    assert gin.query_parameter("%TRAIN_STEPS") == steps
    gin.clear_config()
  name, *words = sweep
  assert name == "speccascade.sweep"
  missing, _ = mains.resolve(words, capsys)
  assert not missing
  # What is swept is what was trained.
  trained = {word for _, *words in (small, large) for word in words}
  for role in ("DRAFTER", "VERIFIER"):
    path = gin.query_parameter(f"%{role}_CHECKPOINT")
    assert f"--gin.MODEL_DIR='{path}'" in trained
  gin.clear_config()


@pytest.mark.parametrize(
  ("flags", "said"),
  [
    (("--full", "--tiny"), "--full and --tiny are given: want one of them"),
    (("--tiny", "--text_files=a"), "--tiny has its own text"),
    (("--output_dir=a'b",), "a folder has a quote"),
    (("--steps=3",), "--steps is not a flag of table2.sh"),
  ],
)
def test_what_is_wrong_is_one_line(flags, said):
  done = launch(*flags)
  assert (done.returncode, done.stdout) == (2, "")
  [line] = done.stderr.splitlines()
  assert line.startswith("error: ")
  assert said in line


def test_data_that_cannot_be_had_say_what_to_do(tmp_path):
  (tmp_path / "bin").mkdir()
  python = tmp_path / "bin" / "python"
  python.write_text(
    "#!/bin/bash\ncase $* in *tfds*) exit 1 ;; *hashlib*) cat ;; esac\n"
  )
  python.chmod(0o755)
  done = launch(VENV=str(tmp_path))
  assert done.returncode == 1
  assert "WMT14 was not prepared, see above" in done.stderr
  assert "--data_dir=FOLDER; or give --text_files=FOLDER" in done.stderr


@pytest.mark.slow
def test_the_tiny_size_runs_from_text_to_report(tmp_path):
  (tmp_path / "bin").mkdir()
  python = tmp_path / "bin" / "python"
  python.write_text(
    "#!/bin/bash\ncase $* in *'-m pip'*) ;;\n"
    f'*) exec {shlex.quote(sys.executable)} "$@" ;; esac\n'
  )
  python.chmod(0o755)
  folder = tmp_path / "out"
  done = launch("--tiny", f"--output_dir={folder}", VENV=str(tmp_path))
  assert done.returncode == 0, done.stderr
  lines = (folder / "sweep" / "rows.jsonl").read_text().splitlines()
  methods = {json.loads(line)["settings"]["method"] for line in lines}
  assert methods == {"drafter", "verifier", "spec_decode", "spec_cascade_opt"}
  assert (folder / "sweep" / "report" / "index.html").is_file()
