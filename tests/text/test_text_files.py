"""Reads line files and JSON lines, right and wrong."""

import gzip
import json

import pytest

from speccascade.runtime import files
from speccascade.text import text_files
from speccascade.text.text_files import TextExample as Example

GOOD = b'{"inputs": "one"}\n'
# Without the time of day, which would be part of the test's name.
TORN = gzip.compress(b"one\n" * 99, mtime=0)[:-12]


def write(path, text):
  content = text.encode()
  path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
  return path


def texts(path):
  return [example.inputs for example in text_files.read_texts(path)]


def test_lines(tmp_path):
  path = write(tmp_path / "a.txt", "\ufeffeins\r\nzwei\u2028drei\x0bvier\n\nx")
  assert texts(path) == ["eins", "zwei\u2028drei\x0bvier", "", "x"]
  assert len(text_files.read_texts(path, 2)) == 2
  assert texts(write(tmp_path / "b.gz", "x\ny\n")) == ["x", "y"]


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("a.txt", b"", "is empty"),
    ("a.jsonl", b"", "is empty"),
    ("a.txt", b"gut\nsch\xf6n\n", r"a\.txt, line 2: invalid UTF-8 .* byte 3"),
    ("a.txt.gz", b"one\n", r"a\.txt\.gz is not whole gzip"),
    ("a.txt.gz", TORN, r"a\.txt\.gz is not whole gzip"),
    *(
      ("a.jsonl", GOOD + line, "line 2 is .* wanted a JSON object with")
      for line in (
        b"no json",
        b'{"inputs"',
        b'"text"',
        b"[1]",
        b'{"input": "a"}',
        b'{"inputs": 1}',
        b'{"inputs": "a", "targets": 3}',
        b'{"inputs": "a", "targets": "x", "extra_targets": [1]}',
        b'{"inputs": "\\ud800"}',
        b"[" * 100_000,
      )
    ),
  ],
)
def test_bad_files(tmp_path, name, content, message):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(ValueError, match=message):
    text_files.read_texts(tmp_path / name)


def test_pairs(tmp_path):
  write(tmp_path / "dev.en", "a\nb\n")
  write(tmp_path / "dev.de.gz", "x\ny\n")
  second = write(tmp_path / "second.de", "z\nw\n")
  # A prefix finds plain and compressed files; a list names them.
  files = [tmp_path / "dev.en", tmp_path / "dev.de.gz"]
  for paths in (tmp_path / "dev", files):
    examples = text_files.read(paths)
    assert examples == [Example(1, "a", ("x",)), Example(2, "b", ("y",))]
  examples = text_files.read([*files, second])
  assert examples[1] == Example(2, "b", ("y", "w"))
  reverse = text_files.read(tmp_path / "dev", ("de", "en"))
  assert reverse[0] == Example(1, "x", ("a",))
  short = write(tmp_path / "short.de", "x\n")
  with pytest.raises(ValueError, match=r"2 lines, .*short\.de has 1"):
    text_files.read([files[0], short])
  with pytest.raises(ValueError, match="file of inputs and of targets"):
    text_files.read([files[0]])
  with pytest.raises(FileNotFoundError, match=r"test\.en or .*test\.en\.gz"):
    text_files.read(tmp_path / "test")


def test_jsonl(tmp_path):
  rows = [
    {"id": 1, "inputs": "a", "targets": ["x"]},
    {"inputs": "b", "targets": "y", "extra_targets": ["z", "w"]},
  ]
  text = "\n\n".join(map(json.dumps, rows)) + "\n"
  path = write(tmp_path / "a.jsonl.gz", text)
  assert text_files.read(path) == [
    Example(1, "a", ("x",)),
    Example(3, "b", ("y", "z", "w")),
  ]
  # A source without a target can be decoded, and is not an example of a task.
  path = write(tmp_path / "b.jsonl", text + GOOD.decode())
  assert text_files.read_texts(path)[2] == Example(4, "one")
  with pytest.raises(ValueError, match='line 4 has no "targets"'):
    text_files.read(path)


SPEC_BENCH = {"question_id": 81, "category": "writing", "turns": ["a", "b"]}
SPEED_BENCH = {
  **{"question_id": "x1", "category": "math", "sub_category": "sums"},
  **{"turns": ["c"], "source": "s", "src_id": "5", "difficulty": None},
  "multiturn": False,
}
CHAT = ({"role": "user", "content": "a"},)


def test_stops(tmp_path):
  rows = [{}, {"stop": None}, {"stop": "a"}, {"stop": ["\0", 7]}]
  lines = "\n".join(json.dumps({"inputs": "x"} | row) for row in rows)
  examples = text_files.read_texts(write(tmp_path / "a.jsonl", lines))
  assert [each.stop for each in examples] == [(), (), ("a",), ("\0", 7)]
  faults = (
    ([""], "line 1 has an empty stop"),
    (5, '"stop", a'),
    ([-1], '"stop"'),
  )
  for stop, message in faults:
    path = write(
      tmp_path / "b.jsonl", json.dumps({"inputs": "x", "stop": stop})
    )
    with pytest.raises(ValueError, match=message):
      text_files.read_texts(path)


def test_questions(tmp_path):
  rows = [SPEC_BENCH, SPEED_BENCH, {"inputs": "d", "category": "math"}]
  rows.append({"messages": list(CHAT), "question_id": 3, "turns": ["a"]})
  path = write(tmp_path / "q.jsonl", "\n".join(map(json.dumps, rows)))
  kept = {name: SPEED_BENCH[name] for name in text_files.QUESTION}
  assert text_files.read_texts(path, chats=True) == [
    Example(1, "a", (), SPEC_BENCH | {"turns": ("a", "b")}),
    Example(2, "c", (), kept | {"turns": ("c",)}),
    Example(3, "d", (), {"category": "math"}),
    Example(4, CHAT, (), {"question_id": 3, "turns": ("a",)}),
  ]
  # A task has inputs and targets.
  with pytest.raises(ValueError, match=r"line 1 is .* wanted .*the text"):
    text_files.read_texts(path)


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ({"turns": []}, "line 1 is .* a conversation's .messages. or .turns., and"),
    ({"turns": "a"}, "line 1 is"),
    ({"turns": ["a", 5]}, "line 1 is"),
    ({"turns": ["a"], "question_id": [5]}, "line 1 is"),
    ({"turns": ["a"], "category": 5}, "line 1 is"),
    (
      {"turns": [f"{text_files._PLACEHOLDER} USING SPECDEC_BENCH"]},
      r"line 1 has a text that .* elsewhere: make .* prepare_data\.py",
    ),
  ],
)
def test_questions_that_are_none(tmp_path, row, message):
  path = write(tmp_path / "q.jsonl", json.dumps(row))
  with pytest.raises(ValueError, match=message):
    text_files.read_texts(path, chats=True)


def test_parquet_that_repeats_a_text_is_bounded(tmp_path, monkeypatch):
  pyarrow = pytest.importorskip("pyarrow")
  parquet = pytest.importorskip("pyarrow.parquet")
  path = tmp_path / "test.parquet"
  table = pyarrow.table({"inputs": ["a b c"] * 20_000})
  parquet.write_table(table, path)
  assert path.stat().st_size < 5000
  assert len(text_files.read_texts(path)) == 20_000
  bounds = files.FileBounds(size=100_000, ratio=2)
  monkeypatch.setattr(files, "TEXTS", bounds)
  with pytest.raises(ValueError, match=r"parquet holds too much"):
    text_files.read_texts(path)
  # As many as were asked for are read.
  assert len(text_files.read_texts(path, 10)) == 10


def test_parquet(tmp_path):
  pyarrow = pytest.importorskip("pyarrow")
  parquet = pytest.importorskip("pyarrow.parquet")
  path = tmp_path / "test.parquet"
  # As a table has them: every row has every field.
  text = {**dict.fromkeys(SPEED_BENCH), "inputs": "d"}
  rows = [{**SPEED_BENCH, "inputs": None}, text]
  parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  questions = text_files.read_texts(path, chats=True)
  assert [question.inputs for question in questions] == ["c", "d"]
  assert questions[0].question["question_id"] == "x1"
  assert not questions[1].question
  # Texts may be stored as bytes; bytes that are not text are none.
  as_bytes = {
    "inputs": "ü?".encode(),
    "targets": ["ä".encode(), b"b"],
    "category": b"c",
    "turns": ["é".encode()],
    "image": b"\xff\xd8",
  }
  parquet.write_table(pyarrow.Table.from_pylist([as_bytes]), path)
  (read,) = text_files.read_texts(path, chats=True)
  assert (read.inputs, read.references) == ("ü?", ("ä", "b"))
  assert read.question == {"category": "c", "turns": ("é",)}
  damaged = [as_bytes | {"inputs": b"\xff\xd8"}]
  parquet.write_table(pyarrow.Table.from_pylist(damaged), path)
  with pytest.raises(ValueError, match="wanted a JSON object"):
    text_files.read_texts(path)
  path.write_bytes(b"PAR1, and no more")
  with pytest.raises(
    ValueError, match=r"test\.parquet is not Parquet: ."
  ) as no:
    text_files.read_texts(path)
  assert "\n" not in str(no.value)
  with pytest.raises(FileNotFoundError, match="does not exist"):
    text_files.read_texts(tmp_path / "no.parquet")


@pytest.mark.needs_tf
def test_source(tmp_path):
  from speccascade.tasks import tasks

  write(tmp_path / "train.en", "a\nb\n")
  write(tmp_path / "train.de", "x\ny\n")
  source = tasks.TextFileSource(
    tasks.TextSplits(train=str(tmp_path / "train"), test=str(tmp_path / "test"))
  )
  assert source.splits == ("train", "test")
  rows = list(source.get_dataset("train", shuffle=False).as_numpy_iterator())
  assert [row["inputs"] for row in rows] == [b"a", b"b"]
  with pytest.raises(FileNotFoundError):  # only a split that is used is read
    source.get_dataset("test", shuffle=False)


def test_real_files(real_data):
  pairs = text_files.read(real_data / "multi30k" / "test_2016_flickr")
  assert len(pairs) == 1000
  rows = text_files.read(real_data / "wmt" / "newstest2014_500.refs.jsonl.gz")
  assert {len(row.references) for row in rows} == {11}
