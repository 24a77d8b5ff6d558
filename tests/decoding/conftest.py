"""Both ways to laws, draws and copies, and float64."""

import jax
import pytest

from speccascade import native


@pytest.fixture(params=["plain", "native"])
def either_way(request, monkeypatch):
  """They are the plain ones, or native; trace afresh under it."""
  if request.param == "plain":
    monkeypatch.setattr(native, "takes", lambda *arrays: False)
  elif not native.is_available():
    pytest.skip("no native code here")


@pytest.fixture
def float64():
  """Laws are worked out in float64."""
  with jax.enable_x64(True):
    yield
