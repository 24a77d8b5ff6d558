"""Checks that JAX still has the private names that `jax_job` uses."""

import inspect
import pathlib

import jax  # noqa: F401  a process that has not imported JAX is in no job
from jax._src import distributed

import speccascade
from speccascade.runtime import jax_job


def test_the_private_names_are_there(monkeypatch):
  assert (jax_job.index(), jax_job.count()) == (0, 1)
  # `setattr` refuses a name that is not there.
  monkeypatch.setattr(distributed.global_state, "client", object())
  monkeypatch.setattr(distributed.global_state, "process_id", 2)
  monkeypatch.setattr(distributed.global_state, "num_processes", 4)
  assert (jax_job.index(), jax_job.count()) == (2, 4)


def test_no_other_module_reads_them():
  package = pathlib.Path(inspect.getfile(speccascade)).parent
  readers = [
    path.name
    for path in sorted(package.rglob("*.py"))
    if "jax._src" in path.read_text(encoding="utf-8")
  ]
  assert readers == ["jax_job.py"]
