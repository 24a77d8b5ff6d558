"""The records of a block and of a whole decode.

`Output`, `Branches` and `Proposal` are what models and drafters return,
`Verdict` what a verifier step decides; `Stats`, `Trace`, `LogProbs` and
`Decoded` are what a decode leaves.

Axes: B rows, L token buffer, R read positions, G block width, V vocabulary, M
language models inside a drafter. A tree of drafts has N drafts and N + 1 nodes,
and G is its depth; a chain has N = G.
"""

from collections.abc import Callable
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.records.block_scores import BlockScores
from speccascade.decoding.records.draft_tree import DraftTree

Array = jax.Array

# (tokens, count, q, pi, u_accept, u_draw) -> Verdict: `verification.steps`.
VerifyFunction = Callable[..., "Verdict"]


class Output(struct.PyTreeNode):
  """What a model returns for the positions that were read.

  Attributes:
    logits: [B, R, V] float32. They give the distribution of the token after
      each read position.
    hidden: [B, R, D] last hidden state (for draft heads), or None.
  """

  logits: Array
  # The pass that gives the logits gives these: only the model has them.
  hidden: Array | None = None


class Branches(struct.PyTreeNode):
  """How the drafts of a proposal form a tree.

  Node 0 is the place after the prefix, and node i + 1 is the place after draft
  i. The drafts are numbered level by level.

  Attributes:
    tree: static, the shape in which the drafts were made.
    drawing: static, how the children of a node were chosen; see
      `drafting.children`.
    parents: [B, N] int32, the node that each draft follows; `NO_NODE` for
      drafts that a row does not propose. It differs from the tree's own parent
      where an independent draw repeats a sibling's token.
    is_certain: [B, N] bool, drafts that are a function of the prefix.
    laws: [B, N, V], the distribution that each draft was drawn from, where it
      is not the distribution at the draft's node: several drafters have several
      distributions there. None takes the distributions at the nodes.
    has_q: static, whether the distributions at the nodes are those of one
      drafter, so that a target may use them.
  """

  tree: DraftTree = struct.field(pytree_node=False)
  drawing: str = struct.field(pytree_node=False)
  parents: Array
  is_certain: Array
  # The verifier step reads them, so they travel with the drafts.
  laws: Array | None = None
  has_q: bool = struct.field(pytree_node=False, default=True)

  @property
  def has_children(self) -> Array:
    """[B, N+1] bool, the nodes that a draft follows."""
    nodes = jnp.arange(self.parents.shape[1] + 1, dtype=jnp.int32)
    return jnp.any(self.parents[:, None, :] == nodes[None, :, None], axis=2)

  def ranks_of(self, drafts: Array) -> Array:
    """Returns the place of each draft among its siblings, from 0 on.

    Args:
      drafts: [B, K] int32.

    Returns:
      [B, K] int32.
    """
    node = jnp.take_along_axis(self.parents, drafts, axis=1)
    index = jnp.arange(self.parents.shape[1], dtype=jnp.int32)[None, None]
    is_before = self.parents[:, None, :] == node[:, :, None]
    is_before &= index < drafts[:, :, None]
    return jnp.sum(is_before, axis=2, dtype=jnp.int32)


# Names of `Proposal.extra`: [B, G+1] bool, where a mask allows one token alone,
# so that it is neither drafted nor rejectable; and [B] bool, rows without
# drafts, since the block would end past the window of the drafter.
FORCED_PLACES, PAST_WINDOW = "forced", "past_window"


class Proposal(struct.PyTreeNode):
  """A drafted block, and the distribution that each token was drawn from.

  The block is a chain of drafts, or a tree of them. In a chain N = G, and draft
  i is at index i. The distribution at index i is that after i drafts, from
  which draft i is drawn. In a tree `branches` says which drafts follow which,
  and the distribution at index n is that at node n, from which the children of
  the node are drawn.

  Attributes:
    tokens: [B, N] int32; row b of a chain proposes the first `count[b]`.
    count: [B] int32 in 0..N.
    q: [B, N+1, V] distribution at each node. In a chain, index `count[b]` is
      the distribution at the bonus position, and means something only where it
      was asked for. Later rows are undefined.
    q1: [B, N+1, V] the drafter's confidence: its distribution at temperature 1,
      unfiltered. Where a token is copied it is `q` itself.
    copied: [B, N+1] bool, tokens that no model drafted. Their distribution is
      one-hot and says nothing about confidence.
    calls: [B, M] int32 forward passes of each of the drafter's models.
    bad: [B, N+1] bool, where a model that was read gave no distribution (NaN,
      +inf, or no finite logit). Index `count` counts if the bonus position was
      asked for, or if the fault itself ended the block.
    has_bonus_law: [B] bool, whether the drafter has a distribution at the bonus
      position, if it was asked for one. Where it has none, the target at that
      position is the verifier. In a tree the bonus positions are the nodes that
      no draft follows.
    writer: [B, N+1] int32, or one number for all tokens: the index in `calls`
      of the model that wrote each token; -1 where the token was copied, even if
      a model reviewed the copy.
    branches: the tree of the drafts; None for a chain.
    extra: what only some drafters say of a block, [B, ...] by name: what their
      `own_counts` are counted from; see `loops.observers`.
    scores: what a kernel for a GPU reviews a chain by, in place of q; None
      where there is no such kernel, or the drafts are not the model's own.
  """

  tokens: Array
  count: Array
  q: Array
  q1: Array
  copied: Array
  calls: Array
  bad: Array
  has_bonus_law: Array | bool = True
  writer: Array | int = 0
  # The verifier's pass and step depend on the shape of each block.
  branches: Branches | None = None
  extra: dict[str, Array] = struct.field(default_factory=dict)
  scores: BlockScores | None = None

  def writers(self, first: int = 0) -> Array:
    """Returns `writer` as [B, N+1] int32, with models counted from `first`.

    Args:
      first: the models of the drafters before this one, in a drafter of
        several.
    """
    writer = jnp.asarray(self.writer, jnp.int32)
    writer = jnp.where(writer < 0, -1, first + writer)
    return jnp.broadcast_to(writer, self.copied.shape)


class DraftedChain(struct.PyTreeNode):
  """A chain that a language model drafted in one call.

  Attributes:
    tokens: [B, G] int32.
    q: [B, G+1, V], as in `Proposal`.
    logits: [B, P, V] float32, after each of the P passes.
    bad: [B, G+1] bool, as in `Proposal`.
  """

  tokens: Array
  q: Array
  logits: Array
  bad: Array


class Verdict(struct.PyTreeNode):
  """What a verifier step decided on a block.

  Attributes:
    num_accepted: [B] int32 in 0..count; in a tree, the depth of the last
      accepted draft.
    token: [B] int32, the residual or bonus token after the accepted prefix.
    examined: [B] int32, drafts that the step looked at. The first rejected
      draft is the last examined one. In a tree, depths at which it looked at a
      draft.
    read: [B] int32 in 1..N+1, positions whose distributions the decision rests
      on. A step that reads the positions along the accepted path alone reads
      num_accepted + 1 of them.
    path: [B, G] int32, the accepted drafts of a tree, 0 after them; None in a
      chain.
  """

  num_accepted: Array
  token: Array
  examined: Array
  read: Array
  # The decision itself: what the caches keep. A chain keeps its first drafts.
  path: Array | None = None


def _with_extra(part: Any) -> dict[str, Array]:
  """Returns the fields of a record by name, those of `extra` among them."""
  values = dict(vars(part))
  extra = values.pop("extra")
  return values | extra


class Stats(struct.PyTreeNode):
  """Counts of each row; docs/definitions.md defines them.

  Every field is [B] int32 unless its line says otherwise. Positions after the
  first EOS, or after the length limit, count as drafted, but not as examined,
  accepted or emitted.

  Attributes:
    num_blocks: draft-verify rounds (0 where a method has no blocks).
    drafted: drafted tokens, all branches of a tree counted.
    examined: drafts that the verifier step looked at; in a tree, depths at
      which it looked at a draft.
    accepted: drafts that were accepted and emitted.
    deferred: emitted positions at which the rule deferred.
    drafter_calls: forward passes of the drafter, all its models together.
    calls_by_model: [B, M] int32, forward passes of each model of the drafter (a
      vertical or horizontal drafter has several).
    verifier_calls: positions or blocks for which the verifier was called.
    verifier_extends: forward passes of the verifier, catch-up included.
    expected_acceptance: [B] float32, the sum of sum_v min(q, pi) over examined
      drafts.
    accepted_at: [B, G+1] int32 histogram: the number of blocks in which j
      drafts were accepted.
    examined_by_position: [B, G] int32, the number of blocks that examined draft
      j.
    accepted_by_position: [B, G] int32, the number of blocks that accepted draft
      j.
    extra: the counters of the loop's observers, [B, ...] by name; see
      `loops.observers`.
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
  extra: dict[str, Array] = struct.field(default_factory=dict)

  @classmethod
  def zeros(
    cls, rows: int, width: int, num_models: int, **extra: Array
  ) -> "Stats":
    """Returns the counters before the first round.

    Args:
      rows: B.
      width: G; 0 for methods without blocks.
      num_models: M.
      **extra: the observers' counters before the first round.
    """
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
      extra=extra,
    )

  def by_name(self) -> dict[str, Array]:
    """Returns all counters by name, those of observers among them."""
    return _with_extra(self)

  def add(self, **counts: Array) -> "Stats":
    """Returns the counters with counts (numbers or bools) added, by name.

    The block of a round may be narrower than the widest: its counts by position
    are those of the first positions.
    """
    sums: dict[str, Array] = {}
    totals = self.by_name()
    for name, count in counts.items():
      total = totals[name]
      more = [(0, of - num) for of, num in zip(total.shape, count.shape)]
      if total.shape != count.shape:
        count = jnp.pad(count, more)
      sums[name] = total + count.astype(total.dtype)
    extra = {name: sums.pop(name, self.extra[name]) for name in self.extra}
    return self.replace(**sums, extra=extra)


# Codes of `Trace.source`. A draft that was accepted although the rule deferred
# has source DRAFT and deferred True.
DRAFT, RESIDUAL, BONUS, SEQUENTIAL_Q, SEQUENTIAL_P, FORCED = range(6)
SOURCES = (
  "draft",
  "residual",
  "bonus",
  "sequential q",
  "sequential p",
  "forced",
)


class Trace(struct.PyTreeNode):
  """Who wrote each token, and why. T = max_decode_len; K = top tokens stored.

  Entries past a row's length are undefined, and may depend on the rest of the
  batch.

  Attributes:
    source: [B, T] int32, one of DRAFT .. FORCED.
    writer: [B, T] int32, the index in `Stats.calls_by_model` of the drafter's
      model that wrote the token; -1 where the token was copied or forced, or is
      the verifier's.
    deferred: [B, T] bool, whether the rule deferred here.
    left: [B, T] float32, the left side of the rule, which defers where left <
      right; NaN where no rule was evaluated.
    right: [B, T] float32, the right side of the rule. A token rule is read at
      the draft, or, in a sequential execution, at the token written.
    tv: [B, T] float32, TV(p, q) of the sampled pair; NaN where q or p is
      unknown.
    block: [B, T] int32, the block that wrote the token, from 0.
    q_top: [B, T, K] int32, the drafter's likeliest tokens at temperature 1.
    q_prob: [B, T, K] float32, the probabilities of `q_top`; NaN where unknown.
    p_top: [B, T, K] int32, the verifier's likeliest tokens at temperature 1.
    p_prob: [B, T, K] float32, the probabilities of `p_top`; NaN where unknown.
    extra: the columns [B, T] of the loop's observers, by name; see
      `loops.observers`.
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
  extra: dict[str, Array] = struct.field(default_factory=dict)

  def by_name(self) -> dict[str, Array]:
    """Returns all columns by name, those of observers among them."""
    return _with_extra(self)


class DraftedTrees(struct.PyTreeNode):
  """All drafts of the trees of a text. J = max_decode_len + 1 blocks.

  Entries after the last block of a row are undefined.

  Attributes:
    tokens: [B, J, N] int32, the drafts of each block.
    parents: [B, J, N] int32, the node that each draft follows: 0 is the root of
      the block, i + 1 is draft i, and -1 is none, for drafts that the block
      lacks.
    is_accepted: [B, J, N] bool, the drafts that were accepted and emitted.
  """

  tokens: Array
  parents: Array
  is_accepted: Array


class LogProbs(struct.PyTreeNode):
  """Log-probabilities of the written tokens, in nats. T = max_decode_len.

  Every field is [B, T] float32. It is NaN after the end of a row and where the
  distribution is unknown, and -inf where a known distribution gives the token
  no mass. docs/definitions.md says what the sums of these numbers mean. The
  last four fields say how pi and the token compare with p1, the verifier at
  temperature 1, unfiltered, whatever was sampled from.

  Attributes:
    pi: under the method's own target; under p where a bonus token was drawn
      from the verifier.
    p: under the verifier as sampled.
    q: under the drafter as sampled; NaN where the drafter had no distribution
      or copied the token. In a tree it is the distribution at the token's place
      before any sibling was taken from it, whichever child the token was.
    p1: under the verifier at temperature 1, unfiltered.
    q1: under the drafter at temperature 1, unfiltered: its confidence.
    entropy: of pi, in nats.
    overshoot: log max_v pi(v) / p1(v).
    ahead: the mass of p1 on the tokens that come before the token if the
      likeliest come first, and of equal tokens the lower ids.
    margin: log of the largest p1 over the p1 of the token.
  """

  pi: Array
  p: Array
  q: Array
  p1: Array
  q1: Array
  entropy: Array
  overshoot: Array
  ahead: Array
  margin: Array


class Decoded(struct.PyTreeNode):
  """What every execution returns. T = max_decode_len.

  Attributes:
    tokens: [B, T] int32, the EOS included, 0 after it. Only `lengths` says
      where a row ends: id 0 can be sampled like any other.
    lengths: [B] int32 tokens emitted; the EOS counts, the start token does not.
    stats: `Stats`.
    trace: `Trace`, or None where nothing was traced.
    bad_step: [B] int32, the position at which a row ended because a model gave
      NaN, +inf or no finite logit; -1 where none did.
    log_probs: `LogProbs`, or None where none were recorded.
    extra: what else the loop's observers recorded, such as `DraftedTrees` as
      "trees"; see `loops.observers`.
    stopped: [B] bool, whether the last token of the row completed a stop; None
      where there were no stops.
  """

  tokens: Array
  lengths: Array
  stats: Stats
  # These two are of every execution. Observers are of speculative loops alone.
  trace: Trace | None
  bad_step: Array
  log_probs: LogProbs | None = None
  extra: dict[str, Any] = struct.field(default_factory=dict)
  # Stops are settings of a call, whatever drafts, and end rows of every loop.
  stopped: Array | None = None
