"""Quality of predictions against references, with bootstrap intervals.

Every metric is a function `(predictions, references) -> [Statistics]`. A
reference is a string or a list of strings; lists may differ in length. A
function of yours, as MODULE:FUNCTION, may return a number from 0 to 1 for each
prediction instead. It gets lists of references.
"""

from collections.abc import Sequence
import dataclasses
import functools
import importlib.metadata
import itertools
import unicodedata

from absl import logging
import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from speccascade.runtime import named_functions
from speccascade.runtime.progress import ProgressBar
from speccascade.settings import in_words
from speccascade.tasks import answers, sentences, squad
from speccascade.tasks.corpus_scores import Statistics, mean

ROUGE_TYPES = ("rouge1", "rouge2", "rougeLsum")


def _as_lists(predictions, references) -> tuple[list[str], list[list[str]]]:
  """Returns the predictions, and a list of references for each of them."""
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
  """Returns the statistics of one of sacrebleu's metrics."""
  # sacrebleu's public functions return scores alone. The bootstrap needs the
  # counts of each example, which its private functions compute.
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


# Tokenizers of sacrebleu that need a further package, by its extra.
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}
# The metric that splits the words of a script without blanks.
_WITHOUT_BLANKS = {
  "HIRAGANA": "bleu_ja",
  "KATAKANA": "bleu_ja",
  "CJK": "bleu_zh",
  "THAI": "bleu_char",
  "LAO": "bleu_char",
  "KHMER": "bleu_char",
  "MYANMAR": "bleu_char",
}


def bleu(predictions, references, *, tokenize: str = "13a"):
  """Returns corpus BLEU as sacrebleu computes it.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
    tokenize: the name of sacrebleu's tokenizer; "13a" is sacrebleu's default,
      "intl" is what T5's evaluation uses. Both take a sentence of a script
      without blanks, such as Chinese, for one word, which a warning says.

  Raises:
    ValueError: the tokenizer needs a package that is not installed.
  """
  metric = _bleu_metric(tokenize)
  predictions, references = _as_lists(predictions, references)
  if tokenize in ("13a", "intl"):
    _warn_of_script(tokenize, references)
  return _sacrebleu("bleu", metric, predictions, references)


def _bleu_metric(tokenize: str) -> BLEU:
  """Returns sacrebleu's metric; raises ValueError if a package is missing."""
  try:
    return BLEU(tokenize=tokenize)
  except (RuntimeError, ImportError) as error:
    if tokenize not in _EXTRAS:
      raise
    raise ValueError(
      f"sacrebleu's tokenizer {tokenize} is not installed: pip install"
      f" 'sacrebleu[{_EXTRAS[tokenize]}]', or take bleu_char"
    ) from error


def _warn_of_script(tokenize: str, references: list[list[str]]):
  """Warns where most letters of references are of a script without blanks."""
  text = "".join(several[0] for several in references[:100])[:10_000]
  letters = [letter for letter in text if letter.isalpha()]
  scripts = [unicodedata.name(letter, "").split()[0] for letter in letters]
  named = [name for name in scripts if name in _WITHOUT_BLANKS]
  if 2 * len(named) > len(letters):
    # Kana among Chinese characters are Japanese.
    metric = min(_WITHOUT_BLANKS[name] for name in named)
    logging.warning(
      "bleu: sacrebleu's tokenizer %s takes a sentence without blanks for one"
      ' word, and the references are such: set METRICS = ["%s"]',
      tokenize,
      metric,
    )


def chrf(predictions, references):
  """Returns corpus chrF (character F-score) as sacrebleu computes it.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
  """
  return _sacrebleu("chrf", CHRF(), predictions, references)


def rouge(predictions, references, *, types: Sequence[str] = ROUGE_TYPES):
  """Returns ROUGE F-scores, the mean over examples of each type.

  There is no stemming, as in T5's evaluation. rougeLsum compares texts sentence
  by sentence, so the sentences of predictions and of references are put on
  lines (`sentences.on_lines`); the other types do not see lines. Of several
  references the one with the highest score counts, for each type by itself.

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
    prediction = sentences.on_lines(prediction)
    scores = [
      scorer.score(sentences.on_lines(reference), prediction)
      for reference in several
    ]
    for name in types:
      values[name].append(max(score[name].fmeasure for score in scores))
  version = importlib.metadata.version("rouge-score")
  most = max(map(len, references))
  signature = f"nrefs:{most}|stemmer:no|version:{version}"
  by_lines = f"{signature}|lines:sentences"
  return [
    mean(name, values[name], by_lines if "Lsum" in name else signature)
    for name in types
  ]


def exact_match(
  predictions,
  references,
  *,
  read=str.strip,
  name: str = "exact_match",
  version: int | None = None,
):
  """Returns the share of predictions whose answer equals a reference's answer.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
    read: a function from a text to its answer. None stands for no answer, which
      is always wrong, even where a reference has no answer either. A warning
      counts such references. The share of predictions without an answer is
      `Statistics.unread`.
    name: the metric's name.
    version: a number that grows with what `read` can read, for the signature.
  """
  predictions, references = _as_lists(predictions, references)
  predicted = list(map(read, predictions))
  wanted = [[*map(read, several)] for several in references]

  def is_right(answer, several):
    return answer is not None and answer in several

  right = list(map(is_right, predicted, wanted))
  signature = f"read:{read.__name__}"
  if version is None:
    return [mean(name, right, signature)]
  without = [i for i, several in enumerate(wanted) if set(several) == {None}]
  if without:
    logging.warning(
      "%s: %d of %d examples have no reference in which a %s can be read, and"
      " count as wrong; the first one is %.60r",
      name,
      len(without),
      len(wanted),
      read.__name__,
      references[without[0]][0],
    )
  scores = mean(name, right, f"{signature}|version:{version}")
  unread = 100 * sum(answer is None for answer in predicted) / len(predicted)
  return [dataclasses.replace(scores, unread=unread)]


def exact_and_f1(predictions, references):
  """Returns exact match and F1 of answers, as SQuAD 2.0 compares them.

  Of several references the best one counts, for each score by itself. See
  `squad.scores`. Where some questions have an answer and some have none, both
  scores of either kind follow.

  Args:
    predictions: N strings.
    references: N strings or lists of strings.
  """
  predictions, references = _as_lists(predictions, references)
  pairs = zip(predictions, references)
  scores = np.array([squad.scores(*pair) for pair in pairs])
  has_answer = np.array([*map(squad.has_answer, references)])
  signature = f"normalized:squad|no_answer:{squad.NO_ANSWER}"
  parts = [("", np.ones_like(has_answer))]
  if has_answer.any() and not has_answer.all():
    parts += [("HasAns_", has_answer), ("NoAns_", ~has_answer)]
  return [
    mean(f"{part}{name}", column, signature, where)
    for part, where in parts
    for name, column in zip(("exact", "f1"), scores.T)
  ]


# Name -> (predictions, references) -> [Statistics].
METRICS = {
  "bleu": bleu,
  "bleu_intl": functools.partial(bleu, tokenize="intl"),
  "bleu_zh": functools.partial(bleu, tokenize="zh"),
  "bleu_ja": functools.partial(bleu, tokenize="ja-mecab"),
  "bleu_ko": functools.partial(bleu, tokenize="ko-mecab"),
  "bleu_char": functools.partial(bleu, tokenize="char"),
  "chrf": chrf,
  "rouge": rouge,
  "rouge2": functools.partial(rouge, types=("rouge2",)),
  "rougeL": functools.partial(rouge, types=("rougeL",)),
  "exact_match": exact_match,
  # For tasks whose references are all the right outputs, such as the built-in
  # task.
  "valid": functools.partial(exact_match, name="valid"),
  "squad": exact_and_f1,
  "gsm8k": functools.partial(exact_match, read=answers.number, version=3),
  "mmlu": functools.partial(
    exact_match, read=answers.letter, name="accuracy", version=2
  ),
}


# Metrics that compare whole answers.
_OF_ANSWERS = ("exact_match", "valid", "squad", "gsm8k", "mmlu")
_SHORT = 4  # words: BLEU counts no 4-gram of a text that has fewer


def with_exact_match(
  names: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[str, ...]:
  """Returns metrics, with exact match after them where targets are short.

  Args:
    names: names in `METRICS`.
    references: the right outputs of each example; [] where none is known.

  >>> with_exact_match(("bleu",), [["red"], ["dark blue"], []])
  ('bleu', 'exact_match')
  >>> with_exact_match(("bleu",), [["The old man sleeps."]])
  ('bleu',)
  """
  lengths = [len(text.split()) for texts in references for text in texts]
  if not lengths or any(name in _OF_ANSWERS for name in names):
    return tuple(names)
  if np.median(lengths) >= _SHORT:
    return tuple(names)
  return (*names, "exact_match")


def metric(name: str):
  """Returns the metric of a name in `METRICS`, or at MODULE:FUNCTION.

  Raises:
    ValueError: there is no metric of the name, and the message lists the names;
      or the metric needs a package that is not installed.
  """
  if ":" in name:
    return _own_metric(name)
  if name not in METRICS:
    raise ValueError(
      f"no metric {name!r}: there are {', '.join(METRICS)}, and your own, as"
      " MODULE:FUNCTION"
    )
  function = METRICS[name]
  tokenize = getattr(function, "keywords", {}).get("tokenize")
  if tokenize in _EXTRAS:
    _bleu_metric(tokenize)  # raises before anything is decoded
  return function


@functools.cache
def _own_metric(place: str):
  """Returns the metric that a user's function is."""
  function = named_functions.load(place)
  name = place.rpartition(":")[2]

  def own(predictions, references):
    predictions, references = _as_lists(predictions, references)
    scores = list(function(predictions, references))
    if scores and all(isinstance(each, Statistics) for each in scores):
      return scores
    try:
      values = np.asarray(scores, np.float64)
    except (TypeError, ValueError):
      values = np.array(())
    num = len(predictions)
    is_share = (values >= 0) & (values <= 1)
    if values.shape != (num,) or not is_share.all():
      raise ValueError(
        f"the metric {place} returned {in_words.format_value(scores)}; wanted"
        f" {num} numbers from 0 to 1, one for each prediction"
      )
    return [mean(name, values, f"function:{place}")]

  return own


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
    names: names of metrics, as `metric` takes them.
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
  """Returns a metric as seqio calls it: `(targets, predictions) -> scores`.

  Its attribute `metric` is the name.
  """
  function = metric(name)

  def metric_fn(targets, predictions):
    return {s.name: s.value for s in function(predictions, targets)}

  metric_fn.__name__ = metric_fn.metric = name
  return metric_fn
