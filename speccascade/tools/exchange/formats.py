"""Writes the folder of a decode as a file of one of several formats."""

import os
import pathlib

from speccascade.runtime import files, folders
from speccascade.tools.exchange import (
  decode_folder,
  generations,
  spec_bench,
  speculation_profile,
  speed_bench,
  vllm_metrics,
)

# Formats of a whole decode, which need no questions.
_OF_NO_QUESTIONS = {
  "speculation_profile": speculation_profile.text,
  "vllm": vllm_metrics.text,
  "generations": generations.text,
}


def write(
  output_file: pathlib.Path,
  decode_dir: str | os.PathLike,
  format: str,
  model_id: str | None = None,
) -> list[str]:
  """Writes a file, whole or not at all.

  Args:
    output_file: the path of the file. A file that is there is replaced.
    decode_dir: OUTPUT_DIR of a decode.
    format: "spec_bench", "speed_bench", "speed_bench_results",
      "speculation_profile", "vllm" or "generations".
    model_id: the name of what wrote the answers, for "spec_bench"; None takes
      the verifier, the method and its settings.

  Returns:
    What the file lacks, or was left out of it, a sentence each.

  Raises:
    ValueError: the folder does not hold what the format has, or the file cannot
      be written to.
  """
  if model_id is not None and format != "spec_bench":
    raise ValueError(f"--model_id is of --format=spec_bench, not of {format}")
  folder = decode_folder.read(decode_dir)
  if output_file.resolve().parent == folder.path.resolve():
    raise ValueError(
      f"--output_file {output_file} is in the folder of the decode, which holds"
      " the decode's own files: give another folder"
    )
  with folders.sole_writer(
    output_file.parent, "the folder of --output_file", file=output_file.name
  ):
    label = "the folder of --output_file"
    folders.check_files(output_file.parent, label, output_file.name)
    if format in _OF_NO_QUESTIONS:
      files.write_whole(output_file, _OF_NO_QUESTIONS[format](folder))
      return generations.notes(folder) if format == "generations" else []
    if format == "spec_bench":
      files.write_whole(output_file, spec_bench.lines(folder, model_id))
      return spec_bench.notes(folder)
    if format == "speed_bench":
      files.write_whole(output_file, speed_bench.lines(folder))
    else:
      files.write_whole(output_file, speed_bench.results_text(folder))
    return spec_bench.unfinished_notes(folder)
