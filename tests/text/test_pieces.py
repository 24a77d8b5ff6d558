"""Runs the command that makes a vocabulary."""

import gzip
import json

import pytest

from speccascade import vocabulary as command
from speccascade.text import vocabularies
from tests.text.conftest import TEXT

pytestmark = pytest.mark.needs_tf


@pytest.fixture
def files(tmp_path):
  """Lines, a pair of gzipped line files, and JSON lines of further texts."""
  (tmp_path / "lines.txt").write_text("\n".join(TEXT[:2]))
  for language, texts in (("src", TEXT[2:3]), ("tgt", TEXT[3:4])):
    with gzip.open(tmp_path / f"pair.{language}.gz", "wt") as file:
      file.write("\n".join(texts))
  row = {"inputs": TEXT[4], "targets": ["the first answer", "ein zweites Wort"]}
  (tmp_path / "rows.jsonl").write_text(json.dumps(row))
  return [str(tmp_path / name) for name in ("lines.txt", "pair", "rows.jsonl")]


@pytest.fixture
def call(files, tmp_path, capsys):
  """Runs the command; returns (exit code, stdout, stderr)."""

  def call(*flags, size=78, output=tmp_path / "of" / "pieces.model"):
    flags = ["--text_files", *files, "--languages", "src", "tgt", *flags]
    sizes = [f"--vocab_size={size}", f"--output_file={output}"]
    return command.main([*flags, *sizes]), *capsys.readouterr()

  return call


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_all_texts_come_back(call, tmp_path, kind):
  code, out, err = call(f"--model_type={kind}", "--split_digits")
  assert (code, err) == (0, "")
  vocabulary = vocabularies.load(str(tmp_path / "of" / "pieces.model"))
  assert vocabulary.vocab_size == 78
  rows = {}
  for text in [*TEXT, "the first answer", "ein zweites Wort"]:
    rows[text] = vocabulary.encode(text)
    assert vocabulary.unk_id not in rows[text]
    assert vocabulary.decode(rows[text]) == text
  assert len(vocabulary.encode("1234")) - len(vocabulary.encode("1")) == 3
  lines = out.splitlines()
  assert lines[-1] == f"78 pieces in {tmp_path}/of/pieces.model"
  names = ["lines.txt", "pair.src.gz", "pair.tgt.gz", "rows.jsonl"]
  for line, name in zip(lines, [*names, "rows.jsonl, targets"], strict=False):
    assert line.startswith(f"{tmp_path}/{name}: ")
  assert lines[0].endswith(
    f"longest {max(len(rows[text]) for text in TEXT[:2]) + 1}"
  )


def test_a_vocabulary_that_models_may_have_is_kept(call, tmp_path):
  path = tmp_path / "of" / "pieces.model"
  assert call()[0] == 0
  before = path.read_bytes()
  assert call()[0] == 0
  code, _, err = call(size=74)
  assert code == 1
  assert "is there and is another vocabulary" in err
  assert path.read_bytes() == before


@pytest.mark.parametrize(
  ("size", "message"), [(4000, "set it to a value <= "), (7, "7 vs ")]
)
def test_a_size_that_the_text_cannot_give(call, tmp_path, size, message):
  code, out, err = call(size=size)
  assert (code, out) == (1, "")
  assert err.startswith(f"error: no vocabulary of {size} pieces can be made: ")
  assert message in err
  assert err.count("\n") == 1
  assert not (tmp_path / "of").exists()
