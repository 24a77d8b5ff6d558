"""Whole samplers of mlx-lm and gpt-fast, and tpu-inference's settings."""

from collections.abc import Callable

import numpy as np

from speccascade import judge


def mlx_lm(only: str = "") -> judge.Judgement:
  """Judges mlx-lm's `speculative_generate_step`, by samples."""
  from mlx import nn
  import mlx.core as mx
  from mlx_lm import sample_utils
  from mlx_lm.generate import speculative_generate_step

  class Table(nn.Module):
    """Logits by table; the cache of keys holds the tokens themselves."""

    def __init__(self, logits_after: Callable):
      super().__init__()
      self.logits_after = logits_after
      self.layers = [None]

    def __call__(self, inputs, cache):
      states = inputs[:, None, :, None].astype(mx.float32)
      text = cache[0].update_and_fetch(states, states)[0][0, 0, :, 0]
      text = [int(x) for x in text.tolist()]
      ends = range(len(text) - inputs.shape[1] + 1, len(text) + 1)
      rows = np.stack([self.logits_after(text[:end]) for end in ends])
      return mx.array(rows[None].astype(np.float32))

  def mlx_lm_speculative_generate_step(problem, seed):
    mx.random.seed(seed)
    tokens = speculative_generate_step(
      mx.array(problem.prompt),
      Table(problem.verifier),
      Table(problem.drafter),
      num_draft_tokens=problem.gamma,
      max_tokens=problem.num_tokens,
      sampler=sample_utils.make_sampler(problem.temperature),
    )
    return [int(token) for token, _, _ in tokens]

  return judge.judge_sampler(
    mlx_lm_speculative_generate_step,
    settings=("temperature",),
    resolution=0.1,
    only=only,
  )


def gpt_fast(only: str = "") -> judge.Judgement:
  """Judges gpt-fast's `speculative_decode`."""
  import generate
  import torch

  class Table:
    """Logits by table; tokens are kept by their places, as keys are."""

    def __init__(self, logits_after: Callable, text):
      self.logits_after = logits_after
      self.text = dict(enumerate(text))

    def __call__(self, tokens, places):
      rows = []
      for token, place in zip(tokens[0].tolist(), places.tolist()):
        self.text[place] = token
        before = [self.text[i] for i in range(place + 1)]
        rows.append(self.logits_after(before))
      return torch.tensor(np.stack(rows)[None], dtype=torch.float32)

  def gpt_fast_speculative_decode(problem, seed):
    torch.manual_seed(seed)
    text = list(problem.prompt)
    models = [
      Table(logits_after, text[:-1])
      for logits_after in (problem.verifier, problem.drafter)
    ]
    while len(text) < len(problem.prompt) + problem.num_tokens:
      text += generate.speculative_decode(
        *models,
        torch.tensor(text[-1:]),
        len(text) - 1,
        problem.gamma,
        temperature=problem.temperature,
        top_k=problem.top_k,
      ).tolist()
    return text[len(problem.prompt) :]

  return judge.judge_sampler(
    gpt_fast_speculative_decode,
    settings=("temperature", "top_k"),
    exact=True,
    only=only,
  )


def tpu_inference_settings(only: str = "") -> judge.Judgement:
  """Judges tpu-inference's filters of verification, by samples.

  The first token and the bonus are drawn as its plain sampler draws them.
  Drafts are the drafter's likeliest tokens, without probabilities, as its
  runner hands them over.
  """
  import jax
  import jax.numpy as jnp
  from tpu_inference.layers.jax.sample import (
    rejection_sampler,
    sampling,
    sampling_metadata,
  )

  @jax.jit
  def write(key, logits, drafts, metadata):
    num_rows, num, size = logits.shape
    key, bonus_key, verify_key = jax.random.split(key, 3)
    nums = jnp.full(num_rows, num - 1, jnp.int32)
    probs = rejection_sampler._compute_probs(
      logits[:, :-1].reshape(-1, size), nums, metadata
    )
    bonus = jax.random.categorical(
      bonus_key, sampling._apply_sampling_transforms(logits[:, -1], metadata)
    )
    out = rejection_sampler.rejection_sample(
      drafts.reshape(-1), nums, None, probs, bonus, True, verify_key
    )
    drafted = out[:-num_rows].reshape(num_rows, -1)
    return jnp.concatenate([drafted, out[-num_rows:, None]], axis=1), key

  def tpu_sampler(problem, seed):
    key = jax.random.key(seed)
    texts = [list(prompt) for prompt in problem.prompts]
    length = len(problem.prompt) + problem.num_tokens
    settings = problem.temperature, problem.top_k or 0, problem.top_p or 1.0
    temperature, top_k, top_p = (
      jnp.full(len(texts), x, y)
      for x, y in zip(settings, (jnp.float32, jnp.int32, jnp.float32))
    )
    metadata = sampling_metadata.TPUSupportedSamplingMetadata(
      temperature=temperature, top_k=top_k, top_p=top_p, do_sampling=True
    )
    while min(len(text) for text in texts) < length:
      drafted, logits = [], []
      for text in texts:
        whole = list(text)
        for _ in range(problem.gamma):
          whole.append(int(np.argmax(problem.drafter(whole))))
        ends = range(len(text), len(whole) + 1)
        drafted.append(whole[len(text) :])
        logits.append([problem.verifier(whole[:end]) for end in ends])
      out, key = write(
        key,
        jnp.asarray(logits, jnp.float32),
        jnp.asarray(drafted, jnp.int32),
        metadata,
      )
      for text, row in zip(texts, np.asarray(out)):
        text += row[row != rejection_sampler.PLACEHOLDER_TOKEN_ID].tolist()
    return [text[len(problem.prompt) : length] for text in texts]

  return judge.judge_sampler(
    tpu_sampler,
    settings=("temperature", "top_k", "top_p"),
    batch=500,
    only=only,
  )
