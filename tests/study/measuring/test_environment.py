"""The device that rows and mains name."""

import types

import jax
import pytest

from speccascade.study.measuring import environment
from speccascade.study.rows import results


@pytest.mark.parametrize(
  ("num", "name", "idle"),
  [(1, "TPU v4", ""), (8, "TPU v4, 1 of 8", "the other 7 stay idle")],
)
def test_one_device_computes(num, name, idle, monkeypatch):
  chip = types.SimpleNamespace(platform="tpu", device_kind="TPU v4")
  monkeypatch.setattr(jax, "local_devices", lambda: [chip] * num)
  monkeypatch.setattr(jax, "device_count", lambda: num)
  assert environment.device_name() == name
  line = environment.computing_on()
  assert line.startswith(f"computing on {name}")
  assert line.endswith(idle)
  assert ("idle" in line) == bool(idle)


def test_a_row_records_versions_and_the_flags_of_compilers(monkeypatch):
  monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_a=1")
  monkeypatch.delenv("XLA_FLAGS", raising=False)
  recorded = environment.environment()
  assert recorded["flags"] == {"LIBTPU_INIT_ARGS": "--xla_a=1"}
  assert "libtpu" not in recorded["versions"]  # which a CPU does not use
  line = results.describe_versions(recorded)
  assert line.endswith(', LIBTPU_INIT_ARGS="--xla_a=1"')
  assert f"jax {jax.__version__}, " in line
  monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
  assert "libtpu" in environment.environment()["versions"]
