"""Breaks the package on purpose, and shows that the tests notice.

  python tests/audit/mutants/run.py [--list] [--only TEXT]

Each mutant is made in a copy of the package, and only the tests named for it
run there; it is killed if one of them fails. Ends with 1 if any survives.
"""

import argparse
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.audit.mutants import expressions  # noqa: E402

LINKED = ("tests", "docs", "pyproject.toml")
PATIENCE_S = 900
KILLED, SURVIVED, BROKEN = "killed", "SURVIVED", "BROKEN"


def mutants() -> list[dict]:
  """Returns every record; see `records`."""
  from tests.audit.mutants import (
    data,
    drafters,
    edges,
    judge,
    laws,
    loops,
    models,
    phases,
    points,
    training,
    trees,
  )

  parts = (
    laws,
    loops,
    drafters,
    models,
    phases,
    points,
    training,
    trees,
    judge,
    data,
    edges,
  )
  return [mutant for part in parts for mutant in part.MUTANTS]


def changed(mutant: dict) -> str:
  """Returns the text of the mutant's file with the one place changed.

  Raises:
    ValueError: what is to be changed is not there exactly once.
  """
  text = (ROOT / mutant["file"]).read_text()
  old, new, scope = mutant["old"], mutant["new"], mutant["scope"]
  count = text.count(old)
  try:
    if scope:
      return expressions.replaced(text, scope, old, new)
    if count != 1:
      raise ValueError(f"has the text {count} times, wanted once: {old!r}")
  except ValueError as error:
    raise ValueError(
      f"{mutant['file']} {error}; bring the mutant up to date"
    ) from error
  return text.replace(old, new)


def mutate(mutant: dict, folder: pathlib.Path):
  """Copies the package to `folder`, links the tests, changes the one place.

  Raises:
    ValueError: as in `changed`.
  """
  text = changed(mutant)
  shutil.copytree(ROOT / "speccascade", folder / "speccascade")
  for name in LINKED:
    (folder / name).symlink_to(ROOT / name)
  (folder / mutant["file"]).write_text(text)


def run(mutant: dict) -> tuple[str, str]:
  """Returns (KILLED, SURVIVED or BROKEN, what to know of it)."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    try:
      mutate(mutant, folder)
    except ValueError as error:
      return BROKEN, str(error)
    log = folder / "log"
    arguments = ["-q", "-x", "-p", "no:cacheprovider", *mutant["tests"]]
    code = _ask([str(folder), str(log), PATIENCE_S, arguments])
    output = log.read_text(errors="replace")
  if code == "late":
    return KILLED, f"the tests did not end in {PATIENCE_S} s"
  if code == "0":
    return SURVIVED, "its tests pass: " + ", ".join(mutant["tests"])
  if code == "1":
    return KILLED, (re.findall(r"^FAILED (\S+)", output, re.M) or [""])[0]
  tail = output.strip().splitlines()[-3:]
  return BROKEN, f"pytest ended with {code}: {' | '.join(tail)}"


@functools.cache
def _server() -> subprocess.Popen:
  """Returns the process that forks each run; it ends with this one."""
  env = {
    # Bytecode of the linked tests would name files that are gone.
    "PYTHONDONTWRITEBYTECODE": "1",
    # A good part of a short test's time goes into plugins that none needs.
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
  }
  return subprocess.Popen(
    [sys.executable, str(pathlib.Path(__file__).with_name("server.py"))],
    env=os.environ | env,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )


def _ask(request: list) -> str:
  """Returns the server's answer to one request."""
  server = _server()
  server.stdin.write(json.dumps(request) + "\n")
  server.stdin.flush()
  return server.stdout.readline().strip()


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--list", action="store_true", help="only name them")
  parser.add_argument("--only", default="", help="those with TEXT in the name")
  args = parser.parse_args()
  chosen = [m for m in mutants() if args.only in m["name"]]
  if not chosen:
    print(f"no mutant has {args.only!r} in its name; see --list")
    return 1
  bad, began = 0, time.monotonic()
  for mutant in chosen:
    if args.list:
      print(f"{mutant['file']}: {mutant['name']}")
      continue
    start = time.monotonic()
    verdict, detail = run(mutant)
    bad += verdict != KILLED
    took = time.monotonic() - start
    print(
      f"{verdict:8} {took:5.1f} s  {mutant['name']}  ({detail})", flush=True
    )
  if not args.list:
    took = time.monotonic() - began
    print(f"{len(chosen) - bad} of {len(chosen)} killed in {took / 60:.1f} min")
  return 1 if bad else 0


if __name__ == "__main__":
  sys.exit(main())
