"""Splits, determinism and size of the generated task."""

import hashlib
import itertools
import random
import subprocess
import sys

import pytest

from speccascade.data import generated
from speccascade.data.generated import english, examples, lexicon


def _digest(split):
  text = "\n".join("\t".join(generated.pair(split, i)) for i in range(50))
  return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def test_pairs_never_change():
  """A change here is a new task: raise VERSION, measure again."""
  assert examples.VERSION == 1
  assert {split: _digest(split) for split in generated.SPLITS} == {
    "train": "8394d5d27b8b32b2",
    "validation": "91e496d1cec40380",
    "test": "0264aea361a1413c",
  }


def test_the_split_hash_never_changes():
  assert [
    generated.split_of(text)
    for text in ("The man sleeps.", "The cat sleeps.", "Theo sleeps.")
  ] == ["train", "validation", "test"]


def test_order_of_access_does_not_matter():
  forward = [generated.pair("validation", i) for i in range(20)]
  backward = [generated.pair("validation", i) for i in reversed(range(20))]
  assert forward == backward[::-1]
  assert generated.pair("train", 10**12) == generated.pair("train", 10**12)


def test_splits_are_disjoint():
  sources = {
    split: {generated.pair(split, i)[0] for i in range(count)}
    for split, count in zip(generated.SPLITS, (3_000, 300, 300))
  }
  for left, right in itertools.combinations(sources.values(), 2):
    assert not left & right
  for split, texts in sources.items():
    assert {generated.split_of(text) for text in texts} == {split}


def test_the_hash_gives_each_split_its_share():
  texts = [f"text {i}" for i in range(20_000)]
  test = sum(generated.split_of(text) == "test" for text in texts) / 20_000
  # 0.05 +- 4 standard deviations of 20,000 draws.
  assert abs(test - 0.05) < 4 * (0.05 * 0.95 / 20_000) ** 0.5


def test_examples_hold_their_references():
  several = generated.pairs("test", 3, 5)
  assert several == [generated.example("test", i) for i in range(3, 8)]
  for one in several:
    assert (one.inputs, one.targets) == (
      generated.pair("test", several.index(one) + 3)
    )
    assert list(one.references) == generated.references(one.inputs)


def test_sentences_hardly_repeat():
  sources = [generated.pair("train", i)[0] for i in range(3_000)]
  assert len(set(sources)) > 0.99 * len(sources)


def test_more_than_ten_million_sentences():
  """Counted in one pattern alone, whose slots cannot be confused."""
  adjectives = [w.text for w in lexicon.ADJECTIVES + lexicon.LIVELY]
  persons = [w.forms["s"] for w in lexicon.PERSONS]
  verbs = [w.forms["s3"] for w in lexicon.ANY_VERBS]
  things = [w.forms["s"] for w in lexicon.THINGS]
  slots = [adjectives, persons, verbs, things, ["today", "in winter"]]
  slots.insert(3, [w.text for w in lexicon.ADJECTIVES + lexicon.LIFELESS])
  assert all(len(set(words)) == len(words) for words in slots)
  size = 1
  for words in slots:
    size *= len(words)
  assert size > 10_000_000
  rng = random.Random(2)
  for _ in range(60):
    a, person, verb, b, thing, time = (rng.choice(words) for words in slots)
    words = f"the {a} {person} {verb} the {b} {thing} {time}".split()
    assert generated.num_renderings(english.detokenize(words)) >= 1


def test_the_count_of_derivations():
  assert generated.num_sentences() > 10**40


def test_a_small_grammar_is_counted_exactly():
  from speccascade.data.generated.cfg import Grammar

  grammar = Grammar()
  grammar.words("N", [("a", 1), ("b c", 2)])
  grammar.rule("S", 1, "one", "x #N =_")
  grammar.rule("S", 1, "two", "#N #N")
  grammar.freeze()
  start = grammar.symbol("S")
  assert grammar.count(start, 4) == [0, 0, 2, 3, 1]
  assert grammar.count(start, 2) == [0, 0, 2]
  assert grammar.parse(start, ["b", "c", "a"]) == [("two", 2, 1)]
  assert grammar.parse(start, ["x", "a"]) == [("one", 1, None)]
  assert grammar.parse(start, ["x"]) == []


def test_a_grammar_with_a_hole_is_refused():
  from speccascade.data.generated.cfg import Grammar

  grammar = Grammar()
  grammar.rule("S", 1, "one", "x #GONE")
  with pytest.raises(ValueError, match="symbol GONE has no rules"):
    grammar.freeze()


def test_bad_arguments():
  with pytest.raises(ValueError, match="split 'dev' is unknown"):
    generated.pair("dev", 0)
  with pytest.raises(ValueError, match="index must be 0 or more"):
    generated.pair("test", -1)


def test_english_past_and_present_differ():
  """Else one source would have two readings."""
  for name in dir(lexicon):
    if name.endswith("_VERBS"):
      for word in getattr(lexicon, name):
        assert word.forms["past"] not in (word.forms["base"], word.forms["s3"])


def test_english_numbers():
  wanted = {
    0: "zero",
    21: "twenty-one",
    100: "one hundred",
    117: "one hundred and seventeen",
    1006: "one thousand and six",
    1999: "one thousand nine hundred and ninety-nine",
  }
  assert {n: english.number(n) for n in wanted} == wanted
  ordinals = {1: "first", 2: "second", 12: "twelfth", 23: "twenty-third"}
  assert {n: english.ordinal(n) for n in ordinals} == ordinals
  words = {english.number(n) for n in range(2_000)}
  assert len(words) == 2_000


def test_no_tensorflow_is_loaded():
  code = (
    "import sys; from speccascade.data import generated; "
    "generated.example('test', 0); "
    "print([m for m in ('tensorflow', 'seqio', 'jax') if m in sys.modules])"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == "[]"
