"""Matplotlib figures as files, and as part of a page."""

import html
import io
import os
import re

from speccascade import files
from speccascade.report.styles import FAMILIES


def pyplot():
  """Returns pyplot, drawing to files, the same bytes from the same rows."""
  import matplotlib

  matplotlib.use("Agg")
  matplotlib.rcParams["svg.hashsalt"] = "speccascade"  # ids by content
  from matplotlib import pyplot as plt

  return plt


def save(figure, path: str | os.PathLike):
  """Writes `path`.png and `path`.svg, each whole or not at all; closes it."""
  for kind in ("png", "svg"):
    # No date: the same rows give the same file.
    metadata = {"Date": None} if kind == "svg" else None
    with files.whole(f"{os.fspath(path)}.{kind}", "wb") as file:
      figure.savefig(file, format=kind, dpi=150, metadata=metadata)
  pyplot().close(figure)


def inline(figure, tips: dict[str, str], name: str, label: str) -> str:
  """Returns an svg element of a page's fonts and colours; closes the figure.

  Args:
    figure: to show.
    tips: by gid of its artists, shown when they are pointed at.
    name: starts all ids, which are unique in a page then.
    label: what it shows, for those who do not see it.
  """
  plt, file = pyplot(), io.StringIO()
  metadata = {"Date": None}
  with plt.rc_context({"svg.fonttype": "none"}):
    figure.savefig(file, format="svg", transparent=True, metadata=metadata)
  plt.close(figure)
  text = file.getvalue()
  text = text[text.index("<svg") :]
  for left_out in (r"<metadata>.*?</metadata>\s*", r"<!--.*?-->\s*"):
    text = re.sub(left_out, "", text, flags=re.DOTALL)
  head, rest = text.split(">", 1)
  head = re.sub(r'\s(width|height)="[^"]*"', "", head)
  text = f'{head} role="img" aria-label="{html.escape(label)}">{rest}'
  for gid, tip in tips.items():
    point = f'<g id="{gid}" class="point"><title>{html.escape(tip)}</title>'
    text = text.replace(f'<g id="{gid}">', point, 1)
  text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", text)
  font = "font-family: system-ui, sans-serif"
  text = re.sub(r"font-family: [^;\"]*", font, text)
  for number, family in enumerate(FAMILIES):
    text = text.replace(family.colour, f"var(--family-{number})")
  return text
