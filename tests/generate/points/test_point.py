"""What a point says of its passes, and which settings are one point."""

import dataclasses

import pytest

from speccascade.checkpoints import rule_files
from speccascade.decoding.laws import learned
from speccascade.decoding.programs.decoders import DraftLength
from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.points import point_checks
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import settings_of
from speccascade.settings import fields
from speccascade.settings.fields import SettingError
from speccascade.study.evaluation import efficiency

RUN = {"max_decode_len": 8, "task": "t", "split": "", "num_examples": 1}
RUN |= {"drafter": "s", "verifier": "l"}
SURE = ("max_prob", 0.4)


def num_points(name, *settings):
  """Returns how many points the settings make of a method."""
  points = [Point(name, temperature=0.0, **each) for each in settings]
  return len({settings_of(point, **RUN).key for point in points})


def test_the_fallback_of_bild_tells_its_points_apart():
  lengths = ["fixed", ("max_prob", 0.0), ("max_prob", 0.3), ("max_prob", 1)]
  settings = [{"draft_length": length} for length in lengths]
  assert num_points("bild", *settings) == len(lengths)
  # The authors' own is what "fixed" means.
  own = {"draft_length": ("max_prob", 0.6)}
  assert num_points("bild", {}, own) == 1
  point = Point("bild", temperature=0.0, draft_length=("max_prob", 0.3))
  row = settings_of(point, **RUN)
  assert (row.draft_length, row.draft_threshold) == ("max_prob", 0.3)
  assert settings_of(Point("bild", temperature=0.0), **RUN).draft_length is None


def test_what_changes_nothing_makes_no_other_point():
  printed = {"bonus": "verifier"}
  for name in ("spec_decode", "cascade_drafting", "bild", "verifier"):
    assert num_points(name, {}, printed) == 1
  assert num_points("spec_cascade_opt", {}, printed) == 2
  # Nothing is filtered from an arg-max.
  for filtered in ({"top_k": 3}, {"top_p": 0.5}):
    assert num_points("spec_decode", {}, filtered) == 1
  several = {
    settings_of(Point("drafter", top_k=k), **RUN).top_k for k in (0, 3)
  }
  assert several == {None, 3}


def test_the_shape_and_the_drawing_of_a_tree_tell_points_apart():
  tree = {"tree": [2, 1], "gamma": 2}
  drawn = {**tree, "drawing": "iid"}
  paths = {"drafts": 2, "gamma": 2}
  assert num_points("spec_decode", {"gamma": 2}, tree, drawn, paths) == 4
  for one in ({"drafts": 1}, {"tree": None}):
    assert num_points("spec_decode", {"gamma": 2}, {"gamma": 2, **one}) == 1
  # The default drawing, and the shape of a method that drafts nothing.
  greedy = {**tree, "drawing": "greedy_and_random"}
  assert num_points("spec_decode", tree, greedy) == 1
  assert num_points("verifier", {}, tree) == 1


def test_a_row_says_the_tree_and_the_width_of_its_pass():
  point = Point("spec_decode", tree=[3, 2], gamma=2)
  row = settings_of(point, **RUN)
  assert (row.tree, row.drawing) == ((3, 2), "greedy_and_random")
  assert row.block_width == point.verify_width == 1 + 3 + 6
  assert not efficiency.is_predictable(point)
  again = fields.build(type(row), row.to_dict())
  assert again == row
  chain = settings_of(Point("spec_decode", gamma=2), **RUN)
  assert not {"tree", "drafts", "drawing"} & set(chain.to_dict())


def test_a_method_of_its_own_drafts_leaves_the_tree_out():
  point = Point("spec_decode", tree=[2, 1], gamma=2)
  assert point.of("cascade_drafting").tree is None
  assert point.of("spec_cascade_opt").tree == (2, 1)
  with pytest.raises(SettingError, match="none of CS Drafting drafts trees"):
    point_checks.check_shared(point, ["cascade_drafting"])
  assert point.of("bild", temperature=0.0).tree is None


@pytest.mark.parametrize(
  ("name", "label"),
  [("bild", "BiLD"), ("cascade_drafting", "CS Drafting")],
)
def test_a_method_that_drafts_chains_refuses_a_tree(name, label):
  for tree in ({"tree": (2, 1)}, {"drafts": 2}):
    message = f"tree is given, and {label} drafts chains; leave it out"
    with pytest.raises(SettingError, match=message) as caught:
      Point(name, temperature=0.0, gamma=2, **tree)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("name", "settings", "message"),
  [
    (
      "token_cascade_chow",
      {"draft_length": SURE},
      r"'max_prob'; TokenCascade \[Chow\] takes 'fixed'",
    ),
    (
      "bild",
      {"draft_length": ("token_prob", 0.4)},
      "'token_prob'; BiLD .*'fixed' or 'max_prob'",
    ),
    (
      "bild",
      {"verification": "block"},
      "'block'; BiLD takes 'token' .*leave it out",
    ),
    ("verifier", {"verification": "block"}, "Large model takes 'token' alone"),
    ("cascade_drafting", {"draft_length": SURE}, "CS Drafting takes 'fixed'"),
  ],
)
def test_a_setting_that_a_method_ignores_is_refused(name, settings, message):
  with pytest.raises(SettingError, match=message) as caught:
    Point(name, temperature=0.0, **settings)
  # What gin looks a macro up by.
  assert (caught.value.name, caught.value.owner) == (*settings, Point)
  assert "\n" not in str(caught.value)


def test_a_method_takes_what_it_uses_of_common_settings():
  common = Point(
    "spec_decode",
    temperature=0.0,
    bonus="verifier",
    verification="block",
    draft_length=SURE,
  )
  alone = common.of("verifier")
  assert (alone.draft_length, alone.verification) == ("fixed", "token")
  # Points of every gamma have one reference.
  other = dataclasses.replace(common, gamma=common.gamma + 1)
  assert other.of("verifier") == alone
  assert common.of("drafter", gamma=7) == other.of("drafter")
  bild = common.of("bild", alpha=2.0)
  assert bild.policy == DraftLength(*SURE)
  assert (bild.alpha, bild.verification) == (2.0, "token")
  drafting = common.of("cascade_drafting", gamma=3)
  assert (drafting.draft_length, drafting.verification) == ("fixed", "block")
  assert drafting.gamma == 3
  bild = Point("bild", temperature=0.0, draft_length=("max_prob", 0.6))
  assert bild.of("verifier").draft_length == "fixed"
  # Where none of them uses a setting, it is not a setting of theirs.
  point_checks.check_shared(common, ["verifier", "spec_decode"])
  with pytest.raises(SettingError, match=r"draft_length .* none of Large mod"):
    point_checks.check_shared(common, ["verifier", "cascade_drafting"])
  with pytest.raises(SettingError, match="verification is 'block'; none of"):
    point_checks.check_shared(common, ["bild", "verifier"])


MAX_PROB = ("max_prob", 0.5)


@pytest.mark.parametrize(
  ("method", "more", "folds"),
  [
    ("spec_decode", {}, True),
    # A target of both distributions needs the drafter's at the bonus position.
    ("spec_cascade_opt", {}, False),
    ("spec_cascade_opt", {"bonus": "verifier"}, True),
    # A drafter that may stop computes the distribution of where it stopped.
    ("spec_decode", {"draft_length": MAX_PROB}, False),
    ("verifier", {}, False),
  ],
)
def test_whose_drafters_read_two_tokens_at_once(method, more, folds):
  assert Point(method, **more).folds == folds


@pytest.mark.parametrize(
  ("method", "width"),
  [("spec_decode", 5), ("verifier", 1), ("token_cascade_chow", 4)],
)
def test_a_verifier_pass_is_as_wide_as_a_block_and_one(method, width):
  assert Point(method, gamma=4).verify_width == width


def test_costs_predict_where_calls_are_of_one_width():
  # A block costs 3 c + q2 + v_5 = 2.4 steps, and writes 8 / 2 tokens.
  costs = Costs(1e-3, 0.1, 0.2, {1: 1.0, 5: 1.9}, 1.0, 1.0)
  counts = Counts(
    **{"num_examples": 1, "num_tokens": 8, "num_blocks": 2, "drafted": 8},
    **{"accepted_at": (0, 0, 0, 2, 0), "drafter_calls": 8},
    **{"verifier_calls": 2, "verifier_extends": 2},
  )
  for method, speedup in (("spec_decode", 4 / 2.4), ("cascade_drafting", None)):
    point = Point(method, gamma=4)
    assert efficiency.is_predictable(point) == (speedup is not None)
    predicted = efficiency.predicted_at(point, counts, costs)
    assert predicted == (speedup and pytest.approx(speedup))
  assert not efficiency.is_predictable(Point("bild", temperature=0.0))


def test_a_learned_rule_needs_the_file_of_its_parameters(tmp_path):
  name = "spec_cascade_learned"
  message = (
    "rule_parameters is None, and method 'spec_cascade_learned' has"
    " parameters: name the file that python -m speccascade.learned_rule writes"
  )
  with pytest.raises(SettingError, match=message):
    Point(name)
  for number, kind in enumerate(("calibration", "heads")):
    parameters = learned.KINDS[kind].plug_in()
    path = tmp_path / f"{number}.npz"
    rule_files.write(path, {kind: parameters}, {})
  message = "rule_parameters names a file without heads, which method"
  with pytest.raises(SettingError, match=message):
    Point(name, rule_parameters=tmp_path / "0.npz")
  point = Point(name, 0.5, rule_parameters=tmp_path / "1.npz")
  assert point.decoder_alpha.alpha == 0.5
  # Rows distinguish parameters, and those of other methods do not change.
  digest = settings_of(point, **RUN).rule_parameters
  assert digest == rule_files.read(tmp_path / "1.npz").digest
  plain = Point("spec_cascade_opt", rule_parameters=tmp_path / "1.npz")
  assert plain.decoder_alpha == plain.alpha
  assert "rule_parameters" not in settings_of(plain, **RUN).to_dict()
  assert point.of("verifier").alpha == 0


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"method": "cascade_drafting"}, "drafts in a way of its own"),
    ({"tree": (2, 1)}, "a tree has one shape"),
    ({"draft_length": ("max_prob", 0.4)}, "'max_prob' ends blocks by itself"),
    (
      {"method": "spec_cascade_opt", "bonus": "verifier"},
      "depend on the gammas",
    ),
    ({"draft_costs": DraftCosts((1, 2), (1.2, 1.5), 0.3)}, "lack the size 0"),
    ({"draft_costs": "/nowhere"}, "DRAFT_COSTS /nowhere is not there"),
  ],
)
def test_what_cannot_choose_its_gammas_is_refused(settings, message):
  settings = {"method": "spec_decode", "gamma": "adaptive"} | settings
  with pytest.raises(ValueError, match=message):
    Point(**settings)


def test_costs_that_choose_no_gamma_are_refused():
  costs = DraftCosts((0, 1), (1.0, 1.3), 0.2)
  message = "draft_costs are given, and gamma is 3: set it to 'adaptive', or"
  with pytest.raises(SettingError, match=message):
    point_checks.check_draft_costs_are_used(
      Point("spec_decode", gamma=3, draft_costs=costs)
    )
  point = Point("spec_decode", gamma="adaptive", draft_costs=costs)
  point_checks.check_draft_costs_are_used(point)
  verifier = point.of("verifier")
  point_checks.check_draft_costs_are_used(verifier)
  # Points that are equal are decoded once.
  assert verifier == Point("spec_decode", gamma=2).of("verifier")


def test_costs_in_another_unit_are_refused(tmp_path):
  file = tmp_path / "draft_costs.json"
  fine = DraftCosts((0, 1, 3), (1.0, 1.3, 1.9), 0.2)
  for factor in (1.2, 1000, 0.001):
    rounds = tuple(factor * cost for cost in fine.rounds)
    dataclasses.replace(fine, rounds=rounds).write(file)
    if factor == 1.2:
      assert DraftCosts.read(tmp_path).rounds == rounds
      continue
    with pytest.raises(ValueError, match="a round of the verifier"):
      Point("spec_decode", gamma="adaptive", draft_costs=file)


def test_sizes_to_choose_from():
  costs = DraftCosts((0, 1, 3), (1.0, 1.3, 1.9), 0.2)
  point = Point("spec_decode", gamma="adaptive", draft_costs=costs)
  assert (point.widest, point.verify_width, point.folds) == (3, 4, True)
  assert point.drafter("model").sizes == (0, 1, 3)
  # A target that reads q has none without a draft.
  lossy = point.of("spec_cascade_opt")
  assert lossy.drafter("model").sizes == (1, 3)
  # The bonus of a lossless method is the verifier's own.
  Point("spec_decode", gamma="adaptive", bonus="verifier")
  # Methods without blocks leave it aside, and so does BiLD, which has its own
  # reason to end a block.
  for method in ("verifier", "token_cascade_chow", "bild"):
    alone = point.of(method, temperature=0.0)
    assert not alone.is_adaptive
    assert alone.drafter("model") == "model"
    assert settings_of(alone, **RUN).gamma is None
