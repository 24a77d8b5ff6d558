"""A small decode folder, and the files of other projects that it gives."""

import dataclasses
import gzip
import json
import os
import re
import shutil

import pytest

from speccascade import exchange
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.decode_counts import Counts
from speccascade.tools.exchange import decode_folder, formats, spec_bench
from tests.study.rows import test_results

FIRST = {"question_id": 81, "category": "writing", "turns": ["Sail?", "Rhyme?"]}
SECOND = {"question_id": "x1", "category": "math", "turns": ["1 + 1?"]}
# gamma 3. The first text: a block accepts 2 drafts and is corrected, the next
# one accepts all 3 and has a bonus. The second text: an accepted draft is EOS.
COUNTS = (
  Counts(
    **{"num_examples": 1, "num_tokens": 7, "num_blocks": 2, "drafted": 6},
    **{"examined": 6, "accepted": 5, "accepted_at": (0, 0, 1, 1)},
    **{"examined_by_position": (2, 2, 2), "accepted_by_position": (2, 2, 1)},
  ),
  Counts(
    **{"num_examples": 1, "num_tokens": 1, "num_blocks": 1, "drafted": 3},
    **{"examined": 1, "accepted": 1, "accepted_at": (0, 1, 0, 0)},
    **{"examined_by_position": (1, 0, 0), "accepted_by_position": (1, 0, 0)},
  ),
)
BLOCKS = ([0, 0, 0, 1, 1, 1, 1], [0])


def records() -> list[dict]:
  """Returns the lines of predictions.jsonl."""
  return [
    {
      "inputs": question["turns"][0],
      "prediction": text,
      "aux": {
        "index": index,
        "trial": 0,
        "tokens": [5] * counts.num_tokens,
        "counts": dataclasses.asdict(counts),
        "question": question,
        "trace": {"block": blocks, "source": ["draft"] * len(blocks)},
      },
    }
    for index, (question, text, counts, blocks) in enumerate(
      zip((FIRST, SECOND), ("Aye, é.", "2"), COUNTS, BLOCKS)
    )
  ]


@pytest.fixture
def folder(tmp_path):
  """Writes a folder of a decode; returns its path."""

  def write(lines=None, counts=COUNTS, **settings):
    path = tmp_path / "decode"
    path.mkdir(exist_ok=True)
    row = dataclasses.replace(
      test_results.row(**settings), counts=decode_counts.total(list(counts))
    )
    (path / "metrics.json").write_text(row.to_json())
    lines = records() if lines is None else lines
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "predictions.jsonl").write_text(text)
    os.utime(path / "predictions.jsonl", (1000, 1000.5))
    return path

  return write


@pytest.fixture
def written(folder, tmp_path, capsys):
  """Runs the main; returns the file as JSON, a value a line, and stdout."""

  def run(format, *flags, lines=None, **settings):
    out = tmp_path / "files" / "out"
    shutil.rmtree(out.parent, ignore_errors=True)
    argv = [f"--decode_dir={folder(lines, **settings)}", f"--format={format}"]
    argv += [f"--output_file={out}", *flags]
    code = exchange.main(argv)
    said = capsys.readouterr()
    if code:
      assert not out.parent.exists()
      assert "Traceback" not in said.err
      return said.err
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    text = out.read_text(encoding="utf-8")
    if format == "generations":
      return json.loads(text), said.out.splitlines()
    values = [json.loads(text)] if text[:2] == "{\n" else None
    values = values or [json.loads(line) for line in text.splitlines()]
    return values, said.out.splitlines()

  return run


def test_spec_bench(written):
  [first, second], said = written("spec_bench")
  assert first == {
    "question_id": 81,
    "category": "writing",
    "answer_id": first["answer_id"],
    "model_id": "large-1100-spec_decode-gamma-4-temperature-1",
    "choices": [
      {
        "index": 0,
        "turns": ["Aye, é."],
        "decoding_steps": [2],
        "idxs": [1],
        "new_tokens": [7],
        "accept_lengths": [3, 4],
      }
    ],
    "tstamp": 1000.5,
  }
  assert second["question_id"] == "x1"
  assert second["choices"][0]["accept_lengths"] == [1]
  assert len({first["answer_id"], second["answer_id"]}) == 2
  assert len(first["answer_id"]) == 22
  assert "wall_time is left out" in said[0]
  assert (
    said[1] == "1 of 2 questions have further turns, which were not decoded"
  )
  assert said[2].startswith("wrote ")
  # The same folder gives the same file, and a name of one's own another.
  assert written("spec_bench")[0] == [first, second]
  [named, _], _ = written("spec_bench", "--model_id=mine")
  assert named["model_id"] == "mine"
  assert named["answer_id"] != first["answer_id"]


def test_each_of_equal_questions_has_an_answer_id_of_its_own(written):
  lines = records()
  twin = json.loads(json.dumps(lines[0]))
  lines[1] = twin | {"aux": twin["aux"] | {"index": 1}}
  [first, second], _ = written("spec_bench", lines=lines, counts=COUNTS[:1] * 2)
  assert first["choices"] == second["choices"]
  assert first["answer_id"] != second["answer_id"]


def test_trials_are_choices(written):
  again = records()
  for record in again:
    record["aux"]["trial"] = 1
  again[0]["prediction"] = "No."
  lines, counts = [*records(), *again], COUNTS * 2
  [first, _], _ = written("spec_bench", lines=lines, counts=counts)
  assert [choice["index"] for choice in first["choices"]] == [0, 1]
  assert first["choices"][1]["turns"] == ["No."]
  [first, _], _ = written("speed_bench", lines=lines, counts=counts)
  assert first["choices"][1] == {"index": 1, "turns": ["No."]}


def test_speed_bench(written):
  lines, said = written("speed_bench")
  assert lines[0] == {
    "question_id": 81,
    "category": "writing",
    "turns": ["Sail?"],
    "choices": [{"index": 0, "turns": ["Aye, é."]}],
  }
  assert "further turns" in said[0]
  [values], _ = written("speed_bench_results")
  assert values == {
    "Request_AL": {"81": 3.5, "x1": 1.0},
    "Category_AL": {"writing": 3.5, "math": 1.0},
    "Average_AL": 2.25,
    "Acceptance_Length_Histogram": {"1": 1, "3": 1, "4": 1},
    # 3 of 3 steps write a token, 2 of these 3 write three, 1 of these 2 four.
    "Conditional_Acceptance_Rate": {
      "1": 1.0,
      "3": pytest.approx(2 / 3),
      "4": pytest.approx(1 / 2),
    },
    "Joint_Acceptance_Rate": {
      "1": 1.0,
      "3": pytest.approx(2 / 3),
      "4": pytest.approx(1 / 3),
    },
  }


def test_generations(written):
  """The programs of each problem, in order: a list for each, of its trials."""
  again = records()
  for record in again:
    record["aux"]["trial"] = 1
  again[0]["prediction"] = "def f():\n  return 1\n\n"
  # As trials are written: the second one of all after the first one of all.
  lines, counts = [*records(), *again], COUNTS * 2
  for line in lines:
    del line["aux"]["trace"], line["aux"]["question"]
  programs, _ = written("generations", lines=lines, counts=counts)
  assert programs == [["Aye, é.\n", "def f():\n  return 1\n"], ["2\n", "2\n"]]
  lacking = written("generations", lines=lines[:3], counts=counts[:3])
  assert "lacks trials of some examples" in lacking
  # Each program stands for the problem at its place, and is run as it is.
  for settings, fault in (
    ({"split": "test[2:]"}, "decode a split from its beginning"),
    ({"limits": '{"include_stop": true}'}, "decoded with INCLUDE_STOP"),
  ):
    assert fault in written(
      "generations", lines=lines, counts=counts, **settings
    )


def test_speculation_profile(written):
  [profile], said = written("speculation_profile")
  assert len(said) == 1
  # Steps of 3, 4 and 1 tokens: 2 of 3 accept one draft or two, 1 all three.
  want = {
    "schema_version": "1.0",
    "measured": True,
    "method": "spec_decode",
    "num_speculative_tokens": 3,
    "max_supported_k": 3,
    "verification_method": "longest_prefix",
    "marginal_accept_rates": pytest.approx([2 / 3, 2 / 3, 1 / 3], abs=1e-6),
    "conditional_accept_rates": pytest.approx([2 / 3, 1, 1 / 2], abs=1e-6),
    "mean_accept_length": pytest.approx(8 / 3, abs=1e-6),
    "mean_accept_length_per_request": 2.25,
    "accept_length_model": "chain_analytic",
    "acceptance_length_histogram": {"1": 1, "3": 1, "4": 1},
    "per_category": {
      "writing": {"mean_accept_length": 3.5},
      "math": {"mean_accept_length": 1.0},
    },
  }
  assert {name: profile[name] for name in want} == want
  check = profile["validation"]["mean_consistency"]
  assert check["passed"]
  assert check["abs_delta"] == pytest.approx(0, abs=1e-6)
  for settings, verification in (
    ({"verification": "block"}, "block"),
    ({"tree": (0, 1, 1)}, "longest_prefix"),
  ):
    [profile], _ = written("speculation_profile", **settings)
    assert profile["verification_method"] == verification
    assert profile["accept_length_model"] == "measured_per_k"


def test_a_profile_has_both_alphas(written):
  [profile], _ = written("speculation_profile")
  assert "marker" not in profile["measurement_conditions"]
  phases = {"alpha_phase": "after", "other_alpha": "exact", "marker": ("A", 7)}
  [profile], _ = written("speculation_profile", alpha=0.3, **phases)
  conditions = profile["measurement_conditions"]
  wanted = {"alpha": 0.3, **phases, "marker": ["A", 7]}
  assert {name: conditions[name] for name in wanted} == wanted


def test_a_conversation(written):
  """Its own answers come before the one that was decoded."""
  record, other = records()
  record["messages"] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Sail?"},
    {"role": "assistant", "content": "Aye."},
    {"role": "user", "content": "Rhyme?"},
  ]
  [first, _], said = written("speed_bench", lines=[record, other])
  assert first["turns"] == ["Sail?", "Rhyme?"]
  assert first["choices"] == [{"index": 0, "turns": ["Aye.", "Aye, é."]}]
  assert len(said) == 1


def test_vllm(written):
  lines = [{**each, "aux": {**each["aux"]}} for each in records()]
  for line in lines:  # no trace, and no question, is needed
    del line["aux"]["trace"], line["aux"]["question"]
  [values], said = written("vllm", lines=lines)
  assert values == {
    "vllm:spec_decode_num_drafts": 3,
    "vllm:spec_decode_num_draft_tokens": 9,
    "vllm:spec_decode_num_accepted_tokens": 6,
    "vllm:spec_decode_num_accepted_tokens_per_pos": [3, 2, 1],
    "spec_decode_acceptance_rate": pytest.approx(100 * 6 / 9),
    "spec_decode_acceptance_length": pytest.approx(3 - 1 / 3),
    "acceptance_length_with_every_bonus": 1 + 6 / 3,
    "spec_decode_per_position_acceptance_rates": pytest.approx(
      [3 / 3, 2 / 3, 1 / 3]
    ),
  }
  assert len(said) == 1
  # Of 3 blocks one ended in an EOS, which no bonus followed.
  assert decode_counts.summary(decode_counts.total(list(COUNTS)))[
    "mean_acceptance_length"
  ] == pytest.approx(3 - 1 / 3)


@pytest.mark.parametrize("method", ["verifier", "drafter"])
def test_a_model_alone_writes_a_token_a_step(written, method):
  counts = [
    Counts(num_examples=1, num_tokens=num, verifier_calls=num) for num in (2, 3)
  ]
  lines = records()
  for line, count in zip(lines, counts):
    line["aux"]["counts"] = dataclasses.asdict(count)
    del line["aux"]["trace"]
  settings = {"lines": lines, "counts": counts, "method": method, "gamma": None}
  [first, _], _ = written("spec_bench", **settings)
  [choice] = first["choices"]
  assert (choice["decoding_steps"], choice["accept_lengths"]) == ([2], [1, 1])
  [values], _ = written("speed_bench_results", **settings)
  assert values["Average_AL"] == 1
  assert "drafted no tokens: vLLM's" in written("vllm", **settings)
  settings["method"] = "token_cascade_chow"
  assert "two models and no blocks" in written("spec_bench", **settings)
  assert written("speed_bench", **settings)


def without(name: str) -> list[dict]:
  """Returns the records without one member of the second's aux."""
  lines = records()
  del lines[1]["aux"][name]
  return lines


def changed(**aux) -> list[dict]:
  """Returns the records, the second's aux with other members."""
  lines = records()
  lines[1]["aux"] |= aux
  return lines


@pytest.mark.parametrize(
  ("format", "lines", "message"),
  [
    ("spec_bench", without("trace"), "decode with --gin.TRACE=True into"),
    ("speed_bench_results", without("trace"), "--gin.TRACE=True"),
    ("spec_bench", without("question"), "example 1 of .* no question_id and"),
    ("speed_bench", changed(question={"question_id": 5}), "example 1 of"),
    ("spec_bench", changed(trace={"block": [0, 1]}), "line 2 .* different blo"),
    ("spec_bench", changed(step_lengths=[1, 1]), "line 2 .* different blocks"),
    (
      "speculation_profile",
      without("trace"),
      "or with --gin.ONE_AT_A_TIME=True",
    ),
    ("spec_bench", changed(trace={}), "line 2 is not a decoded example"),
    ("spec_bench", changed(trace={"block": [-1]}), "line 2 is not a"),
    ("speed_bench", without("counts"), "line 2 is not a decoded example"),
    ("speed_bench", changed(question={"turns": 5}), "line 2 is not a"),
    ("speed_bench", [5], "line 1 is not a decoded example"),
    ("speed_bench", [{}], "line 1 is not a decoded example"),
    ("speed_bench", records()[:1], "has 1 records, and metrics.json counts 2"),
  ],
)
def test_what_is_refused(written, format, lines, message):
  said = written(format, lines=lines)
  assert len(said.splitlines()) == 1
  assert re.search(message, said)


def test_a_text_may_hold_nul(written):
  # A model of bytes may write any of them.
  lines = records()
  lines[1]["prediction"] = "one\0two"
  answers, _ = written("speed_bench", lines=lines)
  assert answers[1]["choices"][0]["turns"] == ["one\0two"]
  lines[1]["prediction"] = 5
  assert "line 2 is not a decoded example" in written("spec_bench", lines=lines)


def test_wrong_flags(folder, written, tmp_path, capsys):
  assert "--model_id is of --format=spec_bench" in written(
    "vllm", "--model_id=a"
  )
  path = folder()
  argv = [f"--decode_dir={path}", "--format=vllm"]
  assert exchange.main([*argv, f"--output_file={path}/predictions.jsonl"]) == 1
  assert "is in the folder of the decode" in capsys.readouterr().err
  (path / "predictions.jsonl").unlink()
  assert exchange.main([*argv, f"--output_file={tmp_path}/out"]) == 1
  assert "is not a folder of a whole decode" in capsys.readouterr().err
  (tmp_path / "file").touch()
  path = folder()
  assert exchange.main([*argv, f"--output_file={tmp_path}/file/out"]) == 1
  assert "the folder of --output_file" in capsys.readouterr().err


def test_compressed_files_are_read(folder, tmp_path):
  path = folder()
  for name in ("metrics.json", "predictions.jsonl"):
    content = (path / name).read_bytes()
    (path / f"{name}.gz").write_bytes(gzip.compress(content))
    (path / name).unlink()
  read = decode_folder.read(path)
  assert [answer.lengths for answer in read.answers] == [(3, 4), (1,)]
  assert spec_bench.notes(read)
  assert formats.write(tmp_path / "out", path, "vllm") == []
