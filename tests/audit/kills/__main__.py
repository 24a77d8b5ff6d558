"""Kills a command many times, then starts it twice at once.

python -m tests.audit.kills train 50
python -m tests.audit.kills decode 50 --seed 3
"""

import argparse
import pathlib
import tempfile

from tests.audit.kills import killing


def main():
  parser = argparse.ArgumentParser(prog="python -m tests.audit.kills")
  parser.add_argument("job", choices=killing.JOBS)
  parser.add_argument("kills", type=int)
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    job = killing.Killing(args.job, pathlib.Path(folder), args.seed)
    unbroken = f"{job.seconds:.1f} s, {job.operations} operations on files"
    print(f"{args.job} unbroken: {unbroken}", flush=True)
    runs = job.kill(args.kills)
    print(f"{args.kills} kills, {runs} runs, all as the unbroken one")
    job.start_two()


if __name__ == "__main__":
  main()
