"""Progress bars on a terminal; a line now and then where there is none."""

import re
import sys
import time

from tqdm import tqdm

from speccascade.runtime import processes

LINE_S = 20.0  # between two lines of a bar
_FORMAT = (
  "{desc}: {n_fmt} of {total_fmt}, {elapsed}, {remaining} left, {rate_fmt}"
  "{postfix}"
)
_LIMITED = "{desc}: {n_fmt} of {total_fmt}, {elapsed}, {left}{postfix}"
_LIMITED_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt}, {elapsed}, {left}{postfix}"
_NO_TOTAL = "{desc}: {n_fmt}, {elapsed}, {rate_fmt}{postfix}"
_OPEN: list["ProgressBar"] = []
_MOVES = re.compile(r"\x1b\[\w")


def time_left(done: int, total: int, elapsed_s: float, limit_s: float) -> float:
  """Returns the seconds that work takes still, which ends at a limit.

  Args:
    done: steps made.
    total: steps planned.
    elapsed_s: since the start.
    limit_s: seconds from the start after which the steps that are left are left
      out; it alone tells the time before the first step is made.

  >>> time_left(0, 10, 5.0, 120.0)
  115.0
  >>> time_left(5, 10, 20.0, 120.0), time_left(1, 10, 20.0, 120.0)
  (20.0, 100.0)
  """
  left = max(0.0, limit_s - elapsed_s)
  return min(left, (total - done) * elapsed_s / done) if done else left


def in_notebook() -> bool:
  """Whether this is a notebook's kernel, which shows stderr as an error."""
  return "ipykernel" in sys.modules


class ProgressBar(tqdm):
  """A bar of tqdm's, on stderr where that is a terminal.

  A log gets its first state, its last, and one in `LINE_S` between them, each a
  line of its own; so does a notebook, on stdout. Of several processes the
  first shows it.
  """

  def __init__(self, *args, limit_s: float | None = None, **settings):
    """Takes what tqdm takes.

    Args:
      *args: tqdm's.
      limit_s: seconds from the start after which what is left of `total` is
        left out; the time that is said to be left is no longer.
      **settings: tqdm's.
    """
    self._limit_s = limit_s
    settings["unit"] = f" {settings.get('unit', 'it').strip()}"
    settings["disable"] = settings.get("disable") or not processes.is_first()
    self._lines = None
    if not sys.stderr.isatty():
      ends = args or settings.get("total") is not None
      form = _FORMAT if ends else _NO_TOTAL
      form = form if limit_s is None else _LIMITED
      settings |= {"position": 0, "bar_format": form}
      self._lines = _Lines(sys.stdout if in_notebook() else sys.stderr)
      settings["file"] = self._lines
    elif limit_s is not None:
      settings["bar_format"] = _LIMITED_BAR
    super().__init__(*args, **settings)
    if not self.disable:
      _OPEN.append(self)

  @property
  def format_dict(self) -> dict:
    """What tqdm fills a bar's format with; "left" where there is a limit."""
    values = super().format_dict
    if self._limit_s is not None:
      done, total, elapsed_s = (values[x] for x in ("n", "total", "elapsed"))
      left_s = time_left(done, total, elapsed_s, self._limit_s)
      is_over = elapsed_s >= self._limit_s and done < total
      values["left"] = (
        "past its time limit, ending"
        if is_over
        else f"about {self.format_interval(left_s)} left"
      )
    return values

  def close(self):
    """Ends it."""
    _OPEN[:] = [bar for bar in _OPEN if bar is not self]
    super().close()

  def note(self, text: str):
    """Says what takes its time, at once; "" takes it back."""
    if text and self._lines is not None:
      self._lines.make_due()
    self.set_postfix_str(text)


class _Lines:
  """What tqdm writes, as lines of a file."""

  def __init__(self, file):
    self._file, self._state, self._written = file, "", ""
    self._wrote = -LINE_S

  def write(self, text: str):
    """Holds a state back until one is due, or the bar ends with its line."""
    state = " ".join(_MOVES.sub("", text).split())
    self._state = state or self._state
    is_due = time.monotonic() - self._wrote >= LINE_S or text.endswith("\n")
    if is_due and self._state != self._written:
      self._file.write(f"{self._state}\n")
      self._written, self._wrote = self._state, time.monotonic()

  def make_due(self):
    """Lets the next state be written."""
    self._wrote = -LINE_S

  def flush(self):
    """Does so."""
    self._file.flush()


def note(text: str):
  """Says on the bar that was opened last, if one is open; see there."""
  for bar in _OPEN[-1:]:
    bar.note(text)
