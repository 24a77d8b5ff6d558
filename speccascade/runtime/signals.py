"""SIGTERM and Ctrl-C, turned into a request that a loop can look at."""

from collections.abc import Iterator
import contextlib
import dataclasses
import itertools
import math
import signal
import threading

from speccascade.runtime import processes

_NUMBERS = itertools.count()
_LOOKS_S = 0.2  # between two looks at what another process was asked


@dataclasses.dataclass
class Stop:
  """Whether to stop, and why.

  Attributes:
    signal: number of the signal received, or None.
  """

  signal: int | None = None

  def __bool__(self) -> bool:
    return self.signal is not None

  def ask(self, number: int):
    """Takes a signal."""
    self.signal = number

  def close(self):
    """Takes no more."""

  @property
  def name(self) -> str:
    """The signal's name, e.g. "SIGTERM"."""
    return signal.Signals(self.signal).name

  @property
  def exit_code(self) -> int:
    """What a shell shows of a process that this signal ended."""
    return 128 + self.signal


class _JobStop(Stop):
  """A `Stop` that all processes of a job come to at the same look.

  Each counts its looks. When one was asked to stop, a thread of each says how
  many it has made, and lets it make no further one until all have said so: the
  look after the furthest is where they stop.
  """

  def __init__(self):
    super().__init__()
    self._asked, self._looks, self._stops_at = None, 0, math.inf
    self._key, self._lock = f"stop/{next(_NUMBERS)}", threading.Lock()
    self._over = threading.Event()
    threading.Thread(target=self._listen, daemon=True).start()

  def __bool__(self) -> bool:
    with self._lock:
      self._looks += not self._over.is_set()
      if self._looks >= self._stops_at:
        self.signal = self._asked
    return super().__bool__()

  def ask(self, number: int):
    """Takes a signal, which the others hear of."""
    self._asked = number

  def _listen(self):
    key = self._key
    while not self._over.wait(_LOOKS_S):
      if self._asked is not None:
        processes.set_value(f"{key}/asked", str(int(self._asked)))
      if asked := processes.read_values(f"{key}/asked"):
        with self._lock:
          processes.set_value(f"{key}/looks", str(self._looks))
          looks = processes.wait_for_values(f"{key}/looks", processes.count())
          self._asked, self._stops_at = int(asked[0]), 1 + max(map(int, looks))
        return

  def close(self):
    """Ends the thread too."""
    self._over.set()


@contextlib.contextmanager
def catch() -> Iterator[Stop]:
  """Gives a `Stop` that the first SIGTERM or SIGINT sets.

  A second one does what it does by default. Of a job of several processes all
  have one, at the same look. Outside the main thread, where Python allows no
  handlers, nothing is caught.
  """
  if threading.current_thread() is not threading.main_thread():
    yield Stop()
    return
  stop = Stop() if processes.count() == 1 else _JobStop()
  numbers = (signal.SIGTERM, signal.SIGINT)
  before = {number: signal.getsignal(number) for number in numbers}

  def restore():
    for number, handler in before.items():
      signal.signal(number, handler)

  def handle(number, frame):
    del frame
    stop.ask(number)
    restore()

  for number in numbers:
    signal.signal(number, handle)
  try:
    yield stop
    processes.meet()  # none will look again
  finally:
    stop.close()
    restore()
