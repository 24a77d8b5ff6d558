"""Jobs of several processes, each of them a main with devices of its own."""

import json
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent


def started(num, main, *flags, devices=2, of_each=(), job=None, **macros):
  """Returns the processes of a job, just started.

  Args:
    num: how many; one is started without flags for several.
    main: its module.
    *flags: of all.
    devices: that each pretends to have.
    of_each: further flags of each, in the order of processes.
    job: settings of `tests.training.job`.
    **macros: by name.
  """
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  forced = f"--xla_force_host_platform_device_count={devices}"
  if devices > 1:
    # Otherwise devices begin all-reduces in different orders, and wait forever.
    forced += " --xla_cpu_enable_concurrency_optimized_scheduler=false"
  env = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {forced}",
    "JOB": json.dumps(job),
  }
  command = [sys.executable, "-m", main, *flags]
  command += [f"--gin.{name}={value!r}" for name, value in macros.items()]
  several = [f"--coordinator_address={address}", f"--process_count={num}"]
  return [
    subprocess.Popen(
      command
      + ([*several, f"--process_index={index}"] if num > 1 else [])
      + list(of_each[index : index + 1]),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=env,
      cwd=ROOT,
    )
    for index in range(num)
  ]


def ended(processes, timeout_s=300):
  """Returns (exit code, stdout, stderr) of each process, which end in time."""
  try:
    outcomes = [process.communicate(timeout=timeout_s) for process in processes]
  finally:
    for process in processes:
      process.kill()
  return [(p.returncode, *texts) for p, texts in zip(processes, outcomes)]


def run(num, main, *flags, **options):
  """Returns what `ended` does of a job that ends well; as in `started`."""
  outcomes = ended(started(num, main, *flags, **options))
  assert not any(code for code, *_ in outcomes), outcomes
  return outcomes
