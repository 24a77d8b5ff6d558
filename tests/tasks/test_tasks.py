"""Reads the tasks: prefixes, tokens, references, cut and missing examples."""

import contextlib
import gzip
import json
import re
import types

import gin
import numpy as np
import pytest
import tensorflow_datasets as tfds

from speccascade import cli
from speccascade.cli import gin_setup
from speccascade.study.measuring import scoring
from speccascade.tasks import (
  inputs,
  preprocess,
  quality,
  reading,
  registry,
  seqio_vocabularies,
  tasks,
)
from speccascade.tasks._tf import seqio, tf
from speccascade.text import sentence_pieces

pytestmark = pytest.mark.needs_tf

PAIRS = [
  ("the cat sat on the mat", "die Katze sitzt auf der Matte"),
  ("a man and a woman walk", "ein Mann und eine Frau gehen"),
  ("the dog", "der Hund"),
]


@pytest.fixture(autouse=True)
def clean_registry():
  before = set(seqio.TaskRegistry.names())
  yield
  for name in set(seqio.TaskRegistry.names()) - before:
    seqio.TaskRegistry.remove(name)
    registry._SETTINGS.pop(name, None)


@pytest.fixture
def text_task(tmp_path, vocabulary_path):
  for side, suffix in ((0, "en"), (1, "de")):
    lines = "\n".join(pair[side] for pair in PAIRS)
    (tmp_path / f"train.{suffix}").write_text(lines)
  rows = [
    {"inputs": a, "targets": b, "extra_targets": [b.upper()]}
    for a, b in PAIRS[:2]
  ]
  (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
  return {
    "name": "tiny_text",
    "splits": tasks.TextSplits(
      train=str(tmp_path / "train"), test=str(tmp_path / "test.jsonl")
    ),
    "prefix": preprocess.TRANSLATE,
    "vocabulary": str(vocabulary_path),
  }


@contextlib.contextmanager
def mocked(name, rows):
  """TFDS serves `rows`, in the features that its builder declares."""

  def as_dataset(self, split=None, **kwargs):
    del split, kwargs
    features = self.info.features
    return tf.data.Dataset.from_generator(
      lambda: iter(rows),
      output_signature={key: tf.TensorSpec([], tf.string) for key in features},
    )

  seqio.utils.LazyTfdsLoader._MEMOIZED_BUILDERS.clear()
  with tfds.testing.mock_data(as_dataset_fn=as_dataset):
    assert set(rows[0]) == set(tfds.builder(name).info.features.keys())
    yield
  seqio.utils.LazyTfdsLoader._MEMOIZED_BUILDERS.clear()


def read(name, split="train", vocabulary=None, num=None, max_len=10_000):
  """Returns the examples that decode sees."""
  lengths = {"inputs": max_len}
  named = {"mixture_or_task_name": name, "vocabulary": vocabulary}
  wanted = inputs.Inputs(lengths, split=split, num_examples=num, **named)
  return wanted.read().examples


def first(name, vocabulary=None, split="train"):
  return read(name, split, vocabulary, num=1)[0]


def test_wmt(vocabulary):
  rows = [{"en": a, "de": b} for a, b in PAIRS]
  with mocked("wmt_t2t_translate/de-en:1.0.0", rows):
    examples = read("wmt_t2t_ende_v003", "validation", vocabulary)
  assert [e.index for e in examples] == [0, 1, 2]
  assert examples[0].text == "translate English to German: " + PAIRS[0][0]
  assert examples[0].references == (PAIRS[0][1],)
  expected = [*vocabulary.encode(examples[0].text), 1]
  np.testing.assert_array_equal(examples[0].tokens, expected)
  metrics = [fn.__name__ for fn in tasks.get("wmt_t2t_ende_v003").metric_fns]
  assert metrics == ["bleu_intl", "chrf"]


SOLUTION = "She has 2*3=<<2*3=6>>6 eggs.\n#### 6"
ARTICLE = {"article": "the cat sat", "publisher": "cnn", "id": "1"}
EGGS = {"annotation": SOLUTION[:-7], "short_answer": "6"}


@pytest.mark.parametrize(
  ("name", "builder", "row", "text", "reference", "metric"),
  [
    (
      "cnn_dailymail_v002",
      "cnn_dailymail:3.4.0",
      {**ARTICLE, "highlights": "cat .\nsat ."},
      "summarize: the cat sat",
      "cat .\nsat .",
      "rouge",
    ),
    (
      "xsum",
      "xsum:1.1.0",
      {"document": "the cat sat", "summary": "cat"},
      "summarize: the cat sat",
      "cat",
      "rouge",
    ),
    (
      "gsm8k_cot",
      "gsm8k:1.0.0",
      {**EGGS, "question": "How many eggs?", "answer": SOLUTION},
      preprocess.gsm8k_prompt("How many eggs?"),
      "She has 2*3=6 eggs.\n#### 6",
      "gsm8k",
    ),
  ],
)
def test_tfds(name, builder, row, text, reference, metric, vocabulary):
  with mocked(builder, [row]):
    example = first(name, vocabulary)
  assert example.text == text
  assert example.references == (reference,)
  assert [fn.__name__ for fn in tasks.get(name).metric_fns] == [metric]


def test_mmlu_of_the_release(tmp_path, monkeypatch, vocabulary):
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", str(tmp_path))
  with pytest.raises(FileNotFoundError, match=r"unpack the authors' data\.tar"):
    first("mmlu_cot", vocabulary, "test")
  folder = tmp_path / "downloads" / "manual" / "mmlu" / "val"
  folder.mkdir(parents=True)
  # The release quotes as spreadsheets do; a question may have several lines.
  (folder / "b_val.csv").write_text('"Is it\n""so""?",1,2,3,"4, or 5",D\n')
  (folder / "a_val.csv").write_text("Why?,w,x,y,z,A\n")
  examples = read("mmlu_cot", "validation", vocabulary)
  assert examples[0].text == preprocess.mmlu_prompt("Why?", "wxyz")
  assert examples[1].text.startswith('Question: Is it\n"so"?\n(A) 1')
  assert "(D) 4, or 5\n" in examples[1].text
  assert [e.references for e in examples] == [("A",), ("D",)]


MMLU_LINE = {
  "question": "Why?",
  "choices": ["w", "x", "y", "z"],
  "targets": "A",
}
FEW = [*MMLU_LINE["choices"][:3]]


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("", "{path} has no question"),
    ("\n", "{path} has no question"),
    ("Why?,w,x,y,z,A\nWhy?,w,x,y,A\n", "a.csv, line 2 is not a question"),
    ("Why?,w,x,y,z,A,B\n", "{path}/a.csv, line 1 is not a question of MMLU"),
    (
      "A\n",
      "{path}/a.csv, line 1 is not a question of MMLU: wanted six columns",
    ),
    ("Why?,w,x,y,z,E\n", "last read was ['Why?', 'w', 'x', 'y', 'z', 'E']"),
    ('Why?,w,x,y,z,A\n"Why?,w,x,y', "{path}/a.csv, line 2 is not a question"),
    (
      "a" * 200_000,
      "{path}/a.csv, line 1 is not a question of MMLU (field larger",
    ),
    (b"Why?,w,x,y,z,A\n\xff", "{path}/a.csv, line 2: invalid UTF-8"),
    ([b"\xff"], "{path}.jsonl.gz, line 1: invalid UTF-8"),
    ([], "{path}.jsonl.gz has no question"),
    ([MMLU_LINE, "one"], '{path}.jsonl.gz, line 2 is "one"; wanted a JSON obj'),
    ([b"{"], "{path}.jsonl.gz, line 1 is {{; wanted a JSON object"),
    ([b"[" * 100_000], "{path}.jsonl.gz, line 1 is [[["),
    ([{"question": "Why?"}], "{path}.jsonl.gz, line 1 is"),
    ([MMLU_LINE | {"choices": FEW}], 'the four texts "choices"'),
    ([MMLU_LINE | {"choices": [*FEW, 5]}], 'the four texts "choices"'),
    ([MMLU_LINE | {"targets": "E"}], '"targets", A, B, C or D'),
    ([MMLU_LINE | {"question": "\ud800"}], "{path}.jsonl.gz, line 1 is"),
  ],
)
def test_wrong_rows_of_mmlu_are_named(tmp_path, content, message):
  path = tmp_path / "dev"
  if isinstance(content, list):
    lines = [
      line if isinstance(line, bytes) else json.dumps(line).encode()
      for line in content
    ]
    packed = gzip.compress(b"".join(line + b"\n" for line in lines))
    path.with_suffix(".jsonl.gz").write_bytes(packed)
  else:
    path.mkdir()
    content = content.encode() if isinstance(content, str) else content
    (path / "a.csv").write_bytes(content)
  with pytest.raises(ValueError, match=re.escape(message.format(path=path))):
    tasks.read_mmlu(tmp_path, "dev")


def test_mmlu_of_json_lines(real_data):
  questions = tasks.read_mmlu(real_data / "mmlu", "dev")
  assert len(questions) == 285
  assert {len(q["choices"]) for q in questions} == {4}
  assert {q["answer"] for q in questions} == set("ABCD")


def test_tfds_data_that_is_not_there(tmp_path, monkeypatch, vocabulary):
  # Its builder wants a file that has to be fetched by hand: no network needed.
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", str(tmp_path))
  seqio.utils.LazyTfdsLoader._MEMOIZED_BUILDERS.clear()
  monkeypatch.setattr(
    tfds.core.download.DownloadManager,
    "download",
    lambda *args, **kwargs: tmp_path / "ids.json",
  )
  (tmp_path / "ids.json").write_text('{"train": []}')
  with pytest.raises(ValueError, match="needs the TFDS data set xsum") as error:
    first("xsum", vocabulary)
  assert "--tfds_data_dir" in str(error.value)
  assert "\n" not in str(error.value)
  seqio.utils.LazyTfdsLoader._MEMOIZED_BUILDERS.clear()


def test_text_task(text_task, vocabulary):
  name = tasks.register_text_task(**text_task)
  assert name == "tiny_text"
  examples = read(name, "test")
  assert len(examples) == 2
  assert examples[1].text == preprocess.TRANSLATE + PAIRS[1][0]
  assert examples[1].references == (PAIRS[1][1], PAIRS[1][1].upper())
  arrays = reading.from_task(name, "train", progress=False)
  assert len(arrays) == 3
  for i, (_, target) in enumerate(PAIRS):
    expected = [*vocabulary.encode(target), 1]
    np.testing.assert_array_equal(arrays.get("targets", i), expected)
  # seqio itself sees the same task, metrics and references included.
  task = seqio.get_mixture_or_task(name)
  targets = task.postprocess_fn(
    "x", example={"references": [b"a", b"b"]}, is_target=True
  )
  assert targets == ["a", "b"]
  assert task.postprocess_fn("x", example={}, is_target=False) == "x"
  scores = [fn([["a b c d e"]], ["a b c d e"]) for fn in task.metric_fns]
  assert [set(s) for s in scores] == [{"bleu"}, {"chrf"}]


def _add_own_task(text_task, **settings):
  """Adds a task with a postprocessor and metrics of its own to the registry."""
  task = seqio.get_mixture_or_task(tasks.register_text_task(**text_task))
  seqio.TaskRegistry.add(
    "own_metrics",
    source=task.source,
    preprocessors=list(task.preprocessors),
    output_features=task.output_features,
    **settings,
  )
  wanted = inputs.Inputs(
    {"inputs": 99}, mixture_or_task_name="own_metrics", split="test"
  )
  return wanted.read()


def _score(sources, texts, metrics=None):
  """Returns what the row of a decode has under "quality"."""
  study = types.SimpleNamespace(
    sources=sources,
    measuring=types.SimpleNamespace(metrics=metrics),
  )
  return scoring.score(study, sources.examples, texts)


def test_metrics_and_postprocessor_of_a_task(text_task, caplog):
  def to_count(text, example, is_target):
    assert "inputs" in example
    return len(text.split()) - is_target  # no text

  def more_words(targets, predictions):
    ratio = np.mean([p > t for t, p in zip(targets, predictions)])
    return {"longer": seqio.metrics.Scalar(100 * ratio), "words": {"of": 3}}

  def likelihood(targets, scores):
    raise AssertionError("decoding has no scores")

  sources = _add_own_task(
    text_task,
    postprocess_fn=to_count,
    metric_fns=[more_words, likelihood, quality.seqio_metric("bleu_intl")],
  )
  assert "left out: likelihood" in caplog.text
  # The postprocessor makes no text, so references are the targets.
  targets = [target for _, target in PAIRS[:2]]
  assert [e.references for e in sources.examples] == [(t,) for t in targets]
  scores = _score(sources, targets)
  assert scores["longer"] == {
    "value": 100,
    "num_examples": 2,
    "signature": "task:own_metrics|metric:more_words",
  }
  assert scores["bleu"]["value"] == pytest.approx(100)
  assert "tok:intl" in scores["bleu"]["signature"]
  assert list(scores) == ["longer", "bleu"]
  # METRICS takes the place of all metrics of the task.
  assert list(_score(sources, targets, ["chrf"])) == ["chrf"]

  def breaks(targets, predictions):
    raise KeyError("a\nb")

  seqio.TaskRegistry.remove("own_metrics")
  with_fault = _add_own_task(text_task | {"name": "other"}, metric_fns=[breaks])
  with pytest.raises(ValueError, match="metric breaks of task own_metrics: Ke"):
    _score(with_fault, targets)


def test_a_postprocessor_of_texts_sees_both_sides(text_task):
  def lower(text, example=None, is_target=False):
    return text.lower()

  sources = _add_own_task(
    text_task,
    postprocess_fn=lower,
    metric_fns=[quality.seqio_metric("exact_match")],
  )
  shouted = [target.upper() for _, target in PAIRS[:2]]
  assert _score(sources, shouted)["exact_match"]["value"] == 100
  assert sources.examples[0].references == (PAIRS[0][1].lower(),)


def test_a_task_of_targets_alone_has_the_empty_text_as_inputs(
  text_task, vocabulary
):
  task = seqio.get_mixture_or_task(tasks.register_text_task(**text_task))

  def drop_inputs(dataset):
    return dataset.map(lambda example: {"targets": example["targets"]})

  first, *others = task.preprocessors
  seqio.TaskRegistry.add(
    "lm",
    source=task.source,
    preprocessors=[first, drop_inputs, *others],
    output_features={"targets": task.output_features["targets"]},
    metric_fns=[quality.seqio_metric("bleu")],
  )
  seqio.MixtureRegistry.add("lms", [("lm", 1)])
  for example, (_, target) in zip(read("lm", "test"), PAIRS):
    assert (example.text, example.tokens.tolist()) == ("", [1])
    assert example.references == (target,)
  assert read("lm", "test", vocabulary)[0].tokens.tolist() == [1]
  for name in ("lm", "lms"):
    arrays = reading.from_task(name, "train", {"inputs": 8, "targets": 64})
    assert len(arrays) == 3
    assert arrays.get("inputs", 1).tolist() == [1]
    assert arrays.get("targets", 2).tolist() == [
      *vocabulary.encode("der Hund"),
      1,
    ]
  completion, *_ = reading.completions(tasks.get("lm"), "test")
  assert completion[1:] == ("", PAIRS[0][1])
  seqio.MixtureRegistry.remove("lms")


def test_text_task_from_gin(text_task, tmp_path):
  splits = text_task.pop("splits")
  lines = [f"  {key} = {value!r}" for key, value in text_task.items()]
  files = [f"  {key} = {value!r}" for key, value in splits.files.items()]
  (tmp_path / "task.gin").write_text(
    "from __gin__ import dynamic_registration\n"
    "from speccascade.tasks import reading\n"
    "from speccascade.tasks import tasks\n"
    "MIXTURE_OR_TASK_NAME = @tasks.register_text_task()\n"
    "tasks.TextSplits:\n" + "\n".join(files) + "\n"
    "tasks.register_text_task:\n"
    "  splits = @tasks.TextSplits()\n" + "\n".join(lines) + "\n"
    "reading.from_task:\n"
    "  task = %MIXTURE_OR_TASK_NAME\n"
    "  split = 'train'\n"
  )
  gin_setup.parse(["task.gin"], [], [str(tmp_path)])
  read = gin_setup.configure(reading.from_task)
  assert len(read(progress=False)) == 3
  assert len(read(progress=False)) == 3  # the macro registers once more
  gin.clear_config()


def test_edited_text(tmp_path, vocabulary, vocabulary_path):
  path = tmp_path / "problems.jsonl"
  row = {
    "inputs": "How many eggs?",
    "targets": "2*3=<<2*3=6>>6 eggs.\n#### 6",
    "extra_targets": ["3*2=<<3*2=6>>6.\n#### 6"],
  }
  path.write_text(json.dumps(row) + "\n", encoding="utf-8")
  splits = tasks.TextSplits(test=str(path))
  settings = {"splits": splits, "vocabulary": str(vocabulary_path)}
  name = tasks.register_text_task("edited", edit=preprocess.gsm8k, **settings)
  example = first(name, vocabulary, "test")
  assert example.text == preprocess.gsm8k_prompt("How many eggs?")
  assert example.references == ("2*3=6 eggs.\n#### 6", "3*2=6.\n#### 6")
  arrays = reading.from_task(name, "test", progress=False)
  target = [*vocabulary.encode(example.references[0]), 1]
  np.testing.assert_array_equal(arrays.get("targets", 0), target)
  # An edit's name stands in the fingerprint, and no address of it.
  assert " at 0x" not in reading.fingerprint(tasks.get(name), "test")
  with pytest.raises(ValueError, match="there is a task 'edited' already"):
    tasks.register_text_task("edited", **settings)


def test_slices_of_a_split(text_task):
  """They mean what TFDS's slices mean, for data that TFDS does not have."""
  name = tasks.register_text_task(**text_task)
  whole = [example.text for example in read(name, "train")]
  assert len(whole) == 3
  for text, want in {
    "[:2]": whole[:2],
    "[1:]": whole[1:],
    "[1:2]": whole[1:2],
    "[-1:]": whole[-1:],
    "[:-1]": whole[:-1],
    "[34%:]": whole[1:],
    "[:67%]": whole[:2],
    "[:99]": whole,
  }.items():
    assert [x.text for x in read(name, f"train{text}")] == want
  arrays = reading.from_task(name, "train[:2]", progress=False)
  assert len(arrays) == 2
  with pytest.raises(ValueError, match="has no examples in split"):
    read(name, "train[2:1]")
  for text in ("train[2]", "train[:2", "train[:2]+test[:1]", "train[:2%%]"):
    with pytest.raises(ValueError, match="a name, or a slice"):
      read(name, text)


def test_text_task_mistakes(text_task):
  with pytest.raises(ValueError, match="train is None, as all"):
    tasks.register_text_task("empty", tasks.TextSplits())
  with pytest.raises(ValueError, match="no metric 'bluh'"):
    tasks.register_text_task(**{**text_task, "metrics": ["bluh"]})
  tasks.register_text_task(**text_task)
  with pytest.raises(ValueError, match="there is a task 'tiny_text' already"):
    tasks.register_text_task(**{**text_task, "prefix": "other"})
  with pytest.raises(ValueError, match="no split 'validation': it has tr"):
    first("tiny_text", None, "validation")
  with pytest.raises(ValueError, match="did you mean tiny_text"):
    tasks.get("tiny_txt")


def test_cutting_equals_seqio(text_task):
  name = tasks.register_text_task(**text_task)
  lengths = {"inputs": 16, "targets": 12}
  whole = reading.from_task(name, "train", progress=False)
  arrays = reading.from_task(name, "train", lengths, progress=False)
  expected = list(
    seqio.get_mixture_or_task(name)
    .get_dataset(lengths, split="train", shuffle=False)
    .as_numpy_iterator()
  )
  for i, row in enumerate(expected):
    for feature in lengths:
      np.testing.assert_array_equal(arrays.get(feature, i), row[feature])
  assert whole.num_cut == {"inputs": 0, "targets": 0}
  for feature, length in lengths.items():
    too_long = int((whole.lengths(feature) > length).sum())
    assert arrays.num_cut[feature] == too_long
  assert arrays.num_cut["targets"] in (1, 2)
  for i, example in enumerate(read(name, max_len=16)):
    np.testing.assert_array_equal(example.tokens, arrays.get("inputs", i))


def test_mixture(text_task):
  for i in (1, 2):
    tasks.register_text_task(**{**text_task, "name": f"part_{i}"})
  seqio.MixtureRegistry.add("tiny_mix", [("part_1", 1.0), ("part_2", 3.0)])
  try:
    arrays = reading.from_task("tiny_mix", "train", progress=False)
    assert len(arrays) == 6
    counts = np.bincount(arrays.rows, minlength=6)
    np.testing.assert_array_equal(counts, [1, 1, 1, 3, 3, 3])
    with pytest.raises(ValueError, match="one of its tasks, part_1, part_2"):
      first("tiny_mix")
  finally:
    seqio.MixtureRegistry.remove("tiny_mix")


def test_another_vocabulary(text_task, vocabulary_path):
  name = tasks.register_text_task(**text_task)
  other = sentence_pieces.SentencePieces(str(vocabulary_path), extra_ids=3)
  in_task = tasks.get(name, other).output_features["targets"].vocabulary
  assert isinstance(in_task, seqio.SentencePieceVocabulary)
  assert in_task == other
  assert other == in_task
  same = seqio_vocabularies.Vocabulary(str(vocabulary_path), extra_ids=3)
  task = tasks.get(name, same)
  assert task.output_features["targets"].vocabulary is same
  vocabulary_in_use = tasks.get(name).output_features["targets"].vocabulary
  assert vocabulary_in_use.vocab_size == other.vocab_size - 3


def test_multi30k(real_data):
  name = tasks.register_text_task(
    name="multi30k_test",
    splits=tasks.TextSplits(
      test=str(real_data / "multi30k" / "test_2016_flickr")
    ),
    prefix=preprocess.TRANSLATE,
    vocabulary=str(real_data / "vocab" / "t5_cc_all_32000.model"),
  )
  arrays = reading.from_task(name, "test", progress=False)
  # 18.6 German and 15.4 English pieces on average, and end-of-sequence; the
  # prefix has 5 pieces.
  assert arrays.lengths("targets").mean() == pytest.approx(19.6, abs=0.06)
  assert arrays.lengths("inputs").mean() == pytest.approx(21.4, abs=0.06)


def test_text_files_config(text_task):
  files = f'TRAIN_FILES = "{text_task["splits"].train}"'
  vocabulary = f'VOCABULARY = "{text_task["vocabulary"]}"'
  config = ["configs/data/text_files.gin"]
  with pytest.raises(gin_setup.ConfigError, match="VOCABULARY must be given"):
    gin_setup.parse(config, [files])
  gin_setup.parse(config, [files, vocabulary])
  name = gin.query_parameter("%MIXTURE_OR_TASK_NAME").scoped_configurable_fn()
  example = first(name)
  assert example.text == "translate English to German: the cat sat on the mat"
  gin.clear_config()


def test_the_tasks_are_registered():
  assert set(tasks.LENGTHS) <= set(seqio.TaskRegistry.names())
  example = first("speccascade_en_de", split="test")
  assert example.text
  assert example.references


def test_flags_of_folders(tmp_path, monkeypatch, capfd):
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", None)
  monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", ["one"])
  folders = [f"--tfds_data_dir={tmp_path}", "--seqio_additional_cache_dirs=b,c"]
  with pytest.raises(SystemExit) as stopped:
    cli.run(lambda: None, "", ["prog", *folders, "--dry_run"])
  assert stopped.value.code == 0, capfd.readouterr().err
  assert tasks.tfds_data_dir() == tmp_path
  assert seqio.get_global_cache_dirs() == ["one", "b", "c"]


def test_fingerprint(text_task, tmp_path):
  name = tasks.register_text_task(**text_task)
  key = reading.fingerprint(tasks.get(name), "train")
  assert key == reading.fingerprint(tasks.get(name), "train")
  assert key != reading.fingerprint(tasks.get(name), "test")
  other = tasks.register_text_task(
    **{**text_task, "name": "other", "prefix": "summarize: "}
  )
  assert key != reading.fingerprint(tasks.get(other), "train")
  path = tmp_path / "train.de"
  path.write_text(path.read_text() + "!")
  assert key != reading.fingerprint(tasks.get(name), "train")
  wmt = tasks.get("wmt_t2t_ende_v003")
  assert "wmt_t2t_translate/de-en:1.0.0" in reading.fingerprint(wmt, "train")
