"""Small data sets in the shape of the real ones, for few-shot prompts.

A row is written as Hugging Face has it, and as TFDS has it, in the features
that TFDS's own builders declare. "train 3" in a text says where it is from.
"""

import json

from speccascade.tasks.few_shot import TASKS

NUM = {"train": 12, "prompt": 10, "validation": 3, "test": 3}
# The first id of each split of MBPP, as its authors split it.
FIRST_IDS = {"prompt": 1, "test": 11, "validation": 511, "train": 601}


def rows(task: str, split: str) -> list[dict]:
  """Returns the rows of a split, with Hugging Face's fields."""
  return [_ROWS[task](f"{split} {i}", i, split) for i in range(NUM[split])]


def _squad(name, i, split):
  # Sorted, as the real file is: what has no answer comes last.
  is_without = i >= NUM[split] - (4 if split == "train" else 1)
  text = [] if is_without else [f"part {name}", f"a part {name}"]
  return {
    **{"id": f"5{i}", "title": "Parts"},
    "context": f"It is a\npart {name} of it.",
    "question": f"Which part {name}?",
    "answers": {"text": text, "answer_start": [8] * len(text)},
  }


def _trivia(name, i, split):
  answer = {
    **{"value": f"Value {name}", "normalized_value": f"value {name}"},
    "aliases": [f"Alias {name}", f"Value {name}", "other"],
    "normalized_aliases": [f"alias {name}", f"value {name}", "other"],
    **{"matched_wiki_entity_name": "", "type": "WikipediaEntity"},
    "normalized_matched_wiki_entity_name": "",
  }
  return {
    "question": f"What is {name}?",
    **{"question_id": f"tc_{i}", "question_source": "http://x/"},
    **{"entity_pages": {}, "search_results": {}, "answer": answer},
  }


_ROWS = {
  "wmt_ende": lambda name, i, split: {
    "translation": {"de": f"Das Haus {name}.", "en": f"The house {name}."}
  },
  "cnndm": lambda name, i, split: {
    "article": f"LONDON (CNN) -- {name} .\n" + "word " * 700,
    **{"highlights": f"First {name} .\nSecond .", "id": f"{i:040x}"},
  },
  "gsm8k": lambda name, i, split: {
    "question": f"How many in {name}?",
    "answer": f"{i}+1=<<{i}+1={i + 1}>>{i + 1} in {name}.\n\n#### {i + 1}",
  },
  "mbpp": lambda name, i, split: {
    "task_id": FIRST_IDS[split] + i,
    "text": f"Write a function for {name}.",
    "code": f"def f(x):\r\n  return x + {i}  # {name}",
    "test_list": [f"assert f({j}) == {i + j}" for j in range(3)],
    **{"test_setup_code": "", "challenge_test_list": []},
  },
  "squad2": _squad,
  "web_questions": lambda name, i, split: {
    **{"url": "http://x/", "question": f"who is {name}?"},
    "answers": [f"Person {name}", f"Nobody {name}"],
  },
  "natural_questions": lambda name, i, split: {
    **{"question": f"when was {name}", "answer": [f"{name} BC", "never"]}
  },
  "trivia_qa": _trivia,
}


def write(folder, task: str) -> dict[str, str]:
  """Writes JSON lines as Hugging Face has them.

  Returns:
    {"train_files": path, "test_files": path}.
  """
  spec = TASKS[task]
  splits = {"train_files": spec.shots_from, "test_files": spec.splits[-1]}
  paths = {}
  for setting, split in splits.items():
    lines = [json.dumps(row) + "\n" for row in rows(task, split)]
    paths[setting] = folder / f"{task}_{split}.jsonl"
    paths[setting].write_text("".join(lines), encoding="utf-8")
  return {setting: str(path) for setting, path in paths.items()}


def write_mbpp(folder):
  """Writes MBPP's one file where the few-shot task looks for it."""
  folder = folder / "downloads" / "manual" / "mbpp"
  folder.mkdir(parents=True)
  all_rows = [row for split in FIRST_IDS for row in rows("mbpp", split)]
  text = "".join(json.dumps(row) + "\n" for row in all_rows)
  (folder / "mbpp.jsonl").write_text(text)


def write_tfds(folder, task: str):
  """Writes a data set as TFDS stores it, with all features of its builder."""
  import tensorflow_datasets as tfds

  builder = tfds.builder(TASKS[task].data, data_dir=folder)
  features = builder.info.features
  writer = tfds.core.SequentialWriter(builder.info, max_examples_per_shard=100)
  builder.data_path.mkdir(parents=True)
  splits = (TASKS[task].shots_from, *TASKS[task].splits)
  writer.initialize_splits(splits)
  for split in splits:
    examples = [_with_all(features, row) for row in rows(task, split)]
    writer.add_examples({split: examples})
  writer.close_all()


def _with_all(features, row: dict) -> dict:
  """Returns a row with all features, empty where Hugging Face has none."""
  row = row.get("translation", row)
  return {name: _value(features[name], row.get(name)) for name in features}


def _value(feature, value):
  """Returns the value of a feature; an empty one for None."""
  import tensorflow_datasets as tfds

  if isinstance(feature, tfds.features.Sequence):
    if hasattr(feature.feature, "keys"):
      return {name: (value or {}).get(name, []) for name in feature.feature}
    return value or []
  if hasattr(feature, "keys"):
    return {name: _value(feature[name], value.get(name)) for name in feature}
  if value is None:
    return "" if feature.tf_dtype.name == "string" else 0
  return value
