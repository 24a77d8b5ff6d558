"""Advice on chains whose distributions are tables, at costs that are given."""

import dataclasses
import itertools
import json
import types

import numpy as np
import pytest
from scipy import special

from speccascade.checkpoints import rule_files
from speccascade.decoding.laws import learned
from speccascade.generate import teacher_forcing
from speccascade.generate.batches.batching import Batches
from speccascade.generate.batches.sources import Source, Sources
from speccascade.generate.pair.model_loading import Model
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points import advice_files
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.study.evaluation import timing, walltime
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.papers.blocks import blocks, chain
from speccascade.study.search import (
  advice_page,
  advisor,
  candidates,
  effort,
  tree_page,
  tree_search,
)
from speccascade.study.search.acceptance import rates_along
from speccascade.study.search.effort import Budget, Effort
from speccascade.study.search.offers import Drafting, make_monotone
from speccascade.study.search.wanted import Wanted
from tests import toy
from tests.generate import tiny

NUM = 256
GAMMAS = (1, 3)


class Words(tiny.Vocabulary):
  vocab_size = 7


def sources(num=NUM):
  """Returns examples, one for each table; the reference is one word."""
  examples = [
    Source(k, str(k), np.array([k], np.int32), ("one",)) for k in range(num)
  ]
  return Sources(examples, Words(), 1, "chains")


def pair(num=NUM, with_twin=False):
  """Returns the chains, perhaps with a drafter that is the verifier's twin."""
  drafter, verifier = toy.sources(num, eos=-0.5)
  drafters = (Model(drafter, "q", ""), Model(verifier, "twin", "/twin"))
  return ModelPair(drafters[: 1 + with_twin], Model(verifier, "p", ""))


@pytest.mark.parametrize(
  ("method", "temperature"),
  [("spec_decode", 0.0), ("spec_cascade_token_v3", 1.0)],
)
def test_a_text_determines_its_blocks(method, temperature):
  """Decoded blocks differ from those expected of the same texts by chance."""
  point = Point(method, gamma=3, temperature=temperature)
  run = Run(max_decode_len=12, batch_size=NUM, num_lengths=1)
  study = Study(Session(pair(), sources(), run), Measuring())
  batches = study.batches(point, shared=False)
  decoded = batches.decode_all(study.examples)
  rates = rates_along(study, [point], decoded, is_own=True)
  expected = blocks(rates[:, :, :, 0], decoded.lengths, chain(3))
  more = decoded.stats.num_blocks - expected.num
  if temperature == 0:  # drafts are right or wrong
    np.testing.assert_allclose(more, 0, atol=1e-5)
    return
  assert np.std(more) > 0.3
  assert abs(np.mean(more)) < 4.5 * np.std(more) / np.sqrt(NUM)


def tables_of(costs, rounds):
  """Returns loops with these costs; rounds are multiples of the least."""
  unit, blocks = costs.verifier_step_s, 10
  least = {
    "c": costs.c,
    "q2": costs.q2,
    "drafter": costs.drafter_prefill / blocks,
    "verifier": costs.verifier_prefill / blocks,
    **{f"v{width}": v for width, v in costs.v.items()},
  }
  seconds = {
    name: unit * blocks * value * np.array(rounds)
    for name, value in least.items()
  }
  return timing.CostLoops(seconds, blocks)


def at_given_costs(monkeypatch, steps_of):
  """Makes advice measure nothing; returns the drafters that it has timed.

  Args:
    monkeypatch: the fixture.
    steps_of: a function from a study to the cost of a step of its drafter, in
      steps of the verifier.

  Returns:
    [str], which grows by the name of each drafter when its points are timed.
  """
  timed = []

  def cost_loops(study, points, *_, **__):
    steps = steps_of(study)
    costs = Costs(1e-3, steps, steps, dict.fromkeys((1, 2, 3), 1.0), 0.0, 1.0)
    return tables_of(costs, (1.0, 1.0))

  def time(search, offers):
    timed.append(offers[0].study.pair.drafter_name)
    ones = np.ones((3, 1))
    return [
      dataclasses.replace(
        x,
        measured=walltime.latency(x.here.latency.relative_latency * ones, ones),
      )
      for x in offers
    ]

  monkeypatch.setattr(point_timing, "cost_loops", cost_loops)
  monkeypatch.setattr(point_timing, "check_costs", lambda *args, **_: args[2])
  monkeypatch.setattr(advisor.Searcher, "_time", time)
  return timed


def test_rates_are_those_of_each_text(monkeypatch):
  """However few texts are read at once; a lossless method's are its own."""
  run = Run(max_decode_len=6, batch_size=8, num_lengths=1)
  study = Study(Session(pair(7), sources(7), run), Measuring())
  rng = np.random.default_rng(0)
  lengths, tokens = rng.integers(1, 7, 7), rng.integers(2, 7, (7, 6), np.int32)
  texts = types.SimpleNamespace(tokens=tokens, lengths=lengths)
  points = [Point("spec_decode"), Point("spec_cascade_opt", 0.3)]
  read = lambda is_own: rates_along(study, points, texts, is_own=is_own)[
    0, 0, 0
  ]
  want = read(is_own=False)
  assert want.shape == (2, 7, 6)
  assert not want[:, np.arange(6) >= lengths[:, None]].any()
  own = read(is_own=True)
  np.testing.assert_array_equal(want[0], own[0])
  assert np.abs(want[1] - own[1]).max() > 0.1
  # By the definition, of the first token of each text.
  (q, p), first = chains_after_start(7), (np.arange(7), tokens[:, 0])
  np.testing.assert_allclose(
    want[0][:, 0], np.minimum(1, q[first] / p[first]), rtol=1e-5
  )
  monkeypatch.setattr(teacher_forcing, "_MOST", 3 * 6 * 7)
  np.testing.assert_allclose(read(is_own=False), want, rtol=1e-6)


def test_rates_of_a_learned_rule_are_those_of_its_parameters(tmp_path):
  """With parameters that correct nothing, calibrated OPT is OPT."""
  kind = learned.CALIBRATION
  rule_files.write(tmp_path / "rule.npz", {kind.name: kind.plug_in()}, {})
  run = Run(max_decode_len=6, batch_size=8, num_lengths=1)
  study = Study(Session(pair(7), sources(7), run), Measuring())
  tokens = np.random.default_rng(0).integers(2, 7, (7, 6), np.int32)
  texts = types.SimpleNamespace(tokens=tokens, lengths=np.full(7, 6))
  fitted = {"rule_parameters": tmp_path / "rule.npz"}
  opt, calibrated = (
    [Point(name, alpha, **how) for alpha in (-0.5, 0.3)]
    for name, how in (
      ("spec_cascade_opt", {}),
      ("spec_cascade_opt_calibrated", fitted),
    )
  )
  got, want = (
    rates_along(study, points, texts, is_own=False)[0, 0, 0]
    for points in (calibrated, opt)
  )
  np.testing.assert_allclose(got, want, rtol=1e-5)
  assert np.abs(want[0] - want[1]).max() > 0.1


def chains_after_start(num):
  """Returns (q, p), [num, V] each, for the chains' first tokens."""
  logits = (np.asarray(model.lm.table)[:, 0] for model in pair(num).models)
  return [special.softmax(x.astype(float), axis=-1) for x in logits]


def late(limit_s):
  """Returns a budget whose shares are used up, while its limit is not."""
  seconds = itertools.chain([0.0], itertools.repeat(0.95 * limit_s))
  return Budget(limit_s, clock=lambda: next(seconds))


@pytest.fixture
def advise(monkeypatch, tmp_path):
  """Asks for advice; the clock says what passes cost and an eighth more.

  `by_clock` says how much more for each gamma.
  """

  def call(
    c,
    v,
    *,
    max_loss=None,
    methods=(),
    by_clock=None,
    rounds=(1.0, 1.02, 1.05),
    limits=Effort(),
    progress=False,
    check=lambda costs: costs,
    budget=Budget,
    **drafters,
  ):
    by_clock = by_clock or dict.fromkeys(GAMMAS, 1.125)
    widths = [1, *(gamma + 1 for gamma in by_clock)]
    costs = Costs(1e-3, c, 1.5 * c, dict(zip(widths, v)), c, 1.0)
    loops = lambda *_, **settings: tables_of(costs, rounds)
    monkeypatch.setattr(point_timing, "cost_loops", loops)
    monkeypatch.setattr(
      point_timing, "check_costs", lambda *args, **_: check(args[2])
    )
    asked = []

    def time(search, offers):
      asked.append([offer.point.gamma for offer in offers])
      return [dataclasses.replace(x, measured=latency(x)) for x in offers]

    def latency(offer):
      ours = offer.here.latency.relative_latency * by_clock[offer.point.gamma]
      return walltime.latency(
        ours * np.array([[0.9], [1.0], [1.1]]), np.ones((3, 1))
      )

    monkeypatch.setattr(advisor.Searcher, "_time", time)
    monkeypatch.setattr(effort, "Budget", budget)
    load = lambda vocabulary: pair(32, **drafters)
    return asked, advisor.advise(
      pair=types.SimpleNamespace(
        load=load,
        vocabulary_path=None,
        draft_vocabulary=None,
        drafter_checkpoint="/q",
      ),
      inputs=types.SimpleNamespace(read=lambda default_path: sources(32)),
      point=Point("verifier", gamma="auto", temperature=0.0),
      run=Run(tmp_path, max_decode_len=12, progress=progress),
      wanted=Wanted(max_loss, methods, [*by_clock]),
      effort=limits,
    )

  return call


def test_the_measured_c_counts_and_is_reported(advise):
  # Hot loops make the drafter free; by whole decodes it takes .4 steps.
  args = 0.004, [1, 1.02, 1.04]
  _, advice = advise(*args, check=lambda costs: costs.by_clock(0.4))
  (drafting,) = advice.draftings
  assert (drafting.costs.c, drafting.costs.loop_c) == (0.4, 0.004)
  assert any("hot loops give c = 0.004" in x for x in advice.warnings)
  alone = [x for x in advice.decoded if x.point.method == "drafter"]
  assert all(offer.here.speedup < 1 / 0.4 for offer in alone)
  _, advice = advise(*args)
  assert not any("hot loops give" in x for x in advice.warnings)


def test_it_pays(advise, tmp_path):
  asked, advice = advise(0.01, [1, 1.02, 1.04])
  assert asked == [[3], [1]]
  # Around a block the clock finds more than its passes.
  (drafting,) = advice.draftings
  assert 0 < drafting.overhead[3] < 1
  middle = (drafting.overhead[1] + drafting.overhead[3]) / 2
  assert drafting.overhead_of(2) == pytest.approx(middle)
  offer = advice.choice
  assert offer is advice.lossless
  # Where a block costs one step, the loop around it costs none.
  one_step = offer.one_step
  assert one_step.steps == pytest.approx(1 + 0.01 * one_step.gamma)
  latency = offer.here.latency.relative_latency
  assert latency == pytest.approx(offer.measured.relative_latency)
  assert "use spec_decode, gamma 3: " in advice_page.write(advice)
  snippet = 'METHOD = "spec_decode"\nGAMMA = 3\n'
  assert (tmp_path / "advice.gin").read_text() == snippet
  written = json.loads((tmp_path / "advice.json").read_text())
  assert written["choice"]["gamma"] == 3
  # GAMMA = "auto" finds it there, as a number.
  auto = Point("spec_decode", gamma="auto", temperature=0.0, advice=tmp_path)
  assert advice_files.resolve_gamma(auto, pair(32)).gamma == 3
  for changes, message in (
    ({"temperature": 0.5}, r"temperature 0\.0, here it is 0\.5"),
    ({"method": "spec_cascade_opt"}, "says nothing of spec_cascade_opt"),
  ):
    with pytest.raises(ValueError, match=message):
      advice_files.resolve_gamma(dataclasses.replace(auto, **changes), pair(32))
  with pytest.raises(ValueError, match="holds another run: wanted is"):
    advise(0.01, [1, 1.02, 1.04], methods=["ensemble"])


def test_the_clock_decides_the_gamma(advise):
  """What is promised more is timed first, then what is next to the fastest."""
  clock = {1: 4.0, 2: 2.5, 3: 1.1, 4: 1.4, 5: 0.9}
  asked, advice = advise(0.5, [1, 1.1, 1.6, 1.8, 2.5, 4.0], by_clock=clock)
  assert asked == [[1], [2], [3], [4]]
  assert advice.lossless.point.gamma == 3
  (drafting,) = advice.draftings
  assert [*drafting.overhead] == [1, 2, 3, 4]


def test_the_better_of_two_drafters(advise):
  _, advice = advise(0.01, [1, 1.02, 1.04], with_twin=True)
  assert advice.choice.study.pair.drafter_name == "twin"
  assert advice.choice.here.by_position == (1, 1, 1)
  text = advice_page.answer(advice).text
  assert "use spec_decode, gamma 3, drafter twin: " in text
  assert 'DRAFTER_CHECKPOINT = "/twin"\n' in text
  offers = advice_page.answer(advice).json["offers"]
  assert {offer["drafter"] for offer in offers} == {"q", "twin"}


def test_nothing_pays(advise):
  asked, advice = advise(0.9, [1, 1.2, 1.6])
  assert advice.choice is None
  assert asked == [[1], [3]]
  (drafting,) = advice.draftings
  assert drafting.least_rate(1.0) is None
  assert drafting.least_rate(0.1) == 0
  text = advice_page.answer(advice).text
  assert "nothing pays: use the verifier alone" in text
  assert 'METHOD = "verifier"' in text


def test_the_fastest_that_fits(advise, monkeypatch):
  """The slowest promise is decoded first; a method that fails is given up."""

  def loss(row, alone):
    alpha = row.settings.alpha
    value = 1.0 if alpha is None or alpha > 0.6 else -1.0
    return candidates.Loss(value, 0.0, 0.0)

  monkeypatch.setattr(advisor, "loss", loss)
  method = "spec_cascade_token_v3"
  _, advice = advise(0.02, [1, 1.1, 1.3], max_loss=0.0, methods=[method])
  drafter, *tried = advice.decoded
  assert drafter.point.method == "drafter"
  assert drafter.here.speedup > 5
  alphas = [offer.point.alpha for offer in tried]
  assert alphas == sorted(alphas)
  assert alphas[-1] == 0.8  # the first that does not fit is the last tried
  offer = advice.choice
  assert (offer.point.method, offer.point.alpha) == (method, 0.6)
  assert offer.here.speedup > 1.03 * advice.lossless.here.speedup
  answer = advice_page.answer(advice)
  assert "it has " in answer.text
  # It says how long its answers are, and what one takes.
  length = offer.relative_length
  assert length.value == sum(offer.row.lengths) / sum(advice.alone.lengths)
  assert f"its answers are {length.value:.2f}" in " ".join(answer.text.split())
  chosen = answer.values["choice"]
  assert chosen["relative_length"] == length._asdict()
  assert chosen["seconds_per_answer"] == offer.measured.walltime_s


def test_answers_that_grow_take_longer(advise, monkeypatch):
  """A point is as fast as its answers, whatever it takes a token."""
  decode = advisor.Searcher._decode
  method = "spec_cascade_token_v3"

  def decode_longer(search, study, point):
    texts, row = decode(search, study, point)
    if point.method == method:
      ratio = {"value": 2.0, "low": 1.9, "high": 2.1, "num_examples": 32}
      row = dataclasses.replace(row, relative_length=ratio)
      # There is no time to read its own texts.
      is_over = iter([True])
      search.budget.is_over = lambda: next(is_over, False)
    return texts, row

  monkeypatch.setattr(advisor.Searcher, "_decode", decode_longer)
  fits = candidates.Loss(-1.0, 0.0, 0.0)
  monkeypatch.setattr(
    advisor,
    "loss",
    lambda row, alone: fits._replace(value=float(row.settings.alpha is None)),
  )
  _, advice = advise(0.02, [1, 1.1, 1.3], max_loss=0.0, methods=[method])
  _, *tried = advice.decoded
  promised = {x.point.alpha: x.here.speedup for x in advice.offers}
  for offer in tried:
    half = promised[offer.point.alpha] / 2
    assert offer.here.speedup == pytest.approx(half)
    assert offer.here.latency.relative_low > promised[offer.point.alpha] ** -1
  # All of them fit, and none is faster with an answer.
  assert tried
  assert advice.choice is advice.lossless


def test_what_was_decoded_is_kept_when_the_time_is_over(advise, monkeypatch):
  """The verifier, the drafter and one point are decoded; the next is late."""
  decode, begun = advisor.Searcher._decode, []

  def late_decode(search, study, point):
    begun.append(point.method)
    if len(begun) > 3:
      raise effort.TimeIsUp(point.method)
    return decode(search, study, point)

  def loss(row, alone):
    return candidates.Loss(float(row.settings.method == "drafter"), 0.0, 0.0)

  monkeypatch.setattr(advisor.Searcher, "_decode", late_decode)
  monkeypatch.setattr(advisor, "loss", loss)
  method = "spec_cascade_token_v3"
  _, advice = advise(0.02, [1, 1.1, 1.3], max_loss=0.0, methods=[method])
  assert begun == ["verifier", "drafter", method, method]
  assert [x.point.method for x in advice.decoded] == ["drafter", method]


def test_a_loop_costs_nothing_or_more():
  """A decode that the clock finds faster than its passes gains nothing."""
  alone = types.SimpleNamespace(lengths=np.array([6, 4]))
  costs = Costs(1e-3, 0.1, 0.1, {1: 1.0}, 0.5, 2.0)
  drafting = Drafting(None, costs, alone, GAMMAS)
  offer = lambda gamma, expected, measured: types.SimpleNamespace(
    point=types.SimpleNamespace(gamma=gamma),
    here=types.SimpleNamespace(
      latency=types.SimpleNamespace(relative_latency=expected), tokens=2.0
    ),
    measured=types.SimpleNamespace(relative_latency=measured),
  )
  # 14 steps alone, 5 blocks: a tenth of them is 1.4 steps, 0.28 a block.
  offers = [offer(1, 0.5, 0.4), offer(3, 0.5, 0.6)]
  assert drafting.calibrate(offers).overhead == pytest.approx({1: 0.0, 3: 0.28})


def test_costs_do_not_fall_with_width():
  measured = Costs(2.0, 0.2, 0.1, {1: 1.0, 2: 0.5, 4: 1.5}, 0.4, 3.0)
  costs = make_monotone(measured)
  assert costs.v == {1: 1.0, 2: 1.0, 4: 2.0}
  assert costs.verifier_step_s == 1.5
  # What was measured in seconds stays as many seconds.
  for name in ("c", "drafter_prefill", "verifier_prefill"):
    before, after = getattr(measured, name), getattr(costs, name)
    assert after * costs.verifier_step_s == pytest.approx(
      before * measured.verifier_step_s
    )
  assert costs.q2 == costs.c


def test_the_answer_comes_first_and_the_choice_is_marked(advise, tmp_path):
  """Then what to paste, then the table, then how it was found."""
  _, advice = advise(0.01, [1, 1.02, 1.04], methods=["spec_cascade_opt"])
  argv = ["x", "--gin_file=a.gin", "--gin_file=runs/advise.gin"]
  argv += ["--gin.GAMMAS=[1, 3]", "--gin.OUTPUT_DIR='a'", "--gin.TOP_K=2"]
  text = advice_page.answer(advice, argv).text
  order = (
    "- use spec_decode, gamma 3: ",
    "python -m speccascade.decode --gin_file=a.gin --gin.TOP_K=2 ",
    "--gin.METHOD='\"spec_decode\"' --gin.GAMMA=3",
    f"--gin.OUTPUT_DIR='\"{tmp_path}_decode\"'",
    'METHOD = "spec_decode"\nGAMMA = 3\n',
    "| chosen | q ",
    "a step of q costs",
  )
  places = [text.index(part) for part in order]
  assert places == sorted(places)
  assert places[0] == 0
  assert "warning" not in text
  # It is the first line of the table, and the only one that is marked.
  lines = [line for line in text.splitlines() if line.startswith("|")]
  assert lines[2].startswith("| chosen | ")
  assert text.count("| chosen ") == 1


def test_nothing_pays_first_and_nothing_is_marked(advise):
  _, advice = advise(0.9, [1, 1.2, 1.6])
  text = advice_page.answer(advice, ["x", "--gin_file=a.gin"]).text
  assert text.startswith("- nothing pays: use the verifier alone")
  assert "--gin.METHOD='\"verifier\"'" in text
  assert "chosen" not in text


def test_rounds_that_scatter_are_a_warning(advise):
  """The costs are those of a quiet machine; the rounds say that it was not."""
  rounds = (1.0, 1.4, 1.6)
  _, advice = advise(0.01, [1, 1.02, 1.04], rounds=rounds)
  (warning,) = advice.warnings
  assert "median 1.4x the minimum" in warning
  assert "over 1.15x for 3 of 3 passes" in warning
  assert "idle machine" in warning
  assert "raise ROUNDS, REPEATS" in warning
  lines = advice_page.answer(advice).text.splitlines()
  assert lines[0].startswith("- use spec_decode")
  assert lines[1] == f"- warning: {warning}"
  assert advice_page.answer(advice).json["warnings"] == [warning]


def test_a_search_ends_when_its_time_is_up(advise, monkeypatch):
  """What it has is timed, and a warning names what it left out."""

  def loss(row, alone):
    return candidates.Loss(float(row.settings.method == "drafter"), 0.0, 0.0)

  monkeypatch.setattr(advisor, "loss", loss)
  asked, advice = advise(
    0.01,
    [1, 1.02, 1.04],
    max_loss=0.0,
    methods=["spec_cascade_token_v3"],
    limits=Effort(time_limit_s=100.0),
    budget=late,
  )
  assert asked == [[3]]  # not what is next to it
  assert [offer.point.method for offer in advice.decoded] == ["drafter"]
  assert advice.choice is advice.lossless
  (warning,) = advice.warnings
  assert warning.startswith(
    "TIME_LIMIT_S of 100 s left out costs of q by whole decodes, gammas next to"
    " the fastest, points that promise to be faster: "
  )


def test_the_bar_knows_its_end(advise, capfd):
  advise(0.01, [1, 1.02, 1.04], progress=True)
  lines = [
    line for line in capfd.readouterr().err.splitlines() if "advise:" in line
  ]
  # The verifier, one drafter's four steps and the last timing.
  assert "0 of 6, " in lines[0]
  assert "about 03:00 left" in lines[0]
  assert "6 of 6, " in lines[-1]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_spent_time_leaves_one_gamma_to_compile(advise, is_late):
  """Both promise about as much; the one that promises most is timed."""
  asked, advice = advise(
    0.01,
    [1, 1.02, 1.03],
    by_clock={3: 1.1, 4: 1.1},
    budget=late if is_late else Budget,
  )
  assert asked == [[3] if is_late else [3, 4]]
  warnings = "".join(advice.warnings)
  assert ("gammas of equal promise" in warnings) == is_late


class Watch:
  """A clock that what is measured moves on, and what began at which time."""

  def __init__(self, seconds):
    self.now, self.seconds, self.begun = 0.0, seconds, []

  def budget(self, limit_s):
    return Budget(limit_s, clock=lambda: self.now)

  def slow(self, name, function):
    """Returns the function, which takes long and notes when it begins."""

    def call(*args, **kwargs):
      self.begun.append((self.now, name))
      result = function(*args, **kwargs)
      self.now += self.seconds
      return result

    return call

  def compiling(self, name, function):
    """Returns the function, which compiles three programs in that time."""

    def call(*args, tick, **_):
      for _ in range(3):
        tick(0)
        self.begun.append((self.now, name))
        self.now += self.seconds / 3
      tick(0)
      return function(*args)

    return call


LIMIT_S = 100.0


@pytest.mark.parametrize("seconds", [150.0, 90.0, 60.0, 40.0, 30.0, 22.0, 0.0])
@pytest.mark.parametrize("trees", [False, True])
def test_nothing_begins_after_the_limit(monkeypatch, tmp_path, seconds, trees):
  """Whatever part the time ends in, the answer is whole and says so."""
  watch = Watch(seconds)
  costs = Costs(1e-3, 0.01, 0.015, dict.fromkeys(range(1, 10), 1.0), 0.01, 1.0)

  def time_points(study, points):
    ones = np.ones((3, 8))
    return {point: walltime.latency(0.5 * ones, ones) for point in points}

  slow = {
    "cost_loops": lambda *_: tables_of(costs, (1.0, 1.0)),
    "check_costs": lambda study, point, costs: costs,
    "time_points": time_points,
  }
  for name, function in slow.items():
    monkeypatch.setattr(point_timing, name, watch.compiling(name, function))
  decode = watch.slow("texts", Batches.decode_all)
  monkeypatch.setattr(Batches, "decode_all", decode)
  monkeypatch.setattr(effort, "Budget", watch.budget)
  settings = {
    "pair": types.SimpleNamespace(
      load=lambda vocabulary: pair(8),
      vocabulary_path=None,
      draft_vocabulary=None,
      drafter_checkpoint="/q",
    ),
    "inputs": types.SimpleNamespace(read=lambda default_path: sources(8)),
    "point": Point("spec_decode", gamma=2, temperature=1.0),
    "run": Run(tmp_path, max_decode_len=6, progress=False),
    "effort": Effort(time_limit_s=LIMIT_S),
  }
  if trees:
    wanted = tree_search.WantedTrees(sizes=(2,), max_children=2, max_depth=2)
    advice = tree_search.search(**settings, trees=wanted)
    tree_page.write(advice)
  else:
    methods = ["spec_cascade_token_v3"]
    wanted = Wanted(100.0, methods, GAMMAS, num_decoded=1)
    advice = advisor.advise(**settings, wanted=wanted)
    advice_page.write(advice)
  assert watch.begun[0] == (0.0, "texts")
  assert all(now < LIMIT_S for now, _ in watch.begun)
  is_cut = any("TIME_LIMIT_S of 100 s left out" in x for x in advice.warnings)
  # A search for a tree has four steps; advice always has more that it could do.
  assert is_cut == (4 * seconds >= LIMIT_S if trees else seconds > 0)
  is_timed = bool(advice.timed)
  # What passes cost is printed as soon as it is known.
  has_costs = bool(
    advice.costs and advice.offers if trees else advice.draftings
  )
  assert has_costs == (2 * seconds < LIMIT_S)
  name = "trees" if trees else "advice"
  values = json.loads((tmp_path / f"{name}.json").read_text())
  assert values["warnings"] == advice.warnings
  text = (tmp_path / f"{name}.md").read_text()
  assert all(f"- warning: {warning}\n" in text for warning in advice.warnings)
  snippet = (tmp_path / f"{name}.gin").read_text()
  if not is_timed:
    assert values["choice"] is None
    assert text.startswith("- use the verifier alone: the time limit was")
    assert snippet == '# Nothing was timed.\nMETHOD = "verifier"\n'
  elif values["choice"]:
    assert 'METHOD = "spec_' in snippet


@pytest.mark.parametrize(
  ("low", "high", "pays"),
  [
    (0.80, 0.90, True),
    (0.80, 0.96, False),  # the clock has not shown 1.05: 1 / 0.96 is 1.04
    (0.80, 1.20, False),
    (0.80, 1 / 1.05, False),  # as much as two equal programs may differ by
  ],
)
@pytest.mark.parametrize("kind", [advisor.Advice, tree_search.TreeAdvice])
def test_what_the_clock_has_not_shown_does_not_pay(kind, low, high, pays):
  ones = np.ones((3, 8))
  measured = dataclasses.replace(
    walltime.latency(0.85 * ones, ones), relative_low=low, relative_high=high
  )
  point = Point("spec_decode")
  offer = candidates.Candidate(None, point, measured=measured)
  if kind is advisor.Advice:
    advice = kind(None, point, Wanted(), timed=[offer])
  else:
    advice = kind(None, point, offers=[offer])
  assert (advice.choice is offer) == pays


def test_trees_are_priced_by_whole_decodes_between_two_shares(
  monkeypatch, tmp_path
):
  """Their passes alone decide between trees; other searches run without it."""
  watch = Watch(0.0)
  costs = Costs(1e-3, 0.01, 0.015, dict.fromkeys(range(1, 10), 1.0), 0.01, 1.0)
  checked = []

  def cost_loops(*_, **__):
    watch.now = 0.7 * LIMIT_S
    return tables_of(costs, (1.0, 1.0))

  def check_costs(study, point, costs, **_):
    checked.append(watch.now)
    return costs

  monkeypatch.setattr(point_timing, "cost_loops", cost_loops)
  monkeypatch.setattr(point_timing, "check_costs", check_costs)
  monkeypatch.setattr(effort, "Budget", watch.budget)
  advice = tree_search.search(
    pair=types.SimpleNamespace(
      load=lambda vocabulary: pair(4),
      vocabulary_path=None,
      draft_vocabulary=None,
      drafter_checkpoint="/q",
    ),
    inputs=types.SimpleNamespace(read=lambda default_path: sources(4)),
    point=Point("spec_decode", gamma=2),
    run=Run(tmp_path, max_decode_len=4, progress=False),
    effort=Effort(time_limit_s=LIMIT_S),
    trees=tree_search.WantedTrees(sizes=(2,), max_children=2, max_depth=2),
    measuring=Measuring(repeats=1),
  )
  assert checked == [0.7 * LIMIT_S]
  assert not advice.warnings
