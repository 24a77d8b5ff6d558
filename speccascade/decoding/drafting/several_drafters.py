"""Several drafters that draft in parallel: one path each, one tree."""

from typing import ClassVar, cast

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.children import merge_siblings
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records import feeding
from speccascade.decoding.records.block_records import Branches, Proposal
from speccascade.decoding.records.decode_settings import ReviewSettings
from speccascade.decoding.records.draft_tree import (
  IID,
  NO_NODE,
  DraftTree,
  Drawing,
)
from speccascade.decoding.records.drafter import Drafter, refuse_tree
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class SeveralDrafters(Drafter, struct.PyTreeNode):
  """Drafts one path from each of K drafters, and merges them into one tree.

  Paths share their nodes as long as their tokens agree. Each draft has the
  distribution of its own drafter, and the verifier tries it with that
  distribution. So the output has the distribution of the target, however many
  drafters there are. The verification is "token".

  The state ends with [B, N] int32, the draft that each draft of the last
  proposal was merged into.

  Several drafters have no single q. A target that uses the drafter's
  distribution takes that of one designated drafter, at every node. It then
  reads the whole tree in one pass more, after all have drafted, and states its
  q. Those of the other drafters serve for the trials of their own drafts alone.

  Attributes:
    drafters: the K drafters, which draft chains of one width G. Each must be
      able to read the tokens of the other models: G + 1 of them, or more passes
      are made (`AutoregressiveDrafter.behind`). A block that stops early is a
      shorter path.
    designated: static, the index of the drafter whose distribution the target
      uses, which is an `AutoregressiveDrafter`. None is for targets that use
      none.

  Raises:
    ValueError: there is no such drafter, or it is of another kind.

  Source: Miao et al., "SpecInfer" (arXiv 2305.09781).
  """

  drafters: tuple[Drafter, ...]
  designated: int | None = struct.field(pytree_node=False, default=None)

  drawing: ClassVar[Drawing] = IID

  @property
  def parts(self) -> tuple[Drafter, ...]:
    return self.drafters

  @property
  def has_confidence(self) -> bool:
    # Of K confidences none is the one of a token.
    return self.designated is not None

  @property
  def _scorer(self) -> LanguageModel | None:
    """The model of the designated drafter; None without one."""
    index = self.designated
    if index is None:
      return None
    if not 0 <= index < len(self.drafters):
      raise ValueError(
        f"the designated drafter is {index}, of {len(self.drafters)} drafters;"
        f" wanted 0 to {len(self.drafters) - 1}"
      )
    drafter = self.drafters[index]
    if not isinstance(drafter, AutoregressiveDrafter):
      raise ValueError(
        f"the designated drafter is a {type(drafter).__name__}, which cannot"
        " read a tree; designate an AutoregressiveDrafter"
      )
    return drafter.model

  @property
  def tree(self) -> DraftTree:
    return DraftTree.of_paths(len(self.drafters), self.drafters[0].width)

  @property
  def width(self) -> int:
    return self.tree.num_drafts

  def check_review(
    self, target: Target | None, settings: ReviewSettings
  ) -> None:
    """Raises ValueError where the review needs one q of all drafters."""
    if settings.verification != "token":
      raise ValueError(
        f"verification is {settings.verification!r}, and the drafts come from"
        " several drafters, which have no single distribution; set verification"
        " 'token'"
      )
    if self._scorer is None and (target is None or target.uses_q):
      raise ValueError(
        "the target uses the drafter's distribution, and several drafters have"
        " no single distribution; set DESIGNATED_DRAFTER (`designated`) to the"
        " index of one of them, or use a method whose target is the verifier"
      )

  def prefill(self, inputs: Array, *, capacity: int) -> tuple[State, ...]:
    states = super().prefill(inputs, capacity=capacity)
    return (*states, jnp.zeros((inputs.shape[0], self.width), jnp.int32))

  def keep(
    self, state: tuple[State, ...], length: Array, path: Array, count: Array
  ) -> tuple[State, ...]:
    """Keeps of each drafter what its own path shares of `path`.

    The designated drafter read all paths, and keeps all of `path`.
    """
    *held, merged = state
    depth, num = self.tree.depth, len(self.drafters)
    merged_into = merged.reshape(-1, depth, num)
    step = jnp.arange(depth, dtype=jnp.int32)[None]
    is_kept = merged_into == path[:, :, None]
    is_kept &= (step < count[:, None])[..., None]
    # A row that ended keeps one token less than its prefix, as in a chain.
    shared = jnp.cumprod(is_kept.astype(jnp.int32), axis=1).sum(axis=1)
    shared = jnp.minimum(shared, count[:, None])
    states = [
      drafter.rewind(inner, length + shared[:, k])
      for k, (drafter, inner) in enumerate(zip(self.drafters, held))
    ]
    if (scorer := self._scorer) is not None:
      # It read the last token of the prefix before the drafts.
      read = jnp.pad(path + 1, ((0, 0), (1, 0)))
      index = cast(int, self.designated)
      (inner,) = held[index]
      states[index] = (scorer.keep(inner, length - 1, read, count + 1),)
    return (*states, merged)

  def propose(
    self,
    state: tuple[State, ...],
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[tuple[State, ...], Proposal]:
    """Drafts a path with each drafter, and merges the paths.

    Raises:
      ValueError: a drafter drafts trees, or the widths differ.
    """
    for drafter in self.drafters:
      refuse_tree(drafter, "SeveralDrafters")
    widths = [drafter.width for drafter in self.drafters]
    if len(set(widths)) > 1:
      raise ValueError(
        f"the drafters draft {widths} tokens; SeveralDrafters wants one width"
      )
    states: list[State] = []
    parts: list[Proposal] = []
    place, writers = 0, []
    for k, (drafter, inner) in enumerate(zip(self.drafters, state)):
      # Each drafter has uniforms of its own.
      inner, part = drafter.propose(
        inner, prefix, draws.fold_in(rngs, k), sampling, needs_bonus_law=False
      )
      states.append(inner)
      parts.append(part)
      writers.append(part.writers(place))
      place += len(drafter.models)

    def by_depth(arrays: list[Array]) -> Array:
      """Returns [B, G K, ...] of K arrays [B, G, ...], level by level."""
      stacked = jnp.stack(arrays, axis=2)
      rows, depth, num, *rest = stacked.shape
      return stacked.reshape(rows, depth * num, *rest)

    drafts = by_depth([part.tokens for part in parts])
    laws = by_depth([part.q[:, :-1] for part in parts])
    parents = self._parents(drafts, [part.count for part in parts])
    # What is recorded at a node is what its first draft was drawn from. Where
    # no draft follows, it is what its own drafter has there.
    node = jnp.arange(self.width + 1, dtype=jnp.int32)
    follows = parents[:, None, :] == node[None, :, None]
    first = jnp.argmax(follows, axis=2)

    def at_node(name: str) -> Array:
      """Returns [B, N+1, ...] of the parts' arrays [B, G+1, ...]."""
      arrays = [getattr(part, name) for part in parts]
      own = by_depth([array[:, 1:] for array in arrays])
      own = jnp.concatenate([arrays[0][:, :1], own], axis=1)
      shape = (*first.shape, *[1] * (own.ndim - 2))
      drawn_from = jnp.take_along_axis(
        by_depth([array[:, :-1] for array in arrays]),
        first.reshape(shape),
        axis=1,
      )
      is_open = jnp.any(follows, axis=2).reshape(shape)
      return jnp.where(is_open, drawn_from, own)

    at_nodes = {name: at_node(name) for name in ("q", "q1", "copied", "bad")}
    calls = [part.calls for part in parts]
    if (scorer := self._scorer) is not None:
      index = cast(int, self.designated)
      # The last token is read once more, with the tree that follows it.
      (held,) = states[index]
      held, out = feeding.feed_tree(
        scorer,
        scorer.rewind(held, prefix.length - 1),
        prefix.last,
        drafts,
        self.tree,
        jnp.where(prefix.active, 1 + self.width, 0),
      )
      states[index] = (held,)
      calls[index] = calls[index] + prefix.active.astype(jnp.int32)[:, None]
      q1, q, _, is_law = sampling.step(out.logits)
      bad = at_nodes["bad"] | ~is_law
      at_nodes = {
        "q": q,
        "q1": q1,
        "copied": jnp.zeros_like(bad),
        "bad": bad,
      }
    writer = by_depth([writer[:, :-1] for writer in writers])
    proposal = Proposal(
      tokens=drafts,
      count=jnp.full_like(prefix.length, self.width),
      q=at_nodes["q"],
      q1=at_nodes["q1"],
      copied=at_nodes["copied"],
      bad=at_nodes["bad"],
      calls=jnp.concatenate(calls, axis=1),
      writer=jnp.pad(writer, ((0, 0), (0, 1))),
      branches=Branches(
        tree=self.tree,
        drawing=IID,
        parents=parents,
        is_certain=jnp.zeros(drafts.shape, bool),
        laws=laws,
        has_q=scorer is not None,
      ),
    )
    return (*states, self._merged(drafts, parents)), proposal

  def _parents(self, drafts: Array, counts: list[Array]) -> Array:
    """Returns the nodes that drafts follow, [B, N] int32; see `Branches`."""
    depth = np.array(self.tree.depths, np.int32)[None]
    # The drafts of a level are in the order of the drafters.
    count = jnp.tile(jnp.stack(counts, axis=1), (1, self.tree.depth))
    is_drafted = depth <= count
    # What was not drafted is not a sibling of anything.
    number = jnp.arange(self.width, dtype=jnp.int32)[None]
    apart = jnp.where(is_drafted, drafts, -1 - number)
    return jnp.where(is_drafted, merge_siblings(apart, self.tree), NO_NODE)

  @staticmethod
  def _merged(drafts: Array, parents: Array) -> Array:
    """Returns [B, N] int32, the first draft equal to each draft."""
    same = parents[:, :, None] == parents[:, None, :]
    same &= drafts[:, :, None] == drafts[:, None, :]
    return jnp.argmax(same, axis=2).astype(jnp.int32)
