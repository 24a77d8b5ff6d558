"""Examples from files: their tokens, and the messages of refusals."""

import pytest

from speccascade.generate.batches.sources import InputError
from speccascade.tasks import inputs
from speccascade.text import prompting
from tests.generate import tiny

VOCABULARY = tiny.Vocabulary()


@pytest.fixture
def read(tmp_path):
  """Reads a file of texts whose inputs have up to six tokens."""

  def read(text, name="in.txt", **settings):
    path = tmp_path / name
    path.write_text(text)
    settings |= {"vocabulary": VOCABULARY, "input_file": path}
    return inputs.Inputs({"inputs": 6}, **settings).read()

  return read


def test_a_file(read):
  sources = read("one two\n\nüber nine\nsix\n", num_examples=3)
  examples = sources.examples
  assert [e.text for e in examples] == ["one two", "", "über nine"]
  assert [e.index for e in examples] == [0, 1, 2]
  assert [e.tokens.tolist() for e in examples] == [[4, 5, 1], [1], [2, 12, 1]]
  assert sources.num_cut == 0
  assert sources.task == "in.txt"  # not where the file lies
  lines = '{"inputs": "six", "targets": ["a", "b"]}\n\n{"inputs": "two"}\n'
  examples = read(lines, "in.jsonl").examples
  assert [e.references for e in examples] == [("a", "b"), ()]
  assert [e.index for e in examples] == [0, 1]


def test_long_texts_are_refused_or_cut(read):
  text = "one\none two three four five six seven\n"
  with pytest.raises(InputError, match=r"line 2 has 8 tokens.* 6.*truncate"):
    read(text)
  sources = read(text, truncate=True)
  assert sources.num_cut == 1
  assert sources.examples[1].tokens.tolist() == [4, 5, 6, 7, 8, 1]


def test_a_file_that_the_vocabulary_cannot_spell(read, monkeypatch):
  monkeypatch.setattr(tiny.Vocabulary, "unk_id", 2, raising=False)
  said = []
  monkeypatch.setattr(
    inputs.logging, "warning", lambda form, *values: said.append(form % values)
  )
  read("one two\nüber nine\n")
  [line] = said
  assert line.endswith("'über nine': 1 of 6 tokens (16.7%) are unknown")
  read("one two\n")
  assert len(said) == 1


def test_vocabulary_without_a_file_has_no_identity():
  assert prompting.identity(VOCABULARY) is None
