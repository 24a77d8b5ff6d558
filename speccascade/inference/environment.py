"""Where and with what a row was measured."""

import functools
from importlib import metadata
import pathlib
import subprocess

_PACKAGES = ("speccascade", "jax", "jaxlib", "flax", "numpy", "sacrebleu")


def environment(device: str) -> dict:
  """Returns where a row was measured: device, versions, git commit."""
  return {
    "device": device,
    "versions": _versions(),
    "git_commit": git_commit(),
  }


@functools.cache
def _versions() -> dict:
  versions = {}
  for name in _PACKAGES:
    try:
      versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      versions[name] = None
  return versions


@functools.cache
def git_commit() -> str | None:
  """Returns the commit of this package's checkout, "+" after it if changed."""
  folder = pathlib.Path(__file__).parent
  run = functools.partial(
    subprocess.run, cwd=folder, capture_output=True, text=True, check=True
  )
  try:
    commit = run(["git", "rev-parse", "HEAD"]).stdout.strip()
    changed = run(["git", "status", "--porcelain", "-uno"]).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return None
  return commit + ("+" if changed else "")
