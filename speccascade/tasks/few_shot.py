"""Few-shot prompts of the tasks on which the paper decodes Gemma pairs.

`TASKS` has a row for each task: its data, how a question is written, how an
answer is, where an output ends, and what scores it. docs/tasks.md says which of
this the paper leaves open. A prompt is a few solved examples, the shots, and a
question:

  Question: Who wrote Emma?
  Answer: Jane Austen

  Question: Who wrote Ulysses?
  Answer:
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import re
import types
from typing import Any, NamedTuple

import numpy as np

from speccascade.settings import fields
from speccascade.tasks import preprocess
from speccascade.tasks.squad import NO_ANSWER

# The most examples among which the shots are drawn.
MOST_CANDIDATES = 1000
# Words of an article that a prompt has.
ARTICLE_WORDS = 600
# Ends the name of a field that has a list of texts.
SEVERAL = "[]"


class AnsweredQuestion(NamedTuple):
  """A question as the prompt has it, and all right answers.

  Attributes:
    question: the text up to where the answer begins.
    answers: one answer or more; a shot has the first one.
  """

  question: str
  answers: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FewShotTask:
  """A task of few-shot prompts.

  Attributes:
    data: the name of a data set of TFDS, or a file under downloads/manual of
      its folder, for data that TFDS does not have.
    fields: the fields that are read, with "/" between the names of nested ones.
      The data sets of TFDS and of Hugging Face have these in common. A name
      that ends in `SEVERAL` is of a list.
    read: a function from the values of the fields to an `AnsweredQuestion`. A
      value is a text or a tuple of texts.
    num_shots: how many shots a prompt has.
    stop: the string that ends an output. No answer of a shot has it inside.
    metrics: the names in `quality.METRICS` that score outputs.
    splits: the splits that are scored.
    shots_from: the split that the shots are drawn from, which is never scored.
    answer: how an answer is written after a question, with what parts it from
      the next question.
    instruction: what a prompt begins with.
    ids: for data in one file, (field, {split: the ids that are in it}).
  """

  data: str
  fields: Sequence[str]
  read: Callable[..., AnsweredQuestion]
  num_shots: int
  stop: str
  metrics: Sequence[str]
  splits: Sequence[str] = ("validation", "test")
  shots_from: str = "train"
  answer: str = " {}\n\n"
  instruction: str = ""
  ids: tuple[str, Mapping[str, range]] | None = None

  def is_in(self, split: str, row: Mapping) -> bool:
    """Returns whether a row of a file is in a split of the data.

    Raises:
      ValueError: the row has no id.
    """
    if self.ids is None:
      return True
    field, ids = self.ids
    if not isinstance(row.get(field), int):
      raise ValueError(f"has no whole number as {field!r}")
    return row[field] in ids[split]

  def values(self, row: Mapping) -> tuple[str | tuple[str, ...], ...]:
    """Returns the values of the fields of a row of a file.

    Raises:
      ValueError: the row lacks a field, or has something else there.
    """
    return tuple(_plain(_value(row, field)) for field in self.fields)

  def prompt(self, shots: Sequence[AnsweredQuestion]) -> str:
    """Returns what all prompts begin with: the instruction and the shots."""
    solved = (
      shot.question + self.answer.format(self._in_a_shot(shot.answers[0]))
      for shot in shots
    )
    return self.instruction + "".join(solved)

  def _in_a_shot(self, answer: str) -> str:
    """Returns an answer in which nothing ends an output."""
    answer = answer.replace("\r\n", "\n").strip()
    if self.stop == "\n":
      return " ".join(answer.split())
    if self.stop == "\n\n":
      return re.sub(r"\n\s*\n", "\n", answer)
    return answer


def draw(
  candidates: Sequence[AnsweredQuestion], num: int, seed: int
) -> list[AnsweredQuestion]:
  """Returns the shots of a seed.

  Questions with an answer and questions without one take turns.

  Args:
    candidates: questions of the split that shots are drawn from.
    num: how many shots a prompt has.
    seed: decides which.

  Raises:
    ValueError: there are fewer candidates than shots.
  """
  candidates = [each for each in candidates if each.answers[0].strip()]
  if len(candidates) < num:
    raise ValueError(
      f"has {len(candidates)} answers, and a prompt wants {num} shots of it"
    )
  order = np.random.default_rng(seed).permutation(len(candidates))
  drawn = [candidates[place] for place in order]
  kinds = [
    [each for each in drawn if (each.answers[0] == NO_ANSWER) == is_without]
    for is_without in (False, True)
  ]
  turns = itertools.chain.from_iterable(itertools.zip_longest(*kinds))
  return list(itertools.islice(filter(None, turns), num))


def _value(row: Mapping, field: str) -> Any:
  """Returns the value of a field of a row of a file."""
  # WMT's rows at Hugging Face are {"translation": {"de": ..., "en": ...}}.
  value: Any = row.get("translation", row)
  path, is_list = field.removesuffix(SEVERAL), field.endswith(SEVERAL)
  for name in path.split("/"):
    if not isinstance(value, Mapping) or name not in value:
      raise ValueError(f"has no field {path!r}")
    value = value[name]
  texts = value if isinstance(value, list) else [value]
  if isinstance(value, list) != is_list or not all(map(_is_text, texts)):
    wanted = "list of strings" if is_list else "string"
    raise ValueError(f"has {value!r:.60} as {path!r}, which is not a {wanted}")
  return value


def _is_text(value) -> bool:
  return isinstance(value, str) and fields.is_utf8(value)


def _plain(value) -> str | tuple[str, ...]:
  """Returns a value of JSON, or of NumPy's bytes, as a string or strings."""
  if isinstance(value, bytes):
    return value.decode()
  if isinstance(value, str):
    return value
  return tuple(_plain(each) for each in value)


def read_bytes(task: FewShotTask, *values) -> AnsweredQuestion:
  """Returns the question of a row, of the values that TensorFlow has."""
  return task.read(*map(_plain, values))


def _translation(english: str, german: str) -> AnsweredQuestion:
  return AnsweredQuestion(f"English: {english}\nGerman:", (german,))


def _summary(article: str, highlights: str) -> AnsweredQuestion:
  # Whole articles would fill the windows of small models.
  words = article.split()[:ARTICLE_WORDS]
  return AnsweredQuestion(
    f"Article: {' '.join(words)}\nSummary:", (highlights,)
  )


def _solution(question: str, answer: str) -> AnsweredQuestion:
  solution = preprocess.drop_annotations(answer)
  return AnsweredQuestion(f"Question: {question}\nAnswer:", (solution,))


def _program(text: str, code: str, tests: Sequence[str]) -> AnsweredQuestion:
  # As MBPP's authors write it: Austin et al., arXiv 2108.07732.
  question = (
    "You are an expert Python programmer, and here is your task:"
    f" {text} Your code should pass these tests:\n\n"
    + "\n".join(tests)
    + "\n[BEGIN]\n"
  )
  return AnsweredQuestion(question, (code,))


def _reading(
  passage: str, question: str, answers: Sequence[str]
) -> AnsweredQuestion:
  prompt = f"Passage: {passage}\nQuestion: {question}\nAnswer:"
  return AnsweredQuestion(prompt, tuple(dict.fromkeys(answers)) or (NO_ANSWER,))


def _question(question: str, answers: Sequence[str]) -> AnsweredQuestion:
  several = tuple(dict.fromkeys(answers)) or ("",)
  return AnsweredQuestion(f"Question: {question}\nAnswer:", several)


def _trivia(
  question: str, value: str, aliases: Sequence[str]
) -> AnsweredQuestion:
  return _question(question, (value, *aliases))


_MBPP = "mbpp/mbpp.jsonl"
# As MBPP's authors split it. The prompts' own split is for shots alone.
_MBPP_IDS = types.MappingProxyType(
  {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
  }
)
ONE_LINE, ONE_PARAGRAPH = "\n", "\n\n"

TASKS = {
  "wmt_ende": FewShotTask(
    data="wmt_t2t_translate/de-en:1.0.0",
    fields=("en", "de"),
    read=_translation,
    num_shots=5,
    stop=ONE_LINE,
    metrics=("bleu", "chrf"),
  ),
  "cnndm": FewShotTask(
    data="cnn_dailymail:3.4.0",
    fields=("article", "highlights"),
    read=_summary,
    num_shots=1,
    stop=ONE_PARAGRAPH,
    metrics=("rouge2", "rougeL"),
  ),
  "gsm8k": FewShotTask(
    data="gsm8k:1.0.0",
    fields=("question", "answer"),
    read=_solution,
    num_shots=8,
    stop=ONE_PARAGRAPH,
    metrics=("gsm8k",),
    splits=("test",),
  ),
  "mbpp": FewShotTask(
    data=_MBPP,
    fields=("text", "code", f"test_list{SEVERAL}"),
    read=_program,
    num_shots=3,
    stop="[DONE]",
    metrics=("chrf",),
    shots_from="prompt",
    answer="{}\n[DONE]\n\n",
    ids=("task_id", _MBPP_IDS),
  ),
  "squad2": FewShotTask(
    data="squad/v2.0:3.0.0",
    fields=("context", "question", f"answers/text{SEVERAL}"),
    read=_reading,
    num_shots=4,
    stop=ONE_LINE,
    metrics=("squad",),
    splits=("validation",),
    instruction=(
      "Answer each question with words of its passage, or with"
      f' "{NO_ANSWER}" where the passage has no answer.\n\n'
    ),
  ),
  "web_questions": FewShotTask(
    data="web_questions:1.0.0",
    fields=("question", f"answers{SEVERAL}"),
    read=_question,
    num_shots=1,
    stop=ONE_LINE,
    metrics=("squad",),
    splits=("test",),
  ),
  "natural_questions": FewShotTask(
    data="natural_questions_open:1.0.0",
    fields=("question", f"answer{SEVERAL}"),
    read=_question,
    num_shots=1,
    stop=ONE_LINE,
    metrics=("squad",),
    splits=("validation",),
  ),
  "trivia_qa": FewShotTask(
    data="trivia_qa/unfiltered.nocontext:1.1.0",
    fields=("question", "answer/value", f"answer/aliases{SEVERAL}"),
    read=_trivia,
    num_shots=1,
    stop=ONE_LINE,
    metrics=("squad",),
    splits=("validation",),
  ),
}
