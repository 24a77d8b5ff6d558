"""The two doors of the core, and what passes through them.

A decoder never knows which network it drives: a `LanguageModel` feeds tokens
and returns logits, a `Drafter` proposes a block. Both are pytrees whose leaves
are parameters, so both pass through `jit`; what is not an array is static.

Axes: B rows, S source length, L token buffer, N fed tokens, R read positions,
G block width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, runtime_checkable

from flax import struct
import jax
import jax.numpy as jnp

Array = jax.Array
State = Any  # a pytree; every leaf has axis 0 = B
# Of a language model it has `length`, [B] int32: how many tokens it holds.

# What users and modules pass in; each is documented where it is called.
# (q, p, *, alpha, sampled) -> (left, right): `deferral.Rule`.
RuleFunction = Callable[..., tuple[Array, Array]]
# (q, p, *, alpha, sampled) -> (pi, left, right): `target.Target`.
TargetFunction = Callable[..., tuple[Array, Array | None, Array | None]]
# (tokens, count, q, pi, u_accept, u_draw) -> Verdict: `verification`.
VerifyFunction = Callable[..., "Verdict"]


def check_shape(name: str, array: Array, wanted: tuple[int, ...]) -> None:
  """Checks a shape while a program is traced.

  Raises:
    ValueError: another shape; both are named.
  """
  if tuple(array.shape) != tuple(wanted):
    raise ValueError(
      f"{name} has shape {list(array.shape)}; wanted {list(wanted)}"
    )


class Output(struct.PyTreeNode):
  """What a model says about the positions that were read.

  Attributes:
    logits: [B, R, V] float32, the law of the token after each read position.
    hidden: [B, R, D] last hidden state (for draft heads), or None.
  """

  logits: Array
  hidden: Array | None = None


class Part(Protocol):
  """What models and drafters have in common: caches, and one vocabulary."""

  @property
  def vocab_size(self) -> int:
    """V."""

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    """Returns the state before any decoder token, with `capacity` slots.

    A prompted model holds its prompts by then, but for their last tokens; these
    are no decoder tokens, and take slots of their own.

    Args:
      inputs: [B, S] int32 source tokens, 0 is padding; or prompts, with
        `prompts.PAD` at either end.
      capacity: number of decoder tokens that the state must be able to hold.
    """

  def rewind(self, state: State, length: Array) -> State:
    """Forgets every token at or after `length` [B] int32; costs nothing."""


class LanguageModel(Part, Protocol):
  """Feeds tokens to a network and returns logits; rows are independent.

  A model is a frozen pytree: parameters are leaves; modules and what stands
  below are static. Equal modules hash equal, so a second call does not trace
  again.

  """

  @property
  def prompted(self) -> bool:
    """Whether a row goes on from its own prompt (decoder-only), not from a
    source and a start token; see `prompts`."""

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

    Row b feeds `tokens[b, :count[b]]`; what stands after is ignored, and its
    logits mean nothing. The length of row b grows by `count[b]`.

    Args:
      state: from `prefill`, `extend`, `rewind` or `keep`.
      tokens: [B, N] int32.
      count: [B] int32 in 0..N.
      read: [B, R] int32 indices into the N fed tokens whose logits are wanted;
        None reads all N. The head runs on the read positions only.
      depth: [B, N] int32, trees: position of each token past the row's length;
        None means 0, 1, ..., N-1.
      ancestors: [B, N, N] bool, trees: `[b, i, j]` says that token i sees token
        j (itself included); None means the lower triangle.

    Returns:
      The longer state, and logits [B, R, V] float32.
    """

  def keep(
    self, state: State, start: Array, path: Array, count: Array
  ) -> State:
    """Keeps one path of a tree that was fed at `start`.

    Args:
      state: after the `extend` that fed the tree.
      start: [B] int32, the length before that `extend`.
      path: [B, K] int32 indices into the fed tokens, in order of depth.
      count: [B] int32, how many of the K are kept.

    Returns:
      The state of length `start + count`, holding those tokens in order.
    """


class Proposal(struct.PyTreeNode):
  """A drafted block, and the law that each token was drawn from.

  Attributes:
    tokens: [B, G] int32; row b proposes the first `count[b]`.
    count: [B] int32 in 0..G.
    q: [B, G+1, V] sampled law of each token; index `count[b]` is the law at the
      bonus position (meaningful only where it was asked for), and rows after
      it mean nothing.
    q1: [B, G+1, V] the drafter's confidence: the same at temperature 1 and
      unfiltered; `q` itself where a token is copied.
    copied: [B, G+1] bool, tokens that no model drafted: their law is one-hot
      and says nothing of confidence.
    calls: [B, M] int32 forward passes of each of the drafter's models.
    bad: [B, G+1] bool, where a law that was read is no distribution (NaN, +inf,
      no finite logit); at index `count` if it was asked for, or if it ended the
      block.
    knows_bonus: [B] bool, whether it has a law at the bonus position, if asked;
      where it has none, the target there is the verifier.
    writer: [B, G+1] int32, or one number for all: the place among `calls` of
      the model that wrote each token; -1 where it was copied, though a model
      may have reviewed it since.
  """

  tokens: Array
  count: Array
  q: Array
  q1: Array
  copied: Array
  calls: Array
  bad: Array
  knows_bonus: Array | bool = True
  writer: Array | int = 0


@runtime_checkable
class Drafter(Part, Protocol):
  """Proposes up to `width` tokens for each row. A pytree."""

  @property
  def width(self) -> int:
    """Static: most tokens of a proposal."""

  @property
  def models(self) -> tuple[LanguageModel, ...]:
    """The M language models inside, in the order of `Proposal.calls`; one may
    be in several places."""

  @property
  def has_confidence(self) -> bool:
    """Static: whether `q1` says something of every token."""

  def propose(
    self,
    state: State,
    tokens: Array,
    length: Array,
    rngs: Array,
    sampling: Any,
    *,
    bonus_law: bool,
    active: Array,
  ) -> tuple[State, Proposal]:
    """Drafts a block after `tokens[b, :length[b]]`.

    First catches its own cache up to `length`; the last token of the prefix,
    `tokens[b, length[b]-1]`, is never in the cache yet.

    Args:
      state: from `prefill`, `propose` or `rewind`.
      tokens: [B, L] int32 token buffer; at index 0 the start token, or the
        prompt's last.
      length: [B] int32, how many of the L are written.
      rngs: [B] typed keys, fresh for this round and this level.
      sampling: a `Sampling`.
      bonus_law: static; whether `q` at index `count` is needed.
      active: [B] bool; what is proposed for the other rows is not used, and
        they must not keep the rest waiting.
    """

  def catch_up(
    self, state: State, tokens: Array, upto: Array, *, wide: int
  ) -> State:
    """Reads what others wrote, before another turn: `feeding.catch_up`."""


_IS_DRAFTER: dict[type, bool] = {}


def is_drafter(part: Any) -> TypeGuard[Drafter]:
  """Whether a part of a pair is a `Drafter`, not a model; told by its type,
  of which a protocol is asked once: to ask takes long."""
  kind = type(part)
  if kind not in _IS_DRAFTER:
    _IS_DRAFTER[kind] = isinstance(part, Drafter)
  return _IS_DRAFTER[kind]


class Verdict(struct.PyTreeNode):
  """What a verifier step decided on a block.

  Attributes:
    num_accepted: [B] int32 in 0..count.
    token: [B] int32, the residual or bonus token after the accepted prefix.
    examined: [B] int32, drafts looked at: the first rejected is the last one.
    read: [B] int32 in 1..G+1, positions whose laws the decision rests on.
  """

  num_accepted: Array
  token: Array
  examined: Array
  read: Array


class Stats(struct.PyTreeNode):
  """Counts of each row; definitions in docs/definitions.md.

  Every field is [B] int32 unless said. Positions after the first EOS or the
  length limit were drafted, but are neither examined nor accepted nor emitted.

  Attributes:
    num_blocks: draft-verify rounds (0 where a method has no blocks).
    drafted: drafted tokens.
    examined: drafts looked at by the verifier step.
    accepted: drafts accepted and emitted.
    deferred: emitted positions at which the rule deferred.
    drafter_calls: forward passes of the drafter, all its models together.
    calls_by_model: [B, M] int32, the same by model (a vertical or horizontal
      drafter has several).
    verifier_calls: positions or blocks for which the verifier was asked.
    verifier_extends: forward passes of the verifier, catch-up included.
    expected_acceptance: [B] float32, sum over examined drafts of
      sum_v min(q, pi).
    accepted_at: [B, G+1] int32 histogram: blocks in which j drafts were
      accepted.
    examined_by_position: [B, G] int32, blocks that examined draft j.
    accepted_by_position: [B, G] int32, blocks that accepted draft j.
  """

  num_blocks: Array
  drafted: Array
  examined: Array
  accepted: Array
  deferred: Array
  drafter_calls: Array
  calls_by_model: Array
  verifier_calls: Array
  verifier_extends: Array
  expected_acceptance: Array
  accepted_at: Array
  examined_by_position: Array
  accepted_by_position: Array

  @classmethod
  def zeros(cls, rows: int, width: int, num_models: int) -> "Stats":
    """Returns counters of blocks of `width` (0: none) and of some models."""
    count = jnp.zeros((rows,), jnp.int32)
    by_position = jnp.zeros((rows, width), jnp.int32)
    return cls(
      num_blocks=count,
      drafted=count,
      examined=count,
      accepted=count,
      deferred=count,
      drafter_calls=count,
      calls_by_model=jnp.zeros((rows, num_models), jnp.int32),
      verifier_calls=count,
      verifier_extends=count,
      expected_acceptance=jnp.zeros((rows,), jnp.float32),
      accepted_at=jnp.zeros((rows, width + 1), jnp.int32),
      examined_by_position=by_position,
      accepted_by_position=by_position,
    )

  def add(self, **counts: Array) -> "Stats":
    """Returns the counters with more (numbers or bools) added, by field."""
    sums = {}
    for name, count in counts.items():
      total = getattr(self, name)
      sums[name] = total + count.astype(total.dtype)
    return self.replace(**sums)


# Trace.source codes. A draft that was kept although the rule deferred has
# source DRAFT and deferred True.
DRAFT, RESIDUAL, BONUS, SEQUENTIAL_Q, SEQUENTIAL_P = range(5)
SOURCES = ("draft", "residual", "bonus", "sequential q", "sequential p")


class Trace(struct.PyTreeNode):
  """Who wrote each token, and why. T = max_decode_len; K = top tokens kept.

  Attributes:
    source: [B, T] int32, one of DRAFT .. SEQUENTIAL_P.
    writer: [B, T] int32, the place in `Stats.calls_by_model` of the drafter's
      model that wrote the token; -1 where it was copied, or is the verifier's.
    deferred: [B, T] bool, whether the rule deferred here.
    left: [B, T] float32, the rule's left side (defers where left < right).
    right: [B, T] float32. A token rule is read at the draft (in a sequential
      execution: at the token written); NaN where no rule was asked.
    tv: [B, T] float32, TV(p, q) of the sampled pair; NaN where one is unknown.
    block: [B, T] int32, the block that wrote the token, from 0.
    q_top: [B, T, K] int32 the drafter's likeliest tokens at temperature 1.
    q_prob: [B, T, K] float32 their probabilities; NaN where unknown.
    p_top: [B, T, K] int32, the verifier's.
    p_prob: [B, T, K] float32.
  """

  source: Array
  writer: Array
  deferred: Array
  left: Array
  right: Array
  tv: Array
  block: Array
  q_top: Array
  q_prob: Array
  p_top: Array
  p_prob: Array


class LogProbs(struct.PyTreeNode):
  """What each law gave the tokens written, in nats. T = max_decode_len.

  Every field is [B, T] float32: NaN where there is no such law and after the
  end of a row, -inf where a known law gives the token nothing.
  docs/definitions.md says what their sums mean.

  Attributes:
    pi: the method's own target; at a bonus drawn from the verifier, p.
    p: the verifier as sampled.
    q: the drafter as sampled; NaN where it had no law or copied the token.
    p1: the verifier at temperature 1, unfiltered.
    q1: the drafter likewise, its confidence.
  """

  pi: Array
  p: Array
  q: Array
  p1: Array
  q1: Array


class Decoded(struct.PyTreeNode):
  """What every execution returns. T = max_decode_len.

  Attributes:
    tokens: [B, T] int32, EOS kept, 0 after it. `lengths` is authoritative: id
      0 can be sampled like any other.
    lengths: [B] int32 tokens emitted, EOS included, start token not.
    stats: `Stats`.
    trace: `Trace`, or None.
    bad_step: [B] int32, the position at which a row met NaN, +inf or a row
      without a finite logit and ended; -1 where none did.
    log_probs: `LogProbs`, or None.
  """

  tokens: Array
  lengths: Array
  stats: Stats
  trace: Trace | None
  bad_step: Array
  log_probs: LogProbs | None = None
