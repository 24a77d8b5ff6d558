"""Turns SIGTERM, SIGHUP and Ctrl-C into a request that a loop can look at.

A loop that is asked to stop saves its work first. In a job of several processes
all processes must stop at the same step, or the others wait for one that has
gone. Python runs a handler between two lines of Python alone: while XLA
compiles, a line says that the signal waits.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import itertools
import math
import os
import signal
import sys
import threading
from typing import cast

from speccascade.runtime import processes

# All processes make the same `_JobStop` objects in the same order, so that the
# number of one names the same object in every process.
_JOB_NUMBERS = itertools.count()
_LISTEN_S = 0.2  # between two looks whether another process was asked
_WAITS_S = 1.0  # until a line says that a signal waits for XLA


@dataclasses.dataclass
class Stop:
  """Whether a loop was asked to stop, and by which signal.

  A loop looks at it by its truth: `if stop: break`.

  Attributes:
    signal: number of the signal that asked, or None before a signal.
  """

  signal: int | None = None

  def __bool__(self) -> bool:
    return self.signal is not None

  def ask(self, number: int) -> None:
    """Asks the loop to stop, because of a signal of this number."""
    self.signal = number

  def close(self) -> None:
    """Ends the listening for signals of other processes."""

  @property
  def name(self) -> str:
    """The signal's name, e.g. "SIGTERM"."""
    return signal.Signals(cast(int, self.signal)).name

  @property
  def exit_code(self) -> int:
    """The exit code that a shell shows for a process that the signal ended."""
    return 128 + cast(int, self.signal)


class Interrupted(KeyboardInterrupt):
  """Ctrl-C, SIGTERM or SIGHUP, with a message that says how to continue the
  work.

  Attributes:
    exit_code: the code that a shell shows for a process that the signal ended.
  """

  def __init__(self, message: str, exit_code: int = 128 + signal.SIGINT):
    super().__init__(message)
    self.exit_code = exit_code


@contextlib.contextmanager
def interruptible(continues: str) -> Iterator[None]:
  """Ends the block at SIGTERM and SIGHUP as at Ctrl-C, with a message.

  A second signal ends the process as it does by default. In a job of several
  processes, and outside the main thread, both are left as they are. A SIGHUP
  that is ignored, as by `nohup`, stays ignored.

  Args:
    continues: what becomes of the work, for the message.

  Raises:
    Interrupted: a signal ended the block.
  """
  asked: list[int] = []

  def handle(number: int) -> None:
    asked.append(number)
    raise KeyboardInterrupt

  is_main = threading.current_thread() is threading.main_thread()
  catches = is_main and processes.count() == 1
  numbers = _ending() if catches else ()
  try:
    with _handled(numbers, handle):
      yield
  except KeyboardInterrupt as stop:
    number = asked[0] if asked else signal.SIGINT
    name = signal.Signals(number).name
    raise Interrupted(f"ended by {name}; {continues}", 128 + number) from stop


def _ending() -> tuple[int, ...]:
  """Returns the signals that end a command and are not ignored, but Ctrl-C."""
  numbers = [signal.SIGTERM]
  if hasattr(signal, "SIGHUP"):  # not on Windows
    numbers.append(signal.SIGHUP)
  ignored = signal.SIG_IGN
  return tuple(x for x in numbers if signal.getsignal(x) is not ignored)


@contextlib.contextmanager
def _handled(
  numbers: Sequence[int], handle: Callable[[int], None]
) -> Iterator[None]:
  """Calls `handle` at the first of some signals; the next one ends the process.

  For the main thread. What the handlers were before is back after the block.
  """
  if not numbers:
    yield
    return
  former_handlers = {number: signal.getsignal(number) for number in numbers}
  is_handled = threading.Event()

  def restore() -> None:
    for number, handler in former_handlers.items():
      signal.signal(number, handler)

  def on_signal(number: int, frame: object) -> None:
    del frame
    is_handled.set()
    # From here on a signal ends the process, even if its work hangs.
    restore()
    handle(number)

  for number in numbers:
    signal.signal(number, on_signal)
  try:
    with _saying_that_it_waits(numbers, is_handled):
      yield
  finally:
    restore()


@contextlib.contextmanager
def _saying_that_it_waits(
  numbers: Sequence[int], is_handled: threading.Event
) -> Iterator[None]:
  """Says in a line that a signal waits, where its handler cannot run yet.

  Python writes the number of a signal to a descriptor at once, and calls the
  handler when the main thread is back from C++.
  """
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  is_over = threading.Event()

  def listen() -> None:
    while not is_over.is_set():
      number = os.read(reader, 1)[0]
      if number in numbers and not is_handled.wait(_WAITS_S):
        name = signal.Signals(number).name
        print(
          f"{name} waits until what is compiled or computed now is done",
          file=sys.stderr,
          flush=True,
        )

  thread = threading.Thread(target=listen, daemon=True)
  thread.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(former)
    is_over.set()
    is_handled.set()
    with contextlib.suppress(BlockingIOError):  # A full pipe wakes it, too.
      os.write(writer, b"\0")
    thread.join()
    os.close(reader)
    os.close(writer)


class _JobStop(Stop):
  """A `Stop` that becomes true at the same look in all processes of a job.

  Each process counts how often its loop has looked. After a signal, a thread in
  each process publishes the count and holds up the loop's next look until all
  processes have published theirs. All loops then stop at the look after the
  furthest one:

    process   looks so far   published   stops at look
    0         7              7           10
    1         9              9           10
  """

  def __init__(self) -> None:
    super().__init__()
    self._asked_signal: int | None = None
    self._num_looks, self._last_look = 0, math.inf
    self._key, self._lock = f"stop/{next(_JOB_NUMBERS)}", threading.Lock()
    self._is_over = threading.Event()
    threading.Thread(target=self._listen, daemon=True).start()

  def __bool__(self) -> bool:
    # The lock is what holds up a look while the processes exchange counts.
    with self._lock:
      # After `close` no process counts any more: looks at the outcome, to print
      # it, do not count as looks of the loop.
      if not self._is_over.is_set():
        self._num_looks += 1
      if self._num_looks >= self._last_look:
        self.signal = self._asked_signal
    return super().__bool__()

  def ask(self, number: int) -> None:
    """Asks the loops of all processes to stop.

    A signal handler calls this method at any line of the main thread, which may
    hold the lock. So the method only sets a variable; the thread does the rest.
    """
    self._asked_signal = number

  def _listen(self) -> None:
    """Waits for a signal of any process, then agrees on the last look."""
    while not self._is_over.wait(_LISTEN_S):
      if self._asked_signal is not None:
        signal_text = str(int(self._asked_signal))
        processes.set_value(f"{self._key}/asked", signal_text)
      if asked := processes.read_values(f"{self._key}/asked"):
        with self._lock:
          looks_key = f"{self._key}/looks"
          processes.set_value(looks_key, str(self._num_looks))
          looks = processes.wait_for_values(looks_key, processes.count())
          self._asked_signal = int(asked[0])
          self._last_look = 1 + max(map(int, looks))
        return

  def close(self) -> None:
    """Ends the listening for signals of other processes, and its thread."""
    self._is_over.set()


@contextlib.contextmanager
def catch() -> Iterator[Stop]:
  """Gives a `Stop` that the first SIGTERM, SIGHUP or SIGINT makes true.

  A second signal does what it does by default: it ends the process. In a job of
  several processes a signal to one of them makes the `Stop` of each true, at
  the same look. Outside the main thread, where Python allows no handlers, no
  signal is caught.
  """
  if threading.current_thread() is not threading.main_thread():
    yield Stop()
    return
  stop = Stop() if processes.count() == 1 else _JobStop()
  with _handled((*_ending(), signal.SIGINT), stop.ask):
    try:
      yield stop
      # The threads can only exchange counts all together. This one has to live
      # until every loop has ended, or a process that is asked late waits for
      # it.
      processes.meet()
    finally:
      stop.close()
