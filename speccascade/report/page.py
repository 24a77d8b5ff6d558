"""The report as one HTML file that asks for nothing else."""

from collections.abc import Callable, Sequence
import html
import itertools

from speccascade.inference import token_view
from speccascade.report import styles, svg
from speccascade.report.content import Section
from speccascade.report.drawing import Plot
from speccascade.report.findings import Finding
from speccascade.report.page_style import SCRIPT, STYLE
from speccascade.report.report_tables import Table
from speccascade.report.shown_examples import Examples

_LONG = 40  # lines from which a table starts closed


def page(
  sections: Sequence[Section],
  examples: Examples,
  *,
  tick: Callable[[], None] = lambda: None,
) -> str:
  """Returns the whole file.

  Args:
    sections: one or more.
    examples: with traces, or none.
    tick: called after each figure.
  """
  names = [f"s{number}" for number in range(1, len(sections) + 1)]
  body = [_header(sections, names, examples)]
  body += [_section(*pair, tick) for pair in zip(sections, names)]
  if examples.records:
    body.append(_examples(examples))
  return (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n'
    '<link rel="icon" href="data:,">\n'
    "<title>Speculative cascades: report</title>\n"
    f"<style>{STYLE}{token_view.STYLE}</style>\n</head>\n<body>\n"
    f"<main>\n{''.join(body)}</main>\n"
    f'<div id="tip" role="status" hidden></div>\n<script>{SCRIPT}</script>\n'
    "</body>\n</html>\n"
  )


def _header(sections, names, examples) -> str:
  links = []
  for section, name in zip(sections, names):
    if len(sections) > 1:
      links.append((name, section.study.title))
    else:
      links += [(f"{name}-findings", "Findings")]
      links += [(f"{name}-figures", "Figures"), (f"{name}-tables", "Tables")]
  if examples.records:
    links.append(("tokens", "Who wrote each token"))
  items = "".join(
    f'<li><a href="#{name}">{html.escape(text)}</a></li>'
    for name, text in links
  )
  return (
    "<h1>Quality against latency of speculative cascades</h1>\n"
    f'<nav aria-label="Sections"><ul>{items}</ul></nav>\n'
  )


def _section(section: Section, name: str, tick) -> str:
  parts = [
    f'<section id="{name}">\n<h2>{html.escape(section.study.title)}</h2>\n',
    f'<p class="dim">{html.escape(section.about)}</p>\n',
    f'<h3 id="{name}-findings">Findings</h3>\n',
    '<div class="findings">\n',
    *map(_finding, section.findings),
    "</div>\n",
    _notice(section.notices),
    _clocks(section),
    f'<h3 id="{name}-figures">Figures</h3>\n',
    _families(),
  ]
  for aside, plots in itertools.groupby(section.plots, lambda one: one.aside):
    figures = []
    for plot in plots:
      figures.append(_figure(plot, f"{name}-{plot.name}"))
      tick()
    parts.append(_aside(aside, "".join(figures)))
  parts.append(f'<h3 id="{name}-tables">Tables</h3>\n')
  parts += [_table(table) for table in section.tables]
  return "".join(parts) + "</section>\n"


def _finding(finding: Finding) -> str:
  parts = [f"<div>\n<h4>{html.escape(finding.title)}</h4>\n"]
  parts.append(_sentences(finding.models))
  for title, lines in finding.by_clock:
    parts.append(f"<h5>{html.escape(_capital(title))}</h5>\n")
    parts.append(_sentences(lines))
  return "".join(parts) + "</div>\n"


def _sentences(lines: Sequence[str]) -> str:
  items = "".join(f"<li>{html.escape(_capital(line))}</li>\n" for line in lines)
  return f"<ul>\n{items}</ul>\n"


def _capital(text: str) -> str:
  return text[:1].upper() + text[1:]


def _notice(notices: Sequence[str]) -> str:
  if not notices:
    return ""
  return (
    '<aside class="notice"><p><b>Where speculation loses</b> (measured; a line'
    f" for each method is in the tables)</p>\n{_sentences(notices)}</aside>\n"
  )


def _clocks(section: Section) -> str:
  """Says which latency is measured and which is not."""
  text = (
    "<b>Measured</b> latency is wall-clock on this machine over the large"
    " model's."
  )
  model = section.clocks[-1]
  if model.cost_ratio is not None:
    text += (
      " <b>Modelled</b> latency was not timed: it counts the same calls at the"
      " costs of a machine where a block costs one step of the large model, a"
      f" drafter step {model.cost_ratio:.3g} of it, and all else nothing."
    )
  return f"<p>{text}</p>\n"


def _families() -> str:
  items = "".join(
    f'<li><i style="background:var(--family-{number})"></i>{one.name}</li>'
    for number, one in enumerate(styles.FAMILIES)
  )
  return f'<ul class="families">{items}</ul>\n'


def _aside(title: str, body: str) -> str:
  """Returns what is opened by its title, or shown at once without one."""
  if not title:
    return body
  title = html.escape(title)
  return f"<details><summary>{title}</summary>\n{body}</details>\n"


def _figure(plot: Plot, name: str) -> str:
  panels = "".join(
    svg.inline(*plot.draw(number), f"{name}-{number}", f"{plot.title}: {title}")
    for number, (title, _) in enumerate(plot.panels)
  )
  return (
    f"<figure>\n<figcaption><b>{html.escape(plot.title)}.</b>"
    f" {html.escape(plot.note)}</figcaption>\n"
    f'<div class="panels">{panels}</div>\n</figure>\n'
  )


def _table(table: Table) -> str:
  title = html.escape(table.title)
  body = (
    f'<p class="dim">{html.escape(table.note)}</p>\n<div class="scroll"'
    f' tabindex="0" role="region" aria-label="{title}">\n{table.html()}</div>\n'
  )
  if len(table.lines) > _LONG:
    return _aside(table.title, body)
  return f"<h4>{title}</h4>\n{body}"


def _examples(examples: Examples) -> str:
  legend = token_view.legend_html(token_view.kinds(examples.records))
  parts = []
  pairs = zip(examples.titles, examples.records)
  for source, same in itertools.groupby(pairs, lambda pair: pair[1]["inputs"]):
    shown = "".join(
      f"<h4>{html.escape(title)}</h4>\n{token_view.tokens_html(record)}\n"
      for title, record in same
    )
    is_open = "" if parts else " open"
    parts.append(
      f"<details{is_open}><summary>{html.escape(source[:200])}</summary>\n"
      f"{shown}</details>\n"
    )
  return (
    '<section id="tokens">\n<h2>Who wrote each token</h2>\n'
    f'<p class="dim">{html.escape(examples.note)}</p>\n'
    f'<div class="sc-view">{legend}{"".join(parts)}</div>\n</section>\n'
  )
