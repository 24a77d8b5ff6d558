"""The list of commands: whole, in the words of the modules, quick."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

from speccascade import __main__ as command_list

ROOT = pathlib.Path(__file__).parents[1]
QUICK = """
import runpy, sys
sys.argv = ["speccascade", *FLAGS]
try:
  runpy.run_module("speccascade", run_name="__main__")
finally:
  heavy = {"jax", "tensorflow", "gin", "absl", "numpy", "matplotlib"}
  assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def listed(*flags: str) -> str:
  """Returns what the command prints; it must import nothing heavy."""
  done = subprocess.run(
    [sys.executable, "-c", f"FLAGS = {flags}\n{QUICK}"],
    capture_output=True,
    text=True,
    cwd=ROOT,
  )
  assert (done.returncode, done.stderr) == (0, "")
  return done.stdout


def test_every_module_that_can_be_run_is_listed():
  names = set()
  for path in (ROOT / "speccascade").rglob("*.py"):
    source = path.read_text(encoding="utf-8")
    # A module that reads stdin is run by another program.
    if re.search("^if __name__ ==", source, re.M) and "sys.stdin" not in source:
      named = re.findall(r"python -m speccascade\.([\w.]+)", source)
      parts = path.relative_to(ROOT / "speccascade").with_suffix("").parts
      name = ".".join(parts).removesuffix(".__main__")
      names.add(name if name in named or not named else named[0])
  assert {x.name for x in command_list.find()} == names - {"__main__"}
  assert set(command_list._FIRST) <= names


def test_a_line_says_what_the_module_says():
  for command in command_list.find():
    module = f"speccascade.{command.name}"
    path = pathlib.Path(importlib.util.find_spec(module).origin)
    if path.name == "__init__.py":
      path = path.with_name("__main__.py")
    source = path.read_text(encoding="utf-8")
    assert source.startswith(f'"""{command.summary}'), module
    assert command.summary.endswith("."), f"{module}: wanted one whole sentence"


def test_the_list_is_quick_and_fits():
  text = listed()
  assert text == listed("--help") == listed("-h") == command_list.text() + "\n"
  assert max(map(len, text.splitlines())) <= 80
  names = re.findall(r"^  ([a-z_.]+)  ", text, re.M)
  first = len(command_list._FIRST)
  assert names[:first] == [*command_list._FIRST]
  assert names == [command.name for command in command_list.find()]


@pytest.mark.parametrize(
  ("word", "advice"),
  [
    ("decode", "run python -m speccascade.decode"),
    ("decoed", "python -m speccascade lists the commands"),
  ],
)
def test_a_word_after_it_is_refused_in_one_line(word, advice, capsys):
  assert command_list.main([word]) == 2
  out, err = capsys.readouterr()
  assert out == ""
  assert err == (
    f"error: python -m speccascade takes no {word!r}, only --help; {advice}\n"
  )
