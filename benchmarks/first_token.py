"""Seconds from the start of Python to the first output, and what takes them.

  python -m benchmarks.first_token

The built-in pair translates a sentence in a process of its own: first with
empty caches, as on a fresh machine, then again with what the first process
left. The second table is the whole command `python -m speccascade.decode`, of
a file ("file") and of the built-in task ("task"), which TensorFlow reads.
Compiling is of XLA's programs; native code is what the C++ compiler makes of
`speccascade/native`.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from speccascade import cli

TEXT = "A clever witch sells the new car."
STAGES = ("imports", "native code", "reading", "tracing", "compiling", "decode")
CACHES = {"a fresh machine": "empty", "the next process": "kept"}


def child(began: float):
  """Prints the seconds of each stage; `began` is when the process was made."""
  seconds = dict.fromkeys(STAGES, 0.0)

  def end(stage: str):
    nonlocal began
    now = time.time()
    seconds[stage] += now - began
    began = now

  import speccascade as sc
  from speccascade.generate.api import loading  # noqa: F401
  from speccascade.native import library
  from speccascade.study.measuring.environment import compile_counter

  compiled = compile_counter()
  end("imports")
  library.is_available()
  end("native code")
  pair = sc.built_in_pair()
  end("reading")
  arguments = {"method": "spec_cascade_token_v3", "alpha": 0.3}
  pair.generate(TEXT, **arguments, temperature=1.0)
  end("tracing")
  pair.generate(TEXT, **arguments, temperature=1.0)
  end("decode")
  # The first decode traced, compiled and decoded; the second one decoded alone.
  seconds["compiling"] = compiled.seconds
  seconds["tracing"] -= compiled.seconds + seconds["decode"]
  print(json.dumps(seconds))


def run(command: list[str], cache: pathlib.Path) -> tuple[float, str]:
  """Runs a module with its caches in a folder; returns (seconds, output)."""
  environment = dict(os.environ, XDG_CACHE_HOME=str(cache))
  environment.pop("JAX_COMPILATION_CACHE_DIR", None)
  began = time.time()
  done = subprocess.run(
    [sys.executable, "-m", *command],
    env=environment,
    check=True,
    capture_output=True,
    text=True,
  )
  return time.time() - began, done.stdout


def main():
  parser = cli.Parser("first_token", __doc__, "benchmarks")
  parser.add_argument("--child", type=float, help="when a child was started")
  args = parser.parse_args()
  if args.child:
    child(args.child)
    return
  print(f"| caches | {' | '.join(STAGES)} | whole |")
  print("| --- |" + " ---: |" * (len(STAGES) + 1))
  with tempfile.TemporaryDirectory() as folder:
    for name in CACHES:
      command = ["benchmarks.first_token", f"--child={time.time()}"]
      whole, out = run(command, pathlib.Path(folder, "generate"))
      seconds = json.loads(out.splitlines()[-1])
      cells = [f"{seconds[stage]:.1f}" for stage in STAGES]
      print(f"| {name} | {' | '.join(cells)} | {whole:.1f} |", flush=True)
    print("\n| caches | decode, file | decode, task |")
    print("| --- | ---: | ---: |")
    texts = pathlib.Path(folder, "texts")
    texts.write_text(TEXT)
    flags = {
      "file": [
        "--gin_file=configs/runs/decode_prompts.gin",
        "--gin.DRAFTER_CHECKPOINT='speccascade/built_in/small'",
        "--gin.VERIFIER_CHECKPOINT='speccascade/built_in/large'",
        f"--gin.INPUT_FILE='{texts}'",
      ],
      "task": [
        "--gin_file=configs/built_in/decode.gin",
        "--gin.NUM_EXAMPLES=1",
      ],
    }
    for name, kind in CACHES.items():
      cells = []
      for source, options in flags.items():
        out = f"--gin.OUTPUT_DIR='{folder}/{kind}_{source}'"
        command = ["speccascade.decode", *options, out]
        whole, _ = run(command, pathlib.Path(folder, source))
        cells.append(f"{whole:.1f}")
      print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
  main()
