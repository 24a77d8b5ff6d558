"""Sweeps a pair in a notebook: what `api.Pair.sweep` does and returns."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import tempfile

from speccascade.generate.points.point import Point
from speccascade.generate.session import Session
from speccascade.runtime import folders, signals
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.report import tables
from speccascade.study.report.plots import Plot
from speccascade.study.report.tables import Column
from speccascade.study.rows.results import ResultRow
from speccascade.study.search import sweeps
from speccascade.study.search.plans import Plan
from speccascade.study.search.shown import Shown


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
  """The points of a sweep. A notebook shows them as a table.

  Attributes:
    rows: a `ResultRow` for each point; each has quality, counts and latency.
    metric: the name of the score in the figure.
  """

  rows: tuple[ResultRow, ...]
  metric: str

  @classmethod
  def of(
    cls,
    session: Session,
    common: Point,
    *,
    methods: Sequence[str],
    alphas: str | Sequence[float] | Mapping[str, Sequence[float]],
    num_timed: int | None,
    metrics: Sequence[str],
    repeats: int,
    **planned,
  ) -> "Sweep":
    """Returns the points of a plan, measured; see `Pair.sweep`.

    Args:
      session: the models, and the examples with their references.
      common: the settings that all points share.
      methods: names in `METHODS`.
      alphas: as in `Plan`, or alphas of all methods that use one.
      num_timed: examples that are timed; None times all.
      metrics: names of metrics.
      repeats: how often each example is timed.
      **planned: further fields of `Plan`.
    """
    if not isinstance(alphas, str | Mapping):
      values = tuple(alphas)
      uses = (x for x in methods if common.of(x, alpha=None).spec.uses_alpha)
      alphas = {name: values for name in uses}
    plan = Plan(methods=methods, alphas=alphas, **planned)
    num = len(session.examples) if num_timed is None else num_timed
    measuring = Measuring(metrics=metrics, num_timed=num, repeats=repeats)
    studies = sweeps.Studies(Study(session, measuring))
    size = session.pair.verifier_lm.vocab_size
    curves = plan.curves(common, size, plan.methods)
    for curve in curves:
      studies.check(curve)
    with (
      _in_a_folder(studies.study) as study,
      folders.sole_writer(study.run.folder, "output_dir"),
      signals.catch() as stop,
    ):
      outcome = sweeps.measure(
        sweeps.Studies(study), curves, plan.curve_budget, Shown(0), stop
      )
    if outcome.stop:
      raise KeyboardInterrupt
    rows = tuple(outcome.rows)
    return cls(rows, next(iter(rows[0].quality)))

  @functools.cached_property
  def figure(self) -> Plot:
    """Quality against speed; a notebook shows it, and `save` writes it."""
    from speccascade.study.report import figures  # which imports pandas

    return figures.of_rows(self.rows, self.metric)

  @property
  def _columns(self) -> list[Column]:
    """The columns of a trade-off, and those of further metrics."""
    known = ("bleu", "valid")
    further = [name for name in self.rows[0].quality if name not in known]
    columns = [
      Column(name, lambda row, name=name: row.quality[name]["value"], 1)
      for name in further
    ]
    return [*tables.TRADE_OFF, *columns]

  def __repr__(self) -> str:
    return tables.markdown(self.rows, self._columns)

  def _repr_html_(self) -> str:
    return tables.to_html(self.rows, self._columns)


@contextlib.contextmanager
def _in_a_folder(study: Study) -> Iterator[Study]:
  """Yields a study whose run has a folder, a temporary one if it names none."""
  if study.run.output_dir is not None:
    yield study
    return
  with tempfile.TemporaryDirectory(prefix="speccascade_sweep_") as folder:
    run = dataclasses.replace(study.run, output_dir=folder)
    yield study.with_session(run=run)
