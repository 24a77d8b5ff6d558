"""Points of a search, alphas of every method, and where to look next."""

import functools
import itertools
import math
import types

import jax
import numpy as np
import pytest

from speccascade.decoding import METHODS
from speccascade.decoding.laws import deferral, rules, targets
from speccascade.decoding.laws.interval import LINEAR, LOG, LOG_REST
from speccascade.decoding.loops.speculative import speculative
from speccascade.decoding.programs.methods import Method
from speccascade.generate.points.point import Point
from speccascade.study.search import grid
from speccascade.study.search.plans import Plan
from speccascade.study.search.wanted import Wanted

WITH_ALPHA = [name for name, method in METHODS.items() if method.uses_alpha]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("vocab_size", [16, 4000, 32128])
def test_every_method_has_a_grid_inside_its_range(name, vocab_size):
  method = METHODS[name]
  target = method.target
  is_lossless = target is not None and target.is_lossless_when_greedy
  for greedy in (True, False):
    alphas = grid.default_grid(method, vocab_size, greedy=greedy).alphas
    for alpha in alphas:
      method.check_alpha(alpha, vocab_size)
    assert list(alphas) == sorted(set(alphas))
    if name not in WITH_ALPHA:
      assert alphas == ()
    elif greedy and is_lossless:
      assert alphas == (method.default_alpha,)
    else:
      assert 6 <= len(alphas) <= 8


def pairs():
  """2,000 pairs of 30 tokens: flat and sharp ones, close and far ones."""
  rng = np.random.default_rng(0)
  logits = rng.normal(0, rng.uniform(0.3, 8, (2000, 1)), (2000, 30))
  other = logits + rng.normal(0, rng.uniform(0.1, 3, (2000, 1)), (2000, 30))
  q, p = (np.exp(x - x.max(-1, keepdims=True)) for x in (other, logits))
  return [(x / x.sum(-1, keepdims=True)).astype(np.float32) for x in (q, p)]


@pytest.mark.parametrize(
  "name",
  [
    name
    for name in WITH_ALPHA
    if METHODS[name].target is not None and METHODS[name].alpha_interval.grid
  ],
)
def test_every_value_of_a_grid_matters(name):
  """Neighbours have different distributions, and the ends are far apart."""
  method, (q, p) = METHODS[name], pairs()
  sampled = (q, p)
  if method.greedy_only:
    one_hot = np.eye(30, dtype=np.float32)
    sampled = tuple(one_hot[x.argmax(-1)] for x in (q, p))
  probs = functools.partial(method.target.probs, q, p, sampled=sampled)
  law = jax.jit(lambda alpha: probs(alpha=alpha))
  laws = [
    np.asarray(law(alpha)) for alpha in grid.default_grid(method, 30).alphas
  ]
  apart = lambda a, b: np.abs(a - b).sum(-1).mean() / 2
  moved = [apart(*pair) for pair in itertools.pairwise(laws)]
  assert min(moved) > 1e-3, moved
  # Min2 never keeps more than two tokens.
  least = 0.3 if name == "spec_cascade_min2" else 0.4
  assert apart(laws[0], laws[-1]) > least * apart(*sampled)


def test_opt_needs_no_alpha_beyond_one():
  """|max p - max q| <= TV: at -1 all pairs defer but for ties, at 1 none."""
  q, p = pairs()
  left, right = deferral.opt(q, p, alpha=-1.0)
  assert np.all(np.asarray(left) <= np.asarray(right) + 1e-6)
  assert np.mean(np.asarray(left) < np.asarray(right)) > 0.9
  left, right = deferral.opt(q, p, alpha=1.0)
  assert not np.any(np.asarray(left) < np.asarray(right) - 1e-6)


def test_the_sequence_cascade_counts_in_nats():
  method = METHODS["seq_cascade_chow"]
  alphas = grid.default_grid(method, 4000).alphas
  nats = [-method.execution.host_alpha(alpha) for alpha in alphas]
  assert nats == pytest.approx([1, 3, 6, 10, 15, 22, 30], rel=1e-3)


@pytest.mark.parametrize(
  ("low", "high", "wanted"),
  [
    *((-2.0, 1.0, (-2, 1)), (0.0, math.inf, (0, 2))),
    *((-math.inf, 3.0, (1, 3)), (-math.inf, math.inf, (-1, 1))),
  ],
)
def test_a_rule_of_ones_own_gets_a_grid_of_its_range(low, high, wanted):
  mine = rules.rule(low=low, high=high)(deferral.opt.function)
  method = Method(speculative, targets.defer(mine), "mine")
  alphas = grid.default_grid(method, 100).alphas
  assert (alphas[0], alphas[-1]) == wanted
  assert len(alphas) == 7


def test_a_rule_of_ones_own_declares_its_grid():
  """What is outside the range, here at V = 100 alone, is left out."""
  declared = {"high": math.log, "grid": (-2.0, 0.5, 5.0), "scale": LOG}
  mine = rules.rule(**declared)(deferral.opt.function)
  method = Method(speculative, targets.defer(mine), "mine")
  assert grid.default_grid(method, 1000).alphas == (-2.0, 0.5, 5.0)
  assert grid.default_grid(method, 100) == grid.Grid((-2.0, 0.5), LOG)


near_one = lambda nats: 1 - math.exp(-nats)


def row(latency, deferral_rate=0.5, quality=30.0):
  timed = types.SimpleNamespace(relative_latency=latency)
  return types.SimpleNamespace(
    latency=timed if latency is not None else None,
    efficiency={"deferral_rate": deferral_rate},
    quality={"bleu": {"value": quality}} if quality is not None else {},
  )


@pytest.mark.parametrize(
  ("rows", "scale", "wanted"),
  [
    # The widest gap in latency is halved; of equal gaps the first.
    ({0.0: row(1.0), 0.2: row(0.9), 1.0: row(0.6)}, LINEAR, 0.6),
    (
      {0.0: row(1.0), 0.2: row(0.9), 0.6: row(0.89), 1.0: row(0.6)},
      LINEAR,
      0.8,
    ),
    ({0.0: row(1), 1.0: row(0.5), 2.0: row(1)}, LINEAR, 0.5),
    # On the method's own scale.
    ({0.01: row(1), 1.0: row(0.5)}, LOG, 0.1),
    (
      {near_one(10): row(10), near_one(20): row(20)},
      LOG_REST,
      near_one(15),
    ),
    # Where latency is flat, or lacks, deferral and then quality decide.
    ({0.0: row(0.8), 0.5: row(0.81, 0.51), 1.0: row(0.8, 0.9)}, LINEAR, 0.75),
    ({0.0: row(0.8, quality=20), 0.5: row(0.8), 1.0: row(0.8)}, LINEAR, 0.25),
    ({0.0: row(0.8), 1.0: row(0.8)}, LINEAR, None),
    ({0.0: row(None, 0.2, None), 1.0: row(None, 0.7, None)}, LINEAR, 0.5),
  ],
)
def test_the_next_alpha(rows, scale, wanted):
  wanted = wanted and pytest.approx(wanted, rel=1e-9)
  assert grid.next_alpha(rows, scale) == wanted


def test_points_spread_over_the_latency_axis():
  """A curve that falls within a hundredth of the range of alpha."""

  def measured(alpha):
    return row(0.4 + 0.6 / (1 + math.exp((alpha - 0.3) / 0.01)))

  rows = {alpha: measured(alpha) for alpha in (0.0, 0.5, 1.0)}
  chosen = []
  while len(rows) < 14 and (alpha := grid.next_alpha(rows)) is not None:
    chosen.append(alpha)
    rows[alpha] = measured(alpha)
  latencies = [rows[a].latency.relative_latency for a in sorted(rows)]
  evenly = [measured(a).latency.relative_latency for a in np.linspace(0, 1, 14)]
  assert np.abs(np.diff(latencies)).max() < 0.15
  assert np.abs(np.diff(evenly)).max() > 0.35
  # What comes next depends on the rows alone, in whatever order they came.
  again = {alpha: rows[alpha] for alpha in (1.0, 0.5, 0.0)}
  for alpha in chosen:
    assert grid.next_alpha(again) == alpha
    again[alpha] = rows[alpha]


def test_coarse_keeps_ends_and_middle():
  whole = grid.default_grid(METHODS["spec_cascade_chow"], 100)
  few = grid.coarsen(whole).alphas
  assert few == (whole.alphas[0], whole.alphas[3], whole.alphas[-1])
  assert grid.coarsen(grid.Grid((0.5,))).alphas == (0.5,)
  for scale in (grid.LINEAR, LOG):
    assert grid.coarsen(grid.Grid(whole.alphas, scale)).scale is scale


def test_alphas_of_ones_own_are_sorted_without_repetitions():
  mine = grid.custom_grid("bild_star_kl", [2, 0.5, 1.0, 0.5], 100)
  assert mine == grid.Grid((0.5, 1.0, 2.0), LOG)
  # What lies between them is halved on the scale of the default grid.
  assert mine.scale.middle(0.5, 2.0) == 1.0


@pytest.mark.parametrize(
  ("name", "alphas", "message"),
  [
    ("spec_decode", [0.1], "takes no alpha"),
    ("spec_cascade_chow", [], "no values for spec_cascade_chow"),
    ("spec_cascade_chow", [0.1, 1.5], r"alpha is 1.5; .* takes \[0, 1\]"),
    ("spec_cascade_cow", [0.1], "did you mean spec_cascade_chow"),
  ],
)
def test_alphas_that_do_not_fit(name, alphas, message):
  with pytest.raises(ValueError, match=message):
    grid.custom_grid(name, alphas, 100)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_advice_asks_about_the_points_of_a_sweep(temperature):
  common = Point("verifier", gamma=3, temperature=temperature, top_k=9)
  points = Wanted(gammas=[3]).points(common, 100)
  names = [point.method for point in points]
  plan = Plan(gammas=[3], temperatures=[temperature])
  curves = plan.curves(common, 100, list(dict.fromkeys(names)))
  measured = [point for curve in curves for point in curve.points]
  alone = ("drafter", "verifier")
  assert points == [x for x in measured if x.method not in alone]
  # Rules that are defined at temperature 0 only come at temperature 0 only.
  assert any(point.spec.greedy_only for point in points) == (temperature == 0)
  assert len(points) == len(set(points)) > len(set(names))
  assert names[0] == "spec_decode"


def test_temperatures_that_mean_arg_max_are_one_point():
  greedy = [0, 5e-5, 1e-4]
  for baselines in ((), [{"temperature": 5e-5}, {}]):
    plan = Plan(temperatures=greedy, baselines=baselines)
    curves = plan.curves(Point("verifier"), 100, ["spec_decode"])
    want = Plan(temperatures=[0.0]).curves(
      Point("verifier"), 100, ["spec_decode"]
    )
    assert curves == want
  plan = Plan(methods=["spec_decode"], temperatures=[5e-5, 2e-4])
  curves = plan.curves(Point("verifier"), 100, [])
  assert {curve.base.temperature for curve in curves} == {0.0, 2e-4}


def test_a_method_without_alphas_has_one_point():
  (curve,) = grid.curves(
    Point("verifier"),
    ["spec_decode", "spec_decode"],
    lambda point: grid.Grid(()),
    temperatures=[0.0],
    gammas=[4],
    seeds=[7, 8],
  )
  assert curve.points == [curve.middle] == [curve.base]
  assert (curve.base.gamma, curve.seed) == (4, 7)
