"""The n-gram command: tasks and files in, one whole file out."""

import json
import pathlib

import pytest
import sentencepiece

from speccascade import ngrams
from speccascade.models import bigram_table
from speccascade.models.ngram_lm import NgramLM
from tests import mains
from tests.generate import tiny

pytestmark = pytest.mark.needs_tf

SKELETON = pathlib.Path(__file__).parents[2] / "configs/runs"
TEXT = "the cat saw the cat\nthe dog saw the cat\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("text")
  words = {"model_type": "word", "hard_vocab_limit": False, "vocab_size": 14}
  tiny.train_words(folder / "words.model", TEXT, **words)
  (folder / "in.txt").write_text(TEXT)
  rows = [{"inputs": "dog dog", "targets": t} for t in TEXT.splitlines()]
  (folder / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
  pieces = sentencepiece.SentencePieceProcessor(str(folder / "words.model"))
  records = [
    {"inputs": "cat", "prediction": "", "aux": {"tokens": ids}}
    for ids in map(pieces.encode, TEXT.splitlines())
  ]
  (folder / "written.jsonl").write_text("\n".join(map(json.dumps, records)))
  return folder


@pytest.fixture
def run(files, capsys, tmp_path):
  def call(**macros):
    paths = {
      "INPUT_FILE": str(files / "in.txt"),
      "VOCABULARY": str(files / "words.model"),
      "OUTPUT_FILE": str(tmp_path / "out" / "n.npz"),
    }
    config = SKELETON / "ngrams.gin"
    return mains.start(ngrams, capsys, config, **{**paths, **macros})

  return call


@pytest.mark.parametrize("name", ["in.txt", "in.jsonl", "written.jsonl"])
def test_a_file_is_counted(run, files, tmp_path, name):
  code, out, _ = run(INPUT_FILE=str(files / name), ORDER=3)
  assert code == 0
  assert "3-gram model over" in out
  path = tmp_path / "out" / "n.npz"
  model = NgramLM.load(path)
  assert len(model.vocabulary) == 64
  pieces = sentencepiece.SentencePieceProcessor(str(files / "words.model"))
  the, cat, saw = (pieces.encode(word)[0] for word in ("the", "cat", "saw"))
  table = bigram_table.read(path)
  # cat: saw once, the end twice; the: cat three times, dog once.
  assert (table[0], table[the], table[cat], table[saw]) == (the, cat, 1, the)
  assert [p.name for p in path.parent.iterdir()] == ["n.npz"]


@pytest.mark.parametrize(
  ("macros", "message"),
  [
    ({"MIXTURE_OR_TASK_NAME": "x"}, "one of them and not both"),
    ({"VOCABULARY": None}, "needs a VOCABULARY"),
  ],
)
def test_refusals_write_nothing(run, tmp_path, macros, message):
  code, _, err = run(**macros)
  assert code == 1
  assert message in err
  assert len(err.strip().splitlines()) == 1
  assert not (tmp_path / "out").exists()


def test_one_job_writes_a_file(run, tmp_path, other_job):
  other_job(tmp_path / "out", file="n.npz")
  code, _, err = run()
  assert code == 1
  assert "the folder of OUTPUT_FILE" in err
  assert "is being written to by process" in err
  assert run(OUTPUT_FILE=str(tmp_path / "out" / "m.npz"))[0] == 0


@pytest.mark.slow
def test_the_built_in_task_is_counted(run, tmp_path):
  task = {"MIXTURE_OR_TASK_NAME": "speccascade_en_de", "SPLIT": "validation"}
  code, out, _ = run(INPUT_FILE=None, VOCABULARY=None, **task)
  assert code == 0, out
  assert NgramLM.load(tmp_path / "out" / "n.npz").order == 1
