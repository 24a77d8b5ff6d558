"""A drafter that drafts only some tokens: outputs of methods with its q."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, Constraints, Sampling, row_keys
from speccascade.decoding.programs import decoders
from speccascade.judge import goodness
from tests import method_laws, toy, toy_chains
from tests.decoding import driving, enumeration
from tests.decoding.test_constraints import automaton
from tests.models import growing
from tests.models.feeding import int32, prefill

# Chains of four tokens, of which the drafter drafts EOS and 2.
V, KEPT = 4, (toy_chains.EOS, 2)
RNG = np.random.default_rng(5)
DRAFTER = RNG.normal(0, 1.0, (V, V, V))
DRAFTER[..., np.setdiff1d(np.arange(V), KEPT)] = -np.inf
VERIFIER = RNG.normal(0, 1.0, (V, V, V))
for table in (DRAFTER, VERIFIER):
  table[..., toy_chains.EOS] = np.clip(table[..., toy_chains.EOS], -1, 0.5)
PAIR = toy.Pair(DRAFTER, VERIFIER)
# With alphas at which pi is neither model's distribution.
RULES = {
  "spec_decode": 0.0,
  "spec_cascade_chow": 0.6,
  "spec_cascade_opt": 0.3,
  "spec_cascade_token_v3": 0.4,
  "ensemble": 0.5,
}


def laws(name, **settings):
  """Returns the `method_laws.MethodLaws` of a method."""
  target, sampling = METHODS[name].target, Sampling.create(**settings)
  return method_laws.laws(PAIR, target, RULES[name], sampling)


@pytest.mark.parametrize("name", RULES)
def test_exact_law(name):
  """Lossless: p's, whatever is cut. A cascade: its target of the cut q."""
  law = laws(name, temperature=0.7)
  expected = toy_chains.chain_law(PAIR, law.pi, 3)
  far = goodness.tv(expected, toy_chains.chain_law(PAIR, law.p, 3))
  assert far < 1e-12 if name == "spec_decode" else far > 0.02
  for way in ("token", "block"):
    enumeration.assert_law(PAIR, law, 2, 3, verification=way)


def test_every_path_of_the_compiled_loop(monkeypatch):
  name, sampling, length = "spec_decode", Sampling.create(1.0), 3
  law = laws(name, temperature=1.0)
  ways = driving.cells(PAIR, law, enumeration.block(PAIR, law, 1), "token")
  paths = driving.paths(PAIR, lambda _: ways, length)
  assert abs(sum(path.weight for path in paths) - 1) < 1e-3
  assert any(3 in path.tokens[:-1] for path in paths)
  options = {"eos_id": toy_chains.EOS, "gamma": 1, "max_decode_len": length}
  decoder, tables = decoders.decoder(name, **options), driving.tables(paths, 1)
  for actual in driving.run(decoder, PAIR, tables, 0.0, sampling, monkeypatch):
    written = zip(actual.tokens.tolist(), actual.lengths)
    assert [tuple(x[:n]) for x, n in written] == [path.tokens for path in paths]


# Networks of six tokens, of which the drafter's head keeps three.
NETWORK = dataclasses.replace(
  growing.LLAMA, vocab_size=6, num_decoder_layers=1, windowed_layers=()
)
HEAD = (1, 2, 5)


@functools.cache
def networks(kernels):
  """Returns (a drafter with a cut head, a verifier)."""
  drafter = growing.network(NETWORK, kernels, noise=0.5).cut_to(HEAD)
  # A verifier in int8 would be another model.
  kernels = "float32" if kernels == "int8" else kernels
  return drafter, growing.network(NETWORK, kernels)


def text_laws(lm, prompt, sampling):
  """Returns q of the first token [V], and of the second after each [V, V]."""
  size = lm.vocab_size
  state = prefill(lm, np.tile(int32(prompt), (size, 1)))
  state, first = lm.extend(
    state, int32([prompt[-1:]] * size), int32([1] * size)
  )
  each = int32(np.arange(size)[:, None])
  _, second = lm.extend(state, each, int32([1] * size))
  logits = [first.logits[:1, 0], second.logits[:, 0]]
  return [sampling.laws(each) for each in logits]


@pytest.mark.parametrize(
  ("name", "kernels", "allowed"),
  [
    ("spec_decode", None, None),
    # A native chain draws columns of the head, which are other tokens.
    ("ensemble", "float32", None),
    # Its distribution has the q of the quantised weights.
    ("ensemble", "int8", None),
    *toy.nightly(
      [
        ("spec_decode", "int8", None),
        ("spec_decode", "bfloat16", None),
        ("spec_cascade_token_v3", "float32", None),
        # Some states allow none of the kept tokens.
        ("spec_cascade_opt", None, (0, 3)),
      ]
    ),
    ("spec_decode", None, (0, 3)),
  ],
)
def test_samples_of_networks_have_the_exact_law(name, kernels, allowed):
  """Two tokens after a prompt; `allowed` is what may be the second one."""
  num, prompt, alpha = 12_000, [3, 4, 5], RULES[name]
  sampling, models = Sampling.create(2.0), networks(kernels)
  (q_first, q_second), (p_first, p_second) = (
    text_laws(lm, prompt, sampling) for lm in models
  )
  constraints = Constraints()
  if allowed is not None:
    mask = np.isin(np.arange(6), allowed)
    table = automaton([[1] * 6, [2] * 6, [2] * 6], [[True] * 6, mask, mask])
    constraints = Constraints(mask=table)
    # The drafter's distribution there is uniform over what is allowed.
    q_second = [jnp.broadcast_to(mask / mask.sum(), (6, 6))] * 2
    p_second = [
      jnp.where(mask, law, 0) / jnp.where(mask, law, 0).sum(-1, keepdims=True)
      for law in p_second
    ]
  pi = [
    METHODS[name].target.probs(q[0], p[0], alpha=alpha, sampled=(q[1], p[1]))
    for q, p in ((q_first, p_first), (q_second, p_second))
  ]
  expected = np.asarray(pi[0][0][:, None] * pi[1], np.float64)
  actual = toy.decode(
    name,
    models,
    alpha,
    sampling,
    inputs=jnp.tile(int32(prompt), (num, 1)),
    keys=row_keys(0, 0, jnp.arange(num)),
    constraints=constraints,
    gamma=2,
    max_decode_len=2,
  )
  # Nothing follows the end of a text.
  end = toy_chains.EOS
  expected[end] = [expected[end].sum(), *[0] * 5]
  second = np.where(actual.lengths > 1, actual.tokens[:, 1], 0)
  seen = np.bincount(actual.tokens[:, 0] * 6 + second, minlength=36)
  assert goodness.p_value(seen, expected.ravel()) > toy.LEVEL
  assert not np.isin(actual.tokens, HEAD).all()
  assert np.sum(actual.stats.accepted) > num / 10
  assert actual.bad_step.max() < 0
