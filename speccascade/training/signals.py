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
  numbers = (signal.SIGTERM, signal.SIGINT)
  before = {number: signal.getsignal(number) for number in numbers}

  def restore():
    for number, handler in before.items():
      signal.signal(number, handler)

  def handle(number, frame):
    del frame
    stop.signal = number
    restore()

  for number in numbers:
    signal.signal(number, handle)
  try:
    yield stop
  finally:
    restore()
