"""The templates of reports: pages of HTML and Markdown, and sentences."""

import pathlib

import jinja2

# Values are escaped in HTML alone. A name that a template lacks is an error.
ENVIRONMENT = jinja2.Environment(
  loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
  autoescape=jinja2.select_autoescape(["html"]),
  trim_blocks=True,
  lstrip_blocks=True,
  undefined=jinja2.StrictUndefined,
)


def _upper_first(text: str) -> str:
  """Returns a clause as the beginning of a sentence."""
  return text[:1].upper() + text[1:]


ENVIRONMENT.filters["upper_first"] = _upper_first


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
