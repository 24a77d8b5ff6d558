"""Compiles one program in a process of its own, and prints a line of JSON.

  python -m benchmarks.compiled.case --target v5e:1x1 --method spec_decode \\
    --pair t5-small:t5-large
"""

import argparse
import json
import pathlib
import sys
import time


def parser() -> argparse.ArgumentParser:
  """Returns the parser of the flags."""
  flags = argparse.ArgumentParser(
    prog="python -m benchmarks.compiled.case",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  flags.add_argument("--target", required=True)
  flags.add_argument("--pair", required=True)
  flags.add_argument("--method", required=True)
  flags.add_argument("--rows", type=int, default=1)
  flags.add_argument(
    "--layers", type=int, nargs=2, help="of drafter and verifier"
  )
  flags.add_argument("--source_len", type=int, default=16)
  flags.add_argument("--max_decode_len", type=int, default=64)
  flags.add_argument(
    "--implementation",
    choices=("xla", "triton", "cuda"),
    help="of a GPU's operations; None: defaults.json",
  )
  flags.add_argument(
    "--text", type=pathlib.Path, help="a file that the program is written to"
  )
  return flags


def main(argv: list[str] | None = None) -> int:
  flags = parser().parse_args(argv)
  # What a compiler reads from the environment is set before jax is used.
  from benchmarks.compiled import programs, rounds
  from speccascade import native
  from speccascade.tools.planning import chips, hlo

  chips.prepare(flags.target)
  place = programs.Place(tuple(chips.devices(flags.target)))
  layers = tuple(flags.layers) if flags.layers else None
  began = time.monotonic()
  with native.gpu_kernels(flags.implementation):
    lowered = programs.lower(
      place,
      flags.method,
      programs.pair(flags.pair, layers),
      flags.rows,
      flags.source_len,
      flags.max_decode_len,
    )
  lowered_s = time.monotonic() - began
  began = time.monotonic()
  try:
    compiled = lowered.compile()
  except Exception as error:
    # The compiler's message names the place in its first lines.
    print(json.dumps({"error": " ".join(str(error).split())[:300]}))
    return 0
  row = {"lowered_s": lowered_s, "compiled_s": time.monotonic() - began}
  text = compiled.as_text()
  if flags.text:
    flags.text.parent.mkdir(parents=True, exist_ok=True)
    flags.text.write_text(text, encoding="utf-8")
  program = rounds.Program(text)
  if memory := compiled.memory_analysis():
    row["arguments_bytes"] = memory.argument_size_in_bytes
    row["temporary_bytes"] = memory.temp_size_in_bytes
  caches = programs.cache_shapes(
    programs.pair(flags.pair, layers),
    flags.rows,
    # A cache has room for the longest output and a block.
    range(flags.max_decode_len, flags.source_len + flags.max_decode_len + 32),
    len(place.devices),
  )
  sent = program.sent[hlo.ROUND]
  row |= {
    "launches": program.count().get("all", 0),
    "fusions": program.count(lambda each: each.opcode).get("fusion", 0),
    "by_step": program.count(rounds.step_of),
    "by_kind": program.count(rounds.kind_of),
    "read_bytes": program.num_bytes,
    "cache_copies": program.copies(caches),
    "loops": program.num_loops,
    "cycles": program.cycles,
    "collectives": sent.total(),
    "sent_bytes": hlo.sent_bytes(sent),
    "flops": programs.num_flops(lowered) / len(place.devices),
  }
  print(json.dumps(row))
  return 0


if __name__ == "__main__":
  sys.exit(main())
