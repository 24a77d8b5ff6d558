"""A pair of models in a program or a notebook; see docs/api.md.

import speccascade as sc

pair = sc.load_pair(drafter=SMALL, verifier=LARGE)
out = pair.generate("A text.", method="spec_cascade_opt", alpha=0.3)
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from speccascade.constraints.limits import TextLimits
from speccascade.decoding.records.decode_settings import Records, Tracing
from speccascade.generate.api import foreign_names, generation, measured
from speccascade.generate.api.argument_names import names_arguments
from speccascade.generate.api.foreign_names import translate
from speccascade.generate.api.generation import Generation
from speccascade.generate.api.text_settings import TextSettings
from speccascade.generate.batches import padding
from speccascade.generate.batches.batching import Programs
from speccascade.generate.batches.sources import (
  InputError,
  Sources,
)
from speccascade.generate.pair.pair_checks import PairError
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points import advice_files, point_checks, round_times
from speccascade.generate.points.alpha_phases import ByPhase
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.generate.turns.conversation import Chat
from speccascade.generate.turns.text_stream import TextStream
from speccascade.settings.fields import at_least
from speccascade.settings.signatures import select, takes
from speccascade.text.prompting import Prompting


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
  """Models and their vocabulary; make one with `load_pair`.

  A program is compiled for each method with its gamma and other fixed settings,
  for each of a few padded lengths, at 1, 8 or batch_size rows. Another alpha,
  temperature, top_p or seed, and other texts, compile nothing.

  Attributes:
    models: the drafter and the verifier, a `ModelPair`.
    vocabulary: makes tokens of texts and texts of tokens, and knows EOS.
    programs: the compiled programs.
    draft_costs: what rounds take where gamma is "adaptive", by the point and
      the number of rows; measured when it is first asked for.
  """

  models: ModelPair
  vocabulary: object
  programs: Programs = dataclasses.field(default_factory=dict)
  draft_costs: dict = dataclasses.field(default_factory=dict)

  def __repr__(self) -> str:
    models = self.models
    names = {"drafter": models.drafter_name, "verifier": models.verifier_name}
    parts = [f"{role} {name}" for role, name in names.items() if name]
    return f"Pair of {', '.join(parts)}"

  @names_arguments
  @takes(Point, Records, TextLimits, TextSettings, translate=translate)
  def generate(
    self,
    texts: str | Sequence,
    method: str | None = None,
    *,
    alpha: float | ByPhase | None = None,
    max_decode_len: int = 128,
    batch_size: int = 32,
    num_outputs: int = 1,
    seed: int | None = 0,
    trace: Tracing = True,
    **settings: Any,
  ) -> Generation:
    """Returns what a method writes for each text.

    Args:
      texts: the source or prompt, or several; a conversation is a list of
        {"role", "content"}, and a list of ids is read as it is. Draws depend on
        a text's place among them, and not on the other texts.
      method: a name in `METHODS`; None takes "spec_decode", or "verifier" or
        "drafter" where the pair has that model alone.
      alpha: the parameter of the rule or target; None takes the method's
        default. A `ByPhase` has one alpha before a marker, and one after it.
      max_decode_len: the most tokens of an output, EOS counted.
      batch_size: the most rows that are decoded at once.
      num_outputs: the outputs of each text, which follow each other.
      seed: the seed of the keys. Equal calls draw alike, so that a loop over
        calls repeats its texts; None takes a fresh one, in `settings.seed`.
      trace: whether to record which model wrote each token, which the view in a
        notebook shows. Turn it off where only texts matter: see docs/api.md for
        its cost. "trees" shows the drafts of trees that lost, too.
      **settings: the fields of `Point`, `Records`, `TextLimits` and
        `TextSettings`.

    Raises:
      ValueError: a setting is unknown or out of range, the method needs a model
        that the pair lacks, or a text does not fit.
      NoDistributionError: a model gave no distribution; text and step are
        named.
    """
    point = self._point(method, alpha, settings)
    at_least(1, batch_size=batch_size, num_outputs=num_outputs)
    sources = self._sources(texts, settings).repeated(num_outputs)
    run = Run(
      max_decode_len=max_decode_len,
      batch_size=generation.rows_for(
        len(sources.examples), batch_size, self.models.layout
      ),
      seed=generation.drawn(seed),
      trace=trace,
      **select(settings, Run),
    )
    session = Session(self.models, sources, run, self.programs, (point.spec,))
    point = self._priced(session, point, run.batch_size)
    batches = generation.checked_batches(session, point)
    return Generation.of(session, point, batches.decode_all(session.examples))

  compare = measured.compare
  sweep = measured.sweep

  @names_arguments
  @takes(
    Point,
    Records,
    TextLimits,
    TextSettings,
    without=("trace",),
    translate=translate,
  )
  def stream(
    self,
    text,
    method: str | None = None,
    *,
    alpha: float | ByPhase | None = None,
    rounds: int = 1,
    max_decode_len: int = 128,
    seed: int | None = 0,
    **settings: Any,
  ) -> TextStream:
    """Yields what a method writes for one text, as it is decoded.

    Joined, the pieces are what `generate` writes for the text. With `log_probs`
    the stream has the log-probabilities of its tokens so far.

    Args:
      text: one text, as in `generate`; a list may hold it.
      method: a method that runs as one loop, which sequence cascades do not.
      alpha: as in `generate`.
      rounds: blocks between two pieces; tokens, of a method without blocks.
      max_decode_len: the most tokens of the output, EOS counted.
      seed: as in `generate`: a loop over calls repeats its text, unless None.
      **settings: the fields of `Point`, `Records`, `TextLimits` and
        `TextSettings`.

    Raises:
      ValueError: as in `generate`.
    """
    at_least(1, rounds=rounds)
    point = self._point(method, alpha, settings)
    session = self._session(text, point, max_decode_len, seed, settings)
    return _open(session, self._priced(session, point), rounds)

  @names_arguments
  @takes(
    Point,
    Records,
    TextLimits,
    TextSettings,
    without=("trace",),
    translate=translate,
  )
  def chat(
    self,
    method: str | None = None,
    *,
    system: str | None = None,
    alpha: float | ByPhase | None = None,
    rounds: int = 1,
    room: int = 2048,
    max_decode_len: int = 128,
    seed: int | None = 0,
    **settings: Any,
  ) -> Chat:
    """Returns a conversation by the tokenizer's chat template.

    Args:
      method: as in `stream`.
      system: the system's message; None for a conversation without one.
      alpha: as in `generate`.
      rounds: as in `stream`.
      room: tokens of answers and questions after the first that the caches
        hold. Where the caches are full, the whole conversation is read again.
      max_decode_len: the most tokens of an answer, EOS counted.
      seed: the seed of the keys. Chats of one seed and the same messages have
        the same answers, and turns of a chat draw again; None takes a fresh
        one.
      **settings: the fields of `Point`, `Records`, `TextLimits` and
        `TextSettings`.

    Raises:
      ValueError: as in `stream`; or the pair has no chat: its models are
        encoder-decoders, or its tokenizer has no chat template.
    """
    at_least(1, rounds=rounds, room=room)
    self._check_chats()
    if (prompt := settings.get("prompt")) not in (None, "chat"):
      raise ValueError(
        f"prompt is {prompt!r}; a chat has 'chat': leave it out, or use stream"
      )
    settings["prompt"] = "chat"
    point, seed = self._point(method, alpha, settings), generation.drawn(seed)
    reading = TextSettings(**select(settings, TextSettings))
    prompting = Prompting(self.vocabulary, "chat", reading.chat_variables)

    def start(messages, turn: int) -> TextStream:
      session = self._session([messages], point, max_decode_len, seed, settings)
      most = max(room, session.run.max_decode_len)
      return _open(session, self._priced(session, point), rounds, most, turn)

    start = names_arguments(start, of=type(self).chat)
    widths = padding.buckets(reading.max_input_len)
    messages = [{"role": "system", "content": system}] if system else []
    return Chat(start, prompting, widths, messages)

  def _check_chats(self):
    """Raises PairError where the models or the tokenizer know no chat."""
    name, lack = self.models.models[-1].name, ""
    if not self.models.prompted:
      lack = f"{name} is an encoder-decoder, and a T5 has no chat"
    elif getattr(self.vocabulary, "chat_template", None) is None:
      lack = f"the tokenizer of {name} has no chat template"
    if lack:
      raise PairError(f"{lack}; use stream, or generate, with a text")

  def _point(
    self, method: str | None, alpha: float | ByPhase | None, settings: dict
  ) -> Point:
    """Returns the point that this pair is to decode, checked."""
    point = Point(
      method or self._default_method(),
      alpha,
      **measured.point_settings(settings),
    )
    return self._resolve(point, alpha)

  def _default_method(self) -> str:
    """Returns the method of a call that names none; says if it is one model."""
    if self.models.verifier is None:
      alone, missing = "drafter", "verifier"
    elif self.models.drafter_lm is None:
      alone, missing = "verifier", "drafter"
    else:
      return measured.LOSSLESS
    foreign_names.say_once(
      f'the pair has no {missing}: method="{alone}", which is the {alone} alone'
    )
    return alone

  def _resolve(self, point: Point, alpha: float | ByPhase | None) -> Point:
    """Returns a point of this pair, with its gamma as a decoder takes it."""
    if alpha is not None:
      point_checks.check_alpha_is_used(point)
    point_checks.check_marker_is_used(point)
    point_checks.check_draft_costs_are_used(point)
    return advice_files.resolve_gamma(point, self.models)

  def _priced(
    self, session: Session, point: Point, rows: int | None = None
  ) -> Point:
    """Returns a point with the costs of its rounds, which are measured once.

    The rounds are of `rows` rows; None means one text at a time.
    """
    if not point.is_adaptive:
      return point
    key = dataclasses.replace(point, alpha=None), rows or 1
    if key not in self.draft_costs:
      batches_at = functools.partial(
        session.batches,
        shared=False,
        alike=session.examples if rows is None else None,
      )
      priced = round_times.priced(point, batches_at)
      self.draft_costs[key] = priced.draft_costs
    return dataclasses.replace(point, draft_costs=self.draft_costs[key])

  def _session(
    self,
    text,
    point: Point,
    max_decode_len: int,
    seed: int | None,
    settings: dict,
  ) -> Session:
    """Returns the session of one text that is decoded alone; see `stream`."""
    sources = self._sources(text, settings)
    if (num := len(sources.examples)) > 1:
      raise InputError(
        f"stream takes one text; {num} were given: call it for each of them, or"
        " generate for all"
      )
    run = Run(
      max_decode_len=max_decode_len,
      batch_size=1,
      seed=generation.drawn(seed),
      **select(settings, Run),
    )
    return Session(self.models, sources, run, self.programs, (point.spec,))

  def _sources(self, texts, settings: dict) -> Sources:
    """Returns texts as sources; `settings` has fields of `TextSettings`."""
    reading = TextSettings(**select(settings, TextSettings))
    prompted = self.models.prompted
    return reading.read(texts, self.vocabulary, prompted=prompted)


def _open(
  session: Session,
  point: Point,
  rounds: int,
  most: int | None = None,
  turn: int = 0,
) -> TextStream:
  """Returns the stream of the one text; see `TokenStream`."""
  examples = session.examples
  room = most or session.run.max_decode_len
  batches = session.batches(point, shared=False, alike=examples, room=room)
  return TextStream(
    session.vocabulary, batches, examples[0], rounds, most, turn
  )
