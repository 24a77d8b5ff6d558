"""Answers requests in a process of its own, which is this file.

  python -I worker_main.py PATHS SECONDS BYTES FILE

The process reads a request in each line of stdin, and answers in a line of
stdout, both JSON. The Python file FILE has a function `answer`, from a request
to its answer, and `prepare`, which loads what all answers need. The system ends
the process after SECONDS of work for one answer, and gives it BYTES of memory
at most. `worker_process.Worker` starts it. Neither file imports this package,
so that the process starts fast and holds little.
"""

import contextlib
import importlib.util
import json
import signal
import sys


def main() -> None:
  """Answers requests until stdin ends."""
  paths, seconds, num_bytes, file = map(json.loads, sys.argv[1:])
  sys.path[:] = paths
  # Ctrl-C is for the process that waits for the answer.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  spec = importlib.util.spec_from_file_location("worker", file)
  assert spec is not None
  assert spec.loader is not None
  worker = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(worker)
  worker.prepare()
  _limit_memory(num_bytes)
  for line in sys.stdin.buffer:
    # The signal of this timer is not caught: the system ends the process, even
    # in the middle of one call of a function in C.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    answer = worker.answer(json.loads(line))
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _limit_memory(num_bytes: int) -> None:
  """Sets how much memory the system gives this process."""
  import resource

  # Some systems, such as macOS, have no such limit.
  with contextlib.suppress(ValueError, OSError):
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, hard))


if __name__ == "__main__":
  main()
