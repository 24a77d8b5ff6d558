"""Where speculation is slower than the large model alone, and why."""

import dataclasses

from speccascade.inference.rows.results import Settings
from speccascade.report.frontier import IntervalEstimate
from speccascade.report.groups import METHOD, PointGroup
from speccascade.report.measured import Clock, Measured
from speccascade.report.tables import TEMPERATURE, Column, Table


@dataclasses.dataclass(frozen=True)
class Slowdown:
  """A method with points slower than the large model, and the reasons.

  All numbers but `alphas` are numbers of the fastest of those points.

  Attributes:
    settings: the settings of the method's first point.
    label: the method's name in the paper, with its variant.
    alphas: the alphas of the slow points.
    latency: the relative latency.
    per_token: the relative latency per token; None where rows do not hold it.
    acceptance_rate: accepted over examined drafts, or None.
    tokens_per_block: the mean acceptance length, or None.
    c: the cost of a drafter step in verifier steps, or None.
    v: the cost of a verifier pass over gamma + 1 tokens in verifier steps, or
      None.
    predicted_block: the cost of a block in verifier steps, from the calls that
      a block makes and their measured costs; None where no cost is known.
    measured_block: the time of a block in verifier steps of the large model
      alone, without the time of the encoders; None where it is not known.
    modelled: the relative latency that the method would have if v were 1, or
      None.
  """

  settings: Settings
  label: str
  alphas: list[float]
  latency: IntervalEstimate
  per_token: IntervalEstimate | None
  acceptance_rate: float | None
  tokens_per_block: float | None
  c: float | None
  v: float | None
  predicted_block: float | None
  measured_block: float | None
  modelled: float | None


def slowdowns(panel: PointGroup, model: Clock | None) -> list[Slowdown]:
  """Returns the speculative methods with points slower than the large model.

  A point is slower only if the whole interval of its latency is above 1.

  Args:
    panel: the points of one temperature.
    model: the clock of modelled latency, or None.
  """
  lines = []
  for curve in panel.curves:
    width = curve.settings.block_width
    slow = [p for p in curve.points if p.latency and p.latency.bounds[0] > 1]
    if width is None or not slow:
      continue
    least = min(slow, key=lambda point: point.latency.value)
    tokens = least.efficiency["mean_acceptance_length"]
    # The large model writes a token in a step, so the predicted speed-up is
    # the tokens of a block over the block's cost in steps.
    predicted = least.mean("predicted_speedup")
    modelled = model and model.latency_of(least)
    alphas = (point.settings.alpha for point in slow)
    lines.append(
      Slowdown(
        settings=curve.settings,
        label=curve.label,
        alphas=[alpha for alpha in alphas if alpha is not None],
        latency=least.latency,
        per_token=least.per_token,
        acceptance_rate=least.efficiency["acceptance_rate"],
        tokens_per_block=tokens,
        c=least.mean("costs", "c"),
        v=least.mean("costs", "v", width),
        predicted_block=tokens / predicted if predicted and tokens else None,
        measured_block=measured_block(least, panel.large),
        modelled=modelled and modelled.value,
      )
    )
  return lines


def measured_block(point: Measured, large: Measured | None) -> float | None:
  """Returns the measured time of a block, in steps of the large model alone.

  A block's time is the time of an example without the encoders, over the blocks
  of an example. A step's time is the large model's time of an example without
  its encoder, over the tokens of an example. The timed examples may be fewer
  than the counted examples: then the result holds for blocks of average length.

  Args:
    point: a point of a method with blocks.
    large: the point of the large model alone, or None.

  Returns:
    The time in steps; None where times, costs or blocks are missing.
  """
  counts, costs = point.counts, point.rows[0].costs
  seconds = point.mean("latency", "walltime_s")
  if large is None or large.latency is None:
    return None
  if seconds is None or costs is None or not counts.num_blocks:
    return None
  large_seconds = seconds / point.latency.value
  # Prefill encodes a source; its costs are in verifier steps.
  verifier_prefill = costs.verifier_prefill * costs.verifier_step_s
  drafter_prefill = costs.drafter_prefill * costs.verifier_step_s
  large_tokens = large.efficiency["tokens_per_example"]
  step = (large_seconds - verifier_prefill) / large_tokens
  if step <= 0:
    return None
  num_blocks = counts.num_blocks / counts.num_examples
  block = (seconds - (verifier_prefill + drafter_prefill)) / num_blocks
  return block / step


def _join_alphas(line: Slowdown) -> str:
  return " ".join(f"{alpha:g}" for alpha in line.alphas)


def table(study: PointGroup, model: Clock | None) -> Table:
  """Returns the speculative methods slower than the large model, and why.

  Args:
    study: all points of a pair.
    model: the clock of modelled latency, or None.
  """
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
      Column("alphas", _join_alphas),
      Column("least latency", "latency", 3, has_interval=True),
      Column("per token", "per_token", 3, has_interval=True),
      Column("acceptance", "acceptance_rate", 3),
      Column("tokens/block", "tokens_per_block", 2),
      Column("c", "c", 3),
      Column("v", "v", 2),
      Column("block, by its calls", "predicted_block", 2),
      Column("block, measured", "measured_block", 2),
      Column("latency if v = 1 (modelled)", "modelled", 3),
    ),
    [line for panel in study.panels for line in slowdowns(panel, model)],
  )
