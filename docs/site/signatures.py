"""An extension of Griffe: docstrings and signatures as `help` shows them.

Griffe reads the source. Of a function that is decorated by `takes`, Python has
the settings where the source has `**settings`; `Pair.generate` lists them, and
what takes the same settings refers to it. A method that is defined in another
module is an attribute of its class in the source.
"""

import ast
import functools
import inspect
import pkgutil
import re
import types
import typing

import griffe

import speccascade

# What lists the settings: the others take some of them.
GENERATE = "speccascade.generate.api.pair.Pair.generate"

# A block of code in a docstring: lines indented by two, after an empty line.
_CODE = re.compile(r"(?<=\n\n)(?:  \S.*\n(?:(?:  .*)?\n)*)")
_PAGE = re.compile(r"docs/(\w+)\.md")
_SECTIONS = re.compile(r"^(?:Args|Attributes|Returns|Raises)\b.*:", re.M)
_SETTINGS = re.compile(r"^(  \*\*\w+: ).*(?:\n    .*)*", re.M)


class AsHelpShows(griffe.Extension):
  """Takes signatures and docstrings of the running package."""

  def on_class_members(self, *, cls, agent, **kwargs):
    """Replaces `method = module.function` by the function."""
    for name, member in list(cls.members.items()):
      if member.is_attribute and isinstance(member.value, griffe.ExprAttribute):
        value = getattr(pkgutil.resolve_name(cls.path), name, None)
        if isinstance(value, types.FunctionType):
          function = griffe.Function(name, lineno=member.lineno)
          cls.set_member(name, function)
          _describe(function, value, agent)

  def on_function_instance(self, *, func, agent, **kwargs):
    """Says which settings take the place of `**settings`."""
    if any(str(each.value).startswith("takes(") for each in func.decorators):
      _describe(func, pkgutil.resolve_name(func.path), agent)

  def on_class(self, *, cls, **kwargs):
    """Gives a field the type of its values, without what checks them."""
    if cls.name in speccascade._PUBLIC:
      hints = typing.get_type_hints(pkgutil.resolve_name(cls.path))
      for name, kind in hints.items():
        if name in cls.members and cls.members[name].is_attribute:
          cls.members[name].annotation = _annotation(kind)

  def on_object(self, *, obj, **kwargs):
    """Makes Markdown of a docstring."""
    if obj.docstring is not None:
      obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
  """Returns a docstring with its code fenced and pages linked."""
  text = inspect.cleandoc(text)
  section = _SECTIONS.search(text)
  head, rest = text, ""
  if section:
    head, rest = text[: section.start()], text[section.start() :]
  head = _CODE.sub(_fence, f"{head.rstrip()}\n").rstrip()
  return _PAGE.sub(r"[\g<0>](\1.md)", f"{head}\n\n{rest}".strip())


def _fence(match: re.Match) -> str:
  """Returns lines of code as a fenced block."""
  return f"```python\n{inspect.cleandoc(match[0]).rstrip()}\n```\n\n"


def _describe(function: griffe.Function, value: types.FunctionType, agent):
  """Gives a function the parameters and the docstring of the real one."""
  listing = pkgutil.resolve_name(GENERATE)
  doc = value.__doc__ or ""
  if value is not listing and hasattr(value, "__wrapped__"):
    absent = [
      f"`{name}`"
      for name in inspect.signature(listing).parameters
      if name not in inspect.signature(value).parameters
    ]
    others = f", without {', '.join(absent)}" if absent else ""
    value = inspect.unwrap(value)
    doc = _SETTINGS.sub(
      rf"\1those of [`generate`][{GENERATE}]{others}.",
      inspect.cleandoc(value.__doc__ or ""),
    )
  signature = inspect.signature(value)
  function.parameters = griffe.Parameters(
    *(_parameter(each) for each in signature.parameters.values())
  )
  function.returns = _annotation(signature.return_annotation)
  function.docstring = griffe.Docstring(
    doc,
    parent=function,
    parser=agent.docstring_parser,
    parser_options=agent.docstring_options,
  )


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
  """Returns one parameter as Griffe has it."""
  default = parameter.default
  return griffe.Parameter(
    parameter.name,
    annotation=_annotation(parameter.annotation),
    kind=griffe.ParameterKind[parameter.kind.name.lower()],
    default=None if default is inspect.Parameter.empty else repr(default),
  )


def _annotation(kind) -> str | None:
  """Returns a type as code, without the modules of its names."""
  if kind is inspect.Parameter.empty:
    return None
  text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
  tree = ast.parse(re.sub(r"\b(?:\w+\.)+(?=\w)", "", text), mode="eval")
  return ast.unparse(_Bars().visit(tree))


class _Bars(ast.NodeTransformer):
  """Writes unions with bars."""

  def visit_Subscript(self, node):
    self.generic_visit(node)
    match node:
      case ast.Subscript(ast.Name("Optional"), kind):
        return ast.BinOp(kind, ast.BitOr(), ast.Constant(None))
      case ast.Subscript(ast.Name("Union"), ast.Tuple(kinds)):
        return functools.reduce(
          lambda left, right: ast.BinOp(left, ast.BitOr(), right), kinds
        )
    return node
