"""A report: its sections, and the folder of files that they become."""

import base64
from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
import math
import os
import pathlib

from speccascade.generate import token_view
from speccascade.runtime import files, folders
from speccascade.runtime.progress import ProgressBar
from speccascade.study.report import (
  block_figures,
  comparisons,
  figures,
  findings,
  folder_rows,
  plots,
  point_tables,
  shown_examples,
  styles,
  tables,
  templates,
)
from speccascade.study.report.groups import (
  MeasuredPanel,
  MeasuredStudy,
  studies,
)
from speccascade.study.report.measured import (
  REFERENCE,
  SMALL,
  Clock,
  measured_clock,
  modelled_clock,
)
from speccascade.study.report.plots import Plot
from speccascade.study.report.shown_examples import ShownExamples
from speccascade.study.report.tables import Table
from speccascade.study.rows import results
from speccascade.study.rows.results import ResultRow

_GAMMA = 5  # the gamma of the papers
_LONG = 200  # lines; Markdown has a longer table in its CSV alone
# On the page a table with more lines or columns starts closed, and scrolls.
_MAX_LINES, _MAX_COLUMNS = 60, 14


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
  """The part of a report that is about one study, in the order of a page.

  Attributes:
    study: all points of a pair on a task.
    cost_ratio: c of modelled latency; None models nothing.
    prefix: the beginning of the names of the section's files; empty where the
      report has one section.
  """

  study: MeasuredStudy
  cost_ratio: float | None
  prefix: str = ""

  @property
  def clocks(self) -> tuple[Clock, ...]:
    """Measured latency, and modelled latency where c is known."""
    measured = measured_clock(self.study.lengths_differ)
    return (measured, self._model) if self._model else (measured,)

  @property
  def _model(self) -> Clock | None:
    if not self.cost_ratio:
      return None
    return modelled_clock(self.cost_ratio, self.study.lengths_differ)

  @property
  def about(self) -> str:
    """A line on the models, the settings and the device."""
    study = self.study
    return templates.sentence(
      "about",
      study.settings,
      [_describe_model(study, role) for role in (REFERENCE, SMALL)],
      study.gammas,
      max((x.latency.num_examples for x in study.rows if x.latency), default=0),
      max(len(point.rows) for point in study.points),
      study.rows[0].environment.get("device"),
    )

  @property
  def versions(self) -> str:
    """A line on the libraries that measured the rows, and compilers' flags."""
    return results.describe_versions(self.study.rows[0].environment)

  @functools.cached_property
  def doubts(self) -> list[str]:
    """Sentences on a pair that has little to gain, and what to do."""
    return findings.doubts(self.study)

  @functools.cached_property
  def leads(self) -> list[findings.Lead]:
    """Which differences are significant, a line for each temperature."""
    return findings.leads(self.study.panels, self.clocks)

  @property
  def untimed(self) -> str:
    """A line for rows that were not timed, or nothing."""
    return findings.untimed(self.study, self.cost_ratio)

  @functools.cached_property
  def findings(self) -> dict[str, list[str]]:
    """Title of a temperature -> sentences on what it shows."""
    return findings.findings(self.study, self.clocks)

  @functools.cached_property
  def notices(self) -> list[str]:
    """Sentences on where speculation loses, and why."""
    return findings.notices(self.study)

  @functools.cached_property
  def tables(self) -> list[Table]:
    """The tables in order.

    A reader looks for Table 2 first, then for what explains it; the long tables
    of all points come last.
    """
    study, model, tables = self.study, self._model, []
    for timed in map(study.by, self.clocks):
      tables.append(comparisons.speedup_table(timed))
      tables.append(comparisons.gap_table(timed))
      tables.append(comparisons.truncation_table(timed))
    tables.append(point_tables.baselines(study, model))
    tables.append(point_tables.losses(study, model))
    tables.append(point_tables.gammas(study, model))
    tables.append(point_tables.points(study, model))
    tables.append(point_tables.acceptance(study))
    tables.append(point_tables.ranks(study))
    return [table for table in tables if table.lines]

  @functools.cached_property
  def plots(self) -> list[Plot]:
    """The figures in order; the first is shown first on the page.

    A page with a dozen figures for each gamma would bury the main ones, so the
    figures of other gammas are folded under a heading of their own.
    """
    panels, gammas = self.study.panels, self.study.gammas
    if len(gammas) < 2:
      return _plots_of_panels(panels, self.clocks)
    main, shown, hidden = _main_gamma(self.study), [], []
    for gamma in gammas:
      of_gamma = [panel.at_gamma(gamma) for panel in panels]
      # A temperature may lack a gamma.
      of_gamma = [panel for panel in of_gamma if panel.points]
      for plot in _plots_of_panels(of_gamma, self.clocks):
        if gamma == main:
          shown.append(dataclasses.replace(plot, gamma=gamma))
        else:
          aside = f"Figures at gamma {gamma}"
          hidden.append(dataclasses.replace(plot, gamma=gamma, aside=aside))
    ablation = block_figures.gamma_ablation(panels, self.clocks)
    return [*shown, *([ablation] if ablation.panels else []), *hidden]


def _describe_model(
  study: MeasuredStudy, role: str
) -> tuple[str, str, int | None, list[tuple]]:
  """Returns a model's name, kind and size, and its times by temperature."""
  times = []
  for panel in study.panels:
    point = panel.first(role)
    if point is not None and point.milliseconds is not None:
      is_greedy = panel.settings.temperature == 0
      when = "greedy" if is_greedy else f"at {panel.title}"
      times.append((when, *point.milliseconds))
  size = study.rows[0].num_parameters.get(role)
  kinds = (row.drafter_kind for row in study.rows if role == SMALL)
  kind = next(filter(None, kinds), "")
  return getattr(study.settings, role), kind, size, times


def sections_of(
  rows: Sequence[ResultRow],
  *,
  metric: str | None = None,
  cost_ratio: float | None = None,
  exact: Sequence[ResultRow] = (),
) -> list[Section]:
  """Returns a section for each pair and task.

  Args:
    rows: one row or more.
    metric: the metric of figures and summaries; None takes the first known
      metric that all rows have.
    cost_ratio: c of modelled latency, the cost of a drafter step in verifier
      steps; None takes the measured c.
    exact: more rows of the verifier alone, which lengths are relative to.

  Raises:
    ValueError: there are no rows, a point is there twice, a metric is missing,
      or the cost ratio is not positive.
  """
  if not rows:
    raise ValueError("there are no rows; run a sweep first")
  if len({row.key for row in rows}) != len(rows):
    raise ValueError("a point is there twice; remove one of the equal rows")
  if cost_ratio is not None and not 0 < cost_ratio < math.inf:
    raise ValueError(f"cost ratio is {cost_ratio:g}; wanted a positive number")
  pairs = studies(rows, metric, exact)
  # All files are in one folder. Numbers keep the files of several studies
  # apart; a single study has plain names.
  return [
    Section(
      study,
      cost_ratio or study.cost_ratio,
      prefix=f"{number}_" if len(pairs) > 1 else "",
    )
    for number, study in enumerate(pairs, start=1)
  ]


def _plots_of_panels(
  panels: Sequence[MeasuredPanel], clocks: Sequence[Clock]
) -> list[Plot]:
  """Returns the figures of some panels that have something to show."""
  plots = []
  for clock in clocks:
    timed = [panel.by(clock) for panel in panels]
    plots.append(figures.quality_latency(timed))
    plots.append(figures.by_family(timed))
    plots.append(figures.truncated(timed))
  plots.append(figures.quality_deferral(panels))
  plots.append(block_figures.acceptance_by_position(panels))
  plots.append(block_figures.acceptance_histogram(panels))
  return [plot for plot in plots if plot.panels]


def _main_gamma(study: MeasuredStudy) -> int:
  """Returns the gamma that most points have."""
  middle = study.gammas[len(study.gammas) // 2]

  def rank(gamma: int) -> tuple[int, bool, bool]:
    num_points = sum(point.settings.gamma == gamma for point in study.points)
    return num_points, gamma == _GAMMA, gamma == middle

  return max(study.gammas, key=rank)


def from_folder(
  results_dir: pathlib.Path,
  output_dir: pathlib.Path | None = None,
  *,
  metric: str | None = None,
  cost_ratio: float | None = None,
  exact_dir: pathlib.Path | None = None,
  progress: bool = True,
  say: Callable[[str], object] = lambda line: None,
) -> pathlib.Path:
  """Writes the report of a folder of results.

  Args:
    results_dir: the folder of a sweep or of the quick start, with rows.jsonl
      and perhaps examples.jsonl; or the folder of a decode, with metrics.json
      and predictions.jsonl. Each file may be compressed, with the ending .gz.
    output_dir: where the report goes; None takes `results_dir`/report.
    metric: as in `sections_of`.
    cost_ratio: as in `sections_of`.
    exact_dir: the folder of a decode or of a sweep that has the verifier alone
      at the same sampling: the lengths of answers are relative to it. None
      takes the rows of `results_dir`.
    progress: whether to show a bar.
    say: called with each line of `summary`.

  Returns:
    The path of the page.

  Raises:
    ValueError: the folder has no rows, or the rows cannot be reported.
  """
  sources = folder_rows.find(results_dir)
  rows, examples = folder_rows.read(*sources)
  folder = results_dir / "report" if output_dir is None else output_dir
  folders.check_files(folder, f"the report's folder {folder}")
  exact = [] if exact_dir is None else folder_rows.read_exact(exact_dir, rows)
  sections = sections_of(
    rows, metric=metric, cost_ratio=cost_ratio, exact=exact
  )
  for name, text in texts(rows, sections).items():
    files.write_whole(folder / name, text)
  num_plots = sum(len(section.plots) for section in sections)
  # Each figure is drawn three times: to its own files, and for wide and narrow
  # windows into the page.
  with ProgressBar(
    total=2 * num_plots,
    desc="draw",
    unit="figure",
    disable=not progress,
    delay=1,
  ) as bar:
    for section in sections:
      for plot in section.plots:
        plot.save(folder / f"{section.prefix}{plot.name}")
        bar.update()
    # Relative links still work after the folder was moved or uploaded.
    links = [os.path.relpath(path, folder) for path in sources]
    html = page(sections, examples, links, tick=bar.update)
  # The page is written last: where it is, everything that it links to is, too.
  files.write_whole(folder / "index.html", html)
  for section in sections:
    for line in summary(section):
      say(line)
  return folder / "index.html"


def summary(section: Section) -> list[str]:
  """Returns what a section shows in lines, with the settings of each point.

  That is what it begins with; of a single point, its quality.
  """
  lines = [
    " ".join(filter(None, (lead.sentence, lead.settings)))
    for lead in section.leads
  ]
  points = section.study.points
  if not lines and len(points) == 1:
    [point] = points
    words = ", ".join(point.settings.words)
    score = f"{point.quality.value:.2f} {section.study.metric}"
    more = templates.sentences("one_point", point)
    line = f"{point.rows[0].label} ({words}): {score}"
    lines.append("; ".join([line, *more]))
  return lines


def texts(
  rows: Sequence[ResultRow], sections: Sequence[Section]
) -> dict[str, str]:
  """Returns the tables and report.md, by the names of their files."""
  by_name = {
    f"{section.prefix}{table.name}.csv": tables.to_csv(
      table.lines, table.columns
    )
    for section in sections
    for table in section.tables
  }
  by_name["rows.csv"] = tables.to_csv(rows, tables.row_columns(rows))
  by_name["report.md"] = markdown(sections)
  return by_name


def markdown(sections: Sequence[Section]) -> str:
  """Returns report.md."""
  text = templates.load("study/report/report.md").render(
    sections=sections, longest=_LONG, to_markdown=tables.markdown
  )
  return text.rstrip() + "\n"


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

  def images(plot: Plot) -> list[str]:
    """Returns addresses of the figure for wide and for narrow windows."""
    addresses = [_image(plot, width) for width in (plots.WIDTH, plots.NARROW)]
    tick()
    return addresses

  return templates.load("study/report/page.html").render(
    sections=sections,
    examples=examples,
    files=[*sources, "rows.csv", "report.md"],
    images=images,
    scrolls=_scrolls,
    by_aside=_by_aside,
    title=shown_examples.title,
    tokens=token_view,
    to_html=tables.to_html,
  )


def _image(plot: Plot, width: float) -> str:
  """Returns a figure as the address of an image, which holds the image."""
  figure = plot.draw(width, has_title=False)
  content = base64.b64encode(styles.file_bytes(figure, "svg", dpi="figure"))
  styles.pyplot().close(figure)
  return f"data:image/svg+xml;base64,{content.decode()}"


def _scrolls(table: Table, is_first: bool) -> bool:
  """Returns whether a table starts closed, in a box that scrolls."""
  if len(table.columns) > _MAX_COLUMNS:
    return True
  return len(table.lines) > _MAX_LINES and not is_first


def _by_aside(plots: Sequence[Plot]) -> list[tuple[str, list[Plot]]]:
  """Returns (heading, figures under that heading), in order."""
  groups = itertools.groupby(plots, lambda plot: plot.aside)
  return [(aside, list(group)) for aside, group in groups]
