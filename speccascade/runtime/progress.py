"""Shows progress: a bar on a terminal, a line now and then in a log."""

import contextlib
import math
import re
import sys
import time
from typing import Any, TextIO

from tqdm import tqdm

from speccascade.runtime import processes

LINE_S = 20.0  # seconds between two lines of a bar in a log
# Formats of a line in a log: with a known total, with a time limit, and with
# neither. A terminal's bar has a format of its own only with a time limit.
_FORMAT = (
  "{desc}: {n_fmt} of {total_fmt}, {elapsed}, {remaining} left, {rate_fmt}"
  "{postfix}"
)
_LIMITED = "{desc}: {n_fmt} of {total_fmt}, {elapsed}, {left}{postfix}"
_LIMITED_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt}, {elapsed}, {left}{postfix}"
_NO_TOTAL = "{desc}: {n_fmt}, {elapsed}, {rate_fmt}{postfix}"
_open_bars: list["ProgressBar"] = []  # the bar that was opened last is last
_CURSOR_MOVES = re.compile(r"\x1b\[\w")  # tqdm moves to the line of a bar


def time_left(done: int, total: int, elapsed_s: float, limit_s: float) -> float:
  """Returns the seconds that are left of work that ends at a time limit.

  Args:
    done: steps that are done. Before the first step is done, only the limit
      says how much time is left.
    total: steps that are planned.
    elapsed_s: seconds since the start.
    limit_s: seconds from the start at which the work ends, even if steps are
      left then.

  >>> time_left(0, 10, 5.0, 120.0)
  115.0
  >>> time_left(5, 10, 20.0, 120.0), time_left(1, 10, 20.0, 120.0)
  (20.0, 100.0)
  """
  left_s = max(0.0, limit_s - elapsed_s)
  if not done:
    return left_s
  return min(left_s, (total - done) * elapsed_s / done)


def in_notebook() -> bool:
  """Returns whether this is a notebook's kernel.

  A notebook shows stderr as an error. (ipywidgets imports a kernel's modules,
  and tqdm imports ipywidgets: that alone is not a notebook.)
  """
  kernel = sys.modules.get("ipykernel.kernelapp")
  return kernel is not None and kernel.IPKernelApp.initialized()


class ProgressBar(tqdm):  # type: ignore[misc]  # tqdm has no types
  """A bar of tqdm on stderr, if stderr is a terminal.

  A log shows lines instead: the first state of the bar, its last state, and one
  state in `LINE_S` seconds between them. A notebook shows the same lines on
  stdout. In a job of several processes only the first process shows the bar.
  """

  def __init__(
    self, *args: Any, limit_s: float | None = None, **settings: Any
  ) -> None:
    """Takes the arguments of tqdm.

    Args:
      *args: arguments of tqdm.
      limit_s: seconds from the start at which the work ends, even if less than
        `total` is done then. The bar never shows more time left than that.
      **settings: arguments of tqdm.
    """
    self._limit_s = limit_s
    # What compiling takes says nothing of the steps that follow.
    self._left_out_s, self._left_out_since_s = 0.0, math.nan
    self._num_left_out: float = 0
    # The mean rate since the start. Steps are handed in by the dozen and waited
    # for later, and tqdm's own rate, which is of late steps, would jump.
    settings.setdefault("smoothing", 0)
    settings["unit"] = f" {settings.get('unit', 'it').strip()}"
    settings["disable"] = settings.get("disable") or not processes.is_first()
    self._lines: _Lines | None = None
    if not sys.stderr.isatty():
      has_total = args or settings.get("total") is not None
      line_format = _FORMAT if has_total else _NO_TOTAL
      if limit_s is not None:
        line_format = _LIMITED
      # Below another bar tqdm would move the cursor, which a log cannot.
      settings |= {"position": 0, "bar_format": line_format}
      self._lines = _Lines(sys.stdout if in_notebook() else sys.stderr)
      settings["file"] = self._lines
    elif limit_s is not None:
      settings["bar_format"] = _LIMITED_BAR
    super().__init__(*args, **settings)
    if not self.disable:
      _open_bars.append(self)

  @property
  def format_dict(self) -> dict[str, Any]:
    """The values that tqdm puts into a format; with a limit also "left"."""
    values = super().format_dict
    if self._left_out_s and not self.smoothing:
      num = values["n"] - values["initial"] - self._num_left_out
      counted_s = values["elapsed"] - self._left_out_s
      values["rate"] = num / max(counted_s, 1e-9)  # tqdm shows 0 as "?"
    if self._limit_s is not None:
      done, total, elapsed_s = values["n"], values["total"], values["elapsed"]
      if elapsed_s >= self._limit_s and done < total:
        values["left"] = "past its time limit, ending"
      else:
        left_s = time_left(done, total, elapsed_s, self._limit_s)
        values["left"] = f"about {self.format_interval(left_s)} left"
    return values

  def close(self) -> None:
    """Ends the bar."""
    _open_bars[:] = [bar for bar in _open_bars if bar is not self]
    super().close()

  def update(self, n: float | None = 1) -> bool | None:
    """Counts steps; what was left out of the rate ends here."""
    if n and not math.isnan(self._left_out_since_s):
      self._num_left_out += n  # The step that waited for what was compiled.
      self._count_again()
    return super().update(n)

  def _count_again(self) -> None:
    """Ends what is left out of the rate, if anything is."""
    if not math.isnan(self._left_out_since_s):
      self._left_out_s += time.monotonic() - self._left_out_since_s
      self._left_out_since_s = math.nan

  def note(self, text: str, *, leave_out: bool = False) -> None:
    """Shows at once, beside the bar, what takes its time; "" removes it.

    Args:
      text: what takes its time.
      leave_out: whether the time up to the next note or step, and that step,
        are left out of the rate, and so of the time that is left.
    """
    self._count_again()
    if leave_out:
      self._left_out_since_s = time.monotonic()
    if text and self._lines is not None:
      self._lines.make_due()
    self.set_postfix_str(text)


class _Lines:
  """A file for tqdm that keeps one state in `LINE_S` seconds, as a line."""

  def __init__(self, file: TextIO) -> None:
    self._file = file
    self._last_state = ""  # the last state that tqdm wrote
    self._shown_state = ""  # the last state that the log shows
    self._shown_at_s = -LINE_S  # so that the first state is due

  def write(self, text: str) -> None:
    """Takes a state, and shows it if one is due or the bar has ended."""
    state = " ".join(_CURSOR_MOVES.sub("", text).split())
    # tqdm also writes line breaks and cursor moves alone, which are not state.
    self._last_state = state or self._last_state
    # A line break ends the bar, whose last state is always shown.
    is_due = time.monotonic() - self._shown_at_s >= LINE_S
    is_due = is_due or text.endswith("\n")
    if is_due and self._last_state != self._shown_state:
      # In a log, what was printed before this line comes before it.
      with contextlib.suppress(OSError, ValueError):  # said when it ends
        sys.stdout.flush()
      self._file.write(f"{self._last_state}\n")
      self._shown_state = self._last_state
      self._shown_at_s = time.monotonic()

  def make_due(self) -> None:
    """Makes the next state one that is shown."""
    self._shown_at_s = -LINE_S

  def flush(self) -> None:
    """Flushes the file."""
    self._file.flush()


def note(text: str, *, leave_out: bool = False) -> None:
  """Shows a note on the bar that was opened last; see `ProgressBar.note`.

  Without an open bar, nothing is shown.
  """
  if _open_bars:
    _open_bars[-1].note(text, leave_out=leave_out)
