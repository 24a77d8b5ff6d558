"""Writes the folder of a decode in the format of another project.

  python -m speccascade.exchange --decode_dir=out/opt \\
    --format=spec_bench --output_file=out/opt.jsonl

The formats are Spec-Bench's answers, the answers and the results of
SPEED-Bench's harness, its profile of a drafter, vLLM's metrics of speculative
decoding, and programs for a harness that runs them. docs/formats.md says which
fields they have. What a format has and the decode did not record is left out,
or refused, with one line.
"""

import pathlib
import sys

from speccascade import cli

FORMATS = (
  "spec_bench",
  "speed_bench",
  "speed_bench_results",
  "speculation_profile",
  "vllm",
  "generations",
)


def main(argv: list[str] | None = None) -> int:
  """Writes the file; returns the exit code."""
  parser = cli.Parser("exchange", __doc__)
  parser.add_argument(
    "--decode_dir",
    type=cli.path,
    required=True,
    help="OUTPUT_DIR of a decode",
  )
  parser.add_argument(
    "--format",
    choices=FORMATS,
    required=True,
    help="Spec-Bench's answers; specbench_responses.jsonl,"
    " specbench_results.json and speculation_profile.json of SPEED-Bench's"
    " harness; vLLM's metrics, as JSON; programs, as"
    " bigcode-evaluation-harness loads them",
  )
  parser.add_argument(
    "--output_file",
    type=cli.path,
    required=True,
    help="the file; one that is there is replaced",
  )
  parser.add_argument(
    "--model_id",
    help="of --format=spec_bench: the name of what wrote the answers (verifier,"
    " method and settings)",
  )
  return parser.run(write, argv)


def write(output_file: pathlib.Path, **flags):
  """Writes the file, and prints its path and what it lacks."""
  from speccascade.tools.exchange import formats

  for note in formats.write(output_file, **flags):
    print(note)
  print(f"wrote {output_file}")


if __name__ == "__main__":
  sys.exit(main())
