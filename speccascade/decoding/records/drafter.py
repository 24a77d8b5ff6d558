"""The `Drafter` interface, and the objects accepted instead of a drafter.

A `Drafter` proposes a block of tokens. `Heads` and `Lookahead` are not drafters
yet: they were trained for one verifier, and a `Decoder` makes a drafter of them
and of that verifier. All three are pytrees whose leaves are parameters, as a
`LanguageModel` is.

Axes: B rows, L token buffer, D model width, V vocabulary, M language models
inside a drafter, K draft heads or look-ahead embeddings. A tree of drafts has N
drafts and N + 1 nodes, and G is its depth; a chain has N = G.
"""

from collections.abc import Callable
from typing import (
  TYPE_CHECKING,
  Any,
  Protocol,
  TypeGuard,
  cast,
  runtime_checkable,
)

import jax

from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records import feeding
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.records.language_model import (
  LanguageModel,
  Part,
  State,
  is_exit,
  is_kind,
)
from speccascade.decoding.records.masked_model import (
  MaskedModel,
  MaskedState,
  begin_text,
)
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class Drafter:
  """Proposes up to `width` tokens for each row.

  A drafter is a frozen pytree that inherits this class. It has a `width` and a
  `propose`, and names its `parts`; the rest follows from these. A drafter of
  trees has a `tree`, and a static `drawing`, one of `draft_tree.DRAWINGS`, by
  which a call is checked before anything is compiled. A drafter that reads the
  verifier's hidden states is a `Reader`, too; one that reads those of all
  tokens is a `PromptReader`; see `readers`.

  The state of a drafter is a tuple: the states of its parts, in order, and
  after them whatever else the drafter remembers.
  """

  if TYPE_CHECKING:  # These are fields of some drafters, properties of others.

    @property
    def width(self) -> int:
      """Static: N, the largest number of tokens of a proposal."""

    @property
    def tree(self) -> DraftTree | None:
      """Static: the shape of a proposal; None for a drafter of chains."""

    @property
    def own_counts(self) -> tuple[str, ...]:
      """Static: the fields of `Stats` that only some drafters count."""

  else:
    tree, own_counts = None, ()

  # Static: whether a mask on the parts is a mask on what they propose. It is
  # not where a drafter copies tokens, or makes distributions of hidden states.
  passes_mask = True

  @property
  def parts(self) -> tuple[Any, ...]:
    """The language models and the drafters that this drafter is made of."""
    return ()

  @property
  def models(self) -> tuple[LanguageModel, ...]:
    """The M language models inside, in the order of `Proposal.calls`.

    One model may be in several places, and is then listed once for each.
    """
    models: list[LanguageModel] = []
    for part in self.parts:
      models += part.models if is_drafter(part) else [part]
    return tuple(models)

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""
    return self.parts[0].vocab_size

  @property
  def has_confidence(self) -> bool:
    """Static: whether `Proposal.q1` is a model's confidence in every token."""
    return all(part.has_confidence for part in self.parts if is_drafter(part))

  @property
  def is_maskable(self) -> bool:
    """Static: whether a mask of tokens reaches all of a proposal's q."""
    parts = [part for part in self.parts if is_drafter(part)]
    reaches = self.passes_mask and bool(self.parts)
    return reaches and all(part.is_maskable for part in parts)

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """Checks that a review of this drafter's blocks has a stated distribution.

    A drafter may state no distribution at some places, or not one distribution.

    Args:
      target: a `Target`.
      settings: `ReviewSettings`.

    Raises:
      ValueError: the target or the verification needs such a distribution.
    """

  @property
  def spare_slots(self) -> int:
    """Static: slots that the parts' caches need beyond a row's tokens.

    A pass writes all its slots, whatever its count. So a cache needs space
    after its last token for the tokens of a proposal, and for the pass that
    catches up.
    """
    return 0

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    """Returns the state before any decoder token; see `Part`."""
    capacity += self.spare_slots
    return tuple(part.prefill(inputs, capacity=capacity) for part in self.parts)

  def share_prompt(self, state: State, of_verifier: State) -> State:
    """Returns the state after a prefill; see `share_prompt` below."""
    if not self.parts:
      return state
    return self._of_parts(
      state, lambda part, inner: share_prompt(part, inner, of_verifier)
    )

  def rewind(self, state: State, length: Array) -> State:
    """Forgets every token at or after `length` [B] int32; see `Part`."""
    return self._of_parts(state, lambda part, inner: part.rewind(inner, length))

  def keep(
    self, state: State, length: Array, path: Array, count: Array
  ) -> State:
    """Keeps the drafts that were accepted, and forgets the other ones.

    The accepted drafts of a chain are its first drafts, so a chain is cut after
    them, and the path is not read.

    Args:
      state: from `propose`.
      length: [B] int32, as in that `propose`.
      path: [B, G] int32, the accepted drafts in order of depth. In a chain
        draft i is at index i.
      count: [B] int32, how many of them to keep.

    Returns:
      The state, which holds at most `length + count` tokens.
    """
    return self.rewind(state, length + count)

  def catch_up(
    self, state: State, tokens: Array, upto: Array, *, wide: int
  ) -> State:
    """Reads external tokens before another turn; see `catch_up` below."""
    return self._of_parts(
      state,
      lambda part, inner: catch_up(part, inner, tokens, upto, wide=wide),
    )

  def propose(
    self,
    state: State,
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[State, Proposal]:
    """Drafts a block after the tokens so far.

    The drafter first feeds its models the tokens of the prefix that their
    caches lack. The last token of the prefix is never in a cache yet.

    Args:
      state: from `prefill`, `propose`, `rewind` or `keep`.
      prefix: the tokens so far. Proposals of the rows that are not active are
        not used, and those rows must not keep the active rows waiting.
      rngs: [B] typed keys, fresh for this round and for this level of nesting.
      sampling: how logits become distributions.
      needs_bonus_law: static; whether `Proposal.q` at index `count` is needed.

    Raises:
      ValueError: the parts do not fit each other.
    """
    raise NotImplementedError

  def _of_parts(
    self, state: State, function: Callable[[Any, State], State]
  ) -> State:
    """Returns the state with a function applied to each part and its state."""
    new = tuple(map(function, self.parts, state))
    return (*new, *state[len(new) :])


def catch_up(
  part: Part, state: State, tokens: Array, upto: Array, *, wide: int
) -> State:
  """Feeds a model, or all models of a drafter, external tokens.

  Args:
    part: the model or drafter.
    state: the part's state, with `wide` free slots after `upto`.
    tokens: [B, L] int32, which hold the prefix.
    upto: [B] int32. Rows that hold this many tokens already are left alone.
    wide: static, tokens of a pass.

  Returns:
    The state.
  """
  if is_drafter(part):
    return part.catch_up(state, tokens, upto, wide=wide)
  state, _, _ = feeding.feed_to(
    cast(LanguageModel, part),
    state,
    tokens,
    upto,
    first=upto - 1,
    read=1,
    narrow=wide,
    wide=wide,
  )
  # The last token of the turn is fed later: the part's own text follows it.
  return begin_text(cast(LanguageModel, part), state, upto)


def share_prompt(part: Part, state: State, of_verifier: State) -> State:
  """Gives early exits in a part what the verifier's prefill computed.

  Args:
    part: a model or drafter; only early exits in it are given anything.
    state: the part's state, from `prefill`.
    of_verifier: the state from the verifier's `prefill` of the same inputs.

  Returns:
    The state.
  """
  if is_drafter(part):
    return part.share_prompt(state, of_verifier)
  if isinstance(part, MaskedModel):
    if isinstance(of_verifier, MaskedState):
      of_verifier = of_verifier.inner
    inner = share_prompt(part.model, state.inner, of_verifier)
    return state.replace(inner=inner)
  return part.share_prompt(state, of_verifier) if is_exit(part) else state


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

  Look-ahead embedding i, from 1 on, is an input that the verifier reads in
  place of a token: the token i places after the last token of a text. The
  verifier's output there is a distribution of the token i + 1 places after the
  last token, whatever the tokens between them are.
  """

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens; look-ahead embeddings are not tokens."""

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


@runtime_checkable
class Exit(Protocol):
  """An early exit that was taught: a pytree in a drafter's place.

  It has layers of its own, which follow the verifier's first ones.
  """

  @property
  def vocab_size(self) -> int:
    """V, the number of tokens."""

  @property
  def num_layers(self) -> int:
    """Static: how many layers are the verifier's."""

  def language_model(self, verifier: Any) -> LanguageModel:
    """Returns the language model that drafts.

    Args:
      verifier: the language model that the exit was taught for.
    """


def is_drafter(part: Any) -> TypeGuard[Drafter]:
  """Whether a part of a pair is a `Drafter`, and not a model."""
  return isinstance(part, Drafter)


def is_heads(part: Any) -> TypeGuard[Heads]:
  """Whether a part of a pair is `Heads`, and not a model or a `Drafter`."""
  return is_kind(part, Heads)


def is_lookahead(part: Any) -> TypeGuard[Lookahead]:
  """Whether a part of a pair is `Lookahead`, and not a model or a `Drafter`."""
  return is_kind(part, Lookahead)


def is_taught_exit(part: Any) -> TypeGuard[Exit]:
  """Whether a part of a pair is an `Exit`, and not a model or a `Drafter`."""
  return is_kind(part, Exit)


def block_depth(drafter: Drafter) -> int:
  """Returns G, the number of drafts on the longest path of a block."""
  return drafter.width if drafter.tree is None else drafter.tree.depth


def refuse_tree(drafter: Drafter, place: str) -> None:
  """Raises ValueError where a drafter drafts trees.

  Args:
    drafter: the drafter.
    place: what takes only drafters of chains, as the message is to call it.
  """
  if drafter.tree is not None:
    raise ValueError(
      f"a {type(drafter).__name__} drafts trees, and {place} takes drafters of"
      " chains: give one, or let the tree draft for the verifier itself"
    )
