"""Every path of the native sources."""

import platform

import pytest

from speccascade.native import library

# What a compiler is told so that it takes another path of the source. The last
# is that of CPUs without AVX, with the vectors that others have too.
BUILDS = {
  "best": (),
  "avx2": ("-mno-avx512f",),
  "portable": ("-mno-avx",),
}
REGISTERED = set()


@pytest.fixture(params=BUILDS)
def build(request, monkeypatch):
  """Native calls take one path of the source."""
  if request.param == "best":
    return
  if platform.machine() != "x86_64":
    pytest.skip("the flags are those of x86-64")
  if request.param == "avx2" and " avx2 " not in library._cpu():
    pytest.skip("this CPU has no AVX2")
  monkeypatch.setattr(library, "PREFIX", f"test_{request.param}")
  if request.param not in REGISTERED:
    library.register(library.library_file(BUILDS[request.param]))
    REGISTERED.add(request.param)
