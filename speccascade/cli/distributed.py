"""Several processes as one job: the flags, how they meet, and how they end.

JAX tells processes of each other's death in C++, by ending them with a trace of
its calls, and of each other's errors not at all. Here each end is one line.
"""

import atexit
import contextlib
import ctypes
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from absl import flags

from speccascade.cli import gin_setup
from speccascade.runtime import processes, standard_error
from speccascade.runtime.processes import ProcessError

LEFT, FAILED = "left", "failed"  # keys
_HEARTBEAT_S = 100
_GRACE_S = 4.0  # in which a process leaves after an error of another
# What JAX's errors hold where a process cannot reach another.
_LOST = re.compile(r"[Gg]loo|UNAVAILABLE|[Cc]onnection|coordination")
_DIED = "of this job ended, or cannot be reached"
_GIVEN = ("coordinator_address", "process_count", "process_index")


def define(values: flags.FlagValues, **here):
  """Adds the flags; those of T5X have its names."""
  flags.DEFINE_string(
    "coordinator_address",
    None,
    "HOST:PORT of process 0, where processes meet that are one job.",
    **here,
  )
  flags.DEFINE_integer("process_count", None, "Processes of the job.", **here)
  flags.DEFINE_integer("process_index", None, "This one's, from 0.", **here)
  flags.DEFINE_boolean(
    "multiprocess_gpu",
    False,
    "As T5X's: be one of several processes; which of the three above are not "
    "given is found as with --distributed.",
    **here,
  )
  flags.DEFINE_boolean(
    "distributed",
    False,
    "Be one of the processes of a TPU slice, or of a job of Slurm, Open MPI or "
    "Kubernetes, as their environment says.",
    **here,
  )
  flags.DEFINE_integer(
    "distributed_timeout",
    300,
    "Seconds that a process waits for another, at the start and later.",
    lower_bound=1,
    **here,
  )


def check(values: flags.FlagValues):
  """Raises flags.Error where the flags do not name one of several processes."""
  named = {name: values[name].value for name in _GIVEN}
  address, num, index = named.values()
  lacking = [f"--{name}" for name, value in named.items() if value is None]
  if 0 < len(lacking) < 3 and not _finds(values):
    raise flags.Error(
      f"{' and '.join(lacking)} must be given too, or --distributed, which"
      " finds them in the cluster's environment"
    )
  port = address and re.fullmatch(r".+:(\d{1,5})", address)
  if address is not None and not (port and 0 < int(port[1]) < 2**16):
    raise flags.Error(
      f"--coordinator_address is {address!r}; want HOST:PORT, with a PORT from"
      " 1 to 65535"
    )
  if num is not None and num < 1:
    raise flags.Error(f"--process_count is {num}; wanted 1 or more")
  if index is not None and not 0 <= index < (num or index + 1):
    raise flags.Error(
      f"--process_index is {index}; wanted 0 to {(num or 1) - 1}, below"
      " --process_count"
    )


def _finds(values) -> bool:
  return values.distributed or values.multiprocess_gpu


@contextlib.contextmanager
def join(values: flags.FlagValues):
  """Makes this process one of a job, if flags say so, until the block ends.

  The first process prints; each says why it ended, on stderr, in a line. An
  error in one ends the others.

  Args:
    values: of the flags, checked.

  Raises:
    ProcessError: another process failed, ended, or does not answer.
  """
  if values.dry_run or not (_finds(values) or values.process_count):
    yield
    return
  if values.process_index == 0 and values.coordinator_address:
    _check_port(values.coordinator_address)
  out = _divert(values)
  _exit_where_jax_aborts()
  import jax

  _initialize(jax, values)
  watch = _Watch(out)
  watch.start()
  mute = contextlib.nullcontext()
  if not processes.is_first():
    mute = contextlib.redirect_stdout(io.StringIO())
  stop = None
  try:
    with mute:
      try:
        yield
      except SystemExit as error:  # as all have agreed
        stop = error
    processes.meet()
  except BaseException as error:
    is_stopped = isinstance(error, KeyboardInterrupt)
    atexit.register(_leave, 130 if is_stopped else 1)
    said = watch.ended(error, jax.errors.JaxRuntimeError)
    if said is None:
      raise
    raise ProcessError(said) from error
  watch.over.set()
  watch.join()
  jax.distributed.shutdown()
  if stop is not None:
    raise stop


def _initialize(jax, values):
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  # It catches SIGTERM, which ends a process where `signals` does not.
  jax.config.update("jax_enable_preemption_service", False)
  limit = values.distributed_timeout
  processes.set_time_limit(limit)
  try:
    jax.distributed.initialize(
      values.coordinator_address,
      values.process_count,
      values.process_index,
      initialization_timeout=limit,
      heartbeat_timeout_seconds=min(limit, _HEARTBEAT_S),
      shutdown_timeout_seconds=limit,
    )
  except ValueError as error:
    raise ProcessError(
      "no cluster is found in the environment (a TPU slice, Slurm, Open MPI or"
      " Kubernetes): give --coordinator_address, --process_count and"
      " --process_index"
    ) from error
  except RuntimeError as error:
    text = str(error).splitlines()[0]
    raise ProcessError(f"the processes cannot meet: {text}") from error


def _check_port(address: str):
  """Raises ProcessError where process 0 cannot be met at an address's port.

  JAX dies of a segmentation fault there, without a word.
  """
  if os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"):  # it is met elsewhere
    return
  port = int(address.rpartition(":")[2])
  try:
    dual = {"family": socket.AF_INET6, "dualstack_ipv6": True}
    kind = dual if socket.has_dualstack_ipv6() else {}
    socket.create_server(("", port), **kind).close()
  except OSError as error:
    reason = os.strerror(error.errno)
    raise ProcessError(
      f"--coordinator_address is {address}, and process 0 cannot listen at port"
      f" {port} of this machine ({reason}): give another port to all processes"
      " of the job, or end the job that has it"
    ) from error


def _exit_where_jax_aborts():
  """Makes an abort of this process an exit with the signal's number, 6.

  JAX's C++ aborts where the processes do not meet, or one of them dies.
  `_divert` makes a line of what it says. Without this, a shell says "Aborted"
  after that line, and a core is dumped. libc's own `_exit` is the handler: it
  takes the signal's number as exit code and may be called from any thread.
  """
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
  libc.signal.restype = ctypes.c_void_p
  address = ctypes.cast(libc._exit, ctypes.c_void_p)
  libc.signal(signal.SIGABRT, address)


def _leave(code: int):
  """Ends this process after an error, when the others have heard of it."""
  with contextlib.suppress(Exception):
    processes.set_value(LEFT, "")
    processes.wait_for_values(LEFT, processes.count(), 2 * _GRACE_S)
    time.sleep(processes.is_first())  # JAX ends those who lose the first
  for file in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):
      file.flush()
  os._exit(code)  # JAX would wait for the others to end well


class _Watch(threading.Thread):
  """Ends this process when another one says that it failed.

  Args:
    out: descriptor of stderr, which others may hold back.

  Attributes:
    over: set when the process ends by itself.
  """

  def __init__(self, out: int):
    super().__init__(daemon=True)
    self._out = out
    self.over = threading.Event()
    self._said = None
    self._main = threading.get_ident()

  def run(self):
    """Looks each second."""
    while not self.over.wait(1.0):
      try:
        self._said = next(iter(processes.read_values(FAILED)), None)
      except Exception:  # process 0 has died: JAX says so, and ends this one
        return
      if self._said is not None:
        # First, and so the last that is read; see `_divert`.
        os.write(self._out, f"error: {self._said}\n".encode())
        raises = ctypes.pythonapi.PyThreadState_SetAsyncExc
        raises(ctypes.c_ulong(self._main), ctypes.py_object(ProcessError))
        if not self.over.wait(_GRACE_S):  # waits for a device
          _leave(1)
        return

  def ended(self, error: BaseException, of_jax: type) -> str | None:
    """Tells the others of an error; returns what to say in its place.

    Args:
      error: what ended this process.
      of_jax: what JAX raises where a device or another process fails.
    """
    is_lost = isinstance(error, of_jax) and _LOST.search(str(error))
    if is_lost:  # whose fault it was
      time.sleep(_GRACE_S / 2)
    self.over.set()
    if self._said is not None:
      return self._said
    said = f"another process {_DIED}" if is_lost else None
    line = said or gin_setup.explain(error) or type(error).__name__
    with contextlib.suppress(Exception):
      processes.set_value(
        FAILED, said or f"process {processes.index()} of this job ended: {line}"
      )
    return said


def _divert(values) -> int:
  """Keeps what C++ says of processes from the terminal: Gloo's greetings, and
  traces of the end of others, of which one line is left. Returns stderr's."""
  sys.stdout.flush()
  sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
  nowhere = os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, 1)
  os.close(nowhere)
  at = values.coordinator_address or "the coordinator's address"
  faults = {
    "RegisterTask": f"the processes of this job did not meet at {at} in"
    f" {values.distributed_timeout} seconds; see that all"
    f" {values.process_count or 'of them'} were started, and reach it"
    " (--distributed_timeout sets how long to wait)",
    r"heartbeats\):\n(\d+)": rf"process \1 {_DIED}",
    "": f"process 0 {_DIED}",
  }
  program = [sys.executable, "-I", "-S", standard_error.__file__]
  relay = subprocess.Popen(
    [*program, json.dumps(faults)],
    stdin=subprocess.PIPE,
    start_new_session=True,
  )
  sys.stderr.flush()
  os.dup2(relay.stdin.fileno(), 2)
  relay.stdin.close()
  relay.returncode = 0  # it ends after this process
  return os.dup(2)
