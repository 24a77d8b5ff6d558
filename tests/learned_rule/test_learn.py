"""The command that fits rules: what it reads, leaves, and refuses."""

import json
import pathlib

import numpy as np
import pytest

from speccascade import decode
from speccascade.checkpoints import rule_files
from speccascade.decoding.laws import learned
from speccascade.learned_rule import __main__ as learned_rule
from speccascade.learned_rule import token_rows
from speccascade.models import T5LM
from tests import mains
from tests.inference import tiny

pytestmark = pytest.mark.needs_tf

ROOT = pathlib.Path(__file__).parents[2]
# Inputs and outputs of several lengths.
PAIRS = [
  (" ".join(tiny.WORDS[: 1 + i % 5]), " ".join(tiny.WORDS[i % 4 : i % 7 + 4]))
  for i in range(11)
]
CONFIG = """
include "configs/own_text/decode.gin"
include "configs/runs/learned_rule.gin"
TASK_FEATURE_LENGTHS = {"inputs": 16, "targets": 16}
MAX_DECODE_LEN = 8
BATCH_SIZE = 4
FIT_STEPS = 3
TEST_FILES = None
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("rule")
  tiny.train_words(folder / "words.model")
  for seed, name in enumerate(("small", "large")):
    tiny.save(folder / name / "checkpoint_7", seed, vocab_size=24)
  for split, pairs in (("train", PAIRS), ("dev", PAIRS[:4])):
    for place, language in enumerate(("en", "de")):
      lines = [pair[place] + "\n" for pair in pairs]
      (folder / f"{split}.{language}").write_text("".join(lines))
  (folder / "rule.gin").write_text(CONFIG)
  return folder


@pytest.fixture
def run(files, capsys, tmp_path):
  def call(**macros):
    paths = {
      "TRAIN_FILES": str(files / "train"),
      "VALIDATION_FILES": str(files / "dev"),
      "VOCABULARY": str(files / "words.model"),
      "DRAFTER_CHECKPOINT": str(files / "small"),
      "VERIFIER_CHECKPOINT": str(files / "large"),
      "OUTPUT_DIR": str(tmp_path / "out"),
    }
    config = files / "rule.gin"
    return mains.start(learned_rule, capsys, config, **{**paths, **macros})

  return call


def test_a_rule_is_fitted_and_decodes(
  run, files, tmp_path, capsys, monkeypatch
):
  monkeypatch.setattr(token_rows, "PART", 4)
  code, out, _ = run()
  assert code == 0
  assert "drafter right: plug-in" in out
  folder = tmp_path / "out"
  rule = rule_files.read(folder / "rule.npz")
  assert rule.parameters.keys() == learned.KINDS.keys()
  assert rule.about["drafter"].startswith("small")
  losses = json.loads((folder / "losses.json").read_text())
  assert losses["right token"].keys() == {"drafter", "verifier", "mixture"}
  assert len(list((folder / "rows" / "train").iterdir())) == 3
  # A part that is missing is made again, and nothing changes.
  (folder / "rows" / "train" / "00000004.npz").unlink()
  (folder / "rule.npz").unlink()
  assert run()[0] == 0
  assert rule_files.read(folder / "rule.npz").digest == rule.digest
  # A decode takes the file.
  macros = {
    "TEST_FILES": str(files / "dev"),
    "VOCABULARY": str(files / "words.model"),
    "DRAFTER_CHECKPOINT": str(files / "small"),
    "VERIFIER_CHECKPOINT": str(files / "large"),
    "MAX_DECODE_LEN": 4,
    "METHOD": "spec_cascade_learned",
    "OUTPUT_DIR": str(tmp_path / "decode"),
  }
  config = ROOT / "configs/own_text/decode.gin"
  path = str(folder / "rule.npz")
  code, *_ = mains.start(decode, capsys, config, RULE_PARAMETERS=path, **macros)
  assert code == 0
  row = json.loads((tmp_path / "decode" / "metrics.json").read_text())
  assert row["settings"]["rule_parameters"] == rule.digest
  code, _, error = mains.start(decode, capsys, config, **macros)
  assert code
  assert "RULE_PARAMETERS is None, and SpecCascade [Learned] has" in error


def test_rows_are_what_the_models_say(files, run, tmp_path):
  """Against one pass over one example at a time, whatever its batch is."""
  assert run()[0] == 0
  rows = np.load(tmp_path / "out" / "rows" / "train" / "00000000.npz")
  from speccascade.checkpoints import restore
  from speccascade.data import vocabularies

  vocabulary = vocabularies.load(str(files / "words.model"))
  laws, gold = [], []
  for source, target in PAIRS:
    inputs = np.array([[*vocabulary.encode(source), 1]], np.int32)
    tokens = np.array([*vocabulary.encode(target), 1][:8], np.int32)
    fed = np.concatenate([[0], tokens[:-1]])[None].astype(np.int32)
    both = []
    for name in ("small", "large"):
      checkpoint = restore.load(str(files / name))
      lm = T5LM.create(checkpoint.config, checkpoint.params)
      state = lm.prefill(inputs, capacity=fed.shape[1])
      _, out = lm.extend(state, fed, np.full(1, fed.shape[1], np.int32))
      both.append(np.asarray(out.logits, np.float64)[0])
    both = [np.exp(x - x.max(-1, keepdims=True)) for x in both]
    laws.append([x / x.sum(-1, keepdims=True) for x in both])
    gold.append(tokens)
  q, p = (np.concatenate(each) for each in zip(*laws))
  tokens = np.concatenate(gold)
  place = np.arange(len(tokens))
  wanted = np.stack(
    [
      q.max(-1),
      p[place, q.argmax(-1)],
      q[place, tokens],
      p[place, tokens],
      q.argmax(-1) == tokens,
      p.argmax(-1) == tokens,
    ],
    axis=1,
  )
  features = rows["features"]
  got = np.stack(
    [
      features[:, learned.FEATURES.index("max_q")],
      features[:, learned.FEATURES.index("p_at_argmax_q")],
      *(rows[x] for x in ("q_gold", "p_gold", "q_right", "p_right")),
    ],
    axis=1,
  )
  assert got.shape == wanted.shape
  # Batches are of like lengths, so the rows come in another order.
  for table in (got, wanted):
    table[:] = table[np.lexsort(np.round(table, 3).T)]
  np.testing.assert_allclose(got, wanted, atol=2e-3)


@pytest.mark.parametrize(
  ("macros", "message"),
  [
    ({"VALIDATION_SPLIT": "train"}, "are both 'train'; a rule that is tuned"),
    (
      {"DRAFTER_CHECKPOINT": ["a", "b"]},
      "a",
    ),
    ({"FIT_STEPS": 0}, "FIT_STEPS"),
    ({"FIT_LEARNING_RATE": 0.0}, "FIT_LEARNING_RATE"),
    ({"NUM_TRAIN": 0}, "NUM_TRAIN"),
    (
      {"MIXTURE_OR_TASK_NAME": None, "INPUT_FILE": "in.txt"},
      "INPUT_FILE has none; register the files as a task",
    ),
  ],
)
def test_bad_settings_are_one_line(run, tmp_path, macros, message):
  code, _, error = run(**macros)
  assert code
  assert message in error
  assert not (tmp_path / "out" / "rule.npz").exists()
