"""Metrics against hand-worked numbers and against the libraries themselves."""

import gzip
import json
import math

import numpy as np
import pytest
from rouge_score import rouge_scorer
import sacrebleu

from speccascade.study.measuring.study import Measuring
from speccascade.tasks import quality, sentences

PREDICTIONS = [
  "the cat sat on the mat",
  "there is a dog in the big garden",
  "he went home",
  "all of it is wrong here",
]
REFERENCES = [
  ["the cat sat on the mat", "a cat was sitting on the mat"],
  ["a dog is in the big garden", "there is a dog"],
  ["he went home early", "he has gone home", "home he went"],
  ["nothing matches"],
]


def value(statistics, name=None):
  by_name = {s.name: s.value for s in statistics}
  return by_name[name] if name else statistics[0].value


def test_bleu_by_hand():
  # Prediction "a b c d e", reference "a b c d f g":
  # unigrams 4/5, bigrams 3/4, trigrams 2/3, 4-grams 1/2; the product is 1/5,
  # its fourth root .668740; brevity exp(1 - 6/5) = .818731; 54.7518 in all.
  score = value(quality.bleu(["a b c d e"], ["a b c d f g"]))
  assert score == pytest.approx(100 * 0.2**0.25 * math.exp(-0.2), abs=1e-9)
  assert value(quality.bleu(["x y z"], ["a b c"])) == 0


def test_scores_equal_sacrebleus():
  streams = [
    [r[i] if i < len(r) else None for r in REFERENCES] for i in range(3)
  ]
  first = [r[0] for r in REFERENCES]
  for metric, library in (
    (quality.bleu, sacrebleu.corpus_bleu),
    (quality.chrf, sacrebleu.corpus_chrf),
  ):
    # Of any number of references; one each may be strings or lists.
    several = value(metric(PREDICTIONS, REFERENCES))
    assert several == pytest.approx(library(PREDICTIONS, streams).score)
    plain = value(metric(PREDICTIONS, first))
    assert plain == pytest.approx(library(PREDICTIONS, [first]).score)
    assert value(metric(PREDICTIONS, [[r] for r in first])) == plain
    assert value(metric(PREDICTIONS, PREDICTIONS)) == pytest.approx(100)
  (ours,), (t5s,) = (
    quality.METRICS[name](PREDICTIONS, REFERENCES)
    for name in ("bleu", "bleu_intl")
  )
  assert "tok:13a" in ours.signature
  assert "tok:intl" in t5s.signature


def test_rouge_by_hand():
  # Prediction "a b c d", reference "a b d e f": unigrams 3 of 4 and 3 of 5, so
  # F = 2 * .75 * .6 / 1.35 = 2/3; bigrams "a b" alone, 1 of 3 and 1 of 4, so
  # F = 2/7; the longest common subsequence is a b d, so F = 2/3 again.
  scores = quality.rouge(["a b c d"], ["a b d e f"])
  assert value(scores, "rouge1") == pytest.approx(200 / 3)
  assert value(scores, "rouge2") == pytest.approx(200 / 7)
  assert value(scores, "rougeLsum") == pytest.approx(200 / 3)
  # The best reference counts, and examples are averaged.
  scores = quality.rouge(["a b c d", "x"], [["a b d e f", "a b c d"], ["y"]])
  assert value(scores, "rouge2") == pytest.approx(50)
  (alone,) = quality.metric("rouge2")(["a b c d"], ["a b d e f"])
  assert alone.value == pytest.approx(200 / 7)
  # A text without the line breaks of its reference: sentences end in " . ".
  together = quality.rouge(["b c . a d ."], ["b c .\na d ."])
  assert value(together, "rougeLsum") == pytest.approx(100)
  # Were they one line, the order of the two sentences would matter.
  swapped = quality.rouge(["a d . b c ."], ["b c .\na d ."])
  assert value(swapped, "rougeLsum") == pytest.approx(100)


def test_rouge_l_by_hand():
  # "a b c d e" against "b a c e": of its subsequences "b c e" and "a c e" are
  # the longest that the other has, so F = 2 * 3 / (5 + 4). ROUGE-L does not see
  # lines; of the bigrams none is shared.
  (score,) = quality.metric("rougeL")(["a b c d e"], ["b a\nc e"])
  assert score.name == "rougeL"
  assert score.value == pytest.approx(600 / 9)
  assert value(quality.metric("rouge2")(["a b c d e"], ["b a c e"])) == 0
  # The scorer itself, with its own words.
  scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
  by_library = [
    max(scorer.score(r, text)["rougeL"].fmeasure for r in several)
    for text, several in zip(PREDICTIONS, REFERENCES)
  ]
  (score,) = quality.metric("rougeL")(PREDICTIONS, REFERENCES)
  assert score.value == pytest.approx(100 * np.mean(by_library))


@pytest.mark.parametrize(
  ("prediction", "references", "exact", "f1"),
  [
    # Case, articles, punctuation and blanks do not count.
    (" the  Eiffel-Tower!", "Eiffeltower", 1, 1),
    ("An apple a day", ["apple day"], 1, 1),
    # Hyphens go before articles are looked for: "a-b" is the word "ab".
    ("a-b", ["b"], 0, 0),
    # "theory" holds "the", and is not an article.
    ("theory", ["ory"], 0, 0),
    # "new york city" and "york city hall": 2 words of 3 and 3, so F1 is 2/3.
    ("New York City", ["York City Hall"], 0, 2 / 3),
    # A word counts as often as both have it: 1 of 2 and of 1.
    ("no no", ["no"], 0, 2 / 3),
    ("no no", ["No, no."], 1, 1),
    # Each score has the best of several answers.
    ("Paris, France", ["in Paris", "Paris", "France Paris"], 0, 1),
    ("Paris", ["London", "paris."], 1, 1),
    # Without an answer: the empty text, and the word of the prompt for it.
    ("", "", 1, 1),
    ("Unanswerable.", "unanswerable", 1, 1),
    ("", ["unanswerable"], 1, 1),
    ("Paris", ["unanswerable"], 0, 0),
    ("unanswerable", ["Paris"], 0, 0),
    # References that are nothing are left out beside others.
    ("", ["Paris", "the"], 0, 0),
    ("the", ["The"], 1, 1),
  ],
)
def test_squad_by_hand(prediction, references, exact, f1):
  scores = quality.metric("squad")([prediction], [references])
  assert [s.name for s in scores] == ["exact", "f1"]
  assert value(scores, "exact") == 100 * exact
  assert value(scores, "f1") == pytest.approx(100 * f1)


def test_squad_is_a_mean_with_an_interval():
  scores = quality.evaluate(["squad"], ["a b", "c", ""], [["b"], ["x"], [""]])
  assert scores["exact"]["value"] == pytest.approx(200 / 3)
  assert scores["f1"]["low"] <= scores["f1"]["value"] <= scores["f1"]["high"]
  assert "squad" in scores["f1"]["signature"]
  assert quality.with_exact_match(("squad",), [["red"]]) == ("squad",)


def test_questions_without_an_answer_are_scored_by_themselves():
  # As SQuAD 2.0's script: of those with an answer, and of those without one.
  predictions = ["b", "no", "", "unanswerable", "no"]
  references = [["a b"], ["x", "The"], ["The"], ["unanswerable"], [""]]
  scores = quality.evaluate(["squad"], predictions, references)
  means = {name: score["value"] for name, score in scores.items()}
  assert means == pytest.approx(
    {
      "exact": 100 * 3 / 5,
      "f1": 100 * 3 / 5,
      "HasAns_exact": 100 * 2 / 3,
      "HasAns_f1": 100 * 2 / 3,
      "NoAns_exact": 50,
      "NoAns_f1": 50,
    }
  )
  numbers = {name: score["num_examples"] for name, score in scores.items()}
  assert (numbers["f1"], numbers["HasAns_f1"], numbers["NoAns_f1"]) == (5, 3, 2)
  assert scores["NoAns_f1"]["low"] < 50 < scores["NoAns_f1"]["high"]
  # A third of the resampled corpora lack the one question without an answer.
  answers = ["b"] * 9 + [""]
  scores = quality.evaluate(["squad"], answers, [[x] for x in answers])
  ends = {x: scores["NoAns_f1"][x] for x in ("low", "value", "high")}
  assert ends == {"low": 100, "value": 100, "high": 100}


def test_rouge_puts_the_sentences_of_both_sides_on_lines():
  # CNN/DailyMail 3.4.0 has no blank before a full stop. The lines of its
  # references are sentences; a prediction of T5 has blanks in their place.
  reference = (
    'Kane, 21, won at St. Mary\'s.\nHe said: "Great!"\nOther A.B. Lee.'
  )
  one_line = reference.replace("\n", " ")
  swapped = 'He said: "Great!" Kane, 21, won at St. Mary\'s. Other A.B. Lee.'
  for prediction in (reference, one_line, swapped):
    for wanted in (reference, one_line):
      scores = quality.rouge([prediction], [wanted])
      assert value(scores, "rougeLsum") == pytest.approx(100)
  assert sentences.on_lines(one_line) == reference
  inside = "The U.S. Senate. Sen. J. Lee of No. 10 paid $1.5 m. vs. 3 p.m. now"
  assert sentences.on_lines(inside) == inside.replace("te. ", "te.\n")
  # On one line the two orders have half of the words in common.
  assert value(scores, "rouge1") == pytest.approx(100)
  assert value(scores, "rouge2") < 100
  assert scores[2].signature.endswith("|lines:sentences")


def test_scripts_without_blanks(caplog):
  # The two differ in 一起 and 走走 for 散步. "13a" sees two words that differ,
  # so BLEU is 0, which a warning explains.
  texts = (
    ["今天天气很好，我们去公园散步吧。"],
    ["今天天气很好，我们一起去公园走走吧。"],
  )
  assert value(quality.bleu(*texts)) == 0
  assert 'METRICS = ["bleu_zh"]' in caplog.text
  caplog.clear()
  assert value(quality.metric("bleu_zh")(*texts)) == pytest.approx(
    56.602, abs=1e-3
  )
  assert value(quality.metric("bleu_char")(*texts)) > 50
  quality.bleu(["a 今天"], ["it is 今天"])
  assert not caplog.text
  quality.bleu(["今日はいい天気"], ["今日はいい天気です"])
  assert 'METRICS = ["bleu_ja"]' in caplog.text


@pytest.mark.parametrize("language", ["ja", "ko"])
def test_missing_words_of_sacrebleu_are_one_line(language, monkeypatch):
  def refuse(tokenize):
    raise RuntimeError(f"\n{tokenize} requires\n\nextra dependencies")

  monkeypatch.setattr(quality, "BLEU", refuse)
  message = (
    rf"{language}-mecab is not installed: pip install 'sacrebleu\[{language}"
  )
  with pytest.raises(ValueError, match=message):
    quality.metric(f"bleu_{language}")


def test_the_share_of_unread_answers(caplog):
  scores = quality.evaluate(["mmlu"], ["**C**", "dogs", "B", "cats"], ["C"] * 4)
  assert scores["accuracy"]["value"] == 25
  assert scores["accuracy"]["unread"] == 50
  assert not caplog.text
  scores = quality.evaluate(["gsm8k"], ["so 18"], ["#### none"])
  assert scores["exact_match"]["unread"] == 0
  assert "1 of 1 examples have no reference in which a number" in caplog.text
  assert (
    "unread"
    not in quality.evaluate(["exact_match"], ["a"], ["b"])["exact_match"]
  )


def test_exact_match():
  gsm8k = quality.METRICS["gsm8k"]
  predictions = ["#### 1,000", "it is 18.00", "no idea", "#### 7"]
  references = ["x #### 1000", "y #### 18", "z #### 3", "w #### 8"]
  assert value(gsm8k(predictions, references)) == 50
  # Two texts without an answer are not a match.
  assert value(gsm8k(["none"], ["nothing"])) == 0
  mmlu = quality.METRICS["mmlu"]
  assert value(mmlu(["so the answer is (C).", "A"], ["C", "B"])) == 50
  assert value(quality.exact_match([" a "], [["b", "a"]])) == 100


def test_bootstrap_of_a_mean_has_the_textbook_width():
  # A share of .3 of n = 400 has the standard error sqrt(.21 / 400) = .0229;
  # the 95% interval is 1.96 of it to each side. 2,000 resamples leave its ends
  # uncertain by about 4%: sqrt(.025 * .975 / 2000) / density(1.96), that is
  # .06 standard errors; 5 of those are the tolerance.
  texts = ["y"] * 120 + ["n"] * 280
  (statistics,) = quality.exact_match(texts, ["y"] * 400)
  scores = statistics.bootstrap(samples=2000, seed=1)
  low, high = np.percentile(scores, [2.5, 97.5])
  error = 100 * math.sqrt(0.3 * 0.7 / 400)
  assert low == pytest.approx(30 - 1.96 * error, abs=0.3 * error)
  assert high == pytest.approx(30 + 1.96 * error, abs=0.3 * error)


def test_bootstrap_is_seeded_and_paired():
  (a,) = quality.bleu(PREDICTIONS, REFERENCES)
  (b,) = quality.bleu(list(PREDICTIONS), REFERENCES)
  first = a.bootstrap(50, seed=3)
  np.testing.assert_array_equal(first, b.bootstrap(50, seed=3))
  assert (first != a.bootstrap(50, seed=4)).any()
  # One resample, by the library itself on the resampled texts.
  rows = np.random.default_rng(3).integers(4, size=4)
  (again,) = quality.bleu(
    [PREDICTIONS[i] for i in rows], [REFERENCES[i] for i in rows]
  )
  assert first[0] == pytest.approx(again.value)


def test_evaluate():
  scores = quality.evaluate(["bleu", "rouge"], PREDICTIONS, REFERENCES)
  assert list(scores) == ["bleu", *quality.ROUGE_TYPES]
  for entry in scores.values():
    assert entry["low"] <= entry["value"] <= entry["high"]
    assert entry["num_examples"] == 4
    assert entry["signature"]
  seqio_form = quality.seqio_metric("bleu")
  score = seqio_form(targets=REFERENCES, predictions=PREDICTIONS)
  assert score == {"bleu": scores["bleu"]["value"]}


def test_wrong_input():
  with pytest.raises(ValueError, match="no metric 'blue': there are bleu"):
    quality.metric("blue")
  with pytest.raises(ValueError, match="2 predictions against 1 references"):
    quality.bleu(["a", "b"], ["a"])
  with pytest.raises(ValueError, match="no predictions"):
    quality.rouge([], [])
  with pytest.raises(ValueError, match="example 1 has no reference"):
    quality.exact_match(["a", "b"], [["a"], []])


def test_gsm8k_agrees_with_its_authors(real_data):
  # 2,000 model solutions, each with the authors' own verdict.
  def read(name):
    with gzip.open(real_data / "gsm8k" / name, "rt") as file:
      return [json.loads(line) for line in file]

  references = [e["targets"] for e in read("test_first1000.jsonl.gz")]
  solutions = read("model_solutions_first1000.jsonl.gz")
  for model in ("6b_finetuning", "175b_verification"):
    texts = [e[model]["solution"] for e in solutions]
    (scores,) = quality.METRICS["gsm8k"](texts, references)
    verdicts = [e[model]["is_correct"] for e in solutions]
    np.testing.assert_array_equal(scores.sums[:, 0], verdicts)


def test_trials_of_an_example_are_resampled_together():
  # Two trials that agree say no more than one: same interval, same replicates.
  texts, right = ["y", "n", "y", "n"], ["y"] * 4
  (once,) = quality.exact_match(texts, right)
  (twice,) = quality.exact_match(texts * 2, right * 2)
  single = once.entry(replicates=5)
  both = twice.entry(groups=[0, 1, 2, 3] * 2, replicates=5)
  assert (single.pop("num_examples"), both.pop("num_examples")) == (4, 8)
  assert len(both["replicates"]) == 5
  assert both == single
  # Left apart, eight rows give a narrower interval.
  apart = twice.entry()
  assert apart["high"] - apart["low"] < single["high"] - single["low"]
  with pytest.raises(ValueError, match="3 groups for 4 examples"):
    once.grouped([0, 1, 2])


def test_replicates_are_the_first_resamples_by_whatever_order():
  (statistics,) = quality.exact_match(["y", "n", "y"], ["y"] * 3)
  entry = statistics.entry(replicates=10, groups=[4, 2, 9])
  # Groups are in ascending order: example 2 first, which is the wrong one.
  (ordered,) = quality.exact_match(["n", "y", "y"], ["y"] * 3)
  np.testing.assert_allclose(
    entry["replicates"], ordered.bootstrap()[:10], atol=1e-4
  )
  assert "replicates" not in statistics.entry()


OWN = """
from speccascade.tasks.corpus_scores import mean

def first_word(predictions, references):
  return [
    x.split()[0] in {y.split()[0] for y in several}
    for x, several in zip(predictions, references)
  ]

def as_statistics(predictions, references):
  return [mean("half", [0.5] * len(predictions), "half")]

def too_many(predictions, references):
  return [1.0] * 9

def words(predictions, references):
  return predictions

def percent(predictions, references):
  return [50.0] * len(predictions)
"""


def test_a_metric_of_ones_own(tmp_path, monkeypatch):
  (tmp_path / "own_metrics.py").write_text(OWN)
  monkeypatch.syspath_prepend(tmp_path)
  for place in ("own_metrics", f"{tmp_path}/own_metrics.py"):
    name = f"{place}:first_word"
    scores = quality.evaluate([name], PREDICTIONS, REFERENCES)
    entry = scores["first_word"]
    assert entry["value"] == 75
    assert entry["low"] <= 75 <= entry["high"]
    assert entry["signature"] == f"function:{name}"
  # It may return what the package's own metrics return, too.
  scores = quality.evaluate(
    ["own_metrics:as_statistics"], PREDICTIONS, REFERENCES
  )
  assert scores["half"]["value"] == 50
  for wrong in ("too_many", "words", "percent"):
    with pytest.raises(ValueError, match="wanted 4 numbers from 0 to 1"):
      quality.metric(f"own_metrics:{wrong}")(PREDICTIONS, REFERENCES)
  # Where a setting names it, it is loaded before anything is decoded.
  measuring = Measuring(metrics=["own_metrics:first_word"])
  assert measuring.metrics == ("own_metrics:first_word",)
  with pytest.raises(ValueError, match="own_metrics has no function missing"):
    Measuring(metrics=["own_metrics:missing"])
