"""English word forms: plurals, verb forms, number words, times and dates."""

_UNIT_WORDS = """
zero one two three four five six seven eight nine ten eleven twelve
thirteen fourteen fifteen sixteen seventeen eighteen nineteen
"""
_UNITS = _UNIT_WORDS.split()
_TEN_WORDS = "- - twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = _TEN_WORDS.split()
_ORDINALS = {
  "one": "first",
  "two": "second",
  "three": "third",
  "five": "fifth",
  "eight": "eighth",
  "nine": "ninth",
  "twelve": "twelfth",
}
_MONTH_NAMES = """
January February March April May June July August September October November
December
"""
MONTHS = _MONTH_NAMES.split()
_WEEKDAY_NAMES = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
WEEKDAYS = _WEEKDAY_NAMES.split()


def plural(noun: str) -> str:
  """The regular plural.

  >>> plural("box"), plural("lady"), plural("key"), plural("house")
  ('boxes', 'ladies', 'keys', 'houses')
  """
  if noun.endswith(("s", "x", "ch", "sh")):
    return noun + "es"
  if noun.endswith("y") and noun[-2] not in "aeiou":
    return noun[:-1] + "ies"
  return noun + "s"


def third_person(verb: str) -> str:
  """The third person singular of the first word ("looks for")."""
  first, *rest = verb.split(" ")
  if first.endswith("o"):
    return " ".join([first + "es", *rest])
  return " ".join([plural(first), *rest])


def regular_past(verb: str) -> str:
  """The regular past of the first word ("looked for")."""
  first, *rest = verb.split(" ")
  if first.endswith("e"):
    past = first + "d"
  elif first.endswith("y") and first[-2] not in "aeiou":
    past = first[:-1] + "ied"
  else:
    past = first + "ed"
  return " ".join([past, *rest])


def number(value: int) -> str:
  """The cardinal number, 0 to 9,999, with the British "and".

  >>> number(21), number(1001)
  ('twenty-one', 'one thousand and one')
  >>> number(1234)
  'one thousand two hundred and thirty-four'
  """
  words = []
  for size, name in ((1_000, "thousand"), (100, "hundred")):
    count, value = divmod(value, size)
    if count:
      words += [_UNITS[count], name]
  if value or not words:
    tens, unit = divmod(value, 10)
    if value < 20:
      last = _UNITS[value]
    else:
      last = _TENS[tens] + ("-" + _UNITS[unit] if unit else "")
    words += ["and", last] if words else [last]
  return " ".join(words)


def ordinal(value: int) -> str:
  """The ordinal, 1 to 99.

  >>> ordinal(1), ordinal(12), ordinal(20), ordinal(33)
  ('first', 'twelfth', 'twentieth', 'thirty-third')
  """
  head, dash, last = number(value).rpartition("-")
  if last in _ORDINALS:
    last = _ORDINALS[last]
  elif last.endswith("y"):
    last = last[:-1] + "ieth"
  else:
    last += "th"
  return head + dash + last


def year(value: int) -> str:
  """A year from 1100 to 1999 as it is read.

  >>> year(1985), year(1900), year(1905)
  ('nineteen eighty-five', 'nineteen hundred', 'nineteen oh five')
  """
  hundreds, rest = divmod(value, 100)
  if not rest:
    return number(hundreds) + " hundred"
  return number(hundreds) + (" oh " if rest < 10 else " ") + number(rest)


def clock(hour: int, minute: int) -> str:
  """A time on the twelve-hour clock, minutes in fives.

  >>> clock(6, 30), clock(6, 45), clock(1, 0)
  ('half past six', 'a quarter to seven', "one o'clock")
  """
  this, following = number(hour), number(hour % 12 + 1)
  if minute == 0:
    return this + " o'clock"
  if minute == 30:
    return "half past " + this
  count = "a quarter" if minute % 30 == 15 else number(min(minute, 60 - minute))
  return f"{count} past {this}" if minute < 30 else f"{count} to {following}"


def detokenize(words: list[str]) -> str:
  """The sentence: articles, capital, commas and the full stop set.

  >>> detokenize("a old man , who sleeps , sees a owl".split())
  'An old man, who sleeps, sees an owl.'
  """
  out = []
  for word, following in zip(words, [*words[1:], ""]):
    if word == "a" and following[:1] in "aeiou" and following:
      word = "an"
    if word == ",":
      out[-1] += ","
    else:
      out.append(word)
  text = " ".join(out)
  return text[0].upper() + text[1:] + "."


def tokenize(text: str) -> list[str]:
  """Words and commas of a sentence; the inverse up to the first capital."""
  words = text.removesuffix(".").replace(",", " ,").split()
  return ["a" if word in ("an", "An", "A") else word for word in words]
