"""Shows control characters of texts in place of sending them.

Names, paths and decoded texts are data of others. An escape sequence in them
would drive a terminal, and a mark of direction would reorder what follows.
"""

import re
from typing import TypeVar

# C0 and C1 but for tab and line feed, separators of lines, marks of direction
# (embeddings, overrides, isolates), and halves of surrogate pairs.
_SENT = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
  "\ud800-\udfff]"
)
_Text = TypeVar("_Text", bound=str)


def visible(text: _Text) -> _Text:
  r"""Returns a text whose control characters are written as escapes.

  Tabs and line feeds stay. The result has the type of the text, so that
  `markupsafe.Markup` stays what it is.

  >>> visible("a\x1b[2Jb\u202ec\td")
  'a\\x1b[2Jb\\u202ec\td'
  """
  if _SENT.search(text) is None:
    return text
  return type(text)(_SENT.sub(lambda each: ascii(each[0])[1:-1], str(text)))


def one_line(text: str) -> str:
  r"""Returns a text as one line: its lines joined, control characters shown.

  >>> one_line("no model\n  at out\x1b[1m\n")
  'no model at out\\x1b[1m'
  """
  lines = (line.strip() for line in re.split("[\r\n]+", text))
  return visible(" ".join(filter(None, lines)).replace("\t", " "))
