"""What generation_config.json asks for, and what of it is not applied."""

import json
import pathlib
import shutil

from absl import logging
import pytest

from speccascade import built_in
from speccascade.checkpoints import CheckpointError, generation_settings, load
from speccascade.checkpoints.storage import Directory
from speccascade.generate.pair.model_loading import load_model
from speccascade.text import vocabularies
from speccascade.text.prompting import eos_ids
from tests.generate import llamas

QWEN = {
  "do_sample": True,
  "temperature": 0.7,
  "top_p": 0.8,
  "top_k": 20,
  "repetition_penalty": 1.05,
  "eos_token_id": [2, 0],
  "transformers_version": "4.45.0",
}


@pytest.mark.parametrize(
  ("settings", "line"),
  [
    (
      QWEN,
      "it has repetition_penalty=1.05, which no method here has; and"
      " TEMPERATURE=0.7, TOP_K=20, TOP_P=0.8, which count where they are set"
      " for the run",
    ),
    (QWEN | {"do_sample": False, "repetition_penalty": 1.0}, ""),
    ({"no_repeat_ngram_size": 3, "num_beams": 1}, "it has no_repeat_ngram_s"),
    ({"suppress_tokens": list(range(99))}, "it has suppress_tokens=[0, 1, 2"),
    ({"min_length": 0, "bad_words_ids": None, "sequence_bias": {}}, ""),
    ({}, ""),
  ],
)
@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_one_line_names_what_is_not_applied(tmp_path, settings, line, name):
  (tmp_path / name).write_text(json.dumps(settings))
  said = generation_settings.describe_unapplied(Directory(tmp_path))
  assert bool(said) == bool(line)
  assert line in said
  assert "\n" not in said
  assert len(said) < 600
  if line:
    assert said.startswith(f"{tmp_path}/{name} is not applied: ")


def test_a_model_that_is_loaded_says_it(tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(
    logging, "warning", lambda form, *x: said.append(form % x)
  )
  folder = llamas.save(tmp_path / "model", 0)
  load_model("verifier", folder)
  assert not said
  (folder / "generation_config.json").write_text(json.dumps(QWEN))
  load_model("verifier", folder)
  [line] = said
  assert "repetition_penalty=1.05" in line


def test_several_ends_beside_a_sentencepiece_model(copy_of):
  """A T5 whose generation_config.json names more ends than </s>."""
  path = copy_of("hf")
  shutil.copy(pathlib.Path(built_in.verifier(), "spiece.model"), path)
  vocabulary = vocabularies.load(str(path))
  assert eos_ids(vocabulary) == 1
  assert vocabulary.text([7, 8, 1, 9]) == vocabulary.text([7, 8])
  vocabularies.load.cache_clear()
  text = json.dumps({"eos_token_id": [1, 8]})
  (path / "generation_config.json").write_text(text)
  vocabulary = vocabularies.load(str(path))
  assert eos_ids(vocabulary) == (1, 8)
  assert vocabulary.text([7, 9, 8, 5]) == vocabulary.text([7, 9])
  assert vocabulary.eos_id == 1
  # They go along with the vocabulary.
  copy = path.parent / "run"
  copy.mkdir()
  vocabularies.save(vocabulary, str(copy), "MODEL_DIR")
  assert vocabularies.load(str(copy)).eos_ids == (1, 8)
  # config.json says it where there is no generation_config.json.
  (path / "generation_config.json").unlink()
  settings = json.loads((path / "config.json").read_text())
  for ends, message in (
    ([1, 512], "eos_token_id is 512; wanted ids below vocab_size, 512"),
    ("end", "eos_token_id is 'end'; wanted the ids"),
  ):
    text = json.dumps(settings | {"eos_token_id": ends})
    (path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
      load(path)
