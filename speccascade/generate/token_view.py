"""Records as HTML: who wrote each token, and why. No script, no other file.

The colour and the underline of a token show where the token comes from. A bar
and a number open a block. Pointing at a token, tapping it or reaching it by
keyboard opens a card with the likeliest tokens of both models, and with the two
sides of the deferral rule. `tokens.html` has the elements and `tokens.css` the
style, in Okabe and Ito's colours: every kind of token has an underline of its
own, so that no kind is known by its colour alone.

A decode with `TRACE = "trees"` records all drafts of each block. Those that
lost, since they are not on the accepted path and no accepted draft next to them
has their token, are listed below the text.
"""

from collections.abc import Iterable, Sequence
import functools
import itertools
import pathlib
import re
from typing import NamedTuple

import jinja2
import markupsafe

from speccascade.generate.batches.decode_counts import Counts

__all__ = [
  "STYLE",
  "by_example",
  "kinds",
  "legend_html",
  "page_html",
  "reference_html",
  "source_html",
  "tokens_html",
  "view_html",
]


class _Kind(NamedTuple):
  """A kind of token: what a card calls it, and a sentence of the legend."""

  css_class: str  # its end
  name: str
  meaning: str


# A kind is a source of the trace, KEPT or COPY. The legend has this order.
KEPT = "draft, kept"
COPY = "copy"
_KINDS = {
  "draft": _Kind(
    "draft",
    "draft, accepted",
    "The small model wrote it, and the large model's pass accepted it.",
  ),
  KEPT: _Kind(
    "kept",
    "draft, kept although the rule deferred",
    "The rule deferred to the large model here, and the small model's draft x"
    " was accepted all the same, because the target gives it probability too: a"
    " draft is accepted with probability min(1, pi(x) / q(x)), so a token that"
    " both models find likely is kept whatever the rule says.",
  ),
  COPY: _Kind(
    "copy",
    "copy, accepted",
    "It was copied from the text before it or from a table, so that no model"
    " drafted it, and the large model's pass accepted it.",
  ),
  "residual": _Kind(
    "residual",
    "residual, in place of a rejected draft",
    "A draft was rejected here, and this token was drawn in its place from"
    " norm(max(0, pi - q)), what pi has more than the draft's distribution.",
  ),
  "bonus": _Kind(
    "bonus",
    "bonus, after a block that was accepted whole",
    "All drafts of the block were accepted, and the same pass of the large"
    " model gives one token more.",
  ),
  "sequential q": _Kind(
    "seq-q",
    "the small model's, one token at a time",
    "The small model wrote it in a step of its own, and no block was drafted.",
  ),
  "sequential p": _Kind(
    "seq-p",
    "the large model's, one token at a time",
    "The large model wrote it in a step of its own, and no block was drafted.",
  ),
  "forced": _Kind(
    "forced",
    "forced, the only token that may follow",
    "The grammar allows no other token here, so it was not drafted.",
  ),
}
_HOW_TO_READ = (
  "q is the small model's distribution of the next token, p is the large"
  " model's, and pi is the target, the distribution of what the method writes."
  " A bar and a small number open a block: some drafts of the small model, and"
  " one pass of the large model over them. Point at a token, tap it or press"
  " Tab to see both models' likeliest tokens and what the rule compared."
)
STYLE = (
  pathlib.Path(__file__).with_name("tokens.css").read_text(encoding="utf-8")
)
_BLANK = "\u2581"  # the blank in SentencePiece's pieces
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPECIAL = re.compile(r"<[^<>\s]+>")
# Control characters are shown as signs: they must not get into the page.
_CONTROLS = {i: "\N{REPLACEMENT CHARACTER}" for i in (*range(32), 127)}
_CONTROLS |= {ord("\n"): "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"}
_CONTROLS |= {ord("\t"): "\N{RIGHTWARDS ARROW TO BAR}"}


class _Readable(NamedTuple):
  """A piece of text as a reader sees it."""

  text: str
  is_special: bool  # no ordinary text


def _readable(piece: str, token: int) -> _Readable:
  """Returns the text of a token, whose piece is empty without a spelling."""
  if not piece:
    return _Readable(f"<{token}>", True)
  if byte := _BYTE.fullmatch(piece):
    code = int(byte.group(1), 16)
    # Bytes above 127 are parts of longer characters.
    if code < 128:
      return _Readable(chr(code).translate(_CONTROLS), False)
    return _Readable(f"0x{code:02X}", True)
  is_special = _SPECIAL.fullmatch(piece) is not None
  return _Readable(piece.replace(_BLANK, " "), is_special)


class LosingDraft(NamedTuple):
  """A draft that was not accepted.

  Attributes:
    token: the id.
    text: the text of the token.
    is_beside: whether it follows the accepted path, so that another token was
      written in its place. Others follow a draft that lost.
  """

  token: int
  text: _Readable
  is_beside: bool


def check_tree(tree: dict):
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
    tree: a block of a record's "trees", which `check_tree` finds right.

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
      text = _readable(tree["piece"][draft], token)
      lost = LosingDraft(token, text, parent in path)
      by_depth[depth - 1].append(lost)
  return by_depth


def _visible(text) -> str:
  """Returns a string with its control characters as signs."""
  return str(text).translate(_CONTROLS)


def _render(macro: str, *values) -> str:
  """Returns the HTML of a macro of tokens.html, in one line."""
  # Lines end between elements and attributes alone.
  text = str(getattr(_template().module, macro)(*values))
  return text.replace("\n", " ").strip()


@functools.cache
def _template() -> jinja2.Template:
  """Returns tokens.html; a name that it lacks is an error."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=jinja2.select_autoescape(["html"]),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters["visible"] = _visible
  return environment.get_template("tokens.html")


def source_html(record: dict) -> str:
  """Returns the source of a record; it needs `STYLE`.

  Texts of several methods have one source, which is shown above all of them.

  Args:
    record: a record as `records.records` returns it.
  """
  return _render("source", record)


def reference_html(record: dict) -> str:
  """Returns the first reference of a record; nothing where it has none.

  It needs `STYLE`, and is shown above the texts, as the source does.

  Args:
    record: a record as `records.records` returns it.
  """
  return _render("reference", record)


def tokens_html(record: dict) -> str:
  """Returns a section with the tokens of a record and its counts.

  The section needs `STYLE`. It has neither source nor reference, which
  `source_html` and `reference_html` give once for all texts of an example.

  Args:
    record: a record as `records.records` returns it, decoded with a trace.

  Raises:
    ValueError: the record has no trace.
  """
  aux = record.get("aux", {})
  trace = aux.get("trace")
  if trace is None:
    raise ValueError(
      f"the record of {record.get('inputs', '')[:40]!r} has no trace; decode"
      " with TRACE = True"
    )
  counts = Counts(**aux["counts"])
  tokens = _traced_tokens(trace, aux["tokens"])
  num_models = len(counts.calls_by_model)
  groups = itertools.groupby(tokens, lambda token: token["block"])
  blocks = [
    (
      block if counts.num_blocks else None,
      [_shown_token(token, num_models) for token in members],
    )
    for block, members in groups
  ]
  lost = [
    [(depth, x) for depth, x in enumerate(losing_drafts(tree), 1) if x]
    for tree in aux.get("trees") or []
  ]
  return _render("tokens", blocks, counts, lost)


def view_html(records: Sequence[dict], head: str = "") -> str:
  """Returns records and a legend with their style, for a cell of a notebook.

  Args:
    records: records with traces.
    head: a line above the records.

  Raises:
    ValueError: a record has no trace.
  """
  parts = [_render("head", head)] if head else []
  for several in by_example(records):
    parts += [source_html(several[0]), reference_html(several[0])]
    parts += map(tokens_html, several)
  # Cards of the last record open over the legend: no room is left empty.
  parts.append(legend_html(kinds(records)))
  return f'<style>{STYLE}</style><div class="sc-view">{"".join(parts)}</div>'


def by_example(records: Sequence[dict]) -> list[list[dict]]:
  """Returns records in groups: neighbours of one source and its references."""
  groups = itertools.groupby(
    records, lambda record: (record["inputs"], record.get("targets") or [])
  )
  return [list(group) for _, group in groups]


def page_html(records: Sequence[dict], title: str) -> str:
  """Returns a whole page, which loads nothing else.

  Args:
    records: records with traces.
    title: the title of the page.

  Raises:
    ValueError: a record has no trace.
  """
  view = markupsafe.Markup(view_html(records))
  return str(_template().module.page(title, view)).lstrip()


def kinds(records: Iterable[dict]) -> list[str]:
  """Returns the kinds of token that records have, in the legend's order."""
  shown = set()
  for record in records:
    trace = record["aux"].get("trace")
    if trace:
      tokens = _traced_tokens(trace, record["aux"]["tokens"])
      shown |= {_kind_of(token) for token in tokens}
  return [kind for kind in _KINDS if kind in shown]


def legend_html(shown: Iterable[str] = tuple(_KINDS)) -> str:
  """Returns the meaning of colours and underlines; it needs `STYLE`.

  Args:
    shown: the kinds of token in the legend, see `kinds`; by default all.
  """
  return _render("legend", [_KINDS[name] for name in shown], _HOW_TO_READ)


def _traced_tokens(trace: dict, tokens: Sequence[int]) -> list[dict]:
  """Returns what a trace holds of each token, with its id and its place."""
  columns = {**trace, "token": tokens, "place": range(1, len(tokens) + 1)}
  return [dict(zip(columns, entries)) for entries in zip(*columns.values())]


def _kind_of(traced: dict) -> str:
  """Returns the kind of a token."""
  if traced["source"] != "draft":
    return traced["source"]
  if traced["writer"] < 0:
    return COPY
  return KEPT if traced["deferred"] else "draft"


def _shown_token(traced: dict, num_models: int) -> dict:
  """Returns what a token and its card show."""
  kind = _KINDS[_kind_of(traced)]
  name = kind.name
  if num_models > 1 and traced["writer"] >= 0:
    name += f"; by model {traced['writer'] + 1} of {num_models}"
  token = traced["token"]
  return {
    "kind": kind,
    "name": name,
    "text": _readable(traced["piece"], token),
    "place": _place(traced),
    "left": traced["left"],
    "right": traced["right"],
    "is_deferred": traced["deferred"],
    "tv": traced["tv"],
    "q": _top("q", traced),
    "p": _top("p", traced),
  }


def _place(traced: dict) -> str:
  """Returns where a token is, as in "id 7, token 3, block 0"."""
  place = f"id {traced['token']}, token {traced['place']}"
  place += f", block {traced['block']}"
  if phase := traced.get("phase"):
    place += f", {phase} the marker"
  return place


def _top(side: str, traced: dict) -> list[dict]:
  """Returns the likeliest tokens of a model, "q" or "p", none if not asked."""
  names = (f"{side}_top", f"{side}_top_piece", f"{side}_prob")
  return [
    {
      "text": _readable(piece, number),
      "prob": prob,
      "is_written": number == traced["token"],
    }
    for number, piece, prob in zip(*(traced[name] for name in names))
    if prob is not None
  ]
