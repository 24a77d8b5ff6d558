"""A language model that drafts a tree, one pass a level."""

from collections.abc import Callable, Sequence

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting.children import (
  branches_of,
  columns,
  draw_level,
)
from speccascade.decoding.drafting.kept_tokens import column_reader
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling, Step
from speccascade.decoding.records import feeding
from speccascade.decoding.records.block_records import Proposal
from speccascade.decoding.records.draft_tree import (
  GREEDY_AND_RANDOM,
  IID,
  DraftTree,
  Drawing,
)
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import LanguageModel, State
from speccascade.decoding.records.token_buffers import Prefix

Array = jax.Array


class _NodeLaws:
  """The distributions at the nodes that were read, a level at a time."""

  def __init__(self) -> None:
    self._steps: list[Step[None]] = []
    self._places: dict[int, tuple[int, int]] = {}

  def add(self, nodes: Sequence[int], step: Step[None]) -> None:
    """Adds q at some nodes; arrays of the step are [B, P, ...]."""
    for place, node in enumerate(nodes):
      self._places[node] = len(self._steps), place
    self._steps.append(step)

  def at(
    self, nodes: Sequence[int], values: Callable[[Step[None]], Array]
  ) -> Array:
    """Returns values at nodes, [B, P, ...]; 0 where nothing was read.

    Args:
      nodes: P nodes.
      values: a function from a step to the array that is wanted.
    """
    # Neighbours of one array are taken together. A whole array is not copied.
    runs: list[list[int]] = []  # [number of the array, first place, end]
    for node in nodes:
      number, place = self._places.get(node, (-1, 0))
      continues = bool(runs) and runs[-1][0] == number
      if continues and (number < 0 or runs[-1][2] == place):
        runs[-1][2] += 1
      else:
        runs.append([number, place, place + 1])
    arrays = []
    for number, first, end in runs:
      array = values(self._steps[number])
      if number < 0:
        rows, _, *others = array.shape
        arrays.append(jnp.zeros((rows, end - first, *others), array.dtype))
      else:
        arrays.append(array[:, first:end])
    return jnp.concatenate(arrays, axis=1) if len(arrays) > 1 else arrays[0]

  def both(self, nodes: Sequence[int]) -> tuple[Array, Array]:
    """Returns q and the confidences at nodes, [B, P, V] each."""
    return self.at(nodes, lambda x: x.law), self.at(nodes, lambda x: x.plain)


class TreeDrafter(Drafter, struct.PyTreeNode):
  """Drafts a tree of tokens from a language model.

  The model reads a level of the tree in one pass, so a tree takes as many
  passes as a chain of its depth. Drafts that nothing follows are not read,
  unless the target needs the drafter's distribution after them.

  Attributes:
    model: the language model.
    tree: static, the shape of the tree.
    drawing: static, how the children of a node are chosen; see
      `draft_tree.DRAWINGS`.
    rereads: static, whether the model forgets all drafts after a block, so that
      the first pass of the next block reads the accepted ones again.
  """

  model: LanguageModel
  tree: DraftTree = struct.field(pytree_node=False)
  drawing: Drawing = struct.field(pytree_node=False, default=GREEDY_AND_RANDOM)
  rereads: bool = struct.field(pytree_node=False, default=False)

  @property
  def parts(self) -> tuple[LanguageModel]:
    return (self.model,)

  @property
  def width(self) -> int:
    return self.tree.num_drafts

  @property
  def spare_slots(self) -> int:
    return self.width + (self.tree.depth + 1 if self.rereads else 2)

  def _is_read(self, needs_bonus_law: bool) -> np.ndarray:
    """Returns [N] bool, the drafts that the model reads while it drafts."""
    tree = self.tree
    if needs_bonus_law:
      return np.ones(tree.num_drafts, bool)
    if self.drawing == IID:
      # An equal sibling may hand its children to any draft above the last
      # level.
      return np.array(tree.depths) < tree.depth
    return np.array(tree.num_children[1:]) > 0

  def keep(
    self, state: tuple[State], length: Array, path: Array, count: Array
  ) -> tuple[State]:
    """Keeps the accepted path, without a last draft that was not read."""
    # The state's length says how many drafts were read: with a bonus
    # distribution all of them, and never all without one. A row that is not
    # active read none, and keeps none.
    all_read = state[0].length - length >= self.width
    place = jnp.stack([self._places(False), self._places(True)])
    place = jnp.where(all_read[:, None], place[1:2], place[0:1])
    place = jnp.take_along_axis(place, path, axis=1)
    index = jnp.arange(path.shape[1], dtype=jnp.int32)[None]
    is_kept = (index < count[:, None]) & (place >= 0)
    # After a draft that was not read, no other draft can have been accepted.
    num = jnp.minimum(jnp.sum(is_kept, axis=1, dtype=jnp.int32), count)
    return (self.model.keep(state[0], length, jnp.maximum(place, 0), num),)

  def _places(self, needs_bonus_law: bool) -> Array:
    """Returns [N] int32, the slot of each draft among those read, or -1."""
    is_read = self._is_read(needs_bonus_law)
    return jnp.asarray(np.where(is_read, np.cumsum(is_read) - 1, -1), jnp.int32)

  def propose(
    self,
    state: tuple[State],
    prefix: Prefix,
    rngs: Array,
    sampling: Sampling,
    *,
    needs_bonus_law: bool,
  ) -> tuple[tuple[State], Proposal]:
    tree, length = self.tree, prefix.length
    rows = length.shape[0]
    is_read = self._is_read(needs_bonus_law)
    u = draws.uniforms(rngs, tree.num_drafts)
    # The cache lacks the token after the accepted drafts, and the last accepted
    # draft where it was not read.
    (held,) = state
    width = 1 if needs_bonus_law else 2
    reader = column_reader(self.model, max(tree.num_children))
    held, logits = feeding.feed_block(
      reader.model,
      held,
      prefix.tokens,
      length - held.length,
      length - 1,
      width=tree.depth + 1 if self.rereads else width,
    )
    fed = prefix.active.astype(jnp.int32)
    calls = jnp.ones_like(length)
    laws = _NodeLaws()
    laws.add([0], sampling.step(logits))
    drafts: list[Array] = []
    certain: list[Array] = []
    read: list[int] = []
    for level in tree.levels:
      # Draw the children of the level's parents.
      new, is_certain = draw_level(
        level, tree, laws.both, u, self.drawing, greedy=sampling.greedy
      )
      drafts.append(new)
      certain.append(is_certain)
      # Read those whose own distribution is needed.
      members = [draft for draft in level if is_read[draft]]
      if members:
        read += members
        places = [draft - level[0] for draft in members]
        held, out = reader.model.extend(
          held,
          reader.token(columns(new, places)),
          len(members) * fed,
          depth=self._constant(rows, [tree.depths[i] - 1 for i in read]),
          ancestors=self._constant(rows, tree.sees[np.ix_(members, read)]),
        )
        calls += fed
        laws.add([draft + 1 for draft in members], sampling.step(out.logits))
    nodes = range(tree.num_drafts + 1)
    q, q1 = laws.both(nodes)
    is_bad = laws.at(nodes, lambda step: ~step.is_law)
    block = jnp.concatenate(drafts, axis=1)
    branches = branches_of(
      block,
      jnp.concatenate(certain, axis=1),
      tree,
      self.drawing,
      greedy=sampling.greedy,
    )
    return (held,), Proposal(
      tokens=reader.token(block),
      count=jnp.full_like(length, tree.num_drafts),
      q=reader.spread(q),
      q1=reader.spread(q1),
      copied=jnp.zeros_like(is_bad),
      calls=calls[:, None],
      bad=is_bad,
      branches=branches,
    )

  @staticmethod
  def _constant(rows: int, values: Sequence[int] | np.ndarray) -> Array:
    """Returns values that are the same for every row, [B, ...]."""
    array = np.asarray(values)
    if array.dtype != bool:
      array = array.astype(np.int32)
    constant = jnp.asarray(array)[None]
    return jnp.broadcast_to(constant, (rows, *array.shape))
