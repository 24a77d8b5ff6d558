"""Settings of a decode, each defined once: its type, check and meaning.

A record below is the one place that declares a setting. Whatever needs the
setting inherits the record: `Point` and `Run`, which gin and the API make;
`Decoder`, which is compiled; and the settings that a loop is traced with. Rows
of results take their fields from the records too. A new setting is therefore a
field here, and whatever reads it. The settings of sampling are declared in the
same way in `laws.sampling`, next to what they make.
"""

import dataclasses
from typing import Annotated, Literal

from speccascade.decoding.records.draft_tree import (
  DRAWINGS,
  EXACT_FOR,
  GREEDY_AND_RANDOM,
  IID,
  ROOT,
  DraftTree,
  Drawing,
)
from speccascade.settings import fields

FIXED: Literal["fixed"] = "fixed"
MAX_PROB: Literal["max_prob"] = "max_prob"
TOKEN_PROB: Literal["token_prob"] = "token_prob"

BlockSize = Annotated[int, fields.Bounds(1, 1024)]
Bonus = Literal["target", "verifier"]
# The names in `steps.VERIFY`.
Verification = Literal["token", "block", "traversal", "k_seq"]
ChainVerification = Literal["token", "block"]  # of drafters, which draft chains
# The verifications that look at a later draft before they reject an earlier
# one.
LOOKS_AHEAD = ("block", "traversal")
StopRule = Literal["max_prob", "token_prob"]
TREES: Literal["trees"] = "trees"  # a trace with all drafts of all trees
Tracing = bool | Literal["trees"]
# A `DraftLength` as a configuration writes it.
DraftLengthText = Literal["fixed"] | tuple[StopRule, fields.Share]


@fields.checked
@dataclasses.dataclass(frozen=True)
class DraftLength:
  """How long a block may grow: gamma, or shorter where the drafter is unsure.

  Attributes:
    policy: "fixed" always drafts gamma tokens. "max_prob" stops before a draw
      where max q < threshold. "token_prob" stops after a token whose sampled
      probability is below the threshold.
    threshold: a probability; "fixed" has none.

  Raises:
    ValueError: a field is of the wrong kind or out of range, or "fixed" has a
      threshold.
  """

  policy: Literal["fixed", StopRule] = FIXED
  threshold: fields.Share = 0.0

  def __post_init__(self) -> None:
    if self.policy == FIXED and self.threshold:
      fault = (
        f" is {self.threshold}, and {FIXED!r} has none; leave it out, or use"
        f" {MAX_PROB!r} or {TOKEN_PROB!r}"
      )
      raise fields.SettingError("threshold", fault, DraftLength)

  @classmethod
  def parse(cls, text: DraftLengthText) -> "DraftLength":
    """Returns the draft length that a configuration writes as `text`."""
    if isinstance(text, str):
      return cls(text)
    policy, threshold = text
    return cls(policy, threshold)


# A drafter that is a pytree inherits settings, which flax is to keep static.
_STATIC = {"pytree_node": False}


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class ReviewSettings:
  """How a verifier reviews a drafted block.

  Attributes:
    verification: "token" accepts or rejects each draft on its own. "block"
      weighs a chain of drafts as a whole, and "traversal" a tree; on a chain
      the two are one. "k_seq" weighs the independent drafts of one place
      together; on a chain it is "token".
    bonus: which distribution the token after a fully accepted block is drawn
      from. "target" is exact; where the drafter has no distribution at that
      position, the target there is the verifier's. "verifier" is what Algorithm
      4 prints; it changes the distribution of the output unless the target is
      the verifier itself. Methods whose target is the verifier, and methods
      without blocks, do not use this setting.
  """

  verification: Verification = dataclasses.field(
    default="token", metadata=_STATIC
  )
  bonus: Bonus = dataclasses.field(default="target", metadata=_STATIC)


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockShape(ReviewSettings):
  """How a block is drafted, and how it is reviewed.

  Attributes:
    gamma: block size: the number of drafted tokens of a chain, and the depth of
      a tree. Methods without blocks do not use it.
    draft_length: whether a block may end before it has gamma tokens.
    tree: the shape of a tree of drafts; None drafts a chain. Either the number
      of children of every draft at each depth, from the root on, as in (4, 2,
      1); or, if it has a -1, the parent of each draft, level by level, where -1
      is the root.
    drafts: the number of independent paths of gamma drafts each, another shape
      of a tree; None drafts a chain, or `tree`.
    drawing: how the drafts that follow one token are chosen, see
      `draft_tree.DRAWINGS`. None takes "iid" for `drafts`, and
      "greedy_and_random" for `tree`.
  """

  gamma: BlockSize
  draft_length: DraftLength = DraftLength()
  tree: tuple[Annotated[int, fields.Bounds(ROOT, 1024)], ...] | None = None
  drafts: Annotated[int, fields.Bounds(1, 1024)] | None = None
  drawing: Drawing | None = None

  def __post_init__(self) -> None:
    """Raises SettingError where the settings of a tree do not fit."""
    if self.tree is not None and self.drafts is not None:
      fault = f" is {self.drafts}, next to a tree; leave out one of the two"
      raise fields.SettingError("drafts", fault)
    try:
      tree = self.draft_tree
    except ValueError as error:
      name = "tree" if self.drafts is None else "drafts"
      raise fields.SettingError(name, f": {error}") from error
    if tree is None:
      if self.drawing is not None:
        fault = f" is {self.drawing!r}, without a tree; set a tree, or leave"
        raise fields.SettingError("drawing", f"{fault} it out")
      return
    if isinstance(self.gamma, int) and self.gamma != tree.depth:
      fault = f" is {self.gamma}, and the tree is {tree.depth} drafts deep"
      raise fields.SettingError("gamma", f"{fault}: set it to {tree.depth}")
    length = self.draft_length
    if not isinstance(length, DraftLength):
      length = DraftLength.parse(length)
    if length.policy != FIXED:
      fault = f" is {length.policy!r}, and a tree has one shape; leave it out"
      raise fields.SettingError("draft_length", fault)
    if self.verification == "block":
      fault = " is 'block', which weighs a chain; for a tree set 'traversal'"
      raise fields.SettingError("verification", fault)
    if self.tree_drawing not in EXACT_FOR.get(self.verification, DRAWINGS):
      fault = (
        f" is 'k_seq', which weighs independent drafts; set drawing {IID!r}"
      )
      raise fields.SettingError("verification", fault)

  @property
  def draft_tree(self) -> DraftTree | None:
    """The shape of a block; None for a chain, or while gamma is not known."""
    return draft_tree(self.gamma, self.tree, self.drafts)

  @property
  def tree_drawing(self) -> Drawing:
    """How the children of a draft are chosen, where a block is a tree."""
    if self.drawing is not None:
      return self.drawing
    return GREEDY_AND_RANDOM if self.drafts is None else IID

  @property
  def block_width(self) -> int:
    """The tokens that a verifier pass over a block feeds."""
    return block_width(self.gamma, self.tree, self.drafts)


def draft_tree(
  gamma: int | str, tree: tuple[int, ...] | None, drafts: int | None
) -> DraftTree | None:
  """Returns the shape of a block; None for a chain.

  Args:
    gamma: as in `BlockShape`; where it is not a number yet, `drafts` have no
      shape.
    tree: as in `BlockShape`.
    drafts: as in `BlockShape`.

  Raises:
    ValueError: `tree` is not a tree.
  """
  if tree is not None:
    if ROOT in tree:
      return DraftTree(tuple(tree))
    return DraftTree.of_branching(tree)
  if drafts is not None and drafts > 1 and isinstance(gamma, int):
    return DraftTree.of_paths(drafts, gamma)
  return None


def block_width(
  gamma: int,
  tree: tuple[int, ...] | None = None,
  drafts: int | None = None,
) -> int:
  """Returns the tokens that a verifier pass over a block feeds.

  They are the last token before the block, and the drafts: gamma + 1 for a
  chain, which also writes at most so many tokens. With gamma 0, a model alone,
  it is one token.

  Arguments as in `draft_tree`.
  """
  shape = draft_tree(gamma, tree, drafts)
  return 1 + (gamma if shape is None else shape.num_drafts)


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
  """What is recorded of each token.

  Attributes:
    trace: whether to record which model wrote each token, and why. "trees"
      records all drafts of each tree, too, which takes memory for as many
      blocks as there may be tokens.
    log_probs: whether to record how likely the target, the verifier and the
      drafter found each token; see docs/definitions.md.
  """

  trace: Tracing = False
  log_probs: bool = False
