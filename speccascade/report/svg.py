"""A matplotlib figure as part of a page: follows its fonts and colours."""

import html
import io
import re

from speccascade.report import figures, styles

_FONT = re.compile(r"font-family: [^;\"]*")
_SIZE = re.compile(r'\s(width|height)="[^"]*"')


def inline(figure, tips: dict[str, str], name: str, label: str) -> str:
  """Returns an svg element; closes the figure.

  Args:
    figure: to show.
    tips: by gid of its artists, shown when they are pointed at.
    name: starts all ids, which are unique in a page then.
    label: what it shows, for those who do not see it.
  """
  plt = figures.pyplot()
  file = io.StringIO()
  with plt.rc_context({"svg.fonttype": "none"}):
    figure.savefig(
      file, format="svg", transparent=True, metadata={"Date": None}
    )
  plt.close(figure)
  text = file.getvalue()
  text = text[text.index("<svg") :]
  text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
  text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
  head, rest = text.split(">", 1)
  head = _SIZE.sub("", head)
  text = f'{head} role="img" aria-label="{html.escape(label)}">{rest}'
  for gid, tip in tips.items():
    mark = f'<g id="{gid}">'
    said = html.escape(tip)
    text = text.replace(
      mark, f'<g id="{gid}" class="point"><title>{said}</title>', 1
    )
  text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", text)
  text = _FONT.sub("font-family: system-ui, sans-serif", text)
  for number, family in enumerate(styles.FAMILIES):
    text = text.replace(family.colour, f"var(--family-{number})")
  return text
