"""Checks which values fit which types, and the messages about the others."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import inspect
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
import pytest

from speccascade.settings import fields
from speccascade.settings.fields import Bounds, Keys, SettingError


class Entry(TypedDict):
  value: float
  low: NotRequired[float | None]


def even(number):
  if number % 2:
    raise ValueError(f"{number} is odd")


HALF_OPEN = Annotated[float, Bounds(0, 1, high_open=True)]
LENGTHS = Annotated[Mapping[str, fields.Positive], Keys(("inputs", "targets"))]
SEVERAL = Annotated[Sequence[int], fields.NOT_EMPTY]
PAIR = Literal["all"] | tuple[Literal["a", "b"], float]


@pytest.mark.parametrize(
  ("kind", "right", "wrong", "wanted"),
  [
    (int, [0, -5, np.int32(3)], [True, 2.5, "5", None, [1]], "a whole number"),
    (float, [1, 0.5, np.float32(2)], [True, "1", None], "a number"),
    (float, [], [float("nan"), float("inf"), 10**400, 1j], "a number"),
    (bool, [True, False], [1, "yes", None], "True or False"),
    (str, ["", "\U0001f600"], [5, b"a", "\ud800", "a\0b"], "a string"),
    (int | None, [5, None], ["5"], "a whole number or None"),
    (fields.Size, [1, 65536], [0, 65537], "a whole number from 1 to 65536"),
    (
      Annotated[int, Bounds(2)],
      [2, 10**30],
      [1],
      "a whole number of 2 or more",
    ),
    (HALF_OPEN, [0, 0.99], [1, -0.1], "a number from 0 to below 1"),
    (
      Annotated[float, Bounds(0, low_open=True)],
      [1e-9],
      [0, -1],
      "a number above 0",
    ),
    (Literal["a", "b"], ["a"], ["c", 5, ["a"]], "'a' or 'b'"),
    (PAIR, ["all"], ["a", ["a"], ("c", 1), ("a", 1, 2)], "'all' or ('a' or"),
    (Sequence[int], [], ["12", 5, [1, "2"], {1: 2}], "a list of whole numbers"),
    (SEVERAL, [], [[], ()], "whole numbers, with one item or more"),
    (
      LENGTHS,
      [],
      [{}, {"inputs": 1}, 5],
      "numbers from 1 to 2147483647, with inputs",
    ),
    (
      LENGTHS,
      [],
      [{"inputs": 0, "targets": 1}],
      "a dict of whole numbers from 1",
    ),
    (Entry, [{"value": 1.0, "more": 2}], [{}, 5, {"value": "1"}], "with value"),
    (Callable[[Any], Any] | None, [len, None], [5], "a function or None"),
    (Bounds, [Bounds()], [5], "a Bounds"),
  ],
)
def test_what_fits(kind, right, wrong, wanted):
  for value in right:
    assert fields.fit("x", value, kind) == value
  for value in wrong:
    with pytest.raises(SettingError) as caught:
      fields.fit("x", value, kind)
    assert str(caught.value).startswith("x is ")
    assert wanted in str(caught.value).partition("; wanted ")[2]


def test_lists_become_tuples_but_where_a_list_is_asked_for():
  nested = fields.fit("x", [[1, 2], [3]], Sequence[Sequence[int]])
  assert nested == ((1, 2), (3,))
  assert fields.fit("x", ["a", 1], PAIR) == ("a", 1)
  assert fields.fit("x", (1, 2), list[int]) == [1, 2]


def test_a_rule_says_for_itself_what_is_wrong():
  kind = Sequence[Annotated[int, even]] | None
  assert fields.fit("x", [2, 4], kind) == (2, 4)
  with pytest.raises(SettingError, match=r"^x: 3 is odd$"):
    fields.fit("x", [2, 3], kind)


def test_messages_are_short():
  for value in ("a" * 10**5, 10**5000, [0] * 10**5):
    with pytest.raises(SettingError) as caught:
      fields.fit("x", value, bool)
    assert len(str(caught.value)) < 200


@fields.checked
@dataclasses.dataclass(frozen=True)
class Settings:
  name: str
  sizes: Sequence[int] = (1,)

  def __post_init__(self):
    assert isinstance(self.sizes, tuple)


@fields.checked
def work(size: fields.Positive, *more, scale: float = 1.0, **rest: int):
  return size, more, scale, rest


def test_what_is_checked_stays_what_it_was():
  assert Settings("a", [2, 3]) == Settings("a", (2, 3))
  assert dataclasses.replace(Settings("a"), sizes=[4]).sizes == (4,)
  assert work(2, "any", scale=0.5, a=1) == (2, ("any",), 0.5, {"a": 1})
  # gin reads the signature of the function itself.
  assert "scale" in inspect.getfullargspec(work).kwonlyargs
  assert "sizes" in inspect.getfullargspec(Settings.__init__).args
  for owner, wrong in (
    (Settings, lambda: Settings(5)),
    (work, lambda: work(0)),
    (work, lambda: work(1, scale="2")),
  ):
    with pytest.raises(SettingError) as caught:
      wrong()
    assert caught.value.owner is owner
  with pytest.raises(TypeError, match="missing 1 required"):
    work()


@dataclasses.dataclass(frozen=True)
class Part:
  at: dict[int, float]
  few: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Whole:
  label: str
  part: Part | None = None


def test_a_dataclass_is_built_of_json():
  values = fields.of_json(
    '{"label": "a", "part": {"at": {"2": 1}, "few": [3]}}'
  )
  assert fields.build(Whole, values) == Whole("a", Part({2: 1}, (3,)))
  assert fields.build(Whole, {"label": "a", "part": None}) == Whole("a")
  for wrong, message in (
    ([], "wanted an object"),
    ({}, "missing label"),
    ({"label": "a", "more": 1}, "unknown more"),
    ({"label": 5}, "label is 5"),
    ({"label": "a", "part": {}}, "part: missing at"),
    ({"label": "a", "part": {"at": {"a": 1}}}, "part.at is"),
    ({"label": "a", "part": {"at": {}, "few": ["1"]}}, "part.few is"),
  ):
    with pytest.raises(ValueError, match=message):
      fields.build(Whole, wrong)
  with pytest.raises(ValueError, match="nested too deep"):
    fields.of_json("[" * 100_000)
