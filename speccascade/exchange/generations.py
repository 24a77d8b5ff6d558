"""Programs that a decode wrote, for a harness that runs them.

The file is what bigcode-evaluation-harness saves and, with
--load_generations_path, reads: for each problem, in the data set's order, a
list of programs.

Source: `bigcode_eval/evaluator.py` of
github.com/bigcode-project/bigcode-evaluation-harness, at 0754793.
"""

import json

from speccascade.exchange.decode_folder import DecodeFolder


def text(folder: DecodeFolder) -> str:
  """Returns the file: each trial of an example is one of its programs.

  Raises:
    ValueError: an example has fewer trials than another.
  """
  programs: dict[int, list[str]] = {}
  for answer in sorted(folder.answers, key=lambda each: each.trial):
    programs.setdefault(answer.index, []).append(answer.text.rstrip() + "\n")
  in_order = [programs[index] for index in sorted(programs)]
  if len({*map(len, in_order)}) > 1 or len(programs) != max(programs) + 1:
    raise ValueError(
      f"{folder.predictions} lacks trials of some examples: remove it, and"
      " decode again"
    )
  return json.dumps(in_order, ensure_ascii=False, indent=1) + "\n"
