"""Methods on small networks: a T5 and a Llama, heads, look-ahead embeddings.

The verifiers are the golden models of the tests, whose weights are files. A
drafter is the same model with noise on its weights.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import checkpoints, decoding, models
from tests.audit.recording.chains import TREES, decode
from tests.audit.recording.finding import named
from tests.audit.recording.record import Record

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
EOS = 1  # of the T5; to a Llama it is a token like any other
LENGTH = 10
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
  "rule": ("spec_cascade_opt", {}),
  "rule, T=0": ("spec_cascade_opt", {"temperature": 0}),
  "verifier": ("verifier", {"temperature": 0}),
  "sequential": ("token_cascade_chow", {}),
  "block": ("spec_decode", {"verification": "block"}),
  "bonus": ("spec_cascade_diff", {"bonus": "verifier", "trace": False}),
  "tree": (
    "spec_cascade_opt",
    TREES["parents"] | {"trace": "trees", "verification": "traversal"},
  ),
  "paths": (
    "spec_decode",
    TREES["paths"] | {"verification": "k_seq", "trace": False},
  ),
}


def noisy(params: Any, seed: int) -> Any:
  """Returns parameters with noise of a fifth of their spread."""
  rng = np.random.default_rng(seed)

  def add(leaf):
    leaf = np.asarray(leaf, np.float32)
    noise = rng.normal(0, 0.2 * leaf.std() + 1e-3, leaf.shape)
    return (leaf + noise).astype(np.float32)

  return jax.tree.map(add, params)


def record_kind(record: Record, kind: str, folder: str, lm: type, inputs):
  """Records every way of one kind of network."""
  checkpoint = checkpoints.load(GOLDEN / folder)
  config, params = checkpoint.config, checkpoint.params
  params = jax.tree.map(np.asarray, params)
  verifier = lm.create(config, params)
  drafter = lm.create(config, noisy(params, 1))
  settings = {"inputs": inputs, "max_decode_len": LENGTH, "eos_id": EOS}
  for way, (method, more) in WAYS.items():
    decode(
      record, f"{kind}/{way}", method, drafter, verifier, **settings | more
    )
  for name, heads_kind, shape in (
    ("medusa heads", "medusa", {}),
    ("blockwise heads", "blockwise", TREES["branching"]),
    ("look-ahead", "lookahead", {}),
  ):
    sizes = models.HeadsConfig(kind=heads_kind, num_heads=4, mlp_dim=16)
    sizes = sizes.of_verifier(config, params)
    initial = named("initial_params")(sizes, verifier.module, params)
    made = named("TrainedHeads").create(sizes, noisy(initial, 2))
    decode(
      record,
      f"{kind}/{name}",
      "spec_decode",
      made,
      verifier,
      **settings | shape | {"trace": False},
    )


def record_t5(record: Record):
  """A T5 of two layers that reads sources of several lengths."""
  with np.load(GOLDEN / "tiny_a" / "golden.npz") as arrays:
    inputs = jnp.asarray(arrays["in/encoder_input_tokens"])
  record_kind(record, "t5", "tiny_a/hf", models.T5LM, inputs)


def record_llama(record: Record):
  """A Llama that reads prompts of several lengths, padded at either end."""
  rng = np.random.default_rng(3)
  texts = rng.integers(3, 40, (4, 9))
  lengths = np.array([3, 9, 1, 6])
  is_text = np.arange(9) < lengths[:, None]
  prompts = np.where(is_text, texts, decoding.prompts.PAD)
  prompts[0] = np.roll(prompts[0], 4)
  inputs = jnp.asarray(prompts, jnp.int32)
  record_kind(record, "llama", "llama/llama", models.LlamaLM, inputs)
  qwen = checkpoints.load(GOLDEN / "llama" / "qwen3")
  lm = models.LlamaLM.create(qwen.config, qwen.params)
  decode(
    record,
    "qwen3/rule",
    "spec_cascade_opt",
    lm,
    lm,
    inputs=inputs,
    max_decode_len=LENGTH,
    eos_id=EOS,
  )


PARTS = {"t5": record_t5, "llama": record_llama}
