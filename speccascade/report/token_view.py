"""Records to HTML: who wrote each token, and why. No script, no other file.

A token's origin is told by its colour and by its underline, a block by the bar
and the number before it. Pointing at a token, tapping it or reaching it by
keyboard opens a card with what both models held likely and what the rule saw.
"""

from collections.abc import Iterable, Sequence
import html
import itertools
import re

from speccascade.evaluation.efficiency import Counts
from speccascade.report.token_style import STYLE

__all__ = ["STYLE", "legend_html", "page_html", "tokens_html", "view_html"]

# Kind of a token -> (class, what it means). A kind is a source of the trace,
# KEPT or COPY.
KEPT = "draft, kept"
COPY = "copy"
_KINDS = {
  "draft": ("draft", "draft: the drafter wrote it, and it was accepted"),
  KEPT: ("kept", "draft, kept although the rule deferred"),
  COPY: ("copy", "copy: no model drafted it, and it was accepted"),
  "residual": ("residual", "residual: drawn in place of a rejected draft"),
  "bonus": ("bonus", "bonus: drawn after a block accepted whole"),
  "sequential q": ("seq-q", "the drafter, one token at a time"),
  "sequential p": ("seq-p", "the verifier, one token at a time"),
}
_NOTHING = "\N{EN DASH}"
_BLANK = "\u2581"  # SentencePiece's
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPECIAL = re.compile(r"<[^<>\s]+>")
_CONTROLS = {i: "\N{REPLACEMENT CHARACTER}" for i in (*range(32), 127)}
_CONTROLS |= {ord("\n"): "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"}
_CONTROLS |= {ord("\t"): "\N{RIGHTWARDS ARROW TO BAR}"}


def tokens_html(record: dict) -> str:
  """Returns a section with a record's source and its tokens; needs `STYLE`.

  Args:
    record: of `records.records`, decoded with a trace.

  Raises:
    ValueError: it has no trace.
  """
  aux = record.get("aux", {})
  trace = aux.get("trace")
  if trace is None:
    raise ValueError(
      f"the record of {record.get('inputs', '')[:40]!r} has no trace; decode"
      " with TRACE = True"
    )
  counts = Counts(**aux["counts"])
  columns = {**trace, "token": aux["tokens"], "place": itertools.count(1)}
  traced = [dict(zip(columns, values)) for values in zip(*columns.values())]
  text, num_models = "", len(counts.calls_by_model)
  for block, members in itertools.groupby(traced, lambda token: token["block"]):
    tokens = "".join(_token(token, num_models) for token in members)
    if counts.num_blocks:
      tokens = f'<span class="sc-block" data-block="{block}">{tokens}</span>'
    text += tokens
  references = "".join(
    f'<p class="sc-dim" dir="auto">reference: {_escape(target)}</p>'
    for target in record.get("targets", [])[:1]
  )
  return (
    '<section class="sc-record">'
    f'<p class="sc-source" dir="auto">{_escape(record["inputs"])}</p>'
    '<div class="sc-text" dir="auto" role="group" aria-label="written text,'
    f' token by token">{text}</div>'
    f'<p class="sc-dim">{_summary(counts)}</p>{references}</section>'
  )


def view_html(records: Sequence[dict], head: str = "") -> str:
  """Returns legend and records with their style, for a notebook's cell.

  Args:
    records: with traces.
    head: a line above them.

  Raises:
    ValueError: a record has no trace.
  """
  head = f'<p class="sc-dim">{_escape(head)}</p>' if head else ""
  return (
    f'<style>{STYLE}</style><div class="sc-view">{head}'
    f"{legend_html(kinds(records))}{''.join(map(tokens_html, records))}</div>"
  )


def page_html(records: Sequence[dict], title: str) -> str:
  """Returns a page of its own; nothing is loaded from elsewhere.

  Args:
    records: with traces.
    title: of the page.

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
  """Returns the kinds of token that the records have, in the legend's order."""
  traces = (record["aux"].get("trace") or {} for record in records)
  tokens = (dict(zip(x, of)) for x in traces for of in zip(*x.values()))
  there = set(map(_kind, tokens))
  return [kind for kind in _KINDS if kind in there]


def legend_html(shown: Iterable[str] = tuple(_KINDS)) -> str:
  """Returns what colours and underlines mean; needs `STYLE`.

  Args:
    shown: kinds, see `kinds`; by default all of them.
  """
  items = "".join(
    f'<li><span class="sc-token sc-{name}">token</span> {meaning}</li>'
    for name, meaning in map(_KINDS.get, shown)
  )
  return (
    f'<ul class="sc-legend">{items}<li>A bar and a number open a block; point'
    " at a token, tap it or press Tab to see why it stands.</li></ul>"
  )


def _kind(traced: dict) -> str:
  if traced["source"] != "draft":
    return traced["source"]
  # Records of older versions do not say who drafted.
  is_copy = traced.get("writer", 0) < 0
  return COPY if is_copy else KEPT if traced["deferred"] else "draft"


def _token(traced: dict, num_models: int) -> str:
  """Returns a token with its card.

  Args:
    traced: what the trace holds of it.
    num_models: of the drafter.
  """
  token = traced["token"]
  name, meaning = _KINDS[_kind(traced)]
  text, _ = _text(traced["piece"], token)
  piece = _piece(traced["piece"], token)
  where = f"id {token}, token {traced['place']}, block {traced['block']}"
  if num_models > 1 and traced.get("writer", -1) >= 0:
    meaning += f"; by model {traced['writer'] + 1} of {num_models}"
  said = (
    *(f'<b class="sc-piece">{piece}</b> <i>{where}</i>', meaning),
    _rule(traced["left"], traced["right"], traced["deferred"]),
    f"TV(p, q) {_number(traced['tv'])}",
  )
  lines = "".join(f'<span class="sc-line">{line}</span>' for line in said)
  return (
    f'<span class="sc-token sc-{name}" tabindex="0" role="note"'
    f' aria-label="{_escape(f"{text}: {meaning}")}">{piece}'
    f'<span class="sc-card" role="tooltip">{lines}<span class="sc-tops">'
    f"{_top('drafter q', 'q', traced)}{_top('verifier p', 'p', traced)}"
    "</span></span></span>"
  )


def _rule(left: float | None, right: float | None, deferred: bool) -> str:
  """The rule's two sides, in words."""
  if left is None and right is None:
    return "rule: deferred" if deferred else "rule: none read here"
  sign, verdict = ("&lt;", "deferred") if deferred else ("&ge;", "not deferred")
  return f"rule: {_number(left)} {sign} {_number(right)}, {verdict}"


def _top(title: str, side: str, traced: dict) -> str:
  """One model's likeliest tokens, the written one marked."""
  names = (f"{side}_top", f"{side}_top_piece", f"{side}_prob")
  rows = "".join(
    f'<span class="sc-row{" sc-here" * (number == traced["token"])}"'
    f' style="--p:{100 * prob:.1f}%">'
    f'<span class="sc-piece">{_piece(piece, number)}</span>'
    f"<span>{prob:.3f}</span></span>"
    for number, piece, prob in zip(*(traced[name] for name in names))
    if prob is not None
  )
  rows = rows or '<span class="sc-row">not asked</span>'
  return (
    f'<span class="sc-top"><span class="sc-row">{title}</span>{rows}</span>'
  )


def _number(value: float | None) -> str:
  return _NOTHING if value is None else f"{value:.4g}"


def _summary(counts: Counts) -> str:
  """Counts in a line."""
  text = f"{counts.num_tokens} tokens, "
  if counts.num_blocks:
    length = counts.num_tokens / counts.num_blocks
    text += f"{counts.num_blocks} blocks, {length:.2f} tokens a block, "
  if counts.examined:
    text += f"{counts.accepted} of {counts.examined} drafts accepted, "
  return (
    f"{text}{counts.drafter_calls} drafter and {counts.verifier_extends}"
    " verifier passes"
  )


def _escape(text: str) -> str:
  return html.escape(str(text).translate(_CONTROLS), quote=True)


def _text(piece: str, token: int) -> tuple[str, bool]:
  """Returns a piece as it is read, and whether it is no ordinary text."""
  if not piece:
    return f"<{token}>", True
  if byte := _BYTE.fullmatch(piece):
    code = int(byte.group(1), 16)
    plain = code < 128 and chr(code).translate(_CONTROLS)
    return (plain, False) if plain else (f"0x{code:02X}", True)
  return piece.replace(_BLANK, " "), bool(_SPECIAL.fullmatch(piece))


def _piece(piece: str, token: int) -> str:
  text, is_special = _text(piece, token)
  if is_special:
    return f'<span class="sc-special">{_escape(text)}</span>'
  return _escape(text)
