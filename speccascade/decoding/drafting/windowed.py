"""Drafters whose model has a shorter window than the verifier.

Past the model's window the verifier continues alone: a block that the window
does not hold has no drafts. Which blocks these are depends on lengths alone, so
a review that is exact for any block is exact here, too.
"""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.adaptive import AdaptiveDrafter
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records import prompts
from speccascade.decoding.records.block_records import (
  FORCED_PLACES as FORCED,
)
from speccascade.decoding.records.block_records import (
  PAST_WINDOW,
  Proposal,
)
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.draft_tree import NO_NODE, DraftTree
from speccascade.decoding.records.drafter import (
  Drafter,
  block_depth,
  is_drafter,
)
from speccascade.decoding.records.language_model import State
from speccascade.decoding.records.readers import is_prompt_reader
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


def within(drafter: Drafter, window: int) -> Drafter:
  """Returns a drafter that drafts no block past a window.

  Args:
    drafter: drafts with one language model.
    window: the most tokens of a text; a prompt and its output are one text.

  Raises:
    ValueError: the drafter has no model of its own, or several.
  """
  check(drafter)
  if isinstance(drafter, AdaptiveDrafter):
    fields = (field.name for field in dataclasses.fields(drafter))
    values = {name: getattr(drafter, name) for name in fields}
    return WindowedAdaptiveDrafter(**values, window=window)
  return WindowedDrafter(drafter, window)


def check(drafter: Drafter) -> None:
  """Raises ValueError where a drafter is not that of one language model."""
  alone = len(drafter.parts) == 1 and not is_drafter(drafter.parts[0])
  if not alone or is_prompt_reader(drafter):
    raise ValueError(
      f"drafter_window is given, and a {type(drafter).__name__} does not draft"
      " with one language model: leave it out, or give a language model"
    )


class WindowedDrafter(Drafter, struct.PyTreeNode):
  """Drafts what another drafter does, and nothing past a window.

  The state ends with [B] int32, the tokens of each row's prompt.

  Attributes:
    drafter: drafts with one language model, the first part of whose state is
      the model's.
    window: static, the most tokens of a text that the model was made for.
  """

  drafter: Drafter
  window: int = struct.field(pytree_node=False)

  @property
  def parts(self) -> tuple[Drafter]:
    return (self.drafter,)

  @property
  def own_counts(self) -> tuple[str, ...]:
    return *self.drafter.own_counts, PAST_WINDOW

  @property
  def tree(self) -> DraftTree | None:
    return self.drafter.tree

  @property
  def width(self) -> int:
    return self.drafter.width

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """See `Drafter`. A target that reads q is undefined without drafts."""
    _check_target(target)
    self.drafter.check_review(target, settings)

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    """Returns the state before any decoder token. See `Part`."""
    state = super().prefill(inputs, capacity=capacity)
    return *state, _before(self, inputs)

  def keep(
    self, state: State, length: Array, path: Array, count: Array
  ) -> State:
    """See `Drafter`."""
    inner, before = state
    return self.drafter.keep(inner, length, path, count), before

  def propose(
    self,
    state: State,
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[State, Proposal]:
    """Drafts the blocks that the window holds. See `Drafter`."""
    inner, before = state
    depth = block_depth(self.drafter)
    fits = _fits(before, prefix, depth, self.window)
    # Rows past the window read one of the tokens that they lack, or none, so
    # that the pass of the other rows has space for it.
    length = jnp.where(fits, prefix.length, inner[0].length + 1)
    active = prefix.active & fits
    inside = dataclasses.replace(prefix, length=length, active=active)

    kind, others = None, {}

    def run(inner: State) -> tuple[State, dict[int, Array]]:
      nonlocal kind
      inner, proposal = self.drafter.propose(
        inner, inside, rngs, sampling, needs_bonus_law=needs_bonus_law
      )
      leaves, kind = jax.tree.flatten(proposal)
      arrays = {i: x for i, x in enumerate(leaves) if isinstance(x, Array)}
      others.update({i: x for i, x in enumerate(leaves) if i not in arrays})
      return inner, arrays

    # Once the last row has passed the window, the model is not run any more.
    # (XLA copies caches into the branches of a `cond`, and not into a loop.)
    empty = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run, inner)[1]
    )
    _, inner, arrays = jax.lax.while_loop(
      lambda carry: carry[0],
      lambda carry: (jnp.array(False), *run(carry[1])),
      (jnp.any(active), inner, empty),
    )
    leaves = arrays | others
    proposal = jax.tree.unflatten(kind, [leaves[i] for i in sorted(leaves)])
    return (inner, before), _only_within(proposal, fits)


class WindowedAdaptiveDrafter(AdaptiveDrafter):
  """An `AdaptiveDrafter` whose gamma is 0 where the window ends in the block.

  The state ends with two arrays [B]: int32, the tokens of each row's prompt,
  and bool, whether the next block passes the window.

  Attributes:
    window: as in `WindowedDrafter`.
  """

  window: int = struct.field(pytree_node=False)

  own_counts = (PAST_WINDOW,)

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """See `Drafter`."""
    _check_target(target)
    super().check_review(target, settings)

  def prefill(self, inputs: Array, *, capacity: int) -> State:
    """Returns the state before any decoder token. See `Part`."""
    state = super().prefill(inputs, capacity=capacity)
    return *state, _before(self, inputs), jnp.zeros((len(inputs),), bool)

  def catch_up(
    self, state: State, tokens: Array, upto: Array, *, wide: int
  ) -> State:
    """See `Drafter`."""
    inner = super().catch_up(state[:2], tokens, upto, wide=wide)
    return *inner, *state[2:]

  def choose(self, state: State, prefix: Prefix) -> tuple[State, Array]:
    """See `AdaptiveDrafter`."""
    _, pace, before, was_past = state
    idle = pace.is_idle(prefix.length) & (0 in self.sizes)
    (model, pace), gamma = super().choose(state[:2], prefix)
    fits = _fits(before, prefix, gamma, self.window)
    pace = pace.replace(gamma=jnp.where(fits, gamma, 0))
    # A row that continues unasked does so for the reason that it had when
    # asked.
    is_past = jnp.where(idle, was_past, ~fits)
    # The round is one of the sizes, whatever its rows ask for.
    widest = jnp.maximum(pace.gamma, self.sizes[0])
    return (model, pace, before, is_past), widest

  def propose(
    self,
    state: State,
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[State, Proposal]:
    """Drafts the gammas that `choose` put into the state. See `Drafter`."""
    inner, proposal = super().propose(
      state[:2], prefix, rngs, sampling, needs_bonus_law=needs_bonus_law
    )
    return (*inner, *state[2:]), proposal.replace(
      extra=proposal.extra | {PAST_WINDOW: state[3]}
    )


def _check_target(target: Target | None) -> None:
  """Raises ValueError where a target needs a distribution at every place."""
  if target is None or target.uses_q:
    raise ValueError(
      "past its window a drafter has no distribution, and the target reads it:"
      " shorten the texts, or use spec_decode"
    )


def _before(drafter: Drafter, inputs: Array) -> Array:
  """Returns [B] int32, the tokens of a text before its output."""
  if drafter.models[0].prompted:
    return prompts.lengths(inputs)
  return jnp.zeros((len(inputs),), jnp.int32)


def _fits(
  before: Array, prefix: Prefix, num_drafts: Array | int, window: int
) -> Array:
  """Returns [B] bool, whether a text and a block of drafts fit the window."""
  return before + prefix.length - 1 + num_drafts <= window


def _only_within(proposal: Proposal, fits: Array) -> Proposal:
  """Returns the proposal without the drafts of rows that do not fit [B]."""
  rows = fits[:, None]
  branches, extra = proposal.branches, dict(proposal.extra)
  if branches is not None:
    parents = jnp.where(rows, branches.parents, NO_NODE)
    branches = branches.replace(parents=parents)
  if FORCED in extra:
    extra[FORCED] &= rows
  return proposal.replace(
    count=jnp.where(fits, proposal.count, 0),
    calls=jnp.where(rows, proposal.calls, 0),
    bad=proposal.bad & rows,
    branches=branches,
    extra=extra | {PAST_WINDOW: ~fits},
  )
