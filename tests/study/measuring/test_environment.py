"""The device that rows and mains name."""

import types

import jax
import pytest

from speccascade.study.measuring import environment


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
