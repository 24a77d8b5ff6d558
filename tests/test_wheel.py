"""A wheel that is installed elsewhere has configs, native code and the pair."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.needs_tf]

ROOT = pathlib.Path(__file__).parents[1]
PARTS = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


def run(folder: pathlib.Path, *words: str, **env: str) -> str:
  """Runs Python in a folder, away from the checkout; returns its output."""
  done = subprocess.run(
    [sys.executable, *words],
    cwd=folder,
    env={**os.environ, **env},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """The folder where the packages are of a wheel, built from a copy."""
  folder = tmp_path_factory.mktemp("wheel")
  source = folder / "source"
  for name in ("speccascade", "configs"):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / name, source / name, ignore=ignored)
  for name in PARTS:
    shutil.copy(ROOT / name, source)
  pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
  flags = ("--no-deps", "--no-index", "--no-build-isolation")
  run(folder, *pip, "wheel", *flags, f"--wheel-dir={folder}", str(source))
  (wheel,) = folder.glob("*.whl")
  shutil.rmtree(source)
  site = folder / "site"
  run(folder, *pip, "install", *flags, f"--target={site}", str(wheel))
  return site


def test_it_decodes_from_any_folder(installed, tmp_path):
  env = {
    "PYTHONPATH": str(installed),
    "XDG_CACHE_HOME": str(tmp_path / "cache"),
  }
  where = run(tmp_path, "-c", "import speccascade; print(speccascade)", **env)
  assert str(installed) in where
  said = run(
    tmp_path,
    *("-m", "speccascade.decode", "--gin_file=configs/built_in/decode.gin"),
    *("--gin.NUM_EXAMPLES=4", "--gin.OUTPUT_DIR='decoded'"),
    **env,
  )
  assert "SpecCascade [Token V3] (" in said
  assert " on speccascade_en_de test" in said
  assert (tmp_path / "decoded" / "predictions.jsonl").is_file()
  # The native code was compiled from the wheel's own sources.
  if shutil.which("c++"):
    assert list((tmp_path / "cache/speccascade/native").iterdir())


def test_python_as_the_readme_has_it(installed, tmp_path):
  program = (
    "import speccascade as sc\n"
    "out = sc.built_in_pair().generate('The old man sleeps.',"
    " max_decode_len=24)\n"
    "print(len(out.texts))"
  )
  said = run(tmp_path, "-c", program, PYTHONPATH=str(installed))
  assert said.strip().endswith("1")
