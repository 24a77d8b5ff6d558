"""A recording notices what changed, and nothing else."""

import numpy as np

from tests.audit.recording import __main__ as command
from tests.audit.recording import side
from tests.audit.recording.differences import differences
from tests.audit.recording.record import Record, read


def side_of(tmp_path, name, **values):
  record = Record()
  for key, value in values.items():
    record.add(key, value)
  record.write(tmp_path / name)
  return read(tmp_path / name)


def test_differences_are_named(tmp_path):
  tokens, probs = np.array([[3, 1], [4, 0]]), np.array([0.5, np.nan, -np.inf])
  base = side_of(tmp_path, "base", tokens=tokens, probs=probs, line="a", old=1)
  assert not list(differences(base, base))
  other = tokens.copy()
  other[1, 0] = 5
  head = side_of(
    tmp_path, "head", tokens=other, probs=probs + 1e-7, line="b", new=1
  )
  assert list(differences(base, head)) == [
    "new: a new array",
    "old: no such array any more",
    "tokens: 1 of 4 differ, the first at [1, 0]: 4 became 5",
    "line:\n  - a\n  + b",
  ]
  # Floats have a bound; what is finite does not become something else.
  assert len(list(differences(base, head, 0.0))) == 5
  gone = side_of(
    tmp_path, "gone", tokens=tokens, probs=np.zeros(3), line="a", old=1
  )
  assert [x.partition(":")[0] for x in differences(base, gone)] == ["probs"]
  short = side_of(
    tmp_path, "short", tokens=tokens[:1], probs=probs, line="a", old=1
  )
  [line] = differences(base, short)
  assert line == "tokens: int64 [2, 2] became int64 [1, 2]"


def test_every_part_is_recorded():
  assert set(command.PARTS) == set(side.PARTS)
