"""The words of the built-in task, read from words.txt.

Its sections hold entries English = German, parted by semicolons and lines;
slashes part German synonyms, the usual one first. The nearer to a section's
beginning, the more often a word is drawn. The sections of verbs are named for
what the verbs take, those of times for the tense.
"""

import pathlib
from typing import NamedTuple


class Word(NamedTuple):
  """An entry.

  Attributes:
    english: as written; of nouns and verbs the first word may be "base:form",
      an irregular plural or past. "#" stands for a number.
    german: its renderings. Nouns are "gender singular plural"; verbs
      "prefix|infinitive third-person participle", with a star where "sein"
      makes the perfect; adjectives lack their ending.
  """

  english: str
  german: tuple[str, ...]

  def inflect(self, form: str) -> str:
    """English, as "plural", "third" person or "past"; "" for none of them.

    >>> Word("take:took along", ()).inflect("past")
    'took along'
    """
    word, _, rest = self.english.partition(" ")
    base, _, irregular = word.partition(":")
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


# By section.
WORDS = _read()
