"""The doors of the core: what a model, a drafter and draft heads are.

A decoder never knows which network it drives. A `LanguageModel` feeds tokens
and returns logits; a `Drafter` proposes a block of tokens. Both are pytrees
whose leaves are parameters, so both pass through `jit`; what is not an array is
static.

Axes: B rows, S source length, L token buffer, N fed tokens, R read positions,
G block width, V vocabulary, M language models inside a drafter. A tree of
drafts has N drafts and N + 1 nodes, and G is its depth; a chain has N = G.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, runtime_checkable

import jax

from speccascade.decoding.block_records import (
  DraftedChain,
  Output,
  Proposal,
)
from speccascade.decoding.drafting.draft_tree import DraftTree
from speccascade.decoding.laws.sampling import Sampling

Array = jax.Array
# A pytree whose leaves all have axis 0 = B. The state of a language model has a
# field `length`, [B] int32: how many tokens the model's cache holds.
State = Any

# Functions that users and modules pass in. Each is documented where it is
# called.
# (q, p, *, alpha, sampled) -> (left, right): `rules.Rule`.
RuleFunction = Callable[..., tuple[Array, Array]]
# (q, p, *, alpha, sampled) -> (pi, left, right): `targets.Target`.
TargetFunction = Callable[..., tuple[Array, Array | None, Array | None]]


def check_shape(name: str, array: Array, wanted: tuple[int, ...]) -> None:
  """Checks the shape of an array while a program is traced.

  Args:
    name: what the array is, for the message.
    array: any array.
    wanted: the shape that it must have.

  Raises:
    ValueError: the array has another shape; the message names both shapes.
  """
  if tuple(array.shape) != tuple(wanted):
    raise ValueError(
      f"{name} has shape {list(array.shape)}; wanted {list(wanted)}"
    )


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
    """Whether a row goes on from its own prompt, as in a decoder-only model.

    A model that is not prompted reads a source and begins at a start token; see
    `prompts`.
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
    row must have room for N more tokens.

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
        column j stands past the window's first slot. The tokens before the
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
    tokens: Array,
    length: Array,
    u: Array,
    sampling: Sampling,
    *,
    bonus_law: bool,
    active: Array,
  ) -> tuple[State, DraftedChain] | None:
    """Drafts after `tokens[b, :length[b]]`, as calls of `extend` would.

    The first pass feeds what the cache lacks of the prefix. Then each draft is
    drawn and fed; the last one is fed only where `bonus_law` holds. There are G
    passes, or G + 1.

    Args:
      state: the state of the model. With `bonus_law` the cache lacks the last
        token of the prefix, and without it one or two tokens.
      tokens: [B, L] int32 token buffer.
      length: [B] int32, how many of the L tokens are written.
      u: [B, G] uniforms in [0, 1), one for each draft.
      sampling: how logits become distributions.
      bonus_law: static, whether the distribution after the last draft is
        wanted.
      active: [B] bool. Other rows are fed nothing after their first pass.

    Returns:
      The state and the chain; None where the model cannot draft so.
    """


@runtime_checkable
class Drafter(Part, Protocol):
  """Proposes up to `width` tokens for each row. A drafter is a pytree.

  A drafter of chains inherits `ChainDrafter`, which has the two members that
  trees need. A drafter that states no distribution at some places may have a
  method `check_review(target, settings)`, which raises ValueError where a
  target and `ReviewSettings` ask for one. A drafter that reads the verifier is
  a `Reader`, too.
  """

  @property
  def width(self) -> int:
    """Static: N, the largest number of tokens of a proposal."""

  @property
  def tree(self) -> DraftTree | None:
    """Static: the shape of a proposal; None for a drafter of chains."""

  @property
  def models(self) -> tuple[LanguageModel, ...]:
    """The M language models inside, in the order of `Proposal.calls`.

    One model may be in several places, and is then listed once for each.
    """

  @property
  def has_confidence(self) -> bool:
    """Static: whether `Proposal.q1` is a model's confidence in every token."""

  def propose(
    self,
    state: State,
    tokens: Array,
    length: Array,
    rngs: Array,
    sampling: Sampling,
    *,
    bonus_law: bool,
    active: Array,
  ) -> tuple[State, Proposal]:
    """Drafts a block after `tokens[b, :length[b]]`.

    The drafter first feeds its models what their caches lack of the prefix. The
    last token of the prefix, `tokens[b, length[b] - 1]`, is never in a cache
    yet.

    Args:
      state: from `prefill`, `propose` or `rewind`.
      tokens: [B, L] int32 token buffer; index 0 holds the start token, or the
        last token of the prompt.
      length: [B] int32, how many of the L tokens are written.
      rngs: [B] typed keys, fresh for this round and for this level of nesting.
      sampling: how logits become distributions.
      bonus_law: static; whether `q` at index `count` is needed.
      active: [B] bool. Proposals of the other rows are not used, and those rows
        must not keep the active rows waiting.
    """

  def keep(
    self, state: State, length: Array, path: Array, count: Array
  ) -> State:
    """Keeps the drafts that were accepted, and forgets the other ones.

    Args:
      state: from `propose`.
      length: [B] int32, as in that `propose`.
      path: [B, G] int32, the accepted drafts in order of depth. In a chain
        draft i stands at index i.
      count: [B] int32, how many of them to keep.

    Returns:
      The state, which holds at most `length + count` tokens.
    """

  def catch_up(
    self, state: State, tokens: Array, upto: Array, *, wide: int
  ) -> State:
    """Reads what others wrote, before another turn: `feeding.catch_up`."""


class ChainDrafter:
  """What drafters of chains have in common: a chain is cut, not gathered."""

  @property
  def tree(self) -> DraftTree | None:
    return None

  def keep(
    self: Any, state: State, length: Array, path: Array, count: Array
  ) -> State:
    """See `Drafter`. The first `count` drafts of a chain are its path."""
    return self.rewind(state, length + count)


@runtime_checkable
class Reader(Protocol):
  """A drafter that reads what the verifier's last pass left.

  The loop calls `observe` after each round, so in the first round the drafter
  has observed nothing, and proposes nothing.
  """

  def observe(
    self, state: State, hidden: Array, node: Array, length: Array
  ) -> State:
    """Reads the hidden state at the last token that the round accepted.

    Args:
      state: the drafter's state, after `rewind` or `keep`.
      hidden: [B, N+1, D], the verifier's last hidden states after the last
        token of the prefix and after each draft.
      node: [B] int32, the index of the last accepted draft plus 1, and 0 where
        no draft was accepted.
      length: [B] int32, the tokens of the row up to and including that token.
        One more token, which the verifier drew, has been written after it.
    """


@runtime_checkable
class Heads(Protocol):
  """Draft heads over a verifier: a pytree in a drafter's place.

  Head k, from 1 on, gives a distribution of the token k + 1 places after the
  token at which the verifier left a hidden state. The verifier's own output
  projection gives the token 1 place after it.
  """

  @property
  def vocab_size(self) -> int:
    """V, the number of logits of each head."""

  @property
  def num_heads(self) -> int:
    """Static: K, the number of heads."""

  @property
  def width(self) -> int:
    """Static: D, the width of a hidden state."""

  def head_logits(self, verifier: Any, hidden: Array, num: int) -> Array:
    """Returns the logits of the first `num` heads, [B, num, V] float32.

    Args:
      verifier: the language model that the heads were trained for.
      hidden: [B, D] float32.
      num: static, 1 to K.
    """


@runtime_checkable
class Lookahead(Protocol):
  """Look-ahead embeddings of a verifier: a pytree in a drafter's place.

  Look-ahead embedding i, from 1 on, is an input that the verifier reads in the
  place of the token i places after the last token of a text. The verifier's
  output at it is a distribution of the token i + 1 places after that last
  token, whatever the tokens between are.
  """

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens; look-ahead embeddings are no tokens."""

  @property
  def num_heads(self) -> int:
    """Static: K, the number of look-ahead embeddings."""

  def language_model(self, verifier: Any) -> LanguageModel:
    """Returns a language model that reads the look-ahead embeddings too.

    It has the verifier's logits [..., V]. It can be fed the ids V to V + K - 1,
    which are the look-ahead embeddings 1 to K.

    Args:
      verifier: the language model that the embeddings were trained for.
    """


_KINDS: dict[tuple[type, type], bool] = {}


def _is_kind(part: Any, protocol: Any) -> bool:
  """Whether a part keeps a protocol.

  An `isinstance` check against a protocol takes long, so each type is checked
  once.
  """
  kind = (type(part), protocol)
  if kind not in _KINDS:
    _KINDS[kind] = isinstance(part, protocol)
  return _KINDS[kind]


def is_drafter(part: Any) -> TypeGuard[Drafter]:
  """Whether a part of a pair is a `Drafter`, and not a model."""
  return _is_kind(part, Drafter)


def is_chain_model(part: Any) -> TypeGuard[ChainModel]:
  """Whether a language model may draft a chain in one call."""
  return _is_kind(part, ChainModel)


def is_reader(part: Any) -> TypeGuard[Reader]:
  """Whether a drafter reads the verifier's hidden states."""
  return _is_kind(part, Reader)


def is_heads(part: Any) -> TypeGuard[Heads]:
  """Whether a part of a pair is `Heads`, and not a model or a `Drafter`."""
  return _is_kind(part, Heads)


def is_lookahead(part: Any) -> TypeGuard[Lookahead]:
  """Whether a part of a pair is `Lookahead`, and not a model or a `Drafter`."""
  return _is_kind(part, Lookahead)


def block_depth(drafter: Drafter) -> int:
  """Returns G, the number of drafts on the longest path of a block."""
  return drafter.width if drafter.tree is None else drafter.tree.depth


def refuse_tree(drafter: Drafter, place: str) -> None:
  """Raises ValueError where a drafter drafts trees.

  Args:
    drafter: the drafter.
    place: what takes drafters of chains alone, for the message.
  """
  if drafter.tree is not None:
    raise ValueError(
      f"a {type(drafter).__name__} drafts trees, and {place} takes drafters of"
      " chains: give one, or let the tree draft for the verifier itself"
    )
