"""Kinds of draft heads over tiny T5s and Llamas: whole decodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding import METHODS, Sampling
from speccascade.models import T5LM, HeadsConfig, HeadsModel, draft_heads
from speccascade.models.heads_model import HeadsNetwork
from tests import toy
from tests.decoding.test_sampled_laws import T5_SOURCES, tiny_t5
from tests.models import head_samples


def heads_of(verifier, kind: str, num_heads: int = 2, noise: float = 0.3):
  """Returns heads of a verifier that say something else than the verifier."""
  config = HeadsConfig(kind=kind, num_heads=num_heads, mlp_dim=8)
  config = config.of_verifier(verifier.module.config, verifier.params)
  params = draft_heads.initial_params(config, verifier.module, verifier.params)
  rng = np.random.default_rng(1)
  params = jax.tree.map(
    lambda leaf: leaf + noise * rng.normal(0, 1, leaf.shape), params
  )
  return HeadsModel.create(config, params)


CASES = [
  (model, kind, way)
  for model in head_samples.MODELS
  for kind in ("medusa", "blockwise")
  for way in head_samples.WAYS
]
QUICK = [("llama", "blockwise", "chain")]


@pytest.mark.parametrize(("model", "kind", "way"), toy.nightly(CASES, QUICK))
def test_samples_have_the_verifiers_law(model, kind, way):
  decoded = head_samples.decode(
    lambda verifier: heads_of(verifier, kind), model, **head_samples.WAYS[way]
  )
  # Heads take part from the second block on.
  assert decoded.stats.accepted.sum() > 0.05 * head_samples.ROWS
  assert np.all(decoded.stats.accepted_at[:, 0] >= 1)


@pytest.mark.parametrize(
  "kind", toy.nightly(["medusa", "blockwise"], ["blockwise"])
)
def test_packed_kernels_give_the_same_heads(kind):
  config = toy.t5_config()
  lm = T5LM.init(config, jax.random.key(0))
  packed = T5LM.create(config, lm.params, kernel_dtype="float32")
  heads = heads_of(lm, kind, num_heads=3)
  hidden = jax.random.normal(jax.random.key(1), (2, config.emb_dim))
  want = heads.head_logits(lm, hidden, 3)
  np.testing.assert_allclose(
    heads.head_logits(packed, hidden, 3), want, atol=1e-4
  )
  # Fewer heads are the first ones.
  np.testing.assert_allclose(
    heads.head_logits(lm, hidden, 1), want[:, :1], atol=1e-6
  )
  assert heads.width == config.emb_dim
  assert heads.vocab_size == config.vocab_size


@pytest.mark.parametrize("kind", ["medusa", "blockwise"])
def test_heads_on_a_tpu(monkeypatch, kind):
  """Kernels as the verifier's, and an empty row beside a single one."""
  config = toy.t5_config()
  lm = T5LM.init(config, jax.random.key(0))
  heads = heads_of(lm, kind)
  hidden = jax.random.normal(jax.random.key(1), (2, config.emb_dim))

  def create():
    return HeadsModel.create(
      heads.config, heads.params, kernel_dtype="bfloat16"
    )

  dtypes = lambda lm: {str(leaf.dtype) for leaf in jax.tree.leaves(lm.params)}
  assert dtypes(create()) == {"float32"}
  monkeypatch.setattr(native, "platform", lambda: "tpu")
  assert dtypes(create()) == {"bfloat16"}
  rounded = jax.tree.map(
    lambda leaf: leaf.astype("bfloat16").astype("float32"), heads.params
  )
  want = heads.replace(params=rounded).head_logits(lm, hidden, 2)
  for rows in (hidden, hidden[:1]):
    got = create().head_logits(lm, rows, 2)
    np.testing.assert_allclose(got, want[: len(rows)], atol=1e-5)


def test_a_hidden_state_is_what_training_reads():
  """The hidden states of cached blocks are those of teacher forcing."""
  config = toy.t5_config()
  lm = T5LM.init(config, jax.random.key(0))
  rng = np.random.default_rng(0)
  inputs = jnp.asarray(rng.integers(2, 40, (2, 5)), jnp.int32)
  tokens = jnp.asarray(rng.integers(2, 40, (2, 4)), jnp.int32)

  @jax.jit
  def run(lm):
    state = lm.prefill(inputs, capacity=4)
    _, out = lm.extend(state, tokens, jnp.full(2, 4))
    variables = {"params": lm.params}
    forced = lm.module.apply(variables, inputs, tokens, tokens, method="hidden")
    return out, forced, lm.project(out.hidden)

  out, forced, logits = run(lm)
  np.testing.assert_allclose(out.hidden, forced, atol=1e-4)
  np.testing.assert_allclose(logits, out.logits, atol=1e-4)


def test_heads_on_a_mesh_are_refused():
  lm = tiny_t5(0)
  config = HeadsConfig(num_heads=1).of_verifier(lm.module.config, lm.params)
  params = HeadsNetwork(config).initial(jax.random.key(0))
  with pytest.raises(ValueError, match="leave MESH out"):
    HeadsModel.create(config, params, layout=object())


@pytest.mark.slow
def test_every_method_of_one_drafter_takes_heads():
  verifier = tiny_t5(2)
  heads = heads_of(verifier, "medusa", num_heads=3)
  for name in ("spec_cascade_opt", "mentored", "ensemble"):
    row = METHODS[name]
    decoded = toy.decode(
      row,
      (heads, verifier),
      sampling=Sampling.create(1.0),
      inputs=jnp.asarray(T5_SOURCES, jnp.int32),
      max_decode_len=6,
      gamma=2,
    )
    assert np.all(decoded.bad_step == -1)
