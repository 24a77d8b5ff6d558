"""Times our decoders; one JSON request a line on stdin, one answer a line.

Started by `race.py` with the folder of the weights, and run in turn with the
peer. A request is {"case": name, ...}, an answer {"seconds": ..., ...}. What is
compiled stays compiled. Kernels have the type asked for. Activations are
float32 on a CPU, and elsewhere have the kernels' type.
"""

import concurrent.futures
import functools
import json
import os
import pathlib
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import shapes
from speccascade.checkpoints import restore
from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.laws import draws, numerics, sampling, targets
from speccascade.decoding.loops.execution import LoopSettings
from speccascade.decoding.loops.speculative import speculative
from speccascade.decoding.programs import decoders, methods
from speccascade.decoding.verification import steps
from speccascade.models import T5LM

NO_EOS = -1


def forced(rate: jax.Array):
  """Returns a verifier step that accepts each draft with probability `rate`.

  It does the work of token verification, so that it costs the same; only the
  outcome is not the models'.
  """

  def verify(tokens, count, q, pi, u_accept, u_draw):
    # What was drawn has q > 0, and is taken where -q < pi.
    u_accept = jnp.where(u_accept < rate, -1, jnp.inf)
    return steps.token_verify(tokens, count, q, pi, u_accept, u_draw)

  return verify


_loading = threading.Lock()


def model(shape: str, role: str, kernels: str) -> T5LM:
  """Loads what the peer saved, once: both race on the same weights."""
  with _loading:
    return _model(shape, role, kernels)


@functools.cache
def _model(shape, role, kernels):
  checkpoint = restore.load(
    pathlib.Path(sys.argv[1]) / shapes.folder(shape, role)
  )
  dtype = "float32" if jax.default_backend() == "cpu" else kernels
  return T5LM.create(
    checkpoint.config, checkpoint.params, dtype, kernel_dtype=kernels
  )


def source(rows: int, ragged: bool = False):
  rng = np.random.default_rng(0)
  tokens = rng.integers(3, 500, (rows, shapes.SOURCE_LEN))
  tokens[0] = shapes.source_tokens()
  if ragged:
    lengths = rng.integers(4, shapes.SOURCE_LEN + 1, rows)
    tokens[np.arange(shapes.SOURCE_LEN)[None] >= lengths[:, None]] = 0
  return jnp.asarray(tokens, jnp.int32)


def clock(function, repeats: int) -> float:
  """Returns the least seconds of a call, after one that compiles."""
  jax.block_until_ready(function())
  times = []
  for _ in range(repeats):
    begin = time.perf_counter()
    jax.block_until_ready(function())
    times.append(time.perf_counter() - begin)
  return min(times)


@functools.cache
def _ar(shape, kernels, rows, temperature):
  lm = model(shape, "verifier", kernels)
  decoder = decoders.decoder(
    "verifier", gamma=1, max_decode_len=shapes.NEW_TOKENS, eos_id=NO_EOS
  )
  keys = draws.row_keys(0, 0, jnp.arange(rows))
  inputs = source(rows, ragged=rows > 1)
  how = sampling.Sampling.create(temperature)
  return lambda: decoder(None, lm, inputs, keys, 0.0, how)


def ar(*, shape, kernels="float32", rows=1, temperature=0.0, repeats=1):
  """Seconds of NEW_TOKENS tokens, encoder included."""
  run = _ar(shape, kernels, rows, temperature)
  seconds = clock(run, repeats)
  return {"seconds": seconds, "tokens": run().tokens[0].tolist()}


@functools.cache
def _block(shape, role, kernels, width, loops):
  """A hot loop of decoder passes of `width` tokens at one place."""
  lm = model(shape, role, kernels)
  state = lm.prefill(source(1), capacity=shapes.NEW_TOKENS + 16)
  warm = jnp.full((1, 16), 3, jnp.int32)
  state, _ = lm.extend(state, warm, jnp.array([16]))
  how = sampling.Sampling.create(0.0)

  @jax.jit
  def run(lm, state):
    def body(_, carry):
      state, tokens = carry
      state, out = lm.extend(state, tokens, jnp.array([width]))
      _, law = how.laws(out.logits)
      state = lm.rewind(state, jnp.array([16]))
      return state, numerics.first_argmax(law)

    tokens = jnp.full((1, width), 3, jnp.int32)
    return jax.lax.fori_loop(0, loops, body, (state, tokens))[1]

  return lambda: run(lm, state)


def block(
  *, shape, width, role="verifier", kernels="float32", loops=64, repeats=1
):
  """Seconds of one decoder pass over `width` tokens, arg-max included."""
  run = _block(shape, role, kernels, width, loops)
  return {"seconds": clock(run, repeats) / loops}


@functools.cache
def _prefill(shape, role, kernels):
  lm = model(shape, role, kernels)
  capacity = shapes.NEW_TOKENS + 16
  run = jax.jit(lambda lm, tokens: lm.prefill(tokens, capacity=capacity))
  return lambda: run(lm, source(1))


def prefill(*, shape, role="verifier", kernels="float32", repeats=1):
  """Seconds of the encoder, and of the source's keys and values."""
  return {"seconds": clock(_prefill(shape, role, kernels), repeats)}


@functools.cache
def _spec(shape, gamma, target, temperature, top_p, rows, kernels):
  """Speculation as a function of the forced acceptance rate and alpha."""
  verifier = model(shape, "verifier", kernels)
  drafter = model(shapes.DRAFTERS[shape], "drafter", kernels)
  chosen = targets.lossless
  if target is not None:
    chosen = methods.find(target).target

  @jax.jit
  def run(drafter, verifier, inputs, keys, rate, alpha, how):
    settings = LoopSettings(
      sampling=how,
      max_decode_len=shapes.NEW_TOKENS,
      eos_id=NO_EOS,
      target=chosen,
      alpha=alpha,
      verify=forced(rate),
    )
    drafter = AutoregressiveDrafter(drafter, gamma, behind=0)
    loop = speculative.run(drafter, verifier, inputs, keys, settings)
    return loop.decoded(loop.advance(loop.begin()))

  keys = draws.row_keys(0, 0, jnp.arange(rows))
  how = sampling.Sampling.create(temperature, top_p=top_p)
  inputs = source(rows, ragged=rows > 1)
  return lambda rate, alpha: run(
    drafter,
    verifier,
    inputs,
    keys,
    jnp.float32(rate),
    jnp.float32(alpha),
    how,
  )


def spec(
  *,
  shape,
  gamma,
  rate,
  target=None,
  temperature=0.0,
  alpha=0.3,
  top_p=None,
  rows=1,
  kernels="float32",
  repeats=1,
):
  """Seconds of NEW_TOKENS tokens with forced acceptance, and its blocks."""
  run = _spec(shape, gamma, target, temperature, top_p, rows, kernels)
  run = functools.partial(run, rate, alpha)
  seconds = clock(run, repeats)
  return {"seconds": seconds, "blocks": float(run().stats.num_blocks.mean())}


def bandwidth(*, megabytes=400, repeats=1):
  """Bytes a second of a plain sum over a large array."""
  x = jnp.ones((megabytes * 250_000,), jnp.float32)
  total = jax.jit(jnp.sum)
  seconds = clock(lambda: total(x), repeats)
  return {"seconds": seconds, "bytes_per_s": x.nbytes / seconds}


def compile_ahead(*, requests):
  """Answers all requests once, side by side, so that they compile together.

  For accelerators, where a program takes ten seconds to compile.
  """
  # All acceptance rates share one program.
  distinct = {json.dumps(x | {"rate": 0.5}): x for x in requests}
  begin = time.perf_counter()
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    list(pool.map(answer, distinct.values()))
  return {"seconds": time.perf_counter() - begin}


CASES = {
  "ar": ar,
  "bandwidth": bandwidth,
  "block": block,
  "compile": compile_ahead,
  "prefill": prefill,
  "spec": spec,
}


def answer(request: dict) -> dict:
  """Returns what a request asks for."""
  fields = {name: value for name, value in request.items() if name != "case"}
  return CASES[request["case"]](**fields)


def main():
  # A GPU would round what float32 multiplies, and the peer does not.
  jax.config.update("jax_default_matmul_precision", "float32")
  device = jax.devices()[0]
  about = {
    "device": str(device.device_kind),
    "platform": device.platform,
    "jax": jax.__version__,
  }
  print(json.dumps(about), flush=True)
  for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
  main()
