"""Methods that share a program decode as they do alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, Sampling
from speccascade.decoding.laws.target_checks import trial_pairs
from speccascade.decoding.programs import decoders
from speccascade.decoding.programs.families import choose, family
from tests import toy, toy_chains

SETTINGS = {"gamma": 2, "max_decode_len": 6, "eos_id": toy_chains.EOS}


def decode(name: str, temperature: float, **how):
  small, large = toy.sources()
  drafter = small if METHODS[name].num_drafters == 1 else (small, small)
  sampling = Sampling.create(temperature)
  how |= SETTINGS | {"inputs": 48, "trace": True}
  return toy.decode(name, (drafter, large), None, sampling, **how)


@pytest.mark.parametrize(
  "some",
  [
    pytest.param(slice(1, None, 5), id="some"),
    pytest.param(slice(None), id="all", marks=pytest.mark.slow),
  ],
)
@pytest.mark.parametrize("temperature", toy.nightly([0.0, 1.0], [1.0]))
def test_a_shared_program_decodes_as_the_method_alone(temperature, some):
  names = [
    name
    for name, method in METHODS.items()
    if (temperature == 0 or not method.greedy_only)
    and len(family(method, temperature == 0)) > 1
  ]
  assert len(names) > 15
  decoders._run.clear_cache()  # other tests of this process compile the same
  together = {name: decode(name, temperature, shared=True) for name in names}
  # One for the speculative ones, the oracles and the sequential cascades.
  assert decoders._run._cache_size() == 3
  assert len({d.tokens.tobytes() for d in together.values()}) > 5
  executions = {METHODS[name].execution.label for name in names[some]}
  assert len(executions) == 3
  for name in names[some]:
    shared, alone = together[name], decode(name, temperature)
    for leaf, want in zip(jax.tree.leaves(shared), jax.tree.leaves(alone)):
      np.testing.assert_allclose(leaf, want, atol=1e-6, err_msg=name)


def test_a_choice_is_the_target_that_it_names():
  """Its distribution, and what a record says of it, on newly sampled pairs."""
  q1, p1 = trial_pairs(5)
  q, p = (jnp.flip(x, axis=0)[:, None] for x in (q1, p1))
  q1, p1 = q1[:, None], p1[:, None]
  tokens = jnp.argmax(q, axis=-1).astype(jnp.int32)
  alpha = jnp.float32(0.3)
  members = family(METHODS["spec_cascade_opt"], greedy=True)
  targets = tuple(member.target for member in members)

  @jax.jit
  def read(index):
    choice = choose(targets, index)
    read_at = choice.at(q1, p1, tokens, alpha=alpha, sampled=(q, p))
    return read_at, choice.reads_tokens

  for index, target in enumerate(targets):
    got, reads_tokens = read(index)
    assert bool(reads_tokens) == target.reads_tokens
    want = target.at(q1, p1, tokens, alpha=alpha, sampled=(q, p))
    pi, left, right = target(q1, p1, alpha=alpha, sampled=(q, p))
    np.testing.assert_array_equal(want[0], pi)
    if target.reads_tokens:
      left, right = (
        np.take_along_axis(np.asarray(x), tokens[..., None], axis=-1)[..., 0]
        for x in (left, right)
      )
    if target.rule is not None:
      np.testing.assert_array_equal(want[1], left)
      np.testing.assert_array_equal(want[2], right)
    for of_choice, of_target in zip(got, want):
      np.testing.assert_allclose(
        of_choice, of_target, atol=1e-6, err_msg=target.name
      )
  assert len(targets) > 15


def test_a_choice_asks_early_what_its_target_asks():
  q = trial_pairs(5)[0]
  alpha = jnp.float32(0.3)
  members = family(METHODS["token_cascade_chow"], greedy=True)
  targets = tuple(member.target for member in members)
  read = jax.jit(lambda index: choose(targets, index).early(q, alpha))
  sides = [read(index) for index in range(len(targets))]
  for target, got in zip(targets, sides):
    want = target.rule(q, alpha=alpha)
    np.testing.assert_allclose(got, want, atol=1e-6, err_msg=target.name)
  assert len({np.asarray(pair).tobytes() for pair in sides}) == len(targets) > 1


@pytest.mark.parametrize(
  "name", ["drafter", "verifier", "spec_decode", "seq_cascade_chow"]
)
def test_what_has_no_family_runs_alone(name):
  assert family(METHODS[name], greedy=True) == [METHODS[name]]
  decoder = decoders.decoder(name, shared=True, **SETTINGS)
  assert not decoder.program(True)[0].shared


def test_greedy_methods_are_in_no_sampled_family():
  greedy = family(METHODS["lenient_leviathan"], greedy=True)
  assert METHODS["spec_cascade_opt"] in greedy
  sampled = family(METHODS["spec_cascade_opt"], greedy=False)
  assert METHODS["lenient_leviathan"] not in sampled
  # Lossless needs no distribution of the drafter after a block, so it is not in
  # it.
  assert METHODS["spec_decode"] not in sampled


def test_thresholds_of_a_draft_length_share_a_program():
  decoder_of = lambda *length: decoders.decoder(
    "spec_decode", draft_length=decoders.DraftLength(*length), **SETTINGS
  )
  low, high = (decoder_of("max_prob", x) for x in (0.2, 0.8))
  assert low.program(True) == high.program(True)
  fixed, other = (decoder_of(x) for x in ("fixed", "token_prob"))
  assert len({x.program(True) for x in (low, fixed, other)}) == 3


def test_gamma_does_not_split_programs_without_blocks():
  narrow, wide = (
    decoders.decoder("verifier", **SETTINGS | {"gamma": g}) for g in (2, 5)
  )
  assert narrow.program(True) == wide.program(True)
