"""Bars on what takes more than seconds, and what they say meanwhile.

On a terminal a bar redraws itself; in a log it is a line now and then.
"""

from collections.abc import Iterator
import contextlib
import sys
import time

from tqdm import tqdm

_EVERY_S = 15.0
_OPEN: list[tqdm] = []


class _Log:
  """A stream that is no terminal: what a bar redraws becomes lines."""

  def __init__(self, stream):
    self._stream, self._last, self._written = stream, "", -_EVERY_S

  def write(self, text: str):
    """Keeps what a bar draws; writes it if it is time, or the end."""
    self._last, now = text.strip() or self._last, time.monotonic()
    is_time = text == "\n" or now - self._written >= _EVERY_S
    if self._last and is_time:
      self.say(self._last)
      self._last, self._written = "", now

  def say(self, line: str):
    self._stream.write(line + "\n")
    self._stream.flush()

  def flush(self):
    self._stream.flush()


@contextlib.contextmanager
def bar(*, shown: bool = True, **options) -> Iterator[tqdm]:
  """Gives tqdm's bar, on which `note` writes until the block ends.

  Args:
    shown: whether it is seen.
    **options: tqdm's.
  """
  stream = sys.stderr
  if not stream.isatty():
    options |= {"file": _Log(stream), "ncols": 80, "ascii": True}
  with tqdm(disable=not shown, **options) as opened:
    _OPEN.append(opened)
    try:
      yield opened
    finally:
      _OPEN.remove(opened)


def note(text: str):
  """Says on the bar opened last, if there is one, what takes its time.

  Args:
    text: "" takes back what was said.
  """
  if _OPEN and not _OPEN[-1].disable:
    last = _OPEN[-1]
    last.set_postfix_str(text)
    say = getattr(last.fp, "say", None)
    if text and say:
      say(f"{last.desc}: {text}")
