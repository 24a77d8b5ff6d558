"""SIGTERM and Ctrl-C, turned into a request that a loop can look at."""

from collections.abc import Iterator
import contextlib
import dataclasses
import signal
import threading


@dataclasses.dataclass
class Stop:
  """Whether to stop, and why.

  Attributes:
    signal: number of the signal received, or None.
  """

  signal: int | None = None

  def __bool__(self) -> bool:
    return self.signal is not None

  @property
  def name(self) -> str:
    """The signal's name, e.g. "SIGTERM"."""
    return signal.Signals(self.signal).name

  @property
  def exit_code(self) -> int:
    """What a shell shows of a process that this signal ended."""
    return 128 + self.signal


@contextlib.contextmanager
def caught() -> Iterator[Stop]:
  """Gives a `Stop` that the first SIGTERM or SIGINT sets.

  A second one does what it does by default. Outside the main thread, where
  Python allows no handlers, nothing is caught.
  """
  stop = Stop()
  if threading.current_thread() is not threading.main_thread():
    yield stop
    return
  before = {
    number: signal.getsignal(number)
    for number in (signal.SIGTERM, signal.SIGINT)
  }

  def handle(number, frame):
    del frame
    stop.signal = number
    for other, handler in before.items():
      signal.signal(other, handler)

  for number in before:
    signal.signal(number, handle)
  try:
    yield stop
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
