"""The report as one HTML file that asks for nothing else."""

from collections.abc import Callable, Sequence
from html import escape
import itertools

from speccascade.report import canvas, tables, token_view
from speccascade.report.content import Section
from speccascade.report.drawing import Plot
from speccascade.report.findings import Finding
from speccascade.report.page_style import SCRIPT, STYLE
from speccascade.report.shown_examples import ShownExamples
from speccascade.report.styles import FAMILIES
from speccascade.report.tables import Table

_LONG = 40  # lines from which a table starts closed


def page(
  sections: Sequence[Section],
  examples: ShownExamples,
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
  links = [(name, part.study.title) for name, part in zip(names, sections)]
  if len(links) == 1:
    parts = ("Findings", "Figures", "Tables")
    links = [(f"s1-{part.lower()}", part) for part in parts]
  if examples.records:
    links.append(("tokens", "Who wrote each token"))
  items = "".join(
    f'<li><a href="#{name}">{escape(text)}</a></li>' for name, text in links
  )
  body = "".join(_section(*pair, tick) for pair in zip(sections, names))
  return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Speculative cascades: report</title>
<style>{STYLE}{token_view.STYLE}</style>
</head>
<body>
<main>
<h1>Quality against latency of speculative cascades</h1>
<nav aria-label="Sections"><ul>{items}</ul></nav>
{body}{_examples(examples)}</main>
<div id="tip" role="status" hidden></div>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _section(section: Section, name: str, tick) -> str:
  shown = []
  for aside, plots in itertools.groupby(section.plots, lambda plot: plot.aside):
    drawn = ""
    for plot in plots:
      drawn += _figure(plot, f"{name}-{plot.name}")
      tick()
    shown.append(_aside(aside, drawn))
  return f"""<section id="{name}">
<h2>{escape(section.study.title)}</h2>
<p class="dim">{escape(section.about)}</p>
<h3 id="{name}-findings">Findings</h3>
<div class="findings">
{"".join(map(_finding, section.findings))}</div>
{_notice(section.notices)}{_clocks(section)}<h3 id="{name}-figures">Figures</h3>
{_families()}{"".join(shown)}<h3 id="{name}-tables">Tables</h3>
{"".join(map(_table, section.tables))}</section>
"""


def _finding(finding: Finding) -> str:
  text = f"<div>\n<h4>{escape(finding.title)}</h4>\n"
  text += _sentences(finding.models)
  for title, lines in finding.by_clock:
    text += f"<h5>{escape(_capital(title))}</h5>\n{_sentences(lines)}"
  return text + "</div>\n"


def _sentences(lines: Sequence[str]) -> str:
  items = "".join(f"<li>{escape(_capital(line))}</li>\n" for line in lines)
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
    f'<li><i style="background:var(--family-{number})"></i>{family.name}</li>'
    for number, family in enumerate(FAMILIES)
  )
  return f'<ul class="families">{items}</ul>\n'


def _aside(title: str, body: str, mark: str = "") -> str:
  """Returns what is opened by its title, or shown at once without one."""
  if not title:
    return body
  summary = f"<summary>{escape(title)}</summary>"
  return f"<details{mark}>{summary}\n{body}</details>\n"


def _figure(plot: Plot, name: str) -> str:
  panels = "".join(
    canvas.inline(
      *plot.draw(number), f"{name}-{number}", f"{plot.title}: {panel.title}"
    )
    for number, panel in enumerate(plot.panels)
  )
  return (
    f"<figure>\n<figcaption><b>{escape(plot.title)}.</b>"
    f" {escape(plot.note)}</figcaption>\n"
    f'<div class="panels">{panels}</div>\n</figure>\n'
  )


def _table(table: Table) -> str:
  title = escape(table.title)
  body = (
    f'<p class="dim">{escape(table.note)}</p>\n<div class="scroll"'
    f' tabindex="0" role="region" aria-label="{title}">\n'
    f"{tables.to_html(table.lines, table.columns)}</div>\n"
  )
  if len(table.lines) > _LONG:
    return _aside(table.title, body)
  return f"<h4>{title}</h4>\n{body}"


def _examples(examples: ShownExamples) -> str:
  """Returns the decoded texts, source by source, the first of them open."""
  if not examples.records:
    return ""
  sources, mark = "", " open"
  pairs = zip(examples.titles, examples.records)
  for source, same in itertools.groupby(pairs, lambda pair: pair[1]["inputs"]):
    texts = "".join(
      f"<h4>{escape(title)}</h4>\n{token_view.tokens_html(record)}\n"
      for title, record in same
    )
    sources += _aside(source[:200], texts, mark)
    mark = ""
  legend = token_view.legend_html(token_view.kinds(examples.records))
  return f"""<section id="tokens">
<h2>Who wrote each token</h2>
<p class="dim">{escape(examples.note)}</p>
<div class="sc-view">{legend}{sources}</div>
</section>
"""
