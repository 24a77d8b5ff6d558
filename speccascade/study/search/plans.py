"""The plan of a sweep: which methods are measured at which settings."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Annotated, Any, Literal, TypeVar

from speccascade.decoding.laws.sampling import Sampling, SamplingSettings
from speccascade.decoding.programs import methods
from speccascade.decoding.records.decode_settings import BlockSize
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.generate.points import point_checks
from speccascade.generate.points.point import Point
from speccascade.settings import fields, in_words
from speccascade.settings.fields import names_of
from speccascade.study.search import grid
from speccascade.study.search.draft_kinds import KINDS
from speccascade.study.search.grid import Curve, Grid

_VERIFIER = "verifier"
DEFAULT, ADAPTIVE, ONE = "default", "adaptive", "one"

# The methods that have the large model's own distribution.
_LOSSLESS = [
  name
  for name, method in methods.METHODS.items()
  if method.is_lossless and name != "drafter"
]

_Method = Annotated[str, methods.find]
_T = TypeVar("_T")
Several = Annotated[Sequence[_T], fields.NOT_EMPTY]


def default_methods(
  num_drafters: int = 1, *, fitted: bool = False
) -> list[str]:
  """Returns the names of the methods that need at most `num_drafters`.

  Args:
    num_drafters: the number of drafters that there are.
    fitted: whether there are parameters of learned rules.
  """
  return [
    name
    for name, method in methods.METHODS.items()
    if method.num_drafters <= num_drafters
    if fitted or not method.has_parameters
  ]


@fields.checked
@dataclasses.dataclass(frozen=True)
class Plan:
  """Which points a sweep measures; its values are checked.

  Attributes:
    methods: names in `METHODS`; None takes all methods that the drafters allow.
      The drafter alone and the verifier alone are always measured; with draft
      heads, which write nothing alone, the verifier alone is.
    alphas: "default" takes each method's `default_grid`, "adaptive" looks for
      alphas between measured ones, and "one" takes each method's own default.
      {method: values} names alphas; a method that it lacks takes its default
      grid.
    budget: the number of points of a curve in an adaptive sweep.
    gammas: block sizes.
    temperatures: 0 is greedy.
    seeds: seeds of the keys.
    baselines: samplings of the large model alone, with which methods that
      change its distribution are to be compared: fields of `SamplingSettings`,
      as in {"top_p": 0.9}, of which the temperature is the highest of
      `temperatures` where it is not given. {"method": "spec_decode"} among them
      draws from the same distribution faster; another lossless method does too.
  """

  methods: Several[_Method] | None = None
  alphas: (
    Literal["default", "adaptive", "one"] | Mapping[_Method, Sequence[float]]
  ) = DEFAULT
  budget: fields.Size = 8
  gammas: Several[BlockSize] = (5,)
  temperatures: Several[Annotated[float, fields.Bounds(0)]] = (0.0, 1.0)
  seeds: Several[fields.NonNegative] = (0,)
  baselines: Sequence[Mapping[str, Any]] = ()

  def __post_init__(self):
    for baseline in self.baselines:
      _check_baseline(baseline)
    if any(_is_greedy(temperature) for temperature in self.temperatures):
      return
    for name in self.methods or ():
      if methods.find(name).greedy_only:
        raise ValueError(
          f"{name} is defined at temperature 0 only; TEMPERATURES has"
          f" {', '.join(f'{t:g}' for t in self.temperatures)}"
        )

  @property
  def curve_budget(self) -> int:
    """The number of points of an adaptive curve; 0 in any other sweep."""
    return self.budget if self.alphas == ADAPTIVE else 0

  def curves(
    self,
    common: Point,
    vocab_size: int,
    names: Sequence[str],
    *,
    always: Sequence[str] = KINDS[LanguageModel].always,
  ) -> list[Curve]:
    """Returns the curves of a sweep, each curve once.

    Curves of the methods in `always` are among them. `grid.curves` says which
    combinations of settings have a curve. Each method gets the shared settings
    that it uses; see `Point.of`.

    Args:
      common: the settings that all points share. The plan's own settings take
        the place of its method, alpha, gamma and temperature.
      vocab_size: the number of rows of the models' vocabulary.
      names: the names of the methods, used where the plan names none.
      always: the methods that are measured whatever the plan names; see
        `draft_kinds.DraftKind`.

    Raises:
      ValueError: a setting is out of range, or no method uses it.
    """
    names = self.methods or names
    # Settings are checked for all methods together before any curve is made, so
    # that a mistake costs no time.
    named = self._named_grids(names, vocab_size)
    every = [*always, *names]
    point_checks.check_shared(common, every)
    curves = grid.curves(
      common,
      every,
      lambda point: self._grid(point, named, vocab_size),
      temperatures=self.temperatures,
      gammas=self.gammas,
      seeds=self.seeds,
    )
    known = {(curve.base, curve.seed) for curve in curves}
    return curves + [
      curve
      for curve in self._baseline_curves(common)
      if (curve.base, curve.seed) not in known
    ]

  def _baseline_curves(self, common: Point) -> list[Curve]:
    """Returns a curve of one point for each baseline, gamma and seed."""
    curves = {}
    for baseline in self.baselines:
      settings = {"temperature": max(self.temperatures)} | baseline
      name = settings.pop("method", _VERIFIER)
      for gamma, seed in itertools.product(self.gammas, self.seeds):
        if _is_greedy(settings["temperature"]):
          settings["temperature"] = 0.0
        base = common.of(name, gamma=gamma, **settings)
        curves[base, seed] = Curve(base, seed, Grid(()))
    return list(curves.values())

  def _grid(
    self, point: Point, named: Mapping[str, Grid], vocab_size: int
  ) -> Grid:
    """Returns the alphas that are planned for a method and its settings."""
    if self.alphas == ONE:
      return Grid(())
    # What the user wrote down comes before what the method declares.
    whole = named.get(point.method) or grid.default_grid(
      point.spec, vocab_size, greedy=point.sampling.greedy
    )
    return grid.coarsen(whole) if self.alphas == ADAPTIVE else whole

  def _named_grids(
    self, names: Sequence[str], vocab_size: int
  ) -> dict[str, Grid]:
    """Returns the grids of the methods that `alphas` names, by method."""
    if isinstance(self.alphas, str):
      return {}
    named = {}
    for name in self.alphas:
      if name not in names:
        raise ValueError(
          f"ALPHAS has values for {name}, which METHODS leaves out"
        )
      named[name] = grid.custom_grid(name, self.alphas[name], vocab_size)
    return named


def _check_baseline(baseline: Mapping[str, Any]):
  """Raises SettingError unless a baseline is a sampling of the large model."""
  known = [*names_of(SamplingSettings), "method"]
  for name in baseline:
    if name not in known:
      fault = f" has {name!r}; {in_words.suggest(name, known)}"
      raise fields.SettingError("baselines", fault, Plan)
  method = baseline.get("method", _VERIFIER)
  if method not in _LOSSLESS:
    fault = f" has method {method!r}; wanted one of {', '.join(_LOSSLESS)}"
    raise fields.SettingError("baselines", fault, Plan)


def _is_greedy(temperature: float) -> bool:
  return Sampling.create(temperature).greedy
