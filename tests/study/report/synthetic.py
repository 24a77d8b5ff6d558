"""Deterministic result rows with numbers as they are, no model behind them.

A method's quality rises from the drafter's to a top as its alpha makes it defer
more; its latency follows from acceptance and costs, as the cost model says.
"""

from collections.abc import Sequence
import dataclasses
import json
import pathlib

import numpy as np

from speccascade.decoding import METHODS
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import settings_of
from speccascade.study.evaluation import efficiency
from speccascade.study.evaluation.walltime import Latency
from speccascade.study.report import groups
from speccascade.study.report.groups import MeasuredStudy
from speccascade.study.rows.results import ResultRow

SMALL, LARGE = 60.0, 69.0
REPLICATES = 200
EXAMPLES = 200
TOKENS = 20  # of an example
COSTS = Costs(
  verifier_step_s=4e-4,
  c=0.12,
  q2=0.15,
  v={1: 1.0, 2: 1.5, 4: 1.8, 6: 2.1, 8: 2.4},
  drafter_prefill=0.5,
  verifier_prefill=3.0,
)
SETTINGS = {
  "max_decode_len": 48,
  "task": "generated",
  "split": "test",
  "drafter": "small-1400",
  "verifier": "large-1000",
  "num_examples": EXAMPLES,
}
# (alphas, how far the best point is above the large model)
CURVES = {
  "drafter": ((None,), 0.0),
  "verifier": ((None,), 0.0),
  "spec_decode": ((None,), 0.0),
  "spec_decode_lossy": ((0.0, 0.1, 0.3, 0.5, 0.7, 0.9), 0.2),
  "spec_cascade_chow": ((0.1, 0.3, 0.5, 0.7), -0.5),
  "spec_cascade_opt": ((-0.2, 0.0, 0.1, 0.3, 0.5, 0.7), 1.5),
  "spec_cascade_token_v3": ((0.0, 0.1, 0.3, 0.5, 0.7, 0.9), 2.0),
  "token_cascade_chow": ((0.1, 0.3, 0.5, 0.7), 0.3),
  "oracle_cascade_diff": ((-0.5, 0.0, 0.5), 2.0),
}
# (quality, acceptance) where there is no alpha
ALONE = {
  "drafter": (SMALL, 1.0),
  "verifier": (LARGE, 0.0),
  "spec_decode": (LARGE, 0.65),
}
_NOISE = np.random.default_rng(7)
# The same resamples of examples for all rows: what makes them pairs.
_SHARED = _NOISE.normal(size=REPLICATES)
_TIMES = _NOISE.normal(size=REPLICATES)


def rows(
  *,
  temperatures: Sequence[float] = (0.0, 1.0),
  gammas: Sequence[int] = (5,),
  seeds: Sequence[int] = (0,),
  methods: Sequence[str] | None = None,
  replicates: bool = True,
  overhead: float = 1.0,
) -> list[ResultRow]:
  """Returns rows of one pair.

  Args:
    temperatures: of the points.
    gammas: of the methods with blocks.
    seeds: of the keys.
    methods: of `CURVES` or any other; None takes those.
    replicates: whether rows have them.
    overhead: factor on the latency of methods with blocks.
  """
  several = []
  for temperature in temperatures:
    for number, name in enumerate(methods or CURVES):
      spec = METHODS[name]
      if spec.greedy_only and temperature > 0:
        continue
      default = ((spec.default_alpha,), 0.5 - number % 4 / 2)
      alphas, gain = CURVES.get(name, default)
      if temperature == 0 and name.startswith("spec_decode_lossy"):
        gain = 0.0
      several += [
        _row(
          Point(name, alpha, gamma=gamma, temperature=temperature),
          seed=seed,
          share=place / len(alphas),
          gain=gain,
          has_replicates=replicates,
          overhead=overhead,
        )
        for gamma in (gammas if spec.has_blocks else gammas[:1])
        for place, alpha in enumerate(alphas, start=1)
        for seed in seeds
      ]
  return several


def study(**options) -> MeasuredStudy:
  """Returns the one study of `rows`, which takes the options."""
  (only,) = groups.studies(rows(**options))
  return only


def changed(row: ResultRow, **changes) -> ResultRow:
  """Returns a row with other values of itself, its settings or its latency."""
  for name in ("settings", "latency"):
    part = getattr(row, name)
    inner = {x: changes.pop(x) for x in [*changes] if hasattr(part, x)}
    if inner:
      changes[name] = dataclasses.replace(part, **inner)
  return dataclasses.replace(row, **changes)


def decode_folder(
  folder: pathlib.Path, row: ResultRow, records: Sequence[dict]
) -> pathlib.Path:
  """Writes the folder of a decode, its row and its records; returns it."""
  folder.mkdir()
  (folder / "metrics.json").write_text(row.to_json())
  text = "".join(json.dumps(record) + "\n" for record in records)
  (folder / "predictions.jsonl").write_text(text)
  return folder


def _row(
  point: Point,
  *,
  seed: int,
  share: float,
  gain: float,
  has_replicates: bool,
  overhead: float,
) -> ResultRow:
  """Returns the row of a point.

  Args:
    point: the method and its settings.
    seed: the seed of the key.
    share: how much of the drafter's writing the method keeps, from 0 to 1.
    gain: how far the quality rises above the large model's.
    has_replicates: whether quality and latency have replicates.
    overhead: factor on the latency of methods with blocks.
  """
  noise = np.random.default_rng(
    [seed, int(100 * share), point.gamma, len(point.method)]
  )
  name, greedy = point.method, point.temperature == 0
  quality = LARGE + gain * np.sin(np.pi * share) - 6 * share**4 * (gain != 0)
  quality, acceptance = ALONE.get(name, (quality, 0.5 + 0.45 * share))
  quality += 12 if greedy else 0.2 * noise.normal()
  counts = _counts(point, acceptance)
  predicted = efficiency.predicted_at(point, counts, COSTS)
  steps = counts.num_tokens / EXAMPLES / (predicted or 1.0)
  steps = 3.5 + steps * (overhead if point.spec.has_blocks else 1.0)
  seconds = steps * COSTS.verifier_step_s
  latency = 1.0 if name == "verifier" else steps / (3.0 + TOKENS)
  ratios = latency * (1 + 0.02 * _TIMES + 0.01 * noise.normal(size=REPLICATES))
  if name == "verifier":
    ratios = np.ones(REPLICATES)
  scores = quality + 1.2 * _SHARED + 0.3 * noise.normal(size=REPLICATES)
  low, high, relative_low, relative_high = (
    float(np.quantile(values, end))
    for values in (scores, ratios)
    for end in (0.025, 0.975)
  )
  alike = EXAMPLES - 1 if name.startswith(("spec_decode", "verifier")) else 90
  agreement = {"identical": alike, "near_ties": 1, "num_examples": EXAMPLES}
  score = {"value": float(quality), "low": low, "high": high}
  if has_replicates:
    score["replicates"] = scores.round(4).tolist()
  return ResultRow(
    settings=settings_of(point, seed=seed, **SETTINGS),
    label=point.spec.label,
    counts=counts,
    efficiency=decode_counts.summary(counts),
    quality={"bleu": score},
    latency=Latency(
      walltime_s=seconds,
      by_repeat_s=(seconds, seconds),
      relative_latency=latency,
      relative_low=relative_low,
      relative_high=relative_high,
      num_examples=20,
      repeats=2,
      replicates=tuple(ratios.round(6).tolist()) if has_replicates else (),
      num_tokens=20 * TOKENS,
      per_token=(latency, relative_low, relative_high),
    ),
    costs=COSTS,
    predicted_speedup=predicted,
    measured_speedup=1 / latency,
    agreement=agreement if greedy else None,
    environment={"device": "a chip", "versions": {"jax": "1"}},
    num_parameters={"drafter": 1_200_000, "verifier": 12_340_000},
  )


def _counts(point: Point, acceptance: float) -> Counts:
  """Counts of i.i.d. acceptance, rounded."""
  tokens = TOKENS * EXAMPLES
  deferred = round(tokens * (1 - acceptance))
  spec, gamma = point.spec, point.gamma if point.spec.has_blocks else 0
  powers = acceptance ** np.arange(gamma + 1)
  blocks = round(tokens / powers.sum()) if gamma else 0
  reached = tuple(np.round(blocks * powers).astype(int).tolist())
  examined, accepted = reached[:-1], reached[1:]
  if gamma:
    folds = spec.target is METHODS["spec_decode"].target
    calls, extends = blocks * (gamma + 1 - folds), blocks
  else:
    calls = tokens * spec.execution.needs_drafter
    extends = deferred * spec.execution.needs_verifier
  is_oracle = point.method.startswith("oracle")
  return Counts(
    num_examples=EXAMPLES,
    num_tokens=tokens,
    num_blocks=blocks,
    drafted=blocks * gamma,
    examined=sum(examined),
    accepted=sum(accepted),
    deferred=deferred,
    drafter_calls=calls,
    calls_by_model=(calls,),
    verifier_calls=blocks if gamma else deferred,
    verifier_extends=tokens if is_oracle else extends,
    expected_acceptance=float(acceptance * sum(examined)),
    accepted_at=tuple((-np.diff([blocks, *accepted, 0])).tolist()),
    examined_by_position=examined,
    accepted_by_position=accepted,
  )
