"""The German is right: worked sentences, agreement, verb order."""

import itertools
import re

import pytest

from speccascade.data import generated
from speccascade.data.generated.words import WORDS

NOUNS = [*WORDS["person"], *WORDS["thing"], *WORDS["place"]]
VERBS = {
  takes: WORDS[takes]
  for takes in WORDS
  if takes.startswith(("acc", "dat", "alone"))
}
EXAMPLES = [generated.example("validation", i) for i in range(500)]

# Determiner, ending of the adjective after it, and what it may stand with:
# gender, or "p" for plural. Written down by hand, for every case.
AGREEMENT = {
  "der": {"e": "m", "en": "f"},
  "die": {"e": "f", "en": "p"},
  "das": {"e": "n"},
  "den": {"en": "mp"},
  "dem": {"en": "mn"},
  "dieser": {"e": "m", "en": "f"},
  "diese": {"e": "f", "en": "p"},
  "dieses": {"e": "n"},
  "diesen": {"en": "mp"},
  "diesem": {"en": "mn"},
  "ein": {"er": "m", "es": "n"},
  "eine": {"e": "f", "en": "p"},
  "einen": {"en": "mp"},
  "einem": {"en": "mn"},
  "einer": {"en": "f"},
}
AGREEMENT |= {
  stem + ending: fits
  for stem in ("kein", "mein", "sein", "ihr", "unser")
  for ending, fits in (
    (determiner.removeprefix("ein"), AGREEMENT[determiner])
    for determiner in ("ein", "eine", "einen", "einem", "einer")
  )
}


@pytest.mark.parametrize(
  ("index", "inputs", "references"),
  [
    (
      22,
      "Before Nina can lose a small key soon, she watches the friend on "
      "Monday.",
      "Bevor Nina bald einen kleinen Schlüssel verlieren kann, sieht sie am "
      "Montag dem Freund zu.|Bevor Nina bald einen kleinen Schlüssel verlieren "
      "kann, schaut sie am Montag dem Freund zu.",
    ),
    (
      47,
      "On 3 June Lotte must see our green car.",
      "Am 3. Juni muss Lotte unser grünes Auto sehen.|Am 3. Juni muss Lotte "
      "unseren grünen Wagen sehen.",
    ),
    (
      3,
      "Lotte wants to look for no new book next to London.",
      "Lotte will neben London kein neues Buch suchen.|Lotte will kein neues "
      "Buch neben London suchen.",
    ),
    (
      16,
      "671 aunts want to give the woman her car that Otto must buy.",
      "671 Tanten wollen der Frau ihr Auto, das Otto kaufen muss, geben.|671 "
      "Tanten wollen der Frau ihren Wagen, den Otto kaufen muss, geben.",
    ),
  ],
)
def test_worked_sentences(index, inputs, references):
  example = generated.example("test", index)
  assert example.inputs == inputs
  assert example.references == tuple(references.split("|"))


def _genders():
  """Noun form -> genders, "p" for plural."""
  genders = {}
  for word in NOUNS:
    for option in word.german:
      gender, one, many = option.split()
      genders.setdefault(one, set()).add(gender)
      for form in (many, many + "n"):
        genders.setdefault(form, set()).add("p")
  return genders


def test_determiners_adjectives_and_nouns_agree():
  genders = _genders()
  adjectives = {
    stem
    for word in (*WORDS["of person"], *WORDS["of thing"])
    for stem in word.german
  }
  seen = 0
  for example in EXAMPLES:
    for text in example.references:
      tokens = re.findall(r"\w+", text[0].lower() + text[1:])
      for left, adjective, noun in zip(tokens, tokens[1:], tokens[2:]):
        stem, ending = re.fullmatch(r"(.*?)(e[nrs]?|)", adjective).groups()
        if left in AGREEMENT and stem in adjectives and noun in genders:
          fits = set(AGREEMENT[left].get(ending, ""))
          assert genders[noun] & fits, (left, adjective, noun)
          seen += 1
  assert seen > 500


def test_the_verb_ends_subordinate_clauses():
  finite = {"ist", "sind", "war", "waren", "hat", "haben", "wird", "werden"}
  finite |= {"kann", "können", "muss", "müssen", "will", "wollen"}
  for verb in itertools.chain(*VERBS.values()):
    for option in verb.german:
      infinitive, third, _ = option.split()
      prefix, _, stem = infinitive.rpartition("|")
      finite |= {prefix + stem, prefix + third}
  seen = 0
  for example in EXAMPLES:
    for text in example.references:
      for clause in re.findall(
        r", (?:weil|da|obwohl|bevor) ((?:[^,.]|\. )*)[,.]", text
      ):
        assert clause.split()[-1] in finite, text
        seen += 1
  assert seen > 100


@pytest.mark.parametrize("table", [NOUNS, *VERBS.values()])
def test_entries_have_their_forms(table):
  """One English word has one entry: else a source had two readings."""
  assert len({word.english.split(":")[0] for word in table}) == len(table)
  for word in table:
    assert len(set(word.german)) == len(word.german)
    assert all(len(option.split()) == 3 for option in word.german)


def test_english_past_and_present_differ():
  for verb in itertools.chain(*VERBS.values()):
    forms = [verb.inflect(form) for form in ("", "third", "past")]
    assert len(set(forms)) == 3
