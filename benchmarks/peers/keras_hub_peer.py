"""keras-hub's `SpeculativeSampler`, with models that are tables of logits."""

import numpy as np

from benchmarks.peers import judge_exactly
from speccascade import judge


def _keras_sample(problem: judge.Problem, seed: int, num_rows: int):
  """Returns the tokens that the sampler writes after each prompt."""
  import keras
  import keras_hub

  ops = keras.ops

  def logits_of(model, prompt, index):
    rows = np.asarray(ops.convert_to_numpy(prompt))
    end = int(ops.convert_to_numpy(index))
    return ops.convert_to_tensor(
      np.stack([model(row[:end].tolist()) for row in rows]), "float32"
    )

  def call(model):
    def call_model(prompt, cache, index):
      return logits_of(model, prompt, index), None, cache

    return call_model

  sampler = keras_hub.samplers.SpeculativeSampler(
    num_speculative_tokens=problem.gamma,
    base_sampler=keras_hub.samplers.RandomSampler(seed=seed),
    temperature=problem.temperature,
    seed=seed,
  )
  prompts = np.array(problem.prompts, np.int32)
  room = np.zeros((len(prompts), problem.num_tokens), np.int32)
  mask = np.concatenate([np.ones_like(prompts), room], 1).astype(bool)
  out = sampler(
    next=call(problem.verifier),
    draft_next=call(problem.drafter),
    prompt=ops.convert_to_tensor(np.concatenate([prompts, room], 1)),
    mask=ops.convert_to_tensor(mask),
    index=prompts.shape[1],
    stop_token_ids=None if problem.eos is None else [problem.eos],
  )
  texts = np.asarray(ops.convert_to_numpy(out))[:, prompts.shape[1] :]
  return texts if num_rows > 1 else texts[0]


def keras_hub(only: str = "") -> judge.Judgement:
  """Judges a row of keras-hub's sampler; Keras runs on torch."""

  def keras_speculative_sampler(problem, seed):
    return _keras_sample(problem, seed, 1)

  # The sampler adds 1e-7 to probabilities before it takes their logarithms.
  return judge_exactly(
    keras_speculative_sampler, only, ("temperature",), tolerance=1e-5
  )
