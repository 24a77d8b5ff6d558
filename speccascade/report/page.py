"""The report as one HTML file that asks for nothing else."""

from collections.abc import Callable, Sequence
import html
import io
import itertools
import re

from speccascade.report import drawing, styles, tables, token_view
from speccascade.report.content import Section
from speccascade.report.drawing import Plot
from speccascade.report.page_style import SCRIPT, STYLE
from speccascade.report.shown_examples import ShownExamples
from speccascade.report.styles import FAMILIES

# Lines or columns from which a table starts closed, in a box that scrolls.
_LONG, _WIDE = 60, 14
_PAGE = tables.template("""\
{% macro sentences(lines) %}
<ul>
{% for line in lines %}<li>{{ line[:1] | upper }}{{ line[1:] }}</li>
{% endfor %}</ul>
{% endmacro %}
{% macro figure(plot, section, name) %}
<figure>
<div class="panels">{{ panels(plot, name) | safe }}</div>
<figcaption><b>{{ plot.title }}.</b> {{ plot.note }}
<span class="files">
{% for kind in ("png", "svg") %}
<a href="{{ section.prefix }}{{ plot.name }}.{{ kind }}">{{ kind | upper }}</a>
{% endfor %}</span></figcaption>
</figure>
{% endmacro %}
{% macro table(table, section, is_long) %}
<div class="with-table">
<p class="dim">{{ table.note }}
<span class="files"><a href="{{ section.prefix }}{{ table.name }}.csv">CSV</a>
<button class="copy" type="button" hidden>Copy</button></span></p>
<div class="{{ "scroll" if is_long else "whole" }}"
{%- if is_long %} tabindex="0" role="region" aria-label="{{ table.title }}"
{%- endif %}>
{{ to_html(table.lines, table.columns) | safe }}</div>
</div>
{% endmacro %}
{% macro aside(title, is_open=False) %}
{% if title %}<details{% if is_open %} open{% endif %}>
<summary>{{ title }}</summary>
{{ caller() }}</details>{% else %}{{ caller() }}{% endif %}
{% endmacro %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Speculative cascades: report</title>
<style>{{ style | safe }}</style>
</head>
<body>
<main>
<header>
<h1>Speculative cascades: quality against latency</h1>
<nav aria-label="Sections"><ul>
{% for name, text in links %}<li><a href="#{{ name }}">{{ text }}</a></li>
{% endfor %}
{% for name in files %}<li class="files"><a href="{{ name }}">
{{- name.split("/")[-1] }}</a></li>
{% endfor %}</ul></nav>
</header>
{% for section in sections %}{% set name = "s%d" % loop.index %}
<section id="{{ name }}">
<h2>{{ section.study.pair }}</h2>
<p class="about dim">{{ section.about }}</p>
{% if section.doubts %}
<aside class="notice">{{ sentences(section.doubts) }}</aside>
{% endif %}
<p class="lead">{{ section.headline | replace("T = ", "T&nbsp;=&nbsp;" | safe)
}}</p>
{% if section.plots %}{{ figure(section.plots[0], section, name) }}{% endif %}
<ul class="families">
{% for number in families(section) %}
<li><i style="background:var(--family-{{ number }})"></i>
{{- FAMILIES[number].name }}</li>
{% endfor %}</ul>
<h3 id="{{ name }}-findings">Findings</h3>
<div class="findings">
{% for finding in section.findings %}<div>
<h4>{{ finding.title }}</h4>
{{ sentences(finding.models) }}
{% for title, lines in finding.by_clock %}
<h5>{{ title[:1] | upper }}{{ title[1:] }}</h5>
{{ sentences(lines) }}
{% endfor %}</div>
{% endfor %}</div>
{% if section.notices %}
<aside class="notice"><p><b>Where speculation loses</b> (measured; a line for
each method is in the tables)</p>
{{ sentences(section.notices) }}</aside>
{% endif %}
<p><b>Measured</b> latency is wall-clock on this machine over the large model's.
{% if section.clocks[-1].cost_ratio is not none %}
<b>Modelled</b> latency was not timed: it counts the same calls at the costs of
a machine where a block costs one step of the large model, a drafter step
{{ "%.3g" | format(section.clocks[-1].cost_ratio) }} of it, and all else
nothing.
{% endif %}</p>
<h3 id="{{ name }}-tables">Tables</h3>
{% for each in section.tables %}
{% set is_long = each.columns | length > wide
  or each.lines | length > long and not loop.first %}
{% if is_long %}
{% call aside(each.title) %}{{ table(each, section, True) }}{% endcall %}
{% else %}<h4>{{ each.title }}</h4>
{{ table(each, section, False) }}{% endif %}{% endfor %}
<h3 id="{{ name }}-figures">Figures</h3>
{% for title, plots in by_aside(section.plots[1:]) %}{% call aside(title) %}
{% for plot in plots %}{{ figure(plot, section, name) }}
{% endfor %}{% endcall %}{% endfor %}
<p class="dim">{{ section.versions }}</p>
</section>
{% endfor %}
{% if examples.records %}<section id="tokens">
<h2>Who wrote each token</h2>
<p class="dim">{{ examples.note }}</p>
<div class="sc-view">{{ legend | safe }}
{% for source, texts in by_source %}{% call aside(source[:200], loop.first) %}
{% for title, record in texts %}<h4>{{ title }}</h4>
{{ tokens_html(record) | safe }}
{% endfor %}{% endcall %}{% endfor %}</div>
</section>
{% endif %}</main>
<div id="tip" role="status" hidden></div>
<script>{{ script | safe }}</script>
</body>
</html>
""")


def page(
  sections: Sequence[Section],
  examples: ShownExamples,
  sources: Sequence[str] = (),
  *,
  tick: Callable[[], None] = lambda: None,
) -> str:
  """Returns the whole file.

  Args:
    sections: one or more.
    examples: with traces, or none.
    sources: paths from the page to what it was made of.
    tick: called after each figure.
  """
  links = [(f"s{i}", x.study.pair) for i, x in enumerate(sections, start=1)]
  if len(links) == 1:
    parts = ("Findings", "Tables", "Figures")
    links = [(f"s1-{part.lower()}", part) for part in parts]
  if examples.records:
    links.append(("tokens", "Who wrote each token"))

  def panels(plot: Plot, name: str) -> str:
    drawn = ""
    for number, panel in enumerate(plot.panels):
      name_of = f"{name}-{plot.name}-{number}"
      label = f"{plot.title}: {panel.title}"
      drawn += inline(*plot.draw(number), name_of, label)
    tick()
    return drawn

  return _PAGE.render(
    sections=sections,
    examples=examples,
    links=links,
    files=[*sources, "rows.csv", "report.md"],
    panels=panels,
    families=lambda section: sorted(
      {styles.family(point.method) for point in section.study.points}
    ),
    FAMILIES=FAMILIES,
    long=_LONG,
    wide=_WIDE,
    style=STYLE + token_view.STYLE,
    script=SCRIPT,
    by_aside=lambda plots: itertools.groupby(plots, lambda plot: plot.aside),
    by_source=itertools.groupby(
      zip(examples.titles, examples.records), lambda pair: pair[1]["inputs"]
    ),
    legend=token_view.legend_html(token_view.kinds(examples.records)),
    to_html=tables.to_html,
    tokens_html=token_view.tokens_html,
  )


def inline(figure, tips: dict[str, str], name: str, label: str) -> str:
  """Returns an svg element of a page's fonts and colours; closes the figure.

  Args:
    figure: to show.
    tips: by gid of its artists, shown when they are pointed at.
    name: starts all ids, which are unique in a page then.
    label: what it shows, for those who do not see it.
  """
  plt, file = drawing.pyplot(), io.StringIO()
  metadata = {"Date": None}
  with plt.rc_context({"svg.fonttype": "none"}):
    figure.savefig(file, format="svg", transparent=True, metadata=metadata)
  plt.close(figure)
  text = file.getvalue()
  text = text[text.index("<svg") :]
  for left_out in (r"<metadata>.*?</metadata>\s*", r"<!--.*?-->\s*"):
    text = re.sub(left_out, "", text, flags=re.DOTALL)
  head, rest = text.split(">", 1)
  head = re.sub(r'\s(width|height)="[^"]*"', "", head)
  text = f'{head} role="img" aria-label="{html.escape(label)}">{rest}'
  for gid, tip in tips.items():
    point = f'<g id="{gid}" class="point"><title>{html.escape(tip)}</title>'
    text = text.replace(f'<g id="{gid}">', point, 1)
  text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", text)
  font = "font-family: system-ui, sans-serif"
  text = re.sub(r"font-family: [^;\"]*", font, text)
  for number, family in enumerate(FAMILIES):
    text = text.replace(family.colour, f"var(--family-{number})")
  return text
