"""The native product: exact, the same for every row, and compiled safely."""

from concurrent import futures
import dataclasses
import os
import pathlib
import stat
import subprocess
import sys
import types

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.models import T5LM
from speccascade.native import library, panels
from tests import toy
from tests.models.feeding import NEEDS_NATIVE, close, feed, prefill

DTYPES = ("float32", "bfloat16", "bfloat16_products", "int8")


def rows_and_kernel(num_rows, num_in, num_out, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num_rows, num_in)).astype(np.float32)
  return x, rng.normal(size=(num_in, num_out)).astype(np.float32)


def pack(kernel, dtype):
  """Returns panels; "bfloat16_products" is bfloat16 whose rows are rounded."""
  dtype, _, rounds = dtype.partition("_")
  return native.pack(kernel, dtype, bool(rounds))


def in_float64(array, dtype):
  """Returns what is left of float32 numbers that are kept in a dtype."""
  if dtype == "int8":
    kernel = native.quantise(array)
    return (kernel.weights * kernel.scale.astype(np.float64)[:, None]).T
  return array.astype(jnp.dtype(dtype.split("_")[0])).astype(np.float64)


def product(x, kernel, dtype="float32"):
  [y] = native.products(jnp.asarray(x), [pack(kernel, dtype)])
  return np.asarray(y)


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
  ("num_rows", "num_in", "num_out"),
  [(1, 1, 1), (6, 128, 64), (7, 65, 63), (13, 300, 130), (101, 129, 65)],
)
def test_products_equal_float64(build, dtype, num_rows, num_in, num_out):
  x, kernel = rows_and_kernel(num_rows, num_in, num_out)
  actual, kernel = product(x, kernel, dtype), in_float64(kernel, dtype)
  x = in_float64(x, dtype if dtype == "bfloat16_products" else "float32")
  assert actual.shape == (num_rows, num_out)
  assert actual.dtype == np.float32
  # The bound of a sum in order, each step rounded by at most 2 ** -24, and of a
  # scale.
  bound = (num_in + 2) * 2.0**-24 * (np.abs(x) @ np.abs(kernel))
  assert np.all(np.abs(actual - x @ kernel) <= bound)


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_to_the_bit_beside_any_others(build, dtype):
  """Alone, as one of 2 to 32, and among more than one unit of work takes."""
  x, kernel = rows_and_kernel(100, 200, 96)
  want = product(x, kernel, dtype)
  for num_rows in range(1, 33):
    actual = product(x[5 : 5 + num_rows], kernel, dtype)
    np.testing.assert_array_equal(actual, want[5 : 5 + num_rows])


@NEEDS_NATIVE
def test_several_kernels_at_once_and_mapped_over_an_axis():
  x, first = rows_and_kernel(7, 65, 130)
  kernels = [first, first[:, :3] * 2, first[:, 60:] - 1, first * 3, first + 1]
  packed = [native.pack(kernel, "float32") for kernel in kernels]
  call = lambda x: native.products(x, packed)
  for results in (call(jnp.asarray(x)), jax.vmap(call)(jnp.asarray(x))):
    for actual, kernel in zip(results, kernels):
      np.testing.assert_array_equal(actual, product(x, kernel))


@NEEDS_NATIVE
def test_what_does_not_fit_is_refused():
  x, kernel = rows_and_kernel(2, 8, 4)
  packed = native.pack(kernel, "float32")
  for rows, kernels in (
    (x[:, :7], [packed]),
    (x.astype(np.float64), [packed]),
    (x, [packed, native.pack(kernel, "bfloat16")]),
    (x, [packed, native.pack(kernel, "float32", rounds=True)]),
    (x, [packed, native.pack(kernel, "int8")]),
    (x, [packed.replace(shape=(8, 65))]),
  ):
    with pytest.raises(ValueError, match="do not fit panels"):
      native.products(rows, kernels)


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_are_those_of_the_kernel(dtype):
  _, kernel = rows_and_kernel(1, 5, 130)
  index = jnp.asarray([[0, 63, 64], [129, 500, -1]], jnp.int32)
  actual = pack(kernel, dtype).columns(index)
  want = in_float64(kernel, dtype).T[np.clip(index, 0, 129)]
  np.testing.assert_array_equal(actual, want.astype(np.float32))


# --- Compiled on first use. ---

PROGRAM = """
import hashlib
import jax
import jax.numpy as jnp
import numpy as np
from speccascade import native
from speccascade.models import T5LM, T5Config
assert native.is_available()
rng = np.random.default_rng(0)
kernel = native.pack(rng.normal(size=(512, 1000)), "float32")
digests = set()
for num_rows in (1, 6, 60) * 20:
  x = jnp.asarray(np.sin(np.arange(num_rows * 512)), jnp.float32)
  [y] = native.products(x.reshape(num_rows, 512), [kernel])
  digests.add((num_rows, hashlib.sha256(np.asarray(y)).hexdigest()))
key = jnp.asarray(rng.normal(size=(60, 4, 64, 200)), jnp.float32)
x = jnp.asarray(rng.normal(size=(60, 6, 4, 64)), jnp.float32)
bias = jnp.zeros((1, 1, 1, 200))
for num_rows in (1, 6, 60) * 20:
  rows = key[:num_rows]
  y = native.attend(x[:num_rows], rows, rows.reshape(-1, 4, 200, 64), bias)
  digests.add((-num_rows, hashlib.sha256(np.asarray(y)).hexdigest()))
  assert np.array_equal(y[0], native.attend(
    x[:1], rows[:1], rows[:1].reshape(-1, 4, 200, 64), bias)[0])
config = T5Config(vocab_size=300, emb_dim=128, num_heads=4, head_dim=32,
  mlp_dim=256, num_encoder_layers=1, num_decoder_layers=1)
lm = T5LM.create(config, T5LM.init(config, jax.random.key(0)).params,
  kernel_dtype="float32")
tokens = jnp.arange(360, dtype=jnp.int32).reshape(60, 6) % 300
state = jax.jit(lambda lm: lm.prefill(tokens, capacity=8))(lm)
extend = jax.jit(lambda lm, state: lm.extend(state, tokens, state.length)[1])
for _ in range(20):
  y = np.asarray(extend(lm, state).logits)
  digests.add((0, hashlib.sha256(y).hexdigest()))
print(sorted(digests))
"""


@NEEDS_NATIVE
@pytest.mark.slow
def test_programs_at_once_with_other_numbers_of_threads(tmp_path):
  """All find an empty cache; none spoils it, and all compute the same."""
  env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "XLA_FLAGS": ""}
  command, options = (
    [sys.executable, "-c", PROGRAM],
    {"stdout": subprocess.PIPE},
  )
  programs = [
    subprocess.Popen(command, env={**env, "NPROC": num}, text=True, **options)
    for num in ("1", "5")
  ]
  outputs = [program.communicate(timeout=300)[0] for program in programs]
  assert [program.returncode for program in programs] == [0, 0]
  assert len(set(outputs)) == 1
  assert outputs[0].count("(") == 7  # no repeat differed
  [file] = (tmp_path / "speccascade" / "native").iterdir()
  assert library._is_whole(file)


@NEEDS_NATIVE
def test_calls_at_once_of_one_program():
  """Some find the threads that help at work for another."""
  x, kernel = rows_and_kernel(6, 512, 1024)
  packed, want = native.pack(kernel, "float32"), product(x, kernel)

  def differ(_):
    results = (native.products(jnp.asarray(x), [packed]) for _ in range(50))
    return sum(not np.array_equal(y, want) for [y] in results)

  with futures.ThreadPoolExecutor(4) as pool:
    assert list(pool.map(differ, range(4))) == [0] * 4


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """An empty folder for compiled files, not made yet."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.delenv(library.SWITCH, raising=False)
  return tmp_path / "speccascade" / "native"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
  """Returns a function that makes a shell script the only compiler."""

  def be(script):
    path = tmp_path / "bin" / "c++"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))

  return be


# Writes its own arguments as the library, the last of which is the file.
WORKS = 'for out; do :; done; echo "$@" > "$out"; echo "$@" >> {log}'


def test_folder_and_file_are_the_users_alone(cache, compiler, tmp_path):
  log = tmp_path / "log"
  compiler(WORKS.format(log=log))
  file = library.library_file()
  assert stat.S_IMODE(cache.stat().st_mode) == 0o700
  assert stat.S_IMODE(file.stat().st_mode) == 0o600
  assert file == library.library_file()
  assert log.read_text().count(" -shared ") == 1  # compiled once


def test_the_file_is_named_after_what_it_depends_on(
  cache, compiler, tmp_path, monkeypatch
):
  compiler(WORKS.format(log=tmp_path / "log"))
  files = [library.library_file(), library.library_file(("-O1",))]
  monkeypatch.setattr(library, "_cpu", lambda: "another")
  files.append(library.library_file())
  monkeypatch.setattr(jax, "__version__", "another")
  files.append(library.library_file())
  for i, path in enumerate(library.SOURCES):
    source = tmp_path / path.name
    source.write_text("another")
    sources = (*library.SOURCES[:i], source, *library.SOURCES[i + 1 :])
    with monkeypatch.context() as patch:
      patch.setattr(library, "SOURCES", sources)
      files.append(library.library_file())
  compiler(WORKS.format(log=tmp_path / "another"))
  files.append(library.library_file())
  assert len(set(files)) == len(files)


@pytest.mark.parametrize("spoilt", ["end", "middle", "link"])
def test_a_file_that_is_not_whole_or_ours_is_made_again(
  cache, compiler, tmp_path, spoilt
):
  compiler(WORKS.format(log=tmp_path / "log"))
  file = library.library_file()
  content = file.read_bytes()
  if spoilt == "link":
    file.symlink_to(file.rename(file.with_name("elsewhere")))
  else:
    middle = content[:5] + bytes([content[5] ^ 1]) + content[6:]
    file.write_bytes(middle if spoilt == "middle" else content[:-1])
  assert library.library_file() == file
  assert not file.is_symlink()
  assert library._is_whole(file)
  assert (tmp_path / "log").read_text().count(" -shared ") == 2
  assert len(file.read_bytes()) == len(content)


def test_a_folder_that_others_can_write_is_refused(cache, compiler, tmp_path):
  compiler(WORKS.format(log=tmp_path / "log"))
  cache.mkdir(parents=True)
  cache.chmod(0o777)
  with pytest.raises(library.NativeError, match="not a folder of yours alone"):
    library.library_file()
  cache.rmdir()
  cache.symlink_to(tmp_path)
  with pytest.raises(library.NativeError, match="not a folder of yours alone"):
    library.library_file()


@pytest.mark.parametrize(
  ("script", "message"),
  [
    (None, "no C++ compiler: install one"),
    (
      "echo one line >&2; echo 'x.h: error: no such file' >&2; exit 1",
      "c++ failed: x.h: error: no such file",
    ),
  ],
)
def test_without_a_compiler_that_works_xla_multiplies(
  cache, compiler, monkeypatch, caplog, script, message
):
  if script is None:
    monkeypatch.setenv("PATH", "")
  else:
    compiler(script)
  assert not library.is_loaded.__wrapped__()
  [record] = caplog.records
  assert message in record.getMessage()
  assert "\n" not in record.getMessage()
  assert script is None or list(cache.iterdir()) == []  # it leaves nothing


def test_a_compiler_that_writes_no_library(cache, compiler, tmp_path, caplog):
  compiler(WORKS.format(log=tmp_path / "log"))
  assert not library.is_loaded.__wrapped__()
  assert "blocks will be slower" in caplog.text


@dataclasses.dataclass(frozen=True)
class OtherDevice:
  """A device that only compiles, as far as it is asked."""

  id: int = 0
  platform: str = "tpu"


@NEEDS_NATIVE
def test_programs_for_other_platforms_have_no_native_calls():
  for platform in ("tpu", "gpu"):
    with jax.default_device(platform):
      assert not native.is_available()
  # The arguments of a program say so, too; those that may move do not.
  sharding = types.SimpleNamespace(device_set={OtherDevice()})
  far = types.SimpleNamespace(sharding=sharding)
  for tree, wanted in (
    ([1, jnp.ones(2), far], "tpu"),
    ([far], "tpu"),
    ([jnp.ones(2), jax.device_put(jnp.ones(2), jax.devices()[0])], "cpu"),
    ([], "cpu"),
  ):
    with native.tracing_for(tree):
      assert native.platform() == wanted
      assert native.is_available() == (wanted == "cpu")
  assert native.platform() == "cpu"


def test_switched_off(cache, monkeypatch):
  monkeypatch.setenv(library.SWITCH, "0")
  assert not library.is_loaded.__wrapped__()
  assert not cache.exists()


# --- In a T5. ---


@pytest.fixture(params=[False, True], ids=["golden", "tied"])
def plain(request, golden_config, golden_params):
  """A model with plain kernels."""
  if not request.param:
    return T5LM.create(golden_config, golden_params)
  sizes = {"vocab_size": 70, "num_decoder_layers": 2}
  tied = {"mlp_activations": ("relu",), "logits_via_embedding": True}
  return T5LM.init(toy.t5_config(**sizes, **tied), jax.random.key(0))


def packed(plain, kernel_dtype="float32"):
  return T5LM.create(
    plain.module.config, plain.params, kernel_dtype=kernel_dtype
  )


def block_logits(lm):
  """[2, 9, V] of a ragged source, fed 6 and 3 tokens."""
  rng = np.random.default_rng(0)
  source = rng.integers(2, lm.vocab_size, (2, 7), np.int32)
  source[1, 4:] = 0
  fed = rng.integers(2, lm.vocab_size, (2, 9), np.int32)
  state, first = feed(lm, prefill(lm, jnp.asarray(source)), fed[:, :6], [6, 6])
  _, second = feed(lm, state, fed[:, 6:], [3, 3])
  return np.concatenate([first, second], 1)


@NEEDS_NATIVE
def test_logits_with_panels_equal_those_without(plain):
  want = block_logits(plain)
  actual = block_logits(packed(plain))
  close(actual, want, 1e-4)


@pytest.mark.parametrize("is_native", toy.nightly([True, False], [True]))
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_rounded_kernels(plain, dtype, is_native, monkeypatch):
  """As float32 ones that were rounded, by the native product or XLA's; where
  the native one rounds rows, too, within what they lose."""
  if is_native and not native.is_available():
    pytest.skip("no native product")
  flat = traverse_util.flatten_dict(plain.params, sep="/")
  is_tied = plain.module.config.logits_via_embedding
  for name, leaf in flat.items():
    is_table = is_tied and name == "token_embedder/embedding"
    if name.endswith("kernel") or is_table:
      kernel = in_float64(np.asarray(leaf.T if is_table else leaf), dtype)
      rounded = jnp.asarray(kernel.T if is_table else kernel, jnp.float32)
      flat[name] = rounded
  rounded = plain.replace(params=traverse_util.unflatten_dict(flat, sep="/"))
  monkeypatch.setattr(native, "is_available", lambda: is_native)
  lm = packed(plain, dtype)
  want = block_logits(rounded)
  actual = block_logits(lm)
  if is_native and dtype == "bfloat16_products":
    close(actual, want, 2.0**-5)  # some dozen roundings by 2 ** -9
    assert np.abs(want - actual).max() > 1e-3  # rows were rounded
  else:
    close(actual, want, 1e-4)
  assert np.abs(want - block_logits(plain)).max() > 1e-3  # it matters
  assert lm.module.config.dtype == "float32"


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_plain_kernels_are_not_kept(plain, dtype):
  """Only kernels that meet float32 activations are packed."""
  config = dataclasses.replace(plain.module.config, dtype=dtype)
  lm = T5LM.create(config, plain.params, kernel_dtype=dtype)
  flat = traverse_util.flatten_dict(lm.params, sep="/")
  is_panels = {k for k, x in flat.items() if isinstance(x, native.Panels)}
  head = {"decoder/logits_dense/kernel"}
  if config.logits_via_embedding:
    head = {"token_embedder/embedding"}
  kernels = {name for name in flat if name.endswith("kernel")}
  assert is_panels == (kernels | head if dtype == "float32" else head)
  assert {flat[name].array.dtype for name in is_panels} == {jnp.dtype(dtype)}


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_of_as_many_inputs_share_an_array(dtype, monkeypatch):
  """Up to a size, but for one that is larger; each is found where it lies."""
  panel = 40 * 64 * jnp.dtype(dtype).itemsize
  monkeypatch.setattr(panels, "MOST_BYTES", 4 * panel)
  rng = np.random.default_rng(0)
  widths = {"a": 64, "b": 300, "c": 65, "d": 1, "e": 3}
  kernels = {name: rng.normal(size=(40, n)) for name, n in widths.items()}
  kernels["other"] = rng.normal(size=(72, 10))
  shapes = {name: kernel.shape for name, kernel in kernels.items()}
  packer = native.Packer(shapes, dtype)
  for name in sorted(kernels, reverse=True):
    packer.add(name, kernels[name])
  packed = packer.panels()
  numbers = {id(x.array): x.array.shape[0] for x in packed.values()}
  assert list(numbers.values()) == [1, 5, 4, 1]
  assert [x.first for x in packed.values()] == [0, 0, 0, 2, 3, 0]
  x = jnp.asarray(rng.normal(size=(5, 40)), jnp.float32)
  names = [*"edcba"]
  results = native.products(x, [packed[name] for name in names])
  for name, result in zip(names, results, strict=True):
    kernel = np.asarray(kernels[name], jnp.dtype(dtype)).astype(np.float64)
    close(result, np.asarray(x, np.float64) @ kernel, 1e-4)
    columns = packed[name].columns(jnp.arange(widths[name]))
    np.testing.assert_array_equal(columns, kernel.T.astype(columns.dtype))


@NEEDS_NATIVE
def test_a_call_is_given_each_array_once(plain):
  """However many kernels lie in it; and a model is flattened once."""
  lms = [
    T5LM.create(plain.module.config, plain.params, kernel_dtype="float32")
    for _ in range(2)
  ]
  arrays, structure = jax.tree.flatten(lms[0])
  assert len({id(array) for array in arrays}) == len(arrays)
  assert len(arrays) < len(jax.tree.leaves(lms[0].params))
  again = jax.tree.unflatten(structure, arrays)
  assert jax.tree.structure(again) == jax.tree.structure(lms[1]) == structure
  jax.tree.map(np.testing.assert_array_equal, again.params, lms[1].params)


@NEEDS_NATIVE
def test_panels_of_public_sizes_take_the_room_of_their_kernels():
  kernel = np.zeros((512, 32128), np.float32)
  assert native.pack(kernel, "float32").array.nbytes == kernel.nbytes
  assert native.pack(kernel, "bfloat16").array.nbytes == kernel.nbytes // 2


def test_the_sources_are_installed_beside_the_package():
  setup = pathlib.Path(__file__).parents[2] / "setup.py"
  for path in library.SOURCES:
    assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 80
    assert f'"*{path.suffix}"' in setup.read_text(encoding="utf-8")


COPIES = """
import jax, jax.numpy as jnp
from speccascade.native import panels
kernel = panels.pack(jnp.zeros((64, 4096)), jnp.bfloat16)
def look_up(kernel, index):
  def outer(state):
    def inner(state):
      step, index, total = state
      return step + 1, index, total + kernel.columns(index).sum()
    _, index, total = jax.lax.while_loop(
      lambda state: state[0] < state[1][0] % 2, inner, (0, *state[1:]))
    return state[0] + 1, index + 1, total
  return jax.lax.while_loop(
    lambda state: state[0] < 9, outer, (0, index, jnp.zeros((), jnp.bfloat16)))
found = jax.jit(look_up).lower(kernel, jnp.arange(3)).compile()
print(found.memory_analysis().temp_size_in_bytes / kernel.array.nbytes)
"""


def test_a_loop_looks_columns_up_without_a_copy_of_the_kernel():
  """By the emitters that users have, and that this suite leaves out."""
  done = subprocess.run(
    [sys.executable, "-c", COPIES],
    capture_output=True,
    text=True,
    check=True,
    env=os.environ | {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"},
  )
  assert float(done.stdout) < 0.1
