"""Renders chat templates, in a process of its own.

A template is a program that comes with a model. It runs in jinja's immutable
sandbox, with plain data alone: it cannot read attributes that begin with an
underscore, and cannot call methods that change data. What a filter such as
`center`, or a text that is joined to itself, can take of memory and time is not
bounded by the sandbox. So the process is: the system ends it after `MOST_S` of
work, and gives it `MOST_BYTES` of memory at most; see `runtime.worker_main`,
which imports this file. It imports nothing of this package, so that the process
starts fast and holds little.
"""

import datetime
import functools
import json

MOST_TURNS = 1_000_000  # of all loops of a rendering together
MOST_CHARACTERS = 1 << 24  # of a prompt, and of a product of text and number
MOST_BYTES = 1 << 29  # of memory, for the whole process
MOST_S = 10  # of a processor's time, for one rendering


class _TemplateError(ValueError):
  """What a template may not do, or refuses."""


def prepare():
  """Loads jinja and makes the environment of all templates."""
  _environment()


def answer(request: dict) -> dict:
  """Returns {"text": what a template writes}.

  Args:
    request: {"source": the template, "context": its variables}.

  Returns:
    The text; or {"error": why it cannot be rendered, "line": of the template,
    or null}.
  """
  try:
    compiled = _compile(request["source"])
    compiled.environment.turns = 0
    parts, size = [], 0
    for part in compiled.generate(request["context"]):
      parts.append(part)
      size += len(part)
      if size > MOST_CHARACTERS:
        raise _TemplateError(f"writes over {MOST_CHARACTERS:,} characters")
    return {"text": "".join(parts)}
  except MemoryError:
    return {"error": "takes more memory than it may", "line": None}
  except Exception as error:  # a template may raise any error of Python
    reason = " ".join(str(error)[:1000].split()) or type(error).__name__
    line = getattr(error, "lineno", None)
    return {"error": reason[:200], "line": line}


@functools.lru_cache(maxsize=16)
def _compile(source: str):
  """Returns a template of jinja, compiled once for each source."""
  return _environment().from_string(source)


def _result_size(operator: str, left, right) -> float:
  """Returns an upper bound of the size of a product or power."""
  # The size of a text is its characters, and the size of a power its bits. The
  # product of two numbers is not bounded, and has the size 0.
  is_left_number = isinstance(left, int | float)
  is_right_number = isinstance(right, int | float)
  if operator == "*":
    if is_left_number and not is_right_number:
      return len(right) * left
    if is_right_number and not is_left_number:
      return len(left) * right
    return 0
  # jinja raises an error of its own for a power of something else.
  return abs(right) * (left.bit_length() if isinstance(left, int) else 1)


@functools.cache
def _environment():
  """Returns jinja's sandbox with the helpers of Hugging Face, and bounds."""
  import jinja2
  from jinja2 import ext, nodes, sandbox

  class GenerationTag(ext.Extension):
    """The tag `{% generation %}`, around the words of the assistant.

    Training reads it; a rendering has the words alone.
    """

    tags = frozenset(["generation"])

    def parse(self, parser):
      lineno = next(parser.stream).lineno
      body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
      return nodes.Scope(body, lineno=lineno)

  class Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """Counts the turns of all loops, and bounds products and powers."""

    intercepted_binops = frozenset(["*", "**"])
    turns = 0

    def _parse(self, source, name, filename):
      tree = super()._parse(source, name, filename)
      # {% for x in values %} becomes {% for x in values | counted %}.
      for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(
          loop.iter, "counted", [], [], None, None, lineno=loop.lineno
        )
      return tree

    def counted(self, values):
      """Yields the values of a loop, and counts its turns with all others."""
      for value in values:
        self.turns += 1
        if self.turns > MOST_TURNS:
          raise _TemplateError(f"loops over {MOST_TURNS:,} turns")
        yield value

    def call_binop(self, context, operator, left, right):
      """Returns a product or power, if it is not too large."""
      if _result_size(operator, left, right) > MOST_CHARACTERS:
        raise _TemplateError(
          f"{operator} makes over {MOST_CHARACTERS:,} characters"
        )
      return super().call_binop(context, operator, left, right)

  class Namespace(jinja2.utils.Namespace):
    """A namespace that refuses names that begin with an underscore."""

    def __setitem__(self, name, value):
      if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"{name!r} in a namespace")
      super().__setitem__(name, value)

  def raise_exception(message):
    raise _TemplateError(message)

  def tojson(
    value, ensure_ascii=False, indent=None, separators=None, sort_keys=False
  ):
    return json.dumps(
      value,
      ensure_ascii=ensure_ascii,
      indent=indent,
      separators=separators,
      sort_keys=sort_keys,
    )

  environment = Sandbox(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[GenerationTag, ext.loopcontrols],
  )
  environment.filters |= {"tojson": tojson, "counted": environment.counted}
  environment.globals |= {
    "raise_exception": raise_exception,
    "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    "namespace": Namespace,
  }
  return environment
