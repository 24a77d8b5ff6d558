"""The train main: a run over text files, its faults, and all its configs."""

import gzip

import pytest

from speccascade import train
from speccascade.checkpoints import load, orbax_io
from tests import mains
from tests.data.conftest import train_vocabulary

pytestmark = pytest.mark.needs_tf

TINY = """
from __gin__ import dynamic_registration
from speccascade.models.t5 import config
include "configs/runs/finetune.gin"
include "configs/data/text_files.gin"
tiny/config.T5Config:
  vocab_size = 128
  emb_dim = 16
  num_heads = 2
  num_encoder_layers = 1
  num_decoder_layers = 1
  head_dim = 8
  mlp_dim = 32
MODEL = @tiny/config.T5Config()
TASK_FEATURE_LENGTHS = {"inputs": 24, "targets": 16}
TRAIN_STEPS = 3
BATCH_SIZE = 4
NUM_DECODED_EXAMPLES = 2
MAX_DECODE_LEN = 4
BEST_METRIC = "chrf"
PREFIX = ""
DROPOUT_RATE = 0.0
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """A config, a vocabulary and twelve pairs; one line is too long."""
  folder = tmp_path_factory.mktemp("files")
  (folder / "tiny.gin").write_text(TINY)
  lines = {
    "en": ["the cat sat on the mat"] * 11 + ["the dog " * 30],
    "de": ["die Katze sitzt"] * 12,
  }
  for language, texts in lines.items():
    with gzip.open(folder / f"data.{language}.gz", "wt") as file:
      file.write("\n".join(texts) + "\n")
  train_vocabulary(folder / "tiny.model")
  return folder


@pytest.fixture
def run(files, tmp_path, capsys):
  """Runs the main; returns (exit code, stdout, stderr)."""

  def call(config="tiny.gin", **macros):
    macros = {
      "MODEL_DIR": str(tmp_path / "run"),
      "TRAIN_FILES": str(files / "data"),
      "VALIDATION_FILES": str(files / "data"),
      "VOCABULARY": str(files / "tiny.model"),
    } | macros
    return mains.start(train, capsys, files / config, **macros)

  return call


def test_a_run_leaves_a_checkpoint_logs_and_its_config(run, files, tmp_path):
  code, out, err = run(TOKEN_CACHE_DIR=str(tmp_path / "tokens"))
  assert code == 0, err
  assert "1 of 12 inputs of train were longer than TASK_FEATURE" in out
  assert "12 training examples, 3 steps an epoch" in out
  assert "starting from random parameters, step 0 of 3" in out
  last = out.splitlines()[-1]
  assert last.startswith("finished at step 3; eval/loss ")
  for name in ("eval/accuracy ", "eval/bleu ", "eval/chrf "):
    assert name in last
  folder = tmp_path / "run"
  assert last.endswith(f"checkpoint: {folder}/checkpoint_3")
  read = load(folder)
  assert read.step == 3
  assert read.config.vocab_size == 128
  identity = orbax_io.vocabulary_identity(files / "tiny.model")
  assert read.vocabulary == identity
  assert list(folder.glob("events.out.tfevents.*"))
  assert "TRAIN_STEPS = 3" in (folder / "config.gin").read_text()

  # The same command with more steps goes on; the tokens are found again.
  (cached,) = (tmp_path / "tokens").iterdir()
  before = cached.stat().st_mtime_ns
  code, out, _ = run(TOKEN_CACHE_DIR=str(tmp_path / "tokens"), TRAIN_STEPS=4)
  assert code == 0
  assert f"resuming from {folder}/checkpoint_3, step 3 of 4" in out
  assert cached.stat().st_mtime_ns == before


@pytest.mark.parametrize(
  ("macros", "message"),
  [
    ({"MODEL_DIR": ...}, "error: MODEL_DIR must be given"),
    (
      {"TRAIN_STEPS": 0},
      "error: TRAIN_STEPS is 0; wanted a whole number",
    ),
    (
      {"TRAIN_FILES": "/nowhere/data", "tasks.register_text_task.name": "two"},
      "/nowhere/data",
    ),
    (
      {"LOSS_NORMALIZING_FACTOR": "MEAN"},
      "error: LOSS_NORMALIZING_FACTOR is 'MEAN'; wanted a number above 0",
    ),
    (
      {"INITIAL_CHECKPOINT_PATH": "/nowhere/checkpoint_1"},
      "error: there is no checkpoint at /nowhere/checkpoint_1",
    ),
    ({"PACK": True, "BUCKETS": [24]}, "packing and buckets exclude each other"),
    ({"EVAL_SPLIT": "dev"}, "no split 'dev'"),
    ({"tiny/config.T5Config.vocab_size": 50}, "50 embedding rows"),
  ],
)
def test_what_does_not_fit_is_one_line_and_writes_nothing(
  run, tmp_path, macros, message
):
  code, _, err = run(**macros)
  assert code == 1
  lines = [line for line in err.splitlines() if line.startswith("error: ")]
  assert len(lines) == 1
  assert message in lines[0]
  assert "Traceback" not in err
  assert not (tmp_path / "run").exists()


def test_one_run_trains_into_a_folder(run, tmp_path, other_job):
  other_job(tmp_path / "run")
  code, _, err = run(INITIAL_CHECKPOINT_PATH="/nowhere")  # not looked for yet
  assert code == 1
  assert f"MODEL_DIR {tmp_path}/run is being written to by process" in err
