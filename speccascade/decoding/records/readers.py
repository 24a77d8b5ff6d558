"""Drafters that read the verifier's hidden states, and what they need of it.

A `Reader` is a `Drafter` that reads the states of each round. Draft heads need
no more. A `ReadsStates` was trained for one verifier, and a `Decoder` makes a
`PromptReader` of both, which reads the states of all tokens.

Axes: B rows, S source length, L token buffer, N fed tokens or drafts, R read
positions, G depth of a block, D width of a state, V vocabulary.
"""

from typing import Any, NoReturn, Protocol, TypeGuard, runtime_checkable

import jax

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.block_records import DraftedChain
from speccascade.decoding.records.drafter import catch_up, share_prompt
from speccascade.decoding.records.language_model import State, is_kind
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


@runtime_checkable
class Reader(Protocol):
  """A drafter that reads the hidden states of the verifier's last pass.

  The loop calls `observe` after each round. In the first round a drafter that
  is not a `PromptReader` has observed nothing, and proposes nothing.
  """

  def observe(
    self,
    state: State,
    hidden: Array,
    path: Array,
    count: Array,
    length: Array,
  ) -> State:
    """Reads the hidden states at the tokens that the round kept.

    These are the last token of the prefix, which the verifier read in this
    round, and the accepted drafts. A row that is done keeps none of them.

    Args:
      state: the drafter's state, after `rewind` or `keep`.
      hidden: [B, N+1, D], the verifier's last hidden states after the last
        token of the prefix and after each draft.
      path: [B, G+1] int32, where the kept tokens stand among the N + 1, in
        order of depth; the first is 0.
      count: [B] int32, how many of them are kept.
      length: [B] int32, how many tokens a row has up to the last kept token,
        counting it. One more token, which the verifier drew, has been written
        after it.
    """


@runtime_checkable
class PromptReader(Reader, Protocol):
  """A `Reader` that reads the verifier's states of all tokens.

  Besides the states of the rounds it reads those of the prompt, and those of
  the external tokens of a turn. So it reads along where the verifier reads
  them, and returns the states of both.
  """

  def prefill_with(
    self, verifier: Any, inputs: Array, *, capacity: int
  ) -> tuple[State, State]:
    """Returns (the drafter's state, the verifier's) before any round.

    Args:
      verifier: the language model that reviews.
      inputs: [B, S] int32; see `Part.prefill`.
      capacity: see `Part.prefill`.

    Raises:
      ValueError: the verifier does not hand out the states of its prompts.
    """

  def catch_up_with(
    self,
    verifier: Any,
    states: tuple[State, State],
    tokens: Array,
    upto: Array,
    *,
    wide: int,
  ) -> tuple[State, State]:
    """Reads external tokens before another turn, as `catch_up` does.

    Args:
      verifier: the language model that reviews.
      states: the drafter's state, and the verifier's.
      tokens: [B, L] int32, which hold the prefix.
      upto: [B] int32; see `catch_up`.
      wide: static, tokens of a pass.
    """


@runtime_checkable
class ReadsStates(Protocol):
  """A drafter that reads a verifier's states: a pytree in a drafter's place.

  It is a language model that reads each token together with the verifier's
  hidden state at the token before it. Where the verifier has left none yet, it
  reads its own output in its place.
  """

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""

  def reading_model(self, verifier: Any) -> "ReadingModel":
    """Returns the language model that reads states.

    Args:
      verifier: the language model that the reader was trained for.
    """

  def verifier_read(self, verifier: Any) -> Any:
    """Returns the verifier as it hands out the states that the reader reads.

    These may be those after several of its layers, side by side.

    Args:
      verifier: as of `reading_model`.
    """


class ReadingModel(Protocol):
  """A language model that reads a state of width D with each token.

  It makes these of what the verifier hands out, which may be wider.

  It has what a `LanguageModel` has, but `keep`: drafts are never kept, since
  they were read with the model's own states.
  """

  @property
  def vocab_size(self) -> int:
    """V, the number of logits of each position."""

  @property
  def prompted(self) -> bool:
    """Static: whether a row continues from its own prompt."""

  def prefill(
    self, inputs: Array, seen: Any, *, capacity: int
  ) -> tuple[State, Array]:
    """Returns the state before any decoder token; see `Part`.

    Args:
      inputs: [B, S] int32, as the verifier gets them.
      seen: what the verifier left of them; see `language_model.StatesModel`.
      capacity: number of decoder tokens that the state must be able to hold.

    Returns:
      The state, and [B, D], the verifier's hidden state at the token before the
      first decoder token; 0 where there is no such token.
    """

  def states_of(self, hidden: Array) -> Array:
    """Returns the states [B, N, D] of what the verifier hands out [B, N, W]."""

  def extend(
    self,
    state: State,
    tokens: Array,
    count: Array,
    *,
    states: Array,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[State, Any]:
    """Feeds a block of tokens with states; see `LanguageModel.extend`.

    Args:
      state: from `prefill`, `extend` or `rewind`.
      tokens: [B, N] int32.
      count: [B] int32 in 0..N.
      states: [B, N, D], at the token before each token.
      read: as of `LanguageModel`.
      depth: as of `LanguageModel`.
      ancestors: as of `LanguageModel`.

    Returns:
      The longer state, and the `Output`, whose `hidden` [B, R, D] are what the
      model reads in place of the verifier's states.
    """

  def rewind(self, state: State, length: Array) -> State:
    """Forgets every token at or after `length` [B] int32; see `Part`."""


@runtime_checkable
class ChainReadingModel(Protocol):
  """A `ReadingModel` that may draft a whole chain in one call."""

  def draft_chain(
    self,
    state: State,
    prefix: Prefix,
    u: Array,
    sampling: Sampling,
    *,
    states: Array,
    needs_bonus_law: bool,
  ) -> tuple[State, DraftedChain] | None:
    """Drafts after the tokens so far; see `language_model.ChainModel`.

    The model reads its own output with each draft.

    Args:
      state: of the model. Its cache lacks at most W tokens of the prefix.
      prefix: as of `ChainModel`.
      u: as of `ChainModel`.
      sampling: as of `ChainModel`.
      states: [B, W, D], at the token before each token that the cache lacks;
        those after them are not read.
      needs_bonus_law: as of `ChainModel`.
    """


def is_chain_reader(part: Any) -> TypeGuard[ChainReadingModel]:
  """Whether a model that reads states may draft a chain in one call."""
  return is_kind(part, ChainReadingModel)


def is_reader(part: Any) -> TypeGuard[Reader]:
  """Whether a drafter reads the verifier's hidden states."""
  return is_kind(part, Reader)


def is_prompt_reader(part: Any) -> TypeGuard[PromptReader]:
  """Whether a drafter reads the verifier's states of prompts, too."""
  return is_kind(part, PromptReader)


def reads_states(part: Any) -> TypeGuard[ReadsStates]:
  """Whether a part of a pair is a `ReadsStates`, and not a `Drafter`."""
  return is_kind(part, ReadsStates)


def verifier_read(drafter: Any, verifier: Any) -> Any:
  """Returns a verifier as its drafter reads it; see `ReadsStates`."""
  if reads_states(drafter):
    return drafter.verifier_read(verifier)
  return verifier


def refuse_alone() -> NoReturn:
  """Raises ValueError where a state reader is to draft without a verifier."""
  raise ValueError(
    "a state reader drafts for the verifier whose states it reads, and not"
    " within another drafter: give a language model"
  )


def prefill_parts(
  parts: tuple[Any, ...], inputs: Array, *capacities: int
) -> tuple[State, ...]:
  """Returns the states of a loop's parts before any round.

  Args:
    parts: models and drafters. Where the first is a `PromptReader`, the second
      is its verifier. An early exit among them has the first layers of the last
      one.
    inputs: [B, S] int32; see `Part.prefill`.
    *capacities: of each part, see `Part.prefill`; one number is for all.
  """
  if is_prompt_reader(parts[0]):
    reader, verifier = parts
    return reader.prefill_with(verifier, inputs, capacity=capacities[-1])
  if len(capacities) == 1:
    capacities *= len(parts)
  *states, last = (
    part.prefill(inputs, capacity=capacity)
    for part, capacity in zip(parts, capacities)
  )
  shared = (share_prompt(*pair, last) for pair in zip(parts, states))
  return (*shared, last)


def catch_up_parts(
  parts: tuple[Any, ...],
  states: tuple[State, ...],
  tokens: Array,
  upto: Array,
  *,
  wide: int,
) -> tuple[State, ...]:
  """Feeds all parts of a loop external tokens; see `catch_up`.

  Args:
    parts: as of `prefill_parts`.
    states: of the parts; further entries are dropped.
    tokens: [B, L] int32, which hold the prefix.
    upto: [B] int32.
    wide: static, tokens of a pass.
  """
  if is_prompt_reader(parts[0]):
    reader, verifier = parts
    return reader.catch_up_with(
      verifier, (states[0], states[1]), tokens, upto, wide=wide
    )
  return tuple(
    catch_up(part, state, tokens, upto, wide=wide)
    for part, state in zip(parts, states)
  )
