"""The compiled decoders, sampled: their output against the exact law.

Chi-square tests at level 1e-6 each, on 200,000 rows a case; a known mistake
must fail the same test. What enumeration proves of the parts, this shows of the
program with its own keys.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from speccascade.decoding import (
  METHODS,
  DraftLength,
  Sampling,
  decoders,
  row_keys,
)
from speccascade.models import T5LM, T5Config
from speccascade.models.markov_lm import MarkovLM
from tests import toy
from tests.decoding import enumeration
from tests.decoding.test_laws import telling_alpha

ROWS = 200_000
LEVEL = 1e-6


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
  """Returns Pearson's p-value; cells that expect less than 10 are pooled.

  A count where the law has no mass gives 0.
  """
  if np.any(counts[law < 1e-12] > 0):
    return 0.0
  expected = law * counts.sum()
  small = expected < 10
  seen = np.append(counts[~small], counts[small].sum())
  expected = np.append(expected[~small], expected[small].sum())
  if expected[-1] < 1e-6:
    seen, expected = seen[:-1], expected[:-1]
  value = np.sum((seen - expected) ** 2 / expected)
  return float(stats.chi2.sf(value, len(expected) - 1))


def test_the_test_itself():
  rng = np.random.default_rng(0)
  law = toy.chain_law(toy.pair(3, 2), np.full((9, 3), 1 / 3), 4)
  counts = rng.multinomial(ROWS, law)
  assert p_value(counts, law) > LEVEL
  other = law.copy()
  other[np.argsort(law)[-2:]] *= [0.6, 1.4]
  assert p_value(counts, other / other.sum()) < LEVEL
  impossible = np.flatnonzero(law == 0)[0]  # goes on behind an EOS
  counts[impossible] = 1
  assert p_value(counts, law) == 0


def sampled_counts(decoder, models, alpha, sampling, seed, source, batches=1):
  """Returns how often each sequence was written; `source` [B] picks inputs."""
  vocab, length = models[1].vocab_size, decoder.max_decode_len
  size = sum(vocab**n for n in range(1, length + 1))
  counts = {}
  for batch in range(batches):
    index = jnp.arange(len(source)) + batch * len(source)
    got = decoder(*models, source, row_keys(seed, 0, index), alpha, sampling)
    where = toy.sequence_index(got.tokens, got.lengths, vocab)
    kinds = np.asarray(source)[:, 0]
    for kind in np.unique(kinds):
      more = np.bincount(where[kinds == kind], minlength=size)
      counts[int(kind)] = counts.get(int(kind), 0) + more
  return counts


# name, settings, sampling
QUICK = {
  "opt": ("spec_cascade_opt", {"gamma": 3}, {"temperature": 1.0}),
  "block": (
    "spec_cascade_token_v3",
    {"verification": "block"},
    {"temperature": 0.8},
  ),
  "top-p": ("spec_decode", {}, {"temperature": 1.3, "top_p": 0.8}),
  "token cascade": ("token_cascade_chow", {}, {"temperature": 1.0}),
}
POLICIES = {
  "stop before": {"draft_length": DraftLength("max_prob", 0.55), "gamma": 3},
  "stop behind": {"draft_length": DraftLength("token_prob", 0.4), "gamma": 3},
  "block": {"verification": "block", "gamma": 3},
  "printed bonus": {"bonus": "verifier"},
}
NIGHTLY = {
  **{
    f"{name} {label}": (name, {}, settings)
    for name, row in METHODS.items()
    if row.target is not None and row.compose is None and not row.greedy_only
    for label, settings in (
      ("plain", {"temperature": 1.0}),
      ("top-k", {"temperature": 1.7, "top_k": 2}),
    )
  },
  **{
    f"{name} {label}": (name, how, {"temperature": 1.0})
    for name in ("spec_cascade_chow", "spec_decode_lossy_star", "mentored")
    for label, how in POLICIES.items()
  },
}


def pairs():
  """Two sources, so that neighbours in the batch differ."""
  return toy.pair(3, 2), toy.pair(3, 2, 15)


@pytest.mark.parametrize(
  "case",
  [
    *(pytest.param(v, id=k) for k, v in QUICK.items()),
    *(
      pytest.param(v, id=k, marks=pytest.mark.slow) for k, v in NIGHTLY.items()
    ),
  ],
)
def test_samples_have_the_exact_law(case):
  name, how, settings = case
  row, length = METHODS[name], 4
  decoder = decoders.decoder(
    name, **{"gamma": 2, "max_decode_len": length, "eos_id": toy.EOS, **how}
  )
  sampling = Sampling.create(**settings)
  with jax.enable_x64(True):
    alpha = telling_alpha(name, 3, 2)
    laws, mistakes = [], []
    for pair in pairs():
      law = enumeration.laws(pair, row.target, alpha, sampling)
      if decoder.bonus == "verifier":
        want = enumeration.verifier_bonus_law(pair, law, decoder.gamma, length)
      elif name == "drafter":
        want = toy.chain_law(pair, law.q, length)
      else:
        want = toy.chain_law(pair, law.pi, length)
      laws.append(want)
      # The other model, and a rejected draft replaced from pi.
      other = law.q if name != "drafter" else law.p
      kept = np.minimum(law.q, law.pi)
      wrong = kept + (1 - kept.sum(-1, keepdims=True)) * law.pi
      mistakes.append([toy.chain_law(pair, x, length) for x in (other, wrong)])
  models = tuple(
    MarkovLM(jnp.concatenate([m.table for m in roles]))
    for roles in zip(*(pair.models() for pair in pairs()))
  )
  source = jnp.asarray(np.arange(2 * ROWS)[:, None] % 2, jnp.int32)
  counts = sampled_counts(decoder, models, alpha, sampling, 17, source)
  for kind in range(2):
    assert counts[kind].sum() == ROWS
    assert p_value(counts[kind], laws[kind]) > LEVEL
    for wrong in mistakes[kind]:
      if toy.tv(wrong, laws[kind]) > 0.02:
        assert p_value(counts[kind], wrong) < LEVEL
  assert toy.tv(mistakes[0][0], laws[0]) > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", ["seq_cascade_chow", "seq_cascade_chow_norm"])
def test_samples_of_the_sequence_cascade(name):
  # Kept drafts, and the verifier's own law for the mass that was not kept.
  pair, length, alpha = toy.pair(3, 2), 4, 0.9
  sampling = Sampling.create(0.8)
  with jax.enable_x64(True):
    law = enumeration.laws(pair, METHODS["spec_decode"].target, 0.0, sampling)
  q, p, score = (
    toy.chain_law(pair, table, length) for table in (law.q, law.p, law.q1)
  )
  sizes = np.array([len(x) for x in toy.sequences(3, length)])
  with np.errstate(divide="ignore"):
    score = np.log(score)
  if name == "seq_cascade_chow_norm":
    score, alpha = score / sizes, 0.55
  keep = score >= math.log1p(-alpha)
  want = q * keep + q[~keep].sum() * p
  assert 0.1 < q[keep].sum() < 0.9
  decoder = decoders.decoder(
    name, gamma=1, max_decode_len=length, eos_id=toy.EOS
  )
  source = jnp.zeros((ROWS, 1), jnp.int32)
  counts = sampled_counts(decoder, pair.models(), alpha, sampling, 3, source)[0]
  assert p_value(counts, want) > LEVEL
  assert p_value(counts, q) < LEVEL


# A tiny T5.


T5_LENGTH, T5_VOCAB = 3, 8
T5_SOURCES = np.array([[5, 3, 7, 1], [6, 1, 0, 0]], np.int32)  # ragged


def tiny_t5(seed: int) -> T5LM:
  """Returns a T5 that has opinions: its head is ten times the initial one."""
  config = T5Config(
    vocab_size=T5_VOCAB,
    emb_dim=16,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    head_dim=8,
    mlp_dim=16,
  )
  model = T5LM.init(config, jax.random.key(seed))
  params = dict(model.params)
  params["decoder"] = dict(params["decoder"])
  head = params["decoder"]["logits_dense"]["kernel"]
  spread = 1.5 / float(jnp.std(head)) / math.sqrt(config.emb_dim)
  params["decoder"]["logits_dense"] = {"kernel": head * spread}
  return model.replace(params=params)


def t5_laws(model: T5LM, sampling) -> list[np.ndarray]:
  """Returns for each source the laws behind every prefix, [2][V, V, 3, V].

  Teacher forced in one pass, not step by step: index [x, y, t] is the law of
  token t after the first t of (x, y).
  """
  x, y = np.meshgrid(np.arange(T5_VOCAB), np.arange(T5_VOCAB), indexing="ij")
  tokens = np.stack([0 * x, x, y], axis=-1).reshape(-1, 3)
  made = []
  for source in T5_SOURCES:
    inputs = jnp.broadcast_to(jnp.asarray(source), (len(tokens), 4))
    state = model.prefill(inputs, capacity=4)
    count = jnp.full(len(tokens), 3, jnp.int32)
    _, out = model.extend(state, jnp.asarray(tokens, jnp.int32), count)
    plain, law = sampling.laws(out.logits)
    shape = (T5_VOCAB, T5_VOCAB, 3, T5_VOCAB)
    made.append(tuple(np.asarray(z).reshape(shape) for z in (plain, law)))
  return made


def t5_sequence_law(pi: np.ndarray) -> np.ndarray:
  """Returns the law of sequences, in the order of `toy.sequences`."""
  first, second, third = pi[0, 0, 0], pi[:, 0, 1], pi[:, :, 2]
  one = np.where(np.arange(T5_VOCAB) == toy.EOS, first, 0)
  goes_on = (first - one)[:, None] * second
  two = np.where(np.arange(T5_VOCAB) == toy.EOS, goes_on, 0)
  three = (goes_on - two)[..., None] * third
  return np.concatenate([x.reshape(-1) for x in (one, two, three)])


T5_CASES = {
  "opt": ("spec_cascade_opt", {"gamma": 2}, {"temperature": 1.0}),
  "token rule, block": (
    "spec_cascade_token_v3",
    {"gamma": 3, "verification": "block"},
    {"temperature": 0.7},
  ),
  "lossless": ("spec_decode", {"gamma": 1}, {"temperature": 1.3, "top_k": 5}),
  "token cascade": ("token_cascade_chow", {"gamma": 1}, {"temperature": 1.0}),
  "oracle": ("oracle_cascade_diff", {"gamma": 1}, {"temperature": 1.0}),
}


@pytest.mark.parametrize(
  "case",
  [
    pytest.param(v, id=k, marks=[] if k == "opt" else pytest.mark.slow)
    for k, v in T5_CASES.items()
  ],
)
def test_samples_of_a_tiny_t5(case):
  name, how, settings = case
  target, sampling = METHODS[name].target, Sampling.create(**settings)
  models = tiny_t5(1), tiny_t5(2)
  q, p = (t5_laws(model, sampling) for model in models)

  def laws(alpha):
    """Returns for each source (law, drafter's law, verifier's law)."""
    made = []
    for (q1, q_law), (p1, p_law) in zip(q, p):
      pi = target.probs(q1, p1, alpha=alpha, sampled=(q_law, p_law))
      made.append(
        [t5_sequence_law(np.asarray(x, np.float64)) for x in (pi, q_law, p_law)]
      )
    return made

  low, high = METHODS[name].alpha_interval.ends(T5_VOCAB)
  grid = np.linspace(max(low, -1.0), min(high, 1.0), 21)[1:-1].tolist()
  if target.uses_q:
    alpha = max(
      grid,
      key=lambda a: min(
        toy.tv(pi, x) for pi, *others in laws(a) for x in others
      ),
    )
  else:
    alpha = 0.0
  decoder = decoders.decoder(
    name, max_decode_len=T5_LENGTH, eos_id=toy.EOS, **how
  )
  rows, batches = 20_000, 2 * ROWS // 20_000
  source = jnp.asarray(T5_SOURCES[np.arange(rows) % 2])
  counts = sampled_counts(
    decoder, models, alpha, sampling, 5, source, batches=batches
  )
  for kind, (want, *others) in zip(T5_SOURCES[:, 0], laws(alpha)):
    got = counts[int(kind)]
    assert got.sum() == ROWS
    # The law is in float32: renormalise.
    assert p_value(got, want / want.sum()) > LEVEL
    for other in others:
      if toy.tv(other, want) > 0.02:
        assert p_value(got, other / other.sum()) < LEVEL
    assert max(toy.tv(other, want) for other in others) > 0.02
