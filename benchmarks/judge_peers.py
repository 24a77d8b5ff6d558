"""Judges samplers of other projects, as their packages ship them.

  python -m benchmarks.judge_peers --peers=transformers --out=verdicts

The Python has the peer's package, and NumPy; our other needs are not needed. It
runs in the root of a clone, or with PYTHONPATH set to it. Nothing of the
package is changed: its random functions are replaced while it runs, and its
paths are enumerated, or it is sampled. Prints a line for each problem. --out
keeps a row of each peer in FOLDER/PEER.json; docs/verdicts.md shows ours:

  python -m benchmarks.verdicts_page
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import pathlib
import platform
import shlex
import sys
import time

from benchmarks.peers.registry import PEERS
from speccascade import judge


def row_of(
  name: str, judgement: judge.Judgement, versions: dict, seconds: float
) -> dict:
  """Returns what is kept of a judgement, without its name's folder."""
  smallest = None if judgement.passed else judgement.smallest
  return {
    "peer": name,
    "judged": PEERS[name].title,
    "claim": PEERS[name].claim,
    "versions": versions,
    "date": str(datetime.datetime.now(datetime.UTC).date()),
    "command": f"python -m benchmarks.judge_peers --peers={name}",
    "verdict": ("right", "wrong", "fails", "open")[judgement.exit_code],
    "causes": list(judgement.causes),
    "notes": list(judgement.warnings),
    "seconds_of_cpu": round(seconds, 1),
    "smallest": None if smallest is None else smallest.label,
    "problems": [dataclasses.asdict(line) for line in judgement.problems],
  }


def main(argv: list[str] | None = None) -> int:
  """Judges the peers; returns 0 if all could be judged, and 2 otherwise."""
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.judge_peers",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--peers",
    default="transformers",
    help=f"some of {', '.join(PEERS)}, separated by commas",
  )
  parser.add_argument(
    "--only", default="", help="ask the problems whose label has this text"
  )
  parser.add_argument("--out", help="the folder of rows to write")
  parser.add_argument(
    "--versions",
    default="",
    metavar="NAME=VERSION,...",
    help="versions of what is not installed as a package",
  )
  flags = parser.parse_args(argv)
  names = flags.peers.split(",")
  unknown = [name for name in names if name not in PEERS]
  if unknown:
    return _fail(f"--peers has {unknown[0]!r}; it takes {', '.join(PEERS)}")
  given = dict(x.partition("=")[::2] for x in flags.versions.split(",") if x)
  for name in names:
    peer = PEERS[name]
    start = time.process_time()
    try:
      judgement = peer.judge(flags.only)
    except ImportError as error:
      return _fail(f"{name} cannot be imported ({error}): {peer.install}")
    except ValueError as error:
      return _fail(str(error))
    seconds = time.process_time() - start
    versions = {x: given.get(x) or _version(x) for x in peer.packages}
    versions["Python"] = platform.python_version()
    print(f"{peer.title} ({_listed(versions)})\n{judgement}\n", flush=True)
    if flags.out:
      folder = pathlib.Path(flags.out)
      folder.mkdir(parents=True, exist_ok=True)
      row = row_of(name, judgement, versions, seconds)
      if flags.only:
        row["command"] += f" --only={shlex.quote(flags.only)}"
      text = json.dumps(row, indent=1) + "\n"
      (folder / f"{name}.json").write_text(text, encoding="utf-8")
  return 0


def _listed(versions: dict) -> str:
  return ", ".join(f"{name} {version}" for name, version in versions.items())


def _version(name: str) -> str:
  """Returns the version of an installed distribution."""
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return "of a clone"


def _fail(message: str) -> int:
  """Prints one line; returns the exit code."""
  print(f"error: {message}", file=sys.stderr)
  return 2


if __name__ == "__main__":
  sys.exit(main())
