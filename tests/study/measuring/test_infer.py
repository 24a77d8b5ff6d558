"""Whole runs with a tiny pair: output, resuming, and every refusal."""

import dataclasses
import json

import numpy as np
import pytest

from speccascade import report
from speccascade.decoding.drafting.draft_pace import SIZES
from speccascade.generate.batches import padding
from speccascade.generate.batches.batching import NoDistributionError
from speccascade.generate.batches.sources import InputError
from speccascade.generate.pair.pairs import PairError
from speccascade.generate.points import round_times
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import settings_of
from speccascade.runtime import memory
from speccascade.study.measuring import infer
from speccascade.study.rows import results
from speccascade.study.rows.run_folder import OutputError, Shards
from speccascade.tools.exchange import decode_folder
from tests.generate import tiny
from tests.generate.conftest import TEXTS


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
  """Two examples a shard, so that these few inputs make several."""
  monkeypatch.setattr(infer, "LEAST_EXAMPLES", 2)
  monkeypatch.setattr(infer, "LEAST_BATCHES", 1)


def test_output(run, tmp_path, lines, monkeypatch):
  row = run(trials=2)
  written = lines()
  assert [r["inputs"] for r in written] == TEXTS * 2
  assert [r["aux"]["trial"] for r in written] == [0] * 6 + [1] * 6
  assert [r["aux"]["index"] for r in written] == [*range(6)] * 2
  vocabulary = tiny.Vocabulary()
  for record in written:
    aux = record["aux"]
    assert record["targets"] == ["one two three"]
    assert len(aux["tokens"]) == aux["counts"]["num_tokens"] <= 8
    known = [t for t in aux["tokens"] if 1 < t < vocabulary.vocab_size]
    assert record["prediction"] == vocabulary.decode(known)
    assert "trace" not in aux
  # Another trial, another draw.
  tokens = [record["aux"]["tokens"] for record in written]
  assert tokens[:6] != tokens[6:]
  assert row.counts.num_examples == row.quality["bleu"]["num_examples"] == 12
  assert row.counts.num_tokens == sum(map(len, tokens))
  assert row.settings.drafter == "small-7"
  out = tmp_path / "out"
  names = ["metrics.json", "predictions.jsonl", "run.json"]
  assert sorted(p.name for p in out.iterdir()) == names
  assert results.read_row(out / "metrics.json") == row
  # Draws do not depend on the batch.
  run(trials=2, output_dir=tmp_path / "four", batch_size=4)
  assert [record["aux"]["tokens"] for record in lines("four")] == tokens
  # Nor on the rows that an example comes after.
  monkeypatch.setattr(infer, "LEAST_BATCHES", 3)
  assert run(trials=2, output_dir=tmp_path / "refilled", refill=True) == row
  assert lines("refilled") == written


@pytest.mark.parametrize("refill", [False, True])
def test_rows_do_not_merely_pad_a_small_file(
  refill, run, files, tmp_path, lines, monkeypatch
):
  """Fewer examples than BATCH_SIZE have as many rows; they draw the same."""
  monkeypatch.setattr(infer, "LEAST_BATCHES", 3)
  rows, pad_batch = [], padding.pad_batch

  def counted(examples, num, *args, **options):
    rows.append(num)
    return pad_batch(examples, num, *args, **options)

  monkeypatch.setattr(padding, "pad_batch", counted)
  three = tmp_path / "three.jsonl"
  texts = (files / "in.jsonl").read_text().splitlines(keepends=True)
  three.write_text("".join(texts[:3]))
  few = run(input_file=str(three), batch_size=32, trials=2, refill=refill)
  assert {*rows} == {3}
  tokens = [record["aux"]["tokens"] for record in lines()]
  # A folder is of the setting, so that no other one continues it.
  identity = json.loads((tmp_path / "out" / "run.json").read_text())
  assert identity["batch_size"] == 32
  rows.clear()
  settings = {"output_dir": tmp_path / "other", "batch_size": 2, "trials": 2}
  many = run(input_file=str(three), refill=refill, **settings)
  assert {*rows} == ({3} if refill else {2})
  assert [record["aux"]["tokens"] for record in lines("other")] == tokens
  assert few == many


def test_lines_have_stops_of_their_own(run, files, tmp_path, lines):
  run(output_dir=tmp_path / "whole", log_probs=True)
  whole = lines("whole")
  words = [record["prediction"].split() for record in whole]
  # The second word of every other line, which others write, too.
  own = [[each[1]] if place % 2 else [] for place, each in enumerate(words)]
  rows = [json.loads(line) for line in (files / "in.jsonl").open()]
  stopped = tmp_path / "stopped.jsonl"
  stopped.write_text(
    "".join(
      json.dumps(row | {"stop": stop}) + "\n" for row, stop in zip(rows, own)
    )
  )
  run(input_file=str(stopped), log_probs=True)
  reasons = []
  for record, other, stop in zip(lines(), whole, own, strict=True):
    num = len(record["aux"]["tokens"])
    assert record["aux"]["tokens"] == other["aux"]["tokens"][:num]
    text = other["prediction"]
    assert record["prediction"] == (text.split(stop[0])[0] if stop else text)
    reasons.append(record["aux"]["stop_reason"])
  assert reasons[1::2] == ["stop"] * 3
  assert "stop" not in reasons[::2]
  # Beside the decode's own, and in rows that take the place of others.
  settings = {"input_file": str(stopped), "refill": True, "log_probs": True}
  row = run(output_dir=tmp_path / "refilled", **settings)
  assert row.settings.limits is None
  assert lines("refilled") == lines()
  place = next(place for place in (0, 2, 4) if words[place])
  first = words[place][0]
  run(output_dir=tmp_path / "both", stop=[first], include_stop=True, **settings)
  assert lines("both")[place]["prediction"] == first
  for record, stop in zip(lines("both"), own):
    assert not stop or record["prediction"].endswith((first, stop[0]))
  # A folder is of its stops.
  stopped.write_text(stopped.read_text().replace('"stop": []', '"stop": ["x"]'))
  with pytest.raises(OutputError, match="inputs_sha256"):
    run(input_file=str(stopped), log_probs=True)


def test_gamma_of_advice(run, tmp_path):
  """Rows hold the number. Without advice the message names a command."""
  offers = [
    {"drafter": "small-7", "method": method, "alpha": None, "gamma": gamma}
    for method, gamma in [("drafter", None), ("spec_decode", 2)]
  ]
  advice = {"about": {"verifier": "large-7", "top_p": None}, "offers": offers}
  (tmp_path / "advice.json").write_text(json.dumps(advice))
  row = run(gamma="auto", advice=tmp_path)
  assert row.settings.gamma == 2
  assert run(gamma=2) == row  # the same run, taken up
  with pytest.raises(ValueError, match=r"run python -m\s+speccascade\.advise"):
    run(gamma="auto", output_dir=tmp_path / "other")
  with pytest.raises(ValueError, match=r"gamma is 'most'; .*whole number"):
    run(gamma="most")


def test_rows_choose_their_gammas(run, tmp_path, lines, monkeypatch):
  """By costs that are measured once, and lie beside the outputs."""
  write = Shards.write

  def dies(self, at, shard_lines):
    if at == 1:
      raise KeyboardInterrupt
    write(self, at, shard_lines)

  settings = {"gamma": "adaptive", "trace": True}
  monkeypatch.setattr(round_times, "_BUDGET_S", 0.0)  # one turn of the sizes
  monkeypatch.setattr(Shards, "write", dies)
  with pytest.raises(KeyboardInterrupt):
    run(**settings)
  monkeypatch.setattr(Shards, "write", write)
  file = tmp_path / "out" / "draft_costs.json"
  costs = DraftCosts.read(file)
  assert costs.sizes == SIZES
  assert costs.rounds[0] == 1
  assert list(costs.rounds) == sorted(costs.rounds)
  # Other costs would give other gammas: no run continues with them.
  dear = tmp_path / "dear.json"
  dataclasses.replace(costs, catch_up=2 * costs.catch_up).write(dear)
  with pytest.raises(ValueError, match="draft_costs"):
    run(**settings, draft_costs=dear)
  # A run that continues measures nothing, and nor does one that is handed them.
  # What the first process read is JSON for the others.
  monkeypatch.setattr(round_times, "measure", None)
  monkeypatch.setattr(
    round_times.processes,
    "agree",
    lambda make: json.loads(json.dumps(make())),
  )
  row = run(**settings)
  written = lines()
  monkeypatch.setattr(infer, "LEAST_BATCHES", 3)
  other = {"output_dir": tmp_path / "refilled", "refill": True}
  assert run(**settings, **other, draft_costs=file) == row
  assert lines("refilled") == written
  text = file.read_text()
  file.write_text("{}")
  with pytest.raises(ValueError, match=r"s.json is damaged .* run.json"):
    run(**settings)
  file.write_text(text)
  # What is recorded.
  assert row.settings.gamma == "adaptive"
  assert row.efficiency["mean_gamma"] == row.counts.drafted / (
    row.counts.num_blocks
  )
  for record in written:
    trace, counts = record["aux"]["trace"], record["aux"]["counts"]
    gammas = dict(zip(trace["block"], trace["gamma"]))
    assert len(gammas) == counts["num_blocks"]
    assert sum(gammas.values()) == counts["drafted"]
  # A page of rows, this one among them.
  study = tmp_path / "study"
  file = results.ResultFile(study / results.FILE_NAME)
  for each in (run(output_dir=tmp_path / "fixed"), row):
    file.append(each)
  # A folder is looked at before anything is timed for it.
  with pytest.raises(ValueError, match="another run: gamma is 2 there"):
    run(**settings, output_dir=tmp_path / "fixed")
  assert report.main([f"--results_dir={study}"]) == 0
  assert "| adaptive |" in (study / "report" / "report.md").read_text()


def test_trials_of_an_example_are_one_group(run, tmp_path):
  """Greedy trials repeat each other: they do not narrow the interval."""
  settings = {"temperature": 0.0, "metrics": ["chrf"]}
  one = run(output_dir=tmp_path / "one", **settings).quality["chrf"]
  three = run(output_dir=tmp_path / "three", trials=3, **settings)
  assert one["low"] < one["value"] < one["high"]
  for name in ("low", "value", "high"):
    assert three.quality["chrf"][name] == pytest.approx(one[name])


def test_a_killed_run_ends_as_an_unbroken_one(run, tmp_path, monkeypatch):
  run(output_dir=tmp_path / "whole")
  write = Shards.write

  def dies_at(number):
    def write_or_die(self, at, lines):
      if at == number:
        raise KeyboardInterrupt
      write(self, at, lines)

    return write_or_die

  out = tmp_path / "out"
  for number in (0, 2, 1):  # Shard 1 exists then, and is not written again.
    monkeypatch.setattr(Shards, "write", dies_at(number))
    if number == 1:
      run()
    else:
      with pytest.raises(KeyboardInterrupt):
        run()
      assert not (out / "predictions.jsonl").exists()
  for name in ("predictions.jsonl", "run.json"):
    assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
  # Killed between the predictions and the metrics.
  (out / "metrics.json").unlink()
  run()
  for name in ("counts", "quality", "efficiency"):
    resumed, whole = (
      json.loads((folder / "metrics.json").read_text())[name]
      for folder in (out, tmp_path / "whole")
    )
    assert resumed == whole


def test_log_probs(run, lines):
  settings = {"method": "spec_cascade_chow", "alpha": 0.3, "num_examples": 2}
  row = run(log_probs=True, temperature=0.0, **settings)
  columns = {"pi": [], "p": [], "q": [], "p1": [], "q1": []}
  for record in lines():
    log_probs = record["aux"]["log_probs"]
    num_tokens = len(record["aux"]["tokens"])
    assert [len(values) for values in log_probs.values()] == [num_tokens] * 9
    for name, values in log_probs.items():
      columns.setdefault(name, []).extend(values)
  assert row.sharpness["entropy"] == 0
  # The target is sure of the token, and is compared with p at temperature 1.
  surprise = -np.array(columns["p1"])
  np.testing.assert_allclose(columns["overshoot"], surprise, atol=1e-5)
  overshoot = np.exp(surprise.mean())
  assert row.sharpness["overshoot"] == pytest.approx(overshoot, rel=1e-4)
  # In greedy decoding the target is sure of its token. Where only one model
  # chose that token, the other gives it no probability: "-inf", not unknown.
  assert set(columns["pi"]) == {0.0}
  assert {"-inf"} < {*columns["p"], *columns["q"]} <= {0.0, "-inf"}
  for name in ("p1", "q1"):
    assert max(columns[name]) < 0
    assert row.log_probs[name] == pytest.approx(np.mean(columns[name]))
  assert row.log_probs["pi"] == 0
  assert None in (row.log_probs["p"], row.log_probs["q"])
  with pytest.raises(OutputError, match="another run: log_probs is True"):
    run(temperature=0.0, **settings)


def test_the_page_of_tokens(run, tmp_path, lines):
  page = tmp_path / "out" / "tokens.html"
  run(trace=True, num_shown=3)
  text = page.read_text()
  assert text.count('class="sc-record"') == 3
  num = sum(record["aux"]["counts"]["num_tokens"] for record in lines()[:3])
  assert text.count("tabindex") == num
  assert "<h1>SpecDecode, gamma 2, temperature 1, " in text
  # A run that was killed before it was there writes it, with other files as is.
  page.unlink()
  before = (tmp_path / "out" / "predictions.jsonl").stat().st_mtime_ns
  run(trace=True, num_shown=3)
  assert page.read_text() == text
  assert (tmp_path / "out" / "predictions.jsonl").stat().st_mtime_ns == before
  run(trace=True, num_shown=1)  # another number is not another run
  assert page.read_text().count('class="sc-record"') == 1


def test_questions(run, tmp_path, lines, caplog):
  """They reach the records, and the formats of other projects."""
  rows = [
    {"question_id": 81, "category": "writing", "turns": ["one two", "three"]},
    {"question_id": "b", "category": "math", "turns": ["four"]},
    {"inputs": "five"},
  ]
  path = tmp_path / "question.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)))
  row = run(input_file=str(path), trace=True, trials=2)
  assert "1 of 3 questions have several turns: the first one" in caplog.text
  written = lines()
  assert [record["inputs"] for record in written[:3]] == [
    *("one two", "four", "five")
  ]
  asked = [record["aux"].get("question") for record in written]
  assert asked == [*rows[:2], None] * 2
  folder = decode_folder.read(tmp_path / "out")
  for answer, record in zip(folder.answers, written, strict=True):
    assert sum(answer.lengths) == len(record["aux"]["tokens"])
    assert set(answer.lengths) <= {1, 2, 3}  # gamma is 2
  blocks = sum(len(answer.lengths) for answer in folder.answers)
  assert blocks == row.counts.num_blocks
  with pytest.raises(ValueError, match=r"example 2 of .* no question_id and"):
    folder.by_question()
  # Another id is another run.
  rows[0]["question_id"] = 82
  path.write_text("\n".join(map(json.dumps, rows)))
  with pytest.raises(OutputError, match="another run: inputs_sha256"):
    run(input_file=str(path), trace=True, trials=2)


def test_what_a_run_of_trees_leaves(run, tmp_path, lines):
  folder = tmp_path / "out"
  tree = {"tree": (2, 1), "drawing": "iid"}
  row = run(**tree, trace="trees", log_probs=True)
  by_rank = np.array(row.counts.accepted_by_rank)
  positions = row.counts.accepted_by_position
  assert np.array_equal(by_rank.sum(axis=1), positions)
  share = row.efficiency["share_of_optimum"]
  assert share == positions[0] / row.counts.optimal_acceptance
  assert results.read_row(folder / "metrics.json") == row
  for record in lines():
    aux = record["aux"]
    assert len(aux["trees"]) == aux["counts"]["num_blocks"]
    num = sum(len(block["accepted"]) for block in aux["trees"])
    assert num == aux["counts"]["accepted"]
  page = (folder / "tokens.html").read_text()
  assert page.count("<summary>drafts that lost") == len(TEXTS)
  assert report.main([f"--results_dir={folder}"]) == 0
  table = (folder / "report" / "ranks.csv").read_text()
  assert table.startswith("method,name,T,alpha,gamma,tree,drafts,drawing,")
  assert "drafts that lost" in (folder / "report" / "index.html").read_text()


def test_what_trees_of_heads_leave(run, files, tmp_path, lines):
  # Nothing is drafted in a first block, so the record has no draft there.
  heads = tiny.save_heads(tmp_path / "heads", files / "large")
  run(drafter_checkpoint=heads, tree=(2, 1), trace="trees")
  assert (tmp_path / "out" / "metrics.json").exists()
  for record in lines():
    first, *others = record["aux"]["trees"]
    assert first["parents"] == [-1] * 4
    assert not first["accepted"]
    assert all(block["parents"] == [0, 0, 1, 2] for block in others)
  page = (tmp_path / "out" / "tokens.html").read_text()
  assert page.count("<li>block 0: none</li>") == len(TEXTS)
  assert page.count("<li>block 1: 1: ") > 0


def test_damaged_files_are_named(run, tmp_path, monkeypatch):
  def damage(name, text, message):
    path = tmp_path / "out" / name
    whole = path.read_text()
    path.write_text(text(whole))
    with pytest.raises(ValueError, match=f"{name}.*{message}") as caught:
      run()
    assert "\n" not in str(caught.value)
    path.write_text(whole)

  cut = lambda whole: whole[:-9]
  write = Shards.write
  monkeypatch.setattr(
    Shards, "write", lambda self, at, lines: at < 2 and write(self, at, lines)
  )
  with pytest.raises(FileNotFoundError):
    run()
  monkeypatch.undo()
  monkeypatch.setattr(infer, "LEAST_EXAMPLES", 2)
  monkeypatch.setattr(infer, "LEAST_BATCHES", 1)
  damage("shards/00001-of-00003.jsonl", cut, r"line 2 is damaged .*; remove")
  damage("run.json", cut, "is not JSON, or not whole")
  damage("run.json", lambda _: "[]", "is not a JSON object")
  row = run()
  damage("metrics.json", cut, "not a whole result row")
  damage("metrics.json", lambda _: "[]", "not a result row")
  (tmp_path / "out" / "metrics.json").unlink()
  damage("predictions.jsonl", cut, "line 6 is damaged")
  damage("predictions.jsonl", lambda _: "{}", "line 1 .*no aux, prediction")
  damage("predictions.jsonl", lambda _: "", "has 0 records, wanted 6")
  assert run().counts == row.counts


def test_latency_on_request(run):
  row = run(num_timed=2, repeats=1, num_examples=2)
  assert row.latency.num_examples == 2
  assert row.latency.walltime_s > 0
  assert row.measured_speedup == pytest.approx(1 / row.latency.relative_latency)
  assert row.predicted_speedup > 0
  assert set(row.costs.v) == {1, 3}
  assert row.seconds_per_answer == row.latency.walltime_s
  # The verifier alone answered under the clock, too.
  assert row.relative_length["num_examples"] == 2
  assert row.relative_length["value"] > 0


def test_models_need_not_exist(run):
  row = run(method="drafter", verifier_checkpoint=None, num_examples=2)
  assert row.counts.verifier_calls == 0
  assert row.efficiency["acceptance_rate"] is None
  assert row.settings.gamma is None


# `tests/audit/fuzz` has what is of a wrong type or out of its range.
REFUSED = [
  ({"method": "spec_decod"}, ValueError, "unknown method.*spec_decode"),
  ({"method": "bild"}, ValueError, "temperature 0 only"),
  ({"method": "spec_cascade_chow", "alpha": 1.5}, ValueError, "alpha is 1.5"),
  ({"output_dir": None}, ValueError, "OUTPUT_DIR is None"),
  ({"output_dir": ""}, ValueError, "OUTPUT_DIR is ''; wanted a local folder"),
  ({"output_dir": "gs://a/b"}, ValueError, "OUTPUT_DIR is 'gs://a/b'; wanted"),
  ({"task_feature_lengths": {"inputs": 3}}, InputError, "line 3 has 4 tokens"),
  ({"input_file": "none.txt"}, FileNotFoundError, "does not exist"),
  ({"input_file": None}, InputError, "one of them"),
  ({"verifier_checkpoint": None}, PairError, "VERIFIER_CHECKPOINT"),
  ({"drafter": tiny.config(emb_dim=16)}, ValueError, "emb_dim"),
]


@pytest.mark.parametrize(("change", "kind", "message"), REFUSED)
def test_what_is_refused_writes_nothing(run, tmp_path, change, kind, message):
  with pytest.raises(kind, match=message) as caught:
    run(**change)
  assert "\n" not in str(caught.value)
  assert not (tmp_path / "out").exists()


def test_what_no_memory_holds_is_refused(run, tmp_path, monkeypatch):
  """The rows that count are those that are decoded: six, of six examples."""
  monkeypatch.setattr(memory, "total", lambda: 1000)
  with pytest.raises(ValueError, match=r"BATCH_SIZE 6, .* need .* GB or more"):
    run(batch_size=32)
  assert not (tmp_path / "out").exists()


def test_a_model_without_numbers(run, tmp_path):
  bad = tiny.save(tmp_path / "bad" / "checkpoint_7", 1, spoil=np.nan)
  with pytest.raises(NoDistributionError, match=r"step 0 of example \d .'"):
    run(verifier_checkpoint=bad)
  assert not (tmp_path / "out").exists()


def test_output_of_another_run_is_left_alone(run, tmp_path):
  run(num_examples=2)
  before = {p: p.read_bytes() for p in (tmp_path / "out").iterdir()}
  with pytest.raises(OutputError, match=r"another run: gamma is 2 .* 3 "):
    run(num_examples=2, gamma=3)
  (tmp_path / "out" / "run.json").unlink()
  with pytest.raises(OutputError, match="unknown run"):
    run(num_examples=2)
  for path, data in before.items():
    assert path.name == "run.json" or path.read_bytes() == data
  taken = tmp_path / "file"
  taken.write_text("")
  with pytest.raises(OutputError, match="is a file"):
    run(output_dir=taken)


def test_settings_leave_out_what_a_method_does_not_use():
  run = {"max_decode_len": 8, "task": "t", "split": "", "num_examples": 1}
  run |= {"drafter": "s", "verifier": "l"}
  keys = {
    settings_of(
      Point("verifier", gamma=gamma, alpha=alpha, bonus=bonus), **run
    ).key
    for gamma in (1, 2)
    for alpha in (0.0, 0.5)
    for bonus in ("target", "verifier")
  }
  assert len(keys) == 1
  greedy = settings_of(Point("verifier", temperature=1e-5), **run)
  assert greedy.temperature == 0
