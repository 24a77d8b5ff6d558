"""Renders chat templates: messages become the prompt of a chat model.

A template is a program that comes with a model. So it runs in jinja's immutable
sandbox, with plain data alone: it cannot read attributes that begin with an
underscore, and cannot call methods that change data. All its loops together end
after `MOST_TURNS` turns, a product of a text and a number ends at
`MOST_CHARACTERS`, and a recursion ends at Python's limit. Filters that pad or
replace (`center`, `replace`) have no bound, so that a hostile template can
still fill the memory.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import functools
import json

from speccascade.settings import fields

MOST_TURNS = 1_000_000  # of all loops of a rendering together
MOST_CHARACTERS = 1 << 24  # of a prompt, and of a product of text and number


class ChatError(ValueError):
  """A chat template that is wrong, or messages that it cannot render."""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  r"""A chat template, which is compiled when it is first used.

  Attributes:
    source: the template in jinja. It may use the helpers of Hugging Face:
      `raise_exception`, `strftime_now`, `tojson`, loop controls and
      `{% generation %}`.
    tokens: {"bos_token": text, ...}, special tokens that the template writes.
    name: the template's name in messages of errors.

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
      messages: objects of JSON with "role" and "content".
      add_generation_prompt: whether the text ends where the assistant begins.
      **variables: further variables of the template, as JSON values, such as
        enable_thinking=False of Qwen3 or date_string="26 Jul 2024" of Llama 3.

    Raises:
      ChatError: the template is broken, refuses the messages, or does
        something that the sandbox forbids.
    """
    context = {
      "messages": check_messages(messages),
      "tools": None,
      "documents": None,
    }
    context |= {"add_generation_prompt": add_generation_prompt, **self.tokens}
    try:
      compiled = _compile(self.source)
      compiled.environment.turns = 0
      # A copy of plain data, of which a template can use no Python object.
      context |= json.loads(json.dumps(variables))
      parts, size = [], 0
      for part in compiled.generate(context):
        parts.append(part)
        size += len(part)
        if size > MOST_CHARACTERS:
          raise ChatError(f"writes over {MOST_CHARACTERS:,} characters")
      text = "".join(parts)
      if not fields.is_utf8(text):
        raise ChatError("writes half of a surrogate pair, which UTF-8 has not")
    except Exception as error:  # a template may raise any error of Python
      reason = " ".join(str(error).split()) or type(error).__name__
      line = getattr(error, "lineno", None)
      where = f", line {line}" if line else ""
      raise ChatError(f"{self.name}{where}: {reason:.200}") from error
    return text


def check_messages(messages) -> list[dict]:
  """Returns a copy of messages as plain data, after checking them.

  A content in parts, [{"type": "text", "text": ...}, ...], becomes one text,
  since templates of text models take no parts: the parts are joined by line
  breaks. A message with tool calls needs no content; it is None then, as in
  answers of chat services.

  Raises:
    ChatError: the messages are no list of objects with a text "role" and a
      "content", there are none, a part is no text, or JSON or UTF-8 cannot hold
      them.
  """
  is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
  if not is_list or not messages or not all(map(_is_message, messages)):
    raise ChatError(
      f"messages are {messages!r:.60}; wanted a list of objects with"
      ' "role" and "content" (or "tool_calls")'
    )
  try:
    plain = [
      {**message, "content": _joined(message.get("content"))}
      for message in messages
    ]
    text = json.dumps(plain, ensure_ascii=False)
  except (TypeError, RecursionError) as error:
    raise ChatError(f"messages are no JSON: {error}") from error
  if not fields.is_utf8(text):
    raise ChatError(
      f"messages are {messages!r:.60}, with half of a surrogate pair; wanted"
      " whole characters, as UTF-8 has them"
    )
  return json.loads(text)


def _is_message(message) -> bool:
  """Returns whether a message has a text "role" and a "content"."""
  if not isinstance(message, Mapping):
    return False
  has_content = "content" in message or message.get("tool_calls")
  return isinstance(message.get("role"), str) and bool(has_content)


def _joined(content):
  """Returns a content in parts as one text, and any other as it is.

  Raises:
    ChatError: a part is no text.
  """
  if not isinstance(content, list | tuple):
    return content
  texts = []
  for part in content:
    text = part.get("text") if isinstance(part, Mapping) else part
    kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
    if kind != "text" or not isinstance(text, str):
      raise ChatError(
        f"a part of a message is {part!r:.60}; only texts are read:"
        ' {"type": "text", "text": ...}'
      )
    texts.append(text)
  return "\n".join(texts)


def format_messages(text: str | Sequence[Mapping]) -> str:
  r"""Returns a text as it is, or a conversation as one text for records.

  A conversation of one message is the message's content. Tool calls are written
  as JSON.

  >>> format_messages([{"role": "user", "content": "Hello"}])
  'Hello'
  >>> system = {"role": "system", "content": "Be brief."}
  >>> format_messages([system, {"role": "user", "content": "Hello"}])
  'system: Be brief.\nuser: Hello'
  """
  if isinstance(text, str):
    return text
  if len(text) == 1:
    return _content(text[0])
  lines = [f"{message['role']}: {_content(message)}" for message in text]
  return "\n".join(lines)


def _content(message: Mapping) -> str:
  """Returns the content of a message for records."""
  content = _joined(message.get("content"))
  calls = message.get("tool_calls")
  if not calls:
    return str(content)
  calls = json.dumps(calls, ensure_ascii=False, default=list)
  return f"{content} {calls}" if content else calls


@functools.lru_cache(maxsize=16)
def _compile(source: str):
  """Returns a template of jinja, compiled once for each source."""
  return _environment().from_string(source)


def _result_size(operator: str, left, right) -> float:
  """Returns an upper bound of the size of a product or power.

  The size of a text is its characters, and the size of a power its bits. The
  product of two numbers is not bounded, and has the size 0.

  Args:
    operator: "*" or "**".
    left: the left operand.
    right: the right operand.
  """
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
          raise ChatError(f"loops over {MOST_TURNS:,} turns")
        yield value

    def call_binop(self, context, operator, left, right):
      """Returns a product or power, if it is not too large."""
      if _result_size(operator, left, right) > MOST_CHARACTERS:
        raise ChatError(f"{operator} makes over {MOST_CHARACTERS:,} characters")
      return super().call_binop(context, operator, left, right)

  class Namespace(jinja2.utils.Namespace):
    """A namespace that refuses names that begin with an underscore."""

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
