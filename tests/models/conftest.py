"""Fixtures: every path of the native sources, the golden networks."""

import functools
import platform
import types

import numpy as np
import pytest

from speccascade import checkpoints
from speccascade.decoding.records import prompts
from speccascade.models import T5LM, LlamaLM, T5GemmaLM
from speccascade.native import library
from tests.models.feeding import Fed

# Flags with which a compiler takes another path of the source. The last path is
# for CPUs without AVX, and has vectors of four lanes.
BUILDS = {"best": (), "avx2": ("-mno-avx512f",), "portable": ("-mno-avx",)}
REGISTERED = set()


# A compiler takes ten seconds and more for each of the other paths.
@pytest.fixture(
  params=[
    pytest.param(name, marks=[] if name == "best" else [pytest.mark.slow])
    for name in BUILDS
  ]
)
def build(request, monkeypatch):
  """Makes native calls take one path of the source."""
  use_build(request.param, monkeypatch)


def use_build(name: str, monkeypatch) -> None:
  """Makes native calls take the path of `BUILDS` with this name."""
  if name == "best":
    return
  if platform.machine() != "x86_64":
    pytest.skip("the flags are those of x86-64")
  if name == "avx2" and " avx2 " not in library._cpu():
    pytest.skip("this CPU has no AVX2")
  monkeypatch.setattr(library, "PREFIX", f"test_{name}")
  if name not in REGISTERED:
    library.register(library.library_file(BUILDS[name]))
    REGISTERED.add(name)


@pytest.fixture(scope="session")
def llama_arrays(golden) -> dict:
  """The arrays that transformers wrote; see `tests/golden/make_llama.py`."""
  folder, arrays = golden.parent / "llama", {}
  for name in ("golden.npz", "gemma.npz"):
    with np.load(folder / name) as file:
      arrays |= file
  return arrays


@pytest.fixture(scope="session")
def llama(golden, llama_arrays):
  """Returns a function of a kind that returns a golden case.

  A case has the model `lm` in float32, the prompts `inputs` as the model reads
  them, and the arrays that transformers wrote for these prompts.
  """

  @functools.cache
  def read(kind):
    case = types.SimpleNamespace()
    for name, array in llama_arrays.items():
      if name.startswith(f"{kind}/"):
        setattr(case, name.partition("/")[2], array)
    checkpoint = checkpoints.load(golden.parent / "llama" / kind)
    case.lm = LlamaLM.create(checkpoint.config, checkpoint.params)
    # Padding before the first row, and after the others.
    is_text = np.arange(case.tokens.shape[1]) < case.lengths[:, None]
    inputs = np.where(is_text, case.tokens, prompts.PAD)
    case.inputs = np.pad(inputs, ((0, 0), (0, 2)), constant_values=prompts.PAD)
    case.inputs[0] = np.roll(case.inputs[0], 2)
    return case

  return read


@pytest.fixture(scope="session")
def t5gemma(golden):
  """Returns a function of a folder's name that returns a golden T5Gemma.

  A case has the model `lm` in float32, and the arrays that transformers wrote;
  see `tests/golden/make_gemma.py`.
  """
  folder = golden.parent / "t5gemma"

  @functools.cache
  def read(kind):
    with np.load(folder / "golden.npz") as file:
      arrays = {
        name.partition("/")[2]: array
        for name, array in file.items()
        if name.startswith(f"{kind}/")
      }
    checkpoint = checkpoints.load(folder / kind)
    lm = T5GemmaLM.create(checkpoint.config, checkpoint.params)
    return types.SimpleNamespace(lm=lm, **arrays)

  return read


@pytest.fixture(scope="session")
def fed(golden_config, golden_params, golden_arrays, llama, t5gemma):
  """Returns a function of a kind and a way to compute that returns a `Fed`."""

  @functools.cache
  def make(name):
    kind, _, way = name.partition(" ")
    kernels = {"packed": "float32", "rounded": "bfloat16_products"}
    options = {
      "dtype": "bfloat16" if way == "bfloat16" else None,
      "kernel_dtype": kernels.get(way),
    }
    if kind == "t5":
      lm = T5LM.create(golden_config, golden_params, **options)
      return Fed(lm, golden_arrays["in/encoder_input_tokens"])
    if kind.startswith("t5gemma-"):
      case = t5gemma(kind.partition("-")[2])
      config, params = case.lm.module.config, case.lm.params
      return Fed(T5GemmaLM.create(config, params, **options), case.sources)
    plain, inputs = llama(kind).lm, llama(kind).inputs
    lm = LlamaLM.create(plain.module.config, plain.params, **options)
    return Fed(lm, inputs)

  return make
