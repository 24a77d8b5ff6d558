"""Draft heads and look-ahead embeddings that draft some tokens alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models import cut_head
from tests import toy
from tests.models import head_samples
from tests.models.feeding import NEEDS_NATIVE
from tests.models.test_heads_model import heads_of
from tests.models.test_lookahead_model import embeddings_of, verifier_of

# In no order; of 40 tokens.
IDS = (31, 3, 8, 2, 5, 30, 17, 39, 6)
CUT = np.setdiff1d(np.arange(40), IDS)
KINDS = ("medusa", "blockwise", "lookahead")


def drafting(kind, verifier):
  """Returns draft heads, or look-ahead embeddings, of a verifier."""
  if kind == "lookahead":
    return embeddings_of(verifier)
  return heads_of(verifier, kind)


def head_logits(heads, verifier):
  """Returns the logits [2, 2, V] of two drafts."""
  if not hasattr(heads, "head_logits"):
    model = heads.language_model(verifier)
    state = model.prefill(jnp.asarray([[5, 3], [6, 9]], jnp.int32), capacity=4)
    block = jnp.asarray([[3, 40], [38, 41]], jnp.int32)  # embeddings from 40 on
    return model.extend(state, block, jnp.full(2, 2, jnp.int32))[1].logits
  hidden = jax.random.normal(jax.random.key(1), (2, heads.width))
  return heads.head_logits(verifier, hidden, 2)


@pytest.mark.parametrize(
  ("model", "kind", "is_tied", "kernels"),
  [
    *(("llama", kind, True, None) for kind in KINDS),
    ("t5", "blockwise", False, None),
    pytest.param("t5", "lookahead", True, "float32", marks=NEEDS_NATIVE),
    pytest.param("llama", "blockwise", True, "bfloat16", marks=NEEDS_NATIVE),
    *toy.nightly(
      [("t5", "blockwise", True, None), ("llama", "lookahead", False, None)]
    ),
  ],
)
def test_logits_are_those_of_whole_heads_at_kept_tokens(
  model, kind, is_tied, kernels
):
  verifier = verifier_of(model, logits_via_embedding=is_tied)
  heads = drafting(kind, verifier)
  if kernels is not None:
    verifier = type(verifier).create(
      verifier.module.config, verifier.params, kernel_dtype=kernels
    )
  cut = heads.cut_to(IDS, verifier)
  shapes = {leaf.shape for leaf in jax.tree.leaves(cut.params)}
  assert all(40 not in shape for shape in shapes)
  actual, wanted = (
    jax.jit(head_logits)(each, verifier) for each in (cut, heads)
  )
  assert np.all(np.isneginf(actual[..., CUT]))
  np.testing.assert_allclose(
    actual[..., sorted(IDS)], wanted[..., sorted(IDS)], rtol=1e-5, atol=1e-5
  )
  # The verifier itself keeps all tokens.
  assert cut_head.NAME not in verifier.params


@pytest.mark.parametrize("kind", KINDS)
def test_ids_that_are_none_of_the_heads(kind):
  verifier = verifier_of("llama")
  heads = drafting(kind, verifier)
  with pytest.raises(ValueError, match="the id 40; wanted ids from 0 to 39"):
    heads.cut_to([3, 40], verifier)
  with pytest.raises(ValueError, match="cut already"):
    heads.cut_to(IDS, verifier).cut_to(IDS, verifier)
  if kind == "medusa":
    return
  with pytest.raises(ValueError, match="which is a object; wanted a T5"):
    heads.cut_to(IDS, object())


CASES = [
  (model, kind, way)
  for model in head_samples.MODELS
  for kind in KINDS
  for way in head_samples.WAYS
]
QUICK = [("llama", kind, "chain") for kind in KINDS]


@pytest.mark.parametrize(("model", "kind", "way"), toy.nightly(CASES, QUICK))
def test_samples_have_the_verifiers_law(model, kind, way):
  """Half of the tokens are never drafted; the first draft may be refused."""
  decoded = head_samples.decode(
    lambda verifier: drafting(kind, verifier).cut_to((1, 2, 5, 6), verifier),
    model,
    **head_samples.WAYS[way],
  )
  assert decoded.stats.accepted.sum() > 0.05 * head_samples.ROWS
  assert np.isin(decoded.tokens, (3, 4, 7)).any()
