"""The answers of a decode as Spec-Bench's answer files have them.

Spec-Bench writes a line of JSON for each question. EAGLE's files have the same
lines, and the number of the last step as `idxs`.

Source: `evaluation/eval.py` and `evaluation/speed.py` of
github.com/hemingkx/Spec-Bench, at fd2c1cd;
`eagle/evaluation/gen_ea_answer_vicuna.py` of github.com/SafeAILab/EAGLE, at
2320d52.
"""

from collections.abc import Iterator, Sequence
import hashlib
import itertools
import json
from typing import Any

from speccascade.tools.exchange.decode_folder import Answer, DecodeFolder


def lines(folder: DecodeFolder, model_id: str | None = None) -> Iterator[str]:
  """Yields the line of each question.

  Args:
    folder: the folder of a decode.
    model_id: the name of what wrote the answers; None takes the verifier, the
      method and its settings.

  Raises:
    ValueError: the folder does not hold what the format has.
  """
  questions = folder.by_question()
  folder.check_lengths()
  settings = folder.row.settings
  if model_id is None:
    words = [settings.verifier, settings.method, *settings.words]
    model_id = "-".join(words).replace(" ", "-")
  # Spec-Bench has the time at which it writes an answer. The file of answers
  # was whole at this time.
  time_s = folder.predictions.stat().st_mtime
  for trials in questions:
    question = trials[0][0].question
    line = {
      "question_id": question["question_id"],
      "category": question["category"],
      "answer_id": _answer_id(folder.row.key, model_id, trials),
      "model_id": model_id,
      "choices": [_choice(turns) for turns in trials],
      "tstamp": time_s,
    }
    yield json.dumps(line, ensure_ascii=False) + "\n"


def _choice(turns: Sequence[Answer]) -> dict:
  """Returns what one trial wrote: lists have an entry for each turn."""
  choice: dict[str, Any] = {
    "index": turns[0].trial,
    "turns": [answer.text for answer in turns],
    "decoding_steps": [answer.num_steps for answer in turns],
    "idxs": [answer.num_steps - 1 for answer in turns],
    "new_tokens": [answer.counts.num_tokens for answer in turns],
  }
  times = [answer.wall_time_s for answer in turns]
  if None not in times:
    choice["wall_time"] = times
  # The tokens of each step of all turns, in one list.
  lengths = itertools.chain(*(answer.lengths or () for answer in turns))
  return choice | {"accept_lengths": list(lengths)}


def _answer_id(
  key: str, model_id: str, trials: Sequence[Sequence[Answer]]
) -> str:
  """Returns a text of 22 characters that no other answer has."""
  # Spec-Bench draws it at random. This one is the same whenever the same folder
  # is written.
  texts = [answer.text for turns in trials for answer in turns]
  names = [key, model_id, trials[0][0].index, texts]
  return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:22]


def notes(folder: DecodeFolder) -> list[str]:
  """Returns what the lines lack, a sentence each."""
  sentences = []
  if not folder.is_timed:
    sentences = [
      "wall_time is left out, because the questions were decoded together;"
      " Spec-Bench's evaluation/speed.py cannot do without it: decode with"
      " --gin.ONE_AT_A_TIME=True into another OUTPUT_DIR"
    ]
  return sentences + unfinished_notes(folder)


def unfinished_notes(folder: DecodeFolder) -> list[str]:
  """Returns how many questions continue after the turns that were decoded."""
  num = folder.num_unfinished
  if not num:
    return []
  total = folder.row.settings.num_examples
  return [
    f"{num} of {total} questions have further turns, which were not decoded"
  ]
