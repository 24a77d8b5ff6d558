r"""Reads the final answer out of a worked solution.

GSM8K's solutions end in `#### N`. A model that was not trained on GSM8K ends in
prose: it boxes its answer, says "the answer is N", or stops at its last number.
An answer to MMLU is one of the letters A to D. Markdown and LaTeX around an
answer do not count, as in `**C**` and `\boxed{\text{C}}`.
"""

import decimal
import re

# "1,234", "1,00,000" (as in India) and "1234"; "1,2" is two numbers.
_DIGITS = r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d+)?|(?<![.\w])\.\d+)"
# "-$7" and "$-7". The hyphen of "16-18" and of "step-2" is not a sign.
_SIGN = r"(?:(?<![\w.)])-)?"
_NUMBER_PATTERN = (
  rf"{_SIGN}[$£€]?{_SIGN}(?:(?P<whole>\d+)[ ](?=\d+/\d))?(?P<digits>{_DECIMAL})"
  r"(?:/(?P<divisor>[1-9]\d*)(?![\d/]))?"
  r"(?:\s*[*x×]\s*10\^\(?(?P<power>-?\d{1,3})(?!\d))?"
)
_NUMBER = re.compile(_NUMBER_PATTERN)
# Blanks and commas that LaTeX and typesetters put between thousands.
_THOUSANDS = re.compile(
  r"(?<=\d)(?:\\?[,!]|[\u00a0\u2009\u202f]|\\[,;: ])+(?=\d{3}(?!\d))"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\((\d+)\)\s*\((\d+)\)")
_LATEX_TEXT = re.compile(r"\\(?:text|math|operator)\w*\s*(?=\()")
_BOXED = re.compile(r"\\f?boxed\s*(?=\()")
# Where an answer begins. Words that may come between "answer" and its verb:
# "the answer to the question is".
_ANSWER = (
  r"\b(?:answer|(?:correct|right|best|final)\s+(?:option|choice|letter|result))"
  r"(?:\s+(?:to|for|of|here)\b[^.:\n]{0,80}?(?=\s(?:is|would|must|should)\b))?"
  r"(?:\s+(?:is|would\s+be|should\s+be|must\s+be|has\s+to\s+be))?"
  r"(?:\s+(?:thus|therefore|then|clearly|indeed|most\s+likely|probably|simply"
  r"|about|approximately|exactly|only|option|choice|letter))*"
  r"\s*(?:[:=>]|-+(?=[\s>A-Za-z(]))*\s*"
)
# A number that an operation follows is a step: "the answer is 5 + 3 = 8".
_ANSWER_NUMBER = re.compile(
  rf"{_ANSWER}\(*\s*(?:x\s*=\s*)?(?P<number>{_NUMBER_PATTERN})"
  r"(?!\d|[.,]\d)(?!\s*[-+*/×÷=^]|\s*(?:times|plus|minus|divided|x|more|less"
  r"|percent\s+of)\b|\s*%\s*of\b)",
  re.IGNORECASE,
)
# The mark of an answer, "#### 18", and no heading such as "#### 2. Add".
_MARKED = re.compile(
  rf"####\s*\(*(?:{_ANSWER})?\(*(?!\d+[.):]\s+[^\W\d])"
  rf"(?P<number>{_NUMBER_PATTERN})",
  re.IGNORECASE,
)
_HEADING = re.compile(r"\s*(?:(?:step|part|case)\s*\d+|\d+[.):](?=\s))", re.I)

# What may stand in front of a choice, brackets excluded.
_CHOICE_WORDS = r"(?:\b(?:option|choice|letter|answer)\s+)"
# Words that follow a choice, and never the article "A": "A because".
_NO_NOUN = (
  r"because|since|as|for|and|but|which|by|in|is|that|when|where|while|if|it"
  r"|this|the|therefore|due|with|would"
)
# A bare capital: no part of a word ("Apple", "B12", "C-reactive", "C++"), no
# article before a noun, and not one of two ("A or B").
_CAPITAL = (
  rf"(?:(?:[B-D]|A(?!\s*[ \t]+(?!(?:{_NO_NOUN})\b)[^\W\d]))"
  r"(?![\w'’+/&-]))"
)
# A bare lower-case letter ends its sentence: "the answer is a dog" has none.
_SMALL = r"(?:(?:[a-d](?=[.)])|[b-d](?=\s*(?:\n|$)))(?!\.?\w))"
_BRACKETED = r"\(+\s*[A-Da-d]\s*\)"
# Two choices are not a choice: "the answer is A or B".
_TWO = re.compile(
  rf"(?i:{_ANSWER})(?:both\s+|either\s+)?\(*[A-D]\b[)\s]*"
  r"(?:or|and|/|,|&)(?:\s+or|\s+and)?\s*\(*[A-D]\b"
  r"(?!\)*\s+(?:is|are|was|fails?|would)\b)"
)
_SURE = (
  re.compile(
    rf"(?i:{_ANSWER})(?P<choice>{_BRACKETED}|\(*(?:{_CAPITAL}|{_SMALL}))"
  ),
  # "(C) is correct", "Option C is the right answer", "so C is correct".
  re.compile(
    rf"(?:(?P<choice>\([A-D]\))|(?:(?i:{_CHOICE_WORDS}|\b(?:so|thus|hence"
    r"|therefore|that|only)[,:]?\s+)|^\s*|[.,:;]\s+)(?P<bare>[A-D]))"
    r"(?:\s+is|\s+must\s+be|\s+would\s+be)"
    r"(?:\s+(?:clearly|therefore|thus|indeed|definitely|most\s+likely))?"
    r"(?:\s+the)?(?:\s+(?:only|most))?"
    r"\s+(?:correct|right|best|appropriate|accurate|answer)\b",
    re.MULTILINE,
  ),
)
# "(C)", "option C", and "so it must be C." at the end of a sentence; each is a
# choice unless the text calls it wrong.
_NAMED = re.compile(
  r"(?P<choice>\([A-D]\)|(?<=[Oo]ption )[A-D]\b|(?<=[Cc]hoice )[A-D]\b"
  r"|(?i:\b(?:therefore|thus|hence|so|choose|pick|select|go\s+with|it's"
  r"|it\s+is|must\s+be))[,:]?\s+[A-D](?=\s*(?:[.!]\s|[.!]?\s*(?:\n|$))))"
  r"(?!\s+(?:is|are|was)\s+(?:not|n't|wrong|false|incorrect|too)\b)"
)
# A line that begins with a choice: "C. Paris", "(C) Paris", "C", "C - Paris".
_LINE = re.compile(
  r"^\s*\(?([A-D])"
  r"(?:\)(?!,?\s+(?:and|or|is|are|was|fails?|can)\b)|[.:](?!\w)|\s+[-–—]\s|\s*$)",
  re.MULTILINE,
)
_SMALL_ALONE = re.compile(r"\W*([a-d])\W*")


def _plain(text: str) -> str:
  r"""Returns a text without markup, every bracket a round one.

  >>> _plain(r"so **x** is $\boxed{\text{C}}$")
  'so x is  answer: ((C))'
  """
  # Runs of blanks are one, so that a pattern takes no square of their number.
  lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines())
  text = "\n".join(filter(None, lines))
  text = re.sub(r"['‘’]([A-D])['‘’]", r"\1", text)
  text = text.replace("\u2212", "-").replace("{,}", ",")
  text = text.translate(str.maketrans("{}[]", "()()"))
  text = _BOXED.sub(" answer: ", text)
  text = _LATEX_TEXT.sub("", text)
  # The tags of "<answer>C</answer>" become words.
  text = re.sub(r"</?(\w{1,20})>", r" \1: ", text)
  text = re.sub(r"(?<![\w*])\*([^\s*]+)\*(?![\w*])", r"\1", text)
  return re.sub(r"\*\*|[_`\"“”]|\$(?!\s*-?[\d.])|\\[()]", "", text)


def _last(pattern: re.Pattern, text: str) -> re.Match | None:
  """Returns the last match of a pattern in a text, or None."""
  match = None
  for each in pattern.finditer(text):
    match = each
  return match


def _value(match: re.Match) -> decimal.Decimal:
  """Returns the value of a match of `_NUMBER_PATTERN`."""
  written = match.groupdict().get("number") or match[0]
  value = decimal.Decimal(match["digits"].replace(",", ""))
  if match["divisor"]:
    value /= decimal.Decimal(match["divisor"])
  if match["whole"]:
    value += decimal.Decimal(match["whole"])
  if match["power"]:
    value = value.scaleb(int(match["power"]))
  return -value if re.match(r"[$£€]?-", written) else value


def number(text: str) -> decimal.Decimal | None:
  r"""Returns the final number of a worked solution, or None.

  The answer is the first number after the last `####` that marks an answer. In
  a text without such a mark it is the last number in a box or after "the answer
  is", and else the last number. `#### Step 2: add` is a heading, and its number
  is not an answer. Thousands separators and signs of currency are left out, a
  fraction is divided, and 18.0 equals 18.

  >>> number("She earns 9 * 2 = $18.00 a day. #### 1,018")
  Decimal('1018')
  >>> number("so the answer is 18.0.") == number("#### 18")
  True
  >>> number(r"That is \boxed{10{,}000} in 7 days"), number("no idea")
  (Decimal('10000'), None)
  """
  text = _THOUSANDS.sub(",", _plain(text))
  for command, sign in ("\\times", "×"), ("\\cdot", "×"), ("\\div", "÷"):
    text = text.replace(command, sign)
  text = _FRACTION.sub(r"\1/\2", text)
  text = text.replace("\\$", "$").replace("\\", "")
  marked = _last(_MARKED, text)
  if marked:
    # A unit may follow the answer: "#### 20 dollars for 3 days" is 20.
    return _value(marked)
  answer = _last(_ANSWER_NUMBER, text)
  if answer:
    return _value(answer)
  _, mark, rest = text.rpartition("####")
  if mark:
    rest = _HEADING.sub("", rest, count=1)
  last = _last(_NUMBER, rest)
  return _value(last) if last else None


def letter(text: str) -> str | None:
  r"""Returns the choice that a text ends with, A to D, or None.

  The choice is the last "answer is X", "X is correct" or boxed X. In a text
  without them it is the one letter that lines begin with, as in "C. Paris", or
  else the last "(X)", "option X" or "so X.". A letter inside prose is not a
  choice: "A dog barks" and "vitamin C" have none.

  >>> letter("(A) is too small. So the answer is (C).")
  'C'
  >>> letter("It must be (B)"), letter("D. Rome"), letter("A dog barks")
  ('B', 'D', None)
  >>> letter(r"Hence $\boxed{\text{C}}$."), letter("Answer: A dog barks")
  ('C', None)
  """
  text = _plain(text)
  sure = [match for p in (*_SURE, _TWO) if (match := _last(p, text))]
  if sure:
    # Of a tie, "A or B" is the longer reading of "A".
    last = max(sure, key=lambda match: (match.start(), match.end()))
    if last.re is _TWO:
      return None
    choice = last["choice"] or last["bare"]
    return re.sub(r"[^A-Za-z]", "", choice).upper()
  begun = set(_LINE.findall(text))
  if re.search(r"^\s*Q:", text, re.M):
    begun.discard("A")  # "A:" is the answer of a transcript, and no choice.
  if len(begun) == 1:
    return begun.pop()
  text = _LINE.sub("", text)  # a list of the choices
  named = _last(_NAMED, text)
  if named:
    return re.findall(r"[A-D](?!\w)", named["choice"])[-1]
  alone = _SMALL_ALONE.fullmatch(text)
  return alone[1].upper() if alone else None
