"""Makes several processes one job: flags, the meeting, and the end of a job.

A process that fails prints its error, informs the others, and exits non-zero;
the others print what it said and exit, too. A process that is killed can tell
nothing: JAX misses it and ends the others in C++, with a trace of its calls.
"""

import atexit
import contextlib
import io
import os
import re
import socket
import sys
import threading
import time

from absl import flags

from speccascade.cli import gin_setup
from speccascade.runtime import processes, standard_output
from speccascade.runtime.processes import ProcessError

# Keys of the job's store: a process that is about to leave after an error sets
# a value for the first, and a process that failed sets its message for the
# second.
LEFT, FAILED = "left", "failed"
_HEARTBEAT_S = 100  # after which JAX takes a silent process for dead
_WATCH_S = 1.0  # between two looks whether another process failed
_PATIENCE_S = 10.0  # that processes meet in before one says what it waits for
_GRACE_S = 4.0  # for the message of another process, or its end, to arrive
# Parts of the messages of JAX's errors if a process cannot reach another one,
# as of jax 0.10.2. With other texts the error is printed as it is.
_LOST = re.compile(r"[Gg]loo|UNAVAILABLE|[Cc]onnection|coordination")
_LOST_MESSAGE = "another process of this job ended, or cannot be reached"


def define(values: flags.FlagValues, module_name: str):
  """Adds the flags to `values`; flags that T5X has too have its names.

  Args:
    values: the flags of a main.
    module_name: the module to which `--help` counts the flags.
  """
  options = {"flag_values": values, "module_name": module_name}
  flags.DEFINE_string(
    "coordinator_address",
    None,
    "HOST:PORT of process 0, where processes meet that are one job.",
    **options,
  )
  flags.DEFINE_integer(
    "process_count", None, "Processes of the job.", **options
  )
  flags.DEFINE_integer("process_index", None, "This one's, from 0.", **options)
  flags.DEFINE_boolean(
    "multiprocess_gpu",
    False,
    "As T5X's: be one of several processes; which of the three above are not "
    "given is found as with --distributed.",
    **options,
  )
  flags.DEFINE_boolean(
    "distributed",
    False,
    "Be one of the processes of a TPU slice, or of a job of Slurm, Open MPI or "
    "Kubernetes, as their environment says.",
    **options,
  )
  flags.DEFINE_integer(
    "distributed_timeout",
    300,
    "Seconds that a process waits for another, at the start and later.",
    lower_bound=1,
    **options,
  )


def check(values: flags.FlagValues):
  """Raises flags.Error if the flags do not name one of several processes."""
  address = values.coordinator_address
  num, index = values.process_count, values.process_index
  settings = {
    "--coordinator_address": address,
    "--process_count": num,
    "--process_index": index,
  }
  missing = [name for name, value in settings.items() if value is None]
  if 0 < len(missing) < len(settings) and not _asks_cluster(values):
    raise flags.Error(
      f"{' and '.join(missing)} must be given too, or --distributed, which"
      " finds them in the cluster's environment"
    )
  if address is not None:
    port = re.fullmatch(r".+:(\d{1,5})", address)
    if port is None or not 0 < int(port[1]) < 2**16:
      raise flags.Error(
        f"--coordinator_address is {address!r}; want HOST:PORT, with a PORT"
        " from 1 to 65535"
      )
  if num is not None and num < 1:
    raise flags.Error(f"--process_count is {num}; wanted 1 or more")
  # Without a count, the cluster says it, and any index may be right.
  if index is not None and not 0 <= index < (num or index + 1):
    raise flags.Error(
      f"--process_index is {index}; wanted 0 to {(num or 1) - 1}, below"
      " --process_count"
    )


def _asks_cluster(values) -> bool:
  """Returns whether the cluster's environment says what the flags leave out."""
  return values.distributed or values.multiprocess_gpu


@contextlib.contextmanager
def join(values: flags.FlagValues):
  """Makes this process one of a job until the block ends, if flags say so.

  Only the first process prints to stdout. An error in one process ends the
  others.

  Args:
    values: the flags, checked.

  Raises:
    ProcessError: another process failed, ended, or does not answer.
  """
  is_in_job = _asks_cluster(values) or values.process_count
  if values.dry_run or not is_in_job:
    yield
    return
  if values.process_index == 0 and values.coordinator_address:
    _check_port(values.coordinator_address)
  import jax

  _mute_native_stdout()
  _initialize(jax, values)
  watch = _Watch()
  watch.start()
  mute = contextlib.nullcontext()
  if not processes.is_first():
    mute = contextlib.redirect_stdout(io.StringIO())
  stop = None
  try:
    with mute:
      try:
        yield
      except SystemExit as error:
        # A signal stopped the job. All processes agreed on it and get here, so
        # this is a good end, which they leave together.
        stop = error
    processes.meet()
  except BaseException as error:
    # The error propagates to `start`, which prints its line. `_leave` then ends
    # the process, because JAX's own end would wait for the others.
    is_interrupt = isinstance(error, KeyboardInterrupt)
    atexit.register(_leave, 130 if is_interrupt else 1)
    message = watch.report(error, jax.errors.JaxRuntimeError)
    if message is None:
      raise
    raise ProcessError(message) from error
  watch.is_over.set()
  watch.join()  # It must not ask the store once that has been shut down.
  jax.distributed.shutdown()
  if stop is not None:
    raise stop


def _initialize(jax, values):
  """Joins the job, as the flags or the cluster's environment say."""
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  # JAX's preemption service would catch SIGTERM. `runtime/signals.py` catches
  # it during a loop; at other times SIGTERM should end the process.
  jax.config.update("jax_enable_preemption_service", False)
  limit_s = values.distributed_timeout
  processes.set_time_limit(limit_s)
  # JAX says neither while it waits nor when it gives up whom it waited for.
  say = threading.Timer(
    min(limit_s / 2, _PATIENCE_S), _say_what_is_missing, [values]
  )
  say.daemon = True
  say.start()
  try:
    jax.distributed.initialize(
      values.coordinator_address,
      values.process_count,
      values.process_index,
      initialization_timeout=limit_s,
      heartbeat_timeout_seconds=min(limit_s, _HEARTBEAT_S),
      shutdown_timeout_seconds=limit_s,
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
  finally:
    say.cancel()


def _say_what_is_missing(values):
  """Prints what the processes of a job need to meet."""
  num, address = values.process_count, values.coordinator_address
  sys.stderr.write(
    f"waiting up to {values.distributed_timeout} seconds until"
    f" {f'all {num}' if num else 'the'} processes of this job meet"
    f"{f' at {address}' if address else ''}: see that each was started and"
    " reaches it; --distributed_timeout sets how long to wait\n"
  )
  sys.stderr.flush()


def _mute_native_stdout():
  """Gives Python a stdout of its own: descriptor 1, which C++ uses, is muted.

  The library of collectives greets on it.
  """
  sys.stdout.flush()
  sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
  standard_output.make_safe()
  nowhere = os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, 1)
  os.close(nowhere)


def _check_port(address: str):
  """Raises ProcessError if process 0 cannot listen at an address's port."""
  # JAX itself would die of a segmentation fault there, without a message. With
  # this variable, process 0 listens at another address than the others use.
  if os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"):
    return
  port = int(address.rpartition(":")[2])
  options = {}
  if socket.has_dualstack_ipv6():  # as JAX listens, for IPv4 and IPv6
    options = {"family": socket.AF_INET6, "dualstack_ipv6": True}
  try:
    socket.create_server(("", port), **options).close()
  except OSError as error:
    reason = os.strerror(error.errno)
    raise ProcessError(
      f"--coordinator_address is {address}, and process 0 cannot listen at port"
      f" {port} of this machine ({reason}): give another port to all processes"
      " of the job, or end the job that has it"
    ) from error


def _leave(code: int):
  """Ends this process after an error, when the others know of the error."""
  with contextlib.suppress(Exception):
    processes.set_value(LEFT, "")
    processes.wait_for_values(LEFT, processes.count(), 2 * _GRACE_S)
    if processes.is_first():
      # The first process holds the job's store. When it ends, JAX ends those
      # processes that are still there, with a trace.
      time.sleep(1.0)
  for file in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):
      file.flush()
  os._exit(code)  # At a normal exit JAX waits for the others to end well.


class _Watch(threading.Thread):
  """Ends this process after another process of the job has failed."""

  def __init__(self):
    super().__init__(daemon=True)
    # A descriptor of stderr that is written to whatever the block holds back.
    self._stderr = os.dup(2)
    self.is_over = threading.Event()  # set when this process ends by itself
    self._has_told = False  # whether this thread ends the process

  def run(self):
    """Looks for a message of a process that failed, until `is_over` is set."""
    while not self.is_over.wait(_WATCH_S):
      try:
        message = next(iter(processes.read_values(FAILED)), None)
      except Exception:
        # Process 0, which holds the store, has died. JAX ends this process.
        return
      if message is not None:
        # The main thread may wait in C++, for a device, and never end.
        self._has_told = True
        os.write(self._stderr, f"error: {message}\n".encode())
        _leave(1)

  def report(self, error: BaseException, jax_error: type) -> str | None:
    """Tells the other processes that this one fails.

    Args:
      error: the error that ended this process.
      jax_error: type of JAX's errors for devices and for lost processes.

    Returns:
      The message to show in place of the error; None to show the error.
    """
    is_lost = isinstance(error, jax_error) and _LOST.search(str(error))
    if is_lost:
      # Another process failed first. Its message says why and may be on its
      # way, so `run` gets some time to find it, and ends this process.
      time.sleep(_GRACE_S / 2)
    self.is_over.set()
    if self._has_told:
      self.join()  # It ends this process.
    message = _LOST_MESSAGE if is_lost else None
    line = message or gin_setup.explain(error) or type(error).__name__
    with contextlib.suppress(Exception):
      report = f"process {processes.index()} of this job ended: {line}"
      processes.set_value(FAILED, message or report)
    return message
