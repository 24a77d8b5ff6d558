"""Decodes with a real pretrained model, SmolLM2-135M-Instruct, and its helpers.

  bash launch/smollm.sh            makes .venv, installs, runs this
  python -m speccascade.smollm     runs it

Questions, sums and texts to copy from are answered greedily by the model alone
and by prompt lookup, which copies from the prompt; with --drafter also by a
drafter, alone and in Cascade Speculative Drafting. All but the cascades write
the model's own tokens. On two cores it takes three minutes with a drafter.
"""

import pathlib
import sys

from speccascade import cli
from speccascade.runtime import files, folders


def main(argv: list[str] | None = None) -> int:
  """Runs it; returns the exit code."""
  parser = cli.Parser("smollm", __doc__)
  add = parser.add_argument
  add(
    "--output_dir",
    dest="folder",
    type=cli.path,
    default=pathlib.Path("out/smollm"),
    help="where the converted model, rows, table and page go (%(default)s)",
  )
  add("--gguf", type=cli.path, help="weights; default: the package's")
  add("--drafter", type=cli.path, help="checkpoint of a trained drafter")
  add(
    "--kernel_dtype",
    choices=("float32", "bfloat16", "bfloat16_products"),
    default="float32",
    help="of the kernels on a CPU (%(default)s)",
  )
  add("--max_decode_len", type=int, help="tokens (96, with a drafter 48)")
  add("--repeats", type=int, help="of each timing (2, with a drafter 1)")
  return parser.run(run, argv, "interrupted; run again")


def run(folder: pathlib.Path, gguf, drafter, kernel_dtype, **asked):
  """Converts, decodes, prints and writes."""
  cli.compilation_cache()
  from speccascade.report import tables, token_view
  from speccascade.smollm import race

  # Three times as many decodes with a drafter: minutes, on two cores.
  most, repeats = (96, 2) if drafter is None else (48, 1)
  how = {"max_decode_len": most, "repeats": repeats}
  how |= {name: value for name, value in asked.items() if value is not None}
  settings = race.RaceSettings.create(**how)
  race.check_drafter(drafter)
  with folders.sole_writer(folder, "--output_dir"):
    model = race.converted(folder, gguf)
    everyone, vocabulary = race.read(model, drafter, kernel_dtype)
    lines = race.race(everyone, vocabulary, settings)
    page = race.traced(everyone[-1], vocabulary, settings)
    row = lines[0].row
    head = (
      f"# SmolLM2-135M-Instruct\n\n{row.latency.num_examples} texts of each"
      f" kind, greedy, at batch 1, {how['max_decode_len']} tokens at most,"
      f" {row.settings.dtype}, on {row.environment['device']}.\n\n"
    )
    table = tables.markdown(lines, race.COLUMNS)
    files.write_whole(folder / "table.md", head + table)
    rows = [line.row.to_json() + "\n" for line in lines]
    files.write_whole(folder / "rows.jsonl", rows)
    title = f"SmolLM2 with {everyone[-1].name}: who wrote each token"
    files.write_whole(folder / "tokens.html", token_view.page_html(page, title))
  print(table)
  if drafter is None:
    print(
      "no drafter was given, so only prompt lookup drafts; docs/training.md"
      " says how to train one, then --drafter=FOLDER"
    )
  print(f"table, rows and tokens.html are in {folder.absolute()}")


if __name__ == "__main__":
  sys.exit(main())
