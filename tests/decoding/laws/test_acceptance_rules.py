"""Rules as they were published, and the targets that stand for them.

Each published rule is written here as its source has it: with which probability
it accepts a draft, and what a rejected draft is replaced from. What it then
samples from is enumerated, and drawn.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS
from speccascade.decoding.laws import numerics, target_checks
from speccascade.judge import goodness
from tests import toy

pytestmark = pytest.mark.usefixtures("float64")


def norm(weights, otherwise):
  return weights / weights.sum() if weights.sum() > 0 else otherwise


def ratio(x, y):
  """x / y, and 1 where a draft cannot be."""
  return np.divide(x, y, out=np.ones_like(x), where=y > 0)


# A published rule: (q, p, alpha) -> (accept [V], replacement [V, V]), a row of
# the replacement for each rejected draft.


def cactus(q, p, delta):
  raised = np.minimum(p + np.sqrt(2 * delta * p * (1 - p)), 1)
  rows = []
  for x, h in enumerate(raised):
    rest = (1 - h) / (1 - p[x]) if p[x] < 1 else 0
    law = p * rest
    law[x] = h
    rows.append(norm(np.maximum(law - q, 0), p))
  return np.minimum(1, ratio(raised, q)), np.array(rows)


def from_p(accept):
  """A rule whose rejected drafts are all replaced from p."""

  def published(q, p, alpha):
    return accept(q, p, alpha), np.tile(p, (len(p), 1))

  return published


@from_p
def spec_rl(q, p, alpha):
  bias = np.log(1 - alpha)
  with np.errstate(divide="ignore", invalid="ignore"):
    log_ratio = np.where(q > 0, np.log(p) - np.log(q), 0)
    return np.minimum(1, np.exp(log_ratio - bias))


@from_p
def top_k(q, p, alpha):
  return (p >= np.sort(p)[-int(np.ceil(alpha))]).astype(float)


@from_p
def mars(q, p, alpha):
  first, second = np.argsort(-p, kind="stable")[:2]
  accept = np.zeros_like(p)
  accept[first] = 1
  # The margin of the logits in nats is at most m.
  margin = np.inf if alpha == 1 else -np.log1p(-alpha)
  with np.errstate(divide="ignore"):
    accept[second] = np.log(p[first]) - np.log(p[second]) <= margin
  return accept


@from_p
def fuzzy(q, p, alpha):
  middle = (q + p) / 2
  with np.errstate(divide="ignore", invalid="ignore"):
    terms = [np.where(x > 0, x * np.log(x / middle), 0).sum() for x in (q, p)]
  return np.full(len(p), float(sum(terms) / 2 <= alpha))


@from_p
def typical(q, p, alpha):
  entropy = -(p * np.log(np.where(p > 0, p, 1))).sum()
  bound = min(alpha, np.sqrt(alpha) * np.exp(-entropy))
  return (p > bound).astype(float)


def lenient(q, p, alpha):
  residual = norm(np.maximum(p - q, 0), p)
  accept = np.minimum(1, ratio(p / (1 - alpha), q))
  return accept, np.tile(residual, (len(p), 1))


def static_ensemble(q, p, alpha):
  mix = alpha * q + (1 - alpha) * p
  residual = norm(np.maximum(mix - q, 0), mix)
  return np.minimum(1, ratio(mix, q)), np.tile(residual, (len(p), 1))


# method: (as published, alphas)
PUBLISHED = {
  "cactus": (cactus, (0.0, 0.003, 0.05, 0.3, 0.75, 1.0, 5.0)),
  "spec_decode_lossy_from_p": (spec_rl, (0.0, 0.3, 0.9)),
  "spec_decode_lossy": (lenient, (0.0, 0.3, 0.9)),
  "spec_cascade_top_k": (top_k, (1, 1.5, 2, 3, 7)),
  "spec_cascade_min2": (mars, (0.0, 0.3, 0.81, 1.0)),
  "spec_cascade_typical": (typical, (0.03, 0.09, 0.5)),
  "bild_star_js": (fuzzy, (0.05, 0.1, 0.3)),
  "ensemble": (static_ensemble, (0.0, 0.4, 1.0)),
}


def pairs(vocab_size=7):
  """Rows of (q, p), the awkward ones of `trial_pairs` among them."""
  awkward = (
    np.asarray(x, float) for x in target_checks.trial_pairs(vocab_size)
  )
  rng = np.random.default_rng(3)
  plain = rng.dirichlet(np.full(vocab_size, 0.6), (2, 60))
  q, p = (np.concatenate(x) for x in zip(awkward, plain))
  return q / q.sum(-1, keepdims=True), p / p.sum(-1, keepdims=True)


def output_of(published, q, p, alpha):
  """Returns (what a published rule samples from, how often it accepts)."""
  accept, replacement = published(q, p, alpha)
  rejected = q * (1 - accept)
  return q * accept + rejected @ replacement, (q * accept).sum()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_target_is_what_a_published_rule_samples_from(name):
  published, alphas = PUBLISHED[name]
  probs, gained = jax.jit(METHODS[name].target.probs), 0.0
  q, p = pairs()
  for alpha in alphas:
    pi = probs(jnp.asarray(q), jnp.asarray(p), alpha=float(alpha))
    accepted = numerics.overlap(jnp.asarray(q), pi)
    for row, got in enumerate(np.asarray(pi)):
      law, rate = output_of(published, q[row], p[row], alpha)
      np.testing.assert_allclose(got, law, atol=1e-12, err_msg=f"{alpha} {row}")
      # As a target it accepts as many drafts, or more.
      assert accepted[row] > rate - 1e-12
      gained = max(gained, float(accepted[row] - rate))
  # A rule that looks at the residual accepts no more as a target.
  is_tight = name in ("spec_decode_lossy", "ensemble", "cactus")
  assert (gained < 1e-12) == is_tight


def test_drafts_accepted_and_replaced_have_the_target_as_their_distribution():
  """200,000 tokens of each rule, drawn one by one as published."""
  num, rng = 200_000, np.random.default_rng(11)
  q, p = (x[-1] for x in pairs())
  for name, (published, alphas) in PUBLISHED.items():
    alpha = alphas[1]
    accept, replacement = published(q, p, alpha)
    drafts = rng.choice(len(q), num, p=q)
    is_accepted = rng.random(num) < accept[drafts]
    tokens = drafts.copy()
    for x in range(len(q)):
      where = np.flatnonzero(~is_accepted & (drafts == x))
      tokens[where] = rng.choice(len(q), len(where), p=replacement[x])
    counts = np.bincount(tokens, minlength=len(q))
    pi = METHODS[name].target.probs(*map(jnp.asarray, (q, p)), alpha=alpha)
    assert goodness.p_value(counts, np.asarray(pi)) > toy.LEVEL, name
    # A sampler that forgot the rule would be seen.
    assert goodness.p_value(counts, q) < toy.LEVEL, name


@pytest.mark.parametrize(
  ("name", "alpha", "pi"),
  [
    ("cactus", 0.05, [0.32649, 0.33676, 0.25257, 0.08419]),
    ("spec_decode_lossy_from_p", 0.4, [11 / 30, 11 / 30, 0.2, 1 / 15]),
    ("mentored_tv", 0.1, [0.3, 0.35, 0.2625, 0.0875]),
    ("spec_cascade_top_k", 2, [0.11, 0.52, 0.315, 0.055]),
    ("spec_cascade_min2", 0.2, [0.14, 0.58, 0.21, 0.07]),
    ("spec_cascade_min2", 1.0, [0.11, 0.52, 0.315, 0.055]),
  ],
)
def test_worked_numbers(name, alpha, pi):
  q, p = (jnp.asarray(x) for x in toy.WORKED[1])
  got = METHODS[name].target.probs(q, p, alpha=alpha)
  np.testing.assert_allclose(got, pi, atol=5e-5)


@pytest.mark.parametrize("size", [7, 60])
def test_a_budget_in_total_variation(size):
  q, p = (jnp.asarray(x) for x in pairs(size))
  tv = np.asarray(numerics.total_variation(q, p))
  probs = jax.jit(METHODS["mentored_tv"].target.probs)
  for budget in (0.0, 0.02, 0.2, 0.6, 1.0):
    pi = probs(q, p, alpha=budget)
    spent = np.asarray(numerics.total_variation(pi, p))
    # The tokens of p take what they can; q itself is taken where it may be.
    most = np.where(tv < budget, tv, np.where(p > 0, q, 0).sum(-1) - 1 + tv)
    np.testing.assert_allclose(spent, np.minimum(most, budget), atol=1e-9)
    # All of what is spent is gained.
    accepted = np.asarray(numerics.overlap(q, pi))
    np.testing.assert_allclose(accepted, 1 - tv + spent, atol=1e-9)
    # No distribution that accepts as many has a smaller max pi / p = t: those
    # accept sum min(q, t p) at most.
    positive = np.asarray(p) > 0
    overshoot = np.asarray(numerics.ratio(pi, p)).max(-1, keepdims=True)
    most = np.minimum(np.asarray(q), 0.999 * overshoot * np.asarray(p)).sum(-1)
    inside = (spent > 1e-3) & (spent < tv - 1e-3) & positive.all(-1)
    assert (most[inside] < accepted[inside] - 1e-7).all()
    assert inside.any() == (0 < budget < 1)


@pytest.mark.parametrize("delta", [0.003, 0.1])
def test_cactus_where_many_tokens_are_cut(delta):
  """More than are added up one by one, so that the rows are sorted."""
  rng = np.random.default_rng(0)
  logits = rng.normal(0, 8, (4, 300))
  other = 1.5 * (logits + rng.normal(0, 4, logits.shape))
  softmax = functools.partial(jax.nn.softmax, axis=-1)
  q, p = (np.asarray(softmax(jnp.asarray(x))) for x in (logits, other))
  expected, cut = [], []
  for row in zip(q, p):
    accept, replacement = cactus(*row, delta)
    expected.append(row[0] * accept + (row[0] * (1 - accept)) @ replacement)
    cut.append((accept < 1).sum())
  assert max(cut) > 50
  probs = jax.jit(METHODS["cactus"].target.probs)
  np.testing.assert_allclose(probs(q, p, alpha=delta), expected, atol=1e-12)
  narrow = probs(np.float32(q), np.float32(p), alpha=np.float32(delta))
  assert narrow.dtype == np.float32
  np.testing.assert_allclose(narrow, expected, atol=1e-6)


def test_cactus_with_a_large_vocabulary():
  """In float32, with a vocabulary as large as T5's."""
  rng = np.random.default_rng(5)
  logits = rng.normal(0, 2.5, (6, 32128))
  other = logits + rng.normal(0, 1.5, logits.shape)
  softmax = functools.partial(jax.nn.softmax, axis=-1)
  q, p = (softmax(jnp.asarray(x, jnp.float32)) for x in (other, logits))
  pi = jax.jit(METHODS["cactus"].target.probs)(q, p, alpha=0.03)
  np.testing.assert_allclose(np.asarray(pi).sum(-1), 1, atol=1e-5)
  # What is accepted of a draft is never more than h.
  raised = np.minimum(p + np.sqrt(2 * 0.03 * p * (1 - p)), 1)
  assert np.all(np.asarray(pi) <= raised + 1e-6)
