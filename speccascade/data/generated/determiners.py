"""Determiners and pronouns: English words, German inflection."""

import dataclasses

from speccascade.data.generated import lexicon as lex
from speccascade.data.generated.cfg import Grammar


@dataclasses.dataclass(frozen=True, eq=False)
class Determiner:
  """A determiner: its German stem, how it and adjectives inflect.

  Attributes:
    stem: "d" (der), "" (none), or what takes the endings ("mein", "dies").
    endings: "der", "dieser", "ein" or "" (none).
    declension: of the adjectives behind it.
    definite: whether an object with it may move in front of adverbials.
  """

  stem: str
  endings: str
  declension: str
  definite: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Pronoun:
  """A personal pronoun: its German cases and the verb's person."""

  nom: str
  acc: str
  dat: str
  person: str


THE = Determiner("d", "der", "weak", True)
BARE = Determiner("", "", "strong")
POSSESSIVES = {
  "my": "mein",
  "his": "sein",
  "her": "ihr",
  "our": "unser",
  "their": "ihr",
}
_OWNED = [
  (t, Determiner(g, "ein", "mixed", True)) for t, g in POSSESSIVES.items()
]
_EIN = Determiner("ein", "ein", "mixed")
_KEIN = Determiner("kein", "ein", "mixed")
_THIS = Determiner("dies", "dieser", "weak", True)
_EVERY = Determiner("jed", "dieser", "weak")
_PLURALS = [
  ("", BARE, 22),
  ("these", _THIS, 5),
  ("all", Determiner("all", "dieser", "weak"), 3),
  ("both", Determiner("beid", "dieser", "weak"), 2),
  ("many", Determiner("viel", "dieser", "strong"), 4),
  ("some", Determiner("einig", "dieser", "strong"), 4),
  ("several", Determiner("mehrer", "dieser", "strong"), 2),
  ("no", _KEIN, 2),
]
PRONOUNS = {
  "he": Pronoun("er", "ihn", "ihm", "3s"),
  "she": Pronoun("sie", "sie", "ihr", "3s"),
  "they": Pronoun("sie", "sie", "ihnen", "p"),
  "we": Pronoun("wir", "uns", "uns", "p"),
  "I": Pronoun("ich", "mich", "mir", "1s"),
}
OBJECT_PRONOUNS = {"him": "he", "her": "she", "them": "they"}


def add(g: Grammar) -> None:
  """Adds the determiners, as DET.*, and the numbers, as NUM.*."""
  g.constant("THE", THE)
  owned = len(_OWNED)
  g.words(
    "DET.s",
    [
      ("the", THE),
      ("a", _EIN),
      ("this", _THIS),
      ("every", _EVERY),
      ("no", _KEIN),
      *_OWNED,
    ],
    [45, 30, 5, 3, 3] + [14 / owned] * owned,
  )
  g.words(
    "DET.p",
    [("the", THE), *[(t, d) for t, d, _ in _PLURALS], *_OWNED],
    [38, *[w for _, _, w in _PLURALS], *[13 / owned] * owned],
  )
  g.words(
    "DET.mass",
    [("", BARE), ("the", THE), ("this", _THIS), ("no", _KEIN), *_OWNED],
    [60, 22, 3, 5] + [10 / owned] * owned,
  )
  for number, this in (("s", "this"), ("p", "these")):
    g.words(
      f"DET.owner.{number}",
      [("the", THE), (this, _THIS), *_OWNED],
      [70, 5] + [25 / owned] * owned,
    )
  g.words(
    "DET.place",
    [("the", THE), ("a", _EIN), ("this", _THIS), *_OWNED],
    [72, 12, 4] + [12 / owned] * owned,
  )
  for name, words in [
    ("NUM.small", lex.SMALL),
    ("NUM.tens", lex.TENS),
    ("NUM.large", lex.LARGE),
    ("NUM.cents", lex.CENTS),
  ]:
    g.words(name, [(w.text, w) for w in words])
  for weight, size in [(0.45, "small"), (0.35, "tens"), (0.2, "large")]:
    g.rule("NUM", weight, "", f"#NUM.{size}")
  g.rule("NUM.time", 0.6, "", "#NUM.small")
  g.rule("NUM.time", 0.4, "", "#NUM.tens")
  g.rule("NUM.price", 0.4, "", "#NUM.tens")
  g.rule("NUM.price", 0.5, "", "#NUM.large")
  g.rule("NUM.price", 0.1, "", "#NUM.small")
