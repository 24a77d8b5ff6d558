"""Records of each token: who wrote it, why, and how likely it was.

A loop that records has a `Trace` and `LogProbs` in its carry: buffers with a
slot for each slot of the token buffer. A round makes a `Record` of its tokens,
and `record` writes it where the tokens go.
"""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.laws import numerics
from speccascade.decoding.loops.carry import Carry
from speccascade.decoding.records import token_buffers
from speccascade.decoding.records.block_records import (
  BONUS,
  DRAFT,
  FORCED,
  FORCED_PLACES,
  RESIDUAL,
  SEQUENTIAL_Q,
  Branches,
  DraftedTrees,
  LogProbs,
  Trace,
)
from speccascade.decoding.verification.review_records import Review

Array = jax.Array

TOP = 5  # likeliest tokens of each model that a trace stores


class Record(struct.PyTreeNode):
  """What is recorded about N tokens of each row.

  Fields that a method does not know at all are None.

  Attributes:
    source: [B, N] int32, as in `Trace`.
    deferred: [B, N] bool, as in `Trace`.
    left: [B, N] float, as in `Trace`; NaN where no rule was evaluated.
    right: [B, N] float, as in `Trace`; NaN where no rule was evaluated.
    q1: [B, N, V] the drafter at temperature 1.
    p1: [B, N, V] the verifier at temperature 1.
    q: [B, N, V] the drafter as sampled.
    p: [B, N, V] the verifier as sampled.
    pi: [B, N, V] the distribution that the token was drawn from.
    known_q: [B, N] bool, where q and q1 are distributions of the drafter.
    known_q1: [B, N] bool, where q1 is also a confidence: a copied token has a
      known q, which is one-hot, but no confidence.
    known_p: [B, N] bool, where p and p1 are distributions of the verifier.
    writer: as in `Proposal`; it is undefined for tokens of the verifier.
    extra: [B, N] columns of observers, as in `Trace`.
  """

  source: Array
  deferred: Array
  left: Array | None = None
  right: Array | None = None
  q1: Array | None = None
  p1: Array | None = None
  q: Array | None = None
  p: Array | None = None
  pi: Array | None = None
  known_q: Array | bool = True
  known_q1: Array | bool = True
  known_p: Array | bool = True
  writer: Array | int = 0
  extra: dict[str, Array] = struct.field(default_factory=dict)


@jax.named_scope("record")
def of_review(
  block: Review, deferred: Array, extra: dict[str, Array]
) -> Record:
  """Returns the `Record` of the [B, G+1] positions of a reviewed block.

  Args:
    block: the review.
    deferred: [B, G+1] bool, where the rule deferred.
    extra: [B, G+1] columns of observers.
  """
  drafts = block.block
  accepted, count = block.verdict.num_accepted[:, None], drafts.count[:, None]
  step = jnp.arange(block.new.shape[1])[None]
  last_source = jnp.where(accepted == count, BONUS, RESIDUAL)
  source = jnp.where(step < accepted, DRAFT, last_source)
  if (forced := drafts.extra.get(FORCED_PLACES)) is not None:
    source = jnp.where(forced, FORCED, source)
  return Record(
    source=source,
    deferred=deferred,
    left=block.left,
    right=block.right,
    q1=drafts.q1,
    p1=block.p1,
    q=drafts.q,
    p=block.p,
    pi=block.pi,
    known_q=block.known_q,
    known_q1=block.known_q & ~drafts.copied,
    writer=drafts.writer,
    extra=extra,
  )


def empty_trace(rows: int, size: int, vocab_size: int) -> Trace:
  """Returns a trace with `size` slots for each row, nothing known yet."""
  nothing = jnp.full((rows, size), jnp.nan, jnp.float32)
  zero = jnp.zeros((rows, size), jnp.int32)
  top = jnp.zeros((rows, size, min(TOP, vocab_size)), jnp.int32)
  prob = jnp.full(top.shape, jnp.nan, jnp.float32)
  return Trace(
    source=zero,
    writer=zero,
    deferred=jnp.zeros((rows, size), bool),
    left=nothing,
    right=nothing,
    tv=nothing,
    block=zero,
    q_top=top,
    q_prob=prob,
    p_top=top,
    p_prob=prob,
  )


def empty_log_probs(rows: int, size: int) -> LogProbs:
  """Returns log-probabilities with `size` slots for each row, all NaN."""
  nothing = jnp.full((rows, size), jnp.nan, jnp.result_type(float))
  return LogProbs(
    **{field.name: nothing for field in dataclasses.fields(LogProbs)}
  )


def empty_trees(rows: int, blocks: int, num_drafts: int) -> DraftedTrees:
  """Returns trees of `blocks` blocks of each row, without any draft."""
  zero = jnp.zeros((rows, blocks, num_drafts), jnp.int32)
  return DraftedTrees(
    tokens=zero, parents=zero, is_accepted=jnp.zeros(zero.shape, bool)
  )


@jax.named_scope("record")
def record_trees(
  trees: DraftedTrees,
  tokens: Array,
  branches: Branches,
  path: Array,
  accepted: Array,
  block: Array,
) -> DraftedTrees:
  """Returns the trees with one more block of each row.

  Args:
    trees: the blocks so far. What a row that has ended writes is overwritten or
      is undefined.
    tokens: [B, N] int32, the drafts.
    branches: the tree that they form.
    path: [B, G] int32, the accepted drafts in order of depth.
    accepted: [B] int32, how many of the G were accepted and emitted.
    block: [B] int32, the number of the block.
  """
  step = jnp.arange(path.shape[1], dtype=jnp.int32)[None]
  index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, None]
  is_here = path[:, :, None] == index
  is_here &= (step < accepted[:, None])[:, :, None]
  new = DraftedTrees(
    tokens=tokens,
    parents=branches.parents,
    is_accepted=jnp.any(is_here, axis=1),
  )
  new = jax.tree.map(lambda values: values[:, None], new)
  return token_buffers.write_block(trees, new, block)


@jax.named_scope("record")
def record(
  carry: Carry, new: Record, tokens: Array, block: Array
) -> dict[str, Trace | LogProbs]:
  """Returns the recording fields of a carry with N more tokens of each row.

  Args:
    carry: the state before the tokens are committed.
    new: the `Record` of the tokens.
    tokens: [B, N] int32.
    block: [B] int32, the number of the block that wrote the tokens.

  Returns:
    "trace" and "log_probs" of the carry, each only where it is recorded.
  """
  fields: dict[str, Trace | LogProbs] = {}
  if carry.trace is not None:
    fields["trace"] = write(carry.trace, new, carry.length, block)
  if carry.log_probs is not None:
    values = log_probs(new, tokens)
    fields["log_probs"] = token_buffers.write_block(
      carry.log_probs, values, carry.length
    )
  return fields


def log_probs(new: Record, tokens: Array) -> LogProbs:
  """Returns what `LogProbs` says of tokens [B, N]."""

  def log_prob(law: Array | None, known: Array | bool = True) -> Array:
    if law is None:
      return jnp.full(tokens.shape, jnp.nan)
    return jnp.where(known, jnp.log(numerics.of_token(law, tokens)), jnp.nan)

  # A copied token has no probability under the drafter: the one-hot q of the
  # copy is not a model's. Hence `known_q1` for q, too.
  return LogProbs(
    pi=log_prob(new.pi),
    p=log_prob(new.p, new.known_p),
    q=log_prob(new.q, new.known_q1),
    p1=log_prob(new.p1, new.known_p),
    q1=log_prob(new.q1, new.known_q1),
    **_compare(new, tokens),
  )


def _compare(new: Record, tokens: Array) -> dict[str, Array]:
  """Returns the fields of `LogProbs` that compare with p1; [B, N] each."""
  # They compare with the verifier at temperature 1, unfiltered, whatever the
  # sampling is. So the numbers of a rule and of the verifier at a lower
  # temperature or with a filter, which is the baseline, have one reference.
  unknown = jnp.full(tokens.shape, jnp.nan)
  values = dict.fromkeys(("entropy", "overshoot", "ahead", "margin"), unknown)
  if new.pi is not None:
    values["entropy"] = numerics.entropy(new.pi)
  if new.p1 is None:
    return values
  p, known = new.p1, new.known_p
  if new.pi is not None:
    # A token that pi gives mass, and p does not, has the ratio infinity.
    ratio = numerics.ratio(new.pi, p, jnp.where(new.pi > 0, jnp.inf, 0))
    overshoot = jnp.log(jnp.max(ratio, axis=-1))
    values["overshoot"] = jnp.where(known, overshoot, jnp.nan)
  of_token = numerics.of_token(p, tokens)[..., None]
  ids = jax.lax.broadcasted_iota(jnp.int32, p.shape, p.ndim - 1)
  is_before = (p > of_token) | ((p == of_token) & (ids < tokens[..., None]))
  ahead = jnp.sum(jnp.where(is_before, p, 0), axis=-1)
  margin = jnp.log(numerics.max_prob(p)) - jnp.log(of_token[..., 0])
  values["ahead"] = jnp.where(known, ahead, jnp.nan)
  values["margin"] = jnp.where(known, margin, jnp.nan)
  return values


def mask_log_probs(
  values: LogProbs, inside: Array, has_target: bool
) -> LogProbs:
  """Returns log-probabilities with NaN where nothing is known.

  Args:
    values: [B, T] each.
    inside: [B, T] bool, the tokens before the end of each row.
    has_target: static; whether the method has a target. Without one, pi is
      unknown everywhere.
  """
  values = jax.tree.map(lambda x: jnp.where(inside, x, jnp.nan), values)
  if has_target:
    return values
  nothing = jnp.full_like(values.pi, jnp.nan)
  return values.replace(pi=nothing, entropy=nothing, overshoot=nothing)


def write(trace: Trace, new: Record, start: Array, block: Array) -> Trace:
  """Returns the trace with N tokens of each row written.

  Args:
    trace: the buffers.
    new: the `Record` of the tokens.
    start: [B] int32, the slot of the first token.
    block: [B] int32, the number of the block that wrote the tokens.
  """
  num = trace.q_top.shape[-1]
  is_drafters = (new.source == DRAFT) | (new.source == SEQUENTIAL_Q)
  values: dict[str, Array] = {
    "source": new.source,
    "writer": jnp.where(is_drafters, new.writer, -1),
    "deferred": new.deferred,
    "block": jnp.broadcast_to(block[:, None], new.source.shape),
  }
  laws = (("q", new.q1, new.known_q1), ("p", new.p1, new.known_p))
  for name, law, known in laws:
    if law is not None:
      prob, values[f"{name}_top"] = jax.lax.top_k(law, num)
      known = jnp.asarray(known)[..., None]
      values[f"{name}_prob"] = jnp.where(known, prob, jnp.nan)
  if new.q is not None and new.p is not None:
    known = new.known_q & jnp.asarray(new.known_p)
    tv = numerics.total_variation(new.q, new.p)
    values["tv"] = jnp.where(known, tv, jnp.nan)
  if new.left is not None and new.right is not None:
    values |= {"left": new.left, "right": new.right}
  # The fields that the method does not know stay as in an empty trace.
  rows, size = new.source.shape
  block_trace = empty_trace(rows, size, num).replace(**values, extra=new.extra)
  return token_buffers.write_block(trace, block_trace, start)
