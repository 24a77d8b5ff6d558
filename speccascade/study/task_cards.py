"""Tasks with a gate of quality: what is fixed, what is free, how it is scored.

A card lets two people compare decoders whose outputs are not the same. The
quality may be lower than that of the large model alone by a margin, as far as
the examples show; of what passes this gate, the time of an answer counts.
docs/task_cards.md prints the cards, and `study.report.task_score` scores
folders by them.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

BASELINE = "verifier"


@dataclasses.dataclass(frozen=True)
class TaskCard:
  """A task, and how a folder of results becomes a score.

  Attributes:
    title: what is decoded.
    metric: the metric of the gate, a name of `quality.METRICS` or one that such
      a metric reports.
    scored_by: the name in `quality.METRICS` that computes it of texts.
    margin: the gate: the lower end of the paired 95% interval of the quality,
      minus the baseline's, is not below -margin.
    fixed: settings that every entry has.
    verifier_parameters: the number of the large model's parameters.
    num_timed: how many examples are timed at least, at batch size 1.
    free: what an entry chooses, in words.
    models: the commands that make the vocabulary and the models.
    baseline: the command that decodes and times the baseline beside an entry.
  """

  title: str
  metric: str
  scored_by: str
  margin: float
  fixed: Mapping[str, Any]
  verifier_parameters: int
  num_timed: int
  free: str
  models: tuple[str, ...]
  baseline: str

  @property
  def gate(self) -> str:
    """The gate in words."""
    return (
      f"the paired 95% interval of {self.metric} minus the baseline's begins at"
      f" -{self.margin:g} or above"
    )


_FREE = (
  "the drafter, the method, alpha, the draft tree, the draft length, and every"
  " setting of the program that leaves the verifier's parameters as they are"
)
CARDS = {
  "multi30k": TaskCard(
    title="Multi30k, English to German, test_2016_flickr, T = 1",
    metric="bleu",
    scored_by="bleu",
    margin=2.0,
    fixed={
      "task": "multi30k_en_de",
      "split": "test",
      "num_examples": 1000,
      "temperature": 1.0,
      "max_decode_len": 64,
      "trials": 1,
    },
    verifier_parameters=26_387_968,
    num_timed=200,
    free=_FREE,
    models=(
      "python -m speccascade.train"
      " --gin_file=configs/experiments/multi30k/train_small.gin"
      " --gin.TRAIN_FILES='\"data/train\"'"
      " --gin.VALIDATION_FILES='\"data/val\"'"
      " --gin.VOCABULARY='\"multi30k.model\"' --gin.MODEL_DIR='\"small\"'",
      "python -m speccascade.train"
      " --gin_file=configs/experiments/multi30k/train_wide.gin"
      " --gin.TRAIN_FILES='\"data/train\"'"
      " --gin.VALIDATION_FILES='\"data/val\"'"
      " --gin.VOCABULARY='\"multi30k.model\"' --gin.MODEL_DIR='\"wide\"'",
    ),
    baseline=(
      "python -m speccascade.sweep"
      " --gin_file=configs/experiments/multi30k/results_papers.gin"
      ' --gin.METHODS=\'["spec_decode", "spec_cascade_token_v1"]\''
      " --gin.NUM_EXAMPLES=1000 --gin.NUM_TIMED=200"
      " --gin.TEST_FILES='\"data/test_2016_flickr\"'"
      " --gin.VOCABULARY='\"multi30k.model\"'"
      " --gin.DRAFTER_CHECKPOINT='\"small\"'"
      " --gin.VERIFIER_CHECKPOINT='\"wide\"' --gin.OUTPUT_DIR='\"out/entry\"'"
    ),
  ),
  "gsm8k": TaskCard(
    title="GSM8K, worked solutions, the first 600 test problems, T = 1",
    metric="rouge2",
    scored_by="rouge",
    margin=1.0,
    fixed={
      "task": "gsm8k_files",
      "split": "test",
      "num_examples": 600,
      "temperature": 1.0,
      "max_decode_len": 224,
      "trials": 1,
    },
    verifier_parameters=26_387_968,
    num_timed=120,
    free=_FREE,
    models=(
      "python -m speccascade.train"
      " --gin_file=configs/experiments/gsm8k/train_small.gin"
      " --gin.TRAIN_FILES='\"gsm8k/train.jsonl.gz\"'"
      " --gin.VALIDATION_FILES='\"gsm8k/test.jsonl.gz\"'"
      " --gin.VOCABULARY='\"gsm8k.model\"' --gin.MODEL_DIR='\"small\"'",
      "python -m speccascade.train"
      " --gin_file=configs/experiments/gsm8k/train_wide.gin"
      " --gin.TRAIN_FILES='\"gsm8k/train.jsonl.gz\"'"
      " --gin.VALIDATION_FILES='\"gsm8k/test.jsonl.gz\"'"
      " --gin.VOCABULARY='\"gsm8k.model\"' --gin.MODEL_DIR='\"wide\"'",
    ),
    baseline=(
      "python -m speccascade.sweep"
      " --gin_file=configs/experiments/gsm8k/sweep.gin"
      ' --gin.METHODS=\'["spec_decode", "spec_cascade_token_v3"]\''
      " --gin.TEMPERATURES='[1.0]' --gin.NUM_EXAMPLES=600 --gin.NUM_TIMED=120"
      " --gin.TEST_FILES='\"gsm8k/test.jsonl.gz\"'"
      " --gin.VOCABULARY='\"gsm8k.model\"'"
      " --gin.DRAFTER_CHECKPOINT='\"small\"'"
      " --gin.VERIFIER_CHECKPOINT='\"wide\"' --gin.OUTPUT_DIR='\"out/entry\"'"
    ),
  ),
}
