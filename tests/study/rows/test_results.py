"""Result rows: what goes through JSON, and what survives a kill."""

import dataclasses
import errno
import json
import math
import os
import typing
from typing import Literal

import pytest

from speccascade.decoding.laws.sampling import SamplingSettings
from speccascade.decoding.records.decode_settings import BlockShape, BlockSize
from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point_settings import LEFT_OUT, PointSettings
from speccascade.runtime import files
from speccascade.settings import fields
from speccascade.study.evaluation.walltime import Latency
from speccascade.study.rows import results

SETTINGS = PointSettings(
  **{"method": "spec_decode", "alpha": None, "gamma": 4, "temperature": 1.0},
  **{"max_decode_len": 48, "task": "generated", "split": "test"},
  **{"num_examples": 2, "drafter": "small-1400", "verifier": "large-1100"},
)
# In the order of the first rows.
ROW_NAMES = [
  *("method", "alpha", "gamma", "temperature", "max_decode_len", "task"),
  *("split", "num_examples", "drafter", "verifier", "seed", "trials"),
  *("top_k", "top_p", "bonus", "verification", "draft_length"),
  *("draft_threshold", "dtype"),
]
COUNTS = Counts(
  **{"num_examples": 2, "num_tokens": 8, "num_blocks": 3, "drafted": 9},
  **{"expected_acceptance": 5.25, "accepted_at": (0, 1, 1, 1)},
)


def row(**changes) -> results.ResultRow:
  return results.ResultRow(
    settings=dataclasses.replace(SETTINGS, **changes),
    label="SpecDecode",
    counts=COUNTS,
    efficiency={"acceptance_rate": 6 / 7},
    quality={"bleu": {"value": 70.5, "low": 66.0, "high": 74.0}},
    latency=Latency(0.01, (0.01, 0.02), 0.5, 0.4, 0.6, 2, 2),
    costs=Costs(1e-4, 0.1, 0.2, {1: 1.0, 5: 1.7}, 2.0, 6.0),
    predicted_speedup=1.9,
    measured_speedup=2.0,
    environment={"device": "a chip"},
  )


def test_a_row_survives_json():
  first = row()
  assert results.ResultRow.from_json(first.to_json()) == first
  counts = dataclasses.replace(COUNTS, accepted_by_rank=((2, 1), (0, 1)))
  tree = dataclasses.replace(first, counts=counts)
  assert results.ResultRow.from_json(tree.to_json()) == tree
  older = json.loads(first.to_json())
  del older["counts"]["accepted_by_rank"]
  assert results.ResultRow.from_json(json.dumps(older)) == first
  bare = dataclasses.replace(first, latency=None, costs=None)
  assert results.ResultRow.from_json(bare.to_json()) == bare


def test_rows_of_older_versions_lack_lengths():
  older = json.loads(row().to_json())
  younger = {"seconds_per_answer", "lengths", "relative_length"}
  assert not younger & older.keys()
  ratio = {"value": 1.2, "low": 1.1, "high": 1.3, "num_examples": 2}
  timed = dataclasses.replace(
    row(), seconds_per_answer=0.01, lengths=(3.0, 4.5), relative_length=ratio
  )
  values = json.loads(timed.to_json())
  assert values["seconds_per_answer"] == 0.01
  assert values["lengths"] == [3.0, 4.5]
  assert results.ResultRow.from_json(timed.to_json()) == timed
  del older["cell"]
  assert results.ResultRow.from_json(json.dumps(older)) == row()
  values["relative_length"] = {"value": -1.0}
  with pytest.raises(ValueError, match="relative_length"):
    results.ResultRow.from_json(json.dumps(values))


@pytest.mark.parametrize(
  ("cell", "changes"),
  {
    "t1_d4": {},
    "t0.7_d4": {"temperature": 0.7},
    "t0_d0": {"temperature": 0.0, "gamma": None},
    "t1_dadaptive": {"gamma": "adaptive"},
    "t1_d9": {"gamma": 3, "tree": (3, 1, 1)},
  }.items(),
)
def test_rows_name_their_cell(cell, changes):
  assert row(**changes).cell == cell
  assert json.loads(row(**changes).to_json())["cell"] == cell


def test_a_line_is_strict_json():
  bad = dataclasses.replace(row(), predicted_speedup=math.nan)
  with pytest.raises(ValueError, match="not JSON compliant"):
    bad.to_json()
  assert "\n" not in row().to_json()


def test_key_is_of_the_settings_alone():
  assert row().key == dataclasses.replace(row(), label="other").key
  others = [row(alpha=0.1), row(gamma=5), row(temperature=0.0), row(seed=1)]
  assert len({row().key, *(other.key for other in others)}) == 5
  # The same in every process: Python's own hash of text is not.
  text = json.dumps(dataclasses.asdict(SETTINGS), sort_keys=True)
  again = PointSettings(**json.loads(text))
  assert again.key == SETTINGS.key


def test_rows_have_every_setting_with_its_type():
  kinds = typing.get_type_hints(PointSettings, include_extras=True)
  # Not compared: a rule that equals itself alone, and two fields for one.
  unlike = ("temperature", "draft_length", "gamma")
  for record, unused in ((SamplingSettings, False), (BlockShape, True)):
    declared = typing.get_type_hints(record, include_extras=True)
    for name in fields.names_of(record):
      # A setting that older rows lack is left out of them.
      assert name in {*ROW_NAMES, *LEFT_OUT}
      if name not in unlike:
        kind = declared[name] | None if unused else declared[name]
        assert kinds[name] == kind
  for name in LEFT_OUT:
    assert getattr(SETTINGS, name) is None
  # A row may choose its gammas, which is not a shape of a block.
  assert kinds["gamma"] == BlockSize | Literal["adaptive"] | None


def test_a_later_setting_leaves_older_rows_as_they_are():
  for name, value in {"min_p": 0.1, "tree": (2, 1), "drafts": 2}.items():
    assert name not in SETTINGS.to_dict()
    used = dataclasses.replace(SETTINGS, **{name: value})
    assert used.to_dict() == {**SETTINGS.to_dict(), name: value}
    assert used.key != SETTINGS.key
    assert fields.build(PointSettings, used.to_dict()) == used
  with pytest.raises(ValueError, match=r"drafts is '3'; .*whole number"):
    fields.build(PointSettings, {**vars(SETTINGS), "drafts": "3"})


def test_rows_have_their_settings_in_the_order_of_the_first_rows():
  assert list(json.loads(row().to_json())["settings"]) == ROW_NAMES
  assert SETTINGS.key == "8d004f3e6d17f0b7"


def test_no_point_twice(tmp_path):
  path = tmp_path / "rows.jsonl"
  file = results.ResultFile(path)
  file.append(row())
  with pytest.raises(ValueError, match="already"):
    file.append(row())
  path.write_text(path.read_text() * 2)
  with pytest.raises(ValueError, match="twice"):
    results.ResultFile(path)


def test_a_kill_anywhere_in_a_write_loses_only_that_row(tmp_path):
  path = tmp_path / "rows.jsonl"
  first, second = (row(gamma=g).to_json().encode() for g in (1, 2))
  whole = first + b"\n" + second + b"\n"
  for cut in range(len(first) + 1, len(whole), 97):
    path.write_bytes(whole[:cut])
    file = results.ResultFile(path)
    assert file.rows == [row(gamma=1)]
    file.append(row(gamma=2))
    assert path.read_bytes() == whole


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
  def full(_):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(os, "fsync", full)
  with pytest.raises(OSError, match=r"No space left on device: '.*/a\.json'"):
    files.write_whole(tmp_path / "a.json", "{}")
  assert not list(tmp_path.iterdir())
  with pytest.raises(OSError, match=r"left on device: '.*/rows\.jsonl'"):
    results.ResultFile(tmp_path / "rows.jsonl").append(row())


def test_files_are_written_whole(tmp_path):
  path = tmp_path / "metrics.json"
  path.write_text("before")
  with pytest.raises(UnicodeEncodeError):
    files.write_whole(path, "torn \ud800")
  assert path.read_text() == "before"
  files.write_whole(path, "after")
  assert path.read_text() == "after"
  assert [p.name for p in tmp_path.iterdir()] == ["metrics.json"]
