"""The train main: a run over text files, its faults, and all its configs."""

import gzip
import json

import numpy as np
import pytest

import speccascade as sc
from speccascade import decode, train
from speccascade.checkpoints import convert, load, orbax_io
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.runtime import memory
from speccascade.text import sentence_pieces, vocabularies
from tests import mains
from tests.generate import llamas, tiny
from tests.text import tokenizers
from tests.text.conftest import train_vocabulary

pytestmark = pytest.mark.needs_tf


@pytest.fixture(scope="module", autouse=True)
def own_tasks():
  with mains.own_tasks():
    yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """A config, a vocabulary and twelve pairs; one line is too long."""
  folder = tmp_path_factory.mktemp("files")
  (folder / "tiny.gin").write_text(mains.TRAIN)
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
  assert "; outputs decoded greedily (temperature 0); " in last
  assert last.endswith(f"checkpoint: {folder}/checkpoint_3")
  read = load(folder)
  assert read.step == 3
  assert read.config.vocab_size == 128
  identity = orbax_io.vocabulary_identity(files / "tiny.model")
  assert read.vocabulary == identity
  assert list(folder.glob("events.out.tfevents.*"))
  assert "TRAIN_STEPS = 3" in (folder / "config.gin").read_text()

  # The same command with more steps continues; the tokens are found again.
  (cached,) = (tmp_path / "tokens").iterdir()
  before = cached.stat().st_mtime_ns
  code, out, _ = run(TOKEN_CACHE_DIR=str(tmp_path / "tokens"), TRAIN_STEPS=4)
  assert code == 0
  assert f"resuming from {folder}/checkpoint_3, step 3 of 4" in out
  assert cached.stat().st_mtime_ns == before


def test_bytes_need_no_vocabulary_file(run, tmp_path, capsys):
  named = {"tasks.register_text_task.name": "of_bytes"}
  rows = {"tiny/config.T5Config.vocab_size": 384}
  quick = {"TRAIN_STEPS": 1, "NUM_EVAL_EXAMPLES": 0, "BEST_METRIC": None}
  code, _, err = run(VOCABULARY="bytes", **named, **rows, **quick)
  assert code == 0, err
  folder = tmp_path / "run"
  assert load(folder).vocabulary["path"] == "bytes"
  # A decode finds it beside the checkpoint.
  assert vocabularies.load(str(folder)) == vocabularies.load("bytes")
  (tmp_path / "in.txt").write_text("die Stra\u00dfe\n")
  ended = mains.start(
    *(decode, capsys, "configs/runs/decode.gin"),
    **{"DRAFTER_CHECKPOINT": (), "VERIFIER_CHECKPOINT": str(folder)},
    **{"INPUT_FILE": str(tmp_path / "in.txt"), "METHOD": "verifier"},
    **{"TASK_FEATURE_LENGTHS": {"inputs": 24}, "MAX_DECODE_LEN": 2},
    **{"BATCH_SIZE": 1, "OUTPUT_DIR": str(tmp_path / "out")},
  )
  assert ended[0] == 0, ended


def forget_vocabularies():
  """Makes the next reader look for a vocabulary's file again."""
  vocabularies.load.cache_clear()
  sentence_pieces._fetch.cache_clear()


def test_a_folder_that_was_moved_brings_its_vocabulary(
  run, files, tmp_path, capsys
):
  words = tmp_path / "words.model"
  words.write_bytes((files / "tiny.model").read_bytes())
  quick = {"TRAIN_STEPS": 1, "NUM_EVAL_EXAMPLES": 0, "BEST_METRIC": None}
  named = {"tasks.register_text_task.name": "moved"}
  code, _, err = run(VOCABULARY=str(words), **quick, **named)
  assert code == 0, err
  moved = tmp_path / "elsewhere" / "small"
  moved.parent.mkdir()
  (tmp_path / "run").rename(moved)
  words.unlink()
  forget_vocabularies()
  # A step's own path finds it as well.
  for path in (moved, moved / "checkpoint_1"):
    pair = sc.load_pair(drafter=path, verifier=path)
    assert pair.vocabulary.path == str(moved / "spiece.model")
  assert pair.generate("the cat", "verifier", max_decode_len=2).texts
  (tmp_path / "in.txt").write_text("the cat\n")
  ended = mains.start(
    *(decode, capsys, "configs/runs/decode.gin"),
    DRAFTER_CHECKPOINT=(),
    VERIFIER_CHECKPOINT=str(moved),
    INPUT_FILE=str(tmp_path / "in.txt"),
    METHOD="verifier",
    TASK_FEATURE_LENGTHS={"inputs": 8},
    MAX_DECODE_LEN=2,
    BATCH_SIZE=1,
    OUTPUT_DIR=str(tmp_path / "out"),
  )
  assert ended[0] == 0, ended
  # Without it, as old folders are, the path that was recorded is named.
  (moved / "spiece.model").unlink()
  forget_vocabularies()
  with pytest.raises(FileNotFoundError, match=r"words\.model, which is not"):
    sc.load_pair(verifier=moved)


def test_a_folder_with_another_vocabulary_is_not_trained_in(run, tmp_path):
  there = tmp_path / "run" / "spiece.model"
  there.parent.mkdir()
  tiny.train_words(there)
  before = there.read_bytes()
  said = mains.refused(run())
  assert "MODEL_DIR holds another vocabulary" in said
  assert str(there) in said
  assert there.read_bytes() == before


@pytest.mark.parametrize(
  ("macros", "message"),
  [
    ({"MODEL_DIR": ...}, "error: MODEL_DIR must be given"),
    ({"PACK": True, "BUCKETS": [24]}, "packing and buckets exclude each other"),
    ({"tiny/config.T5Config.vocab_size": 50}, "50 embedding rows"),
    ({"TEACHER_CACHE_DIR": "kept"}, "is for decoder-only models"),
  ],
)
def test_what_does_not_fit_is_one_line_and_writes_nothing(
  run, tmp_path, macros, message
):
  assert message in mains.refused(run(**macros))
  assert not (tmp_path / "run").exists()


DRAFTER = """
from __gin__ import dynamic_registration
from speccascade.models.llama import config
include "configs/runs/distil.gin"
tiny/config.LlamaConfig:
  vocab_size = 328
  emb_dim = 8
  num_heads = 2
  num_kv_heads = 1
  num_decoder_layers = 1
  head_dim = 4
  mlp_dim = 8
MODEL = @tiny/config.LlamaConfig()
TASK_FEATURE_LENGTHS = {"inputs": 48, "targets": 8}
TRAIN_STEPS = 2
BATCH_SIZE = 1
"""
READER = """
from __gin__ import dynamic_registration
include "configs/runs/distil.gin"
include "configs/models/state_reader.gin"
TASK_FEATURE_LENGTHS = {"inputs": 48, "targets": 8}
TRAIN_STEPS = 2
BATCH_SIZE = 1
"""
WRITTEN = {"inputs": "the cat", "prediction": "", "aux": {"tokens": [9, 8, 2]}}


@pytest.fixture(scope="module")
def verifier(files):
  """A verifier, what it wrote, and a config of its drafter."""
  (files / "drafter.gin").write_text(DRAFTER)
  rows = f"{json.dumps(WRITTEN)}\n" * 3
  (files / "written.jsonl").write_text(rows)
  return llamas.save(files / "large", 1)


@pytest.fixture
def distil(run, files, verifier):
  written = {
    name: str(files / "written.jsonl")
    for name in ("TRAIN_FILES", "VALIDATION_FILES")
  }
  own = {"TEACHER_CHECKPOINT": str(verifier), "VOCABULARY": ..., **written}
  return lambda config="drafter.gin", **macros: run(config, **own | macros)


def test_a_drafter_learns_what_its_verifier_wrote(distil, verifier, tmp_path):
  code, out, err = distil(TEACHER_CACHE_DIR=str(tmp_path / "kept"))
  assert code == 0, err
  assert len([*(tmp_path / "kept").glob("*/*.npy")]) == 1
  assert "files: 3 training examples, 1 steps an epoch" in out
  assert f"and the embedding of {verifier}, step 0 of 2" in out
  for name in ("loss", "accuracy", "divergence", "acceptance"):
    assert f"eval/{name} " in out.splitlines()[-1]
  # It decodes with its verifier, and says of its vocabulary that it is that.
  pair = sc.load_pair(drafter=tmp_path / "run", verifier=verifier)
  small, large = pair.models.models
  assert small.vocabulary["sha256"] == large.vocabulary["sha256"]
  # Alone and elsewhere it brings the tokenizer, and what ends a text.
  (tmp_path / "run").rename(tmp_path / "moved")
  alone = sc.load_pair(drafter=tmp_path / "moved").vocabulary
  assert alone.path == str(tmp_path / "moved")
  assert alone == pair.vocabulary
  assert alone.eos_ids == pair.vocabulary.eos_ids
  template = pair.vocabulary.chat_template.source
  assert alone.chat_template.source == template
  # A conversion takes it along.
  to = tmp_path / "converted"
  convert.convert(tmp_path / "moved", to, format="hugging_face")
  assert sc.load_pair(drafter=to).vocabulary == alone


def test_a_state_reader_learns_from_its_verifier(
  files, distil, verifier, tmp_path
):
  (files / "reader.gin").write_text(READER)
  kept = {"TEACHER_CACHE_DIR": str(tmp_path / "kept"), "DRAFT_VOCABULARY": 20}
  code, out, err = distil(config="reader.gin", NUM_STEPS=2, **kept)
  assert code == 0, err
  assert len([*(tmp_path / "kept").glob("*-whole/*.npy")]) == 1
  assert "starting from the verifier's last layer, step 0 of 2" in out
  for name in ("loss", "accuracy", "acceptance_1", "acceptance_2"):
    assert f"eval/{name} " in out.splitlines()[-1]
  pair = sc.load_pair(drafter=tmp_path / "run", verifier=verifier)
  assert isinstance(pair.models.drafter_lm, sc.StateReader)
  options = {"temperature": 0, "max_decode_len": 6}
  got = pair.generate("the cat", method="spec_decode", gamma=2, **options)
  alone = pair.generate("the cat", method="verifier", **options)
  assert np.array_equal(got.tokens, alone.tokens)
  # Its head is cut as a model's is.
  cut = sc.load_pair(
    drafter=tmp_path / "run",
    verifier=verifier,
    draft_vocabulary=list(range(3, 40)),
  )
  assert " cut to 3" in cut.models.drafter_name
  again = cut.generate("the cat", method="spec_decode", gamma=2, **options)
  assert np.array_equal(again.tokens, alone.tokens)
  # The tokens that it learned are beside it.
  learned = sc.load_pair(
    drafter=tmp_path / "run", verifier=verifier, draft_vocabulary=4
  )
  cut = learned.models.drafter_lm.params["draft_vocabulary"]
  assert {8, 9} & set(cut["ids"].tolist())
  # Its rows choose the sizes of their blocks.
  costs = DraftCosts((0, 1, 2), (1.0, 1.3, 1.5), 1.0)
  chosen = pair.generate(
    "the cat",
    method="spec_decode",
    gamma="adaptive",
    draft_costs=costs,
    **options,
  )
  assert np.array_equal(chosen.tokens, alone.tokens)


@pytest.mark.parametrize(
  ("macros", "message"),
  [
    ({"VALIDATION_FILES": None}, "'validation': set VALIDATION_FILES, or NUM_"),
    ({"PROMPT": "source"}, "PROMPT is 'source', and MODEL is decoder-only"),
    ({"TEACHER_CHECKPOINT": None}, "files need a VOCABULARY"),
    ({"MIXTURE_OR_TASK_NAME": "xsum"}, "one of them and not both"),
    ({"tiny/config.LlamaConfig.vocab_size": 330}, "has 328 vocabulary rows"),
    ({"tiny/config.LlamaConfig.emb_dim": 32}, "and no less width"),
    ({"DRAFT_VOCABULARY": 20}, "is what a state reader learns to draft"),
  ],
)
def test_what_no_drafter_learns_from_is_one_line(distil, macros, message):
  assert message in mains.refused(distil(**macros))


def test_a_teacher_takes_memory_too(distil, monkeypatch):
  # The model and its logits take 46,880 bytes, its teacher 27,328.
  monkeypatch.setattr(memory, "total", lambda: 50_000)
  said = mains.refused(distil())
  assert "TEACHER_CHECKPOINT of 6,832 parameters, BATCH" in said


def test_a_teacher_has_the_vocabulary(distil, tmp_path_factory, verifier):
  other = tmp_path_factory.mktemp("other") / "large"
  tokenizers.save(llamas.save(other, 2), kind="fallback", size=60)
  wrong = {"TEACHER_CHECKPOINT": str(other), "VOCABULARY": str(verifier)}
  assert "has another vocabulary" in mains.refused(distil(**wrong))
