"""Colour, marker and dashes of a method: the same in every figure."""

import functools
from typing import NamedTuple

from speccascade.decoding.methods import METHODS

# A family's first method has the first of each; all are told apart in grey too.
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*", "<", ">", "p", "h")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))


class MethodFamily(NamedTuple):
  """Methods of one colour.

  Attributes:
    name: for the legend.
    colour: of Okabe and Ito's palette, which the colour-blind can tell apart.
    dark: the same on a dark ground.
    marker: that of its first method.
    prefixes: of the methods' names, separated by blanks.
  """

  name: str
  colour: str
  dark: str
  marker: str
  prefixes: str


FAMILIES = (
  MethodFamily("one model", "#000000", "#f2f2f2", "X", "drafter verifier"),
  MethodFamily(
    *("speculative, lossless", "#0072b2", "#4aa8e0", "o"),
    "spec_decode cascade_drafting",
  ),
  MethodFamily(
    *("speculative, lossy", "#56b4e9", "#a5dbfa", "s"),
    "spec_decode_lossy mentored bild ensemble lenient",
  ),
  MethodFamily(
    *("speculative cascade", "#d55e00", "#ff8a3d", "^", "spec_cascade")
  ),
  MethodFamily(
    *("speculative cascade, token rule", "#e69f00", "#ffc44d", "v"),
    "spec_cascade_token spec_cascade_typical",
  ),
  MethodFamily(
    *("sequential cascade", "#009e73", "#3fd0a4", "D"),
    "token_cascade seq_cascade",
  ),
  MethodFamily(
    *("oracle (not a fast method)", "#cc79a7", "#eba3cb", "P", "oracle")
  ),
)
# Rules of a user's own, whose names tell nothing, are drawn as cascades.
_OTHERS = [family.name for family in FAMILIES].index("speculative cascade")


def family(method: str) -> int:
  """Returns the number of a method's family: the longest prefix that fits."""
  fits = [
    (len(prefix), number)
    for number, members in enumerate(FAMILIES)
    for prefix in members.prefixes.split()
    if method.startswith(prefix)
  ]
  return max(fits, default=(0, _OTHERS))[1]


class Style(NamedTuple):
  """How a method is drawn; the fields are matplotlib's."""

  color: str
  marker: str
  linestyle: str | tuple

  @property
  def mark(self) -> dict:
    """How its points alone are drawn."""
    size = {"markersize": 4.2, "markeredgewidth": 0, "linestyle": ""}
    return {"color": self.color, "marker": self.marker, **size}


@functools.cache
def style(method: str) -> Style:
  """Returns a method's style; within a family marker and dashes differ."""
  number = family(method)
  members = [name for name in METHODS if family(name) == number]
  place = members.index(method) if method in members else len(members)
  start = _MARKERS.index(FAMILIES[number].marker)
  return Style(
    FAMILIES[number].colour,
    _MARKERS[(start + place) % len(_MARKERS)],
    _DASHES[place % len(_DASHES)],
  )
