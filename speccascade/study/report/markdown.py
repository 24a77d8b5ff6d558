r"""Markdown: texts that are shown as they are, and the one writer of tables.

>>> print(table(["name", "size"], [["`a`", "10"]], "lr"), end="")
| name | size |
| --- | ---: |
| `a` | 10 |
"""

from collections.abc import Iterable, Iterator, Sequence
import itertools
import re

_ELEMENT = re.compile(r"<(?=[A-Za-z/!?])")
# Between the text of a link and its address.
_LINK = re.compile(r"\](?=[(:\[])")


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


def table(
  titles: Sequence[str],
  rows: Iterable[Sequence[str]],
  alignment: str = "",
  *,
  is_padded: bool = False,
) -> str:
  r"""Returns a table.

  Args:
    titles: the headings.
    rows: the cells of each row, in Markdown; `cell_text` makes them of text.
    alignment: see `table_lines`.
    is_padded: whether cells are padded to the width of their column, for a
      terminal.

  Returns:
    The lines, each with its line feed; "" where there are no columns.

  >>> print(table(["", "n"], [["abc", "1"]], "lr", is_padded=True), end="")
  |     | n |
  | --- | : |
  | abc | 1 |
  """
  if not titles:
    return ""
  widths = None
  if is_padded:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(titles, *rows)]
  lines = table_lines(titles, rows, alignment, widths)
  return "".join(f"{line}\n" for line in lines)


def table_lines(
  titles: Sequence[str],
  rows: Iterable[Sequence[str]],
  alignment: str = "",
  widths: Sequence[int] | None = None,
) -> Iterator[str]:
  """Yields the lines of a table; a row as soon as `rows` yields its cells.

  Args:
    titles: the headings.
    rows: the cells of each row, in Markdown; `cell_text` makes them of text.
    alignment: a letter for each column: "l" for texts, at the left, or "r" for
      numbers, at the right. All are "l" where it is left out.
    widths: of the columns. Cells are not padded where they are left out.
  """
  alignment = alignment or "l" * len(titles)
  rule_widths = widths
  if widths is None:
    widths = [0] * len(titles)
    rule_widths = [3 if letter == "l" else 4 for letter in alignment]
  rules = [
    "-" * width if letter == "l" else "-" * (width - 1) + ":"
    for letter, width in zip(alignment, rule_widths)
  ]
  for cells in itertools.chain([titles, rules], rows):
    yield _line(cells, alignment, widths)


def _line(cells: Sequence[str], alignment: str, widths: Sequence[int]) -> str:
  """Returns a line of a table."""
  padded = (
    cell.ljust(width) if letter == "l" else cell.rjust(width)
    for cell, letter, width in zip(cells, alignment, widths, strict=True)
  )
  return f"| {' | '.join(padded)} |"
