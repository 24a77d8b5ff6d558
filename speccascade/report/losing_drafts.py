"""The drafts of trees that lost, below the text of a record.

A decode with `TRACE = "trees"` records all drafts of each block. A draft lost
where it is not on the accepted path, and no accepted draft beside it has its
token.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class LosingDraft(NamedTuple):
  """A draft that was not accepted.

  Attributes:
    token: the id.
    piece: the token as its tokenizer spells it.
    is_beside: whether it follows the accepted path, so that another token was
      written in its place. Others follow a draft that lost.
  """

  token: int
  piece: str
  is_beside: bool


def check(tree: dict):
  """Raises ValueError where the columns of a tree do not fit each other.

  Args:
    tree: a block of a record's "trees".
  """
  num, parents = len(tree["tokens"]), tree["parents"]
  if not num == len(parents) == len(tree["piece"]):
    raise ValueError("its trees have not one entry for each draft")
  if any(not -1 <= parent <= draft for draft, parent in enumerate(parents)):
    raise ValueError("a draft of its trees follows a later one")
  if any(draft >= num for draft in tree["accepted"]):
    raise ValueError("its trees accept a draft that is not there")


def losing_drafts(tree: dict) -> list[list[LosingDraft]]:
  """Returns the drafts of a block that lost, by depth, each token once.

  Args:
    tree: a block of a record's "trees", which `check` finds right.

  Returns:
    For each depth of the tree the losing drafts in the order of the tree.
  """
  parents, accepted = tree["parents"], set(tree["accepted"])
  # Node 0 is the root, and node i + 1 is draft i.
  depths, by_depth = [0], []
  won = {(parents[i], tree["tokens"][i]) for i in accepted}
  path = {0, *(draft + 1 for draft in accepted)}
  seen = set()
  for draft, (parent, token) in enumerate(zip(parents, tree["tokens"])):
    depth = depths[parent] + 1 if parent >= 0 else 0
    depths.append(depth)
    if depth > len(by_depth):
      by_depth.append([])
    # Independent draws may repeat a token, which is then one draft.
    if parent >= 0 and (parent, token) not in won | seen:
      seen.add((parent, token))
      lost = LosingDraft(token, tree["piece"][draft], parent in path)
      by_depth[depth - 1].append(lost)
  return by_depth


def losing_html(
  trees: Sequence[dict], piece_html: Callable[[str, int], str]
) -> str:
  """Returns a folded list of the drafts that lost; "" without trees.

  A line is a block, and has the drafts of each depth. Drafts that stand beside
  the accepted path are marked.

  Args:
    trees: the "trees" of a record.
    piece_html: a function from a token's spelling and its id to its text as
      HTML.
  """
  if not trees:
    return ""
  items = ""
  for block, tree in enumerate(trees):
    depths = "; ".join(
      f"{depth}: {' '.join(_draft_html(x, piece_html) for x in drafts)}"
      for depth, drafts in enumerate(losing_drafts(tree), 1)
      if drafts
    )
    items += f"<li>block {block}: {depths or 'none'}</li>"
  return (
    '<details class="sc-dim"><summary>drafts that lost, by depth; those that a'
    " written token replaced are underlined</summary>"
    f"<ul>{items}</ul></details>"
  )


def _draft_html(
  draft: LosingDraft, piece_html: Callable[[str, int], str]
) -> str:
  """Returns a draft as HTML, underlined where it is beside the path."""
  text = f'<span class="sc-piece">{piece_html(draft.piece, draft.token)}</span>'
  return f"<u>{text}</u>" if draft.is_beside else text
