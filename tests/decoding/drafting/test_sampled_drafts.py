"""Distribution of decodes with nested drafters, sampled and compared."""

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  AutoregressiveDrafter,
  MaxGramDrafter,
  Sampling,
  VerticalDrafter,
  cascade_drafter,
)
from speccascade.decoding.laws import deferral, targets
from speccascade.decoding.verification import steps
from speccascade.judge import goodness
from tests import toy, toy_chains
from tests.decoding.drafting import models

V, LENGTH, NUM = 3, 4, 12_000
PAIR = toy.pair(V, 2, 0)
SMALL_LOGITS, LARGE_LOGITS = PAIR.flat()
MEDIUM_LOGITS = 0.5 * (toy.pair(V, 2, 1).flat()[1] + LARGE_LOGITS)
MEDIUM_LOGITS[MEDIUM_LOGITS < -1e30] = -1.0
SMALL, MEDIUM, LARGE = (
  models.AuditedLM(jnp.asarray(x.reshape(1, V, V, V), jnp.float32))
  for x in (SMALL_LOGITS, MEDIUM_LOGITS, LARGE_LOGITS)
)
COPIER = MaxGramDrafter.create([2, 0, 2], width=1, vocab_size=V)


def laws(sampling, logits):
  """Returns distributions (at temperature 1, sampled), [S, V] each."""
  return sampling.laws(jnp.asarray(logits, jnp.float32))


def assert_law(
  name, drafter, sampling, table, *, alpha=0.0, num=NUM, seed=0, **options
):
  """Decodes, and tests the rows against the chain of a table by chi-square."""
  counts = toy.sample(
    name,
    (drafter, LARGE),
    alpha,
    sampling,
    inputs=lambda rows: jnp.ones((rows, 3), jnp.int32),
    num=num,
    seed=seed,
    max_decode_len=LENGTH,
    **options,
  )
  table = np.asarray(table, np.float64)
  law = toy_chains.chain_law(PAIR, table / table.sum(-1, keepdims=True), LENGTH)
  assert goodness.p_value(counts, law) > toy.LEVEL


CASCADES = {
  "copies": (
    lambda: cascade_drafter((SMALL,), COPIER, [[2, 2], [0, 2]]),
    [{"temperature": t} for t in (0.5, 1.0, 1.7)],
  ),
  "three levels": (
    lambda: cascade_drafter(
      (MEDIUM, SMALL), COPIER, [[2, 1, 1], [0, 1, 2], [0, 0, 2]], lenience=3.0
    ),
    [{"temperature": t, "top_p": p} for t, p in ((1.0, 0.8), (1.7, 0.95))],
  ),
  "neural, inner blocks": (
    lambda: cascade_drafter(
      (MEDIUM, SMALL),
      None,
      [[2, 1], [0, 2]],
      lenience=3.0,
      verify=steps.block_verify,
    ),
    [{"temperature": 1.0, "top_k": 2}],
  ),
}


@pytest.mark.parametrize("nightly", toy.nightly((False, True), [False]))
@pytest.mark.parametrize("name", toy.nightly(CASCADES, ["three levels"]))
def test_lossless_outer_law_is_the_verifiers(name, nightly):
  make, samplings = CASCADES[name]
  cases = [(seed, x, "token") for seed, x in enumerate(samplings)]
  if nightly:
    plain = [{"temperature": t} for t in (0.5, 1.0, 1.7)]
    cases = [(3, x, way) for way in ("token", "block") for x in plain]
  drafter, num = make(), 200_000 if nightly else NUM
  for seed, settings, way in cases:
    sampling = Sampling.create(**settings)
    options = {"num": num, "seed": seed, "verification": way}
    law = laws(sampling, LARGE_LOGITS)[1]
    assert_law("cascade_drafting", drafter, sampling, law, **options)


# The first two are quick.
ALPHAS = {"spec_cascade_opt": 0.1, "spec_cascade_token_v3": 0.4}
ALPHAS |= {"spec_cascade_token_v2": 0.3, "spec_cascade_chow": 0.5}
ALPHAS |= {"spec_decode_lossy": 0.5}


@pytest.mark.parametrize(
  ("name", "alpha"), toy.nightly(ALPHAS.items(), quick=[*ALPHAS.items()][:1])
)
def test_an_outer_target_sees_the_inner_reviewers_law(name, alpha):
  # The reviewed pair's distribution is MEDIUM's, and it has its confidence.
  sampling = Sampling.create(0.7)
  (q1, q), (p1, p) = (laws(sampling, x) for x in (MEDIUM_LOGITS, LARGE_LOGITS))
  pi = METHODS[name].target.probs(q1, p1, alpha=alpha, sampled=(q, p))
  # A target that were one of the two models' distributions would show little.
  assert min(goodness.tv(pi, q), goodness.tv(pi, p)) > 0.1
  inner = AutoregressiveDrafter(SMALL, 2)
  drafter = VerticalDrafter(inner, MEDIUM, jnp.float32(0), 2)
  assert_law(name, drafter, sampling, pi, alpha=alpha)


def test_three_models_cascade_has_the_composed_law():
  """OPT over (OPT over small and medium) and large, both at one alpha.

  At a temperature at which the inner distribution's own confidence would decide
  otherwise.
  """
  sampling, alpha = Sampling.create(2.5), -0.3
  (s1, s), (m1, m), (p1, p) = (
    laws(sampling, x) for x in (SMALL_LOGITS, MEDIUM_LOGITS, LARGE_LOGITS)
  )
  opt = targets.defer(deferral.opt)
  q = opt.probs(s1, m1, alpha=alpha, sampled=(s, m))
  # The inner cascade's confidence: its own distribution at temperature 1.
  q1 = opt.probs(s1, m1, alpha=alpha, sampled=(s1, m1))
  pi = opt.probs(q1, p1, alpha=alpha, sampled=(q, p))
  assert min(goodness.tv(pi, x) for x in (q, p, s, m)) > 0.1
  three = (MEDIUM, SMALL)
  assert_law("spec_cascade_opt_three", three, sampling, pi, alpha=alpha)
