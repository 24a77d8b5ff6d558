"""Reads the words of the built-in task from words.txt.

The sections of the file have entries "English = German", which are separated by
semicolons and line breaks. Slashes separate German synonyms, of which the usual
one is the first. A word near the beginning of its section is drawn more often
than a word near the end. A section of verbs has the name of the objects that
the verbs take, and a section of times the name of the tense.
"""

import pathlib
from typing import NamedTuple


class Word(NamedTuple):
  """An entry of words.txt.

  Attributes:
    english: the English words. The first word of a noun or verb may be
      "base:form", with an irregular plural or past. "#" stands for a number.
    german: the German renderings. A noun is "gender singular plural". A verb is
      "prefix|infinitive third-person participle", and ends in a star if its
      perfect is formed with "sein". An adjective has no ending.
  """

  english: str
  german: tuple[str, ...]

  def inflect(self, form: str) -> str:
    """Returns the English words in a form.

    Args:
      form: "plural", "third" (person) or "past"; "" is the form as written.

    >>> Word("take:took along", ()).inflect("past")
    'took along'
    """
    first, _, rest = self.english.partition(" ")
    base, _, irregular = first.partition(":")
    word = base
    if irregular and form in ("plural", "past"):
      word = irregular
    elif form == "past":
      word = base.removesuffix("e") + "ed"
    elif form:
      word += "es" if base.endswith(("s", "x", "ch", "sh")) else "s"
      if base[-1] == "y" and base[-2] not in "aeiou":
        word = base[:-1] + "ies"
    return f"{word} {rest}".strip()


def _read() -> dict[str, list[Word]]:
  """Returns the entries of words.txt by section."""
  tables = {}
  text = pathlib.Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
  for line in text.splitlines():
    if line.startswith("["):
      table = tables.setdefault(line.strip("[]"), [])
      continue
    for entry in line.split("; "):
      english, german = entry.split(" = ")
      table.append(Word(english, tuple(german.split(" / "))))
  return tables


# The entries by section.
WORDS = _read()
