"""Reads prompts and outputs from files into tokens."""

import json

import pytest

from speccascade.text import prompting, vocabularies
from speccascade.text.prompting import Prompting
from tests.text import tokenizers

pytestmark = pytest.mark.needs_tf


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
  folder = tokenizers.save(tmp_path_factory.mktemp("tokenizer") / "bytes")
  return vocabularies.load(str(folder))


TURNS = [{"role": "system", "content": "a"}, {"role": "user", "content": "cat"}]
ROWS = [
  {"inputs": "the cat", "targets": "sat"},
  {"messages": TURNS, "targets": ["sat", "on"]},
  {"inputs": "the dog", "prediction": "x", "aux": {"tokens": [7, 8, 9, 0]}},
  {"inputs": "no", "messages": TURNS, "prediction": "", "aux": {"tokens": [5]}},
]


def read(folder, rows, vocabulary, **lengths):
  path = folder / "rows.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)) + "\n")
  lengths = {"inputs": 64, "targets": 8} | lengths
  examples = prompting.read_files({"train": path}, "train")
  return prompting.tokenize(examples, Prompting(vocabulary), lengths)


def test_what_is_decoded_is_what_is_learned(tmp_path, vocabulary):
  arrays = read(tmp_path, ROWS, vocabulary)
  prompting = Prompting(vocabulary)
  sat = [*vocabulary.encode("sat"), vocabulary.eos_id]
  want = [("the cat", sat), (TURNS, sat), ("the dog", [7, 8, 9, 0])]
  for index, (prompt, output) in enumerate([*want, (TURNS, [5])]):
    ids, _ = prompting.tokens(prompt, 64, "", False)
    assert arrays.get("inputs", index).tolist() == ids
    assert arrays.get("targets", index).tolist() == output


def test_what_is_cut_does_not_end(tmp_path, vocabulary):
  arrays = read(tmp_path, ROWS, vocabulary, targets=2)
  assert arrays.get("targets", 2).tolist() == [7, 8]
  assert arrays.num_cut == {"inputs": 0, "targets": 3}
  with pytest.raises(ValueError, match=r"line 1 has \d+ tokens, .*no chat is"):
    read(tmp_path, ROWS, vocabulary, inputs=4)


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ({"inputs": "a"}, 'has no "targets"'),
    ({"inputs": "a", "prediction": "b"}, "line 1 is"),
    ({"inputs": "a", "prediction": "b", "aux": {"tokens": [-1]}}, "line 1 is"),
  ],
)
def test_rows_that_say_no_output(tmp_path, vocabulary, row, message):
  with pytest.raises(ValueError, match=message):
    read(tmp_path, [row], vocabulary)


def test_sources_as_a_prompt_is_made(vocabulary):
  """T5Gemma's published models read BOS and no EOS."""
  for kind in ("text", "chat"):
    source = Prompting(vocabulary, f"source_{kind}")
    assert not source.prompted
    prompt = Prompting(vocabulary, kind).tokens("the cat", 64, "", False)
    assert source.tokens("the cat", 64, "", False) == prompt
    source.check_fits(prompted=False)
    with pytest.raises(
      ValueError, match="is decoder-only: set PROMPT = 'text'"
    ):
      source.check_fits(prompted=True)
  # A source is cut at its end, and nothing comes after it.
  ids, _ = Prompting(vocabulary, "source_text").tokens("the cat", 64, "", True)
  cut = Prompting(vocabulary, "source_text").tokens("the cat", 2, "", True)
  assert cut == (ids[:2], True)
  with pytest.raises(ValueError, match="PROMPT = 'source_chat'"):
    Prompting(vocabulary, "source").tokens(TURNS, 64, "", False)


def test_a_split_without_files():
  with pytest.raises(ValueError, match="no files of split 'validation'"):
    next(prompting.read_files({"validation": None}, "validation"))
