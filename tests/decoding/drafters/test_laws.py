"""The law of whole decodes with nested drafters, sampled and compared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  AutoregressiveDrafter,
  MaxGramDrafter,
  Sampling,
  VerticalDrafter,
  cascade_drafter,
  decoder,
  deferral,
  row_keys,
  verification,
)
from speccascade.decoding import target as targets
from tests import toy
from tests.decoding.drafters import models

V, LENGTH = 3, 4
PAIR, OTHER = toy.pair(V, 2, 0), toy.pair(V, 2, 1)
SMALL_LOGITS, LARGE_LOGITS = PAIR.flat()
MEDIUM_LOGITS = 0.5 * (OTHER.flat()[1] + LARGE_LOGITS)
MEDIUM_LOGITS[MEDIUM_LOGITS < -1e30] = -1.0


def model(logits):
  shape = (1, *PAIR.q_logits.shape)
  return models.AuditedLM(jnp.asarray(logits.reshape(shape), jnp.float32))


SMALL, MEDIUM, LARGE = (
  model(x) for x in (SMALL_LOGITS, MEDIUM_LOGITS, LARGE_LOGITS)
)
COPIER = MaxGramDrafter.create([2, 0, 2], width=1, vocab_size=V)


def laws(sampling, logits):
  """Returns (law at temperature 1, sampled law), [S, V] each."""
  return sampling.laws(jnp.asarray(logits, jnp.float32))


def assert_law(out, table, num):
  """A chi-square test of decoded rows against the chain of a table.

  The statistic has mean df and variance about 2 df; five standard deviations.
  """
  assert np.all(np.asarray(out.bad_step) == -1)
  table = np.asarray(table, np.float64)
  law = toy.chain_law(PAIR, table / table.sum(-1, keepdims=True), LENGTH)
  index = toy.sequence_index(out.tokens, out.lengths, V)
  found = np.bincount(index, minlength=len(law))
  assert found[law == 0].sum() == 0
  rare = law * num < 8
  expected = np.append(law[~rare], law[rare].sum()) * num
  found = np.append(found[~rare], found[rare].sum())
  kept = expected > 0
  chi2 = np.sum((found - expected)[kept] ** 2 / expected[kept])
  freedom = kept.sum() - 1
  assert chi2 < freedom + 5 * np.sqrt(2 * freedom), (chi2, freedom)


def decode(name, drafter, sampling, num, alpha=0.0, seed=0):
  run = decoder(name, gamma=2, max_decode_len=LENGTH, eos_id=toy.EOS)
  return run(
    drafter,
    LARGE,
    jnp.ones((num, 3), jnp.int32),
    row_keys(seed, 0, jnp.arange(num)),
    alpha,
    sampling,
  )


CASCADES = {
  "copies": lambda: cascade_drafter((SMALL,), COPIER, [[2, 2], [0, 2]]),
  "three levels": lambda: cascade_drafter(
    (MEDIUM, SMALL), COPIER, [[2, 1, 1], [0, 1, 2], [0, 0, 2]], lenience=3.0
  ),
  "neural, inner blocks": lambda: cascade_drafter(
    (MEDIUM, SMALL),
    None,
    [[2, 1], [0, 2]],
    lenience=3.0,
    verify=verification.block_verify,
  ),
}


@pytest.mark.parametrize("name", CASCADES)
def test_lossless_outer_law_is_the_verifiers(name):
  num, drafter = 12_000, CASCADES[name]()
  if name == "neural, inner blocks":
    samplings = [Sampling.create(1.0, top_k=2)]
  elif name == "three levels":
    samplings = [
      Sampling.create(t, top_p=p) for t, p in ((1.0, 0.8), (1.7, 0.95))
    ]
  else:
    samplings = [Sampling.create(t) for t in (0.5, 1.0, 1.7)]
  for seed, sampling in enumerate(samplings):
    out = decode("cascade_drafting", drafter, sampling, num, seed=seed)
    assert_law(out, laws(sampling, LARGE_LOGITS)[1], num)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASCADES)
def test_lossless_outer_law_in_large_samples(name):
  num, drafter = 200_000, CASCADES[name]()
  for step in ("token", "block"):
    for t in (0.5, 1.0, 1.7):
      sampling = Sampling.create(t)
      run = decoder(
        "cascade_drafting",
        gamma=2,
        max_decode_len=LENGTH,
        eos_id=toy.EOS,
        verification=step,
      )
      out = run(
        drafter,
        LARGE,
        jnp.ones((num, 3), jnp.int32),
        row_keys(3, 0, jnp.arange(num)),
        0.0,
        sampling,
      )
      assert_law(out, laws(sampling, LARGE_LOGITS)[1], num)


def reviewed_pair(width=2):
  """Returns a drafter whose law is MEDIUM's, and has its confidence."""
  inner = AutoregressiveDrafter(SMALL, 2)
  return VerticalDrafter(inner, MEDIUM, jnp.float32(0), width)


@pytest.mark.parametrize(
  ("name", "alpha"),
  [
    ("spec_cascade_opt", 0.1),
    ("spec_cascade_token_v3", 0.4),
    pytest.param("spec_cascade_token_v2", 0.3, marks=pytest.mark.slow),
    pytest.param("spec_cascade_chow", 0.5, marks=pytest.mark.slow),
    pytest.param("spec_decode_lossy", 0.5, marks=pytest.mark.slow),
  ],
)
def test_an_outer_target_sees_the_inner_reviewers_law(name, alpha):
  num, sampling = 12_000, Sampling.create(0.7)
  out = decode(name, reviewed_pair(), sampling, num, alpha=alpha)
  q1, q = laws(sampling, MEDIUM_LOGITS)
  p1, p = laws(sampling, LARGE_LOGITS)
  target = decoder(name, gamma=1, max_decode_len=1, eos_id=1).method.target
  pi = target.probs(q1, p1, alpha=alpha, sampled=(q, p))
  # A target that were one of the two models' laws would show little.
  assert min(toy.tv(pi, q), toy.tv(pi, p)) > 0.1
  assert_law(out, pi, num)


def test_three_models_cascade_has_the_composed_law():
  """OPT over (OPT over small and medium) and large, both at one alpha.

  At a temperature at which the inner law's own confidence would decide
  otherwise.
  """
  num, sampling, alpha = 12_000, Sampling.create(2.5), -0.3
  out = decode(
    "spec_cascade_opt_three", (MEDIUM, SMALL), sampling, num, alpha=alpha
  )
  (s1, s), (m1, m), (p1, p) = (
    laws(sampling, x) for x in (SMALL_LOGITS, MEDIUM_LOGITS, LARGE_LOGITS)
  )
  opt = targets.defer(deferral.opt)
  q = opt.probs(s1, m1, alpha=alpha, sampled=(s, m))
  # The inner cascade's confidence: its own law at temperature 1.
  q1 = opt.probs(s1, m1, alpha=alpha, sampled=(s1, m1))
  pi = opt.probs(q1, p1, alpha=alpha, sampled=(q, p))
  assert min(toy.tv(pi, x) for x in (q, p, s, m)) > 0.1
  assert_law(out, pi, num)


@jax.jit
def _propose(drafter, inputs, keys, sampling):
  rows = inputs.shape[0]
  state = drafter.prefill(inputs, capacity=8)
  length = jnp.ones((rows,), jnp.int32)
  return drafter.propose(
    state,
    jnp.zeros((rows, 8), jnp.int32),
    length,
    keys,
    sampling,
    bonus_law=True,
    active=length > 0,
  )[1]


@pytest.mark.parametrize("verify", ["token", "block"])
def test_stated_laws_fit_the_draws(verify):
  """Over rows with one prefix and one stated law, tokens are draws of it.

  The same as the exact enumeration, on three tokens and with the inner block
  verified as a whole, in samples.
  """
  num = 40_000
  drafter = VerticalDrafter(
    AutoregressiveDrafter(SMALL, 2),
    MEDIUM,
    jnp.float32(2 / 3),
    3,
    target=targets.lossy,
    verify=verification.VERIFY[verify],
  )
  proposal = _propose(
    drafter,
    jnp.ones((num, 3), jnp.int32),
    row_keys(1, 0, jnp.arange(num)),
    Sampling.create(1.3),
  )
  tokens, q = np.asarray(proposal.tokens), np.asarray(proposal.q, np.float64)
  q1 = np.asarray(proposal.q1)
  np.testing.assert_allclose(q[:, :4].sum(-1), 1, atol=1e-5)
  # The law at temperature 1 is another one than the sampled.
  assert np.abs(q1 - q).max() > 0.05
  for i in range(3):
    prefix = (
      tokens[:, :i] @ (V ** np.arange(i)[::-1]) if i else 0 * tokens[:, 0]
    )
    for value in np.unique(prefix):
      rows = prefix == value
      error = np.eye(V)[tokens[rows, i]] - q[rows, i]
      deviation = np.sqrt(np.sum(q[rows, i] * (1 - q[rows, i]), axis=0))
      assert np.all(np.abs(error.sum(0)) < 4.5 * deviation + 1e-3)
  # Behind the last token: the law of the same chain in the same context.
  context = tokens[:, 1] * V + tokens[:, 2]
  for value in np.unique(context):
    law = q[context == value, 3]
    np.testing.assert_allclose(
      law, np.broadcast_to(law[:1], law.shape), atol=1e-6
    )
