"""Tables of points: all of them, over gamma, by position, and the slow ones.

`model` is the clock of modelled latency, None where c is not known.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import operator

from speccascade.study.report.frontier import IntervalEstimate, rate_estimate
from speccascade.study.report.groups import (
  METHOD,
  MeasuredPanel,
  MeasuredStudy,
  MethodLine,
  group_by,
  sort_by,
)
from speccascade.study.report.measured import Clock, Measured, metric_title
from speccascade.study.report.tables import (
  BY_POSITION,
  TEMPERATURE,
  Column,
  Table,
  lookup,
)

# The columns that name a point.
_POINT = (
  *METHOD,
  Column("name", "settings.method", only="csv"),
  TEMPERATURE,
  Column("alpha", "settings.alpha"),
  Column("gamma", "settings.gamma"),
)


def _acceptance_rate(point: Measured) -> IntervalEstimate | None:
  counts = point.counts
  if not counts.examined:
    return None
  return rate_estimate(counts.accepted, counts.examined)


_ACCEPTANCE = Column("acceptance", _acceptance_rate, 3)
_TOKENS = Column("tokens/block", "efficiency.mean_acceptance_length", 2)
PER_TOKEN = Column("latency per token", "per_token", 3, has_interval=True)
SECONDS = Column("seconds an answer", "seconds_per_answer", 4)
LENGTH = Column("relative length", "relative_length", 3, has_interval=True)


def _mean_of(*names: str) -> Callable[[Measured], float | None]:
  """Returns the function from a point to `Measured.mean` of some names."""
  return operator.methodcaller("mean", *names)


def _quality_column(metric: str) -> Column:
  def score(point: Measured):
    return point.score(metric)

  return Column(metric_title(metric), score, 1, has_interval=True)


def _modelled_columns(model: Clock | None) -> list[Column]:
  """Returns the column of modelled latency, none without its clock."""
  if model is None:
    return []

  def latency(point: Measured) -> float | None:
    return lookup(point.by(model), "latency", "value")

  return [Column("relative latency (modelled)", latency, 3)]


def gammas(study: MeasuredStudy, model: Clock | None) -> Table:
  """Returns the points of each method at one alpha over the gammas."""
  return Table(
    "gamma",
    "Block size",
    "Each method has the one alpha that was measured at most gammas.",
    (
      *_POINT,
      _ACCEPTANCE,
      _TOKENS,
      Column("relative latency", "latency", 3, has_interval=True),
      PER_TOKEN,
      SECONDS,
      LENGTH,
      *_modelled_columns(model),
      _quality_column(study.points[0].metric),
    ),
    [
      point
      for panel in study.panels
      for points in points_over_gamma(panel)
      for point in points
    ],
  )


def points_over_gamma(panel: MeasuredPanel) -> list[list[Measured]]:
  """Returns the points of each method at one alpha, by gamma.

  The alpha is the alpha that was measured at most gammas, and the middle one of
  several such alphas. Methods that were measured at one gamma are left out.
  """
  chosen = []
  for curve in panel.methods:
    # ("adaptive" is not a block size.)
    blocks = [
      point for point in curve.points if isinstance(point.settings.gamma, int)
    ]
    by_alpha = group_by(sort_by(blocks, ["alpha"]), ["alpha"])
    num_gammas = max(map(len, by_alpha), default=0)
    if num_gammas > 1:
      most = [points for points in by_alpha if len(points) == num_gammas]
      chosen.append(sort_by(most[len(most) // 2], ["gamma"]))
  return chosen


# The numbers of `efficiency.sharpness` as columns: the heading and the digits.
_SHARPNESS = {
  "entropy": ("entropy of pi", 3),
  "overshoot": ("max pi/p", 3),
  "largest_overshoot": ("largest max pi/p", 3),
  "outside_top_p": ("outside top-p .95", 4),
  "outside_min_p": ("outside min-p .05", 4),
}


def _sharpness_columns(points: Sequence[Measured]) -> list[Column]:
  """Returns the columns of `efficiency.sharpness`; none where no row has it."""
  if not any(row.sharpness for point in points for row in point.rows):
    return []

  return [
    Column(title, _mean_of("sharpness", name), digits)
    for name, (title, digits) in _SHARPNESS.items()
  ]


def points(study: MeasuredStudy, model: Clock | None) -> Table:
  """Returns every point with all of its numbers."""
  columns = [*_POINT, *map(_quality_column, study.metrics)]
  log_p = _mean_of("log_probs", "p1")
  if any(log_p(point) is not None for point in study.points):
    columns.append(Column("verifier's log p a token", log_p, 3))
  columns += _sharpness_columns(study.points)
  columns += [
    _ACCEPTANCE,
    BY_POSITION,
    Column("expected acceptance", "efficiency.expected_acceptance", 3),
    _TOKENS,
    Column("deferral rate", "efficiency.deferral_rate", 3),
    Column("rule defers", "efficiency.rule_deferral_rate", 3),
    Column("relative latency (measured)", "latency", 3, has_interval=True),
    PER_TOKEN,
    SECONDS,
    LENGTH,
    Column("speed-up (measured)", "speed.value", 2),
    Column("speed-up (predicted)", _mean_of("predicted_speedup"), 2),
    *_modelled_columns(model),
    Column("seeds", lambda point: len(point.rows), 0),
  ]
  return Table(
    "points",
    "All points",
    "Measured latency is the wall-clock time of the whole decode over the large"
    " model's time, with the two interleaved: seconds an answer over the large"
    " model's. Latency per token is the time per written token over the large"
    " model's time per token: a longer text takes longer. The relative length"
    " is the tokens of an answer over those of the large model's answer, EOS"
    " included. The predicted speed-up comes from the calls and their measured"
    " costs c, q2 and v. Modelled latency counts the same calls on a machine"
    " where a block costs one verifier step.",
    columns,
    study.points,
  )


def baselines(study: MeasuredStudy, model: Clock | None) -> Table:
  """Returns the points of the large model at other samplings."""
  return Table(
    "baselines",
    "The large model at other samplings",
    "What a method gains by drawing fewer unlikely tokens the large model may"
    " gain by itself. Latency is relative to the large model alone at the same"
    " sampling.",
    (
      *METHOD,
      Column("name", "settings.method", only="csv"),
      TEMPERATURE,
      *(
        Column(name, f"settings.{name}") for name in ("top_k", "top_p", "min_p")
      ),
      Column("gamma", "settings.gamma"),
      *map(_quality_column, study.metrics),
      *_sharpness_columns(study.baselines),
      Column("relative latency (measured)", "latency", 3, has_interval=True),
      PER_TOKEN,
      SECONDS,
      LENGTH,
      *_modelled_columns(model),
    ),
    study.baselines,
  )


def acceptance(study: MeasuredStudy) -> Table:
  """Returns acceptance by position, and the histogram of accepted drafts."""
  lines = []
  for point in study.points:
    num_blocks = point.counts.num_blocks
    if not num_blocks:
      continue
    # Rates start at the first draft, shares at blocks without accepted drafts.
    rates = [None, *point.efficiency["acceptance_by_position"]]
    by_position = zip(rates, point.counts.accepted_at)
    lines += [
      {
        "label": point.label,
        "settings": point.settings,
        "position": place,
        "rate": rate,
        "share": num / num_blocks,
      }
      for place, (rate, num) in enumerate(by_position)
    ]
  return Table(
    "acceptance",
    "Acceptance by position",
    "The share of examined drafts that were accepted, at each position of a"
    " block, and the share of blocks in which so many drafts were accepted.",
    (
      *_POINT,
      Column("position", "position", 0),
      Column("accepted / examined", "rate", 3),
      Column("blocks with so many accepted", "share", 3),
    ),
    lines,
  )


def ranks(study: MeasuredStudy) -> Table:
  """Returns the acceptance of trees by depth and rank, one line a depth."""
  lines = [
    {
      "label": point.label,
      "settings": point.settings,
      "depth": depth,
      "optimum": lookup(point, "efficiency", "share_of_optimum")
      if depth == 1
      else None,
      **{f"rank {rank}": rate for rank, rate in enumerate(rates, 1)},
    }
    for point in study.points
    for depth, rates in enumerate(
      point.efficiency.get("acceptance_by_rank", ()), 1
    )
  ]
  titles = dict.fromkeys(
    name for line in lines for name in line if name.startswith("rank ")
  )
  return Table(
    "ranks",
    "Trees: acceptance by depth and rank",
    "How often the child of each rank was accepted, over the blocks that"
    " examined the depth. The rank of a draft is its place among its siblings,"
    " from 1. The last column of a line that has a number is the last rank that"
    " was ever accepted there. The share of the optimum is the acceptance at"
    " the first depth over the largest that any exact verification reaches with"
    " drafts drawn so; it is known where log-probabilities were recorded.",
    (
      *_POINT,
      *(
        Column(name, f"settings.{name}")
        for name in ("tree", "drafts", "drawing", "verification")
      ),
      Column("depth", "depth", 0),
      *(Column(title, title, 3) for title in titles),
      Column("share of the optimum", "optimum", 3),
    ),
    lines,
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Slowdown(MethodLine):
  """A method with points slower than the large model, and the reasons.

  Attributes:
    slow: the points that are slower.
    large: the point of the large model alone, or None.
  """

  slow: Sequence[Measured]
  large: Measured | None

  @functools.cached_property
  def point(self) -> Measured:
    """The fastest of the slow points, whose numbers the line has."""
    return min(self.slow, key=lambda point: point.latency.value)

  @property
  def tokens_per_block(self) -> float | None:
    """The mean acceptance length."""
    return self.point.efficiency["mean_acceptance_length"]

  @property
  def predicted_block(self) -> float | None:
    """The cost of a block in verifier steps, by its calls and their costs.

    None where no cost is known.
    """
    # The large model writes a token in a step, so the predicted speed-up is
    # the tokens of a block over the block's cost in steps.
    predicted = self.point.mean("predicted_speedup")
    tokens = self.tokens_per_block
    return tokens / predicted if predicted and tokens else None

  @property
  def measured_block(self) -> float | None:
    """The time of a block, in verifier steps of the large model alone.

    A block's time is the time of an example without the encoders, over the
    blocks of an example. A step's time is the large model's time of an example
    without its encoder, over the tokens of an example. The timed examples may
    be fewer than the counted examples: then the result holds for blocks of
    average length. None where times, costs or blocks are missing.
    """
    counts, costs = self.point.counts, self.point.rows[0].costs
    seconds = self.point.mean("latency", "walltime_s")
    if self.large is None or self.large.latency is None:
      return None
    if seconds is None or costs is None or not counts.num_blocks:
      return None
    large_seconds = seconds / self.point.latency.value
    # Prefill encodes a source; its costs are in verifier steps.
    verifier_prefill = costs.verifier_prefill * costs.verifier_step_s
    drafter_prefill = costs.drafter_prefill * costs.verifier_step_s
    large_tokens = self.large.efficiency["tokens_per_example"]
    step = (large_seconds - verifier_prefill) / large_tokens
    if step <= 0:
      return None
    num_blocks = counts.num_blocks / counts.num_examples
    block = (seconds - (verifier_prefill + drafter_prefill)) / num_blocks
    return block / step


def slowdowns(panel: MeasuredPanel) -> list[Slowdown]:
  """Returns the speculative methods with points slower than the large model.

  A point is slower only if the whole interval of its latency is above 1.
  """
  lines = []
  for curve in panel.curves:
    slow = [p for p in curve.points if p.latency and p.latency.bounds[0] > 1]
    if slow and curve.settings.block_width is not None:
      lines.append(Slowdown(curve, slow, panel.large))
  return lines


def _slow_alphas(line: Slowdown) -> str:
  alphas = (point.settings.alpha for point in line.slow)
  return " ".join(f"{alpha:g}" for alpha in alphas if alpha is not None)


def losses(study: MeasuredStudy, model: Clock | None) -> Table:
  """Returns the speculative methods slower than the large model, and why."""

  def cost_of_pass(line: Slowdown) -> float | None:
    return line.point.mean("costs", "v", line.settings.block_width)

  def modelled(line: Slowdown) -> float | None:
    return model and lookup(line.point.by(model), "latency", "value")

  return Table(
    "losses",
    "Where speculation loses",
    "Speculative methods that have points slower than the large model alone,"
    " with the numbers of the fastest of these points. c, v and the costs of"
    " blocks are in steps of the large model: c is a drafter step, and v is the"
    " pass over gamma + 1 tokens. The time of a block beyond its calls is the"
    " time of the loop around them.",
    (
      *METHOD,
      TEMPERATURE,
      Column("gamma", "settings.gamma"),
      Column("alphas", _slow_alphas),
      Column("least latency", "point.latency", 3, has_interval=True),
      Column("per token", "point.per_token", 3, has_interval=True),
      Column("seconds an answer", "point.seconds_per_answer", 4),
      Column("length", "point.relative_length", 3, has_interval=True),
      Column("acceptance", "point.efficiency.acceptance_rate", 3),
      Column("tokens/block", "tokens_per_block", 2),
      Column("c", lambda line: line.point.mean("costs", "c"), 3),
      Column("v", cost_of_pass, 2),
      Column("block, predicted", "predicted_block", 2),
      Column("block, measured", "measured_block", 2),
      Column("latency if v = 1 (modelled)", modelled, 3),
    ),
    [line for panel in study.panels for line in slowdowns(panel)],
  )
