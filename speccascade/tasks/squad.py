"""Answers to questions as SQuAD compares them: exact match and F1.

Source: Rajpurkar et al., arXiv 1606.05250, section 6.1, and the evaluation
script of SQuAD 2.0, for questions without an answer (arXiv 1806.03822).
"""

import collections
from collections.abc import Iterable
import re
import string

# What a few-shot prompt of SQuAD 2.0 teaches to write where a passage has no
# answer. SQuAD's script takes the empty text for it.
NO_ANSWER = "unanswerable"
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
  """Returns an answer without case, punctuation, articles and spare blanks.

  `NO_ANSWER` becomes the empty text.

  >>> normalized(" The U.S.  Senate!"), normalized("Unanswerable.")
  ('us senate', '')
  """
  text = _ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION))
  text = " ".join(text.split())
  return "" if text == NO_ANSWER else text


def f1(prediction: str, reference: str) -> float:
  """Returns the F1 of the words that two normalized answers share, 0 to 1.

  A word counts as often as both have it. Two answers of which one is empty
  share nothing, unless both are empty.

  >>> round(f1("new york city", "york"), 3), f1("", ""), f1("york", "")
  (0.5, 1.0, 0.0)
  """
  words, wanted = prediction.split(), reference.split()
  if not words or not wanted:
    return float(words == wanted)
  shared = collections.Counter(words) & collections.Counter(wanted)
  return 2 * sum(shared.values()) / (len(words) + len(wanted))


def has_answer(references: Iterable[str]) -> bool:
  """Returns whether a question has an answer, by its references.

  >>> has_answer(["York", ""]), has_answer([NO_ANSWER]), has_answer([""])
  (True, False, False)
  """
  return any(each.strip() not in ("", NO_ANSWER) for each in references)


def scores(prediction: str, references: Iterable[str]) -> tuple[float, float]:
  """Returns (exact match, F1), each of the reference that it is best for.

  References that normalize to nothing are left out beside others. Where all do
  so the question has no answer, and the empty answer is right.
  """
  answer = normalized(prediction)
  wanted = [each for each in map(normalized, references) if each] or [""]
  exact = float(answer in wanted)
  return exact, max(f1(answer, each) for each in wanted)
