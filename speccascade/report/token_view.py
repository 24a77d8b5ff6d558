"""Records as HTML: who wrote each token, and why. No script, no other file.

The colour and the underline of a token show where the token comes from. A bar
and a number open a block. Pointing at a token, tapping it or reaching it by
keyboard opens a card with the likeliest tokens of both models, and with the two
sides of the deferral rule.
"""

from collections.abc import Iterable, Sequence
import html
import itertools
import re
from typing import NamedTuple

from speccascade.evaluation.efficiency import Counts
from speccascade.report.losing_drafts import losing_html
from speccascade.report.token_style import STYLE

__all__ = [
  "STYLE",
  "legend_html",
  "page_html",
  "reference_html",
  "source_html",
  "tokens_html",
  "view_html",
]


class _Kind(NamedTuple):
  """A kind of token.

  Attributes:
    css_class: the end of the kind's CSS class.
    name: what a card calls the kind.
    meaning: a sentence of the legend.
  """

  css_class: str
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
    " draft stands with probability min(1, pi(x) / q(x)), so a token that both"
    " models find likely is kept whatever the rule says.",
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
}
_HOW_TO_READ = (
  "q is the small model's distribution of the next token, p is the large"
  " model's, and pi is the target, the distribution of what the method writes."
  " A bar and a small number open a block: some drafts of the small model, and"
  " one pass of the large model over them. Point at a token, tap it or press"
  " Tab to see both models' likeliest tokens and what the rule compared."
)
_NOTHING = "\N{EN DASH}"
_BLANK = "\u2581"  # the blank in SentencePiece's pieces
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPECIAL = re.compile(r"<[^<>\s]+>")
# Control characters are shown as signs: they must not get into the page.
_CONTROLS = {i: "\N{REPLACEMENT CHARACTER}" for i in (*range(32), 127)}
_CONTROLS |= {ord("\n"): "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"}
_CONTROLS |= {ord("\t"): "\N{RIGHTWARDS ARROW TO BAR}"}


def source_html(record: dict) -> str:
  """Returns the source of a record; it needs `STYLE`.

  Texts of several methods have one source, which stands above all of them.

  Args:
    record: a record as `records.records` returns it.
  """
  return f'<p class="sc-source" dir="auto">{_escape(record["inputs"])}</p>'


def reference_html(record: dict) -> str:
  """Returns the first reference of a record; nothing where it has none.

  It needs `STYLE`, and stands above the texts, as the source does.

  Args:
    record: a record as `records.records` returns it.
  """
  targets = record.get("targets") or []
  if not targets:
    return ""
  which = f" (the first of {len(targets)})" if len(targets) > 1 else ""
  return (
    f'<p class="sc-dim" dir="auto">reference{which}: {_escape(targets[0])}</p>'
  )


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
  num_models = len(counts.calls_by_model)
  text = ""
  for block, tokens in itertools.groupby(
    _traced_tokens(trace, aux["tokens"]), lambda token: token["block"]
  ):
    block_html = "".join(_token_html(token, num_models) for token in tokens)
    if counts.num_blocks:
      text += f'<span class="sc-block" data-block="{block}">{block_html}</span>'
    else:
      text += block_html
  return (
    '<section class="sc-record"><div class="sc-text" dir="auto" role="group"'
    f' aria-label="written text, token by token">{text}</div>'
    f'<p class="sc-dim">{_summary(counts)}</p>'
    f"{losing_html(aux.get('trees') or [], _piece_html)}</section>"
  )


def view_html(records: Sequence[dict], head: str = "") -> str:
  """Returns a legend and records with their style, for a cell of a notebook.

  Args:
    records: records with traces.
    head: a line above the records.

  Raises:
    ValueError: a record has no trace.
  """
  head_html = f'<p class="sc-dim">{_escape(head)}</p>' if head else ""
  texts = ""
  for _, group in itertools.groupby(records, _example_of):
    several = list(group)
    texts += source_html(several[0]) + reference_html(several[0])
    texts += "".join(map(tokens_html, several))
  return (
    f'<style>{STYLE}</style><div class="sc-view">{head_html}'
    f"{legend_html(kinds(records))}{texts}</div>"
  )


def _example_of(record: dict) -> tuple:
  """Returns what the records of one example have in common."""
  return record["inputs"], tuple(record.get("targets") or ())


def page_html(records: Sequence[dict], title: str) -> str:
  """Returns a whole page, which loads nothing else.

  Args:
    records: records with traces.
    title: the title of the page.

  Raises:
    ValueError: a record has no trace.
  """
  return (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    f'<title>{_escape(title)}</title></head><body class="sc-page">'
    f"<main><h1>{_escape(title)}</h1>{view_html(records)}</main></body></html>"
    "\n"
  )


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
  items = ""
  for name in shown:
    kind = _KINDS[name]
    items += (
      f'<li><span class="sc-token sc-{kind.css_class}">token</span>'
      f" <b>{kind.name}.</b> {kind.meaning}</li>"
    )
  return f'<ul class="sc-legend">{items}<li>{_HOW_TO_READ}</li></ul>'


def _traced_tokens(trace: dict, tokens: Sequence[int]) -> list[dict]:
  """Returns what a trace holds of each token, with its id and its place.

  Args:
    trace: lists with an entry for each token, by name.
    tokens: the ids of the tokens.
  """
  columns = {**trace, "token": tokens, "place": range(1, len(tokens) + 1)}
  return [dict(zip(columns, entries)) for entries in zip(*columns.values())]


def _kind_of(traced: dict) -> str:
  """Returns the kind of a token."""
  if traced["source"] != "draft":
    return traced["source"]
  # Records of older versions have no writer: a model drafted their drafts.
  if traced.get("writer", 0) < 0:
    return COPY
  return KEPT if traced["deferred"] else "draft"


def _token_html(traced: dict, num_models: int) -> str:
  """Returns a token with its card.

  Args:
    traced: what the trace holds of the token.
    num_models: how many models draft.
  """
  token = traced["token"]
  kind = _KINDS[_kind_of(traced)]
  name = kind.name
  if num_models > 1 and traced.get("writer", -1) >= 0:
    name += f"; by model {traced['writer'] + 1} of {num_models}"
  piece = _piece_html(traced["piece"], token)
  place = f"id {token}, token {traced['place']}, block {traced['block']}"
  card = (
    f'<b class="sc-piece">{piece}</b> <i>{place}</i>',
    name,
    _rule_text(traced["left"], traced["right"], traced["deferred"]),
    f"TV(p, q) {_number(traced['tv'])}",
  )
  lines = "".join(f'<span class="sc-line">{line}</span>' for line in card)
  text = _readable(traced["piece"], token).text
  return (
    f'<span class="sc-token sc-{kind.css_class}" tabindex="0" role="note"'
    f' aria-label="{_escape(f"{text}: {name}")}">{piece}'
    f'<span class="sc-card" role="tooltip">{lines}<span class="sc-tops">'
    f"{_top_html('small model, q', 'q', traced)}"
    f"{_top_html('large model, p', 'p', traced)}"
    "</span></span></span>"
  )


def _rule_text(left: float | None, right: float | None, deferred: bool) -> str:
  """Returns the two sides of the deferral rule, and what the rule decided."""
  if left is None and right is None:
    return "rule: deferred" if deferred else "rule: none read here"
  sign, verdict = ("&lt;", "deferred") if deferred else ("&ge;", "not deferred")
  return f"rule: {_number(left)} {sign} {_number(right)}, {verdict}"


def _top_html(title: str, side: str, traced: dict) -> str:
  """Returns the likeliest tokens of a model, the written token marked.

  Args:
    title: the heading.
    side: "q" for the drafter, "p" for the verifier.
    traced: what the trace holds of the token.
  """
  rows = ""
  for number, piece, prob in zip(
    traced[f"{side}_top"], traced[f"{side}_top_piece"], traced[f"{side}_prob"]
  ):
    if prob is None:
      continue
    is_written = number == traced["token"]
    rows += (
      f'<span class="sc-row{" sc-here" if is_written else ""}"'
      f' style="--p:{100 * prob:.1f}%">'
      f'<span class="sc-piece">{_piece_html(piece, number)}</span>'
      f"<span>{prob:.3f}</span></span>"
    )
  rows = rows or '<span class="sc-row">not asked</span>'
  return (
    f'<span class="sc-top"><span class="sc-row">{title}</span>{rows}</span>'
  )


def _number(value: float | None) -> str:
  return _NOTHING if value is None else f"{value:.4g}"


def _summary(counts: Counts) -> str:
  """Returns the counts of a text in a line."""
  text = f"{counts.num_tokens} tokens, "
  if counts.num_blocks:
    length = counts.num_tokens / counts.num_blocks
    text += f"{counts.num_blocks} blocks, {length:.2f} tokens a block, "
  if counts.examined:
    text += f"{counts.accepted} of {counts.examined} drafts accepted, "
  return (
    f"{text}{counts.drafter_calls} passes of the small model and"
    f" {counts.verifier_extends} of the large model"
  )


def _escape(text: str) -> str:
  return html.escape(str(text).translate(_CONTROLS), quote=True)


class _Readable(NamedTuple):
  """A piece of text as a reader sees it.

  Attributes:
    text: the text.
    is_special: whether the piece is no ordinary text.
  """

  text: str
  is_special: bool


def _readable(piece: str, token: int) -> _Readable:
  """Returns a token's text.

  Args:
    piece: the token as its tokenizer spells it; empty where it has no spelling.
    token: the token's id.
  """
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


def _piece_html(piece: str, token: int) -> str:
  """Returns a token's text as HTML, in a box if it is no ordinary text."""
  text, is_special = _readable(piece, token)
  if is_special:
    return f'<span class="sc-special">{_escape(text)}</span>'
  return _escape(text)
