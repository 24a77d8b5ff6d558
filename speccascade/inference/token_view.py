"""Records to HTML: who wrote each token, and why. No script, no other file.

A token's origin is told by its colour and by its underline, a block by the bar
and the number before it. Pointing at a token, tapping it or reaching it by
keyboard opens a card with what both models held likely and what the rule saw.
"""

from collections.abc import Iterable, Sequence
import html
import itertools
import re

from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Counts
from speccascade.inference.token_style import STYLE

__all__ = ["STYLE", "legend_html", "page_html", "tokens_html", "view_html"]

# Kind of a token -> (class, what it means). A kind is a source of the trace, or
# KEPT.
KEPT = "draft, kept"
_KINDS = {
  "draft": ("draft", "draft: the drafter wrote it, and it was accepted"),
  KEPT: ("kept", "draft, kept although the rule deferred"),
  "residual": ("residual", "residual: drawn in place of a rejected draft"),
  "bonus": ("bonus", "bonus: drawn behind a block accepted whole"),
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
  counts = Counts.from_dict(aux["counts"])
  tokens = [
    _token(trace, position, token)
    for position, token in enumerate(aux["tokens"])
  ]
  if counts.num_blocks:
    tokens = [
      f'<span class="sc-block" data-block="{block}">{"".join(members)}</span>'
      for block, members in _by_block(tokens, trace["block"])
    ]
  lines = [f'<p class="sc-source" dir="auto">{_escape(record["inputs"])}</p>']
  lines.append(
    '<div class="sc-text" dir="auto" role="group" aria-label="written text,'
    f' token by token">{"".join(tokens)}</div>'
  )
  lines.append(f'<p class="sc-dim">{_summary(counts)}</p>')
  for target in record.get("targets", [])[:1]:
    lines.append(
      f'<p class="sc-dim" dir="auto">reference: {_escape(target)}</p>'
    )
  return f'<section class="sc-record">{"".join(lines)}</section>'


def view_html(records: Sequence[dict], head: str = "") -> str:
  """Returns legend and records with their style, for a notebook's cell.

  Args:
    records: with traces.
    head: a line above them.

  Raises:
    ValueError: a record has no trace.
  """
  head = f'<p class="sc-dim">{_escape(head)}</p>' if head else ""
  sections = "".join(tokens_html(record) for record in records)
  return (
    f'<style>{STYLE}</style><div class="sc-view">{head}'
    f"{legend_html(kinds(records))}{sections}</div>"
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
  there = set()
  for record in records:
    trace = record["aux"].get("trace") or {"source": [], "deferred": []}
    there |= set(map(_kind, trace["source"], trace["deferred"]))
  return [kind for kind in _KINDS if kind in there]


def legend_html(shown: Iterable[str] = tuple(_KINDS)) -> str:
  """Returns what colours and underlines mean; needs `STYLE`.

  Args:
    shown: kinds, see `kinds`; by default all of them.
  """
  items = (
    f'<li><span class="sc-token sc-{_KINDS[kind][0]}">token</span>'
    f" {_KINDS[kind][1]}</li>"
    for kind in shown
  )
  return (
    f'<ul class="sc-legend">{"".join(items)}<li>A bar and a number open a'
    " block; point at a token, tap it or press Tab to see why it stands."
    "</li></ul>"
  )


def _kind(source: str, deferred: bool) -> str:
  return KEPT if source == "draft" and deferred else source


def _by_block(tokens, blocks):
  """Yields (block, its tokens) in order."""
  pairs = itertools.groupby(zip(blocks, tokens), key=lambda pair: pair[0])
  for block, members in pairs:
    yield block, [token for _, token in members]


def _token(trace, position: int, token: int) -> str:
  kind = _kind(trace["source"][position], trace["deferred"][position])
  name, meaning = _KINDS[kind]
  piece = _piece(trace["piece"][position], token)
  label = _escape(f"{_text(trace['piece'][position], token)[0]}: {meaning}")
  return (
    f'<span class="sc-token sc-{name}" tabindex="0" role="note"'
    f' aria-label="{label}">{piece}'
    f"{_card(trace, position, token, piece, meaning)}</span>"
  )


def _card(trace, position, token, piece, meaning) -> str:
  """What is shown of a token when it is pointed at."""
  where = f"id {token}, token {position + 1}, block {trace['block'][position]}"
  lines = [
    f'<b class="sc-piece">{piece}</b> <i>{where}</i>',
    meaning,
    _rule(trace, position),
    f"TV(p, q) {_number(trace['tv'][position])}",
  ]
  text = "".join(f'<span class="sc-line">{line}</span>' for line in lines)
  tops = "".join(
    _top(
      title,
      trace[f"{side}_top"][position],
      trace[f"{side}_top_piece"][position],
      trace[f"{side}_prob"][position],
      token,
    )
    for side, title in (("q", "drafter q"), ("p", "verifier p"))
  )
  return (
    f'<span class="sc-card" role="tooltip">{text}'
    f'<span class="sc-tops">{tops}</span></span>'
  )


def _rule(trace, position) -> str:
  """The rule's two sides, in words."""
  left, right = trace["left"][position], trace["right"][position]
  deferred = trace["deferred"][position]
  if left is None and right is None:
    return "rule: deferred" if deferred else "rule: none read here"
  sign, verdict = ("&lt;", "deferred") if deferred else ("&ge;", "not deferred")
  return f"rule: {_number(left)} {sign} {_number(right)}, {verdict}"


def _top(title, ids, pieces, probs, token) -> str:
  """One model's likeliest tokens, the written one marked."""
  rows = []
  for number, piece, prob in zip(ids, pieces, probs):
    if prob is None:
      continue
    mark = " sc-here" if number == token else ""
    rows.append(
      f'<span class="sc-row{mark}" style="--p:{100 * prob:.1f}%">'
      f'<span class="sc-piece">{_piece(piece, number)}</span>'
      f"<span>{prob:.3f}</span></span>"
    )
  rows = "".join(rows) or '<span class="sc-row">not asked</span>'
  return (
    f'<span class="sc-top"><span class="sc-row">{title}</span>{rows}</span>'
  )


def _number(value: float | None) -> str:
  return _NOTHING if value is None else f"{value:.4g}"


def _summary(counts: Counts) -> str:
  """Counts in a line."""
  parts = [f"{counts.num_tokens} tokens"]
  if counts.num_blocks:
    length = efficiency.mean_acceptance_length(counts)
    parts.append(f"{counts.num_blocks} blocks, {length:.2f} tokens a block")
  if counts.examined:
    parts.append(f"{counts.accepted} of {counts.examined} drafts accepted")
  parts.append(
    f"{counts.drafter_calls} drafter and {counts.verifier_extends} verifier"
    " passes"
  )
  return ", ".join(parts)


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
