"""The answers of a decode as Spec-Bench's answer files have them.

Spec-Bench writes a line of JSON for each question.

Source: `evaluation/eval.py` of github.com/hemingkx/Spec-Bench, at fd2c1cd.
"""

from collections.abc import Iterator, Sequence
import hashlib
import json

from speccascade.exchange.decode_folder import Answer, DecodeFolder


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
  for answers in questions:
    question = answers[0].question
    line = {
      "question_id": question["question_id"],
      "category": question["category"],
      "answer_id": _answer_id(folder.row.key, model_id, answers),
      "model_id": model_id,
      "choices": [_choice(answer) for answer in answers],
      "tstamp": time_s,
    }
    yield json.dumps(line, ensure_ascii=False) + "\n"


def _choice(answer: Answer) -> dict:
  """Returns what one trial wrote: lists have an entry for each turn."""
  return {
    "index": answer.trial,
    "turns": [answer.text],
    "decoding_steps": [answer.num_steps],
    "new_tokens": [answer.counts.num_tokens],
    # The tokens of each step of all turns, in one list.
    "accept_lengths": list(answer.lengths or ()),
  }


def _answer_id(key: str, model_id: str, answers: Sequence[Answer]) -> str:
  """Returns a text of 22 characters that no other answer has."""
  # Spec-Bench draws it at random. This one is the same whenever the same folder
  # is written.
  names = [key, model_id, answers[0].index, [each.text for each in answers]]
  return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:22]


def notes(folder: DecodeFolder) -> list[str]:
  """Returns what the lines lack, a sentence each."""
  sentences = [
    "wall_time is left out, because a decode does not time each question;"
    " Spec-Bench's evaluation/speed.py cannot do without it"
  ]
  return sentences + unfinished_notes(folder)


def unfinished_notes(folder: DecodeFolder) -> list[str]:
  """Returns how many questions go on after the turn that was decoded."""
  num = folder.num_unfinished
  if not num:
    return []
  total = folder.row.settings.num_examples
  return [
    f"{num} of {total} questions have further turns, which were not decoded"
  ]
