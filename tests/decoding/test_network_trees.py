"""Trees over networks: greedily, the tokens of the verifier alone."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  BranchedDrafter,
  MaxGramDrafter,
  cascade_drafter,
)
from tests import toy
from tests.models.growing import (
  LLAMA,
  PROMPTS,
  SOURCES,
  T5,
  T5GEMMA,
  V,
  network,
)

CONFIGS = {"t5": T5, "t5gemma": T5GEMMA, "llama": LLAMA}
# Both are three deep along the first child of each node.
TREES = {
  "wide": {"tree": (4, 2, 1), "gamma": 3},
  "uneven": {
    "tree": (-1, -1, -1, 0, 0, 1, 3),
    "gamma": 3,
    "verification": "traversal",
  },
}
LENGTH = 24
# With plain kernels, and with packed ones, which native passes read.
CASES = [
  (name, kernels, shape)
  for name in CONFIGS
  for kernels in (None, "float32")
  for shape in TREES
]


@functools.cache
def pair(name, kernels):
  """Returns (drafter, verifier), which agree at times."""
  config = CONFIGS[name]
  return network(config, kernels, noise=0.4), network(config, kernels)


def decode(method, models, **options):
  """Returns what is written greedily for three ragged rows."""
  texts = PROMPTS if models[1].prompted else SOURCES
  return toy.greedily(
    method,
    models,
    inputs=jnp.asarray(texts, jnp.int32),
    max_decode_len=LENGTH,
    eos_id=V,  # nothing ends
    **options,
  )


@pytest.mark.parametrize(
  ("name", "kernels", "shape"),
  toy.nightly(
    CASES, [("llama", "float32", "uneven"), ("t5gemma", None, "wide")]
  ),
)
def test_a_greedy_tree_writes_the_verifiers_tokens(name, kernels, shape):
  models = pair(name, kernels)
  got = decode("spec_decode", models, **TREES[shape])
  # Some paths lead through later children, so that caches move their slots.
  assert got.stats.extra["accepted_by_rank"][..., 1:].sum() > 0
  # A drafter that is the verifier is always right if it keeps what was
  # accepted.
  same = decode("spec_decode", (models[1], models[1]), **TREES[shape])
  assert np.array_equal(same.stats.num_blocks, [LENGTH // 4] * 3)


@pytest.mark.parametrize("kernels", toy.nightly([None, "float32"], ["float32"]))
def test_the_tree_of_a_cascade_of_llamas(kernels):
  """K and the first drafts are those of Chen et al. for such models."""
  drafter, verifier = pair("llama", kernels)
  copier = MaxGramDrafter.create(
    [(7 * token + 3) % V for token in range(V)],
    width=1,
    vocab_size=V,
    prompted=True,
  )
  cascade = cascade_drafter([drafter], copier, [[1, 3], [0, 1]])
  models = BranchedDrafter(cascade, 8), verifier
  assert models[0].tree.parents == (-1,) * 8 + (0, 8, 9)
  got = decode("cascade_drafting", models, gamma=4)
  assert np.array_equal(got.stats.drafted, 11 * got.stats.num_blocks)
  first = got.stats.extra["accepted_by_rank"][:, 0].sum(axis=0)
  assert first[0] > 0
  assert first[1:].sum() > 0
