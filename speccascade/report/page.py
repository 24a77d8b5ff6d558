"""The report as one HTML file that loads nothing else."""

from collections.abc import Callable, Sequence
import html
import io
import itertools
import re
from typing import NamedTuple

from speccascade.report import drawing, styles, tables, token_view
from speccascade.report.content import Section
from speccascade.report.drawing import Plot
from speccascade.report.page_style import SCRIPT, STYLE
from speccascade.report.shown_examples import ShownExamples
from speccascade.report.styles import FAMILIES
from speccascade.report.tables import Table

# A table with more lines or columns starts closed, in a box that scrolls.
_MAX_LINES, _MAX_COLUMNS = 60, 14
# What stands in an SVG of matplotlib's that a page does not need.
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_SIZE = re.compile(r'\s(width|height)="[^"]*"')
# Where an id is defined, and the two ways in which it is referred to.
_ID = re.compile(r'( id="|url\(#|href="#)')
_FONT = re.compile(r"font-family: [^;\"]*")


class _Link(NamedTuple):
  """A link inside the page.

  Attributes:
    target: the id of an element.
    text: the text of the link.
  """

  target: str
  text: str


class _ShownFamily(NamedTuple):
  """A family of methods in the legend of a section.

  Attributes:
    number: the index in `FAMILIES`.
    name: the name of the family.
  """

  number: int
  name: str


class _ShownText(NamedTuple):
  """A text whose tokens the page shows.

  Attributes:
    title: the method and the settings that wrote the text.
    record: the record of the text.
  """

  title: str
  record: dict


def page(
  sections: Sequence[Section],
  examples: ShownExamples,
  sources: Sequence[str] = (),
  *,
  tick: Callable[[], None] = lambda: None,
) -> str:
  """Returns the whole HTML file.

  Args:
    sections: one section or more.
    examples: records with traces, or no records.
    sources: paths from the page to the files that it is made from.
    tick: a function that is called after each figure.
  """

  def draw_panels(plot: Plot, name: str) -> str:
    """Returns the panels of a figure; `name` starts the ids of a section."""
    panels = ""
    for number, panel in enumerate(plot.panels):
      figure, tips = plot.draw(number)
      panels += inline(
        figure,
        tips,
        name=f"{name}-{plot.name}-{number}",
        label=f"{plot.title}: {panel.title}",
      )
    tick()
    return panels

  template = tables.load_template("page.html")
  return template.render(
    sections=sections,
    examples=examples,
    links=_links(sections, examples),
    files=[*sources, "rows.csv", "report.md"],
    draw_panels=draw_panels,
    families_of=_families,
    scrolls=_scrolls,
    style=STYLE + token_view.STYLE,
    script=SCRIPT,
    by_aside=_group_by_aside,
    by_source=_group_by_source(examples),
    legend=token_view.legend_html(token_view.kinds(examples.records)),
    to_html=tables.to_html,
    source_html=token_view.source_html,
    reference_html=token_view.reference_html,
    tokens_html=token_view.tokens_html,
  )


def _links(sections: Sequence[Section], examples: ShownExamples) -> list[_Link]:
  """Returns links to the sections; to the parts of a section that is alone."""
  if len(sections) == 1:
    parts = ("Findings", "Tables", "Figures")
    links = [_Link(f"s1-{part.lower()}", part) for part in parts]
  else:
    links = [
      _Link(f"s{number}", section.study.pair)
      for number, section in enumerate(sections, start=1)
    ]
  if examples.records:
    links.append(_Link("tokens", "Who wrote each token"))
  return links


def _families(section: Section) -> list[_ShownFamily]:
  """Returns the families of the methods of a section."""
  methods = {point.method for point in section.study.points}
  numbers = sorted({styles.family(method) for method in methods})
  return [_ShownFamily(number, FAMILIES[number].name) for number in numbers]


def _scrolls(table: Table, is_first: bool) -> bool:
  """Returns whether a table starts closed, in a box that scrolls."""
  if len(table.columns) > _MAX_COLUMNS:
    return True
  return len(table.lines) > _MAX_LINES and not is_first


def _group_by_aside(plots: Sequence[Plot]) -> list[tuple[str, list[Plot]]]:
  """Returns (heading, figures under that heading), in order."""
  groups = itertools.groupby(plots, lambda plot: plot.aside)
  return [(aside, list(group)) for aside, group in groups]


def _group_by_source(
  examples: ShownExamples,
) -> list[tuple[str, list[_ShownText]]]:
  """Returns (source, texts that were written from that source), in order."""
  shown = map(_ShownText, examples.titles, examples.records)
  groups = itertools.groupby(shown, lambda text: text.record["inputs"])
  return [(source, list(group)) for source, group in groups]


def inline(figure, tips: dict[str, str], name: str, label: str) -> str:
  """Returns a figure as an svg element in the fonts and colours of a page.

  The figure is closed.

  Args:
    figure: matplotlib's Figure.
    tips: texts by the gid of an artist; a reader who points at the artist sees
      the text.
    name: the beginning of all ids, which makes them unique in a page.
    label: what the figure shows, for readers who do not see it.
  """
  svg = _to_svg(figure)
  head, rest = svg.split(">", 1)
  # The page decides how large the figure is.
  head = _SIZE.sub("", head)
  svg = f'{head} role="img" aria-label="{html.escape(label)}">{rest}'
  for gid, tip in tips.items():
    point = f'<g id="{gid}" class="point"><title>{html.escape(tip)}</title>'
    svg = svg.replace(f'<g id="{gid}">', point, 1)
  svg = _ID.sub(rf"\g<1>{name}-", svg)
  svg = _FONT.sub("font-family: system-ui, sans-serif", svg)
  for number, family in enumerate(FAMILIES):
    svg = svg.replace(family.colour, f"var(--family-{number})")
  return svg


def _to_svg(figure) -> str:
  """Returns a figure as an svg element with letters as text; closes it."""
  plt, file = drawing.pyplot(), io.StringIO()
  with plt.rc_context({"svg.fonttype": "none"}):
    figure.savefig(
      file, format="svg", transparent=True, metadata={"Date": None}
    )
  plt.close(figure)
  svg = file.getvalue()
  # The declaration before the element belongs to a file of its own.
  svg = svg[svg.index("<svg") :]
  return _COMMENT.sub("", _METADATA.sub("", svg))
