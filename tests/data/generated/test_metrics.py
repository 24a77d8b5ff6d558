"""BLEU against several references, and `valid` beside it."""

import pytest
import sacrebleu

from speccascade.data import generated
from speccascade.data.generated import metrics

SOURCES = ["The teacher gladly sleeps.", "The boats were sold.", "He arrived."]


def test_every_right_rendering_is_valid():
  predictions = [generated.renderings(source)[-1] for source in SOURCES]
  assert metrics.evaluate(predictions, SOURCES) == {
    "bleu": pytest.approx(100),
    "chrf": pytest.approx(100),
    "exact_match": 100,
    "valid": 100,
  }


def test_wrong_ones_count_by_their_share():
  predictions = [
    "Die Lehrerin schläft gern.",
    "Das Boot wurde verkauft.",
    "Er hat angekommen.",
  ]
  (share,) = metrics.valid(predictions, SOURCES)
  assert share.value == pytest.approx(100 / 3)
  assert metrics.evaluate(predictions, SOURCES)["bleu"] < 80


def test_bleu_is_sacrebleus():
  examples = generated.pairs("test", 0, 20)
  predictions = [one.targets for one in examples]
  width = max(len(one.references) for one in examples)
  streams = [
    [
      (one.references * 8)[i] if i < len(one.references) else one.references[0]
      for one in examples
    ]
    for i in range(width)
  ]
  found = metrics.evaluate(predictions, [one.inputs for one in examples])
  wanted = sacrebleu.corpus_bleu(predictions, streams).score
  assert found["bleu"] == pytest.approx(wanted)
  assert found["valid"] == 100


def test_counts_must_agree():
  with pytest.raises(ValueError, match="1 predictions for 3 sources"):
    metrics.valid(["Er schläft."], SOURCES)
