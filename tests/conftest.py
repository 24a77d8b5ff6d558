"""Strict JAX flags for the core, and the files tests read."""

import contextlib
import contextvars
import dataclasses
import functools
import gc
import gzip
import json
import os
import pathlib
import time
import zlib

# Tests compile tiny programs and must not read what an older run compiled.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")
# Compiling takes most of their time, and these programs run for milliseconds.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
# A path that does not exist may be a name on a hub, which no test asks.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax
import numpy as np
import pytest

from speccascade.runtime import folders, memory
from tests.hub_server import client, served  # noqa: F401

# Asserts of helpers, too, say what they compared.
pytest.register_assert_rewrite("tests.decoding", "tests.models", "tests.toy")

TESTS = pathlib.Path(__file__).parent
# flax, optax and orbax break under these flags in places, the core does not.
STRICT = (TESTS / "decoding", TESTS / "models")


def pytest_addoption(parser):
  parser.addoption(
    "--share",
    default="1/1",
    help="K/N runs the K-th of N shares of the tests; each is in one share",
  )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
  """Leaves out the tests of other shares."""
  which, num = map(int, config.getoption("--share").split("/"))
  if not 1 <= which <= num:
    raise pytest.UsageError(f"--share is {which}/{num}; wanted 1 to {num}")
  share_of = shares([item.nodeid for item in items], num)
  others = [item for item in items if share_of[item.nodeid] != which - 1]
  if others:
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if share_of[item.nodeid] == which - 1]


def shares(names: list[str], num: int) -> dict[str, int]:
  """Returns the share of each test; the shares take about the same time.

  nightly_seconds.json names the tests that take over 15 s on two cores, as
  --durations prints them, and rounded.
  A new test moves no other one, so that each is run every `num` nights.
  """
  seconds = json.loads((TESTS / "nightly_seconds.json").read_text())
  totals, long = [0.0] * num, {}
  # The longest first, each to the share that has least so far.
  for name in sorted(seconds, key=lambda x: (-seconds[x], x)):
    long[name] = totals.index(min(totals))
    totals[long[name]] += seconds[name]
  by_name = {name: zlib.crc32(name.encode()) % num for name in names}
  return {name: long.get(name, share) for name, share in by_name.items()}


# Seconds between two looks at the memory maps. One takes 20 ms where they are
# many, and in these seconds tests compile a few hundred maps' worth.
_LOOK_S = 3.0
_looked_s = 0.0
# Each worker forgets its programs at so many resident bytes, and again when it
# has grown by as many more as programs take in some minutes.
_MOST_BYTES, _GROWTH_BYTES = 4e9, 1.5e9
_most_bytes = _MOST_BYTES


def resident_bytes() -> int:
  """Returns the resident memory of this process; 0 where it is not known."""
  statm = pathlib.Path("/proc/self/statm")
  if not statm.exists():
    return 0
  return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def few_programs():
  """Forgets compiled programs before they take all memory, or all its maps."""
  yield
  global _looked_s, _most_bytes
  if time.monotonic() - _looked_s > _LOOK_S:
    too_large = resident_bytes() > _most_bytes
    if too_large or memory.holds_many_programs():
      jax.clear_caches()
      gc.collect()
      memory.give_back()
      _most_bytes = max(_MOST_BYTES, resident_bytes() + _GROWTH_BYTES)
    _looked_s = time.monotonic()


@pytest.fixture(autouse=True)
def strict_jax(request):
  """Core tests: ranks and dtypes are never promoted silently."""
  if not any(folder in request.path.parents for folder in STRICT):
    yield
    return
  with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
    yield


@pytest.fixture
def float64():
  """Distributions are worked out in float64."""
  with jax.enable_x64(True):
    yield


@pytest.fixture
def other_job():
  """Lets another job write to a folder until the test ends."""
  with contextlib.ExitStack() as stack:

    def write(folder, **options):
      writer = folders.sole_writer(folder, **options)
      context = contextvars.Context()  # no caller of the test
      context.run(writer.__enter__)
      stack.callback(context.run, writer.__exit__, None, None, None)

    yield write


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
  """The folder of outputs and checkpoints made by T5X; see its README."""
  return TESTS / "golden" / "tiny_a"


def read_golden(folder: pathlib.Path) -> tuple:
  """Returns the golden (`T5Config`, parameters), read without any library."""
  from speccascade.models import T5Config

  values = json.loads((folder / "config.json").read_text())
  names = {field.name for field in dataclasses.fields(T5Config)}
  tree = {}
  for path in (folder / "t5x_native" / "checkpoint_3000").glob("target.*"):
    spec = json.loads((path / ".zarray").read_text())
    chunk = path / ".".join("0" for _ in spec["shape"])
    array = np.frombuffer(gzip.decompress(chunk.read_bytes()), spec["dtype"])
    *parents, name = path.name.split(".")[1:]
    node = functools.reduce(lambda x, key: x.setdefault(key, {}), parents, tree)
    node[name] = array.reshape(spec["shape"])
  return T5Config(**{k: v for k, v in values.items() if k in names}), tree


@pytest.fixture(scope="session")
def golden_params(golden) -> dict:
  """The golden parameters as a nested dict."""
  return read_golden(golden)[1]


@pytest.fixture(scope="session")
def golden_config(golden):
  """The `T5Config` of the golden model."""
  return read_golden(golden)[0]


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
  """Public data sets beside the repository; skips where they are absent."""
  folder = TESTS.parent.parent / "shared" / "data"
  if not folder.is_dir():
    pytest.skip(f"no data sets at {folder}")
  return folder


@pytest.fixture(scope="session")
def golden_arrays(golden) -> dict:
  """The arrays of `golden.npz`; see the README."""
  with np.load(golden / "golden.npz") as arrays:
    return dict(arrays)
