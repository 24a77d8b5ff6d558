"""Every main shows its help; every command that is written down can be given.

Commands stand in pages, in heads of configs and in docstrings of modules. Those
of gin are resolved, others parsed, those of launch/ printed: none of them runs.
"""

import argparse
import importlib.util
import pathlib
import re
import runpy
import shlex
import subprocess
import sys

import gin
import pytest

from speccascade.tasks._tf import seqio
from tests import mains

pytestmark = pytest.mark.needs_tf

ROOT = pathlib.Path(__file__).parents[1]
COMMAND = re.compile(
  r"""(?:python\ -m|bash)\ (
    speccascade(?:\.[\w.]*\w)? | (?:benchmarks|tests)\.[\w.]*\w
    | launch/(?:tpu_vm|gpu_box|slurm)\.sh(?=\ [a-z])
  )(
    \ +(?=--|\[--|\.\.\.|(?:[a-z_]+\ )+--|DIRECTORY|[a-z]+/[\w.-]+[`\n]|$)
    (?:'[^']*' | "[^"]*" | \ (?!\ +[^\s-]) | [^'"\s`])+
  )?""",
  re.VERBOSE,
)
OWN_TEXT = "--gin_file=own_text.gin"


def modules() -> dict[str, str]:
  """Returns the source of each main, by the module's name."""
  found = {}
  for folder in ("speccascade", "benchmarks"):
    for path in sorted((ROOT / folder).glob("**/*.py")):
      text = path.read_text(encoding="utf-8")
      # Those that read stdin are talked to by another program.
      if re.search("^if __name__ ==", text, re.M) and "sys.stdin" not in text:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__main__")
        named = re.findall(rf"python -m ({folder}\.[\w.]+)", text)
        found[name if name in named or not named else named[0]] = text
  return found


def commands(page: str) -> list[str]:
  """Returns the commands of a page, a config or a module, a line each."""
  text = (ROOT / page).read_text(encoding="utf-8")
  if page.endswith(".py"):  # its docstring
    text = [*text.split('"""', 2), ""][1].replace("\\\\", "\\")
  elif page.endswith(".gin"):
    text = re.sub("^# ?", "", text, flags=re.M)
  else:  # a command within a line may continue in the next one
    inline = "(?<!`)`(?!`)[^`]*`"
    text = re.sub(inline, lambda code: code[0].replace("\n", " "), text)
  text = re.sub(r"\s*\\\n\s*", " ", text)
  found = (re.sub(r"\s+", " ", "".join(each)) for each in COMMAND.findall(text))
  return [each.strip(" &") for each in found]


MAINS = modules()
PAGES = {
  page: written
  for pattern in (
    *("README.md", "docs/*.md", "configs/**/*.gin"),
    *("speccascade/**/*.py", "benchmarks/*.py"),
  )
  for path in sorted(ROOT.glob(pattern))
  if (written := commands(page := path.relative_to(ROOT).as_posix()))
}


class Parsed(Exception):
  """A main has understood its command line."""


def parse_args(self, *args, parse=argparse.ArgumentParser.parse_args):
  """In the place of argparse's own, after which a main would begin."""
  raise Parsed(parse(self, *args))


def main(name: str, monkeypatch, *argv: str):
  """Runs a main in this process, by its file."""
  path = importlib.util.find_spec(name).origin
  path = path.replace("__init__.py", "__main__.py")
  monkeypatch.setattr(sys, "argv", [name, *argv])
  runpy.run_path(path, run_name="__main__")


@pytest.mark.parametrize("name", MAINS)
def test_help(name, monkeypatch, capsys):
  with pytest.raises(SystemExit) as stop:
    main(name, monkeypatch, "--help")
  out, err = capsys.readouterr()
  assert (stop.value.code, err) == (0, "")
  assert "--help" in out.replace("--[no]", "--")


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_given(page, monkeypatch, tmp_path, capsys):
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", None)
  for command in PAGES[page]:
    name, *words = shlex.split(re.sub(r"\$\w+", "0", command))
    if name.startswith("launch/"):
      at = words.index("--") if "--" in words else len(words)
      words.insert(at, "--dry_run")
      subprocess.run(["bash", name, *words], check=True, capture_output=True)
    elif not words:  # no more than a name
      assert name.endswith("NAME") or importlib.util.find_spec(name)
    elif "cli.run(" in MAINS.get(name, ""):
      check_gin(name, words, tmp_path, capsys)
    else:
      words = [word.strip("[]") for word in words]
      with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        with pytest.raises(Parsed):
          main(name, patch, *words)


def check_gin(name: str, words: list[str], folder: pathlib.Path, capsys):
  """Resolves a command of gin; `...` in it is what the user has to add."""
  is_part = not {"...", "--gin_file=..."}.isdisjoint(words)
  if is_part:
    skeleton = re.search('skeleton="(.*?)"', MAINS[name])[1]
    words = [word for word in words if word not in ("...", "--gin_file=...")]
    words = [f"--gin_file={skeleton}", *words]
  if OWN_TEXT in words:
    page = (ROOT / "docs/your_own_text.md").read_text(encoding="utf-8")
    lines = re.search("own_text.gin <<'END'\n(.*?)END\n", page, re.DOTALL)[1]
    (folder / "own_text.gin").write_text(lines)
    words = [f"--gin_search_paths={folder}", *words]
  missing, _ = mains.resolve(words, capsys)
  assert is_part or not missing, f"{name} {' '.join(words)} lacks {missing}"


def test_commands_are_found():
  found = [command for written in PAGES.values() for command in written]
  assert len(found) > 120
  named = {command.partition(" ")[0] for command in found}
  assert named >= set(MAINS)


@pytest.fixture(autouse=True)
def _cleared():
  yield
  gin.clear_config()
