"""The program inside an output, without what a model writes around it.

Chat models put a program in fences of Markdown, and explain it before or after
it. A model that was shown examples may write the mark [DONE] and continue with
another problem. A harness runs what it is given, so that such an output fails
however right its program is.
"""

import ast
from collections.abc import Iterator
import keyword
import re
import textwrap
import warnings

FENCE, PROSE, DONE = "fences", "prose", "[DONE]"
# The language may be followed by attributes.
_FENCE = re.compile(
  r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+#.-]*)[ \t]*(?:\{.*|\w+=.*)?"
)
_BEGIN = re.compile(r"\s*\[BEGIN\][ \t]*\n?")
# A program may hold the mark at either end of a string.
_DONE = re.compile(r"(?<![\"'])\[DONE\](?![\"'])")
_THOUGHT = "</think>"  # ends what a model says to itself
_TITLE = re.compile(r"[A-Z]\w*:\s*")  # "Example:", say
_CODE = re.compile(
  r"(async )?def \w+ *\(|class \w+|import \w|from \S+ import|@"
)
_MOST = 16  # fences that are looked at; a model may repeat itself
_PYTHON = ("", "python", "python3", "py", "py3")


def extract(text: str) -> tuple[str, frozenset[str]]:
  """Returns the program in an output, and the marks that it had.

  A text that is a program, or of which no part is, stays as it is.

  Args:
    text: the output.

  Returns:
    The program, and of `FENCE`, `PROSE` and `DONE` those that were removed.

  >>> extract("Here:\\n```python\\nx = 1\\n```\\nThis works.")[0]
  'x = 1'
  >>> extract("x = 1\\n[DONE]\\nYou are")
  ('x = 1', frozenset({'[DONE]'}))
  """
  marks = set()
  _, thought, rest = text.rpartition(_THOUGHT)
  if thought and not _is_program(text):
    marks.add(PROSE)
    text = rest.lstrip("\n")
  if done := _DONE.search(text):
    marks.add(DONE)
    text = text[: done.start()].rstrip()
  if begin := _BEGIN.match(text):
    text = text[begin.end() :]
  if _is_program(text):
    return text, frozenset(marks)
  if (inside := _in_fences(text)) is not None:
    marks.add(FENCE)
    text = inside
  if not _is_program(text) and (inside := _without_prose(text)) != text:
    marks.add(PROSE)
    text = inside
  return text, frozenset(marks)


def _in_fences(text: str) -> str | None:
  """Returns the first program in fences; None where there is no fence."""
  lines = text.splitlines()
  fences = [(i, match) for i, x in enumerate(lines) if (match := _fence(x))]
  if not fences:
    return None
  place, first = fences[0]
  before = "\n".join(lines[:place])
  # The prompt may have opened the fence that the output closes.
  if not first[3] and _has_statements(before):
    return before
  blocks = list(_blocks(lines, fences[:_MOST]))
  programs = [code for language, code in blocks if language.lower() in _PYTHON]
  return next(iter(programs), blocks[0][1])


def _fence(line: str) -> re.Match | None:
  """Returns the match of a line that opens or closes a fence, or None."""
  return _FENCE.fullmatch(line)


def _blocks(lines, fences) -> Iterator[tuple[str, str]]:
  """Yields the language and the content of each block in fences."""
  while fences:
    start, first = fences.pop(0)
    # A docstring may have fences, too: a block ends where it is a program, or
    # at the first fence that may end it.
    closing = [
      i for i, fence in fences if not fence[3] and fence[2].startswith(first[2])
    ]
    closing = closing[:_MOST] or [len(lines)]
    # Of a list's item, the whole block is indented.
    contents = [
      "\n".join(x.removeprefix(first[1]) for x in lines[start + 1 : place])
      for place in closing
    ]
    chosen = next((i for i, x in enumerate(contents) if _is_program(x)), 0)
    yield first[3], contents[chosen]
    fences = [each for each in fences if each[0] > closing[chosen]]


def _without_prose(text: str) -> str:
  """Returns a text without the sentences before and after its program."""
  lines = text.splitlines()
  codes = (i for i, line in enumerate(lines) if _CODE.match(line))
  start = next(codes, 0)
  if not all(_is_prose(line) for line in lines[:start] if line.strip()):
    start = 0
  lines = lines[start:]
  for end, line in enumerate(lines):
    if end and _is_prose(line) and _has_statements("\n".join(lines[:end])):
      return "\n".join(lines[:end]).rstrip()
  return "\n".join(lines) if start else text


def _is_prose(line: str) -> bool:
  """Returns whether a line is a sentence, and no part of a program."""
  if _TITLE.fullmatch(line):
    return True
  words = re.findall(r"[^\W\d_]+", line)
  if len(words) < 2 or line[0].isspace() or line.startswith(("#", ")", "]")):
    return False
  return not keyword.iskeyword(words[0]) and not _is_program(line)


def _has_statements(text: str) -> bool:
  """Returns whether a text is a program, and more than names and sentences."""
  body = _parse(text) or _parse(textwrap.dedent(text))
  body = body or _parse(f"if 1:\n{text}")  # the body of a function
  return any(not isinstance(each, ast.Expr) for each in body)


def _is_program(text: str) -> bool:
  """Returns whether a text can be read as a program."""
  return bool(_parse(text) or _parse(f"if 1:\n{text}"))


def _parse(text: str) -> list[ast.stmt]:
  """Returns the statements of a program; none where it is not one."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of escapes, say, in others' programs
    try:
      return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
      return []
