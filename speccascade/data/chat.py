"""Chat templates: messages to the text that a model was trained to go on from.

A template is a program that came with a model, so it runs in jinja's immutable
sandbox: no attribute that begins with an underscore, no method that changes
what it is given, only plain data. Its loops end after `MOST_TURNS` turns in
all, a product of texts at `MOST_CHARACTERS`, a recursion at Python's limit. Not
bounded are filters that pad or replace (`center`, `replace`): a template that
wants to fill the memory still can.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import functools
import json

from speccascade.settings import fields

MOST_TURNS = 1_000_000  # of all loops of a rendering
MOST_CHARACTERS = 1 << 24  # of a prompt, and of a text times a number


class ChatError(ValueError):
  """A chat template, or messages, that give no prompt."""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  r"""A template, compiled when it is first used.

  Attributes:
    source: in jinja, with the helpers of Hugging Face: `raise_exception`,
      `strftime_now`, `tojson`, loop controls, `{% generation %}`.
    tokens: {"bos_token": text, ...}, which templates write.
    name: what a message calls it.

  >>> template = ChatTemplate(
  ...   "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
  ...   "{% if add_generation_prompt %}[assistant]{% endif %}"
  ... )
  >>> template.render([{"role": "user", "content": "Hello"}])
  '[user] Hello\n[assistant]'
  """

  source: str
  tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
  name: str = "the chat template"

  def render(
    self,
    messages: Sequence[Mapping],
    *,
    add_generation_prompt: bool = True,
    **variables,
  ) -> str:
    """Returns the text of a conversation.

    Args:
      messages: {"role", "content"} each, as JSON.
      add_generation_prompt: end where the assistant is to speak.
      **variables: what the template reads besides, as JSON, such as Qwen3's
        enable_thinking=False or Llama 3's date_string="26 Jul 2024".

    Raises:
      ChatError: the template is broken, refuses the messages, or reaches for
        what the sandbox keeps from it.
    """
    context = {
      "messages": check_messages(messages),
      "tools": None,
      "documents": None,
    }
    context |= {"add_generation_prompt": add_generation_prompt, **self.tokens}
    try:
      compiled = _compiled(self.source)
      compiled.environment.turns = 0
      context |= json.loads(json.dumps(variables))
      parts, size = [], 0
      for part in compiled.generate(context):
        parts.append(part)
        if (size := size + len(part)) > MOST_CHARACTERS:
          raise ChatError(f"writes over {MOST_CHARACTERS:,} characters")
      text = "".join(parts)
      if not fields.is_utf8(text):
        raise ChatError("writes half of a surrogate pair, which UTF-8 has not")
    except Exception as error:
      said = " ".join(str(error).split()) or type(error).__name__
      line = getattr(error, "lineno", None)
      where = f", line {line}" if line else ""
      raise ChatError(f"{self.name}{where}: {said:.200}") from error
    return text


def check_messages(messages) -> list[dict]:
  """Returns messages as plain data of their own.

  Raises:
    ChatError: they are not one object or more with the text "role" each, or
      hold what JSON or UTF-8 cannot.
  """
  is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
  for message in messages if is_list else ():
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str) or "content" not in message:
      is_list = False
  if not is_list or not messages:
    raise ChatError(
      f"messages are {messages!r:.60}; wanted a list of objects with"
      ' "role" and "content"'
    )
  try:
    plain = [dict(message) for message in messages]
    text = json.dumps(plain, ensure_ascii=False)
  except (TypeError, ValueError, RecursionError) as error:
    raise ChatError(f"messages are no JSON: {error}") from error
  if not fields.is_utf8(text):
    raise ChatError(
      f"messages are {messages!r:.60}, with half of a surrogate pair; wanted"
      " whole characters, as UTF-8 has them"
    )
  return json.loads(text)


def format_messages(text: str | Sequence[Mapping]) -> str:
  r"""Returns a text, or a conversation as records show it.

  >>> format_messages([{"role": "user", "content": "Hello"}])
  'Hello'
  >>> system = {"role": "system", "content": "Be brief."}
  >>> format_messages([system, {"role": "user", "content": "Hello"}])
  'system: Be brief.\nuser: Hello'
  """
  if isinstance(text, str):
    return text
  if len(text) == 1:
    return str(text[0]["content"])
  return "\n".join(f"{each['role']}: {each['content']}" for each in text)


@functools.lru_cache(maxsize=16)
def _compiled(source: str):
  return _environment().from_string(source)


@functools.cache
def _environment():
  """Returns jinja's sandbox as Hugging Face sets it up, with bounds."""
  import jinja2
  from jinja2 import ext, nodes, sandbox

  class GenerationTag(ext.Extension):
    """`{% generation %}`, which marks what the assistant wrote."""

    tags = frozenset(["generation"])

    def parse(self, parser):
      lineno = next(parser.stream).lineno
      body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
      return nodes.Scope(body, lineno=lineno)

  class Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """Counts the turns of all loops."""

    intercepted_binops = frozenset(["*", "**"])
    turns = 0

    def _parse(self, source, name, filename):
      tree = super()._parse(source, name, filename)
      for loop in list(tree.find_all(nodes.For)):
        call = (loop.iter, "counted", [], [], None, None)
        loop.iter = nodes.Filter(*call, lineno=loop.lineno)
      return tree

    def counted(self, values):
      for value in values:
        self.turns += 1
        if self.turns > MOST_TURNS:
          raise ChatError(f"loops over {MOST_TURNS:,} turns")
        yield value

    def call_binop(self, context, operator, left, right):
      numbers = isinstance(left, int | float), isinstance(right, int | float)
      if operator == "*" and not all(numbers):
        text, times = (right, left) if numbers[0] else (left, right)
        size = len(text) * times if any(numbers) else 0
      else:  # the digits of a power
        size = abs(right) * (left.bit_length() if left is int(left) else 1)
        size *= operator == "**"
      if size > MOST_CHARACTERS:
        raise ChatError(f"{operator} makes over {MOST_CHARACTERS:,} characters")
      return super().call_binop(context, operator, left, right)

  class Namespace(jinja2.utils.Namespace):
    """One that takes no name of Python's own."""

    def __setitem__(self, name, value):
      if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"{name!r} in a namespace")
      super().__setitem__(name, value)

  def raise_exception(message):
    raise ChatError(message)

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
