"""Reads the final answer out of a worked solution.

GSM8K's solutions end in `#### N`. A model that was not trained on GSM8K ends in
prose, and its answer is the last number that it writes. An answer to MMLU is
one of the letters A to D.
"""

import decimal
import re

_NUMBER = re.compile(r"-?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
# "answer is X" and "Answer: X". A lower-case letter counts in brackets only:
# "the answer is a dog" has no choice. A capital must not begin a word: "the
# answer is Apple" has none either.
_AFTER_ANSWER = re.compile(
  r"\b[Aa]nswer\s*(?:is|:)?\s*:?\s*(?:\(([A-Da-d])\)|([A-D])(?![\w']))"
)
_BRACKETED = re.compile(r"\(([A-D])\)")
_ALONE = re.compile(r"\W*([A-D])\W*")


def number(text: str) -> decimal.Decimal | None:
  """Returns the final number of a worked solution, or None.

  The answer is the first number after the last `####`; in a text without `####`
  it is the last number. Thousands separators and dollar signs are left out, and
  18.0 equals 18.

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
  # A unit may follow the answer: "#### 20 dollars for 3 days" is 20. Prose has
  # its answer at the end.
  digits = numbers[0] if marked else numbers[-1]
  return decimal.Decimal(digits.replace(",", "").replace("$", ""))


def letter(text: str) -> str | None:
  """Returns the choice that a text ends with, A to D, or None.

  The choice is the last "answer is X"; in a text without it, the last "(X)"; in
  a text without either, the letter that is the whole text. A letter inside
  prose is not a choice: "A dog barks" has none.

  >>> letter("(A) is too small. So the answer is (C).")
  'C'
  >>> letter("It must be (B)"), letter("D."), letter("A dog barks")
  ('B', 'D', None)
  """
  after_answer = _AFTER_ANSWER.findall(text)
  if after_answer:
    # The pattern has a group for a letter in brackets and one for a bare
    # letter; one of the two is empty.
    in_brackets, bare = after_answer[-1]
    return (in_brackets or bare).upper()
  bracketed = _BRACKETED.findall(text)
  if bracketed:
    return bracketed[-1]
  alone = _ALONE.fullmatch(text)
  return alone[1] if alone else None
