"""The report as one HTML file that asks for nothing else."""

from collections.abc import Callable, Sequence
import html

from speccascade.experiments import styles, token_view
from speccascade.experiments.report import svg
from speccascade.experiments.report.content import Section
from speccascade.experiments.report.drawing import Plot
from speccascade.experiments.report.examples import Examples
from speccascade.experiments.report.report_tables import Table
from speccascade.experiments.report.style import SCRIPT, STYLE

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
    *(_sentences(title, lines) for title, lines in section.findings),
    _notice(section.notices),
    _clocks(section),
    f'<h3 id="{name}-figures">Figures</h3>\n',
    _families(),
  ]
  for plot in section.plots:
    parts.append(_figure(plot, f"{name}-{plot.name}"))
    tick()
  parts.append(f'<h3 id="{name}-tables">Tables</h3>\n')
  parts += [_table(table) for table in section.tables]
  return "".join(parts) + "</section>\n"


def _sentences(title: str, lines: Sequence[str]) -> str:
  items = "".join(f"<li>{html.escape(_capital(line))}</li>\n" for line in lines)
  return f"<p><b>{html.escape(title)}</b></p>\n<ul>\n{items}</ul>\n"


def _capital(text: str) -> str:
  return text[:1].upper() + text[1:]


def _notice(notices: Sequence[str]) -> str:
  if not notices:
    return ""
  first, rest = notices[:3], notices[3:]
  items = "".join(f"<li>{html.escape(one)}</li>\n" for one in first)
  more = "".join(f"<li>{html.escape(one)}</li>\n" for one in rest)
  if more:
    more = (
      f"<details><summary>{len(rest)} more</summary><ul>{more}</ul></details>"
    )
  return (
    '<aside class="notice"><p><b>Speculation loses here</b></p>\n'
    f"<ul>\n{items}</ul>\n{more}</aside>\n"
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
    return f"<details><summary>{title}</summary>\n{body}</details>\n"
  return f"<h4>{title}</h4>\n{body}"


def _examples(examples: Examples) -> str:
  legend = token_view.legend_html(token_view.kinds(examples.records))
  shown = "".join(
    f"<h3>{html.escape(title)}</h3>\n{token_view.tokens_html(record)}\n"
    for title, record in zip(examples.titles, examples.records)
  )
  return (
    '<section id="tokens">\n<h2>Who wrote each token</h2>\n'
    f'<p class="dim">{html.escape(examples.note)}</p>\n'
    f'<div class="sc-view">{legend}{shown}</div>\n</section>\n'
  )
