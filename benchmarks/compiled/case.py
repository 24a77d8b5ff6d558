"""Compiles one program in a process of its own, and prints a line of JSON.

  python -m benchmarks.compiled.case --target v5e:1x1 --method spec_decode \\
    --pair t5-small:t5-large
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile
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
    "--text", type=pathlib.Path, help="a file that the program is written to"
  )
  flags.add_argument(
    "--variant",
    help="of a GPU's program: xla, triton or cuda; else the table says",
  )
  flags.add_argument(
    "--kernels",
    type=pathlib.Path,
    help="a file that the table of a GPU's kernels is written to",
  )
  return flags


def main(argv: list[str] | None = None) -> int:
  flags = parser().parse_args(argv)
  if flags.kernels and flags.target != "h100":
    parser().error(f"--kernels is for --target h100, not {flags.target}")
  with contextlib.ExitStack() as stack:
    folder = None
    if flags.kernels:
      folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return _compile(flags, folder, stack)


def _compile(
  flags: argparse.Namespace,
  folder: pathlib.Path | None,
  stack: contextlib.ExitStack,
) -> int:
  """Compiles a program, and prints its line.

  Args:
    flags: as `parser` reads them.
    folder: for what XLA writes of a GPU's program; None asks for nothing.
    stack: is left when the program is compiled.
  """
  # What a compiler reads from the environment is set before jax is used.
  if folder is not None:
    asked = f" --xla_dump_to={folder} --xla_dump_hlo_as_text"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + asked
    # A program that is read from a cache is not written.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
  from benchmarks.compiled import kernels, programs, reports, rounds, thunks
  from speccascade import native
  from speccascade.tools.planning import chips, hlo

  chips.prepare(flags.target)
  if flags.variant:
    stack.enter_context(native.gpu_kernels(flags.variant))
  place = programs.Place(tuple(chips.devices(flags.target)))
  layers = tuple(flags.layers) if flags.layers else None
  began = time.monotonic()
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
  if not chips.is_gpu(flags.target):
    took = program.seconds(chips.chip(flags.target))
    row["predicted_steps"] = {step: 1e6 * x for step, x in took.items()}
  if folder is not None:
    module = text.partition(",")[0].split()[-1]
    reader = kernels.Reader(program, thunks.read(folder, module))
    # The battery's passes are of a number that is known when they are compiled.
    found = reader.round(is_counted=flags.method == "pass")
    row["predicted"] = found.numbers()
    row["predicted_steps"] = kernels.steps(found)
    flags.kernels.parent.mkdir(parents=True, exist_ok=True)
    flags.kernels.write_text(reports.report(found) + "\n", encoding="utf-8")
  print(json.dumps(row))
  return 0


if __name__ == "__main__":
  sys.exit(main())
