"""The card of a drafter: what a run and its measurements say, and no more."""

import gzip
import hashlib
import json
import re

import jax
import pytest

from speccascade.checkpoints import orbax_io
from speccascade.models import LlamaConfig, StateReaderConfig
from speccascade.models.parameters import network, num_parameters
from speccascade.study.report import card
from tests.study.report import synthetic

CONFIG = LlamaConfig(
  vocab_size=11,
  emb_dim=8,
  num_heads=1,
  num_kv_heads=1,
  num_decoder_layers=1,
  head_dim=8,
  mlp_dim=8,
)
GIN = """\
ACCEPTANCE_METHOD = 'spec_decode'
EVAL_PERIOD = 7
JSD_BETA = 0.1
LOSS = @objectives.GeneralJSD()
STUDENT_TEXT = 0.5
TEACHER_CHECKPOINT = \\
    'out/large'
TEACHER_SHARE = None
TRAIN_STEPS = 5
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  """Returns the folder of a run with one checkpoint and a configuration."""
  folder = tmp_path_factory.mktemp("runs") / "taught"
  params = network(CONFIG).initial(jax.random.key(0))
  extra = {"settings": {"LOSS": "GeneralJSD(beta=0.1)"}, "seed": 0}
  orbax_io.save(folder / "checkpoint_5", params, CONFIG, step=5, extra=extra)
  (folder / "config.gin").write_text(GIN)
  return folder


def offer(drafter):
  expected = {"acceptance_by_position": [0.75, 0.5], "tokens_per_block": 2.5}
  return {
    "drafter": drafter,
    "method": "spec_decode",
    "alpha": None,
    "gamma": 3,
    "expected": expected,
  }


def advice(folder, drafter):
  path = folder / "advice.json"
  values = {
    "about": {"temperature": 1.0, "verifier": "large-9"},
    "task": "t",
    "split": "test",
    "num_examples": 8,
    "costs": {drafter: {"c": 0.125}},
    "offers": [offer(drafter), offer("other-1")],
  }
  path.write_text(json.dumps(values))
  return path


def test_a_card_says_what_the_run_and_its_files_say(
  checkpoint, tmp_path, capsys
):
  path = advice(tmp_path, "taught-5")
  flags = [f"--checkpoint={checkpoint}", "--licence=CC0-1.0"]
  assert card.main([*flags, "--results", str(path)]) == 0
  assert str(checkpoint / "card.md") in capsys.readouterr().out
  text = (checkpoint / "card.md").read_text()
  values = json.loads((checkpoint / "card.json").read_text())
  facts = values["facts"]
  assert facts["LOSS"] == "GeneralJSD(beta=0.1)"  # the checkpoint's own word
  assert facts["TEACHER_CHECKPOINT"] == "'out/large'"
  assert facts["JSD_BETA"] == "0.1"
  assert facts["Parameters"] == f"{num_parameters(CONFIG):,}"
  assert "ACCEPTANCE_METHOD" not in facts
  assert "TEACHER_SHARE" not in facts
  assert "EVAL_PERIOD" not in facts
  for name, value in facts.items():
    assert f"- {name}: {value}." in text
  assert "- Licence: CC0-1.0." in text
  [point] = values["points"]
  assert point["acceptance"] == 0.75
  assert point["cost"] == 0.125
  assert facts["Draft model"] == "language model"
  row = "| t | test | spec_decode |  | 3 | 1 | large-9 | 8 | 0.75 | 2.5 | 0.125"
  row += " | taught-5 |  |"
  assert row in text
  for name, entry in values["hashes"].items():
    content = (checkpoint / name).read_bytes()
    assert entry["bytes"] == len(content)
    assert entry["sha256"] == hashlib.sha256(content).hexdigest()
    assert entry["sha256"] in text


def test_rows_of_sweeps_are_points(tmp_path):
  rows = synthetic.rows()
  path = tmp_path / "rows.jsonl.gz"
  lines = "".join(row.to_json() + "\n" for row in rows)
  path.write_bytes(gzip.compress(lines.encode()))
  drafted = [row for row in rows if row.counts.examined]
  name = drafted[0].settings.drafter
  want = [row for row in drafted if row.settings.drafter == name]
  points = card.read_points([path], name)
  assert len(points) == len(want) > 0
  for point, row in zip(points, want):
    assert point["method"] == row.settings.method
    assert point["acceptance"] == row.counts.accepted / row.counts.examined
    assert point["cost"] == (row.costs and row.costs.c)
    assert point["machine"] == "a chip, jax 1"
    assert point["drafter"] == name


def test_points_with_a_draft_vocabulary_are_the_drafters(tmp_path):
  """Advice has the whole head and a cut one, each at its own cost."""
  path = advice(tmp_path, "taught-5")
  values = json.loads(path.read_text())
  cut = "taught-5 cut to 4"
  values["offers"] += [offer(cut), offer("taught-50")]
  values["costs"][cut] = {"c": 0.0625}
  path.write_text(json.dumps(values))
  points = card.read_points([path], "taught-5")
  assert [(x["drafter"], x["cost"]) for x in points] == [
    ("taught-5", 0.125),
    (cut, 0.0625),
  ]


def test_the_card_of_a_state_reader_says_what_it_reads(tmp_path):
  config = StateReaderConfig(fused=True).shaped_like(CONFIG)
  params = network(config).initial(jax.random.key(0))
  orbax_io.save(tmp_path / "reader", params, config, step=3)
  made, _ = card.of_checkpoint(str(tmp_path / "reader"), [], "CC0-1.0")
  text = made.to_markdown()
  assert (
    "- Draft model: state reader that reads states of several layers of the"
    " verifier.\n" in text
  )
  assert "the verifier that it was trained with" in text


def test_files_that_do_not_fit_are_refused(checkpoint, tmp_path, capsys):
  path = advice(tmp_path, "another-3")
  flags = [f"--checkpoint={checkpoint}", "--results", str(path)]
  assert card.main(flags) == 1
  message = capsys.readouterr().err
  assert "no drafts of taught-5; it has the drafters another-3, other-1" in (
    message
  )
  path.write_text("[]")
  assert card.main(flags) == 1
  assert "is not advice of speccascade.advise" in capsys.readouterr().err


def test_what_a_card_says_is_text():
  hostile = "a\x1b[2J\u202e[b](javascript:c)<d>|"
  text = card.ModelCard(
    title=hostile,
    text="",
    facts={hostile: hostile},
    licence=hostile,
    points=[dict.fromkeys(card._COLUMNS, hostile)],
    hashes={hostile: (1, "0")},
  ).to_markdown()
  assert text.count(r"a\x1b[2J\u202e[b&#93;(javascript:c)&lt;d>") == 18
  assert not re.search("\x1b|\u202e|<d>", text)
  rows = re.findall(r"^\|.*", text, re.M)
  ends = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
  num = len(card._COLUMNS) + 1
  assert ends == [num, num, num, 4, 4, 4]
