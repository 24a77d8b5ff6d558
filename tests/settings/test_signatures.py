"""Functions that take the fields of records by name."""

from collections.abc import Mapping
import dataclasses
import inspect
from typing import Annotated

import pytest

from speccascade.settings import fields
from speccascade.settings.signatures import describe_fields, select, takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
  """How to draw.

  Attributes:
    color: of the line,
      as a name.
    width: of the line.

  Raises:
    width: not an attribute.
  """

  color: str = "black"
  width: Annotated[float, fields.Bounds(0)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawings(Drawing):
  """How to draw several lines.

  Attributes:
    width: of each line.
    names: of the lines.
  """

  width: float = 2.0
  names: Mapping = dataclasses.field(default_factory=dict)


@takes(Drawings, without=("names",))
def draw(places, color="red", **settings):
  """Draws.

  Args:
    places: of points.
    color: of points.
    **settings: the fields of `Drawings`,
      and no others.

  Returns:
    Nothing.
  """
  return places, color, settings


def test_descriptions_are_read_from_the_docstrings_of_all_classes():
  assert describe_fields(Drawing) == {
    "color": "of the line,\n    as a name.",
    "width": "of the line.",
  }
  assert describe_fields(Drawings) == {
    **describe_fields(Drawing),
    "width": "of each line.",
    "names": "of the lines.",
  }


def test_a_function_shows_the_fields_that_it_takes():
  assert str(inspect.signature(draw)) == (
    "(places, color='red', *, width: float = 2.0)"
  )
  assert inspect.getdoc(draw) == (
    "Draws.\n\nArgs:\n  places: of points.\n  color: of points.\n"
    "  width: of each line.\n\nReturns:\n  Nothing."
  )
  keywords = inspect.signature(takes(Drawing, Drawings)(draw)).parameters
  assert keywords["names"].default == {}
  required = inspect.signature(takes(Drawing)(lambda **more: more)).parameters
  assert required["width"].default is inspect.Parameter.empty


def test_a_call_gets_the_fields_and_refuses_other_names():
  assert draw([1], width=3.0) == ([1], "red", {"width": 3.0})
  with pytest.raises(fields.SettingError) as caught:
    draw([1], wdth=3.0)
  assert str(caught.value) == (
    "wdth is not a setting of draw; did you mean width"
  )
  with pytest.raises(ValueError, match="names is not a setting of"):
    draw([1], names={})


def test_settings_of_a_record_are_selected():
  settings = {"width": 1.0, "max_len": 3}
  assert select(settings, Drawing) == {"width": 1.0}
