"""A head that keeps some tokens: the whole head's logits at these alone."""

import dataclasses
import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding import Sampling
from speccascade.decoding.drafting import autoregressive, kept_tokens
from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.tree_drafter import TreeDrafter
from speccascade.decoding.laws import draws
from speccascade.decoding.programs.decoders import Decoder, decoder
from speccascade.decoding.records.decode_settings import DraftLength
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.models import cut_head
from speccascade.models.cached_lm import CachedLM
from tests import toy
from tests.models import growing
from tests.models.feeding import NEEDS_NATIVE, feed, int32

V = growing.V
# In no order; column 7, say, is not token 7.
IDS = (41, 3, 8, 2, 5, 30, 17, 49, 6)
CUT = np.setdiff1d(np.arange(V), IDS)


def changed(config, **changes):
  return dataclasses.replace(config, **changes)


CONFIGS = {
  "t5": growing.T5,
  "t5_tied": changed(growing.T5, logits_via_embedding=True),
  "llama": changed(growing.LLAMA, logits_via_embedding=False),
  "llama_tied": growing.LLAMA,
  "gemma": growing.GEMMA,
  "t5gemma": growing.T5GEMMA,
  "t5gemma_2": growing.T5GEMMA2,
}


@functools.cache
def models(name, kernels=None):
  """Returns a network with its whole head, and with a cut one."""
  whole = growing.network(CONFIGS[name], kernels)
  return whole, whole.cut_to(IDS)


@pytest.mark.parametrize(
  ("name", "kernels"),
  [
    *((name, None) for name in CONFIGS),
    ("t5_tied", "float32"),
    ("llama", "bfloat16"),
    ("gemma", "bfloat16"),
    *toy.nightly(
      [
        ("t5", "bfloat16"),
        ("t5gemma_2", "bfloat16"),
        ("llama_tied", "bfloat16"),
        ("llama_tied", "bfloat16_products"),
      ]
    ),
  ],
)
def test_logits_are_the_whole_heads_at_kept_tokens(name, kernels):
  whole, cut = models(name, kernels)
  assert cut.vocab_size == whole.vocab_size
  block, count = [[3, 40, 5], [7, 8, 9], [2, 4, 6]], [3, 3, 2]
  state, actual = feed(cut, growing.start(cut), block, count)
  _, wanted = feed(whole, growing.start(whole), block, count)
  assert np.all(np.isneginf(actual[..., CUT]))
  got, want = (x[..., sorted(IDS)] for x in (actual, wanted))
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
  if kernels and native.is_available():
    # A column of panels is the same wherever it is.
    np.testing.assert_array_equal(got, want)
  # The hidden states of the whole model project to the same logits.
  out = cut.extend(state, int32([[3]] * 3), int32([1] * 3))[1]
  np.testing.assert_allclose(cut.project(out.hidden), out.logits, rtol=1e-5)


def test_nothing_is_read_where_no_position_is_wanted():
  for kernels in (None, "bfloat16"):
    _, cut = models("llama", kernels)
    none = jnp.zeros((3, 0), jnp.int32)
    tokens = int32([[3, 4]] * 3)
    state = growing.start(cut)
    _, out = cut.extend(state, tokens, int32([2] * 3), read=none)
    assert out.logits.shape == (3, 0, V)


def test_an_untied_head_is_left_out_and_a_tied_one_stays():
  sizes = {}
  for name in ("llama", "llama_tied"):
    for lm in models(name):
      leaves = jax.tree.leaves(lm.params)
      sizes.setdefault(name, []).append(sum(leaf.size for leaf in leaves))
  width = growing.LLAMA.emb_dim
  more = len(IDS) * (width + 1)  # and the ids
  whole, cut = sizes["llama"]
  assert cut == whole - V * width + more
  whole, cut = sizes["llama_tied"]
  assert cut == whole + more


def test_rows_past_the_table_stay_without_a_logit():
  whole, _ = models("llama")
  cut = whole.replace(rows=V + 6).cut_to([*IDS, V + 2])
  assert cut.params[cut_head.NAME]["ids"].tolist() == sorted(IDS)
  _, logits = feed(cut, growing.start(cut), [[3]] * 3, [1] * 3)
  assert logits.shape[-1] == V + 6
  assert np.isfinite(logits).sum(-1).tolist() == [[len(IDS)]] * 3


@pytest.mark.parametrize(
  ("ids", "message"),
  [
    ([], "one at least"),
    ([3.5], "wanted integers"),
    ([3, -1], "the id -1; wanted ids from 0 to 49"),
    ([3, 50], "the id 50; wanted"),
    ([4, 3, 4], "the id 4 twice"),
  ],
)
def test_ids_that_are_none_of_the_models(ids, message):
  whole, cut = models("t5")
  with pytest.raises(ValueError, match=message):
    whole.cut_to(np.asarray(ids))
  with pytest.raises(ValueError, match="cut already"):
    cut.cut_to(IDS)


def propose(drafter, state, prefix, rngs, sampling):
  return drafter.propose(
    (state,), Prefix(*prefix), rngs, sampling, needs_bonus_law=True
  )[1]


@NEEDS_NATIVE
@pytest.mark.parametrize(
  ("name", "kernels", "temperature", "top_p"),
  [
    ("llama", "bfloat16", 0.7, None),
    ("t5_tied", "float32", 0.0, None),
    *toy.nightly([("llama_tied", "bfloat16", 1.0, 0.6)]),
  ],
)
def test_a_native_chain_draws_kept_tokens_and_feeds_them(
  name, kernels, temperature, top_p, monkeypatch
):
  """Distributions are those of the steps, which feed tokens of all ids."""
  _, lm = models(name, kernels)
  sampling = Sampling.create(temperature, top_p=top_p)
  drafter = AutoregressiveDrafter(lm, 4, behind=0)
  state = growing.start(lm)
  tokens = jnp.asarray(np.random.default_rng(0).integers(2, 50, (3, 24)))
  arguments = (
    drafter,
    state,
    (tokens.astype(jnp.int32), state.length + 1, jnp.ones((3,), bool)),
    draws.row_keys(0, 0, np.arange(3)),
    sampling,
  )
  actual = jax.jit(propose)(*arguments)
  assert not actual.bad.any()
  assert set(np.ravel(actual.tokens)) <= set(IDS)
  assert len(set(np.ravel(actual.tokens))) > 2
  assert not actual.q[..., CUT].any()
  with monkeypatch.context() as patch:
    patch.setattr(CachedLM, "draft_chain", lambda *args, **kwargs: None)
    want = jax.jit(lambda *args: propose(*args))(*arguments)
  np.testing.assert_array_equal(actual.tokens, want.tokens)
  np.testing.assert_allclose(actual.q, want.q, atol=1e-6)
  np.testing.assert_allclose(actual.q1, want.q1, atol=1e-6)


@pytest.mark.parametrize(
  ("settings", "below"),
  [
    ({"temperature": 0.7}, None),
    ({"temperature": 0.0}, 0.3),
    ({"temperature": 1.3, "top_k": 4, "min_p": 0.05}, 0.2),
    *toy.nightly([({"temperature": 0.9, "top_k": 30, "top_p": 0.8}, None)]),
  ],
)
def test_steps_over_kept_tokens_draw_what_steps_over_all_draw(
  settings, below, monkeypatch
):
  """By the same uniforms; the distributions differ by rounding alone."""
  _, lm = models("llama")
  stop = None
  if below is not None:
    stop = autoregressive.StopPolicy(jnp.float32(below), before_draw=False)
  drafter = AutoregressiveDrafter(lm, 4, stop, behind=0)
  state = growing.start(lm)
  tokens = jnp.asarray(np.random.default_rng(0).integers(2, 50, (3, 24)))
  arguments = (
    drafter,
    state,
    (tokens.astype(jnp.int32), state.length + 1, jnp.ones((3,), bool)),
    draws.row_keys(0, 0, np.arange(3)),
    Sampling.create(**settings),
  )
  widths = []
  step = Sampling.step
  monkeypatch.setattr(
    Sampling,
    "step",
    lambda self, x, *u, **found: (
      widths.append(x.shape[-1]) or step(self, x, *u, **found)
    ),
  )
  actual = jax.jit(propose)(*arguments)
  assert {*widths} == {len(IDS)}
  monkeypatch.setattr(kept_tokens, "is_cut_model", lambda model: False)
  wanted = jax.jit(lambda *args: propose(*args))(*arguments)
  assert widths[-1] == V
  np.testing.assert_array_equal(actual.count, wanted.count)
  np.testing.assert_array_equal(actual.tokens, wanted.tokens)
  assert set(np.ravel(actual.tokens)) - {0} <= set(IDS)
  for row, count in enumerate(np.asarray(actual.count)):
    places = slice(0, count + 1)
    for name in ("q", "q1"):
      got, want = (getattr(x, name)[row, places] for x in (actual, wanted))
      np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize(
  ("branching", "drawing", "temperature"),
  [((3, 2), "without_replacement", 0.8), ((12,), "greedy_and_random", 0.0)],
)
def test_a_tree_over_kept_tokens_is_the_tree_over_all(
  branching, drawing, temperature, monkeypatch
):
  """Nodes with more children than kept tokens are drawn over all."""
  _, lm = models("llama")
  tree = DraftTree.of_branching(branching)
  drafter = TreeDrafter(lm, tree, drawing)
  state = growing.start(lm)
  tokens = jnp.asarray(np.random.default_rng(0).integers(2, 50, (3, 24)))
  arguments = (
    drafter,
    state,
    (tokens.astype(jnp.int32), state.length + 1, jnp.ones((3,), bool)),
    draws.row_keys(0, 0, np.arange(3)),
    Sampling.create(temperature),
  )
  actual = jax.jit(propose)(*arguments)
  monkeypatch.setattr(kept_tokens, "is_cut_model", lambda model: False)
  wanted = jax.jit(lambda *args: propose(*args))(*arguments)
  np.testing.assert_array_equal(actual.tokens, wanted.tokens)
  np.testing.assert_allclose(actual.q, wanted.q, atol=1e-6)
  np.testing.assert_allclose(actual.q1, wanted.q1, atol=1e-6)


@pytest.mark.parametrize("kernels", [None, "bfloat16"])
@pytest.mark.parametrize("name", ["t5", "llama"])
def test_a_greedy_lossless_decode_is_the_verifiers(name, kernels):
  """The verifier writes tokens that its drafter cannot draft."""
  verifier = growing.network(CONFIGS[name], kernels)
  kept = [i for i in range(V) if i % 3 != 1]
  drafter = growing.network(CONFIGS[name], kernels, noise=0.1).cut_to(kept)
  actual, wanted = growing.greedy(drafter, verifier)
  np.testing.assert_array_equal(actual.tokens, wanted.tokens)
  assert np.sum(actual.stats.accepted) > 2
  assert not np.isin(actual.tokens, kept).all()


def scatters(jaxpr, size, in_loop=False):
  """Returns how many scatters into [size] run in the loops of a jaxpr."""
  count = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name.startswith("scatter") and in_loop:
      count += equation.outvars[0].aval.shape == (size,)
    is_loop = in_loop or equation.primitive.name == "while"
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      count += scatters(inner, size, is_loop)
  return count


@pytest.mark.parametrize(
  ("method", "alpha", "settings"),
  [
    ("spec_decode", 0.0, {}),
    ("token_cascade_chow", 0.3, {}),
    ("bild", 0.5, {"draft_length": DraftLength("max_prob", 0.5)}),
    ("drafter", 0.0, {}),
  ],
)
def test_columns_are_computed_once_before_the_loop(method, alpha, settings):
  whole, cut = models("llama")
  decoding = decoder(method, gamma=2, max_decode_len=6, eos_id=1, **settings)
  keys = draws.row_keys(0, 0, np.arange(2))
  sampling = Sampling(1.0, greedy=decoding.method.greedy_only)
  program, arguments = decoding.call(
    cut, whole, int32([[5, 6], [7, 8]]), keys, alpha, sampling
  )
  traced = jax.make_jaxpr(functools.partial(Decoder.run, program))(*arguments)
  assert scatters(traced.jaxpr, V) == 0
