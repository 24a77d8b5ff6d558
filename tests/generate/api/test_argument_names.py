"""What the Python API refuses, it names as the caller wrote it."""

import re

import pytest

import speccascade as sc
from speccascade.generate.api import argument_names
from speccascade.settings.fields import SettingError

TEXT = "A clever witch sells the new car."
ADAPTIVE = {"gamma": "adaptive"}


@pytest.fixture(scope="module")
def pair():
  return sc.built_in_pair()


@pytest.mark.parametrize(
  ("settings", "words"),
  [
    ({"stop": [10**6]}, r"^stop has the id"),
    ({"banned": [10**6]}, r"^banned has the id"),
    ({"json_schema": {"type": "STOP"}}, r"^json_schema.*'STOP'"),
    ({"grammar": "("}, r"^the grammar '\('"),
    ({"method": "bild_greedy", "temperature": 1.0}, "; temperature is 1"),
    ({"gamma": "auto"}, "^gamma is 'auto', which asks advice"),
    ({"gamma": "auto", "advice": "no/STOP"}, "^advice no/STOP is not there"),
    (ADAPTIVE | {"draft_costs": "none"}, "^draft_costs none is not there"),
    ({"prompt": "chat"}, "; set prompt='text'"),
    ({"min_decode_len": 9, "max_decode_len": 8}, "^min_decode_len is 9"),
    ({"max_decode_len": 2**16, "batch_size": 2**16}, "max_decode_len"),
  ],
)
def test_generate_names_what_was_given(settings, words, pair):
  if settings.get("method") == "bild_greedy":
    greedy = [name for name, each in sc.METHODS.items() if each.greedy_only]
    settings = settings | {"method": greedy[0]}
  with pytest.raises(ValueError, match=words) as caught:
    pair.generate([TEXT] * 40, **settings)
  words = re.findall(r"(?<![/'])\b[A-Z_]{5,}\b", str(caught.value))
  assert {*words} <= {"OUTPUT_DIR"}  # of the command that is to be run


def test_other_calls_name_their_arguments(pair):
  with pytest.raises(ValueError, match=r"^stop has the id"):
    pair.stream(TEXT, stop=[10**6])
  with pytest.raises(ValueError, match=r"^banned has the id"):
    pair.compare(TEXT, banned=[10**6])
  with pytest.raises(ValueError, match=r"^draft_vocabulary is 5, and there"):
    sc.built_in_pair(draft_vocabulary=5)


def test_an_error_stays_what_it_is():
  error = SettingError("alpha", " is 2, and GAMMA is 3", None)

  @argument_names.names_arguments
  def call(gamma=None):
    raise error

  with pytest.raises(SettingError) as caught:
    call()
  assert caught.value is error
  assert str(error) == "alpha is 2, and gamma is 3"


def test_values_and_paths_keep_their_capitals():
  known = ("stop", "prompt")
  for message in (
    "the model's file '/STOP PROMPT' is gone",
    "out/STOP/PROMPT.json is gone; STOPS, OUTPUT_DIR",
    'wanted "STOP", or "a \\" STOP"',
  ):
    assert argument_names.renamed(message, known) == message
  message = "the model's PROMPT is 'a'; set STOP = None, or DRAFTER_CHECKPOINT"
  want = "the model's prompt is 'a'; set stop=None, or drafter"
  assert argument_names.renamed(message, known) == want
