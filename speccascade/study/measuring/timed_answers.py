"""Times answers to questions, one at a time and all turns of each.

A question is answered twice. The first time each step, a block or a token, is
a call of its own and has a time. The second time the answer to each turn is one
call of a compiled loop, whose time is the wall time: it has no part of the host
in it, which would slow a model alone most. Both times the turns continue in the
caches of the turns before, and write the same tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
from typing import NamedTuple

import jax
import numpy as np

from speccascade.decoding.records.block_records import Decoded
from speccascade.generate.batches import padding
from speccascade.generate.batches.batching import Speed
from speccascade.generate.batches.sources import InputError, Source
from speccascade.generate.pair.pair_checks import check_sources
from speccascade.generate.points.point import Point
from speccascade.generate.session import Session, Tick
from speccascade.generate.turns.conversation import Chat
from speccascade.generate.turns.text_stream import TextStream
from speccascade.text import chat


class _Turn(NamedTuple):
  """A turn that was answered; see `TokenStream`."""

  source: Source
  decoded: Decoded
  calls: Sequence[tuple[int, float]]
  steps: Sequence[tuple[int, float]]
  width: int


class TimedAnswers:
  """Answers the questions of a session at one point.

  A question has several turns where it has `turns` and its prompts are chats.
  Any other example has one.

  Args:
    session: the pair and the questions, at batch size 1.
    point: the method and its settings.

  Attributes:
    speed: the speed of all calls of `records`.

  Raises:
    ValueError: the models do not fit the method.
  """

  def __init__(self, session: Session, point: Point):
    self._session, self._run = session, session.run
    self._widths = padding.buckets(session.sources.max_len)
    self._room = max(map(self._room_of, session.examples))
    batches = session.batches(point, shared=False, room=self._room)
    self._batches = dataclasses.replace(batches, lengths=session.lengths)
    self.speed = Speed()
    self._met: set[tuple[bool, int]] = set()  # what was compiled already

  def prompts(self, example: Source) -> Sequence[str]:
    """Returns what the user says after the first turn of an example."""
    prompting = self._session.sources.prompting
    if prompting is None or prompting.format != "chat" or example.messages:
      return ()
    return example.question.get("turns", ())[1:]

  def num_records(self, example: Source) -> int:
    """Returns the number of turns, each of which has a record."""
    return 1 + len(self.prompts(example))

  def records(
    self, examples: Sequence[Source], trial: int, tick: Tick
  ) -> list[dict]:
    """Returns the records of all turns of some examples.

    They are the records of `records.records`, and their "aux" has: "turn", the
    number of the turn, from 0; "wall_time_s", the seconds of the answer, of
    which reading the prompt is a part; "read_s", the seconds of reading alone;
    "step_times_s" and "step_lengths", the seconds and the tokens of each step.

    Args:
      examples: the examples.
      trial: the number of the trial.
      tick: called with 1 after each example.

    Raises:
      ValueError: the method cannot be run some rounds at a time, or the
        conversation is longer than the models can read.
      NoDistributionError: a model gave no distribution.
    """
    written = []
    for example in examples:
      turns = self._answer(example, trial)
      for aux in (record["aux"] for record in turns):
        num, seconds = len(aux["tokens"]), aux["wall_time_s"]
        self.speed.add(num, seconds, is_first=False)
      written += turns
      tick(1)
    return written

  def _answer(self, example: Source, trial: int) -> list[dict]:
    """Returns the records of an example's turns."""
    by_steps = self._converse(example, trial, rounds=1)
    # What was compiled under the clock is answered again. A first turn and a
    # further one of the same width are two programs.
    widths = {(number > 0, x.width) for number, x in enumerate(by_steps)}
    if not widths <= self._met:
      self._met |= widths
      by_steps = self._converse(example, trial, rounds=1)
    whole = self._converse(example, trial, rounds=self._run.max_decode_len)
    lines = []
    for number, (steps, answer) in enumerate(zip(by_steps, whole)):
      [record] = self._session.records(answer.decoded, [answer.source], trial)
      lengths = [0, *(length for length, _ in steps.steps)]
      record["aux"] |= {
        "turn": number,
        "wall_time_s": sum(seconds for _, seconds in answer.calls),
        "read_s": steps.calls[0][1],
        "step_times_s": [seconds for _, seconds in steps.steps],
        "step_lengths": np.diff(lengths).tolist(),
      }
      lines.append(record)
    return lines

  def _converse(self, example: Source, trial: int, rounds: int) -> list[_Turn]:
    """Answers all turns of an example, `rounds` rounds a call."""
    return [
      _Turn(
        source,
        jax.device_get(stream.decoded),
        stream.calls,
        stream.steps() if rounds == 1 else (),
        stream.width,
      )
      for source, stream in self._streams(example, trial, rounds)
    ]

  def _streams(
    self, example: Source, trial: int, rounds: int
  ) -> Iterator[tuple[Source, TextStream]]:
    """Yields each turn, and its stream at its end, which later turns change."""
    prompts = self.prompts(example)
    if not prompts:
      stream = self._open(example, trial, rounds)
      for _ in stream:
        pass
      yield example, stream
      return

    def start(messages: Sequence[Mapping], number: int) -> TextStream:
      is_first = len(messages) == 1
      source = example if is_first else self._source(example, messages)
      return self._open(source, number, rounds)

    prompting = self._session.sources.prompting
    # The first turn has the number, and so the keys, that it has in a batch.
    numbers = itertools.count(trial, self._run.trials)
    conversation = Chat(start, prompting, self._widths, numbers=numbers)
    for turn, prompt in enumerate((example.question["turns"][0], *prompts)):
      for _ in conversation.send(prompt):
        pass
      source = example
      if turn:
        messages = conversation.messages[:-1]
        text = chat.format_messages(messages)
        source = dataclasses.replace(example, text=text, messages=messages)
      yield source, conversation.answer

  def _open(self, source: Source, number: int, rounds: int) -> TextStream:
    return TextStream(
      self._session.vocabulary,
      self._batches,
      source,
      rounds,
      self._room,
      number,
    )

  def _source(self, example: Source, messages: Sequence[Mapping]) -> Source:
    """Returns a conversation that is read whole, as one prompt."""
    sources = self._session.sources
    try:
      tokens, _ = sources.prompting.tokens(
        messages, sources.max_len, "TASK_FEATURE_LENGTHS", False
      )
    except ValueError as error:
      raise InputError(
        f"example {example.index}, turn {len(messages) // 2}, {error}"
      ) from error
    source = dataclasses.replace(example, tokens=np.array(tokens, np.int32))
    whole = dataclasses.replace(sources, examples=[source])
    limit, methods = self._run.max_decode_len, self._session.methods
    check_sources(self._session.pair, whole, limit, methods)
    return source

  def _room_of(self, example: Source) -> int:
    """Returns the tokens that caches hold after an example's first prompt."""
    limit = self._run.max_decode_len
    room, least = 0, limit
    for prompt in self.prompts(example):
      message = [{"role": "user", "content": prompt}]
      tokens, _ = self._session.sources.prompting.tokens(
        message, self._widths[-1], "TASK_FEATURE_LENGTHS", False
      )
      width = padding.bucket_of(len(tokens), self._widths)
      # A pass writes all slots of a turn's width.
      room, least = room + limit + width, max(least, width)
    return room + least
