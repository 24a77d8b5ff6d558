"""Adding a rule, as the README shows it: ten lines, and it decodes."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Method,
  Sampling,
  as_target,
  defer,
  rule,
)
from speccascade.decoding.loops.oracle_cascade import oracle_cascade
from speccascade.decoding.loops.speculative import speculative
from speccascade.judge import goodness
from tests import method_laws, toy, toy_chains
from tests.decoding import enumeration


# In speccascade/decoding/laws/deferral.py:
@rule(low=0)
def surer_by_factor(q, p, *, alpha, sampled=None):
  """Defers where the verifier is surer by a factor of 1 + alpha.

  Source: an example, which no paper has.
  """
  return (1 + alpha) * jnp.max(q, axis=-1), jnp.max(p, axis=-1)


# In speccascade/decoding/programs/methods.py:
ROW = {
  "spec_cascade_factor": Method(
    speculative, defer(surer_by_factor), "SpecCascade [Factor]"
  )
}


def test_a_new_rule_decodes(monkeypatch):
  monkeypatch.setitem(METHODS, *next(iter(ROW.items())))
  row, models = METHODS["spec_cascade_factor"], toy.sources()
  deferred = []
  for alpha in (0.0, 0.2, 5.0):
    actual = toy.decode("spec_cascade_factor", models, alpha)
    oracle = dataclasses.replace(row, execution=oracle_cascade)
    expected = toy.decode(oracle, models, alpha)
    np.testing.assert_array_equal(actual.tokens, expected.tokens)
    deferred.append(actual.stats.deferred.sum())
  assert deferred[0] > deferred[1] > deferred[2] == 0  # larger defers less


def test_a_new_rule_says_what_it_takes():
  named = rule(low=0, low_open=True)(surer_by_factor.function)
  assert named.name == "surer_by_factor"
  assert named.__doc__.startswith("Defers where")
  assert named.needs_verifier
  assert named.interval.describe(9) == "more than 0"


# Not even a rule: any pi made of the two distributions.
GEOMETRIC = as_target(
  lambda q, p: (
    jnp.sqrt(q * p + 1e-9)
    / jnp.sum(jnp.sqrt(q * p + 1e-9), axis=-1, keepdims=True)
  ),
  name="geometric mean",
)


@pytest.mark.parametrize(
  ("target", "alpha", "way"),
  [(defer(surer_by_factor), 0.1, "token"), (GEOMETRIC, 0.0, "block")],
)
def test_a_target_of_ones_own_has_its_law(target, alpha, way):
  # The test case that goes with it; in the table it would be tested on arrival.
  pair = toy.pair(3, 2)
  law = method_laws.laws(pair, target, alpha, Sampling.create(1.0))
  enumeration.assert_law(pair, law, 2, 4, verification=way)
  pi, *others = (
    toy_chains.chain_law(pair, x, 4) for x in (law.pi, law.q, law.p)
  )
  assert min(goodness.tv(pi, other) for other in others) > 0.02
