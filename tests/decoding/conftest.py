"""Both ways to distributions, draws and copies."""

import jax
import pytest

from speccascade import native


@pytest.fixture(scope="module", params=["plain", "native"])
def either_way(request):
  """They are the plain ones, or native ones; returns which.

  A compiled program keeps the way that it was traced with. So the plain way
  forgets all programs at both its ends: before it they were traced with native
  code, and those that it leaves were traced without. The fixture is the
  module's, as every small program is compiled again each time.
  """
  if request.param == "native":
    if not native.is_available():
      pytest.skip("no native code here")
    yield request.param
    return
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(native, "takes", lambda *arrays: False)
    jax.clear_caches()
    yield request.param
  jax.clear_caches()
