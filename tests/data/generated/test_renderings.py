"""What counts as right German, and how the renderings are listed."""

import collections
import pathlib
import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from speccascade.data import generated
from speccascade.data.generated import english, examples, lattice, rendering

PAIRS = [
  tuple(line.split("\t"))
  for line in (pathlib.Path(__file__).parent / "pairs.tsv")
  .read_text(encoding="utf-8")
  .splitlines()
]
SAMPLE = [generated.pair("train", 50_000 + i)[0] for i in range(400)]


def test_there_are_200_hand_checked_pairs():
  assert len(set(PAIRS)) == len(PAIRS) >= 200


@pytest.mark.parametrize("start", range(0, len(PAIRS), 20))
def test_hand_checked_pairs(start):
  for source, text in PAIRS[start : start + 20]:
    assert generated.is_rendering(source, text), (source, text)


@pytest.mark.parametrize(
  ("source", "wrong"),
  [
    ("I see the boy.", "Ich sehe der Jungen."),
    ("I see the boy.", "Ich sehe den Junge."),
    ("I see the boy.", "Ich den Jungen sehe."),
    ("I see the boy.", "ich sehe den Jungen."),
    ("I see the boy.", "Ich sehe den jungen."),
    ("I see the boy.", "Ich sehe den Jungen"),
    ("I see the boy.", "Ich sehe  den Jungen."),
    ("I see the boy.", "Ich sehe, den Jungen."),
    ("I see the boy.", "Ich sehe den Jungen.."),
    ("I see the boy.", ""),
    ("On Monday the man sleeps.", "Am Montag der Mann schläft."),
    ("On Monday the man sleeps.", "Der Mann schläft am Montag."),
    ("He says that she sleeps today.", "Er sagt, dass heute schläft sie."),
    ("The lady calls the king.", "Die Dame anruft den König."),
    ("The lady calls the king.", "Die Dame ruft den König."),
    ("He sleeps because he is tired.", "Er schläft, weil er ist müde."),
    ("He sleeps because he is tired.", "Er schläft weil er müde ist."),
    ("He arrived.", "Er hat angekommen."),
    ("The boys help the women.", "Die Jungen helfen die Frauen."),
    ("The dogs help the boys.", "Die Hunde helfen den Jungen,."),
    ("We rest.", "Wir ruhen sich aus."),
    ("The man who sleeps laughs.", "Der Mann, der schläft lacht."),
    ("The man who sleeps laughs.", "Der Mann, der schläft,, lacht."),
    ("She sees the man who sleeps.", "Sie sieht den Mann, der schläft,."),
    ("A tired teacher sleeps.", "Ein müde Lehrer schläft."),
    ("A tired teacher sleeps.", "Eine müder Lehrer schläft."),
    ("She drinks cold water.", "Sie trinkt kalte Wasser."),
  ],
)
def test_wrong_german_is_refused(source, wrong):
  assert not generated.is_rendering(source, wrong)


def test_ambiguous_words_have_all_their_renderings():
  assert set(generated.renderings("The teacher gladly sleeps.")) == {
    "Der Lehrer schläft gern.",
    "Der Lehrer schläft gerne.",
    "Die Lehrerin schläft gern.",
    "Die Lehrerin schläft gerne.",
  }
  assert generated.renderings("The boats were sold.") == [
    "Die Boote wurden verkauft.",
    "Die Boote sind verkauft worden.",
  ]


def test_a_relative_clause_keeps_the_article_whole():
  (only,) = generated.renderings("Emma dreams of the boy who sleeps.")
  assert only == "Emma träumt von dem Jungen, der schläft."


def test_equal_english_has_equal_renderings():
  """A source never has two readings with different German."""
  several = 0
  for source in SAMPLE:
    nodes = examples._lattices(source)
    several += len(nodes) > 1
    sets = [
      {lattice.finish(text) for _, text in lattice.best(node, 5_000)}
      for node in nodes
    ]
    assert all(one == sets[0] for one in sets), source
  # What `num_sentences` says of derivations is nearly true of sentences.
  assert several <= len(SAMPLE) // 50


def test_drawn_targets_are_right_renderings():
  for index in range(400):
    source, target = generated.pair("train", index)
    assert generated.is_rendering(source, target), (source, target)


def test_membership_is_the_enumerated_set():
  """On changed texts too: a word dropped, doubled, swapped or exchanged."""
  rng = random.Random(5)
  accepted = tried = 0
  for source in SAMPLE:
    if generated.num_renderings(source) > 300:
      continue
    everything = generated.renderings(source)
    assert len(set(everything)) == len(everything)
    known = set(everything)
    assert all(generated.is_rendering(source, text) for text in everything)
    words = rng.choice(everything).split()
    other = generated.references(rng.choice(SAMPLE), 1)[0].split()
    for _ in range(8):
      changed = list(words)
      place = rng.randrange(len(words))
      match rng.randrange(4):
        case 0:
          del changed[place]
        case 1:
          changed.insert(place, changed[place])
        case 2:
          swap = rng.randrange(len(words))
          changed[place], changed[swap] = changed[swap], changed[place]
        case 3:
          changed[place] = rng.choice(other)
      text = " ".join(changed)
      tried += 1
      accepted += text in known
      assert generated.is_rendering(source, text) == (text in known)
  assert tried > 1_000
  assert accepted > 0


def test_enumeration_is_what_is_drawn_with_its_probabilities():
  source = "On Monday the teacher quickly buys the huge hat in the garden."
  tree, *more = examples._grammar()[0].parse(
    examples._grammar()[1], ["on", *english.tokenize(source)[1:]]
  )
  assert not more
  node = rendering.sentence(lattice.Everything(), tree)
  law = {lattice.finish(t): p for p, t in lattice.best(node, 10_000)}
  assert sum(law.values()) == pytest.approx(1, abs=1e-12)
  assert len(law) == lattice.count(node) == generated.num_renderings(source)
  draws = 4_000
  uniform = random.Random(11).random
  counts = collections.Counter(
    lattice.finish(rendering.sentence(lattice.Draw(uniform), tree))
    for _ in range(draws)
  )
  assert set(counts) <= set(law)
  # Five standard deviations for each of the likely ones.
  for text, p in law.items():
    if p * draws > 20:
      deviation = (draws * p * (1 - p)) ** 0.5
      assert abs(counts[text] - draws * p) < 5 * deviation, text


def test_references_are_the_likeliest_in_order():
  for source in SAMPLE[:100]:
    several = generated.references(source)
    assert 1 <= len(several) <= 8
    assert len(several) == min(8, generated.num_renderings(source))
    assert several[:3] == generated.references(source, 3)


def test_sources_outside_the_grammar():
  for source in (
    "The cat barks.",
    "",
    "the man sleeps.",
    "The man sleeps",
    "The man sleep.",
    "A old man sleeps.",
    "I see the hat of this men.",
    "An man sleeps.",
  ):
    with pytest.raises(ValueError, match="not a sentence of the generated"):
      generated.references(source)


def test_too_many_renderings_are_not_listed():
  source = "The strange teacher usually greets the strange clever neighbour."
  source = source.replace("strange clever", "funny")
  total = generated.num_renderings(source)
  with pytest.raises(ValueError, match=f"{total} renderings are more than 10"):
    generated.renderings(source, 10)


_WORD = r"[A-Za-zÄÖÜäöüß]+"
_SENTENCE = re.compile(rf"[A-ZÄÖÜ][a-zäöüß]*(,? {_WORD})*\.")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**40), st.sampled_from(generated.SPLITS))
def test_well_formed(index, split):
  source, target = generated.pair(split, index)
  assert _SENTENCE.fullmatch(target), target
  assert source[0].isupper()
  assert source.endswith(".")
  assert len(english.tokenize(source)) <= examples.MAX_WORDS
  # A clause that a conjunction opens stands behind a comma or at the start.
  for word in ("weil", "dass", "ob", "obwohl", "wenn", "sobald", "bevor"):
    for found in re.finditer(rf" {word} ", target):
      before = target[: found.start()]
      assert before.endswith((",", " und")), target
  assert "  " not in source + target
  assert not re.search(r"\b(in|an|zu) dem\b(?!.*,)", target), target


@pytest.mark.parametrize(
  "text", ["", ".", ",", ",.", ";.", " .", "a,.", "⁇.", "Er schläft;.", "ß."]
)
def test_what_a_poor_model_writes_is_refused_not_an_error(text):
  assert not generated.is_rendering("He sleeps.", text)
