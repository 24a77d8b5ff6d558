"""The style and the script of the report's page.

`page.css` has the rules and `page.js` the script. The script shows the numbers
of a point and copies tables; the page can be read without it.
"""

import pathlib

from speccascade.report import styles

_FOLDER = pathlib.Path(__file__).parent
# Colours that the page needs besides the colours of `token_style`.
_LIGHT = {"warn": "#fff4d6", "edge": "#b57b00", "head": "#f3f5f8"}
_DARK = {"warn": "#3a2f10", "edge": "#e0b04a", "head": "#22252b"}


def _variables(colours: dict[str, str], families: list[str]) -> str:
  """Returns the colours of a theme as CSS variables.

  Args:
    colours: colours by name.
    families: the colour of each of `styles.FAMILIES`.
  """
  for number, colour in enumerate(families):
    colours = {**colours, f"family-{number}": colour}
  return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


def _style() -> str:
  light = _variables(_LIGHT, [family.colour for family in styles.FAMILIES])
  dark = _variables(_DARK, [family.dark for family in styles.FAMILIES])
  rules = (_FOLDER / "page.css").read_text(encoding="utf-8")
  return (
    f"\n:root{{color-scheme:light dark;{light}}}\n"
    f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n\n{rules}"
  )


STYLE = _style()
SCRIPT = (_FOLDER / "page.js").read_text(encoding="utf-8")
