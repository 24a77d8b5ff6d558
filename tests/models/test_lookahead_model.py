"""Look-ahead embeddings over tiny T5s and Llamas: what the verifier reads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import LookaheadDrafter, Sampling, row_keys
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.models import (
  T5LM,
  HeadsConfig,
  HeadsModel,
  LlamaConfig,
  LlamaLM,
  LookaheadModel,
  draft_heads,
)
from speccascade.models.heads_model import TrainedHeads
from tests import toy
from tests.decoding.test_sampled_laws import tiny_t5
from tests.models import head_samples
from tests.models.feeding import NEEDS_NATIVE

WAYS = head_samples.WAYS | {"deep": {"gamma": 3}}


def verifier_of(kind: str, **options):
  """Returns a tiny T5 or Llama of 40 tokens.

  Args:
    kind: "t5" or "llama".
    **options: of its configuration.
  """
  if kind == "t5":
    return T5LM.init(toy.t5_config(**options), jax.random.key(0))
  sizes = {"vocab_size": 40, "emb_dim": 24, "head_dim": 8, "mlp_dim": 16}
  sizes |= {"num_heads": 2, "num_kv_heads": 1, "num_decoder_layers": 2}
  return LlamaLM.init(LlamaConfig(**sizes, **options), jax.random.key(0))


def embeddings_of(verifier, num: int = 2):
  """Returns look-ahead embeddings as they are before training."""
  config = HeadsConfig(kind="lookahead", num_heads=num)
  config = config.of_verifier(verifier.module.config, verifier.params)
  params = draft_heads.initial_params(config, verifier.module, verifier.params)
  return TrainedHeads.create(config, params)


CASES = [(model, way) for model in head_samples.MODELS for way in WAYS]
QUICK = [("llama", "chain")]


@pytest.mark.parametrize(("model", "way"), toy.nightly(CASES, QUICK))
def test_samples_have_the_verifiers_law(model, way):
  decoded = head_samples.decode(embeddings_of, model, **WAYS[way])
  if way == "chain":
    # The first draft of each block is the verifier's own, and rounding alone
    # refuses it. A row may end with it.
    first = decoded.stats.accepted_by_position[:, 0].sum()
    assert first >= 0.999 * decoded.stats.examined_by_position[:, 0].sum()


def with_more_tokens(verifier, rows):
  """Returns a model whose table of tokens has rows [K, E] after its own."""
  config, params = verifier.module.config, dict(verifier.params)
  table = jnp.concatenate([params["token_embedder"]["embedding"], rows])
  params["token_embedder"] = {"embedding": table}
  if not config.logits_via_embedding:
    kernel = params["decoder"]["logits_dense"]["kernel"]
    kernel = jnp.pad(kernel, ((0, 0), (0, len(rows))))
    params["decoder"] = params["decoder"] | {"logits_dense": {"kernel": kernel}}
  config = dataclasses.replace(config, vocab_size=len(table))
  return type(verifier).create(config, params)


@pytest.mark.parametrize(
  ("kind", "is_tied"),
  toy.nightly(
    [(kind, is_tied) for kind in ("t5", "llama") for is_tied in (False, True)],
    quick=[("t5", True), ("llama", False)],
  ),
)
def test_embeddings_are_read_as_more_rows_of_the_table(kind, is_tied):
  verifier = verifier_of(kind, logits_via_embedding=is_tied)
  ahead = embeddings_of(verifier)
  model = ahead.language_model(verifier)
  assert model.vocab_size == verifier.vocab_size == 40
  other = with_more_tokens(verifier, ahead.params["embedding"])
  inputs = jnp.asarray([[5, 3, 7], [6, 9, 2]], jnp.int32)
  tokens = jnp.asarray([[3, 39, 40, 41], [8, 40, 41, 0]], jnp.int32)
  count = jnp.asarray([4, 3], jnp.int32)

  @jax.jit
  def feed(lm, tokens):
    return lm.extend(lm.prefill(inputs, capacity=9), tokens, count)[1].logits

  got, want = feed(model, tokens), feed(other, tokens)[..., :40]
  for row, num in enumerate(count):
    np.testing.assert_allclose(got[row, :num], want[row, :num], atol=1e-5)
  # Tokens have the verifier's own logits: embeddings come after them.
  own = feed(verifier, jnp.minimum(tokens, 39))
  np.testing.assert_allclose(got[0, :2], own[0, :2], atol=1e-5)
  assert np.abs(got[0, 2:] - own[0, 2:]).max() > 1e-3


@jax.jit
def propose(drafter, verifier, length, held):
  """Returns what a drafter proposes in its second round, and what it should.

  Args:
    drafter: a `LookaheadDrafter` of three drafts.
    verifier: its verifier.
    length: [] int32, tokens of the text in the second round.
    held: [] int32, one token less than in the first round.

  Returns:
    (the model's state, the proposal, the verifier's distribution after the text
    and those at two embeddings after it [B, 3, V], the verifier's own
    distribution [B, V]).
  """
  inputs = jnp.asarray([[5, 3, 7], [6, 9, 2]], jnp.int32)
  tokens = jnp.asarray([[3, 4, 8, 2, 9, 5, 6], [8, 3, 3, 6, 7, 2, 5]])
  rows = lambda number: jnp.full(2, number, jnp.int32)
  state = drafter.prefill(inputs, capacity=8)
  state = drafter.catch_up(state, tokens, rows(held), wide=4)
  for number in (held + 1, length):
    state, proposal = drafter.propose(
      state,
      Prefix(tokens, rows(number), rows(1) > 0),
      row_keys(0, 0, jnp.arange(2)),
      Sampling.create(1.0),
      needs_bonus_law=False,
    )
  # The text and the embeddings, in one pass over an empty cache.
  place = jnp.arange(9)[None]
  text = jnp.pad(tokens, ((0, 0), (0, 2)))
  block = jnp.where(place < length, text, 40 + place - length)
  read = jnp.broadcast_to(length - 1 + jnp.arange(3)[None], (2, 3))
  model = drafter.model
  _, out = model.extend(
    model.prefill(inputs, capacity=9), block, rows(length + 2), read=read
  )
  _, own = verifier.extend(
    verifier.prefill(inputs, capacity=9), text, rows(length), read=read[:, :1]
  )
  laws = [jax.nn.softmax(x.logits) for x in (out, own)]
  return *state, proposal, laws[0], laws[1][:, 0]


@pytest.mark.parametrize(
  ("kind", "kernels"),
  [
    pytest.param("t5", None, marks=pytest.mark.slow),
    ("llama", None),
    pytest.param("t5", "float32", marks=NEEDS_NATIVE),
    pytest.param("llama", "bfloat16", marks=[NEEDS_NATIVE, pytest.mark.slow]),
  ],
)
def test_the_first_law_is_the_verifiers_own(kind, kernels):
  """It is after any pass of the drafter, however many tokens it had to read."""
  verifier = verifier_of(kind)
  ahead = embeddings_of(verifier)
  if kernels is not None:
    # Where the verifier's passes are native, so are those with embeddings.
    verifier = type(verifier).create(
      verifier.module.config, verifier.params, kernel_dtype=kernels
    )
    assert ahead.language_model(verifier)._is_native
  drafter = LookaheadDrafter(ahead.language_model(verifier), 2, 3)
  for length, held in ((2, 0), (5, 0), (5, 3)):
    state, proposal, laws, own = propose(drafter, verifier, length, held)
    np.testing.assert_allclose(proposal.q[:, 0], own, atol=1e-5)
    np.testing.assert_allclose(proposal.q[:, :3], laws, atol=1e-5)
    assert np.all(np.asarray(state.length) == length)


@NEEDS_NATIVE
@pytest.mark.parametrize("is_tied", toy.nightly([False, True], [True]))
def test_native_passes_read_embeddings(is_tied):
  config = toy.t5_config(logits_via_embedding=is_tied)
  plain = T5LM.init(config, jax.random.key(0))
  packed = T5LM.create(config, plain.params, kernel_dtype="float32")
  ahead = embeddings_of(plain)
  tokens = jnp.asarray([[3, 40, 41, 0], [8, 2, 40, 41]], jnp.int32)
  count = jnp.asarray([3, 4], jnp.int32)
  inputs = jnp.asarray([[5, 3, 7], [6, 9, 2]], jnp.int32)

  @jax.jit
  def feed(lm):
    return lm.extend(lm.prefill(inputs, capacity=9), tokens, count)[1].logits

  one, other = (feed(ahead.language_model(lm)) for lm in (plain, packed))
  for row, num in enumerate(count):
    np.testing.assert_allclose(one[row, :num], other[row, :num], atol=1e-4)


def test_a_class_takes_heads_of_its_kind():
  verifier = tiny_t5(0)
  ahead = embeddings_of(verifier)
  assert isinstance(ahead, LookaheadModel)
  config, params = ahead.config, dict(ahead.params)
  with pytest.raises(ValueError, match="wanted a LookaheadModel"):
    HeadsModel.create(config, params)
  with pytest.raises(ValueError, match="leave MESH out"):
    TrainedHeads.create(config, params, layout=object())
  with pytest.raises(ValueError, match="by a T5 or a Llama"):
    ahead.language_model(toy.markov(np.eye(3)))
