"""Quality of predictions against references, with bootstrap intervals.

Every metric is a function `(predictions, references) -> [Statistics]`. A
reference is a string or a list of strings; lists may differ in length. A score
is a function of sums over examples, so a bootstrap resample costs one matrix
product, not a second pass over the texts.
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
REPLICATES = 200  # how many resampled scores result rows hold
_DIGITS = 4  # decimals of a resampled score


@dataclasses.dataclass(frozen=True)
class Statistics:
  """The numbers of each example from which a corpus score is computed.

  Attributes:
    name: the metric's name in result files.
    sums: [N, K] float64, K numbers of each example, which are summed over
      examples before `score`. For BLEU they are counts of n-grams.
    score: a function from the K totals to a number, 0 to 100.
    signature: says how the score is computed; scores with equal signatures can
      be compared.
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
    """Returns statistics in which the examples of a group are one example.

    The bootstrap then draws a group, such as all trials of an example, as a
    whole. The corpus score is the same.

    Args:
      groups: N numbers; examples with equal numbers are a group. The result has
        the groups in ascending order of their numbers.

    Raises:
      ValueError: there are not N numbers.
    """
    if len(groups) != len(self.sums):
      raise ValueError(f"{len(groups)} groups for {len(self.sums)} examples")
    numbers, place = np.unique(groups, return_inverse=True)
    sums = np.zeros((len(numbers), self.sums.shape[1]))
    np.add.at(sums, place, self.sums)
    return dataclasses.replace(self, sums=sums)

  def bootstrap(self, samples: int = SAMPLES, seed: int = 0) -> np.ndarray:
    """Returns [samples] float64, the scores of resampled corpora.

    A seed draws the same examples for every metric and system of N examples.
    The difference of two systems' arrays is a paired comparison.
    """
    rng = np.random.default_rng(seed)
    num = len(self.sums)
    scores = np.empty(samples)
    for i in range(samples):
      # `counts` says how often each example is in the resampled corpus.
      counts = np.bincount(rng.integers(num, size=num), minlength=num)
      scores[i] = self.score(counts @ self.sums)
    return scores

  def entry(
    self, groups: Sequence[int] | None = None, replicates: int = 0
  ) -> dict:
    """Returns the score and its interval as a JSON value of a result row.

    Args:
      groups: see `evaluate`.
      replicates: see `evaluate`.
    """
    resampled = self if groups is None else self.grouped(groups)
    scores = resampled.bootstrap()
    low, high = np.percentile(scores, [2.5, 97.5]).tolist()
    entry = {"value": self.value, "low": low, "high": high}
    if replicates:
      entry["replicates"] = np.round(scores[:replicates], _DIGITS).tolist()
    return entry | {"num_examples": len(self.sums), "signature": self.signature}


def _percentage(totals) -> float:
  total, num = totals
  return 100 * total / num if num else 0.0


def _mean(name, values, signature) -> Statistics:
  """Returns the statistics of a mean over examples, in percent."""
  values = np.asarray(values, np.float64)
  pairs = np.stack([values, np.ones_like(values)], axis=1)
  return Statistics(name, pairs, _percentage, signature)


def _as_lists(predictions, references) -> tuple[list[str], list[list[str]]]:
  """Returns the predictions, and a list of references for each of them.

  Raises:
    ValueError: there are no predictions, the numbers of predictions and
      references differ, or an example has no reference.
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
  """Returns the statistics of one of sacrebleu's metrics.

  sacrebleu's public functions return scores alone; the bootstrap needs the
  counts of each example, which its private functions compute.
  """
  predictions, references = _as_lists(predictions, references)
  # sacrebleu takes one stream for each place in the lists of references. None
  # stands for a reference that an example does not have.
  streams = list(itertools.zip_longest(*references))
  sums = metric._extract_corpus_statistics(predictions, streams)
  # The signature says how many references there are. The private function does
  # not record the number, so it is set here.
  metric.num_refs = metric.num_refs or len(streams)

  def score(totals):
    return metric._compute_score_from_stats(list(totals)).score

  signature = str(metric.get_signature())
  return [Statistics(name, np.asarray(sums, np.float64), score, signature)]


def bleu(predictions, references, *, tokenize: str = "13a"):
  """Returns corpus BLEU as sacrebleu computes it.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
    tokenize: the name of sacrebleu's tokenizer; "13a" is sacrebleu's default,
      "intl" is what T5's evaluation uses.
  """
  metric = BLEU(tokenize=tokenize)
  return _sacrebleu("bleu", metric, predictions, references)


def chrf(predictions, references):
  """Returns corpus chrF (character F-score) as sacrebleu computes it.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
  """
  return _sacrebleu("chrf", CHRF(), predictions, references)


def _sentences_on_lines(text: str) -> str:
  # rougeLsum expects one sentence on each line. The T5 vocabulary turns line
  # breaks into blanks, so they are put back after the " . " that ends the
  # sentences of CNN/DailyMail. T5's evaluation does this too.
  return text.replace(" . ", " .\n")


def rouge(predictions, references, *, types: Sequence[str] = ROUGE_TYPES):
  """Returns ROUGE F-scores, the mean over examples of each type.

  There is no stemming, as in T5's evaluation. Of several references the one
  with the highest score counts, for each type by itself.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
    types: the types of ROUGE; rougeLsum takes most of the time.
  """
  from rouge_score import rouge_scorer

  predictions, references = _as_lists(predictions, references)
  scorer = rouge_scorer.RougeScorer(list(types), use_stemmer=False)
  values = {name: [] for name in types}
  pairs = zip(predictions, references)
  bar = ProgressBar(
    pairs,
    total=len(predictions),
    desc="ROUGE",
    unit=" examples",
    delay=3,
    mininterval=1,
  )
  for prediction, several in bar:
    prediction = _sentences_on_lines(prediction)
    scores = [
      scorer.score(_sentences_on_lines(reference), prediction)
      for reference in several
    ]
    for name in types:
      values[name].append(max(score[name].fmeasure for score in scores))
  version = importlib.metadata.version("rouge-score")
  most = max(map(len, references))
  signature = f"nrefs:{most}|stemmer:no|version:{version}"
  return [_mean(name, values[name], signature) for name in types]


def exact_match(
  predictions, references, *, read=str.strip, name: str = "exact_match"
):
  """Returns the share of predictions whose answer equals a reference's answer.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
    read: a function from a text to its answer. None stands for no answer, which
      is always wrong, even where a reference has no answer either.
    name: the metric's name.
  """
  predictions, references = _as_lists(predictions, references)

  def is_right(prediction, several):
    answer = read(prediction)
    return answer is not None and answer in map(read, several)

  right = list(map(is_right, predictions, references))
  return [_mean(name, right, f"read:{read.__name__}")]


# Name -> (predictions, references) -> [Statistics].
METRICS = {
  "bleu": bleu,
  "bleu_intl": functools.partial(bleu, tokenize="intl"),
  "chrf": chrf,
  "rouge": rouge,
  "rouge2": functools.partial(rouge, types=("rouge2",)),
  "exact_match": exact_match,
  # For tasks whose references are all the right outputs, such as the built-in
  # task.
  "valid": functools.partial(exact_match, name="valid"),
  "gsm8k": functools.partial(exact_match, read=answers.number),
  "mmlu": functools.partial(exact_match, read=answers.letter, name="accuracy"),
}


def metric(name: str):
  """Returns the metric of a name in `METRICS`.

  Raises:
    ValueError: there is no metric of the name; the message lists the names.
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
  """Returns scores with 95% bootstrap intervals, as JSON values.

  Args:
    names: names of metrics in `METRICS`.
    predictions: N strings.
    references: N strings or lists of strings.
    groups: N numbers; predictions with equal numbers are resampled together. An
      example that was decoded several times has its index for each of them.
      None resamples each prediction by itself.
    replicates: how many of the resampled scores to return, under "replicates".
      For runs with equally many groups the i-th resample holds the same groups,
      so differences of replicates are a paired comparison.

  Returns:
    {"bleu": {"value": 34.1, "low": 33.0, "high": 35.2, "num_examples": N,
    "signature": "..."}, ...}. A metric may have several scores, such as rouge.

  >>> evaluate(["exact_match"], ["a"], ["a"])["exact_match"]["high"]
  100.0
  """
  return {
    statistics.name: statistics.entry(groups, replicates)
    for name in names
    for statistics in metric(name)(predictions, references)
  }


def seqio_metric(name: str):
  """Returns a metric as seqio calls it: `(targets, predictions) -> scores`."""
  function = metric(name)

  def metric_fn(targets, predictions):
    return {s.name: s.value for s in function(predictions, targets)}

  metric_fn.__name__ = name
  return metric_fn
