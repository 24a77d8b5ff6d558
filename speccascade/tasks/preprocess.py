"""Makes inputs and targets from the fields of the papers' data sets.

The prefixes are T5's. The two prompts are taken from the published code of
CS Drafting: zero-shot, with a chain of thought. The vocabulary of T5 turns the
line breaks of the prompts into blanks.
"""

from collections.abc import Sequence
import re

TRANSLATE = "translate English to German: "
SUMMARIZE = "summarize: "

_ANNOTATION = re.compile(r"<<[^<>]*>>")


def drop_annotations(solution: str) -> str:
  """Returns a GSM8K solution without its calculator annotations.

  The vocabulary of T5 has no piece for "<", so that annotations would become
  unknown pieces.

  >>> drop_annotations("She sold 48/2 = <<48/2=24>>24 clips.")
  'She sold 48/2 = 24 clips.'
  """
  return _ANNOTATION.sub("", solution)


def gsm8k_prompt(question: str) -> str:
  r"""Returns the zero-shot chain-of-thought prompt of a GSM8K question.

  >>> gsm8k_prompt("How many?")
  'Reason the math question below step by step. Question: How many?.\n Answer: '
  """
  return (
    "Reason the math question below step by step. "
    f"Question: {question}.\n Answer: "
  )


def gsm8k(question: str, solution: str) -> tuple[str, str]:
  """Returns (inputs, targets) of a GSM8K example."""
  return gsm8k_prompt(question), drop_annotations(solution)


def mmlu_prompt(question: str, choices: Sequence[str]) -> str:
  """Returns the zero-shot chain-of-thought prompt of an MMLU question.

  Args:
    question: the question without the choices.
    choices: the four choices.

  Raises:
    ValueError: there are not four choices.

  >>> mmlu_prompt("2 + 2?", ["1", "2", "3", "4"]).splitlines()[:2]
  ['Question: 2 + 2?', '(A) 1 (B) 2 (C) 3 (D) 4']
  """
  if len(choices) != 4:
    raise ValueError(f"an MMLU question has 4 choices, not {len(choices)}")
  listed = " ".join(f"({name}) {c}" for name, c in zip("ABCD", choices))
  return (
    f"Question: {question}\n{listed}\n Answer: \n Let's think step by step. "
  )
