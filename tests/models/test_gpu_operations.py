"""Which implementation of an operation runs, and what says so."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.native.gpu import (
  UnavailableError,
  block_attention,
  gpu_kernels,
  kernel_tables,
  row_products,
)

OPERATIONS = {each.name: each for each in (block_attention, row_products)}
X, KERNELS = jnp.ones((2, 32)), (jnp.ones((32, 16)),)
KEY = "32 to 16, 16 rows, float32"


def chosen(implementation=None):
  return row_products.choose(implementation, X, KERNELS)


def test_a_name_that_cannot_run_is_an_error_of_one_line():
  for name, reason in {
    "triton": "the program is for a CPU",
    "cuda": "there is no kernel in cuda",
  }.items():
    with pytest.raises(UnavailableError) as error:
      row_products(X, KERNELS, implementation=name)
    assert str(error.value) == (
      f"implementation={name!r} of row_products cannot run: {reason};"
      " give 'xla', or None for the best that can"
    )
  known = "is unknown: give one of xla, triton, cuda, interpreted"
  for ask in (gpu_kernels, chosen):
    with pytest.raises(ValueError, match=f"implementation='mosaic' {known}"):
      ask("mosaic")


def test_what_is_not_named_falls_back_to_what_runs(monkeypatch):
  assert chosen() == "xla"
  for asked, on_gpu, on_cpu in (
    ("xla", "xla", "xla"),
    ("triton", "triton", "xla"),
    ("cuda", "triton", "xla"),  # there is no kernel in CUDA C++
    ("interpreted", "interpreted", "interpreted"),
  ):
    with gpu_kernels(asked):
      assert chosen() == on_cpu
      assert chosen("xla") == "xla"
      with jax.default_device("gpu"):
        assert chosen() == on_gpu
      with gpu_kernels(None):
        assert chosen() == "xla"
  # A jax without Pallas for Triton.
  monkeypatch.setattr(row_products, "modules", {"triton": "no_such_module"})
  with jax.default_device("gpu"):
    with gpu_kernels("triton"):
      assert chosen() == "xla"
    with pytest.raises(UnavailableError, match="No module named 'no_such_mod"):
      chosen("triton")


def test_kernels_are_taken_unasked_where_a_tenth_is_gained(monkeypatch):
  row = {"implementation": "triton", "gain": 1.1, "because": "a test"}
  table = {"": {"row_products": {KEY: row}}}
  monkeypatch.setattr(kernel_tables, "read", lambda name: table)
  assert chosen() == "xla"
  with jax.default_device("gpu"):
    assert chosen() == "triton"
    with gpu_kernels("xla"):
      assert chosen() == "xla"
    row["gain"] = 1.09
    assert chosen() == "xla"


def test_another_implementation_is_traced_again():
  @jax.jit
  def run(x):
    return row_products(x, KERNELS)[0]

  text = run.lower(X).as_text
  plain = text()
  with gpu_kernels("interpreted"):
    assert run.lower(X).as_text() != plain
    np.testing.assert_allclose(run(X), 32.0)
  assert text() == plain


def test_a_configuration_that_was_timed_replaces_the_worked_out(monkeypatch):
  taken = []
  module = importlib.import_module(row_products.modules["triton"])
  run = module.run

  def watched(*arrays, configuration, **options):
    taken.append(configuration)
    return run(*arrays, configuration=configuration, **options)

  monkeypatch.setattr(module, "run", watched)
  device = jax.devices()[0].device_kind
  rows = {device: {"row_products triton": {KEY: {"stages": 7}}}}
  monkeypatch.setattr(kernel_tables, "read", lambda name: rows)
  worked_out = module.configuration(X, KERNELS)
  given = dataclasses.replace(worked_out, columns=32)
  for configuration in (None, given):
    row_products(
      X, KERNELS, implementation="interpreted", configuration=configuration
    )
  assert taken == [dataclasses.replace(worked_out, stages=7), given]


def test_the_tables_name_what_is_there():
  for operations in kernel_tables.read("defaults.json").values():
    for name, rows in operations.items():
      assert name in {*OPERATIONS, "decoder_pass"}
      for row in rows.values():
        assert row.keys() == {"implementation", "gain", "because"}
        assert row["implementation"] in ("xla", "triton", "cuda")
        assert row["gain"] > 0
        assert row["because"]
  for kernels in kernel_tables.read("configurations.json").values():
    for kernel, rows in kernels.items():
      name, language = kernel.split()
      module = importlib.import_module(OPERATIONS[name].modules[language])
      fields = dataclasses.fields(module.Configuration)
      for row in rows.values():
        assert row.keys() <= {field.name for field in fields}
        assert all(type(value) is int for value in row.values())
