"""Alpha by phase as a user writes it: settings, rows, the API, refusals."""

import dataclasses
import json

import numpy as np
import pytest

import speccascade as sc
from speccascade.generate import token_view
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.points import point_checks
from speccascade.generate.points.point import Point
from speccascade.generate.points.point_settings import (
  PointSettings,
  settings_of,
)
from speccascade.settings import fields
from speccascade.study.report import findings, shown_examples
from tests.generate.points.test_point import RUN

OPT = "spec_cascade_opt"


@pytest.fixture(scope="module")
def pair():
  return sc.built_in_pair()


def test_it_stands_for_alpha_and_three_settings():
  point = Point(OPT, sc.ByPhase(before=0.3, after="exact", marker="####"))
  assert point == Point(OPT, 0.3, marker="####")
  assert point.marker == ("####",)
  other = Point(OPT, sc.ByPhase("exact", 0.3, ("####", 7)))
  assert other == Point(OPT, 0.3, marker=["####", 7], alpha_phase="after")
  both = Point(OPT, sc.ByPhase(0.3, -0.1, "####"))
  assert (both.alpha, both.other_alpha) == (0.3, -0.1)
  # A sweep moves the alpha of the phase, and the other one stays.
  moved = dataclasses.replace(other, alpha=0.5)
  assert moved == Point(OPT, sc.ByPhase("exact", 0.5, ("####", 7)))
  for name in ("spec_decode", "verifier", "bild", "seq_cascade_chow"):
    temperature = {"temperature": 0.0} if name == "bild" else {}
    assert point.of(name, **temperature).marker is None
  assert point.of("spec_decode_lossy").marker == ("####",)
  # As other settings that a method does not use, of a file for many methods.
  assert not Point("spec_decode", marker="####").has_phases


def test_rows_have_the_phases_and_plain_rows_stay_as_they_were():
  plain = settings_of(Point(OPT, 0.3), **RUN)
  assert not {"marker", "alpha_phase", "other_alpha"} & {*plain.to_dict()}
  settings = settings_of(Point(OPT, sc.ByPhase("exact", 0.3, "####")), **RUN)
  assert settings.key != plain.key
  assert settings.words[:2] == ["alpha 0.3", "exact before '####'"]
  read = fields.build(PointSettings, json.loads(json.dumps(settings.to_dict())))
  assert read == settings
  number = settings_of(Point(OPT, sc.ByPhase(0.3, 0.1, ("a", 5))), **RUN)
  assert number.words[:2] == ["alpha 0.3", "alpha 0.1 after 'a' or 5"]
  assert settings_of(Point("spec_decode", marker="a"), **RUN).marker is None
  # The line that a report says to decode with, and the title of its examples.
  assert findings.bindings(settings) == (
    'METHOD = "spec_cascade_opt", ALPHA = 0.3, GAMMA = 5,'
    " MARKER = ('####',), ALPHA_PHASE = \"after\""
  )
  record = {"settings": json.loads(json.dumps(vars(number)))}
  title = shown_examples.title(record)
  assert title.startswith(f"{OPT}, alpha 0.3, alpha 0.1 after 'a' or 5, gamma")


def test_counts_of_phases_add_and_have_rates():
  first = Counts(
    num_examples=1,
    num_tokens=6,
    tokens_by_phase=(4, 2),
    examined_by_phase=(3, 1),
    accepted_by_phase=(3, 0),
    marked=1,
  )
  total = first + first
  assert total.tokens_by_phase == (8, 4)
  rates = decode_counts.summary(total)
  assert rates["tokens_by_phase"] == [4.0, 2.0]
  assert rates["acceptance_rate_by_phase"] == [1.0, 0.0]
  assert rates["marked_rate"] == 1.0
  plain = Counts(num_examples=1, num_tokens=6)
  assert "tokens_by_phase" not in plain.to_dict()
  assert "tokens_by_phase" not in decode_counts.summary(plain)


def test_generate_takes_it(pair, monkeypatch):
  how = {"max_decode_len": 16, "seed": 3}
  text = "His old woman must often find this apple that the uncle wants to buy."
  alpha = sc.ByPhase(before=0.9, after="exact", marker="n")
  out = pair.generate(text, OPT, alpha=alpha, **how)
  [record] = out.records
  trace, tokens = record["aux"]["trace"], record["aux"]["tokens"]
  # By looking at the text after each token.
  is_after, so_far = [], []
  for token in tokens:
    is_after.append("n" in pair.vocabulary.decode(so_far))
    so_far.append(token)
  assert trace["phase"] == ["after" if x else "before" for x in is_after]
  assert {*trace["phase"]} == {"before", "after"}
  num = [is_after.count(False), is_after.count(True)]
  assert out.stats["tokens_by_phase"] == num
  assert out.stats["marked_rate"] == 1.0
  assert "(alpha 0.9, exact after 'n', gamma 5" in repr(out)
  assert ", before the marker" in token_view.view_html(out.records)
  assert "".join(pair.stream(text, OPT, alpha=alpha, **how)) == out.texts[0]
  # Other alphas, and phases that change places, compile nothing.
  programs = dict(pair.programs)
  for phases in ((0.1, 0.5), ("exact", -0.5)):
    other = sc.ByPhase(*phases, "n")
    pair.generate(text, OPT, alpha=other, **how)
  assert pair.programs == programs
  # One alpha on both sides is that alpha.
  same = pair.generate(text, OPT, alpha=sc.ByPhase(0.9, 0.9, "n"), **how)
  plain = pair.generate(text, OPT, alpha=0.9, **how)
  np.testing.assert_array_equal(same.tokens, plain.tokens)
  assert "phase" not in plain.records[0]["aux"]["trace"]


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"method": "spec_decode", "marker": "x"}, "SpecDecode takes no alpha"),
    (
      {"method": "bild", "alpha": sc.ByPhase(1.0, 2.0, "x"), "temperature": 0},
      "BiLD decides on whole blocks, not on tokens; give one alpha",
    ),
    (
      {"method": "seq_cascade_chow", "marker": "x"},
      "decides on whole texts, not on tokens",
    ),
    ({"method": OPT, "other_alpha": 0.3}, "other_alpha is 0.3, without a mark"),
    ({"method": OPT, "alpha_phase": "after"}, "'after', without a marker"),
    ({"method": OPT, "marker": ""}, "marker is empty, which is everywhere"),
    ({"method": OPT, "marker": ()}, "marker is empty, which is everywhere"),
    ({"method": OPT, "marker": (-3,)}, "marker has the id -3; wanted ids from"),
    (
      {"method": "spec_decode_lossy", "marker": "x", "other_alpha": 2.0},
      r"alpha after the marker is 2; SpecDecode \[Lossy\] takes",
    ),
    (
      {"method": OPT, "alpha": sc.ByPhase(0.1, 0.2, "a"), "marker": "b"},
      "marker is given next to a ByPhase",
    ),
    (
      {"method": OPT, "alpha": sc.ByPhase(0.1, 0.2, "a"), "other_alpha": 0.3},
      "other_alpha is given next to a ByPhase, which sets it: leave out one",
    ),
    (
      {
        "method": OPT,
        "alpha": sc.ByPhase(0.1, 0.2, "a"),
        "alpha_phase": "after",
      },
      "alpha_phase is given next to a ByPhase",
    ),
  ],
)
def test_what_has_no_phases_is_refused_in_one_line(pair, settings, message):
  with pytest.raises(ValueError, match=message) as error:
    pair.generate("one", **settings)
  assert "\n" not in str(error.value)


def test_both_phases_may_not_be_exact():
  with pytest.raises(ValueError, match="which is lossless: use spec_decode"):
    sc.ByPhase("exact", "exact", "x")
  with pytest.raises(ValueError, match="before is 'exakt'; wanted a number or"):
    sc.ByPhase("exakt", 0.1, "x")


def test_what_reads_no_markers_refuses_them():
  point = Point(OPT, marker="x")
  with pytest.raises(fields.SettingError, match="only what decodes texts"):
    _ = point.decoder_alpha
  with pytest.raises(fields.SettingError, match="has an alpha of tokens"):
    point_checks.check_shared(
      Point("spec_decode", marker="x"), ["spec_decode", "bild"]
    )
