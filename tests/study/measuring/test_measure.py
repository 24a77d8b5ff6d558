"""Measured points: what a row holds, and that none is measured twice."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.generate.batches import batching, decode_counts
from speccascade.generate.batches.sources import sources_of_texts
from speccascade.generate.pair import pairs
from speccascade.generate.pair.cascades import Cascade
from speccascade.generate.pair.model_loading import Model
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.records import Outputs
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.models.t5_lm import T5LM
from speccascade.runtime import memory
from speccascade.study.evaluation import walltime
from speccascade.study.measuring import (
  measure,
  point_timing,
  scoring,
)
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.rows import results
from speccascade.text.prompting import Prompting
from tests.generate import tiny

VOCABULARY = tiny.Vocabulary()
SAME = {"identical": 4, "near_ties": 0, "num_examples": 4}
POINTS = [
  Point(method, temperature=temperature, gamma=2)
  for temperature in (0.0, 1.0)
  for method in ("verifier", "spec_decode")
]


@pytest.fixture(scope="module")
def study():
  def model(name, seed, emb_dim):
    lm = T5LM.init(tiny.config(emb_dim), jax.random.key(seed))
    return Model(lm, name, name, num_parameters=emb_dim)

  texts = ["one two", "three", "four five six", "seven"]
  prompting = Prompting(VOCABULARY)
  sources = sources_of_texts(texts, prompting, max_len=8, truncate=False)
  examples = [
    dataclasses.replace(example, references=("one",))
    for example in sources.examples
  ]
  session = Session(
    pairs.ModelPair((model("small", 0, 8),), model("large", 1, 12)),
    dataclasses.replace(sources, examples=examples).fit_padding(),
    Run(max_decode_len=8, batch_size=1, log_probs=True),
  )
  return Study(session, Measuring(num_timed=2, repeats=2))


def test_rows(study, tmp_path, monkeypatch):
  file = results.ResultFile(tmp_path / "rows.jsonl")
  rows = measure.measure(study, POINTS, file)
  methods = [point.method for point in POINTS]
  assert [row.settings.method for row in rows] == methods
  for row in rows:
    assert row.counts.num_examples == 4
    # What is drawn from is the verifier, and greedy it is sure.
    assert row.log_probs["pi"] == row.log_probs["p"]
    assert (row.log_probs["pi"] == 0) == (row.settings.temperature == 0)
    assert (row.latency.num_examples, row.latency.repeats) == (2, 2)
    assert row.quality["bleu"]["num_examples"] == 4
    # Targets of a word have no 4-gram: exact match is beside BLEU.
    assert list(row.quality) == ["bleu", "exact_match"]
    assert row.predicted_speedup > 0
    assert row.latency.num_tokens > 0
    assert row.num_parameters == {"drafter": 8, "verifier": 12}
  alone, greedy = rows[:2]
  # The verifier is its own reference: the very same seconds.
  assert alone.latency.relative_latency == 1
  assert alone.latency.per_token == (1, 1, 1)
  assert alone.agreement == SAME
  assert greedy.agreement["identical"] + greedy.agreement["near_ties"] == 4
  assert greedy.counts.num_tokens == alone.counts.num_tokens
  assert rows[3].agreement is None
  # What an answer took, and how long it is: its tokens over the verifier's.
  for row, exact in zip(rows, [alone, alone, rows[2], rows[2]]):
    assert row.seconds_per_answer == row.latency.walltime_s
    assert sum(row.lengths) == row.counts.num_tokens
    ratio = row.relative_length
    assert ratio["num_examples"] == len(row.lengths) == 4
    assert ratio["value"] == sum(row.lengths) / sum(exact.lengths)
  assert greedy.lengths == alone.lengths
  assert [rows[2].relative_length[x] for x in ("low", "high")] == [1, 1]
  assert [row.cell for row in rows] == ["t0_d0", "t0_d2", "t1_d0", "t1_d2"]
  # Rows are on disk; nothing is measured again.
  again = results.ResultFile(tmp_path / "rows.jsonl")
  monkeypatch.setattr(measure, "_measure_group", None)
  assert measure.measure(study, POINTS, again) == rows
  assert len({row.key for row in again.rows}) == 4


def test_lengths_are_relative_to_a_row_of_an_earlier_start(study, tmp_path):
  apart = dataclasses.replace(study)  # which has no outputs of the verifier
  file = results.ResultFile(tmp_path / "rows.jsonl")
  lossy = Point("spec_decode_lossy", 0.5, temperature=1.0, gamma=2)
  [alone] = measure.measure(study, POINTS[2:3], file)
  [row] = measure.measure(apart, [lossy], file)
  ratio = row.relative_length
  assert ratio["num_examples"] == 4
  assert ratio["value"] == sum(row.lengths) / sum(alone.lengths)
  # Without that row the answers under the clock are what there is.
  other = results.ResultFile(tmp_path / "other.jsonl")
  [row] = measure.measure(apart, [lossy], other)
  assert row.relative_length["num_examples"] == 2
  value = sum(row.lengths[:2]) / sum(alone.lengths[:2])
  assert row.relative_length["value"] == value
  # And without a clock nothing is known.
  untimed = dataclasses.replace(apart, measuring=Measuring())
  third = results.ResultFile(tmp_path / "third.jsonl")
  [row] = measure.measure(untimed, [lossy], third)
  assert (row.relative_length, row.seconds_per_answer) == (None, None)
  assert len(row.lengths) == 4


def test_hot_loops_are_checked_by_whole_decodes(study):
  # Hot loops make the drafter nearly free; alone it takes .3 steps a token.
  costs = Costs(1e-3, 0.01, 0.015, {1: 1.0, 3: 1.2}, 0.1, 1.0)
  alone = Point("verifier", temperature=1.0)
  drafter = alone.of("drafter")

  def latency(token_s):
    return walltime.Latency(0.1, (0.1,), 1.0, 1.0, 1.0, 8, 1, token_s=token_s)

  timed = {drafter: latency(3e-4), alone: latency(1e-3)}
  checked = point_timing.costs_by_clock(study, alone, costs, timed)
  assert checked == Costs(
    1e-3, 0.3, pytest.approx(0.305), costs.v, 0.1, 1.0, loop_c=0.01
  )
  assert "hot loops give c = 0.01, and whole decodes of" in checked.doubt
  assert "c = 0.3, without the encoders" in checked.doubt
  # What is modelled takes the clock's c: 2 drafts and a pass over 3 tokens.
  point = Point("spec_decode", gamma=2)
  counts = decode_counts.Counts(
    10, 30, num_blocks=10, drafter_calls=20, verifier_extends=10
  )
  outputs = Outputs(counts=[counts])
  row, by_loops = (
    scoring.result_row(study, point, outputs, costs=each)
    for each in (checked, costs)
  )
  assert by_loops.predicted_speedup > 1.3 * row.predicted_speedup
  # Within a factor of two nothing is said, and the clock's c counts all the
  # same; where the lengths do not determine it, or the drafter was not timed,
  # the hot loops' does.
  close = point_timing.costs_by_clock(
    study, alone, costs, timed | {drafter: latency(1.5e-5)}
  )
  assert (close.c, close.loop_c, close.doubt) == (0.015, 0.01, None)
  for unknown in ({alone: latency(1e-3)}, timed | {drafter: latency(None)}):
    assert point_timing.costs_by_clock(study, alone, costs, unknown) is costs
  heads = dataclasses.replace(costs, heads={1: 0.1})
  assert point_timing.costs_by_clock(study, alone, heads, timed) is heads
  assert point_timing.costs_by_clock(study, alone, None, timed) is None


def test_rows_have_the_costs_of_the_clock(study, tmp_path, monkeypatch, caplog):
  # A pair that decodes, under a clock on which the drafter alone takes .3 ms a
  # token, and every other decode 1 ms, after 5 ms for the encoder.
  def interleave(competitors, examples, *, on_result, **_):
    seconds = {}
    for point, decode in competitors.items():
      step = 3e-4 if point.method == "drafter" else 1e-3
      seconds[point] = np.zeros((1, len(examples)))
      for place, example in enumerate(examples):
        decoded = decode(example)
        on_result(point, example, decoded)
        seconds[point][0, place] = 5e-3 + step * int(decoded.lengths[0])
    return seconds

  costs = Costs(1e-3, 0.01, 0.015, {1: 1.0, 3: 1.2}, 0.1, 1.0)
  monkeypatch.setattr(measure, "measure_costs", lambda *_: costs)
  monkeypatch.setattr(point_timing.timing, "interleave", interleave)
  examples = [
    dataclasses.replace(example, index=4 * copy + example.index)
    for copy in range(3)
    for example in study.sources.examples
  ]
  sources = dataclasses.replace(study.sources, examples=examples).fit_padding()
  timed = Study(
    dataclasses.replace(study.session, sources=sources),
    Measuring(num_timed=12, repeats=1),
  )
  points = [
    Point(method, temperature=1.0, gamma=2)
    for method in ("drafter", "verifier", "spec_decode")
  ]
  file = results.ResultFile(tmp_path / "rows.jsonl")
  # (The second group holds no drafter, and goes by the rows of the first.)
  rows = measure.measure(timed, points, file, group_size=2)
  for row in rows:
    assert row.costs.c == pytest.approx(0.3)
    assert row.costs.loop_c == 0.01
  (warning,) = caplog.messages
  assert warning.startswith("hot loops give c = 0.01")
  again = results.ResultFile(file.path).rows
  assert [row.costs for row in again] == [row.costs for row in rows]


def test_the_memory_of_a_batch_has_all_nodes_of_a_composed_drafter(
  study, monkeypatch
):
  seen = []
  monkeypatch.setattr(
    batching.memory, "check", lambda num_bytes, **_: seen.append(num_bytes)
  )
  point = Point("spec_decode", gamma=4)
  cascade = Cascade(k=[[1, 3], [0, 1]], first_children=8)
  composed = study.pair.combine_drafters(cascade, point.spec)
  for pair in (study.pair, composed):
    study.with_session(pair=pair).batches(point).check()
  # Seven siblings, a distribution of each model at each of them.
  assert seen[1] - seen[0] == 7 * 2 * 4 * study.pair.verifier_lm.vocab_size


def test_a_pass_over_a_tree_is_priced(study, monkeypatch):
  priced = []
  monkeypatch.setattr(
    point_timing.timing,
    "cost_loops",
    lambda *_, widths, **__: priced.append(widths),
  )
  tree = Point("spec_decode", gamma=2, tree=(2, 1))
  chain, drafting = Point("spec_decode", gamma=2), Point("cascade_drafting")
  point_timing.cost_loops(study, [tree, chain, drafting])
  assert priced == [{5, 3}]
  assert study.settings(tree).block_width == 5


def test_a_row_is_written_once_its_point_is_measured(
  study, tmp_path, monkeypatch
):
  file = results.ResultFile(tmp_path / "rows.jsonl")
  result_row = measure.scoring.result_row

  def fail_at_the_second(study, point, *args, **kwargs):
    if point == POINTS[3]:
      raise RuntimeError("killed")
    return result_row(study, point, *args, **kwargs)

  monkeypatch.setattr(measure.scoring, "result_row", fail_at_the_second)
  with pytest.raises(RuntimeError, match="killed"):
    measure.measure(study, POINTS[2:], file)
  rows = results.ResultFile(file.path).rows
  assert [row.settings.method for row in rows] == ["verifier"]


def test_points_are_not_names(study, tmp_path):
  file = results.ResultFile(tmp_path / "rows.jsonl")
  with pytest.raises(TypeError, match="holds 'spec_decode'; wanted an"):
    measure.measure(study, ["spec_decode"], file)


def test_near_ties_are_distinguished_from_differences(study):
  point = POINTS[0]
  batches, outputs = study.batches(point), Outputs()
  for example in study.examples:
    outputs.add(batches.decode([example]), [example])
  last = study.examples[3].index
  tokens = outputs.tokens[0, last]
  other = (int(tokens[0]) + 1) % 16
  changed = {(0, last): np.array([other, *tokens[1:]])}
  moved = Outputs(outputs.tokens | changed, outputs.counts)
  counted = scoring.count_identical(study, moved, outputs)
  assert counted == SAME | {"identical": 3}
  logits = scoring.logits_after(study, study.examples[3], tokens[:0])
  # Greedy: no logit lies above the one that was taken, and not all lie near.
  assert int(np.argmax(logits)) == int(tokens[0])
  assert np.ptp(logits) > scoring.TIE


def test_records_end_where_the_runs_stop_is(study):
  example = study.examples[2]
  decoded = study.batches(POINTS[0], timed=True).decode([example])
  [whole] = study.session.records(decoded, [example], 3)
  assert (whole["aux"]["index"], whole["aux"]["trial"]) == (example.index, 3)
  text = whole["prediction"]
  stop = text[len(text) // 2 :]
  run = dataclasses.replace(study.run, stop=(stop,))
  [cut] = study.with_session(run=run).session.records(decoded, [example])
  assert cut["prediction"] == text[: text.index(stop)] != text


def test_kernels_of_another_type_are_another_program(study):
  study.batches(POINTS[1]).decode_all(study.examples)
  needed = study.batches(POINTS[1]).needed_programs()
  assert needed.keys() <= study.session.programs.keys()
  model = study.pair.verifier
  params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model.lm.params)
  half = dataclasses.replace(model, lm=model.lm.replace(params=params))
  models = dataclasses.replace(study.pair, verifier=half)
  other = study.with_session(pair=models)
  needed = other.batches(POINTS[1]).needed_programs()
  assert not needed.keys() <= study.session.programs.keys()


def test_only_programs_that_run_are_compiled(study):
  session = dataclasses.replace(
    study.session,
    run=Run(max_decode_len=8, batch_size=2, refill=True),
    programs={},
  )
  refilled = Study(session, Measuring(num_timed=1, repeats=1))
  alone, point = POINTS[2:]
  point_timing.time_points(refilled, [point])
  # Under the clock no program of whole batches is needed,
  timed = {
    key
    for each in (alone, point)
    for key in refilled.batches(each, timed=True).needed_programs()
  }
  assert session.programs.keys() == timed
  # and no such program serves rows that are refilled.
  untimed = refilled.batches(point)
  assert untimed.needed_programs()
  session.compile([untimed])
  assert session.programs.keys() == timed
  measuring = dataclasses.replace(refilled.measuring, num_timed=4)
  all_timed = dataclasses.replace(refilled, measuring=measuring)
  assert not all_timed.batches(point).needed_programs()
  untimed = dataclasses.replace(refilled, measuring=Measuring())
  assert not untimed.batches(point, timed=True).needed_programs()


def test_a_full_process_forgets_programs(study, tmp_path, monkeypatch):
  point = POINTS[1]
  # (Nothing is timed, so that nothing but decoders is compiled.)
  study = dataclasses.replace(study, measuring=Measuring())
  measure.measure(study, [point], results.ResultFile(tmp_path / "first.jsonl"))
  before = dict(study.verifier_outputs)
  study.verifier_outputs.clear()
  monkeypatch.setattr(memory, "MOST_MAPS", 0)
  other = dataclasses.replace(point, gamma=1)
  again = results.ResultFile(tmp_path / "again.jsonl")
  measure.measure(study, [other], again)
  # Only what this point needs was compiled again.
  needed = [
    study.batches(each).needed_programs() for each in (other, POINTS[0])
  ]
  assert study.session.programs.keys() == set().union(*needed)
  for key, outputs in before.items():
    np.testing.assert_equal(study.verifier_outputs[key].tokens, outputs.tokens)
