"""Renders chat templates: messages become the prompt of a chat model.

A template is a program that comes with a model. So it is rendered in a process
of its own, which has a bound on its time and memory; see `chat_sandbox`. The
process is started for the first rendering, and serves all that follow.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json

from speccascade.settings import fields
from speccascade.text import chat_process


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
      ChatError: the template is broken, refuses the messages, does something
        that the sandbox forbids, or takes too much time or memory.
    """
    context = {
      "messages": check_messages(messages),
      "tools": None,
      "documents": None,
    }
    context |= {"add_generation_prompt": add_generation_prompt, **self.tokens}
    try:
      # Plain data, of which a template can use no Python object.
      text = chat_process.render(self.source, context | variables)
      if not fields.is_utf8(text):
        raise ValueError("writes half of a surrogate pair, which UTF-8 has not")
    except (ValueError, TypeError, RecursionError) as error:
      reason = " ".join(str(error).split()) or type(error).__name__
      line = getattr(error, "line", None)
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
    ChatError: the messages are not a list of objects with a string "role" and a
      "content", there are none, a part is not a string, or JSON or UTF-8 cannot
      hold them.
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
  except ChatError:
    raise
  except (TypeError, ValueError, RecursionError) as error:
    raise ChatError(f"messages are not JSON: {error}") from error
  if not fields.is_utf8(text):
    raise ChatError(
      f"messages are {messages!r:.60}, with half of a surrogate pair; wanted"
      " whole characters, as UTF-8 has them"
    )
  return json.loads(text)


def _is_message(message) -> bool:
  """Returns whether a message has a string "role" and a "content"."""
  if not isinstance(message, Mapping):
    return False
  has_content = "content" in message or message.get("tool_calls")
  return isinstance(message.get("role"), str) and bool(has_content)


def _joined(content):
  """Returns a content in parts as one text, and any other as it is."""
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
