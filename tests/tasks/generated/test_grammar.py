"""Checks the German of worked sentences, and the words behind them."""

import itertools

import pytest

from speccascade.tasks import generated
from speccascade.tasks.generated.words import WORDS

NOUNS = [*WORDS["person"], *WORDS["thing"], *WORDS["place"]]
VERBS = {
  takes: WORDS[takes]
  for takes in WORDS
  if takes.startswith(("acc", "dat", "alone"))
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
