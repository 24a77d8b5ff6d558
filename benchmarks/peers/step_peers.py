"""Verification functions of transformers, vLLM, MTPLX and tpu-inference.

Each draws its own random numbers, so each is judged as a step: from
(tokens [G], q [G, V], p [G+1, V]) to the tokens that the block emits.
"""

from collections.abc import Callable
import types

import numpy as np

from speccascade import judge


def _logits(torch, probs):
  """Returns float32 logits of probabilities as a tensor."""
  with np.errstate(divide="ignore"):
    return torch.tensor(np.log(probs), dtype=torch.float32)


def transformers_step(weight: float | None = None) -> Callable:
  """Returns transformers' `_speculative_sampling` as a step.

  Args:
    weight: its `assistant_ensemble_weight`; None is lossless by its claim.
  """
  import torch
  from transformers.generation import utils

  def transformers_speculative_sampling(tokens, q, p):
    ids = torch.tensor([[0, *tokens.tolist()]])
    q_logits, p_logits = (_logits(torch, x)[None] for x in (q, p))
    more = {} if weight is None else {"assistant_ensemble_weight": weight}
    valid, _ = utils._speculative_sampling(
      ids, q_logits, len(tokens), p_logits, **more
    )
    return valid[0]

  return transformers_speculative_sampling


def transformers(only: str = "") -> judge.Judgement:
  """Judges the speculative step of transformers."""
  return judge.judge_step(transformers_step(), only=only)


def _mixture(q, p):
  """Returns what transformers claims to sample with a weight of 0.5."""
  return 0.5 * p + 0.5 * q


def transformers_ensemble(only: str = "") -> judge.Judgement:
  """Judges static ensemble verification, against the mixture it states."""
  step = transformers_step(0.5)
  return judge.judge_step(step, target=_mixture, only=only)


def transformers_ensemble_drafts(only: str = "") -> judge.Judgement:
  """Judges static ensemble verification without the bonus token."""
  step = transformers_step(0.5)

  def transformers_without_bonus(tokens, q, p):
    return step(tokens, q, p)[: len(tokens)]

  return judge.judge_step(
    transformers_without_bonus, target=_mixture, only=only
  )


def _vllm_step(has_draft_probs: bool) -> Callable:
  """Returns vLLM's `rejection_sample`, on its CPU kernels, as a step."""
  import torch
  from vllm.platforms import current_platform
  from vllm.v1.sample import rejection_sampler as vllm_sampler

  current_platform.register_triton_kernel_overrides()

  # What the function reads of vLLM's SamplingMetadata.
  metadata = types.SimpleNamespace(
    all_greedy=False,
    all_random=True,
    temperature=torch.ones(1),
    generators={},
  )

  def vllm_rejection_sample(tokens, q, p):
    num = len(tokens)
    bonus = torch.multinomial(torch.tensor(p[-1:]), 1)
    out = vllm_sampler.rejection_sample(
      torch.tensor(tokens, dtype=torch.int32),
      [num],
      num,
      torch.tensor([num], dtype=torch.int32),
      torch.tensor(q, dtype=torch.float32) if has_draft_probs else None,
      _logits(torch, p[:-1]),
      bonus.to(torch.int32),
      metadata,
    )[0]
    return out[out != vllm_sampler.PLACEHOLDER_TOKEN_ID]

  return vllm_rejection_sample


def vllm(only: str = "") -> judge.Judgement:
  """Judges vLLM's rejection sampling with the draft's probabilities."""
  return judge.judge_step(_vllm_step(True), only=only)


def vllm_one_hot(only: str = "") -> judge.Judgement:
  """Judges vLLM's rejection sampling without the draft's probabilities."""
  return judge.judge_step(_vllm_step(False), only=only)


def mtplx(only: str = "") -> judge.Judgement:
  """Judges a block of MTPLX's `verify_one_token`."""
  from mtplx import speculative

  def mtplx_verify(tokens, q, p):
    rng = np.random.default_rng()
    out = []
    for token, q_row, p_row in zip(tokens, q, p):
      decision = speculative.verify_one_token(p_row, q_row, int(token), rng)
      out.append(decision.token_id)
      if not decision.accepted:
        return out
    return [*out, speculative.sample_from_distribution(p[-1], rng)]

  return judge.judge_step(mtplx_verify, only=only)


def _tpu_step() -> Callable:
  """Returns tpu-inference's `rejection_sample` as a step."""
  import jax
  import jax.numpy as jnp
  from tpu_inference.layers.jax.sample import rejection_sampler

  def tpu_rejection_sample(tokens, q, p):
    key, bonus_key = jax.random.split(jax.random.key(0))
    bonus = jax.random.categorical(bonus_key, jnp.log(p[-1:]))
    out = rejection_sampler.rejection_sample(
      jnp.asarray(tokens, jnp.int32),
      jnp.asarray([len(tokens)], jnp.int32),
      None,
      jnp.asarray(p[:-1], jnp.float32),
      bonus.astype(jnp.int32),
      True,
      key,
    )
    out = np.asarray(out)
    return out[out != rejection_sampler.PLACEHOLDER_TOKEN_ID]

  return tpu_rejection_sample


def tpu_inference_one_hot(only: str = "") -> judge.Judgement:
  """Judges tpu-inference's rejection sampling as its runner calls it."""
  return judge.judge_step(_tpu_step(), only=only)
