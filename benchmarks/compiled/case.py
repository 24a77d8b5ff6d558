"""Compiles one program in a process of its own, and prints a line of JSON.

  python -m benchmarks.compiled.case --target v5e:1x1 --method spec_decode \\
    --pair t5-small:t5-large
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import time

from speccascade.native.gpu import nvrtc

# What makes libtpu write down how many instructions each operation has.
_BUNDLES = "schedule-analysis_final_bundles"
_DUMP = (
  "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true"
  " --xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
)


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


def instructions(folder: pathlib.Path) -> dict[str, int]:
  """Returns the instructions of each operation that a TPU's compiler dumped."""
  found = {}
  for path in folder.glob(f"*-{_BUNDLES}.txt"):
    name = re.fullmatch(rf"\d+-(.*)-\d+-{_BUNDLES}", path.stem)
    said = re.search(r"total scheduled bundles:\s+(\d+)", path.read_text())
    if name and said:
      found[name[1]] = int(said[1])
  return found


def main(argv: list[str] | None = None) -> int:
  flags = parser().parse_args(argv)
  if flags.kernels and flags.target != "h100":
    parser().error(f"--kernels is for --target h100, not {flags.target}")
  if flags.variant == "cuda" and not nvrtc.is_available():
    parser().error(
      "--variant cuda needs NVRTC, or Triton's kernels would be compiled: pip"
      " install nvidia-cuda-nvrtc-cu12 into this environment"
    )
  with contextlib.ExitStack() as stack:
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return _compile(flags, folder, stack)


def _compile(
  flags: argparse.Namespace,
  folder: pathlib.Path,
  stack: contextlib.ExitStack,
) -> int:
  """Compiles a program, and prints its line.

  Args:
    flags: as `parser` reads them.
    folder: for what a compiler writes of a program.
    stack: is left when the program is compiled.
  """
  # What a compiler reads from the environment is set before jax is used.
  if flags.kernels:
    asked = f" --xla_dump_to={folder} --xla_dump_hlo_as_text"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + asked
    # A program that is read from a cache is not written.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
  from benchmarks.compiled import kernels, programs, reports, rounds, thunks
  from speccascade import native
  from speccascade.tools.planning import chips, hlo

  chips.prepare(flags.target)
  if not chips.is_gpu(flags.target):
    given = os.environ.get("LIBTPU_INIT_ARGS", "")
    os.environ["LIBTPU_INIT_ARGS"] = f"{given} {_DUMP.format(folder)}"
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
  chip = chips.chip(flags.target)
  speed = chip.bandwidth / chip.clock if chip.clock else math.inf
  program = rounds.Program(text, instructions(folder), speed)
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
    "kernel_cycles": program.kernel_cycles,
    "collectives": sent.total(),
    "sent_bytes": hlo.sent_bytes(sent),
    "flops": programs.num_flops(lowered) / len(place.devices),
  }
  if not chips.is_gpu(flags.target):
    took = program.seconds(chip)
    row["predicted_steps"] = {step: 1e6 * x for step, x in took.items()}
  if flags.kernels:
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
