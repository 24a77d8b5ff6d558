"""Reads the folder of a decode, for formats that other projects read."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import os
import pathlib
from typing import Annotated, Any, NotRequired, TypedDict

from speccascade.decoding.programs import methods
from speccascade.generate.batches.decode_counts import Counts
from speccascade.runtime import files
from speccascade.settings import fields
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow
from speccascade.text import text_files


class _Trace(TypedDict):
  """The part of a trace that says which block wrote each token."""

  block: list[fields.NonNegative]


class _Question(TypedDict):
  """The fields of a benchmark's question; see `text_files.QUESTION`."""

  question_id: NotRequired[int | str]
  category: NotRequired[str]
  turns: NotRequired[list[str]]


class _Aux(TypedDict):
  """The member "aux" of a record."""

  index: fields.NonNegative
  trial: fields.NonNegative
  tokens: list[int]
  counts: Counts
  question: NotRequired[_Question]
  trace: NotRequired[_Trace]
  wall_time_s: NotRequired[float]
  step_lengths: NotRequired[list[fields.NonNegative]]


def _is_written(text: Any):
  """Raises ValueError for values but strings; models of bytes write NUL."""
  if not (isinstance(text, str) and fields.is_utf8(text)):
    raise ValueError(f"prediction is {text!r:.60}; wanted a string")


class _Record(TypedDict):
  """A line of predictions.jsonl."""

  inputs: str
  prediction: Annotated[Any, _is_written]
  aux: _Aux
  messages: NotRequired[list[Mapping[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Answer:
  """What one trial wrote for one turn of one example.

  Attributes:
    index: the place of the example in the data set, from 0.
    trial: the number of the sampling trial, from 0.
    question: the fields of the benchmark's question; empty for other examples.
    prompts: what the user said, in order.
    earlier: the answers to all prompts but the last one, which the example
      came with.
    text: what the method wrote.
    counts: the counts of this answer.
    lengths: the tokens that each step wrote: a step is a block, or a pass of
      the one model that wrote the text. None where the record does not say.
    wall_time_s: the seconds that the answer took alone; None where the answer
      was not timed.
  """

  index: int
  trial: int
  question: Mapping[str, Any]
  prompts: tuple[str, ...]
  earlier: tuple[str, ...]
  text: str
  counts: Counts
  lengths: tuple[int, ...] | None
  wall_time_s: float | None = None

  @property
  def num_steps(self) -> int:
    """The number of steps, where `lengths` are known or not."""
    return self.counts.num_blocks or self.counts.num_tokens


@dataclasses.dataclass(frozen=True)
class DecodeFolder:
  """The folder that a decode wrote.

  Attributes:
    path: OUTPUT_DIR.
    row: the row in metrics.json.
    predictions: the path of predictions.jsonl, plain or .gz.
  """

  path: pathlib.Path
  row: ResultRow
  predictions: pathlib.Path

  @functools.cached_property
  def answers(self) -> Sequence[Answer]:
    """The answers in the order of predictions.jsonl.

    Raises:
      ValueError: a line is not a record, or the file has not as many records as
        the row counts.
    """
    answers = list(self._read_answers())
    wanted = self.row.counts.num_examples
    if len(answers) != wanted:
      raise ValueError(
        f"{self.predictions} has {len(answers)} records, and"
        f" {results.METRICS} counts {wanted}: they are not of one decode"
      )
    return answers

  def _read_answers(self) -> Iterator[Answer]:
    # A line goes once it is read: the traces of all would fill the memory.
    lines = text_files.lines_of(self.predictions, "predictions")
    for number, line in enumerate(lines, start=1):
      try:
        record = fields.fit(
          "record", fields.of_json(line), _Record, builds=True
        )
        yield _answer(record, self.row.settings.method)
      except ValueError as error:
        raise ValueError(
          f"{self.predictions} line {number} is not a decoded example"
          f" ({error}); remove the file, and decode again"
        ) from error

  def by_question(self) -> list[list[list[Answer]]]:
    """Returns the answers to each question: a list a trial, an answer a turn.

    Turns are in their order, as the records are.

    Raises:
      ValueError: an answer is not one to a benchmark's question.
    """
    by_index: dict[int, dict[int, list[Answer]]] = {}
    for answer in self.answers:
      if not {"question_id", "category"} <= answer.question.keys():
        raise ValueError(
          f"example {answer.index} of {self.predictions} has no question_id and"
          " category: decode an INPUT_FILE whose lines have question_id,"
          " category and turns"
        )
      trials = by_index.setdefault(answer.index, {})
      trials.setdefault(answer.trial, []).append(answer)
    return [list(trials.values()) for trials in by_index.values()]

  def check_lengths(self):
    """Checks that the tokens of each step are known.

    Raises:
      ValueError: they are not. The message says how to know them.
    """
    if all(answer.lengths is not None for answer in self.answers):
      return
    if self.row.counts.num_blocks:
      raise ValueError(
        f"{self.path} does not say how many tokens each block wrote: decode"
        " with --gin.TRACE=True into another OUTPUT_DIR, or with"
        " --gin.ONE_AT_A_TIME=True"
      )
    raise ValueError(
      f"{self.row.label} has two models and no blocks: this format has no place"
      " for its steps; --format=speed_bench has none of them"
    )

  @property
  def num_unfinished(self) -> int:
    """The number of questions with turns after those that were decoded."""
    return sum(
      len(answer.question.get("turns", ())) > len(answer.prompts)
      for answer in {each.index: each for each in self.answers}.values()
    )

  @property
  def is_timed(self) -> bool:
    """Whether each answer was timed alone."""
    return all(answer.wall_time_s is not None for answer in self.answers)


def read(path: str | os.PathLike) -> DecodeFolder:
  """Returns the folder of a decode, whose records are read when asked for.

  Raises:
    ValueError: the folder is not one that a decode wrote to its end.
  """
  path = pathlib.Path(path)
  metrics, predictions = (
    files.find(path / name) for name in (results.METRICS, results.PREDICTIONS)
  )
  if metrics is None or predictions is None:
    raise ValueError(
      f"{path} is not a folder of a whole decode: wanted {results.METRICS} and"
      f" {results.PREDICTIONS} in it"
    )
  return DecodeFolder(path, results.read_row(metrics), predictions)


def _answer(record: dict, method: str) -> Answer:
  """Returns the answer of a record that a method wrote."""
  aux = record["aux"]
  text = {"role": "user", "content": record["inputs"]}
  messages = record.get("messages", [text])
  return Answer(
    index=aux["index"],
    trial=aux["trial"],
    question=aux.get("question", {}),
    prompts=_contents(messages, "user"),
    earlier=_contents(messages, "assistant"),
    text=record["prediction"],
    counts=aux["counts"],
    lengths=_lengths(aux, method),
    wall_time_s=aux.get("wall_time_s"),
  )


def _contents(messages: Sequence[Mapping], role: str) -> tuple[str, ...]:
  """Returns what one role said."""
  return tuple(
    str(message.get("content"))
    for message in messages
    if message.get("role") == role
  )


def _lengths(aux: dict, method: str) -> tuple[int, ...] | None:
  """Returns the tokens of each step, or None where the record does not say."""
  execution, counts = methods.find(method).execution, aux["counts"]
  if not execution.has_blocks:
    # A model alone writes a token a pass. Two models take steps of both kinds.
    is_alone = execution.needs_drafter != execution.needs_verifier
    return (1,) * counts.num_tokens if is_alone else None
  if "step_lengths" in aux:
    lengths = tuple(aux["step_lengths"])
  elif "trace" in aux:
    # Blocks 0 0 0 1 1 wrote 3 and 2 tokens.
    runs = itertools.groupby(aux["trace"]["block"])
    lengths = tuple(len(list(run)) for _, run in runs)
  else:
    return None
  if (len(lengths), sum(lengths)) != (counts.num_blocks, counts.num_tokens):
    raise ValueError("its steps and its counts have different blocks")
  return lengths
