"""Quality of predictions against references, with bootstrap intervals.

Every metric is a function `(predictions, references) -> [Statistics]`. A
reference is a string or a list of strings; lists may differ in length. A score
is a function of sums over examples, so that a bootstrap resample costs one
matrix product and not a second pass over the texts.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import importlib.metadata
import itertools

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from speccascade.evaluation import answers
from speccascade.runtime.progress import ProgressBar

ROUGE_TYPES = ("rouge1", "rouge2", "rougeLsum")
SAMPLES = 1000  # bootstrap resamples of an interval
REPLICATES = 200  # of them, those that result rows keep
_DIGITS = 4


@dataclasses.dataclass(frozen=True)
class Statistics:
  """What a corpus score needs to know of each example.

  Attributes:
    name: the metric's name, as in result files.
    sums: [N, K] float64, added over examples before `score`.
    score: from the K totals to a number, 0 to 100.
    signature: tells how it was computed; equal signatures are comparable.
  """

  name: str
  sums: np.ndarray
  score: Callable[[np.ndarray], float]
  signature: str

  @property
  def value(self) -> float:
    """The corpus score."""
    return float(self.score(self.sums.sum(axis=0)))

  def grouped(self, groups: Sequence[int]) -> "Statistics":
    """Returns the same score with rows of one group added up.

    The bootstrap then takes a group, say all trials of an example, whole or
    not at all.

    Args:
      groups: N numbers; equal ones are a group. Groups are in ascending order.
    """
    if len(groups) != len(self.sums):
      raise ValueError(f"{len(groups)} groups for {len(self.sums)} examples")
    numbers, place = np.unique(groups, return_inverse=True)
    sums = np.zeros((len(numbers), self.sums.shape[1]))
    np.add.at(sums, place, self.sums)
    return dataclasses.replace(self, sums=sums)

  def bootstrap(self, samples: int = SAMPLES, seed: int = 0) -> np.ndarray:
    """Returns [samples] scores of resampled corpora.

    The same seed resamples the same examples: subtract two systems' arrays for
    a paired comparison.
    """
    rng = np.random.default_rng(seed)
    num = len(self.sums)
    scores = np.empty(samples)
    for i in range(samples):
      counts = np.bincount(rng.integers(num, size=num), minlength=num)
      scores[i] = self.score(counts @ self.sums)
    return scores

  def entry(
    self, groups: Sequence[int] | None = None, replicates: int = 0
  ) -> dict:
    """Returns the score as result rows hold it; arguments as in `evaluate`."""
    whole = self if groups is None else self.grouped(groups)
    scores = whole.bootstrap()
    low, high = np.percentile(scores, [2.5, 97.5]).tolist()
    entry = {"value": self.value, "low": low, "high": high}
    if replicates:
      entry["replicates"] = np.round(scores[:replicates], _DIGITS).tolist()
    return entry | {"num_examples": len(self.sums), "signature": self.signature}


def _ratio(sums) -> float:
  return 100 * sums[0] / sums[1] if sums[1] else 0.0


def _mean(name, values, signature) -> Statistics:
  values = np.asarray(values, np.float64)
  pairs = np.stack([values, np.ones_like(values)], axis=1)
  return Statistics(name, pairs, _ratio, signature)


def _checked(predictions, references) -> tuple[list[str], list[list[str]]]:
  """Returns predictions, and references as lists.

  Raises:
    ValueError: nothing to score, unequal counts, or no reference somewhere.
  """
  predictions = list(predictions)
  references = [[r] if isinstance(r, str) else list(r) for r in references]
  if len(predictions) != len(references):
    raise ValueError(
      f"{len(predictions)} predictions against {len(references)} references: "
      "want one (or one list) each"
    )
  if not predictions:
    raise ValueError("no predictions to score")
  for i, several in enumerate(references):
    if not several:
      raise ValueError(f"example {i} has no reference")
  return predictions, references


def _sacrebleu(name, metric, predictions, references) -> list[Statistics]:
  predictions, references = _checked(predictions, references)
  width = max(map(len, references))
  streams = list(itertools.zip_longest(*references))
  sums = metric._extract_corpus_statistics(predictions, streams)
  metric.num_refs = metric.num_refs or width  # for the signature only
  score = lambda totals: metric._compute_score_from_stats(list(totals)).score
  signature = str(metric.get_signature())
  return [Statistics(name, np.asarray(sums, np.float64), score, signature)]


def bleu(predictions, references, *, tokenize: str = "13a"):
  """Corpus BLEU as sacrebleu computes it, against any number of references.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
    tokenize: sacrebleu's tokenizer; "13a" is its default, "intl" is T5's.
  """
  metric = BLEU(tokenize=tokenize)
  return _sacrebleu("bleu", metric, predictions, references)


def chrf(predictions, references):
  """Corpus chrF (character F-score) as sacrebleu computes it."""
  return _sacrebleu("chrf", CHRF(), predictions, references)


def _sentences_on_lines(text: str) -> str:
  # rougeLsum wants a sentence a line. The T5 vocabulary turns line breaks into
  # blanks, and CNN/DailyMail's sentences end in " . "; T5 does the same.
  return text.replace(" . ", " .\n")


def rouge(predictions, references, *, types: Sequence[str] = ROUGE_TYPES):
  """ROUGE F-scores: the mean over examples.

  Without stemming, as T5 evaluates. Of several references the best one counts,
  for each type by itself.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
    types: which; ROUGE-Lsum takes most of the time.
  """
  from rouge_score import rouge_scorer

  predictions, references = _checked(predictions, references)
  scorer = rouge_scorer.RougeScorer(list(types), use_stemmer=False)
  values = {name: [] for name in types}
  pairs = zip(predictions, references)
  bar = {"desc": "ROUGE", "unit": " examples", "delay": 3, "mininterval": 1}
  for prediction, several in ProgressBar(pairs, total=len(predictions), **bar):
    prediction = _sentences_on_lines(prediction)
    scores = [
      scorer.score(_sentences_on_lines(reference), prediction)
      for reference in several
    ]
    for name in types:
      values[name].append(max(s[name].fmeasure for s in scores))
  version = importlib.metadata.version("rouge-score")
  most = max(map(len, references))
  signature = f"nrefs:{most}|stemmer:no|version:{version}"
  return [_mean(name, values[name], signature) for name in types]


def exact_match(
  predictions, references, *, read=str.strip, name: str = "exact_match"
):
  """Share of predictions whose answer equals that of one of the references.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
    read: takes the answer out of a text; None is no answer, and wrong.
    name: the metric's name.
  """
  predictions, references = _checked(predictions, references)
  right = [
    (answer := read(prediction)) is not None
    and any(answer == read(reference) for reference in several)
    for prediction, several in zip(predictions, references)
  ]
  signature = f"read:{read.__name__}"
  return [_mean(name, right, signature)]


# Name -> (predictions, references) -> [Statistics].
METRICS = {
  "bleu": bleu,
  "bleu_intl": functools.partial(bleu, tokenize="intl"),
  "chrf": chrf,
  "rouge": rouge,
  "rouge2": functools.partial(rouge, types=("rouge2",)),
  "exact_match": exact_match,
  # Where the references are all that is right, as in the built-in task.
  "valid": functools.partial(exact_match, name="valid"),
  "gsm8k": functools.partial(exact_match, read=answers.number),
  "mmlu": functools.partial(exact_match, read=answers.letter, name="accuracy"),
}


def metric(name: str):
  """Returns the metric of a name in `METRICS`.

  Raises:
    ValueError: there is none, with the names there are.
  """
  if name not in METRICS:
    raise ValueError(f"no metric {name!r}: there are {', '.join(METRICS)}")
  return METRICS[name]


def evaluate(
  names: Sequence[str],
  predictions: Sequence[str],
  references: Sequence,
  *,
  groups: Sequence[int] | None = None,
  replicates: int = 0,
) -> dict[str, dict]:
  """Returns the scores of a prediction file, ready for JSON.

  Args:
    names: metrics, keys of `METRICS`.
    predictions: N strings.
    references: N strings or lists of strings.
    groups: N numbers, such as the examples' indices where each was decoded
      several times: equal ones are resampled together. None: each by itself.
    replicates: how many of the resampled scores to keep, under "replicates".
      Of equally many groups, the same groups are in the i-th resample:
      differences of replicates are a paired comparison.

  Returns:
    {"bleu": {"value": 34.1, "low": 33.0, "high": 35.2, "num_examples": N,
    "signature": "..."}, ...}: 95% bootstrap intervals.

  >>> evaluate(["exact_match"], ["a"], ["a"])["exact_match"]["high"]
  100.0
  """
  return {
    statistics.name: statistics.entry(groups, replicates)
    for name in names
    for statistics in metric(name)(predictions, references)
  }


def seqio_metric(name: str):
  """Returns a metric in seqio's form: `(targets, predictions) -> scores`."""
  function = metric(name)

  def metric_fn(targets, predictions):
    return {s.name: s.value for s in function(predictions, targets)}

  metric_fn.__name__ = name
  return metric_fn
