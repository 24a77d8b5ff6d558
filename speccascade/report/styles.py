"""Colour, marker and dashes of a method: the same in every figure."""

import functools
from typing import NamedTuple

from speccascade.decoding.programs.methods import METHODS

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


_LOSSLESS = "spec_decode cascade_drafting"
_LOSSY = "spec_decode_lossy mentored bild ensemble lenient"
_BY_TOKEN = "spec_cascade_token spec_cascade_typical"
_SEQUENTIAL = "token_cascade seq_cascade"
_FAMILIES = (
  ("one model", "#000000", "#f2f2f2", "X", "drafter verifier"),
  ("speculative, lossless", "#0072b2", "#4aa8e0", "o", _LOSSLESS),
  ("speculative, lossy", "#56b4e9", "#a5dbfa", "s", _LOSSY),
  ("speculative cascade", "#d55e00", "#ff8a3d", "^", "spec_cascade"),
  ("speculative cascade, token rule", "#e69f00", "#ffc44d", "v", _BY_TOKEN),
  ("sequential cascade", "#009e73", "#3fd0a4", "D", _SEQUENTIAL),
  ("oracle (not a fast method)", "#cc79a7", "#eba3cb", "P", "oracle"),
)
FAMILIES = tuple(MethodFamily(*family) for family in _FAMILIES)
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
