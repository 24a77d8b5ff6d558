"""Programs that a decode wrote, for a harness that runs them.

The file is what bigcode-evaluation-harness saves and, with
--load_generations_path, reads: for each problem, in the data set's order, a
list of programs.

Source: `bigcode_eval/evaluator.py` of
github.com/bigcode-project/bigcode-evaluation-harness, at 0754793.
"""

import collections
import json

from speccascade.tools.exchange import written_programs
from speccascade.tools.exchange.decode_folder import DecodeFolder


def text(folder: DecodeFolder) -> str:
  """Returns the file: each trial of an example is one of its programs.

  What a model wrote around a program is left out; see `written_programs`.

  Raises:
    ValueError: an example has fewer trials than another; or the programs have
      the string that ended them, or are not those of a split's first problems.
  """
  settings = folder.row.settings
  if "include_stop" in json.loads(settings.limits or "{}"):
    raise ValueError(
      f"{folder.path} was decoded with INCLUDE_STOP, so that its programs end"
      " in the stop: decode without it"
    )
  begin = settings.split.partition("[")[2].partition(":")[0]
  if begin not in ("", "0", "0%"):
    raise ValueError(
      f"{folder.path} is of {settings.split}, and the first program of the"
      " file is taken for that of the first problem: decode a split from its"
      " beginning"
    )
  programs: dict[int, list[str]] = {}
  for answer in sorted(folder.answers, key=lambda each: each.trial):
    program, _ = written_programs.extract(answer.text)
    programs.setdefault(answer.index, []).append(program.rstrip() + "\n")
  in_order = [programs[index] for index in sorted(programs)]
  if len({*map(len, in_order)}) > 1 or len(programs) != max(programs) + 1:
    raise ValueError(
      f"{folder.predictions} lacks trials of some examples: remove it, and"
      " decode again"
    )
  return json.dumps(in_order, ensure_ascii=False, indent=1) + "\n"


def notes(folder: DecodeFolder) -> list[str]:
  """Returns a sentence that counts the outputs with more than a program."""
  found = [written_programs.extract(each.text)[1] for each in folder.answers]
  if not any(found):
    return []
  counts = collections.Counter(mark for marks in found for mark in marks)
  parts = ", ".join(f"{mark} {num}" for mark, num in sorted(counts.items()))
  return [
    f"{sum(map(bool, found))} of {len(found)} outputs had more than a program,"
    f" which was left out ({parts})"
  ]
