"""A tiny pair of chat models, and a file of questions."""

import json

import pytest

from tests.generate import llamas

QUESTIONS = [
  {"question_id": 81, "category": "writing", "turns": ["the cat", "sat", "a"]},
  {"question_id": 82, "category": "math", "turns": ["one"]},
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("llamas")
  llamas.save(folder / "small", 0, max_positions=256)
  llamas.save(folder / "large", 1, max_positions=256)
  lines = [json.dumps(question) + "\n" for question in QUESTIONS]
  (folder / "questions.jsonl").write_text("".join(lines))
  return folder
