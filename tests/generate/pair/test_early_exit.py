"""Pairs whose drafter is the verifier's first layers: settings and texts."""

import json
import pathlib

import jax
import numpy as np
import pytest

import speccascade as sc
from speccascade import built_in
from speccascade.generate.pair.pair_checks import PairError
from speccascade.generate.pair.pairs import PairSpec
from speccascade.models import LlamaConfig
from tests.generate import decodes, llamas

TEXTS = ["A clever witch sells the new car.", "The old man reads a book."]
NAME = "large exit 1"
METHODS = ("verifier", "drafter", "spec_decode")
GREEDY = {"temperature": 0, "max_decode_len": 24, "trace": False}
LARGE = {"verifier": built_in.verifier()}


@pytest.fixture(scope="module")
def pair():
  return sc.built_in_pair(drafter=sc.EarlyExit(3))


def test_texts_are_the_verifiers_and_arrays_too(pair):
  models = pair.models
  assert models.drafter_name == f"{models.verifier_name} exit 3"
  arrays = {id(leaf) for leaf in jax.tree.leaves(models.verifier_lm)}
  assert {id(leaf) for leaf in jax.tree.leaves(models.drafter_lm)} < arrays
  wanted = pair.generate(TEXTS, "verifier", **GREEDY).texts
  assert pair.generate(TEXTS, "spec_decode", **GREEDY).texts == wanted
  # With alpha 0 the token cascade always defers, with 1 never.
  chow = {"method": "token_cascade_chow", **GREEDY}
  assert pair.generate(TEXTS, alpha=0.0, **chow).texts == wanted
  alone = pair.generate(TEXTS, "drafter", **GREEDY).texts
  assert pair.generate(TEXTS, alpha=1.0, **chow).texts == alone != wanted
  pieces = pair.stream(TEXTS[0], temperature=0, max_decode_len=24)
  assert "".join(pieces) == wanted[0]


def test_all_layers_are_the_verifier(pair):
  whole = sc.load_pair(drafter="early-exit:6", **LARGE)
  out = whole.generate(TEXTS, "spec_decode", gamma=3, **GREEDY)
  assert out.texts == pair.generate(TEXTS, "verifier", **GREEDY).texts
  assert out.stats["acceptance_rate"] == 1


def test_a_cut_head_and_a_list_of_drafters(pair):
  even = np.arange(0, 768, 2)
  cut = sc.built_in_pair(drafter=sc.EarlyExit(3), draft_vocabulary=even)
  assert cut.models.drafter_name.endswith("exit 3 cut to 385")
  wanted = pair.generate(TEXTS, "verifier", **GREEDY).texts
  assert cut.generate(TEXTS, "spec_decode", **GREEDY).texts == wanted
  several = sc.built_in_pair(drafter=[sc.EarlyExit(3), built_in.drafter()])
  assert [x.name for x in several.models.drafters] == [
    pair.models.drafter_name,
    "small",
  ]


@pytest.mark.parametrize(
  ("drafter", "message"),
  [
    (sc.EarlyExit(7), "large: .* after 7 layers; .* from 1 to 6"),
    ("early-exit:x", "'early-exit:x'; wanted early-exit:K"),
    ("early-exit:0", "'early-exit:0'; wanted early-exit:K"),
    ("early-exit:", "'early-exit:'; wanted early-exit:K"),
    ("early-exit:" + "9" * 5000, "99; wanted early-exit:K"),
    (("early-exit:2", LlamaConfig), "the drafter 'early-exit:2', which has"),
  ],
)
def test_layers_that_there_are_not(drafter, message):
  with pytest.raises(PairError, match=message) as raised:
    sc.load_pair(drafter=drafter, **LARGE)
  assert "\n" not in str(raised.value)


def test_paths_may_name_an_exit(pair):
  for name in (pathlib.Path("early-exit:3"), ("early-exit:3", None)):
    models = sc.load_pair(drafter=name, **LARGE).models
    assert models.drafter_name == pair.models.drafter_name


@pytest.mark.parametrize(
  "name", [sc.EarlyExit(1), "early-exit:1", "self-int8", ("self-int8", None)]
)
def test_a_verifier_is_none_of_its_drafters(name, pair):
  message = "the verifier is '.*', which names a drafter"
  with pytest.raises(PairError, match=message):
    sc.load_pair(drafter=built_in.drafter(), verifier=name)
  if isinstance(name, str):
    spec = PairSpec(drafter_checkpoint="self-int8", verifier_checkpoint=name)
    with pytest.raises(PairError, match=message):
      spec.load(pair.vocabulary)


def test_settings_that_do_not_fit(pair):
  for number in (0, 1.5, "2", None):
    with pytest.raises(ValueError, match="num_layers is"):
      sc.EarlyExit(number)
  with pytest.raises(PairError, match="there is no verifier: give one"):
    sc.load_pair(drafter=sc.EarlyExit(2))
  with pytest.raises(PairError, match="leave drafter_vocabulary out"):
    sc.load_pair(
      drafter=sc.EarlyExit(2), drafter_vocabulary=pair.vocabulary, **LARGE
    )
  with pytest.raises(PairError, match="DRAFTER is given for early-exit:2"):
    PairSpec(
      drafter=pair.models.verifier_lm.module.config,
      drafter_checkpoint="early-exit:2",
      verifier_checkpoint=built_in.verifier(),
    ).load(pair.vocabulary)


@pytest.mark.needs_tf
def test_a_run_records_the_exit(tmp_path):
  llamas.save(tmp_path / "large", 1)
  path = tmp_path / "in.txt"
  path.write_text("the cat\nthe dog sat on\n")
  texts = []
  for number, method in enumerate((*METHODS, "spec_decode")):
    out = tmp_path / str(number)
    row = decodes.decode(
      tmp_path,
      out,
      method=method,
      refill=number == len(METHODS),
      drafter_checkpoint="early-exit:1",
      temperature=0.0,
      task_feature_lengths={"inputs": 64},
      num_lengths=1,
      input_file=str(path),
    )
    lines = (out / "predictions.jsonl").read_text().splitlines()
    texts.append([json.loads(line)["prediction"] for line in lines])
    assert row.settings.drafter == ("" if method == "verifier" else NAME)
  wanted, _, *drafted = texts
  assert drafted == [wanted] * 2
