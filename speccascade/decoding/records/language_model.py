"""The `LanguageModel` interface, through which the core calls a network.

A decoder never knows which network it drives. A `LanguageModel` feeds tokens
and returns logits. It is a pytree whose leaves are parameters, so it passes
through `jit`; what is not an array is static. `records.drafter` says what a
drafter is, which has the functions of a `Part` too.

Axes: B rows, S source length, L token buffer, N fed tokens, R read positions,
V vocabulary, G tokens of a drafted chain.
"""

from typing import Any, Protocol, TypeGuard, runtime_checkable

import jax

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.block_records import DraftedChain, Output
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array
# A pytree whose leaves all have axis 0 = B. The state of a language model has a
# field `length`, [B] int32: how many tokens the model's cache holds.
State = Any


class Part(Protocol):
  """What language models and drafters have in common.

  Both hold caches that grow with the tokens of a row and that can be shortened
  again, and both work over one vocabulary.
  """

  @property
  def vocab_size(self) -> int:
    """V, the number of logits of each position."""

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    """Returns the state before any decoder token, with `capacity` slots.

    The state of a prompted model holds the prompts already, each without its
    last token. Tokens of a prompt are not decoder tokens: they take slots of
    their own, beyond `capacity`.

    Args:
      inputs: [B, S] int32 source tokens, where 0 is padding; or prompts, with
        `prompts.PAD` at either end.
      capacity: number of decoder tokens that the state must be able to hold.
    """

  def rewind(self, state: State, length: Array) -> State:
    """Forgets every token at or after `length` [B] int32.

    A row that holds fewer tokens keeps them all. Only the lengths change: no
    cache is copied.
    """


class LanguageModel(Part, Protocol):
  """Feeds tokens to a network and returns logits; rows are independent.

  A model is a frozen pytree: its parameters are leaves; its modules and its
  properties are static. Equal modules hash equal, so a second call does not
  trace again.
  """

  @property
  def prompted(self) -> bool:
    """Whether a row continues from its own prompt, as in a decoder-only model.

    A model that is not prompted reads a source and begins at a start token: its
    `start_id`, or `prompts.START_ID` where it has none.
    """

  def extend(
    self,
    state: State,
    tokens: Array,
    count: Array,
    *,
    read: Array | None = None,
    depth: Array | None = None,
    ancestors: Array | None = None,
  ) -> tuple[State, Output]:
    """Feeds a block of tokens to each row, at the row's own length.

    Row b feeds `tokens[b, :count[b]]`, and its length grows by `count[b]`. The
    tokens after the first `count[b]` are ignored, and their logits mean
    nothing. They may still be written to slots after the row's length, so every
    row must have space for N more tokens.

    Args:
      state: from `prefill`, `extend`, `rewind` or `keep`.
      tokens: [B, N] int32.
      count: [B] int32 in 0..N.
      read: [B, R] int32 indices into the N fed tokens whose logits are wanted;
        None reads all N. The head runs on the read positions only.
      depth: [B, W] int32 with W >= N, for trees: positions in a window of the
        last W slots of the row, once the N tokens are written. The last N
        columns are the tokens of this call; the columns before them are tokens
        of the tree that earlier calls fed. `[b, j]` is how far the token in
        column j is past the window's first slot. The tokens before the
        window are a chain, and every token sees them all.
      ancestors: [B, N, W] bool, for trees: `[b, i, j]` says that token i of
        this call sees the token in column j. Every token sees itself, which is
        in column W - N + i. With neither `depth` nor `ancestors` the tokens are
        a chain.

    Returns:
      The longer state, and the `Output` with logits [B, R, V] float32.

    Raises:
      ValueError: only one of `depth` and `ancestors` is given, or their shapes
        do not fit.
    """

  def keep(
    self, state: State, start: Array, path: Array, count: Array
  ) -> State:
    """Keeps one path of a tree that was fed at `start`.

    Args:
      state: the state after the calls of `extend` that fed the tree.
      start: [B] int32, the length before the first of these calls.
      path: [B, K] int32 indices into the fed tokens, in order of depth: token i
        is in slot `start + i`.
      count: [B] int32, how many of the K are kept. Entries of `path` after them
        are ignored.

    Returns:
      The state of length `start + count`, which holds those tokens in order.
    """


@runtime_checkable
class ChainModel(Protocol):
  """A language model that may draft a whole chain in one call."""

  def draft_chain(
    self,
    state: State,
    prefix: Prefix,
    u: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[State, DraftedChain] | None:
    """Drafts after the tokens so far, as calls of `extend` would.

    The first pass feeds the tokens of the prefix that the cache lacks. Then
    each draft is drawn and fed. The last draft is fed for the bonus
    distribution alone, so there are G + 1 passes where it is needed, and else
    G.

    Args:
      state: the state of the model. Where the bonus distribution is needed, the
        cache lacks the last token of the prefix; else the last token or the
        last two.
      prefix: the tokens so far. Rows that are not active are fed nothing after
        the first pass.
      u: [B, G] uniforms in [0, 1), one for each draft.
      sampling: how logits become distributions.
      needs_bonus_law: static, whether the distribution after the last draft is
        wanted.

    Returns:
      The state and the chain; None where the model cannot draft a chain in one
      call.
    """


@runtime_checkable
class SharesLayers(Protocol):
  """A language model that may have the first layers of its verifier.

  Such a model, an early exit, has the arrays of the verifier's layers. What the
  verifier's prefill computes of these layers is the exit's, too.
  """

  @property
  def num_shared(self) -> int:
    """Static: how many layers are the verifier's; 0 of an ordinary model."""

  def is_exit_of(self, verifier: Any) -> bool:
    """Whether the first layers are those of a verifier; asked on the host."""

  def share_prompt(self, state: State, of_verifier: State) -> State:
    """Returns the state that `prefill` made, with the verifier's own numbers.

    Where nothing else reads what the exit's prefill computed, XLA leaves it
    out.

    Args:
      state: from `prefill`.
      of_verifier: from the verifier's `prefill` of the same inputs.
    """


@runtime_checkable
class CutModel(Protocol):
  """A language model, or draft heads, that may keep some tokens alone."""

  @property
  def kept_ids(self) -> Array | None:
    """[N] int32, the kept tokens, ascending; None where all are kept."""

  def columns(self) -> Array:
    """Returns [V] int32, the column of each token; N of one that is not kept.

    Asked only where some tokens are kept.
    """

  def with_columns(self) -> Any:
    """Returns the model with `columns` computed, where some tokens are kept.

    Asked before a loop: its rounds then read them.
    """

  def over_kept(self) -> Any:
    """Returns the model with the logits [..., N] of the kept tokens alone."""


@runtime_checkable
class StatesModel(Protocol):
  """A language model that hands out what it computed of its prompts."""

  def prefill_with_states(
    self, inputs: Array, *, capacity: int, reader: Any
  ) -> tuple[State, Any]:
    """Returns the state that `prefill` does, and what a reader reads.

    Args:
      inputs: as of `prefill`.
      capacity: as of `prefill`.
      reader: the `readers.ReadingModel` that was made for this model. What it
        wants is known to the two of them alone: the hidden states of a prompt,
        say, or an encoded source.
    """


_KINDS: dict[tuple[type, type], bool] = {}


def is_kind(part: Any, protocol: Any) -> bool:
  """Whether a part keeps a protocol.

  An `isinstance` check against a protocol takes long, so each type is checked
  once.
  """
  kind = (type(part), protocol)
  if kind not in _KINDS:
    _KINDS[kind] = isinstance(part, protocol)
  return _KINDS[kind]


def is_chain_model(part: Any) -> TypeGuard[ChainModel]:
  """Whether a language model may draft a chain in one call."""
  return is_kind(part, ChainModel)


def is_exit(part: Any) -> TypeGuard[SharesLayers]:
  """Whether a language model has the first layers of its verifier."""
  return is_kind(part, SharesLayers) and bool(part.num_shared)


def is_cut_model(part: Any) -> TypeGuard[CutModel]:
  """Whether a language model's head may keep some tokens alone."""
  return is_kind(part, CutModel)


def prefill_with_states(
  model: LanguageModel, inputs: Array, *, capacity: int, reader: Any
) -> tuple[State, Any]:
  """Returns a model's state, and what a reader reads; see `StatesModel`.

  A model that reads no prompt need not be a `StatesModel`: then there is
  nothing to read, None.

  Raises:
    ValueError: the model reads prompts and is not a `StatesModel`.
  """
  if is_kind(model, StatesModel):
    states_model: Any = model
    return states_model.prefill_with_states(
      inputs, capacity=capacity, reader=reader
    )
  if model.prompted:
    raise ValueError(
      f"a {type(model).__name__} does not hand out the hidden states of its"
      " prompts, which a state reader reads; give a drafter of its own"
    )
  return model.prefill(inputs, capacity=capacity), None
