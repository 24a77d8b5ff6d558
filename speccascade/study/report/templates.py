"""How a report prints numbers and texts, and the templates that do."""

from collections.abc import Mapping
import math
import pathlib
import types

import jinja2

import speccascade
from speccascade.runtime import shown_text
from speccascade.study.report import markdown
from speccascade.study.report.frontier import IntervalEstimate

NOTHING = "-"
NEVER = {math.inf: "never", -math.inf: "never"}
SENTENCES = "study/report/sentences.txt"
_PLAIN = types.MappingProxyType({})
# Values are escaped in HTML alone. A name that a template lacks is an error.
ENVIRONMENT = jinja2.Environment(
  loader=jinja2.FileSystemLoader(pathlib.Path(speccascade.__file__).parent),
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
    special: texts of values that are not plain numbers.
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


def _estimate(estimate: IntervalEstimate, digits: int, sign: str = "") -> str:
  """Returns an estimate with its interval as a sentence has it."""
  return format_estimate(estimate, digits, NEVER, sign)


def _upper_first(text: str) -> str:
  """Returns a clause as the beginning of a sentence."""
  return text[:1].upper() + text[1:]


ENVIRONMENT.filters |= {
  "cell_text": markdown.cell_text,
  "code_span": markdown.code_span,
  "estimate": _estimate,
  "markdown_text": markdown.markdown_text,
  "upper_first": _upper_first,
}
ENVIRONMENT.globals["markdown_table"] = markdown.table


def load(name: str) -> jinja2.Template:
  """Returns a template.

  Args:
    name: the path of the file, below the package `speccascade`.
  """
  return ENVIRONMENT.get_template(name)


def sentences(macro: str, *facts, file: str = SENTENCES) -> list[str]:
  """Returns the sentences of a macro.

  Args:
    macro: the name of the macro.
    *facts: what its sentences say.
    file: the file of the macro, see `load`.
  """
  text = getattr(load(file).module, macro)(*facts)
  paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
  return [paragraph for paragraph in paragraphs if paragraph]


def sentence(macro: str, *facts, file: str = SENTENCES) -> str:
  """Returns the one sentence of a macro, see `sentences`."""
  (only,) = sentences(macro, *facts, file=file)
  return only
