"""Verification functions of SGLang and sglang-jax, of uniforms as arguments."""

from collections.abc import Callable
import importlib.util
import os
import pathlib
import sys
import types

import numpy as np

from speccascade import judge


def _module_at(package: str, path: str) -> types.ModuleType:
  """Returns one module of an installed package, without the package's own."""
  found = importlib.util.find_spec(package)
  if found is None:
    raise ModuleNotFoundError(f"no module named {package}", name=package)
  file = pathlib.Path(found.submodule_search_locations[0]) / path
  spec = importlib.util.spec_from_file_location(file.stem, file)
  module = importlib.util.module_from_spec(spec)
  sys.modules[file.stem] = module
  spec.loader.exec_module(module)
  return module


def _sglang_verify(block_verification: bool) -> Callable:
  """Returns SGLang's chain kernel, interpreted by Triton, as a verify."""
  os.environ["TRITON_INTERPRET"] = "1"
  import torch

  kernel = _module_at("sglang", "kernels/ops/speculative/reject_sampling.py")

  def sglang_chain_speculative_sampling(tokens, q, p, u_accept, u_draw):
    num_rows, num = tokens.shape
    index = np.arange(num_rows * (num + 1)).reshape(num_rows, num + 1)
    index, candidates, coins, draw, p, q = map(
      torch.tensor,
      (
        *(index, np.pad(tokens, ((0, 0), (1, 0)))),
        *(x.astype(np.float32) for x in (u_accept, u_draw, p, q)),
      ),
    )
    predicts = torch.zeros(index.numel(), dtype=torch.int32)
    num_accepted = torch.zeros(num_rows, dtype=torch.int32)
    kernel.chain_speculative_sampling_triton(
      *(predicts, torch.full_like(index, -1), num_accepted, candidates, index),
      *(None, None, coins, draw, p, q, 1.0, 1.0, True),
      block_verification=block_verification,
    )
    last = predicts.reshape(index.shape).gather(1, num_accepted[:, None].long())
    return num_accepted.numpy(), last[:, 0].numpy()

  return sglang_chain_speculative_sampling


def sglang(only: str = "") -> judge.Judgement:
  """Judges SGLang's rejection sampling of a chain."""
  return judge.judge_verify(_sglang_verify(False), only=only)


def sglang_block(only: str = "") -> judge.Judgement:
  """Judges SGLang's block verification of a chain."""
  return judge.judge_verify(_sglang_verify(True), only=only)


def _sglang_jax_verify() -> Callable:
  """Returns sglang-jax's verification of a tree that is a chain."""
  import jax.numpy as jnp
  from sgl_jax.srt.kernels.speculative import kernel

  def row_of(tokens, p, coins, draw):
    num = tokens.size
    probs = jnp.asarray(p, jnp.float32)
    child, sibling = [*range(1, num + 1), -1], [-1] * (num + 1)
    _, accepted, predicts = kernel.tree_speculative_sampling_target_only(
      jnp.zeros(num + 1, jnp.int32),
      jnp.full((1, num + 1), -1, jnp.int32),
      jnp.zeros(1, jnp.int32),
      jnp.asarray([[0, *tokens.tolist()]], jnp.int32),
      *(jnp.asarray([x]) for x in (range(num + 1), child, sibling)),
      jnp.asarray([[*coins, 0]], jnp.float32),
      jnp.asarray([draw], jnp.float32),
      probs,
      jnp.zeros_like(probs),
    )
    num_accepted = int(accepted[0])
    return num_accepted, int(predicts[num_accepted])

  def sglang_jax_tree_sampling(tokens, q, p, u_accept, u_draw):
    rows = zip(tokens, p, u_accept, u_draw)
    return tuple(np.array([row_of(*row) for row in rows]).T)

  return sglang_jax_tree_sampling


def sglang_jax(only: str = "") -> judge.Judgement:
  """Judges sglang-jax's verification of a chain."""
  return judge.judge_verify(_sglang_jax_verify(), only=only)
