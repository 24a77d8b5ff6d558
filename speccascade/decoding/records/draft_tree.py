"""The shape of a tree of drafts, and the names of the ways to fill it.

A tree has N drafts, numbered level by level. Its nodes are the places at which
a token may follow: node 0 is the root, the place after the prefix, and node
i + 1 is the place after draft i. So the tree of the parents (-1, -1, 0, 0, 1)

      root
     0    1        depth 1
    2 3   4        depth 2

has 5 drafts and 6 nodes.
"""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
from typing import Literal

import numpy as np

ROOT = -1  # the parent of a draft that follows the prefix
NO_NODE = -1  # the node that a draft follows which a row does not propose
MAX_DRAFTS = 1024

# How the children of a node are chosen: `drafting.children`.

# Independent draws of q.
IID: Literal["iid"] = "iid"
# Draws of q, each without the tokens drawn before it.
WITHOUT_REPLACEMENT: Literal["without_replacement"] = "without_replacement"
# The K - 1 likeliest tokens, which are certain, and one draw of q without them.
GREEDY_AND_RANDOM: Literal["greedy_and_random"] = "greedy_and_random"
# The K likeliest tokens, all certain.
TOP_K: Literal["top_k"] = "top_k"
Drawing = Literal["iid", "without_replacement", "greedy_and_random", "top_k"]
DRAWINGS = (IID, WITHOUT_REPLACEMENT, GREEDY_AND_RANDOM, TOP_K)
# Verifications of trees that have the distribution of the target for some
# drawings alone. The others have it for all of them.
EXACT_FOR = {"k_seq": (IID,)}


@dataclasses.dataclass(frozen=True)
class DraftTree:
  """The static shape of a tree of N drafts.

  Trees of the same parents are equal, and hash equal, so programs are shared.

  Attributes:
    parents: the draft that each draft follows, or -1 for a draft that follows
      the prefix. The drafts are numbered level by level: no number is smaller
      than the one before it, and each is smaller than the draft's own.

  Raises:
    ValueError: there are no drafts or too many, or they are not numbered level
      by level.
  """

  parents: tuple[int, ...]

  def __post_init__(self) -> None:
    parents = self.parents
    if not 1 <= len(parents) <= MAX_DRAFTS:
      raise ValueError(
        f"a tree has {len(parents)} drafts; wanted 1 to {MAX_DRAFTS}"
      )
    for draft, parent in enumerate(parents):
      if not ROOT <= parent < draft:
        raise ValueError(
          f"the parent of draft {draft} is {parent}; wanted an earlier draft,"
          f" or {ROOT} for the root"
        )
    for draft, (before, parent) in enumerate(itertools.pairwise(parents), 1):
      if parent < before:
        raise ValueError(
          f"the parents of drafts {draft - 1} and {draft} are {before} and"
          f" {parent}; wanted drafts numbered level by level, so that no parent"
          " is before the parent of an earlier draft"
        )

  @classmethod
  def of_branching(cls, branching: Sequence[int]) -> "DraftTree":
    """Returns the tree in which every draft of a level has as many children.

    Args:
      branching: the number of children at each depth: of the root, of each of
        the root's children, and so on.

    Raises:
      ValueError: a number is below 1, or the tree has too many drafts.

    >>> DraftTree.of_branching([2, 1]).parents
    (-1, -1, 0, 1)
    """
    if not branching or min(branching) < 1:
      raise ValueError(
        f"the branching of a tree is {list(branching)!s:.60}; wanted one"
        " number of 1 or more for each depth"
      )
    total = sum(itertools.accumulate(branching, lambda a, b: a * b))
    if total > MAX_DRAFTS:
      raise ValueError(
        f"a tree of branching {list(branching)!s:.60} has {total:.6g} drafts;"
        f" wanted at most {MAX_DRAFTS}"
      )
    parents: list[int] = []
    level = [ROOT]
    for num_children in branching:
      start = len(parents)
      parents += [parent for parent in level for _ in range(num_children)]
      level = list(range(start, len(parents)))
    return cls(tuple(parents))

  @classmethod
  @functools.cache
  def of_paths(cls, num_paths: int, length: int) -> "DraftTree":
    """Returns the tree of several paths that share nothing but the root."""
    return cls.of_branching([num_paths] + [1] * (length - 1))

  @property
  def num_drafts(self) -> int:
    """N."""
    return len(self.parents)

  @functools.cached_property
  def depths(self) -> tuple[int, ...]:
    """The depth of each draft, from 1 on."""
    depths: list[int] = []
    for parent in self.parents:
      depths.append(1 if parent == ROOT else depths[parent] + 1)
    return tuple(depths)

  @property
  def depth(self) -> int:
    """The number of drafts on the longest path."""
    return self.depths[-1]

  @functools.cached_property
  def levels(self) -> tuple[tuple[int, ...], ...]:
    """The drafts of each depth."""
    return tuple(
      tuple(i for i, other in enumerate(self.depths) if other == depth)
      for depth in range(1, self.depth + 1)
    )

  @property
  def num_ranks(self) -> int:
    """The most drafts that may follow one node, so many ranks siblings have.

    It is the number of drafts of the widest level, since what follows equal
    siblings is given to the first of them.
    """
    return max(map(len, self.levels))

  @functools.cached_property
  def num_children(self) -> tuple[int, ...]:
    """How many children each node has, the root first; N + 1 numbers."""
    counts = [0] * (self.num_drafts + 1)
    for parent in self.parents:
      counts[parent + 1] += 1
    return tuple(counts)

  @functools.cached_property
  def ranks(self) -> tuple[int, ...]:
    """The place of each draft among the children of its parent, from 0 on."""
    seen = [0] * (self.num_drafts + 1)
    ranks = []
    for parent in self.parents:
      ranks.append(seen[parent + 1])
      seen[parent + 1] += 1
    return tuple(ranks)

  @property
  def is_chain(self) -> bool:
    """Whether no node has more than one child."""
    return max(self.num_children) == 1

  @functools.cached_property
  def sees(self) -> np.ndarray:
    """[N, N] bool, whether draft i is draft j or comes after it on a path."""
    result = np.eye(self.num_drafts, dtype=bool)
    for draft, parent in enumerate(self.parents):
      if parent != ROOT:
        result[draft] |= result[parent]
    return result

  @functools.cached_property
  def node_depths(self) -> np.ndarray:
    """[N + 1] int32, the depth of each node; 0 at the root."""
    return np.array([0, *self.depths], np.int32)

  @functools.cached_property
  def node_sees(self) -> np.ndarray:
    """[N + 1, N + 1] bool: `sees` of the nodes. Every node sees the root."""
    result = np.zeros((self.num_drafts + 1,) * 2, bool)
    result[1:, 1:] = self.sees
    result[:, 0] = True
    return result
