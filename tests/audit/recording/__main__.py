"""Compares what two versions of the package write; ends with 1 if they differ.

  python -m tests.audit.recording --base COMMIT --out FOLDER

Checks the commit out beside this checkout, and has one recording program run
with either package. Tokens, counters and texts have to be equal, floats equal
up to the bound. About ten minutes of CPU for each side. --only names the parts
that are recorded: `side.PARTS` lists them.
"""

import argparse
from concurrent import futures
import os
import pathlib
import subprocess
import sys
import tempfile

from tests.audit.recording import differences
from tests.audit.recording.record import read

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The longest ones first.
PARTS = (
  *("commands", "methods", "t5", "llama", "settings", "drafters", "trees"),
  *("turns", "reports", "checkpoints"),
)
# No program of one side may serve the other, and each is compiled in the same
# way: on one thread, and quickly, since programs run for milliseconds.
ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "JAX_ENABLE_COMPILATION_CACHE": "false",
  "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
  "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
  "TF_CPP_MIN_LOG_LEVEL": "3",
}


def link(folder: pathlib.Path, package: pathlib.Path, recorder: pathlib.Path):
  """Makes a folder with one package beside a recording program.

  Args:
    folder: is made.
    package: the checkout that the package and its configs are taken from.
    recorder: the checkout that the recording program is taken from.
  """
  folder.mkdir(parents=True)
  for name, root in (
    ("speccascade", package),
    ("configs", package),
    ("tests", recorder),
    ("docs", recorder),
  ):
    (folder / name).symlink_to(root / name)


def record(folder: pathlib.Path, part: str) -> int:
  """Records one part in a linked folder; returns the exit code."""
  command = [sys.executable, "-m", "tests.audit.recording.side", "record", part]
  env = os.environ | ENVIRONMENT | {"PYTHONPATH": str(folder)}
  with (folder / f"{part}.log").open("w") as log:
    return subprocess.run(
      command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT
    ).returncode


def compare(out: pathlib.Path, parts: list[str], bound: float) -> int:
  """Prints every difference of two recorded sides; returns how many."""
  num = 0
  for part in parts:
    base, head = (read(out / side / "record" / part) for side in SIDES)
    lines = list(differences.differences(base, head, bound))
    for line in lines:
      print(line)
    gap, where = differences.largest_gap(base[0], head[0])
    refused = sum(name.endswith("is refused") for name in base[1])
    print(
      f"{part}: {len(base[0])} arrays and {len(base[1])} texts, {refused} of"
      f" them refusals; {len(lines)} differences; the largest gap of floats is"
      f" {gap:.1e} ({where})"
    )
    num += len(lines)
  return num


SIDES = ("base", "head")


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0], epilog=f"parts: {', '.join(PARTS)}"
  )
  parser.add_argument("--base", required=True, help="a commit")
  parser.add_argument("--out", required=True, type=pathlib.Path)
  parser.add_argument(
    "--head", type=pathlib.Path, default=ROOT, help="a checkout (this one)"
  )
  parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
  parser.add_argument(
    "--own_recorder",
    action="store_true",
    help="record each side by the program of its own checkout: for commits"
    " between which modules moved",
  )
  parser.add_argument("--bound", type=float, default=differences.BOUND)
  parser.add_argument("--jobs", type=int, default=os.cpu_count())
  args = parser.parse_args()
  out, parts = args.out.resolve(), [x for x in PARTS if x in args.only]
  with tempfile.TemporaryDirectory() as name:
    base = pathlib.Path(name) / "base"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", base, args.base], check=True)
    try:
      for side, package in zip(SIDES, (base, args.head.resolve())):
        link(out / side, package, package if args.own_recorder else ROOT)
      with futures.ThreadPoolExecutor(args.jobs) as pool:
        jobs = [(out / side, part) for part in parts for side in SIDES]
        codes = list(pool.map(lambda job: record(*job), jobs))
    finally:
      subprocess.run([*git, "remove", "--force", base], check=True)
  for (folder, part), code in zip(jobs, codes):
    if code:
      print(f"{folder / part}.log: exit code {code}")
  if any(codes):
    return 1
  return 1 if compare(out, parts, args.bound) else 0


if __name__ == "__main__":
  sys.exit(main())
