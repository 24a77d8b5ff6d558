"""Colour, marker and dashes of each method, the same in every figure."""

import functools
import io
from typing import NamedTuple

from speccascade.decoding.laws.sampling import SamplingSettings
from speccascade.decoding.programs.methods import METHODS
from speccascade.settings.fields import names_of

# The methods of a family take these in turn, from the family's own marker and
# the solid line on. So methods can be distinguished without colours.
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*", "<", ">", "p", "h")
_SHADES = (1.0, 0.72, 0.48)
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))


def pyplot():
  """Returns pyplot, set to draw files; equal rows give equal bytes."""
  import matplotlib

  matplotlib.use("Agg")
  # The ids in an SVG depend on its content alone.
  matplotlib.rcParams["svg.hashsalt"] = "speccascade"
  # A text then has the same width at every resolution: that of the layout, that
  # of a PNG and that of an SVG.
  matplotlib.rcParams["text.hinting"] = "none"
  from matplotlib import pyplot as plt

  return plt


def file_bytes(figure, kind: str, dpi: float | str = 150) -> bytes:
  """Returns a figure as the content of a file.

  Args:
    figure: matplotlib's Figure.
    kind: "png" or "svg".
    dpi: of a PNG, and of the cells of an SVG; "figure" takes the figure's own.
  """
  file = io.BytesIO()
  # An SVG has no date, so that equal rows give equal files.
  metadata = {"Date": None} if kind == "svg" else None
  figure.savefig(file, format=kind, dpi=dpi, metadata=metadata)
  return file.getvalue()


class MethodFamily(NamedTuple):
  """Methods that are drawn in one colour.

  Attributes:
    name: the family's name in the legend.
    colour: a colour of Okabe and Ito's palette, which the colour-blind can tell
      apart.
    marker: the marker of the family's first method.
    prefixes: the beginnings of the methods' names.
  """

  name: str
  colour: str
  marker: str
  prefixes: tuple[str, ...]


FAMILIES = (
  MethodFamily(
    name="one model",
    colour="#000000",
    marker="X",
    prefixes=("drafter", "verifier"),
  ),
  MethodFamily(
    name="speculative, lossless",
    colour="#0072b2",
    marker="o",
    prefixes=("spec_decode", "cascade_drafting"),
  ),
  MethodFamily(
    name="speculative, lossy",
    colour="#56b4e9",
    marker="s",
    prefixes=(
      "spec_decode_lossy",
      "mentored",
      "cactus",
      "bild",
      "ensemble",
      "lenient",
    ),
  ),
  MethodFamily(
    name="speculative cascade",
    colour="#d55e00",
    marker="^",
    prefixes=("spec_cascade",),
  ),
  MethodFamily(
    name="speculative cascade, token rule",
    colour="#e69f00",
    marker="v",
    prefixes=(
      "spec_cascade_token",
      "spec_cascade_typical",
      "spec_cascade_top_k",
      "spec_cascade_min2",
    ),
  ),
  MethodFamily(
    name="sequential cascade",
    colour="#009e73",
    marker="D",
    prefixes=("token_cascade", "seq_cascade"),
  ),
  MethodFamily(
    name="oracle (not a fast method)",
    colour="#cc79a7",
    marker="P",
    prefixes=("oracle",),
  ),
)
# The name of a user's own rule says nothing: it is drawn as a cascade.
_DEFAULT_FAMILY = [each.name for each in FAMILIES].index("speculative cascade")


def family(method: str) -> int:
  """Returns the index in `FAMILIES` of a method's family.

  The family is the one with the longest prefix that fits.
  """
  best, longest = _DEFAULT_FAMILY, 0
  for number, candidate in enumerate(FAMILIES):
    for prefix in candidate.prefixes:
      if method.startswith(prefix) and len(prefix) > longest:
        best, longest = number, len(prefix)
  return best


class Style(NamedTuple):
  """How a method is drawn, in matplotlib's words.

  Attributes:
    color: the colour of the line and of its markers.
    marker: the marker of the points.
    linestyle: the dashes of the line.
  """

  color: str
  marker: str
  linestyle: str | tuple


def _shade(colour: str, share: float) -> str:
  """Returns a colour mixed with black, by its share of what is left."""
  parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
  return "#" + "".join(f"{round(part * share):02x}" for part in parts)


@functools.cache
def style(method: str) -> Style:
  """Returns a method's style.

  Methods of one family share a hue, and differ in marker and dashes; three
  neighbours of the table have three shades. A baseline, as "verifier, top_p",
  has the colour of its method.
  """
  number = family(method)
  members = [name for name in METHODS if family(name) == number]
  _, _, setting = method.partition(", ")
  members += names_of(SamplingSettings)
  method = setting or method
  place = members.index(method) if method in members else len(members)
  start = _MARKERS.index(FAMILIES[number].marker)
  # The second time round the markers come with other dashes.
  dashes = place + place // len(_MARKERS)
  colour = FAMILIES[number].colour
  if method in METHODS and not setting:
    colour = _shade(colour, _SHADES[place % len(_SHADES)])
  return Style(
    colour,
    _MARKERS[(start + place) % len(_MARKERS)],
    _DASHES[dashes % len(_DASHES)],
  )
