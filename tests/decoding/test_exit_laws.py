"""The laws of methods whose drafter is the verifier's first layers."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, Sampling, row_keys
from speccascade.judge import goodness
from tests import toy, toy_chains
from tests.decoding.test_cut_drafter import text_laws
from tests.models import growing
from tests.models.feeding import int32

NETWORK = dataclasses.replace(growing.LLAMA, vocab_size=6, num_decoder_layers=2)
PROMPT, ROWS = [3, 4, 5], 12_000
SAMPLING = Sampling.create(2.0)


@functools.cache
def models(kernels):
  """Returns (an early exit after one of two layers, its verifier)."""
  verifier = growing.network(NETWORK, kernels)
  return verifier.first_layers(1), verifier


@functools.cache
def laws(kernels):
  """Returns (q, p) of the first token, and of the second after each."""
  by_model = [text_laws(lm, PROMPT, SAMPLING) for lm in models(kernels)]
  return [*zip(*by_model)]


def chances(pi):
  """Returns [36], of the first and the second token of a text.

  Args:
    pi: [1, 6], and [6, 6].
  """
  expected = np.asarray(pi[0][0][:, None] * pi[1], np.float64)
  # Nothing follows the end of a text.
  expected[toy_chains.EOS] = [expected[toy_chains.EOS].sum(), *[0] * 5]
  return expected.ravel()


def decode(name, kernels, alpha, **settings):
  """Returns what is decoded, and how often each text was."""
  out = toy.decode(
    name,
    models(kernels),
    alpha,
    SAMPLING,
    inputs=jnp.tile(int32(PROMPT), (ROWS, 1)),
    keys=row_keys(0, 0, jnp.arange(ROWS)),
    max_decode_len=2,
    **settings,
  )
  second = np.where(out.lengths > 1, out.tokens[:, 1], 0)
  return out, np.bincount(out.tokens[:, 0] * 6 + second, minlength=36)


@pytest.mark.parametrize(
  ("name", "alpha", "kernels", "settings"),
  [
    ("spec_decode", 0.0, None, {"gamma": 2}),
    ("spec_decode", 0.0, "float32", {"gamma": 2}),
    ("ensemble", 0.5, "float32", {"gamma": 1}),
    ("spec_decode", 0.0, None, {"gamma": 2, "tree": (2, 1)}),
    *toy.nightly(
      [
        ("spec_cascade_token_v3", 0.4, "bfloat16", {"gamma": 2}),
        ("spec_cascade_opt", 0.3, None, {"gamma": 1}),
      ]
    ),
  ],
)
def test_samples_have_the_exact_law(name, alpha, kernels, settings):
  pi = [
    METHODS[name].target.probs(q[0], p[0], alpha=alpha, sampled=(q[1], p[1]))
    for q, p in laws(kernels)
  ]
  out, seen = decode(name, kernels, alpha, **settings)
  assert goodness.p_value(seen, chances(pi)) > toy.LEVEL
  of_exit = chances([q[1] for q, _ in laws(kernels)])
  assert goodness.tv(chances(pi), of_exit) > 0.05
  assert np.sum(out.stats.accepted) > ROWS / 10


@pytest.mark.parametrize("kernels", [None, "float32"])
def test_a_token_cascade_exits_where_the_first_layers_are_sure(kernels):
  """CALM by Chow's rule: q where max q >= 1 - alpha, and p elsewhere."""
  # An alpha at which some positions exit and some do not.
  most = np.sort(np.concatenate([q[0].max(-1) for q, _ in laws(kernels)]))
  alpha = float(1 - (most[3] + most[4]) / 2)
  pi = [
    np.where(np.asarray(q[0]).max(-1, keepdims=True) >= 1 - alpha, q[1], p[1])
    for q, p in laws(kernels)
  ]
  out, seen = decode("token_cascade_chow", kernels, alpha)
  assert goodness.p_value(seen, chances(pi)) > toy.LEVEL
  for wrong in zip(*laws(kernels)):
    assert goodness.p_value(seen, chances([x[1] for x in wrong])) < toy.LEVEL
  calls = np.sum(out.stats.verifier_calls)
  assert 0 < calls < np.sum(out.lengths)
