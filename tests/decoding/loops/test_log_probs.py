"""What `LogProbs` says against the enumerated distributions.

The compiled decoders run in float64 here; `test_paths.py` sees them in float32
on every path. Drafters that are composed keep their distributions in float32.
"""

import contextlib
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  MaxGramDrafter,
  Sampling,
  decoder,
  row_keys,
)
from speccascade.decoding.loops import tracing
from speccascade.decoding.loops.oracle_cascade import oracle_cascade
from speccascade.decoding.loops.sequential_cascade import sequential_cascade
from speccascade.decoding.records.block_records import BONUS
from speccascade.models.markov_lm import MarkovLM
from tests import method_laws, toy, toy_chains
from tests.decoding.test_exact_laws import SAMPLINGS, WAYS, telling_alpha

PAIR, LENGTH, ROWS = toy.pair(3, 2), 5, 192
BLOCKS = [
  name
  for name, row in METHODS.items()
  if row.has_blocks and row.compose is None
]
STEPWISE = ["drafter", "verifier"] + [
  name
  for name, row in METHODS.items()
  if row.execution in (oracle_cascade, sequential_cascade)
]


@contextlib.contextmanager
def float64():
  """Distributions are in float64; uniforms and alphas stay in float32."""
  with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
    yield


@functools.cache
def alpha_of(name: str) -> float:
  """An alpha that float32 holds, at which pi differs from p and from q."""
  return float(np.float32(telling_alpha(name, 3, 2)))


def laws_of(name, **settings) -> method_laws.MethodLaws:
  sampling, target = Sampling.create(**settings), METHODS[name].target
  return method_laws.laws(PAIR, target, alpha_of(name), sampling)


def decode(name, settings, models=None, alpha=None, **options):
  """Returns the `Decoded` of many rows of one source.

  In float64 without `models`.
  """
  if models is None:
    with float64():
      return decode(name, settings, PAIR.models(jnp.float64), alpha, **options)
  return toy.decode(
    name,
    models,
    alpha_of(name) if alpha is None else alpha,
    Sampling.create(**settings),
    inputs=jnp.zeros((ROWS, 1), jnp.int32),
    keys=row_keys(0, 0, jnp.arange(ROWS, dtype=jnp.int32)),
    **{"gamma": 2, "max_decode_len": LENGTH, "log_probs": True} | options,
  )


assert_same = functools.partial(np.testing.assert_allclose, rtol=0)


def assert_compared(values, law, contexts, tokens, drawn_from_p):
  """Asserts, and takes out of `values`, the fields that compare with p1."""
  got = {x: values.pop(x) for x in ("entropy", "overshoot", "ahead", "margin")}
  pi, p = law.pi[contexts], law.p1[contexts]
  if drawn_from_p is not None:
    pi = np.where(drawn_from_p[..., None], law.p[contexts], pi)
  of_token = np.take_along_axis(p, tokens[..., None], axis=-1)
  ids = np.arange(p.shape[-1])
  order = (p > of_token) | ((p == of_token) & (ids < tokens[..., None]))
  with np.errstate(divide="ignore", invalid="ignore"):
    terms = np.where(pi > 0, pi * np.log(pi), 0)
    expected = {
      "entropy": -terms.sum(-1),
      "overshoot": np.log(np.where(pi > 0, pi / p, 0).max(-1)),
      "ahead": np.where(order, p, 0).sum(-1),
      "margin": np.log(p.max(-1)) - np.log(of_token[..., 0]),
    }
  for field, number in got.items():
    of_pi = field in ("entropy", "overshoot")
    known = ~np.isnan(values["pi" if of_pi else "p1"])
    if field == "overshoot":
      known &= ~np.isnan(values["p1"])
    expected[field][~known] = np.nan
    # Where rounding may order equal tokens otherwise.
    atol = 1e-6 if field != "ahead" else 1e-6 + 2 * of_token[..., 0]
    same = np.isnan(number) == np.isnan(expected[field])
    with np.errstate(invalid="ignore"):
      close = np.abs(number - expected[field]) <= atol
    same &= close | ~np.isfinite(expected[field])
    assert same.all(), (field, number[~same], expected[field][~same])
    assert np.array_equal(np.isinf(number), np.isinf(expected[field]))


def assert_laws(decoded, law, unknown, drawn_from_p=None, tolerance=1e-10):
  """Asserts every field of every token; returns how many outputs there are.

  Args:
    decoded: `Decoded`.
    law: the `method_laws.MethodLaws`.
    unknown: {field: [B, T] bool, or True}, where it must be NaN.
    drawn_from_p: [B, T] bool, bonus tokens as printed; None where none is.
    tolerance: absolute.
  """
  inside = np.arange(LENGTH) < decoded.lengths[:, None]
  follow, contexts = PAIR.next_context(), np.zeros_like(decoded.tokens)
  for step in range(1, LENGTH):
    last = contexts[:, step - 1], decoded.tokens[:, step - 1]
    contexts[:, step] = follow[last]
  compared = dict(vars(decoded.log_probs))
  assert_compared(compared, law, contexts, decoded.tokens, drawn_from_p)
  for field, values in compared.items():
    with np.errstate(divide="ignore"):
      expected = np.log(getattr(law, field)[contexts, decoded.tokens])
      if field == "pi" and drawn_from_p is not None:
        of_p = np.log(law.p[contexts, decoded.tokens])
        expected = np.where(drawn_from_p, of_p, expected)
    expected[~inside | unknown.get(field, False)] = np.nan
    assert_same(values, expected, atol=tolerance, err_msg=field)
  index = toy_chains.sequence_index(decoded.tokens, decoded.lengths, 3)
  if drawn_from_p is None:  # The sum is that of the whole output.
    prob = np.exp(np.nansum(decoded.log_probs.pi, axis=1))
    whole = toy_chains.chain_law(PAIR, law.pi, LENGTH)[index]
    assert_same(prob, whole, atol=tolerance)
  return len(set(index.tolist()))


def least_outputs(law, label: str) -> int:
  """Returns how many different outputs there must be: four where there are.

  Greedy there is one; all filters together leave fewer than four to some.
  """
  if label == "T=0":
    return 1
  likely = toy_chains.chain_law(PAIR, law.pi, LENGTH) > 10 / ROWS
  return min(4, int(np.sum(likely)) if label == "all" else 4)


NIGHTS = [*itertools.product(WAYS, ("T=0", "T=1")), ("token", "all")]
SPECULATIVE = [
  (["ensemble"], "token", "top-p"),
  *((BLOCKS, way, label) for way, label in NIGHTS),
]
ONE_BY_ONE = [
  (["token_cascade_chow"], "top-p"),
  (STEPWISE, "T=0"),
  (STEPWISE, "all"),
]


def cases(quick, *nights):
  """Returns parameters; the mutants name the quick case."""
  return [pytest.param(*quick, id="quick"), *toy.nightly(nights)]


@pytest.mark.parametrize(("names", "way", "label"), cases(*SPECULATIVE))
def test_speculative(names, way, label):
  settings, shared = SAMPLINGS[label], len(names) > 1
  for name in names:
    row, unknown, drawn_from_p = METHODS[name], {}, None
    if row.greedy_only and label != "T=0":
      continue
    law, is_printed = laws_of(name, **settings), way == "printed bonus"
    decoded = decode(name, settings, shared=shared, trace=True, **WAYS[way])
    is_bonus = decoded.trace.source == BONUS
    if is_printed and row.target.uses_q:
      drawn_from_p = is_bonus
    if is_printed or not row.target.uses_q:  # the drafter is not asked there
      unknown = dict.fromkeys(("q", "q1"), is_bonus)
    num = assert_laws(decoded, law, unknown, drawn_from_p)
    assert num >= least_outputs(law, label), name


@pytest.mark.parametrize(("names", "label"), cases(*ONE_BY_ONE))
def test_stepwise(names, label):
  settings, shared = SAMPLINGS[label], len(names) > 1
  for name in names:
    law = laws_of(name, **settings)
    decoded = decode(name, settings, shared=shared, trace=True)
    lacks = {"drafter": "p", "verifier": "q"}.get(name)
    unknown = {lacks: True, f"{lacks}1": True}
    if name == "drafter":
      law = dataclasses.replace(law, pi=law.q)
    elif METHODS[name].execution is sequential_cascade:
      unknown = dict.fromkeys(("p", "p1"), ~decoded.trace.deferred)
    num = assert_laws(decoded, law, unknown)
    assert num >= least_outputs(law, label), name


@pytest.mark.slow
def test_a_drafter_that_is_a_cascade():
  """Its q is what its inner review states, the target the outer one."""
  alpha, sampling = -0.3, Sampling.create(0.8)
  tables = toy.pair(3, 2, seed=5).q_logits, PAIR.q_logits, PAIR.p_logits
  (s1, s), (m1, m), (p1, p) = (
    sampling.laws(jnp.asarray(table, jnp.float32).reshape(9, 3))
    for table in tables
  )
  opt = METHODS["spec_cascade_opt"].target
  q1 = opt.probs(s1, m1, alpha=alpha)
  q = opt.probs(s1, m1, alpha=alpha, sampled=(s, m))
  pi = opt.probs(q1, p1, alpha=alpha, sampled=(q, p))
  assert min(float(jnp.abs(q - x).max()) for x in (s, m, pi)) > 0.1
  law = method_laws.MethodLaws(*map(np.asarray, (q1, p1, q, p, pi)))
  small, medium, large = (
    MarkovLM(jnp.asarray(table, jnp.float32)[None]) for table in tables
  )
  decoded = decode(
    "spec_cascade_opt_three",
    {"temperature": 0.8},
    ((medium, small), large),
    alpha,
  )
  assert assert_laws(decoded, law, {}, tolerance=1e-4) > 10


def test_copied_tokens_have_no_q():
  """Token V3 keeps a copy, whose distribution is one-hot, or takes p for it."""
  copier = MaxGramDrafter(jnp.array([2, 0, 0], jnp.int32), 2)
  models = copier, PAIR.models()[1]
  settings = {"temperature": 1.0}
  decoded = decode("spec_cascade_token_v3", settings, models, 0.5, trace=True)
  known = decoded.log_probs
  pi, p, q, p1, q1 = known.pi, known.p, known.q, known.p1, known.q1
  inside = np.arange(LENGTH) < decoded.lengths[:, None]
  assert np.all(np.isnan(q))
  assert np.all(np.isnan(q1))
  np.testing.assert_array_equal(p, p1)
  is_kept, is_p = (np.isclose(pi, x, atol=1e-6)[inside] for x in (0, p))
  assert np.all(is_kept | is_p)
  assert 0.2 < is_kept.mean() < 0.8
  assert np.all(decoded.trace.writer[inside] == -1)


@pytest.mark.parametrize(
  ("settings", "pi"),
  [
    ({"top_p": 0.7}, [0.625, 0.375, 0, 0]),
    ({"min_p": 0.2}, [10 / 19, 6 / 19, 3 / 19, 0]),
    # The squares of [10, 6, 3, 1], over their sum.
    ({"temperature": 0.5}, [100 / 146, 36 / 146, 9 / 146, 1 / 146]),
    ({"temperature": 0.0}, [1, 0, 0, 0]),
  ],
)
def test_a_baseline_and_a_rule_are_compared_with_one_reference(settings, pi):
  """The numbers are those of pi, not of the verifier unfiltered at 1."""
  plain = jnp.array([[[0.5, 0.3, 0.15, 0.05]] * 4])
  tokens = jnp.array([[0, 1, 2, 3]])
  p1, p = Sampling.create(**settings).laws(jnp.log(plain))
  np.testing.assert_allclose(p[0, 0], pi, atol=1e-6)
  for sampled in (p, p1):  # the baseline, and a rule with the same pi
    record = tracing.Record(tokens, tokens < 0, p1=p1, p=sampled, pi=p)
    got = tracing.log_probs(record, tokens)
    overshoot = np.log(np.max(np.array(pi) / [0.5, 0.3, 0.15, 0.05]))
    np.testing.assert_allclose(got.overshoot[0], overshoot, atol=1e-6)
    np.testing.assert_allclose(got.ahead[0], [0, 0.5, 0.8, 0.95], atol=1e-6)
    margin = np.log([1, 5 / 3, 10 / 3, 10])
    np.testing.assert_allclose(got.margin[0], margin, atol=1e-6)


@pytest.mark.parametrize("name", ["spec_cascade_opt", "oracle_cascade_opt"])
def test_nothing_is_recorded_unless_asked_for(name, monkeypatch):
  monkeypatch.setattr(tracing, "record", None)
  monkeypatch.setattr(tracing, "empty_log_probs", None)
  plain_decoder = decoder(
    name, gamma=2, max_decode_len=LENGTH, eos_id=toy_chains.EOS
  )
  program, _ = plain_decoder.program(greedy=False)
  sampling = Sampling.create(1.0)
  inputs, keys = toy.rows(2)
  alpha = jnp.float32(0.3)
  run = (*PAIR.models(), inputs, keys, alpha, jnp.float32(0), sampling)
  assert jax.eval_shape(program.run, *run).log_probs is None
