"""The command that fits rules: what it reads, leaves, and refuses."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import decode, learned_rule
from speccascade.checkpoints import restore, rule_files
from speccascade.decoding.laws import learned
from speccascade.models import T5LM
from speccascade.training import token_rows
from speccascade.training.rule_fitting import TokenRows
from tests import mains
from tests.generate import tiny

pytestmark = pytest.mark.needs_tf

ROOT = pathlib.Path(__file__).parents[1]
# Inputs and outputs of several lengths.
PAIRS = [
  (" ".join(tiny.WORDS[: 1 + i % 5]), " ".join(tiny.WORDS[i % 4 : i % 7 + 4]))
  for i in range(11)
]
MAX_LEN = 8
CONFIG = f"""
include "configs/own_text/decode.gin"
include "configs/runs/learned_rule.gin"
TASK_FEATURE_LENGTHS = {{"inputs": 48, "targets": 48}}
MAX_DECODE_LEN = {MAX_LEN}
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
    with mains.own_tasks():
      return mains.start(learned_rule, capsys, config, **{**paths, **macros})

  return call


def check_rows(rows: TokenRows, files):
  """Compares rows with passes over one example at a time.

  Batches are of like lengths, so the rows come in another order.
  """
  from speccascade.text import vocabularies

  vocabulary = vocabularies.load(str(files / "words.model"))
  models = []
  for name in ("small", "large"):
    checkpoint = restore.load(str(files / name))
    models.append(T5LM.create(checkpoint.config, checkpoint.params))
  wanted = []
  for source, target in PAIRS:
    inputs = np.array([[*vocabulary.encode(source), 1]], np.int32)
    tokens = np.array([*vocabulary.encode(target), 1][:MAX_LEN], np.int32)
    # One shape for all: what is fed later does not matter to what is read.
    num, fed = len(tokens), np.zeros((1, MAX_LEN), np.int32)
    fed[0, 1:num] = tokens[:-1]
    inputs = np.pad(inputs, ((0, 0), (0, 48 - inputs.shape[1])))
    q, p = (np.asarray(law(lm, inputs, fed)) for lm in models)
    for step, token in enumerate(tokens):
      wanted.append(
        [
          q[step].max(),
          p[step, q[step].argmax()],
          q[step, token],
          p[step, token],
          q[step].argmax() == token,
          p[step].argmax() == token,
        ]
      )
  names = ("max_q", "p_at_argmax_q")
  features = [rows.features[:, learned.FEATURES.index(x)] for x in names]
  got = np.stack([*features, *rows[3:], *rows[1:3]], axis=1)
  wanted = np.array(wanted)
  assert got.shape == wanted.shape
  apart = np.abs(got[:, None] - wanted).max(-1)
  assert max(apart.min(0).max(), apart.min(1).max()) < 1e-5


@jax.jit
def law(lm, inputs, fed):
  """Returns [T, V], the distribution after each of the tokens fed [1, T]."""
  state = lm.prefill(inputs, capacity=fed.shape[1])
  _, out = lm.extend(state, fed, jnp.full((1,), fed.shape[1], jnp.int32))
  return jax.nn.softmax(out.logits[0])


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
  parts = sorted((folder / "rows" / "train").iterdir())
  assert len(parts) == 3
  columns = [TokenRows(**np.load(part)) for part in parts]
  check_rows(TokenRows(*map(np.concatenate, zip(*columns))), files)
  # A part that is missing is made again, and nothing changes.
  parts[1].unlink()
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
  with mains.own_tasks():
    code, _, error = mains.start(
      decode, capsys, config, RULE_PARAMETERS=path, **macros
    )
    assert code == 0, error
    row = json.loads((tmp_path / "decode" / "metrics.json").read_text())
    assert row["settings"]["rule_parameters"] == rule.digest
    message = mains.refused(mains.start(decode, capsys, config, **macros))
  assert "RULE_PARAMETERS is None, and method" in message


@pytest.mark.parametrize(
  ("macros", "message"),
  [
    ({"VALIDATION_SPLIT": "train"}, "are both 'train'; a rule that is tuned"),
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
  assert message in mains.refused(run(**macros))
  assert not (tmp_path / "out" / "rule.npz").exists()
