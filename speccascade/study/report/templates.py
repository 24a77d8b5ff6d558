"""How a report prints numbers and texts, and the templates that do."""

from collections.abc import Mapping
import math
import pathlib
import re
import types

import jinja2

from speccascade.runtime import shown_text
from speccascade.study.report.frontier import IntervalEstimate

NOTHING = "-"
NEVER = {math.inf: "never", -math.inf: "never"}
_ELEMENT = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(
  r"\](?=[(:\[])"
)  # between the text of a link and its address
_PLAIN = types.MappingProxyType({})
# Values are escaped in HTML alone. A name that a template lacks is an error.
ENVIRONMENT = jinja2.Environment(
  loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
  autoescape=jinja2.select_autoescape(["html"]),
  trim_blocks=True,
  lstrip_blocks=True,
  undefined=jinja2.StrictUndefined,
  # Names, labels and texts may have escape sequences and marks of direction.
  finalize=lambda value: (
    shown_text.visible(value) if isinstance(value, str) else value
  ),
)


def format_number(
  value,
  digits: int | None = None,
  special: Mapping[float, str] = _PLAIN,
  sign: str = "",
) -> str:
  """Returns a number as a table prints it, `NOTHING` where there is none.

  Args:
    value: a number, None, or anything that is printed as it is.
    digits: digits after the point; None prints the value as it is.
    special: texts of values that are no plain number.
    sign: "+" gives positive numbers their sign too.

  >>> format_number(1.25, 1), format_number(2.0, 1, sign="+")
  ('1.2', '+2.0')
  >>> format_number(None), format_number(-math.inf, 1)
  ('-', '-')
  >>> format_number(-math.inf, 1, NEVER)
  'never'
  """
  if isinstance(value, float) and value in special:
    return special[value]
  if value is None or (isinstance(value, float) and not math.isfinite(value)):
    return NOTHING
  return str(value) if digits is None else f"{value:{sign}.{digits}f}"


def format_estimate(
  estimate: IntervalEstimate,
  digits: int | None = None,
  special: Mapping[float, str] = _PLAIN,
  sign: str = "",
) -> str:
  """Returns an estimate as a table prints it, followed by its interval.

  Args:
    estimate: a number with or without an interval.
    digits: as in `format_number`.
    special: as in `format_number`.
    sign: as in `format_number`.

  >>> format_estimate(IntervalEstimate(0.0, 0.0, 1.5), 2, {0.0: "never"})
  'never [never, 1.50]'
  """
  value, low, high = (
    format_number(number, digits, special, sign) for number in estimate
  )
  has_ends = estimate.has_interval and not math.isnan(estimate.value)
  return f"{value} [{low}, {high}]" if has_ends else value


def printable(text: str) -> str:
  r"""Returns a text in one line, whose other characters are escaped.

  Labels and names of rows are anybody's text. Control characters would move
  the cursor of a terminal, and marks of direction would turn what follows.

  >>> printable("a\nb\x1b[2J é")
  'a\\nb\\x1b[2J é'
  """
  if text.isprintable():
    return text
  # The escape of Python, such as \n or \u202e.
  return "".join(
    letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text
  )


def markdown_text(text: str) -> str:
  """Returns a text that Markdown shows as it is, without elements or links.

  >>> markdown_text("<b>1 < 2"), markdown_text("[a](javascript:b) [1, 2]")
  ('&lt;b>1 < 2', '[a&#93;(javascript:b) [1, 2]')
  """
  # After a backslash of the text another one would be text itself.
  return _LINK.sub("&#93;", _ELEMENT.sub("&lt;", printable(text)))


def cell_text(text: str) -> str:
  r"""Returns a text as a cell of a Markdown table, whose bars end no cell.

  >>> cell_text("a|b")
  'a\\|b'
  """
  return markdown_text(text).replace("|", r"\|")


def code_span(text: str) -> str:
  """Returns a text as code within a line of Markdown, whatever it has.

  >>> code_span("GAMMA = 3"), code_span("a`b")
  ('`GAMMA = 3`', '`` a`b ``')
  """
  text = printable(text)
  longest = max(map(len, re.findall("`+", text)), default=0)
  if not longest:
    return f"`{text}`"
  fence = "`" * (longest + 1)
  return f"{fence} {text} {fence}"


def _estimate(estimate: IntervalEstimate, digits: int, sign: str = "") -> str:
  """Returns an estimate with its interval as a sentence has it."""
  return format_estimate(estimate, digits, NEVER, sign)


def _upper_first(text: str) -> str:
  """Returns a clause as the beginning of a sentence."""
  return text[:1].upper() + text[1:]


ENVIRONMENT.filters |= {
  "cell_text": cell_text,
  "code_span": code_span,
  "estimate": _estimate,
  "markdown_text": markdown_text,
  "upper_first": _upper_first,
}


def load(name: str) -> jinja2.Template:
  """Returns a template of this folder.

  Args:
    name: the name of the file.
  """
  return ENVIRONMENT.get_template(name)


def sentences(macro: str, *facts) -> list[str]:
  """Returns the sentences of a macro of sentences.txt.

  Args:
    macro: the name of the macro.
    *facts: what its sentences say.
  """
  text = getattr(load("sentences.txt").module, macro)(*facts)
  paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
  return [paragraph for paragraph in paragraphs if paragraph]


def sentence(macro: str, *facts) -> str:
  """Returns the one sentence of a macro of sentences.txt, see `sentences`."""
  (only,) = sentences(macro, *facts)
  return only
