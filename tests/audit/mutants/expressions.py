"""Finds code by the name of its function and by its syntax tree.

Formatting, comments, docstrings and messages around the code do not matter.
"""

import ast
from collections.abc import Iterator, Sequence
import contextlib
import functools
import textwrap


def replaced(text: str, scope: str, old: str, new: str) -> str:
  """Returns a module's text with one piece of code replaced.

  Args:
    text: the module's text.
    scope: the name of a function, class or assigned name of the module, with
      those around it, as in "Class.method". "module" is the whole module.
    old: one expression, keyword arguments of a call, or statements.
    new: what replaces it; "" in place of statements is `pass`.

  Raises:
    ValueError: the scope or the code is not there exactly once.
  """
  scopes = list(_scopes(_parsed(text), scope))
  if len(scopes) != 1:
    raise ValueError(f"has {len(scopes)} of the name {scope}, wanted one")
  spans = list(dict.fromkeys(_spans(scopes[0], old)))
  if len(spans) != 1:
    raise ValueError(f"has {len(spans)} times in {scope}, wanted once: {old!r}")
  first, last = spans[0]
  data = text.encode()
  starts = [0]
  for line in data.splitlines(keepends=True):
    starts.append(starts[-1] + len(line))
  begin = starts[first.lineno - 1] + first.col_offset
  end = starts[last.end_lineno - 1] + last.end_col_offset
  if isinstance(first, ast.stmt):
    lines = textwrap.dedent(new or "pass").split("\n")
    new = f"\n{' ' * first.col_offset}".join(lines)
  return (data[:begin] + new.encode() + data[end:]).decode()


_parsed = functools.cache(ast.parse)


def _named(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
  """Yields the nodes with a name directly inside of a scope."""
  stack = list(ast.iter_child_nodes(node))
  while stack:
    child = stack.pop(0)
    if isinstance(child, ast.FunctionDef | ast.ClassDef):
      yield child, child.name
    elif isinstance(node, ast.Module) and isinstance(child, ast.Assign):
      for target in child.targets:
        if isinstance(target, ast.Name):
          yield child, target.id
    else:
      stack = [*ast.iter_child_nodes(child), *stack]


def _scopes(tree: ast.Module, name: str) -> Iterator[ast.AST]:
  """Yields the nodes that have a name."""
  nodes = [tree]
  if name != "module":
    for part in name.split("."):
      nodes = [x for node in nodes for x, its in _named(node) if its == part]
  yield from nodes


def _spans(scope: ast.AST, code: str) -> Iterator[tuple[ast.AST, ast.AST]]:
  """Yields (first node, last node) of each place that has the code."""
  with contextlib.suppress(SyntaxError):
    body = ast.parse(textwrap.dedent(code)).body
    if len(body) == 1 and isinstance(body[0], ast.Expr):
      # An expression; several are arguments, as below.
      if not isinstance(body[0].value, ast.Tuple) or code[0] == "(":
        yield from _runs([[x] for x in _nodes(scope)], [body[0].value])
        return
    else:
      lists = [x for x in _lists(scope) if x and isinstance(x[0], ast.stmt)]
      yield from _runs(lists, body)
  with contextlib.suppress(SyntaxError):
    call = ast.parse(f"_({code})", mode="eval").body
    if isinstance(call, ast.Call):
      lists = [x for x in _lists(scope) if x and isinstance(x[0], ast.expr)]
      calls = [x for x in _nodes(scope) if isinstance(x, ast.Call)]
      lists = [*lists, *([*x.args, *x.keywords] for x in calls)]
      yield from _runs(lists, [*call.args, *call.keywords])


def _nodes(scope: ast.AST) -> list[ast.AST]:
  """Returns the expressions in a scope."""
  return [x for x in ast.walk(scope) if isinstance(x, ast.expr)]


def _lists(scope: ast.AST) -> list[list]:
  """Returns the lists of nodes in a scope, such as bodies and arguments."""
  fields = (x for node in ast.walk(scope) for _, x in ast.iter_fields(node))
  return [x for x in fields if isinstance(x, list)]


def _runs(
  lists: Sequence[list], want: Sequence[ast.AST]
) -> Iterator[tuple[ast.AST, ast.AST]]:
  """Yields the first and the last node of runs that are as wanted."""
  dumps = [ast.dump(part) for part in want]
  for nodes in lists:
    for start in range(len(nodes) - len(want) + 1):
      run = nodes[start : start + len(want)]
      are_nodes = all(isinstance(x, ast.AST) for x in run)
      if are_nodes and [ast.dump(x) for x in run] == dumps:
        yield run[0], run[-1]
