"""Asks the process of `chat_sandbox` to render a chat template."""

from collections.abc import Mapping
import json
import threading

from speccascade.runtime.worker_process import Worker, WorkerError
from speccascade.text import chat_sandbox

_LOCK = threading.Lock()
_running: Worker | None = None


class TemplateError(ValueError):
  """Why a template cannot be rendered.

  Attributes:
    line: the line of the template at fault, or None.
  """

  def __init__(self, reason: str, line: int | None = None):
    super().__init__(reason)
    self.line = line


def render(source: str, context: Mapping) -> str:
  """Returns what a template writes.

  Args:
    source: the template in jinja.
    context: its variables, as JSON values.

  Raises:
    TemplateError: the template is broken, refuses its variables, does what the
      sandbox forbids, or takes more time or memory than it may.
    TypeError: a variable is not a value of JSON.
  """
  global _running
  request = json.dumps({"source": source, "context": dict(context)})
  with _LOCK:
    if _running is None or not _running.is_usable:
      _running = Worker(
        chat_sandbox.__file__, chat_sandbox.MOST_S, chat_sandbox.MOST_BYTES
      )
    try:
      answer = _running.ask(request.encode())
    except WorkerError as error:
      raise TemplateError(str(error)) from error
  if "error" in answer:
    raise TemplateError(answer["error"], answer["line"])
  return answer["text"]
