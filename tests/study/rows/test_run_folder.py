"""Shards of a run: which of them a start finds whole."""

import pytest

from speccascade.runtime.folders import OutputError
from speccascade.study.rows.run_folder import Shards

LINE = '{"prediction": "a", "aux": {}}\n'


def test_a_start_writes_what_is_missing(tmp_path):
  shards = Shards(tmp_path, {}, [2, 0, 1])
  assert shards.missing() == [0, 1, 2]
  shards.write(0, [LINE] * 2)
  shards.write(1, [])  # of no example
  assert shards.missing() == [2]
  shards.write(2, [LINE])
  assert shards.missing() == []
  shards.merge()
  assert shards.missing() == []
  assert len(list(shards.records())) == 3


@pytest.mark.parametrize("num", [0, 1, 3])
def test_a_shard_has_a_record_of_each_example(tmp_path, num):
  shards = Shards(tmp_path, {}, [2])
  shards.write(0, [LINE] * num)
  message = f"has {num} records, wanted 2; remove the file"
  with pytest.raises(OutputError, match=message):
    shards.missing()
  shards.merge()
  with pytest.raises(OutputError, match=message):
    list(shards.records())
