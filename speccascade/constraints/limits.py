"""What an output is held to, and what ends it: `TextLimits`."""

from collections.abc import Iterable, Sequence
import dataclasses
import json

import numpy as np

from speccascade.constraints import (
  automaton_tables,
  expressions,
  grammars,
  stops,
  token_bytes,
)
from speccascade.constraints.automaton_tables import Tables
from speccascade.constraints.token_bytes import TextOf
from speccascade.decoding.records.automaton import NONE, Constraints
from speccascade.settings import fields


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextLimits:
  """What an output is held to, and what ends it.

  A decode holds all of its outputs to the same limits. Stops end an output
  after the token that completes them; everything else masks the distributions
  of both models, so that the distributions of a method hold for the masked
  models.

  Attributes:
    stop: strings and ids that end an output. Its text ends before the first of
      them; its tokens end with the token that completes it, as they end with
      EOS. A string that is a special token is its id, too.
    include_stop: whether the text keeps what ended it, if that is text.
    ignore_eos: whether an EOS ends nothing, so that an output is as long as it
      may be unless a string ends it.
    min_decode_len: the least tokens of an output, EOS counted: none of the
      tokens before that many is an EOS. A stop ends an output all the same.
    banned: ids that are not written, and strings that do not occur in an
      output.
    grammar: a regular expression that an output matches whole; None allows
      every text. An output that the length limit truncates matches it so far.
    json_schema: a JSON schema, as text, in place of a grammar.

  Raises:
    ValueError: a setting is of the wrong kind, or contradicts another.
  """

  stop: tuple[fields.Content | int, ...] = ()
  include_stop: bool = False
  ignore_eos: bool = False
  min_decode_len: fields.NonNegative = 0
  banned: tuple[fields.Content | int, ...] = ()
  grammar: str | None = None
  json_schema: str | None = None

  def __post_init__(self):
    """Raises SettingError where settings are empty, or contradict others."""
    for name in ("stop", "banned"):
      # Integers of NumPy's are none of JSON's.
      values = tuple(
        each if isinstance(each, str) else int(each)
        for each in getattr(self, name)
      )
      object.__setattr__(self, name, values)
      if "" in values:
        fault = " has an empty string, which is everywhere; leave it out"
        raise fields.SettingError(name, fault)
      for token in values:
        if isinstance(token, int) and token < 0:
          fault = f" has the id {token}; wanted ids from 0, or strings"
          raise fields.SettingError(name, fault)
    if self.grammar is not None and self.json_schema is not None:
      raise fields.SettingError(
        "json_schema", " is given next to a grammar; leave out one of the two"
      )
    if self.ignore_eos and self.min_decode_len:
      raise fields.SettingError(
        "min_decode_len", " is given, and with ignore_eos no EOS ends an output"
      )
    has_grammar = self.grammar is not None or self.json_schema is not None
    if self.ignore_eos and has_grammar:
      raise fields.SettingError(
        "ignore_eos", " is set, and a grammar ends in an EOS: leave one out"
      )

  @property
  def limits(self) -> dict:
    """The limits that are not the default, by name."""
    return {
      field.name: value
      for field in dataclasses.fields(TextLimits)
      if (value := getattr(self, field.name)) != field.default
    }

  @property
  def masks(self) -> list[str]:
    """The names of the limits that mask tokens."""
    others = ("stop", "include_stop", "ignore_eos")
    return [name for name in self.limits if name not in others]

  @property
  def limits_text(self) -> str | None:
    """The limits as rows record them; None where there are none."""
    return json.dumps(self.limits, sort_keys=True) if self.limits else None

  def end_ids(self, eos_id: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """Returns the ids that end an output, of those that end one by default."""
    return () if self.ignore_eos else eos_id

  def also(self, stop: Sequence[str | int]) -> "TextLimits":
    """Returns the limits of a text that has stops of its own, too."""
    if not stop:
      return self
    return dataclasses.replace(self, stop=(*self.stop, *stop))

  def cut_tokens(self, tokens: Sequence[int]) -> Sequence[int]:
    """Returns tokens up to the first whose id is a stop."""
    ids = {each for each in self.stop if isinstance(each, int)}
    for place, token in enumerate(tokens if ids else ()):
      if token in ids:
        return tokens[: place + self.include_stop]
    return tokens

  def cut(self, text: str) -> str:
    """Returns a text up to the string that ended it."""
    return stops.cut(text, self.stop, include=self.include_stop)

  def held_back(self, text: str) -> int:
    """Returns how many last characters of a text may begin a stop."""
    return stops.held_back(text, self.stop)


def constraints(
  limits: TextLimits,
  vocabulary,
  text_of: TextOf,
  *,
  eos_ids: Sequence[int],
  vocab_size: int,
  own_stops: Iterable[tuple[str | int, ...]] = (),
) -> tuple[Constraints, dict[tuple[str | int, ...], int]]:
  """Returns the automata of some limits, as a decoder takes them.

  Args:
    limits: the limits.
    vocabulary: the tokens, as `token_bytes.read` takes them.
    text_of: ids -> text, as outputs are written.
    eos_ids: the ids that end an output.
    vocab_size: V of the models; ids past the vocabulary are not text.
    own_stops: the stops that each text has beside those of the limits.

  Returns:
    The constraints, and the entry of `Constraints.begins` of a text by its own
    stops; without an entry where no text has any.

  Raises:
    ConstraintError: no text is allowed, or an automaton is too large.
    SettingError: there is no stop to include.
  """
  own_stops = dict.fromkeys(own_stops)
  has_own = any(own_stops)
  has_stops = bool(limits.stop) or has_own
  if limits.include_stop and not has_stops:
    raise fields.SettingError(
      "include_stop", " is set, and there is no stop to include: set stop"
    )
  if not has_own and not limits.limits.keys() - {"include_stop", "ignore_eos"}:
    return NONE, {}
  known = token_bytes.TokenBytes((), ()).padded(vocab_size)
  needs_bytes = has_stops or limits.grammar or limits.json_schema
  if needs_bytes or any(isinstance(each, str) for each in limits.banned):
    known = token_bytes.read(vocabulary, text_of).padded(vocab_size)
  stop, begins = None, {}
  if has_own:
    for own in own_stops:
      stops.check(own, known, "the stop of a line", ends=True)
    stops.check(limits.stop, known, "STOP", ends=True)
    name = "the union of all lines' stops"
    parts = [
      stops.automaton(limits.also(own).stop, known, name) for own in own_stops
    ]
    tables, places = automaton_tables.side_by_side(parts, name)
    stop, begins = tables.to_device(name), dict(zip(own_stops, places))
  elif limits.stop:
    stops.check(limits.stop, known, "STOP", ends=True)
    stop = stops.automaton(limits.stop, known).to_device("STOP")
  masks = list(_masks(limits, known, eos_ids))
  if not masks:
    return Constraints(stops=stop), begins
  name = " and ".join(name.upper() for name in limits.masks)
  joined = masks[0]
  for each in masks[1:]:
    joined = automaton_tables.both(joined, each, name)
  # A grammar is matched whole only by a text that ends.
  has_grammar = {"grammar", "json_schema"} & limits.limits.keys()
  ends = [token for token in eos_ids if token < vocab_size]
  mask = automaton_tables.without_dead_ends(
    joined, name, ends if has_grammar else None
  )
  return Constraints(mask=mask.to_device(name), stops=stop), begins


def _masks(limits: TextLimits, known, eos_ids: Sequence[int]):
  """Yields the automata of the limits that mask tokens."""
  num = len(known.tokens)
  pattern = limits.grammar
  if limits.json_schema is not None:
    pattern = expressions.of_schema(limits.json_schema)
  if pattern is not None:
    yield grammars.automaton(pattern, known, eos_ids)
  stops.check(limits.banned, known, "BANNED")
  if any(isinstance(each, str) for each in limits.banned):
    yield stops.without(limits.banned, known)
  elif limits.banned:
    yield _of_two_kinds(
      np.isin(np.arange(num), limits.banned), [0], allowed=[[True, False]]
    )
  if limits.min_decode_len > 1:
    # State n is reached after n tokens, up to the first that may be an EOS.
    least = limits.min_decode_len - 1
    automaton_tables.check_size(least + 1, 2, "MIN_DECODE_LEN")
    after = np.minimum(np.arange(least + 1) + 1, least).astype(np.int32)
    allowed = np.ones((least + 1, 2), bool)
    allowed[:least, 1] = False
    yield _of_two_kinds(np.isin(np.arange(num), eos_ids), after, allowed)


def _of_two_kinds(is_second: np.ndarray, after, allowed) -> Tables:
  """Returns the tables of tokens of two kinds, which lead alike.

  Args:
    is_second: [V] bool, whether a token is of the second kind.
    after: [S] int32, the state after a token.
    allowed: [S, 2] bool, whether a token of each kind may follow.
  """
  # A class has a token: there may be tokens of one kind alone.
  kinds, classes = np.unique(is_second.astype(np.int32), return_inverse=True)
  return Tables(
    classes=classes.astype(np.int32),
    moves=np.repeat(
      np.array(after, automaton_tables.dtype_of(len(after)))[:, None],
      len(kinds),
      axis=1,
    ),
    allowed=np.array(allowed)[:, kinds],
    ends=np.zeros(len(after), bool),
  )
