"""Deterministic result rows with numbers as they are, no model behind them.

A method's quality rises from the drafter's to a top as its alpha makes it defer
more; its latency follows from acceptance and costs, as the cost model says.
"""

from collections.abc import Sequence
import dataclasses
import itertools

import numpy as np

from speccascade.decoding import METHODS
from speccascade.evaluation import efficiency
from speccascade.evaluation.efficiency import Costs, Counts
from speccascade.evaluation.timing import Latency
from speccascade.inference.point import Point
from speccascade.inference.results import ResultRow, Settings

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
  names = list(CURVES) if methods is None else methods
  made = []
  for temperature in temperatures:
    for number, name in enumerate(names):
      spec = METHODS[name]
      if spec.greedy_only and temperature > 0:
        continue
      default = ((spec.default_alpha,), 0.5 - number % 4 / 2)
      alphas, gain = CURVES.get(name, default)
      if temperature == 0 and name.startswith("spec_decode_lossy"):
        gain = 0.0
      for gamma in gammas if spec.has_blocks else gammas[:1]:
        for place, alpha in enumerate(alphas):
          for seed in seeds:
            point = Point(name, alpha, gamma=gamma, temperature=temperature)
            share = (place + 1) / len(alphas)
            one = _row(point, seed, share, gain, replicates, overhead)
            made.append(one)
  return made


def _row(point, seed, share, gain, has_replicates, overhead) -> ResultRow:
  """One point: `share` is how much of the drafter's writing it keeps."""
  noise = np.random.default_rng(
    [seed, int(100 * share), point.gamma, len(point.method)]
  )
  name, greedy = point.method, point.temperature == 0
  acceptance = {"drafter": 1.0, "verifier": 0.0}.get(name, 0.5 + 0.45 * share)
  quality = LARGE + gain * np.sin(np.pi * share) - 6 * share**4 * (gain != 0)
  quality = {"drafter": SMALL, "verifier": LARGE}.get(name, quality)
  if name == "spec_decode":
    quality, acceptance = LARGE, 0.65
  quality += 12 * greedy
  quality += 0.0 if greedy else 0.2 * noise.normal()
  counts = _counts(point, acceptance)
  predicted = point.predicted_speedup(counts, COSTS)
  steps = counts.num_tokens / EXAMPLES
  decoder = steps / (predicted or 1.0)
  factor = overhead if point.spec.has_blocks else 1.0
  seconds = (3.5 + decoder * factor) * COSTS.verifier_step_s
  latency = (3.5 + decoder * factor) / (3.0 + TOKENS)
  if name == "verifier":
    latency = 1.0
  ratios = latency * (1 + 0.02 * _TIMES + 0.01 * noise.normal(size=REPLICATES))
  if name == "verifier":
    ratios = np.ones(REPLICATES)
  scores = quality + 1.2 * _SHARED + 0.3 * noise.normal(size=REPLICATES)
  score = {
    "value": float(quality),
    "low": float(np.quantile(scores, 0.025)),
    "high": float(np.quantile(scores, 0.975)),
  }
  timed = Latency(
    walltime_s=seconds,
    by_repeat_s=(seconds, seconds),
    relative_latency=latency,
    relative_low=float(np.quantile(ratios, 0.025)),
    relative_high=float(np.quantile(ratios, 0.975)),
    num_examples=20,
    repeats=2,
  )
  if has_replicates:
    score["replicates"] = [round(float(x), 4) for x in scores]
    if "replicates" in {field.name for field in dataclasses.fields(Latency)}:
      kept = tuple(round(float(x), 6) for x in ratios)
      timed = dataclasses.replace(timed, replicates=kept)
  return ResultRow(
    settings=_settings(point, seed),
    label=point.spec.label,
    counts=counts,
    efficiency=efficiency.summary(counts),
    quality={"bleu": score},
    latency=timed,
    costs=COSTS,
    predicted_speedup=predicted,
    measured_speedup=1 / latency,
    agreement=_agreement(name) if greedy else None,
    environment={"device": "a chip", "versions": {"jax": "1"}},
  )


def _settings(point: Point, seed: int) -> Settings:
  return point.settings(
    max_decode_len=48,
    task="generated",
    split="test",
    num_examples=EXAMPLES,
    drafter="small-1400",
    verifier="large-1000",
    seed=seed,
  )


def _agreement(name: str) -> dict:
  same = EXAMPLES - 1 if name.startswith(("spec_decode", "verifier")) else 90
  return {"identical": same, "near_ties": 1, "num_examples": EXAMPLES}


def _counts(point: Point, acceptance: float) -> Counts:
  """Counts of i.i.d. acceptance, rounded."""
  tokens = TOKENS * EXAMPLES
  if not point.spec.has_blocks:
    calls = round(tokens * (1 - acceptance))
    drafts = tokens if point.spec.needs_drafter else 0
    if point.method.startswith("oracle"):
      extends = tokens
    elif point.spec.needs_verifier:
      extends = calls
    else:
      extends = 0
    return _plain_counts(tokens, drafts, calls, extends)
  gamma = point.gamma
  per_block = sum(acceptance**i for i in range(gamma + 1))
  blocks = round(tokens / per_block)
  examined = [round(blocks * acceptance**i) for i in range(gamma)]
  accepted = [round(blocks * acceptance ** (i + 1)) for i in range(gamma)]
  ends = [blocks, *accepted, 0]
  folds = point.spec.target is METHODS["spec_decode"].target
  calls = blocks * (gamma if folds else gamma + 1)
  return Counts(
    num_examples=EXAMPLES,
    num_tokens=tokens,
    num_blocks=blocks,
    drafted=blocks * gamma,
    examined=sum(examined),
    accepted=sum(accepted),
    deferred=round(tokens * (1 - acceptance)),
    drafter_calls=calls,
    calls_by_model=(calls,),
    verifier_calls=blocks,
    verifier_extends=blocks,
    expected_acceptance=float(acceptance * sum(examined)),
    accepted_at=tuple(a - b for a, b in itertools.pairwise(ends)),
    examined_by_position=tuple(examined),
    accepted_by_position=tuple(accepted),
  )


def _plain_counts(tokens, drafts, calls, extends) -> Counts:
  return Counts(
    num_examples=EXAMPLES,
    num_tokens=tokens,
    num_blocks=0,
    drafted=0,
    examined=0,
    accepted=0,
    deferred=calls,
    drafter_calls=drafts,
    calls_by_model=(drafts,),
    verifier_calls=calls,
    verifier_extends=extends,
    expected_acceptance=0.0,
    accepted_at=(0,),
    examined_by_position=(),
    accepted_by_position=(),
  )
