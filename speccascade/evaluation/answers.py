r"""Reads the final answer out of a worked solution.

GSM8K's solutions end in `#### N`; a model that was not trained on them ends
in prose, and its answer is the last number it writes. MMLU's answer is one of
the letters A to D.
"""

import decimal
import re

_NUMBER = re.compile(r"-?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
# A lower-case letter counts in brackets only: "the answer is a dog".
_SAID = re.compile(
  r"\b[Aa]nswer\s*(?:is|:)?\s*:?\s*(?:\(([A-Da-d])\)|([A-D])(?![\w']))"
)
_BRACKETED = re.compile(r"\(([A-D])\)")
_ALONE = re.compile(r"\W*([A-D])\W*")


def number(text: str) -> decimal.Decimal | None:
  """Returns the final number of a worked solution, or None.

  After the last `####` where there is one, else the last number of the text;
  thousands separators and dollar signs do not count, and 18.0 is 18.

  >>> number("She earns 9 * 2 = $18.00 a day. #### 1,018")
  Decimal('1018')
  >>> number("so the answer is 18.0.") == number("#### 18")
  True
  >>> number("no idea") is None
  True
  """
  _, marked, answer = text.rpartition("####")
  numbers = _NUMBER.findall(answer)
  if not numbers:
    return None
  # The text after #### is the answer alone; elsewhere the last number counts.
  digits = numbers[0 if marked else -1].replace(",", "")
  return decimal.Decimal(digits.replace("$", ""))


def letter(text: str) -> str | None:
  """Returns the choice that a text ends with, A to D, or None.

  The last "answer is X", else the last "(X)", else a text that is the letter
  alone. A letter inside prose is not a choice: "A dog barks" has none.

  >>> letter("(A) is too small. So the answer is (C).")
  'C'
  >>> letter("It must be (B)"), letter("D."), letter("A dog barks")
  ('B', 'D', None)
  """
  if said := _SAID.findall(text):
    return "".join(said[-1]).upper()
  if bracketed := _BRACKETED.findall(text):
    return bracketed[-1]
  alone = _ALONE.fullmatch(text)
  return alone[1] if alone else None
