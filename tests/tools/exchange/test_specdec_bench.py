"""A model class of NVIDIA's harness, called as the harness calls one."""

import asyncio
import itertools
import json
import types

import numpy as np
import pytest

from speccascade.tools.exchange import specdec_bench
from tests.tools.exchange.conftest import QUESTIONS

pytestmark = pytest.mark.needs_tf

LIMIT = 10


class Harness:
  """Asks as the harness does: the whole conversation at each turn."""

  def __init__(self, folder, **settings):
    settings = {
      "speculative_algorithm": "DRAFT_TARGET",
      "draft_model_dir": str(folder / "small"),
      "speculative_num_steps": 3,
      "speculative_num_draft_tokens": None,
      "tensor_parallel_size": 1,
      "moe_expert_parallel_size": 2,
      "trust_remote_code": False,
      "tokenizer_path": str(folder / "large"),
      "max_input_len": 128,
      "room": 128,
    } | settings
    self.model = specdec_bench.SpeccascadeModel(
      str(folder / "large"), 1, {"temperature": 0.0}, **settings
    )
    self.vocabulary = self.model._pair.vocabulary

  def ask(self, turns, request_id=0, end_id=2):
    """Returns the tokens of each turn and what the model returned."""
    messages, answers = [], []
    for turn_id, text in enumerate(turns):
      messages.append({"role": "user", "content": text})
      prompt = self.vocabulary.encode(
        self.vocabulary.chat_template.render(messages)
      )
      out = asyncio.run(
        self.model.run(prompt, LIMIT, end_id, request_id, turn_id)
      )
      [chunks] = out["output_ids"]
      tokens = [token for chunk in chunks for token in chunk]
      messages.append(
        {"role": "assistant", "content": self.vocabulary.decode(tokens)}
      )
      answers.append(types.SimpleNamespace(prompt=prompt, tokens=tokens, **out))
    return answers


@pytest.fixture(scope="module")
def harness(folder):
  return Harness(folder)


@pytest.fixture(scope="module")
def greedy(harness):
  """What the large model writes alone for the first turn, without EOS."""
  pair = harness.model._pair
  settings = {"temperature": 0.0, "max_decode_len": LIMIT, "trace": False}
  out = pair.generate("the cat", "verifier", **settings)
  tokens = out.tokens[0, : out.lengths[0]].tolist()
  return [token for token in tokens if token != 2]


def test_a_model_of_the_harness(harness, greedy):
  answers = harness.ask(QUESTIONS[0]["turns"])
  assert len(answers) == 3
  assert answers[0].tokens == greedy
  # A later turn is what the model answers that reads all of it at once.
  for turn in (1, 2):
    whole = answers[turn].prompt
    alone = asyncio.run(harness.model.run(whole, LIMIT, 2, 7, 0))
    [chunks] = alone["output_ids"]
    assert [*itertools.chain(*chunks)] == answers[turn].tokens
  for answer in answers:
    [chunks] = answer.output_ids
    assert len(answer.token_times) == len(chunks) + 1
    assert np.all(np.diff(answer.token_times) > 0)
    assert all(1 <= len(chunk) <= 4 for chunk in chunks)
    assert 2 not in answer.tokens
  config = harness.model.get_serving_config()
  assert json.dumps(config)
  assert (config["method"], config["gamma"]) == ("spec_decode", 3)
  # Nothing ends an answer that is asked to be as long as it may.
  [whole] = harness.ask(["the cat"], end_id=-1)
  assert len(whole.tokens) == LIMIT
  harness.model.stop()  # a model that was stopped can be asked again


@pytest.mark.parametrize(
  "settings",
  [
    {"speculative_algorithm": "NONE"},
    {"speculative_algorithm": "NGRAM"},
    {"method": "spec_cascade_opt", "alpha": 0.0},
  ],
)
def test_the_harness_names_algorithms(folder, greedy, settings):
  [answer] = Harness(folder, **settings).ask(["the cat"])
  if "method" not in settings:
    assert answer.tokens == greedy
  if settings.get("speculative_algorithm") == "NONE":
    assert {len(chunk) for chunk in answer.output_ids[0]} == {1}


def test_alpha_may_change_at_a_marker(folder, greedy):
  """It is exact up to the marker, a token of the answer; a config says so."""
  phases = {"marker": [greedy[3]], "alpha_phase": "after"}
  settings = {"method": "spec_cascade_token_v1", "alpha": 1.0, **phases}
  asked = Harness(folder, **settings)
  config = json.loads(json.dumps(asked.model.get_serving_config()))
  assert config.items() >= (settings | {"other_alpha": "exact"}).items()
  [answer] = asked.ask(["the cat"])
  num = greedy.index(greedy[3]) + 1
  assert answer.tokens[:num] == greedy[:num]
  assert answer.tokens != greedy


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"speculative_algorithm": "EAGLE3"}, "is EAGLE3; wanted one of"),
    ({"alpah": 1}, "alpah"),
  ],
)
def test_what_the_harness_is_refused(folder, settings, message):
  with pytest.raises((ValueError, TypeError), match=message):
    Harness(folder, **settings)
  with pytest.raises(ValueError, match="give --concurrency 1"):
    specdec_bench.SpeccascadeModel("a", 4, {})
