"""What compilers for GPUs and TPUs make of decodes, without a GPU or a TPU.

  python -m benchmarks.compiled --targets v5e:1x1 --pairs t5-small:t5-large

Compiles each method of each pair for each target, one program at a time, each
in a process of its own, and prints what the compiler says of a round: launches,
memory, bytes, operations. Nothing is run. A row is kept as soon as it is there,
and a command that is given again continues. A program that takes longer than
--limit_s is worked out from its forms with 2 and 4 layers, and its row says so.

For a GPU, --kernels also predicts the milliseconds of a round, from what each
kernel reads and has in flight, and prints the kernels of each program.

The TPUs' compiler is the extra `tpu-compiler`; for a GPU
`bash launch/gpu_compiler.sh` makes an environment.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

from benchmarks.compiled import programs, tables
from benchmarks.gpu_battery.ahead import VARIANTS
from speccascade.runtime import files
from speccascade.tools.planning import chips

ROWS, TABLES = "rows.jsonl", "tables.md"


def parser() -> argparse.ArgumentParser:
  """Returns the parser of the flags."""
  flags = argparse.ArgumentParser(
    prog="python -m benchmarks.compiled",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = flags.add_argument
  add("--targets", nargs="+", default=["h100"], choices=chips.TARGETS)
  add(
    "--pairs", nargs="+", default=["t5-small:t5-large"], choices=programs.PAIRS
  )
  add(
    "--methods",
    nargs="+",
    default=["verifier", "spec_decode"],
    choices=programs.METHODS,
  )
  add("--rows", nargs="+", type=int, default=[1], help="of a batch")
  add("--source_len", type=int, default=16)
  add("--max_decode_len", type=int, default=64)
  add(
    "--layers",
    type=int,
    nargs=2,
    help="of drafter and verifier, in place of all",
  )
  add(
    "--variants",
    nargs="+",
    choices=VARIANTS,
    help="of GPUs' programs; without it the package's table says",
  )
  add(
    "--kernels",
    action="store_true",
    help="predict a GPU's round, and print its kernels",
  )
  add("--limit_s", type=float, default=180.0, help="for one whole program")
  add("--output_dir", type=pathlib.Path, default=pathlib.Path("out/compiled"))
  return flags


def compile_case(
  case: dict,
  layers: tuple[int, int] | None,
  limit_s: float | None,
  kernels: pathlib.Path | None = None,
) -> dict | None:
  """Returns the row of a program; None where it takes longer than it may.

  Args:
    case: flags of `benchmarks.compiled.case`.
    layers: of the drafter and the verifier; None takes all.
    limit_s: the most seconds; None waits.
    kernels: the file for the table of a GPU's kernels; None predicts nothing.
  """
  command = [sys.executable, "-m", "benchmarks.compiled.case"]
  for name, value in case.items():
    command += [f"--{name}", str(value)]
  if layers:
    command += ["--layers", *map(str, layers)]
  if kernels:
    command += ["--kernels", str(kernels)]
  try:
    done = subprocess.run(
      command, capture_output=True, text=True, timeout=limit_s
    )
  except subprocess.TimeoutExpired:
    return None
  lines = done.stdout.splitlines()
  if done.returncode or not lines:
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return {"error": last[:300]}
  return json.loads(lines[-1])


def from_few_layers(case: dict, kernels: pathlib.Path | None = None) -> dict:
  """Returns the row of a program from programs with 2 and 4 layers.

  All layers of a stack are alike, so that each number grows by the same with
  each layer. But few layers may stay in a TPU's small memory from round to
  round, where all layers would be read: bytes are then too few.

  Args:
    case: as `compile_case` takes it.
    kernels: the file for the kernels of the form with fewest layers; the other
      forms have files beside it.
  """
  wanted = {(2, 2): None, (2, 4): 1}  # which of the pair has grown
  if case["method"] not in programs.OF_VERIFIER:
    wanted[4, 2] = 0
  forms = {}
  for layers in wanted:
    words = "_".join(map(str, layers))
    path = kernels and kernels.with_name(f"{kernels.stem}_{words}.md")
    forms[layers] = compile_case(case, layers, None, path)
    if path and layers == (2, 2) and path.exists():
      path.replace(kernels)
  for row in forms.values():
    if "error" in row:
      return row
  whole = [each.num_decoder_layers for each in programs.pair(case["pair"])]
  more = [whole[grown] - 2 for grown in wanted.values() if grown is not None]

  def grow(start: float, *deeper: float) -> int:
    added = zip(more, deeper)
    return round(start + sum(num * (x - start) / 2 for num, x in added))

  start, *others = forms.values()
  row = {"worked_out": True}
  for key, value in start.items():
    if isinstance(value, dict):
      names = set().union(*(form[key] for form in forms.values()))
      row[key] = {
        name: grow(*(form[key].get(name, 0) for form in forms.values()))
        for name in sorted(names)
      }
    elif not key.endswith("_s"):
      row[key] = grow(value, *(form[key] for form in others))
  return row


def _kernels_file(folder: pathlib.Path, case: dict) -> pathlib.Path:
  """Returns where the kernels of a program are kept."""
  words = [str(value) for value in case.values()]
  name = re.sub(r"[^\w.]+", "_", "-".join(words)).strip("_")
  return folder / "kernels" / f"{name}.md"


def main(argv: list[str] | None = None) -> int:
  flags = parser().parse_args(argv)
  if flags.kernels and not any(map(chips.is_gpu, flags.targets)):
    parser().error("--kernels is for GPUs: want h100 among --targets")
  # This process compiles nothing, and takes no accelerator from who would.
  os.environ["JAX_PLATFORMS"] = "cpu"
  flags.output_dir.mkdir(parents=True, exist_ok=True)
  path, rows = flags.output_dir / ROWS, []
  if path.exists():
    rows = [json.loads(line) for line in path.read_text().splitlines()]
  have = {json.dumps(row["case"]) for row in rows}
  cases = [
    {
      "target": target,
      "pair": pair,
      "method": method,
      "rows": num,
      "source_len": flags.source_len,
      "max_decode_len": flags.max_decode_len,
    }
    for target, pair, num, method in itertools.product(
      flags.targets, flags.pairs, flags.rows, flags.methods
    )
  ]
  if flags.variants:
    cases = [
      case | {"variant": variant}
      for case, variant in itertools.product(cases, flags.variants)
    ]
  layers = tuple(flags.layers) if flags.layers else None
  for number, case in enumerate(cases, 1):
    named = case | ({"layers": layers} if layers else {})
    words = " ".join(str(case[key]) for key in ("target", "pair", "method"))
    words = f"[{number}/{len(cases)}] {words}, {case['rows']} rows"
    kernels = None
    if flags.kernels and chips.is_gpu(case["target"]):
      kernels = _kernels_file(flags.output_dir, named)
    if json.dumps(named) in have and (not kernels or kernels.exists()):
      print(f"{words}: is there", flush=True)
      continue
    print(words, flush=True)
    row = compile_case(case, layers, flags.limit_s, kernels)
    if row is None:
      print(f"  over {flags.limit_s:g} s; from 2 and 4 layers", flush=True)
      row = from_few_layers(case, kernels)
    if kernels and kernels.exists():
      print(kernels.read_text(), flush=True)
    rows = [each for each in rows if each["case"] != named]
    rows.append({"case": named, **row})
    text = "".join(json.dumps(each) + "\n" for each in rows)
    files.write_whole(path, text)
    files.write_whole(flags.output_dir / TABLES, tables.tables(rows))
  print(tables.tables(rows))
  return 0


if __name__ == "__main__":
  sys.exit(main())
