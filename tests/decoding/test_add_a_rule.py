"""Adding a rule, as the README tells it: ten lines, and it decodes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding import (
  METHODS,
  Method,
  Sampling,
  as_target,
  decoder,
  defer,
  rule,
)
from speccascade.decoding.executions.oracle_cascade import oracle_cascade
from speccascade.decoding.executions.speculative import speculative
from tests import toy
from tests.decoding import enumeration


# In speccascade/decoding/deferral.py:
@rule(low=0)
def surer_by_factor(q, p, *, alpha, sampled=None):
  """Defers where the verifier is surer by a factor of 1 + alpha."""
  return (1 + alpha) * jnp.max(q, axis=-1), jnp.max(p, axis=-1)


# In speccascade/decoding/methods.py:
ROW = {
  "spec_cascade_factor": Method(
    speculative, defer(surer_by_factor), "SpecCascade [Factor]"
  )
}


def test_a_new_rule_decodes(monkeypatch):
  monkeypatch.setitem(METHODS, *next(iter(ROW.items())))
  models, (inputs, keys) = toy.sources(), toy.rows(64)
  decode = decoder(
    "spec_cascade_factor", gamma=3, max_decode_len=8, eos_id=toy.EOS
  )
  greedy = Sampling.create(0.0)
  seen = []
  for alpha in (0.0, 0.2, 5.0):
    got = decode(*models, inputs, keys, alpha, greedy)
    reference = dataclasses.replace(
      decode,
      method=dataclasses.replace(decode.method, execution=oracle_cascade),
    )
    want = reference(*models, inputs, keys, alpha, greedy)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    seen.append(np.asarray(got.stats.deferred).sum())
  assert seen[0] > seen[1] > seen[2] == 0  # a larger alpha defers less


def test_a_new_rule_has_its_law():
  # The test case that goes with it; in the table it would be tested on arrival.
  pair = toy.pair(3, 2)
  with jax.enable_x64(True):
    law = enumeration.laws(
      pair, defer(surer_by_factor), 0.1, Sampling.create(1.0)
    )
    got = enumeration.speculative_law(pair, law, 2, 4)
  want = toy.chain_law(pair, law.pi, 4)
  assert np.abs(got - want).max() < 1e-10
  others = (toy.chain_law(pair, x, 4) for x in (law.q, law.p))
  assert min(toy.tv(want, other) for other in others) > 0.02


def test_a_users_own_distribution_decodes():
  # Not even a rule: any pi made of the two laws.
  geometric = as_target(
    lambda q, p: (
      jnp.sqrt(q * p + 1e-9)
      / jnp.sum(jnp.sqrt(q * p + 1e-9), axis=-1, keepdims=True)
    ),
    name="geometric mean",
  )
  method = Method(speculative, geometric, "Geometric")
  pair = toy.pair(3, 2)
  with jax.enable_x64(True):
    law = enumeration.laws(pair, geometric, 0.0, Sampling.create(1.0))
    got = enumeration.speculative_law(pair, law, 2, 4, verification="block")
  want = toy.chain_law(pair, law.pi, 4)
  assert np.abs(got - want).max() < 1e-10
  decode = dataclasses.replace(
    decoder("spec_decode", gamma=2, max_decode_len=8, eos_id=toy.EOS),
    method=method,
  )
  got = decode(*toy.sources(), *toy.rows(64), 0.0, Sampling.create(1.0))
  assert np.all(np.asarray(got.bad_step) == -1)
