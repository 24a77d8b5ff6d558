"""Where speculation loses to the large model alone, and why."""

from speccascade.report.groups import PointGroup
from speccascade.report.measured import Clock, Measured
from speccascade.report.tables import METHOD, TEMPERATURE, Column, Table


def slowdowns(panel: PointGroup, model: Clock | None) -> list[dict]:
  """Returns the speculative methods with points surely slower than one.

  Returns:
    A method slower than the large model, and the reasons:
      settings: of its first point.
      label: for people.
      alphas: of the points that lose.
      latency: the least relative latency of those that lose.
      per_token: of that point, a token; None where rows do not say.
      acceptance_rate: of that point, like what follows.
      tokens_per_block: its mean acceptance length.
      c: cost of a drafter step.
      v: cost of a verifier pass over gamma + 1 tokens.
      predicted_block: cost of a block by its calls, in verifier steps.
      measured_block: what a block took, in verifier steps of the large model
        alone; encoders taken off both.
      modelled: relative latency if v were 1.
  """
  lines = []
  for curve in panel.curves:
    slow = [p for p in curve.points if p.latency and p.latency.surely[0] > 1]
    gamma = curve.settings.gamma
    if gamma is None or not slow:
      continue
    least = min(slow, key=lambda point: point.latency.value)
    tokens = least.efficiency["mean_acceptance_length"]
    predicted = least.mean("predicted_speedup")
    modelled = model and model.of(least)
    alphas = (point.settings.alpha for point in slow)
    lines.append(
      {
        "settings": curve.settings,
        "label": curve.label,
        "alphas": [alpha for alpha in alphas if alpha is not None],
        "latency": least.latency,
        "per_token": least.per_token,
        "acceptance_rate": least.efficiency["acceptance_rate"],
        "tokens_per_block": tokens,
        "c": least.mean("costs", "c"),
        "v": least.mean("costs", "v", gamma + 1),
        "predicted_block": tokens / predicted if predicted and tokens else None,
        "measured_block": measured_block(least, panel.large),
        "modelled": modelled and modelled.value,
      }
    )
  return lines


def measured_block(point: Measured, large: Measured | None) -> float | None:
  """Returns what a block took, in verifier steps as the large model ran them.

  Seconds an example, less the encoders', over blocks an example; that over the
  same for the large model's steps. Timed examples may be fewer than those that
  the counts are of: then it holds for blocks of average length.
  """
  counts, costs = point.counts, point.rows[0].costs
  seconds = point.mean("latency", "walltime_s")
  if None in (large and large.latency, seconds, costs) or not counts.num_blocks:
    return None
  alone = seconds / point.latency.value
  unit = costs.verifier_step_s
  verifier = costs.verifier_prefill * unit
  both = verifier + costs.drafter_prefill * unit
  step = (alone - verifier) / large.efficiency["tokens_per_example"]
  blocks = counts.num_blocks / counts.num_examples
  return (seconds - both) / blocks / step if step > 0 else None


def table(study: PointGroup, model: Clock | None) -> Table:
  """Returns the speculative methods slower than the large model, and why."""
  return Table(
    "losses",
    "Where speculation loses",
    "Speculative methods with points slower than the large model alone; the"
    " fastest of those points. c, v and blocks are in steps of the large model:"
    " c a drafter step, v the pass over gamma + 1 tokens. What a block takes"
    " beyond its calls is the loop around them.",
    (
      *(METHOD, TEMPERATURE),
      Column("gamma", "settings.gamma"),
      Column("alphas", lambda line: " ".join(f"{a:g}" for a in line["alphas"])),
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
