"""Three launches a layer: the CUDA kernels' numbers and barriers, on a CPU."""

import collections
import ctypes
import dataclasses
import functools
import json
import logging
import pathlib
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.models import T5LM, T5Config, attention, cache, gpu_passes
from speccascade.native import library
from speccascade.native.gpu import (
  UnavailableError,
  attention_launch,
  attention_launch_cuda,
  cuda_launches,
  emulated,
  layer_launch,
  layer_launch_cuda,
  layer_launches,
  mlp_launch,
  mlp_launch_cuda,
  nvrtc,
)
from tests.models import test_gpu_passes

ROOT = pathlib.Path(__file__).parents[2]
ORDERS = range(6)
# Of the largest number: bfloat16 keeps 8 bits, so that a number may be rounded
# to the other side by .004, and XLA rounds in more places.
BOUND = 0.015


def numbers(rng, *shape, scale=1.0, dtype="bfloat16"):
  return jnp.asarray(scale * rng.normal(size=shape), dtype)


def close(got, want, bound=BOUND):
  got, want = (np.asarray(x, np.float32) for x in (got, want))
  assert got.shape == want.shape
  gap = np.abs(got - want).max() / np.abs(want).max()
  assert gap <= bound, gap


def sums(x, parts):
  """Returns the residual, and what is to be added to it."""
  return x, parts.sum(axis=0)


@dataclasses.dataclass(frozen=True)
class Shape:
  rows: int
  fed: int
  emb: int
  heads: int
  width: int
  slots: int
  parts: int = 2


def attention_case(shape, is_self):
  """Returns the arrays and options of a call of `attention_launch`."""
  rng = np.random.default_rng(shape.slots)
  rows, fed, emb = shape.rows, shape.fed, shape.emb
  joined, slots = shape.heads * shape.width, shape.slots
  into = [
    numbers(rng, emb, joined, scale=(2 if i else 0.5) * emb**-0.5)
    for i in range(3 if is_self else 1)
  ]
  kernels = (*into, numbers(rng, joined, emb, scale=joined**-0.5))
  parts = None
  if shape.parts:
    parts = numbers(rng, shape.parts, rows * fed, emb, scale=0.5)
    parts = parts.astype(jnp.float32)
  start = jnp.asarray(rng.integers(0, slots - fed + 1, rows), jnp.int32)
  bias = cache.block_bias(
    numbers(rng, shape.heads, 2 * slots - 1), start, fed
  ).astype(jnp.bfloat16)
  if not is_self:
    sizes = jnp.asarray(rng.integers(1, slots + 1, rows))[:, None]
    seen = jnp.arange(slots)[None] < sizes
    bias = jnp.where(seen, 0, attention.MASKED).astype(jnp.bfloat16)
    bias = bias[:, None, None]
  arrays = (
    numbers(rng, rows, fed, emb),
    parts,
    1 + numbers(rng, emb, scale=0.1),
    kernels,
    bias,
    numbers(rng, rows, shape.heads, shape.width, slots),
    numbers(rng, rows, shape.heads, slots, shape.width),
  )
  options = {"upcoming": kernels[:2]}
  return arrays, options | ({"start": start} if is_self else {})


def mlp_case(shape, inner, activations):
  """Returns the arrays and options of a call of `mlp_launch`."""
  rng = np.random.default_rng(inner)
  rows, fed, emb = shape.rows, shape.fed, shape.emb
  kernels = (
    *(numbers(rng, emb, inner, scale=emb**-0.5) for _ in activations),
    numbers(rng, inner, emb, scale=inner**-0.5),
  )
  parts = numbers(rng, 3, rows * fed, emb, scale=0.5).astype(jnp.float32)
  arrays = (
    numbers(rng, rows, fed, emb),
    parts,
    1 + numbers(rng, emb, scale=0.1),
    kernels,
  )
  return arrays, {"activations": activations, "upcoming": kernels[:1]}


# A block of one token, more tokens than a tile holds, caches that no number
# divides, and fewer slots than a cluster has blocks.
SHAPES = [
  Shape(1, 1, 128, 2, 16, 19, parts=0),
  Shape(3, 6, 256, 3, 32, 71),
  Shape(2, 2, 128, 1, 16, 5),
]
T5_SHAPES = [
  Shape(1, 6, 512, 6, 64, 71, parts=16),
  Shape(1, 1, 1024, 16, 64, 135, parts=16),
  Shape(3, 6, 1024, 16, 64, 135, parts=16),
]
ALL_SHAPES = [
  *SHAPES,
  T5_SHAPES[0],
  *(pytest.param(each, marks=pytest.mark.slow) for each in T5_SHAPES[1:]),
]


@pytest.mark.parametrize("shape", ALL_SHAPES, ids=str)
def test_a_block_is_attended_and_written(shape):
  arrays, options = attention_case(shape, True)
  got, want = (
    attention_launch(*arrays, implementation=name, **options)
    for name in ("emulated", "xla")
  )
  for mine, plain in zip(sums(*got[:2]), sums(*want[:2])):
    close(mine, plain)
  start = options["start"]
  for axis, mine, plain, before in zip((3, 2), got[2:], want[2:], arrays[5:]):
    close(mine, plain)
    # All but the new slots are as before, bit for bit.
    slot = np.arange(shape.slots)[None]
    is_new = (slot >= start[:, None]) & (slot < start[:, None] + shape.fed)
    is_new = np.expand_dims(is_new, (1, 5 - axis))
    np.testing.assert_array_equal(
      np.where(is_new, 0, mine), np.where(is_new, 0, before)
    )


@pytest.mark.parametrize("shape", ALL_SHAPES, ids=str)
def test_a_source_is_attended(shape):
  arrays, options = attention_case(shape, False)
  got, want = (
    attention_launch(*arrays, implementation=name, **options)
    for name in ("emulated", "xla")
  )
  for mine, plain in zip(sums(*got), sums(*want)):
    close(mine, plain)


@pytest.mark.parametrize(
  ("shape", "inner", "activations"),
  [
    (SHAPES[0], 64, ("gelu", "linear")),
    (SHAPES[1], 96, ("relu",)),
    (SHAPES[2], 80, ("silu", "linear")),
    (T5_SHAPES[0], 1024, ("gelu", "linear")),
    *(
      pytest.param(each, 2816, ("gelu", "linear"), marks=pytest.mark.slow)
      for each in T5_SHAPES[1:]
    ),
  ],
  ids=str,
)
def test_an_mlp_is_computed(shape, inner, activations):
  arrays, options = mlp_case(shape, inner, activations)
  got, want = (
    mlp_launch(*arrays, implementation=name, **options)
    for name in ("emulated", "xla")
  )
  for mine, plain in zip(sums(*got), sums(*want)):
    close(mine, plain)


def test_tokens_of_a_block_have_the_bits_of_tokens_one_by_one():
  shape = Shape(1, 5, 128, 2, 16, 30)
  (x, parts, *rest, keys, values), options = attention_case(shape, True)
  run = lambda *arrays, **more: attention_launch(
    *arrays, implementation="emulated", **{**options, **more}
  )
  whole = run(x, parts, *rest, keys, values)
  mlp = mlp_case(shape, 64, ("gelu", "linear"))
  of_mlp = lambda x, parts: mlp_launch(
    x, parts, *mlp[0][2:], implementation="emulated", **mlp[1]
  )
  whole_mlp = of_mlp(x, mlp[0][1])
  for i in range(shape.fed):
    one, its_parts = x[:, i : i + 1], parts[:, i : i + 1]
    got = run(
      *(one, its_parts, *rest[:2], rest[2][:, :, i : i + 1], keys, values),
      start=options["start"] + i,
    )
    _, _, keys, values = got
    np.testing.assert_array_equal(got[0], whole[0][:, i : i + 1])
    np.testing.assert_array_equal(got[1], whole[1][:, i : i + 1])
    got = of_mlp(one, mlp[0][1][:, i : i + 1])
    np.testing.assert_array_equal(got[1], whole_mlp[1][:, i : i + 1])
  np.testing.assert_array_equal(keys, whole[2])
  np.testing.assert_array_equal(values, whole[3])


def test_numbers_that_are_not_finite_do_not_reach_the_cache():
  arrays, options = attention_case(SHAPES[0], True)
  spoiled = arrays[0].at[0, 0, 3].set(jnp.nan)
  got = attention_launch(
    spoiled, *arrays[1:], implementation="emulated", **options
  )
  assert np.isnan(np.asarray(got[1], np.float32)).all()
  for each in got[2:]:
    assert np.isfinite(np.asarray(each, np.float32)).all()


def built():
  """Yields a launch and its operands for each kernel."""
  # (A head is no multiple of a warp, so that warps read what others wrote.)
  shape = Shape(2, 3, 512, 1, 48, 19)
  for is_self in (True, False):
    arrays, options = attention_case(shape, is_self)
    yield attention_launch_cuda.built(
      cuda_launches.AttentionArrays(*arrays),
      options.get("start"),
      options["upcoming"],
    )
  arrays, options = mlp_case(shape, 64, ("gelu", "linear"))
  yield mlp_launch_cuda.built(
    cuda_launches.MlpArrays(*arrays),
    options["activations"],
    1,
    options["upcoming"],
  )
  yield built_layer(*layer_case(Shape(1, 2, 128, 1, 16, 11), 32, 9))


def in_each_order(launch, operands):
  """Yields the bits of all results in each order of the threads."""
  for order in ORDERS:
    results = emulated.run(launch, tuple(map(np.asarray, operands)), order)
    yield [each.tobytes() for each in results]


def test_the_order_of_threads_and_copies_does_not_matter():
  for launch, operands in built():
    first, *others = in_each_order(launch, operands)
    assert all(other == first for other in others), launch.entry


# What is left out of the source, or put in its place, and how often it stands
# there. Every barrier and every wait for copies is one.
MUTANTS = {
  "cluster_arrive();\n    cluster_wait();": ("", 2),
  "cluster_arrive();\n    in_first();\n    cluster_wait();": ("in_first();", 1),
  "cluster_arrive();\n    in_second();\n    cluster_wait();": (
    "in_second();",
    1,
  ),
  "\n    block_sync();": ("", 5),
  "wait_groups(kGroups - 1 - group + kLater)": (
    "wait_groups(kGroups - group + kLater)",
    1,
  ),
  "wait_groups(1 + kMore);": ("", 1),
  "wait_groups(kMore);": ("", 1),
  "wait_groups(0);": ("", 1),
  "    cluster_wait();\n  }": ("  }", 1),
  "packet.launch == launch": ("true", 1),
  "exchange.phase = 1;": ("", 1),
  "if (thread() == 0) end_launch(exchange.launch);": ("", 1),
  "end_launch(exchange.launch)": ("end_launch(exchange.launch - 1)", 1),
  "Attention<false, kTiles, kOfMlp, true>": (
    "Attention<false, kTiles, kOfMlp + 1, true>",
    1,
  ),
  "energy[token] = sum": ("cluster_arrive(); energy[token] = sum", 1),
}


@pytest.mark.slow
def test_a_barrier_that_is_left_out_is_noticed(tmp_path, monkeypatch):
  source = cuda_launches.text("layers.cu")
  shutil.copy(cuda_launches.FOLDER / "emulated.h", tmp_path)
  cases = [*built()]
  whole = [next(in_each_order(*case)) for case in cases]
  for text, (other, count) in MUTANTS.items():
    assert source.count(text) == count, text
    for number in range(count):
      at = -1
      for _ in range(number + 1):
        at = source.index(text, at + 1)
      mutant = source[:at] + other + source[at + len(text) :]
      path = tmp_path / "layers.cu"
      path.write_text(mutant, encoding="utf-8")
      made = tmp_path / f"{abs(hash((text, number)))}.so"
      compiler = shutil.which("c++") or "g++"
      flags = [*emulated.FLAGS, "-O1", "-shared", "-x", "c++"]
      library.run_compiler([compiler, *flags, str(path), "-o", str(made)])
      kernels = ctypes.CDLL(str(made))
      monkeypatch.setattr(emulated, "_library", lambda kernels=kernels: kernels)
      try:
        is_seen = any(
          bits != known
          for case, known in zip(cases, whole)
          for bits in in_each_order(*case)
        )
      except emulated.EmulationError:
        is_seen = True
      assert is_seen, f"{text!r}, number {number}"


def test_what_a_gpu_would_refuse_is_said():
  launch, operands = next(built())
  sizes = dict(launch.sizes) | {"SHARED": launch.shared_bytes - 16}
  small = dataclasses.replace(launch, sizes=tuple(sizes.items()))
  operands = tuple(map(np.asarray, operands))
  with pytest.raises(
    emulated.EmulationError, match="attend_self_1: shared mem"
  ):
    emulated.run(small, operands)


def test_every_size_of_the_source_is_given():
  source = cuda_launches.text("layers.cu")
  named = [line for line in source.splitlines() if "DEFINE_SIZE(" in line]
  found = [line.split("(")[1].split(")")[0] for line in named]
  assert sorted(found) == sorted(cuda_launches.SIZES)


CONFIG = T5Config(
  vocab_size=48,
  emb_dim=128,
  num_heads=2,
  num_encoder_layers=1,
  num_decoder_layers=2,
  head_dim=16,
  mlp_dim=64,
  dtype="bfloat16",
)


def model(config):
  """Returns a model whose kernels have the dtype of the activations."""
  lm = T5LM.init(config, jax.random.key(0)).handing_out((1, 0))
  return lm.replace(
    params=jax.tree.map(
      lambda x: x.astype(config.dtype) if x.ndim > 1 else x, lm.params
    )
  )


@pytest.mark.parametrize(
  ("mlp_dim", "is_joined", "kinds"),
  [
    (32, True, ("layer",)),
    # (An MLP of one slice, and two heads.)
    (16, True, ("attend_both", "gated")),
    (32, False, ("attend_self", "attend_source", "gated")),
  ],
)
def test_a_pass_is_the_plain_pass(monkeypatch, mlp_dim, is_joined, kinds):
  monkeypatch.setenv("SPECCASCADE_NATIVE", "0")
  if not is_joined:
    monkeypatch.setattr(layer_launch_cuda, "num_clusters", lambda _: None)
  lm = model(dataclasses.replace(CONFIG, mlp_dim=mlp_dim))
  prompt = jnp.asarray(np.random.default_rng(4).integers(3, 40, (2, 6)))
  ran = []
  run = emulated.run
  monkeypatch.setattr(
    emulated,
    "run",
    lambda launch, *rest: ran.append(launch) or run(launch, *rest),
  )
  for got, want in zip(
    test_gpu_passes.blocks("emulated", lm, prompt),
    test_gpu_passes.blocks("xla", lm, prompt),
  ):
    close(got, want, 0.03)
  # A chain, a tree, and the tokens after it; in two layers.
  found = collections.Counter(launch.kind for launch in ran)
  assert found == dict.fromkeys(kinds, 6)


def takes(config, name, tokens, platform="cpu"):
  """Whether a pass over a block has kernels, if those of a name are wanted."""
  lm = jax.eval_shape(lambda: model(config))
  prompt = jnp.ones((1, 4), jnp.int32)
  state = jax.eval_shape(lambda lm: lm.prefill(prompt, capacity=50), lm)
  gpu_passes._say.cache_clear()
  with native.gpu_kernels(name), jax.default_device(platform):
    return gpu_passes.takes(config, lm.params, state, tokens)


def test_a_pass_says_why_it_is_not_three_launches(caplog):
  caplog.set_level(logging.INFO)
  block, long = (jnp.ones((1, num), jnp.int32) for num in (5, 40))
  assert takes(CONFIG, "emulated", block)
  assert not caplog.messages
  change = functools.partial(dataclasses.replace, CONFIG)
  for config, tokens, reason in (
    (change(dtype="float32"), block, "numbers are float32 and not bfloat16"),
    (change(emb_dim=96), block, "the model width 96 is not a multiple of 128"),
    (CONFIG, long, "a block of 40 tokens is over 32"),
  ):
    caplog.clear()
    assert not takes(config, "emulated", tokens)
    start = f"one to three launches a layer are left out where {reason}"
    assert caplog.messages[0].startswith(start)
  caplog.clear()
  # Triton's kernels are the next best on a GPU.
  assert takes(CONFIG, "cuda", long, "gpu")
  assert len(caplog.messages) == 1


@pytest.mark.parametrize(
  ("shape", "reason"),
  [
    (Shape(5, 7, 128, 2, 16, 19), "a block of 35 tokens is over 32"),
    (Shape(1, 1, 192, 2, 16, 19), "the model width 192 is not a multiple"),
    (Shape(1, 1, 128, 2, 24, 19), "the head width 24 is not a multiple of 16"),
    (Shape(4, 1, 1024, 1, 64, 3000), "4 rows of 3000 slots do not fit"),
  ],
  ids=str,
)
def test_what_the_kernels_do_not_take_is_refused_by_name(shape, reason):
  of = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.bfloat16)
  arrays = (
    of(shape.rows, shape.fed, shape.emb),
    None,
    of(shape.emb),
    (of(shape.emb, shape.heads * shape.width),) * 4,
    of(1, 1, 1, shape.slots),
    of(shape.rows, shape.heads, shape.width, shape.slots),
    of(shape.rows, shape.heads, shape.slots, shape.width),
  )
  with pytest.raises(UnavailableError, match=reason):
    attention_launch(*arrays, implementation="emulated")


def test_weights_in_eight_bits_are_left_to_others():
  arrays, options = mlp_case(SHAPES[0], 64, ("relu",))
  *others, kernels = arrays
  packed = native.quantise(np.ones((128, 64), np.float32))
  reason = mlp_launch.unfit(*others, (packed, kernels[1]), **options)
  assert reason == "numbers are int8 and not bfloat16"


def test_the_kernels_need_a_gpu_with_clusters_and_a_compiler(monkeypatch):
  assert attention_launch.missing("cuda") == "the program is for a CPU"
  with jax.default_device("gpu"):
    monkeypatch.setattr(nvrtc, "is_available", lambda: False)
    assert "NVRTC is not installed" in str(mlp_launch.missing("cuda"))
    monkeypatch.setattr(nvrtc, "is_available", lambda: True)
    assert mlp_launch.missing("cuda") is None
    monkeypatch.setattr(layer_launches, "capability", lambda: 8.0)
    assert "the GPU has no clusters" in str(mlp_launch.missing("cuda"))


def test_clusters_that_wait_for_one_another_need_a_large_gpu(monkeypatch):
  arrays, options = layer_case(Shape(1, 2, 128, 1, 16, 11), 32, 9)
  options.pop("upcoming")
  assert layer_launch.unfit(*arrays, **options) is None
  monkeypatch.setattr(layer_launches, "multiprocessors", lambda: 78)
  reason = layer_launch.unfit(*arrays, **options)
  assert "the GPU has 78 multiprocessors, and at least 114 hold" in str(reason)
  assert attention_launch.unfit(*arrays.split()[0]) is None


def by_compiler(*words):
  """Returns what a benchmark prints where programs compile for an H100."""
  python = ROOT / ".venv-gpu-compiler/bin/python"
  if not python.exists():
    pytest.skip("no compiler for GPUs: bash launch/gpu_compiler.sh")
  done = subprocess.run(
    [python, "-m", *words],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={"PATH": "/usr/bin:/bin"},
  )
  assert done.returncode == 0, done.stderr[-2000:]
  return [json.loads(line) for line in done.stdout.splitlines() if "{" in line]


@pytest.mark.slow
def test_kernels_are_assembled_for_an_h100_and_nothing_is_spilled():
  rows = by_compiler(
    *("benchmarks.launch_kernels", "--json", "--models", "t5-small", "t5-large")
  )
  # Not every block fits fewer launches.
  names = collections.Counter(row["kernel"].rpartition("_")[0] for row in rows)
  of_parts = dict.fromkeys(("attend_self", "attend_source", "gated"), 2 * 3)
  assert names == of_parts | {"attend_both": 5, "layer": 2}
  for row in rows:
    assert row["spilled"] == 0, row
    assert row["registers"] <= 65536 // cuda_launches.THREADS
    assert row["shared"] <= cuda_launches.MOST_SHARED


@pytest.mark.slow
def test_a_layer_is_two_launches_when_compiled_for_an_h100():
  counts = {}
  for layers in (1, 4):
    [row] = by_compiler(
      *("benchmarks.compiled.case", "--target", "h100", "--method", "verifier"),
      *("--pair", "t5-small:t5-large", "--layers", "1", str(layers)),
      *("--variant", "cuda"),
    )
    assert row["cache_copies"] == 0
    counts[layers] = row["launches"]
    assert row["by_kind"]["attention"] == layers
  assert counts[4] - counts[1] == 2 * 3


def layer_case(shape, inner, slots_of_source):
  """Returns the arrays and options of a call of `layer_launch`."""
  (x, parts, norm, of_self, bias, *cached), options = attention_case(
    shape, True
  )
  source = dataclasses.replace(shape, slots=slots_of_source)
  (_, _, other_norm, of_source, source_bias, *stored), _ = attention_case(
    source, False
  )
  activations = ("gelu", "linear") if inner else ()
  of_mlp = mlp_case(shape, inner, activations)[0][3] if inner else ()
  norms, biases = (norm, other_norm, 1 + norm / 8), (bias, source_bias)
  arrays = cuda_launches.LayerArrays(
    *(x, parts, norms, of_self, of_source, of_mlp, biases),
    *(tuple(cached), tuple(stored)),
  )
  return arrays, {**options, "activations": activations}


def built_layer(arrays, options):
  """Returns the launch of a layer and its operands."""
  return layer_launch_cuda.built(
    arrays,
    options["start"],
    options["activations"],
    layer_launch_cuda.num_clusters(arrays),
    options["upcoming"],
  )


@pytest.mark.parametrize(
  ("shape", "inner", "source"),
  [
    (Shape(1, 1, 128, 2, 16, 19, parts=0), 0, 5),
    (Shape(1, 1, 128, 2, 16, 19, parts=0), 32, 5),
    # A cluster without a head, and tokens of two tiles.
    (Shape(2, 6, 128, 1, 32, 30), 32, 21),
    pytest.param(
      Shape(1, 6, 512, 6, 64, 71, parts=8), 1024, 16, marks=pytest.mark.slow
    ),
  ],
  ids=str,
)
def test_joined_launches_have_the_bits_of_three(shape, inner, source):
  arrays, options = layer_case(shape, inner, source)
  launch, operands = built_layer(arrays, options)
  got = emulated.run(launch, tuple(map(np.asarray, operands)))
  of_self, of_source, of_mlp = arrays.split()
  run = functools.partial(attention_launch, implementation="emulated")
  given, parts, *written = run(*of_self, start=options["start"])
  x, parts = run(given, parts, *of_source[2:])
  if inner:
    x, parts = mlp_launch(
      *(x, parts, *of_mlp[2:]),
      activations=options["activations"],
      implementation="emulated",
      configuration=mlp_launch_cuda.Configuration(launch.clusters),
    )
  wanted = (x, parts, given, *written)
  for mine, other in zip(got, wanted, strict=True):
    np.testing.assert_array_equal(mine, other)
  plain = layer_launch(*arrays, implementation="xla", **options)
  for mine, other in zip(
    (*sums(*got[:2]), *got[2:]), (*sums(*plain[:2]), *plain[2:])
  ):
    close(mine, other, 2 * BOUND)  # (Of three steps.)
