"""All turns of questions, answered and timed one at a time."""

import json
import types

import pytest

import speccascade as sc
from speccascade.decoding.programs import streaming
from speccascade.generate.batches.sources import InputError
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.run import Run
from speccascade.study.measuring import timed_answers
from speccascade.study.measuring.timed_answers import TimedAnswers
from speccascade.study.rows import results
from speccascade.tools.exchange import decode_folder, formats
from tests.generate import decodes, tiny
from tests.tools.exchange.conftest import QUESTIONS

pytestmark = pytest.mark.needs_tf

LIMIT = 10


@pytest.fixture(scope="module")
def decode(folder):
  """Decodes the questions into a folder; returns its records."""

  def call(name, **changes):
    settings = {
      "temperature": 0.0,
      "task_feature_lengths": {"inputs": 96},
      "gamma": 3,
      "max_decode_len": LIMIT,
      "input_file": str(folder / "questions.jsonl"),
      "one_at_a_time": True,
      **changes,
    }
    decodes.decode(folder, folder / name, **settings)
    text = (folder / name / "predictions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]

  return call


@pytest.fixture(scope="module")
def answered(decode):
  return decode("answered")


def test_rounds_without_drafts_are_steps_each(folder, decode):
  costs = folder / "no_drafts.json"
  DraftCosts((0, 1), (1.0, 1.95), 5.0).write(costs)
  for record in decode("idle", gamma="adaptive", draft_costs=costs):
    aux = record["aux"]
    assert len(aux["step_lengths"]) == aux["counts"]["num_blocks"]
    assert sum(aux["step_lengths"]) == aux["counts"]["num_tokens"]
    assert len(aux["step_times_s"]) == len(aux["step_lengths"])


def test_all_turns_are_answered_in_their_caches(folder, decode, answered):
  auxes = [record["aux"] for record in answered]
  assert [(aux["index"], aux["turn"]) for aux in auxes] == [
    *[(0, 0), (0, 1), (0, 2), (1, 0)]
  ]
  for aux in auxes:
    assert sum(aux["step_lengths"]) == aux["counts"]["num_tokens"]
    assert len(aux["step_lengths"]) == aux["counts"]["num_blocks"]
    assert len(aux["step_times_s"]) == len(aux["step_lengths"])
    assert min(aux["wall_time_s"], aux["read_s"], *aux["step_times_s"]) > 0
  # A row has the mean of all answers, each turn being one.
  row = results.read_row(folder / "answered" / "metrics.json")
  seconds = [aux["wall_time_s"] for aux in auxes]
  assert row.seconds_per_answer == pytest.approx(sum(seconds) / len(seconds))
  assert row.relative_length is None
  # Each turn is what a chat answers.
  pair = sc.load_pair(drafter=folder / "small", verifier=folder / "large")
  chat = pair.chat(gamma=3, temperature=0.0, max_decode_len=LIMIT)
  for turn, prompt in enumerate(QUESTIONS[0]["turns"]):
    text = "".join(chat.send(prompt))
    record = answered[turn]
    assert record["prediction"] == text
    assert record["aux"]["tokens"] == chat.answer.tokens.tolist()
    assert record.get("messages", chat.messages[:-1]) == chat.messages[:-1]
  # A first turn is what a batch writes, at any temperature.
  first = [record for record in answered if not record["aux"]["turn"]]
  together = decode("together", one_at_a_time=False, batch_size=2)
  for mine, other in zip(first, together, strict=True):
    assert mine["aux"]["tokens"] == other["aux"]["tokens"]
    assert "wall_time_s" not in other["aux"]


def test_draws_of_turns_and_trials_differ(decode):
  records = decode(
    "drawn", temperature=1.0, trials=2, method="spec_cascade_opt", alpha=0.2
  )
  tokens = [tuple(record["aux"]["tokens"]) for record in records]
  assert len(set(tokens)) == len(tokens) == 8
  together = decode(
    "drawn together",
    one_at_a_time=False,
    temperature=1.0,
    trials=2,
    method="spec_cascade_opt",
    alpha=0.2,
  )
  first = [record for record in records if not record["aux"]["turn"]]
  for mine, other in zip(first, together, strict=True):
    assert mine["aux"]["tokens"] == other["aux"]["tokens"]
    assert mine["aux"]["trial"] == other["aux"]["trial"]


def test_nothing_is_compiled_under_the_clock(decode, answered, monkeypatch):
  programs = (streaming._begin, streaming._advance, streaming._turn)
  sizes = []
  records_of = TimedAnswers._converse

  def counted(self, example, trial, rounds):
    turns = records_of(self, example, trial, rounds)
    sizes.append(sum(program._cache_size() for program in programs))
    return turns

  monkeypatch.setattr(TimedAnswers, "_converse", counted)
  again = decode("again", gamma=2)
  # The first question: to compile, by steps, whole. The second one's width is
  # the first one's.
  assert len(sizes) == 5
  assert len(set(sizes)) == 1
  assert len(again) == 4


def test_what_is_compiled_again_and_which_clock_a_time_is_of(monkeypatch):
  asked, widths = [], []

  def converse(self, example, trial, rounds):
    asked.append(rounds)
    # A call of a round takes 2 s, one of all rounds 3 s.
    calls = [(0, 2.0), (2, 2.0), (3, 2.0)] if rounds == 1 else [(0, 1), (3, 3)]
    steps = calls[1:] if rounds == 1 else ()
    return [timed_answers._Turn(None, None, calls, steps, x) for x in widths]

  monkeypatch.setattr(TimedAnswers, "_converse", converse)
  answers = object.__new__(TimedAnswers)
  answers._met, answers._run = set(), Run(max_decode_len=LIMIT)
  answers._session = types.SimpleNamespace(records=lambda *_: [{"aux": {}}])
  # A first turn is met, then a further one of its width, and then both.
  for widths, wanted in (
    ([8], [1, 1, LIMIT]),
    ([8, 8], [1, 1, LIMIT]),
    ([8, 8], [1, LIMIT]),
    ([16, 8], [1, 1, LIMIT]),
  ):
    asked.clear()
    written = answers._answer(None, 0)
    assert asked == wanted
    assert len(written) == len(widths)
    for turn, record in enumerate(written):
      assert record["aux"] == {
        "turn": turn,
        "wall_time_s": 4.0,
        "read_s": 2.0,
        "step_times_s": [2.0, 2.0],
        "step_lengths": [2, 1],
      }


def test_the_files_that_others_read(folder, decode, answered):
  del answered
  decode("alone", method="verifier")

  def written(name, format):
    notes = formats.write(folder / "files" / name, folder / name, format)
    text = (folder / "files" / name).read_text()
    if format == "spec_bench":
      return [json.loads(line) for line in text.splitlines()], notes
    return json.loads(text), notes

  speeds = {}
  for name in ("answered", "alone"):
    [first, second], notes = written(name, "spec_bench")
    assert not notes
    [choice] = first["choices"]
    # As Spec-Bench's evaluation/speed.py reads it.
    speeds[name] = sum(choice["new_tokens"]) / sum(choice["wall_time"])
    assert sum(choice["accept_lengths"]) == sum(choice["new_tokens"])
    assert len(choice["accept_lengths"]) == sum(choice["decoding_steps"])
    assert [x + 1 for x in choice["idxs"]] == choice["decoding_steps"]
    for entry in ("turns", "idxs", "new_tokens", "wall_time"):
      assert len(choice[entry]) == 3
      assert len(second["choices"][0][entry]) == 1
  assert all(speed > 0 for speed in speeds.values())
  values, notes = written("answered", "speed_bench_results")
  assert not notes
  assert set(values["Request_AL"]) == {"81", "82"}
  profile, _ = written("answered", "speculation_profile")
  assert profile["measurement_conditions"]["concurrency"] == 1
  assert profile["num_speculative_tokens"] == 3
  read = decode_folder.read(folder / "answered")
  assert [len(turns) for [turns] in read.by_question()] == [3, 1]


def test_a_t5_answers_the_first_turn(tmp_path, caplog):
  question = {"question_id": 1, "category": "a", "turns": ["one", "two"]}
  (tmp_path / "in.jsonl").write_text(json.dumps(question))
  for seed, name in enumerate(["small", "large"]):
    tiny.save(tmp_path / name / "checkpoint_7", seed)
  decodes.decode(
    tmp_path,
    tmp_path / "out",
    vocabulary=tiny.Vocabulary(),
    task_feature_lengths={"inputs": 8},
    input_file=str(tmp_path / "in.jsonl"),
    one_at_a_time=True,
  )
  assert "1 of 1 questions have several turns: the first one" in caplog.text
  assert formats.write(
    tmp_path / "files" / "out", tmp_path / "out", "spec_bench"
  ) == ["1 of 1 questions have further turns, which were not decoded"]


def test_a_conversation_longer_than_the_models_read_is_refused(decode):
  message = r"example 0, turn [12], has \d+ tokens, TASK_FEATURE_LENGTHS allows"
  with pytest.raises(InputError, match=message):
    decode("long", max_decode_len=85)
