"""Few-shot prompts: their text, shots and answers, from files and from TFDS."""

import json
import pathlib
import re

import gin
import pytest

from speccascade.cli import gin_setup
from speccascade.tasks import (
  few_shot,
  few_shot_tasks,
  inputs,
  quality,
  reading,
  tasks,
)
from speccascade.tasks._tf import seqio
from speccascade.tasks.few_shot import TASKS, AnsweredQuestion
from tests import mains
from tests.tasks import few_shot_files

pytestmark = pytest.mark.needs_tf

ROOT = pathlib.Path(__file__).parents[2]
IN_TFDS = sorted(set(TASKS) - {"mbpp"})


@pytest.fixture(autouse=True)
def _own_tasks():
  with mains.own_tasks():
    yield


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """A folder of TFDS with all data sets that TFDS has, and MBPP's file."""
  folder = tmp_path_factory.mktemp("tfds")
  few_shot_files.write_mbpp(folder)
  for task in IN_TFDS:
    few_shot_files.write_tfds(folder, task)
  return folder


@pytest.fixture
def in_tfds(data_dir, monkeypatch):
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", str(data_dir))
  seqio.utils.LazyTfdsLoader._MEMOIZED_BUILDERS.clear()
  yield
  seqio.utils.LazyTfdsLoader._MEMOIZED_BUILDERS.clear()


def read(name, split):
  """Returns the examples that a decode of an encoder-decoder sees."""
  wanted = inputs.Inputs(
    {"inputs": 65_536},
    split=split,
    mixture_or_task_name=name,
    vocabulary="bytes",
  )
  return wanted.read()


# The prompt of the first example with the first two shots of seed 0, as a
# reader would write it. {0} and {1} are the numbers of the shots.
PROMPTS = {
  "wmt_ende": (
    "English: The house train {0}.\nGerman: Das Haus train {0}.\n\n"
    "English: The house train {1}.\nGerman: Das Haus train {1}.\n\n"
    "English: The house test 0.\nGerman:"
  ),
  "gsm8k": (
    "Question: How many in train {0}?\nAnswer: {0}+1={2} in train {0}.\n"
    "#### {2}\n\n"
    "Question: How many in train {1}?\nAnswer: {1}+1={3} in train {1}.\n"
    "#### {3}\n\n"
    "Question: How many in test 0?\nAnswer:"
  ),
  "mbpp": (
    "You are an expert Python programmer, and here is your task: Write a"
    " function for prompt {0}. Your code should pass these tests:\n\n"
    "assert f(0) == {0}\nassert f(1) == {2}\nassert f(2) == {4}\n[BEGIN]\n"
    "def f(x):\n  return x + {0}  # prompt {0}\n[DONE]\n\n"
    "You are an expert Python programmer, and here is your task: Write a"
    " function for prompt {1}. Your code should pass these tests:\n\n"
    "assert f(0) == {1}\nassert f(1) == {3}\nassert f(2) == {5}\n[BEGIN]\n"
    "def f(x):\n  return x + {1}  # prompt {1}\n[DONE]\n\n"
    "You are an expert Python programmer, and here is your task: Write a"
    " function for test 0. Your code should pass these tests:\n\n"
    "assert f(0) == 0\nassert f(1) == 1\nassert f(2) == 2\n[BEGIN]\n"
  ),
  "squad2": (
    "Answer each question with words of its passage, or with"
    ' "unanswerable" where the passage has no answer.\n\n'
    "Passage: It is a\npart train {0} of it.\nQuestion: Which part train {0}?\n"
    "Answer: part train {0}\n\n"
    "Passage: It is a\npart train {1} of it.\nQuestion: Which part train {1}?\n"
    "Answer: unanswerable\n\n"
    "Passage: It is a\npart validation 0 of it.\n"
    "Question: Which part validation 0?\nAnswer:"
  ),
  "web_questions": (
    "Question: who is train {0}?\nAnswer: Person train {0}\n\n"
    "Question: who is train {1}?\nAnswer: Person train {1}\n\n"
    "Question: who is test 0?\nAnswer:"
  ),
  "natural_questions": (
    "Question: when was train {0}\nAnswer: train {0} BC\n\n"
    "Question: when was train {1}\nAnswer: train {1} BC\n\n"
    "Question: when was validation 0\nAnswer:"
  ),
  "trivia_qa": (
    "Question: What is train {0}?\nAnswer: Value train {0}\n\n"
    "Question: What is train {1}?\nAnswer: Value train {1}\n\n"
    "Question: What is validation 0?\nAnswer:"
  ),
}
# The right answers of the last example.
REFERENCES = {
  "wmt_ende": ("Das Haus test 2.",),
  "cnndm": ("First test 2 .\nSecond .",),
  "gsm8k": ("2+1=3 in test 2.\n\n#### 3",),
  "mbpp": ("def f(x):\r\n  return x + 2  # test 2",),
  "squad2": ("unanswerable",),
  "web_questions": ("Person test 2", "Nobody test 2"),
  "natural_questions": ("validation 2 BC", "never"),
  "trivia_qa": ("Value validation 2", "Alias validation 2", "other"),
}


def shots_in(task: str, text: str) -> list[int]:
  """Returns the numbers of the shots of a prompt, in order."""
  shots_from = TASKS[task].shots_from
  return list(map(int, dict.fromkeys(re.findall(rf"{shots_from} (\d+)", text))))


@pytest.mark.parametrize("task", sorted(PROMPTS))
def test_the_text_of_a_prompt(task, tmp_path):
  files = few_shot_files.write(tmp_path, task)
  name = few_shot_tasks.register(task, num_shots=2, **files)
  text = read(name, TASKS[task].splits[-1]).examples[0].text
  first, second = shots_in(task, text)
  numbers = first, second, first + 1, second + 1, first + 2, second + 2
  assert text == PROMPTS[task].format(*numbers)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_tasks_from_files(task, tmp_path):
  spec, split = TASKS[task], TASKS[task].splits[-1]
  files = few_shot_files.write(tmp_path, task)
  name = few_shot_tasks.register(task, **files)
  assert name == few_shot_tasks.register(task, **files) == f"{task}_fewshot"
  sources = read(name, split)
  assert len(sources.examples) == few_shot_files.NUM[split]
  assert sources.examples[-1].references == REFERENCES[task]
  assert sources.metrics == tuple(spec.metrics)
  texts = [example.text for example in sources.examples]
  for i, text in enumerate(texts):
    shots = shots_in(task, text)
    assert len(shots) == spec.num_shots
    assert shots == shots_in(task, texts[0])
    # What is scored stands in the question alone.
    assert set(re.findall(rf"{split} (\d+)", text)) == {str(i)}
    assert not text.endswith(" ")
  other = few_shot_tasks.register(task, seed=1, name="other", **files)
  assert shots_in(task, read(other, split).examples[0].text) != shots
  zero = few_shot_tasks.register(task, num_shots=0, name="zero", **files)
  text = read(zero, split).examples[0].text
  assert texts[0].endswith(text.removeprefix(spec.instruction))
  # The answers themselves are scored as right.
  answers = [example.references[0] for example in sources.examples]
  scores = quality.evaluate(
    sources.metrics, answers, [e.references for e in sources.examples]
  )
  assert all(each["value"] == pytest.approx(100) for each in scores.values())


@pytest.mark.parametrize("task", sorted(TASKS))
@pytest.mark.usefixtures("in_tfds")
def test_tfds_has_the_same_questions(task, tmp_path):
  split = TASKS[task].splits[-1]
  name = few_shot_tasks.register(task, num_shots=2)
  examples = read(name, split).examples
  files = few_shot_files.write(tmp_path, task)
  named = few_shot_tasks.register(task, num_shots=0, name="files", **files)
  for example, other in zip(examples, read(named, split).examples, strict=True):
    question = other.text.removeprefix(TASKS[task].instruction)
    assert example.text.endswith(question)
    assert example.references == other.references
    assert len(shots_in(task, example.text)) == 2
  assert [e.text for e in read(name, f"{split}[1:2]").examples] == [
    examples[1].text
  ]
  with pytest.raises(ValueError, match=f"no split '{TASKS[task].shots_from}'"):
    read(name, TASKS[task].shots_from)
  if TASKS[task].ids is None:  # data of TFDS, which knows sums of splits
    with pytest.raises(ValueError, match="a slice of one split"):
      read(name, f"{split}[:1]+train[:1]")


def test_no_answer_of_a_shot_ends_an_output():
  answer = " One.\n\n \n Two.\r\n[DONE "
  for task, spec in TASKS.items():
    written = spec.prompt([AnsweredQuestion("Q", (answer,))])
    before, after = spec.answer.split("{}")
    inside = written.removeprefix(spec.instruction + "Q" + before)
    inside = inside.removesuffix(after)
    assert spec.stop not in inside, task
    assert inside.split() == answer.split()
    # The model ends its own answer where a shot ends.
    assert spec.stop in after


def test_shots_take_turns():
  with_answer = [AnsweredQuestion(f"q{i}", (f"a{i}",)) for i in range(9)]
  without = [AnsweredQuestion(f"n{i}", (few_shot.NO_ANSWER,)) for i in range(2)]
  unusable = [AnsweredQuestion("x", ("",))]
  shots = few_shot.draw([*with_answer, *unusable, *without], 6, seed=1)
  kinds = [shot.question[0] for shot in shots]
  assert kinds == ["q", "n", "q", "n", "q", "q"]
  assert len({shot.question for shot in shots}) == 6
  with pytest.raises(ValueError, match=r"2 answers, .*wants 3"):
    few_shot.draw(without, 3, seed=1)


def test_no_shot_is_without_an_answer():
  # A shot of an empty answer would teach the model to write none.
  empty = [AnsweredQuestion("x", (text,)) for text in ("", " ", "\r\n\t")]
  good = [AnsweredQuestion(f"q{i}", ("a",)) for i in range(3)]
  for seed in range(10):
    shots = few_shot.draw([*empty, *good], 3, seed)
    assert {shot.question for shot in shots} == {"q0", "q1", "q2"}
  with pytest.raises(ValueError, match=r"3 answers, .*wants 4"):
    few_shot.draw([*empty, *good], 4, seed=0)


def test_long_files_are_drawn_from_as_a_whole(tmp_path, monkeypatch):
  monkeypatch.setattr(few_shot, "MOST_CANDIDATES", 3)
  files = few_shot_files.write(tmp_path, "web_questions")
  with_blanks = tmp_path / "blank.jsonl"
  lines = pathlib.Path(files["train_files"]).read_text()
  with_blanks.write_text(lines.replace("\n", "\n\n"))
  seen = set()
  for seed in range(8):
    name = few_shot_tasks.register(
      "web_questions",
      **{"seed": seed, "name": f"seed_{seed}"},
      **files | {"train_files": [str(with_blanks)]},
    )
    seen |= {*shots_in("web_questions", read(name, "test").examples[0].text)}
  assert seen == {0, 6, 11}  # of 0 to 11, three evenly, 5.5 rounded


def test_mistakes(tmp_path, monkeypatch):
  files = few_shot_files.write(tmp_path, "squad2")
  register = few_shot_tasks.register
  with pytest.raises(ValueError, match="give TRAIN_FILES and TEST_FILES, or"):
    register("squad2", train_files=files["train_files"])
  same = files | {"test_files": [files["train_files"]]}
  with pytest.raises(ValueError, match="no shot may be drawn"):
    register("squad2", **same)
  copy = tmp_path / "copy.jsonl"
  copy.write_bytes(pathlib.Path(files["train_files"]).read_bytes())
  same = files | {"test_files": [str(copy)]}
  with pytest.raises(ValueError, match=r"is a copy of .*copy.jsonl of TEST_FI"):
    register("squad2", **same)
  with pytest.raises(ValueError, match=r"task.*'squad'"):
    register("squad")
  register("squad2", **files)
  with pytest.raises(ValueError, match="there is a task 'squad2_fewshot' alr"):
    register("squad2", seed=1, **files)
  many = register("squad2", num_shots=13, name="many", **files)
  with pytest.raises(
    ValueError, match=r"'squad2': split 'train' of .*jsonl has"
  ):
    read(many, "validation")
  wrong = tmp_path / "wrong.jsonl"
  for i, (row, fault) in enumerate(
    (
      ({"context": "x", "question": "y"}, "has no field 'answers/text'"),
      ({"context": 3}, "has 3 as 'context', which is not a string"),
      (
        {"context": "x", "question": "y", "answers": {"text": [1]}},
        "which is not a list of strings",
      ),
      (
        {"context": "x", "question": "y", "answers": {"text": "Rome"}},
        "has 'Rome' as 'answers/text', which is not a list of strings",
      ),
      ({"context": ["x"]}, r"has \['x'\] as 'context', which is not a string"),
      ({"context": "\ud800"}, "as 'context', which is not a string"),
      (["x"], "it is "),
    )
  ):
    wrong.write_text("\n" + json.dumps(row) + "\n")
    name = register(
      "squad2", name=f"w{i}", **files | {"test_files": str(wrong)}
    )
    with pytest.raises(ValueError, match=f"wrong.jsonl, line 2: .*{fault}"):
      read(name, "validation")
  missing = register("mbpp")
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", str(tmp_path))
  with pytest.raises(FileNotFoundError, match=r"mbpp/mbpp\.jsonl: TFDS does"):
    read(missing, "test")
  few_shot_files.write_mbpp(tmp_path)
  assert len(read(missing, "test").examples) == 3
  assert len(read(missing, "validation").examples) == 3


def test_files_of_a_task_are_in_its_fingerprint(tmp_path):
  files = few_shot_files.write(tmp_path, "gsm8k")
  name = few_shot_tasks.register("gsm8k", **files)
  key = reading.fingerprint(tasks.get(name), "test")
  assert " at 0x" not in key
  assert files["test_files"] in key
  with open(files["train_files"], "a") as file:
    file.write("\n")
  changed = reading.fingerprint(tasks.get(name), "test")
  assert key != changed
  other = few_shot_tasks.register("gsm8k", seed=1, name="other", **files)
  assert key != reading.fingerprint(tasks.get(other), "test")


@pytest.mark.parametrize("task", sorted(TASKS))
def test_the_page_says_what_the_table_says(task):
  spec = TASKS[task]
  page = (ROOT / "docs" / "tasks.md").read_text()
  *_, row = re.findall(rf"^\| `{task}` \|(.*)$", page, re.MULTILINE)
  data, split, shots, _, stop, metrics = row.rstrip(" |").split(" | ")
  name = spec.data.rpartition("/")[2] if spec.ids else spec.data.split(":")[0]
  assert f"`{name}`" in data
  assert split in spec.splits
  assert int(shots) == spec.num_shots
  assert set(re.findall(r"`(\w+)`", metrics)) - {"13a"} == {*spec.metrics}
  ends = {"\n": "line break", "\n\n": "blank line"}
  assert stop == ends.get(spec.stop, f"`{spec.stop}`")


@pytest.mark.parametrize("task", sorted(TASKS))
def test_configs_say_what_the_table_says(task):
  gin_setup.parse([f"configs/experiments/{task}_fewshot.gin"], [])
  macro = lambda name: gin.query_parameter(f"%{name}")
  assert macro("FEW_SHOT_TASK") == task
  assert macro("STOP") == [TASKS[task].stop]
  assert macro("SPLIT") in TASKS[task].splits
  name = macro("MIXTURE_OR_TASK_NAME").scoped_configurable_fn()
  assert name == f"{task}_fewshot"
  gin.clear_config()
