"""The style of `token_view`: Okabe and Ito's colours, light and dark.

Every kind of token has an underline of its own, so that no kind is known by its
colour alone. Sizes are relative to the font of the page or the notebook.
`tokens.css` has the rules.
"""

import pathlib
from typing import NamedTuple


class _Theme(NamedTuple):
  """The colours of a kind of token in one theme.

  Attributes:
    tint: the ground of the token.
    line: the underline of the token.
  """

  tint: str
  line: str


class _Kind(NamedTuple):
  """How a kind of token looks.

  Attributes:
    light: the colours in the light theme.
    dark: the colours in the dark theme.
    underline: the underline's style and width.
  """

  light: _Theme
  dark: _Theme
  underline: str


class _Colour(NamedTuple):
  """A colour in both themes."""

  light: str
  dark: str


_BLUE_LIGHT = _Theme("#dbe9f6", "#0072b2")
_BLUE_DARK = _Theme("#17354d", "#56b4e9")
_KINDS = {
  "draft": _Kind(_BLUE_LIGHT, _BLUE_DARK, "solid 2px"),
  "kept": _Kind(
    _Theme("#fff1a6", "#7a6000"), _Theme("#4b4200", "#f0e442"), "solid 2px"
  ),
  "copy": _Kind(
    _Theme("#e3e4e8", "#50545c"), _Theme("#33363d", "#b4b9c2"), "dotted 4px"
  ),
  "residual": _Kind(
    _Theme("#fcdccb", "#c24f00"), _Theme("#55290d", "#ff8f52"), "double 4px"
  ),
  "bonus": _Kind(
    _Theme("#cdeee2", "#007455"), _Theme("#0d4434", "#2fc79a"), "dashed 2px"
  ),
  "seq-q": _Kind(_BLUE_LIGHT, _BLUE_DARK, "dotted 2px"),
  "seq-p": _Kind(
    _Theme("#f6dcea", "#9c3d70"), _Theme("#4a2440", "#e39bc3"), "solid 4px"
  ),
}
_PLAIN = {
  "ground": _Colour("#ffffff", "#17191d"),
  "ink": _Colour("#1c1d20", "#e9eaec"),
  "dim": _Colour("#5a5e66", "#a7acb5"),
  "edge": _Colour("#8b9099", "#7d838d"),
  "bar": _Colour("#d9dde3", "#3a4049"),
  "card": _Colour("#ffffff", "#22252b"),
}


def _variables(theme: str) -> str:
  """Returns the colours of a theme, "light" or "dark", as CSS variables."""
  values = {name: getattr(colour, theme) for name, colour in _PLAIN.items()}
  for name, kind in _KINDS.items():
    colours = getattr(kind, theme)
    values[name], values[f"{name}-line"] = colours.tint, colours.line
  return ";".join(f"--sc-{name}:{value}" for name, value in values.items())


def _kind_rule(name: str, kind: _Kind) -> str:
  """Returns the CSS rule of a kind of token."""
  line = f"{kind.underline} var(--sc-{name}-line)"
  return f".sc-{name}{{background:var(--sc-{name});border-bottom:{line}}}"


def _style() -> str:
  rules = pathlib.Path(__file__).with_name("tokens.css")
  light, dark = _variables("light"), _variables("dark")
  kinds = "".join(_kind_rule(name, kind) for name, kind in _KINDS.items())
  return (
    f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    f"{kinds}\n{rules.read_text(encoding='utf-8')}"
  )


STYLE = _style()
