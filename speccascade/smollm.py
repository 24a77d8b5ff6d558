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
  """Runs the race; returns the exit code."""
  parser = cli.Parser("smollm", __doc__)
  parser.add_argument(
    "--output_dir",
    dest="folder",
    type=cli.path,
    default=pathlib.Path("out/smollm"),
    help="where the converted model, rows, table and page go (%(default)s)",
  )
  parser.add_argument(
    "--gguf", type=cli.path, help="weights; default: the package's"
  )
  parser.add_argument(
    "--drafter", type=cli.path, help="checkpoint of a trained drafter"
  )
  parser.add_argument(
    "--kernel_dtype",
    choices=("float32", "bfloat16", "bfloat16_products"),
    default="float32",
    help="of the kernels on a CPU (%(default)s)",
  )
  parser.add_argument(
    "--max_decode_len", type=int, help="tokens (96, with a drafter 48)"
  )
  parser.add_argument(
    "--repeats", type=int, help="of each timing (2, with a drafter 1)"
  )
  return parser.run(run, argv, "interrupted; run again")


def run(
  folder: pathlib.Path,
  gguf: pathlib.Path | None,
  drafter: pathlib.Path | None,
  kernel_dtype: str,
  max_decode_len: int | None,
  repeats: int | None,
):
  """Converts the model, decodes, prints the table and writes the files.

  Args:
    folder: where everything goes.
    gguf: the file of the weights; None takes the file of a package.
    drafter: the checkpoint of a drafter, or None.
    kernel_dtype: the dtype of the kernels on a CPU.
    max_decode_len: the most tokens of an answer; None takes 96, or 48 with a
      drafter.
    repeats: how often each decode is timed; None takes 2, or 1 with a drafter.
  """
  cli.compilation_cache()
  from speccascade.generate import token_view
  from speccascade.study.report import tables
  from speccascade.tools.examples import smollm_race

  # With a drafter there are three times as many decodes, which on two cores
  # take minutes.
  if max_decode_len is None:
    max_decode_len = 96 if drafter is None else 48
  if repeats is None:
    repeats = 2 if drafter is None else 1
  settings = smollm_race.RaceSettings.create(max_decode_len, repeats)
  smollm_race.check_drafter(drafter)
  with folders.sole_writer(folder, "--output_dir"):
    model = smollm_race.convert_model(folder, gguf)
    rivals, vocabulary = smollm_race.read_rivals(model, drafter, kernel_dtype)
    lines = smollm_race.race(rivals, vocabulary, settings)
    last = rivals[-1]
    records = smollm_race.trace_records(last, vocabulary, settings)
    row = lines[0].row
    head = (
      f"# SmolLM2-135M-Instruct\n\n{row.latency.num_examples} texts of each"
      f" kind, greedy, at batch 1, {max_decode_len} tokens at most,"
      f" {row.settings.dtype}, on {row.environment['device']}.\n\n"
    )
    table = tables.markdown(lines, smollm_race.COLUMNS)
    files.write_whole(folder / "table.md", head + table)
    rows = [line.row.to_json() + "\n" for line in lines]
    files.write_whole(folder / "rows.jsonl", rows)
    title = f"SmolLM2 with {last.name}: who wrote each token"
    page = token_view.page_html(records, title)
    files.write_whole(folder / "tokens.html", page)
  print(table)
  if drafter is None:
    print(
      "no drafter was given, so only prompt lookup drafts; docs/training.md"
      " says how to train one, then --drafter=FOLDER"
    )
  print(f"table, rows and tokens.html are in {folder.absolute()}")


if __name__ == "__main__":
  sys.exit(main())
