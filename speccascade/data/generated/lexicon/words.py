"""Words of two languages, and the tables they are written in.

A line is `english: german | german`, several renderings with the likeliest
first; `SHARES` gives their probabilities. Every rendering that is listed is
right wherever the grammar uses the entry.
"""

import dataclasses

from speccascade.data.generated import english, german

# Shares of two, three renderings where the line gives none. Skewed, so that
# the best single guess (greedy) beats a random draw.
SHARES = {1: (1.0,), 2: (0.72, 0.28), 3: (0.6, 0.25, 0.15)}


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
  """Right renderings with their probabilities, the likeliest first."""

  weights: tuple[float, ...]
  values: tuple

  def keep(self, condition) -> "Choice":
    """The choice among the values that fulfil `condition`."""
    pairs = [(w, v) for w, v in zip(self.weights, self.values) if condition(v)]
    total = sum(w for w, _ in pairs)
    return Choice(
      tuple(w / total for w, _ in pairs), tuple(v for _, v in pairs)
    )


def choice(values, weights=None) -> Choice:
  """A `Choice` with given weights or the shares for that many values."""
  weights = SHARES[len(values)] if weights is None else tuple(weights)
  return Choice(tuple(weights), tuple(values))


@dataclasses.dataclass(frozen=True, eq=False)
class Word:
  """An English word or phrase with its renderings and other forms.

  Attributes:
    text: the phrase whose forms the others are.
    german: `Choice` among strings, `german.Noun`s, `german.Verb`s, ...
    forms: name of an English form -> text.
    extra: what a construction needs beside (preposition, case, number).
  """

  text: str
  german: Choice
  forms: dict[str, str] = dataclasses.field(default_factory=dict)
  extra: tuple = ()


def read_lines(table: str) -> list[tuple[str, str]]:
  """(English, German) of each line."""
  lines = [line for line in table.strip().splitlines() if line.strip()]
  return [tuple(part.strip() for part in l.split(":", 1)) for l in lines]


def read_choice(text: str, build=lambda spec: spec) -> Choice:
  """The choice among what `build` makes of the parts between bars."""
  return choice([build(part.strip()) for part in text.split(" | ")])


def read_nouns(table: str) -> list[Word]:
  """Nouns: `singular[/plural]: ...` with what `german.noun` reads.

  The first extra is the choice among those that join in a compound.
  """
  words = []
  for forms, renderings in read_lines(table):
    singular, _, plural = forms.partition("/")
    plural = plural or english.plural(singular)
    entry = read_choice(renderings, german.noun)
    joint = entry.keep(lambda n: n.joins)
    words.append(Word(singular, entry, {"s": singular, "p": plural}, (joint,)))
  return words


def read_verbs(table: str, extra: tuple = ()) -> list[Word]:
  """Verbs: `base, past, participle: ...`; regular ones give the base only."""
  words = []
  for forms, renderings in read_lines(table):
    base, *rest = [form.strip() for form in forms.split(",")]
    past = rest[0] if rest else english.regular_past(base)
    table = {
      "base": base,
      "s3": english.third_person(base),
      "past": past,
      "part": rest[1] if len(rest) > 1 else past,
    }
    words.append(Word(base, read_choice(renderings, german.verb), table, extra))
  return words
