"""Several drafters that draft beside each other: one path each, one tree."""

from typing import Any, NamedTuple

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.children import IID, merge_siblings
from speccascade.decoding.drafting.draft_tree import DraftTree
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.types import (
  Branches,
  Drafter,
  LanguageModel,
  Proposal,
  State,
  refuse_tree,
)

Array = jax.Array


class _State(NamedTuple):
  """The state of `SeveralDrafters`.

  Attributes:
    drafters: the states of the drafters.
    merged: [B, N] int32, the draft that each draft of the last proposal was
      merged into.
  """

  drafters: tuple
  merged: Array


class SeveralDrafters(struct.PyTreeNode):
  """Drafts one path from each of K drafters, and merges them into one tree.

  Paths share their nodes as long as their tokens agree. Each draft has the law
  of its own drafter, and the verifier tries it with that law. So the output has
  the distribution of the target, however many drafters there are. The target
  must not use the drafter's distribution, since several drafters have no one
  q, and the verification is "token".

  Attributes:
    drafters: the K drafters, which draft chains of one width G. Each must be
      able to read the tokens that others wrote: G + 1 of them, or more passes
      are made (`AutoregressiveDrafter.behind`). Their blocks must not stop
      early.

  Source: Miao et al., "SpecInfer" (arXiv 2305.09781).
  """

  drafters: tuple[Drafter, ...]

  has_confidence = False  # of K confidences none is the one of a token

  @property
  def tree(self) -> DraftTree:
    return DraftTree.of_paths(len(self.drafters), self.drafters[0].width)

  @property
  def width(self) -> int:
    return self.tree.num_drafts

  @property
  def vocab_size(self) -> int:
    return self.drafters[0].vocab_size

  @property
  def models(self) -> tuple[LanguageModel, ...]:
    return tuple(model for drafter in self.drafters for model in drafter.models)

  def check_review(self, target: Any, settings: Any) -> None:
    """Raises ValueError where the review needs one law of all drafters."""
    if target.uses_q or settings.verification != "token":
      raise ValueError(
        "the drafts come from several drafters, which have no one distribution;"
        " use a method whose target is the verifier, and verification 'token'"
      )

  def prefill(self, inputs: Array, *, capacity: int) -> _State:
    states = tuple(
      drafter.prefill(inputs, capacity=capacity) for drafter in self.drafters
    )
    merged = jnp.zeros((inputs.shape[0], self.width), jnp.int32)
    return _State(states, merged)

  def rewind(self, state: _State, length: Array) -> _State:
    states = tuple(
      drafter.rewind(inner, length)
      for drafter, inner in zip(self.drafters, state.drafters)
    )
    return _State(states, state.merged)

  def catch_up(
    self, state: _State, tokens: Array, upto: Array, *, wide: int
  ) -> _State:
    states = tuple(
      drafter.catch_up(inner, tokens, upto, wide=wide)
      for drafter, inner in zip(self.drafters, state.drafters)
    )
    return _State(states, state.merged)

  def keep(
    self, state: _State, length: Array, path: Array, count: Array
  ) -> _State:
    """See `Drafter`. Each drafter keeps what its own path shares of `path`."""
    depth, num = self.tree.depth, len(self.drafters)
    merged = state.merged.reshape(-1, depth, num)
    step = jnp.arange(depth, dtype=jnp.int32)[None]
    is_kept = (merged == path[:, :, None]) & (step < count[:, None])[..., None]
    # A row that ended keeps one token less than its prefix, as in a chain.
    shared = jnp.cumprod(is_kept.astype(jnp.int32), axis=1).sum(axis=1)
    shared = jnp.minimum(shared, count[:, None])
    states = tuple(
      drafter.rewind(inner, length + shared[:, k])
      for k, (drafter, inner) in enumerate(zip(self.drafters, state.drafters))
    )
    return _State(states, state.merged)

  def propose(
    self,
    state: _State,
    tokens: Array,
    length: Array,
    rngs: Array,
    sampling: Sampling,
    *,
    bonus_law: bool,
    active: Array,
  ) -> tuple[_State, Proposal]:
    """See `types.Drafter`.

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
    for k, (drafter, inner) in enumerate(zip(self.drafters, state.drafters)):
      # Each drafter has uniforms of its own.
      inner, part = drafter.propose(
        inner,
        tokens,
        length,
        draws.fold_in(rngs, k),
        sampling,
        bonus_law=False,
        active=active,
      )
      states.append(inner)
      parts.append(part)
      writer = jnp.where(part.writer < 0, -1, place + part.writer)
      writers.append(jnp.broadcast_to(writer, part.copied.shape))
      place += len(drafter.models)

    def by_depth(arrays: list[Array]) -> Array:
      """Returns [B, G K, ...] of K arrays [B, G, ...], level by level."""
      stacked = jnp.stack(arrays, axis=2)
      rows, depth, num, *rest = stacked.shape
      return stacked.reshape(rows, depth * num, *rest)

    drafts = by_depth([part.tokens for part in parts])
    laws = by_depth([part.q[:, :-1] for part in parts])
    parents = merge_siblings(drafts, self.tree)
    # What is recorded at a node is its own drafter's: the law of the draft that
    # comes after it on the same path. At the root it is the first drafter's.
    at_root = lambda name: getattr(parts[0], name)[:, :1]
    after = lambda name: by_depth(
      [getattr(part, name)[:, 1:] for part in parts]
    )
    at_nodes = {
      name: jnp.concatenate([at_root(name), after(name)], axis=1)
      for name in ("q", "q1", "copied", "bad")
    }
    writer = by_depth([writer[:, :-1] for writer in writers])
    proposal = Proposal(
      tokens=drafts,
      count=jnp.full_like(length, self.width),
      **at_nodes,
      calls=jnp.concatenate([part.calls for part in parts], axis=1),
      writer=jnp.pad(writer, ((0, 0), (0, 1))),
      branches=Branches(
        tree=self.tree,
        drawing=IID,
        parents=parents,
        is_certain=jnp.zeros(drafts.shape, bool),
        laws=laws,
      ),
    )
    return _State(tuple(states), self._merged(drafts, parents)), proposal

  @staticmethod
  def _merged(drafts: Array, parents: Array) -> Array:
    """Returns [B, N] int32, the first draft equal to each draft."""
    same = parents[:, :, None] == parents[:, None, :]
    same &= drafts[:, :, None] == drafts[:, None, :]
    return jnp.argmax(same, axis=2).astype(jnp.int32)
