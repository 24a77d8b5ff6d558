"""Advice on early exits of the verifier: tiny T5s, at costs that are given."""

import dataclasses
import json
import re

import pytest

from speccascade.generate.pair.pairs import PairError, PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.study.measuring import infer
from speccascade.study.measuring.study import Measuring
from speccascade.study.search import advice_page, advisor, early_exits
from speccascade.study.search.candidates import read_study
from speccascade.study.search.effort import Effort
from speccascade.study.search.wanted import Wanted
from speccascade.tasks.inputs import Inputs
from tests.generate import tiny
from tests.study.search import test_advisor

LENGTH = 6
CHEAP = {1: 0.3, 2: 0.2, 3: 0.01}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A verifier of three layers, another one as the drafter, and four inputs."""
  folder = tmp_path_factory.mktemp("tiny")
  for name, seed in {"large": 1, "small": 2}.items():
    tiny.save(folder / name, seed, num_decoder_layers=3)
  tiny.save(folder / "flat", 1)
  lines = [json.dumps({"inputs": word}) for word in tiny.WORDS[:4]]
  (folder / "in.jsonl").write_text("\n".join(lines))
  return folder


def settings(folder, out, **pair):
  pair = {"verifier_checkpoint": str(folder / "large"), **pair}
  return {
    "pair": PairSpec(**pair),
    "inputs": Inputs(
      input_file=str(folder / "in.jsonl"),
      vocabulary=tiny.Vocabulary(),
      task_feature_lengths={"inputs": 8},
    ),
    "run": Run(out, max_decode_len=LENGTH, progress=False),
  }


@pytest.fixture
def advise(folder, tmp_path, monkeypatch):
  """Asks for advice; a step of k layers costs `c[k]`, one of others c[None]."""

  def call(c, asked=None, **pair):
    timed = test_advisor.at_given_costs(
      monkeypatch, lambda study: c[study.pair.drafter_lm.num_shared or None]
    )
    advice = advisor.advise(
      **settings(folder, tmp_path / "advice", **pair),
      point=Point("spec_decode", gamma=2, temperature=0.0),
      wanted=Wanted(None, (), [2], early_exits=asked),
      effort=Effort(rounds=1),
    )
    return advice, timed

  return call


def test_the_best_exit_is_timed_and_advised(advise, folder, tmp_path):
  advice, timed = advise(CHEAP, (3, 1, 2))
  assert timed == ["large-7 exit 3"]
  assert [(x.setting, x.c) for x in advice.tried_exits] == [
    (f"early-exit:{k}", c) for k, c in CHEAP.items()
  ]
  argv = ["advise", "--gin_file=a.gin", "--gin.EARLY_EXITS=[1, 2, 3]"]
  text = advice_page.write(advice, [*argv, "--gin.DRAFTER_CHECKPOINT=None"])
  assert "gamma 2, drafter large-7 exit 3: " in text
  assert "--gin.DRAFTER_CHECKPOINT='\"early-exit:3\"'" in text
  assert "--gin.EARLY_EXITS" not in text
  assert "DRAFTER_CHECKPOINT=None" not in text
  assert re.search(
    "- early exits of large-7, by costs and acceptance: early-exit:1 c ="
    r" 0\.300, predicted \d\.\d\d times as fast; early-exit:2 c = 0\.200,"
    r" \d\.\d\d; early-exit:3 c = 0\.010, \d\.\d\d\n",
    text,
  )
  snippet = (tmp_path / "advice/advice.gin").read_text()
  assert 'DRAFTER_CHECKPOINT = "early-exit:3"\n' in snippet
  values = json.loads((tmp_path / "advice/advice.json").read_text())
  assert [x["setting"] for x in values["early_exits"]] == [
    x.setting for x in advice.tried_exits
  ]
  # A decode takes what is pasted, and finds its gamma in the advice.
  pasted = re.search(r'DRAFTER_CHECKPOINT = "(.*)"', snippet)[1]
  result = infer.infer(
    **settings(folder, tmp_path / "out", drafter_checkpoint=pasted),
    point=Point(
      "spec_decode", gamma="auto", temperature=0.0, advice=tmp_path / "advice"
    ),
  )
  assert result.row.settings.drafter == "large-7 exit 3"
  assert result.row.settings.gamma == 2
  assert result.row.drafter_kind == "early exit"


def tried(folder, asked=None, **pair):
  """Returns the early exits that advice tries, without any measurement."""
  parts, wanted = settings(folder, folder / "out", **pair), Wanted()
  wanted = dataclasses.replace(wanted, early_exits=asked)
  spec = parts["pair"]
  study = read_study(
    early_exits.with_a_drafter(spec, wanted),
    parts["inputs"],
    parts["run"],
    Measuring(),
  )
  return early_exits.EarlyExits.of(spec, wanted, study)


def names(exits):
  return [study.pair.drafter_name for study in exits.studies]


def test_a_verifier_alone_has_exits_of_fewer_layers(folder):
  """1, 2, 4 and 8 are tried, and of three layers that is 1 and 2."""
  assert names(tried(folder)) == ["large-7 exit 1", "large-7 exit 2"]
  # With a drafter they are tried where they are asked for.
  small = {"drafter_checkpoint": str(folder / "small")}
  assert not tried(folder, **small).studies
  assert names(tried(folder, (3, 2), **small)) == [
    "large-7 exit 2",
    "large-7 exit 3",
  ]


def test_cut_exits(folder):
  exits = tried(folder, (3,), draft_vocabulary=[*range(12)])
  assert names(exits) == ["large-7 exit 3 cut to 12"]
  assert exits.bindings(exits.studies[0]) == {
    "DRAFTER_CHECKPOINT": "early-exit:3"
  }


def test_int8_of_a_drafter_is_not_an_exits(advise, folder):
  advice, timed = advise(
    {None: 0.5, **CHEAP},
    (3,),
    drafter_checkpoint=str(folder / "small"),
    drafter_kernel_dtype="int8",
  )
  assert timed == ["small-7", "large-7 exit 3"]
  first, second = (x.study.pair for x in advice.draftings)
  assert "int8" in first.dtype
  assert second.dtype == "float32"
  snippet = advice_page.answer(advice).snippet
  assert 'DRAFTER_CHECKPOINT = "early-exit:3"\n' in snippet
  assert snippet.endswith("DRAFTER_KERNEL_DTYPE = None\n")


@pytest.mark.parametrize(
  ("asked", "pair", "message"),
  [
    ((4,), {}, "EARLY_EXITS has 4: large-7: .* from 1 to 3"),
    ((), {}, "set DRAFTER_CHECKPOINT"),
    (None, {"verifier_checkpoint": "flat"}, "flat-7 has one decoder layer"),
    ((1,), {"drafter_vocabulary": "words"}, "DRAFTER_VOCABULARY"),
  ],
)
def test_what_cannot_be_tried(folder, asked, pair, message):
  if "verifier_checkpoint" in pair:
    pair = {"verifier_checkpoint": str(folder / pair["verifier_checkpoint"])}
  with pytest.raises((PairError, ValueError), match=message):
    tried(folder, asked, **pair)
