"""Advice on draft vocabularies: tiny T5s, at costs that are given."""

import functools
import json
import re

import pytest

from speccascade.generate.pair.pairs import PairError, PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.models import cut_head
from speccascade.study.measuring import infer
from speccascade.study.search import advice_page, advisor
from speccascade.study.search.effort import Effort
from speccascade.study.search.wanted import Wanted
from speccascade.tasks.inputs import Inputs
from speccascade.text import frequent_tokens
from tests.generate import tiny
from tests.study.search import test_advisor

LENGTH = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A verifier, a drafter that nearly is it, and twelve inputs."""
  folder = tmp_path_factory.mktemp("tiny")
  tiny.save(folder / "large", 1)
  tiny.save(folder / "small", 1)
  texts = [f"{one} {two}" for one in tiny.WORDS[:4] for two in tiny.WORDS[:3]]
  lines = [json.dumps({"inputs": text}) for text in texts]
  (folder / "in.jsonl").write_text("\n".join(lines))
  return folder


@pytest.fixture
def advise(folder, tmp_path, monkeypatch):
  """Asks for advice; a step of the drafter costs what `c` says of its head."""

  def call(c, wanted=None, num=8, **pair):
    def steps_of(study):
      head = study.pair.drafter_lm.params.get(cut_head.NAME)
      return c[None if head is None else len(head["ids"])]

    timed = test_advisor.at_given_costs(monkeypatch, steps_of)
    advice = advisor.advise(
      **models(folder, num, **pair),
      point=Point("spec_decode", gamma=2, temperature=0.0),
      run=Run(tmp_path / "advice", max_decode_len=LENGTH, progress=False),
      wanted=wanted or Wanted(None, (), [2], draft_vocabularies=(4, 8)),
      effort=Effort(rounds=1),
    )
    return advice, timed

  return call


def models(folder, num, **pair):
  small, large = str(folder / "small"), str(folder / "large")
  return {
    "pair": PairSpec(
      drafter_checkpoint=small, verifier_checkpoint=large, **pair
    ),
    "inputs": Inputs(
      input_file=str(folder / "in.jsonl"),
      vocabulary=tiny.Vocabulary(),
      task_feature_lengths={"inputs": 8},
      num_examples=num,
    ),
  }


@pytest.fixture(scope="module")
def written(folder):
  """The tokens that the verifier writes for each of the inputs."""
  result = infer.infer(
    **models(folder, None),
    point=Point("verifier", temperature=0.0),
    run=Run(folder / "written", max_decode_len=LENGTH, progress=False),
  )
  del result
  lines = (folder / "written/predictions.jsonl").read_text().splitlines()
  return [json.loads(line)["aux"]["tokens"] for line in lines]


@pytest.fixture
def counted(folder, written):
  """A file of ids beside the drafter."""
  found = frequent_tokens.count(written, tiny.Vocabulary(), 8)
  ids = list(dict.fromkeys([*found.ids, *range(16)]))[:8]
  path = folder / "small" / frequent_tokens.FILE
  path.write_text(json.dumps({"ids": ids}))
  yield ids
  path.unlink()


def test_the_best_size_is_timed_and_advised(advise, folder, counted, tmp_path):
  advice, timed = advise({None: 0.5, 4: 0.3, 8: 0.01})
  best = "small-7 cut to 8"
  assert timed == ["small-7", best]
  assert advice.choice.study.pair.drafter_name == best
  assert [tried.c for tried in advice.tried] == [0.3, 0.01]
  text = advice_page.write(advice, ["advise", "--gin_file=a.gin"])
  assert f"gamma 2, drafter {best}: " in text
  snippet = (tmp_path / "advice/advice.gin").read_text()
  assert snippet.endswith("DRAFT_VOCABULARY = 8\n")
  assert "--gin.DRAFT_VOCABULARY=8" in text
  assert "with all tokens c = 0.500, predicted" in text
  assert "with 4 c = 0.300, " in text
  assert "\n- if these examples' own texts were among those" in text
  values = json.loads((tmp_path / "advice/advice.json").read_text())
  assert [x["setting"] for x in values["draft_vocabularies"]] == [
    4,
    8,
  ]
  # A decode takes what is pasted, and finds its gamma in the advice.
  setting = int(re.search(r"DRAFT_VOCABULARY = (\d+)", snippet)[1])
  auto = Point(
    "spec_decode", gamma="auto", temperature=0.0, advice=tmp_path / "advice"
  )
  result = infer.infer(
    **models(folder, 4, draft_vocabulary=setting),
    point=auto,
    run=Run(tmp_path / "out", max_decode_len=LENGTH, progress=False),
  )
  assert result.row.settings.drafter == best
  assert result.row.settings.gamma == 2


def test_a_size_that_promises_less_is_not_timed(advise, counted):
  advice, timed = advise({None: 0.01, 4: 0.01, 8: 0.02})
  assert timed == ["small-7"]
  # Fewer columns do not take longer, whatever the clock says.
  assert [tried.c for tried in advice.tried] == [0.01, 0.01]
  assert advice.choice.study.pair.drafter_name == "small-7"
  assert "DRAFT_VOCABULARY" not in advice_page.answer(advice).snippet


def test_nothing_is_tried_without_counts(advise):
  advice, timed = advise({None: 0.01}, Wanted(None, (), [2]))
  assert timed == ["small-7"]
  assert not advice.tried


def test_texts_of_other_inputs_are_counted(advise, folder, written, tmp_path):
  """Those after the measured ones; the file has the tokens of the answer."""
  wanted = Wanted(None, (), [2], draft_vocabularies=(5,), num_counted=3)
  count = functools.partial(frequent_tokens.count, fill=True)
  found = count(written[6:9], tiny.Vocabulary(), 5)
  advice, timed = advise({None: 0.9, 5: 0.01}, wanted, num=6)
  assert timed == ["small-7", "small-7 cut to 5"]
  path = tmp_path / "advice/draft_vocabulary_5.json"
  assert list(frequent_tokens.read(path).ids) == found.ids
  measured = count(written[:6], tiny.Vocabulary(), 5)
  assert found.ids != measured.ids
  assert [tried.cut.setting for tried in advice.tried] == [str(path)]
  if advice.choice.study is advice.tried[0].cut.study:
    snippet = advice_page.answer(advice).snippet
    assert f'DRAFT_VOCABULARY = "{path}"' in snippet.replace("'", '"')
  assert "own texts were among those" not in advice_page.answer(advice).text


@pytest.mark.parametrize(
  ("wanted", "pair", "message"),
  [
    (
      {"draft_vocabularies": (4,)},
      {"draft_vocabulary": [3, 4]},
      "DRAFT_VOCABULARY is set, and DRAFT_VOCABULARIES or NUM_COUNTED asks",
    ),
    (
      {"num_counted": 3},
      {},
      "NUM_COUNTED is 3, and all 12 inputs are measured",
    ),
    ({"draft_vocabularies": (4,)}, {}, "there is no .*small/draft_vocabulary"),
  ],
)
def test_what_cannot_be_tried(advise, wanted, pair, message):
  with pytest.raises((ValueError, PairError), match=message):
    advise({}, Wanted(None, (), [2], **wanted), num=12, **pair)
