"""Certificates against every drafter of a grid, and against the nearest one."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding.drafting import children
from speccascade.decoding.laws import certificates, numerics
from speccascade.decoding.laws.targets import lossless
from speccascade.decoding.programs.methods import METHODS
from speccascade.decoding.records.draft_tree import TOP_K

V = 4
PARTS = 15  # of which each q of the grid has so many fifteenths
# Rules whose accepted drafts are a function of p, with alphas that accept one
# token, some and all.
LEVEL_SETS = [
  ("spec_decode", 0.0),
  ("spec_cascade_token_v2", -0.1),
  ("spec_cascade_token_v2", 0.15),
  ("spec_cascade_token_v3", 0.0),
  ("spec_cascade_token_v3", 0.4),
  ("spec_cascade_token_v3", 1.0),
  ("spec_cascade_typical", 0.09),
  ("spec_cascade_typical", 1.0),
  ("spec_cascade_top_k", 2),
  ("spec_cascade_min2", 0.6),
  ("lenient_leviathan", 0.6),
  ("lenient_cs_code", 0.75),
]
# One method of each kind whose accepted drafts depend on q, or that draws.
DAILY = (
  *("spec_decode_lossy", "cactus", "ensemble", "bild_star_nll"),
  *("spec_cascade_opt", "spec_cascade_token_v1", "lenient_cs_paper"),
)
TARGETS = {
  name: method.target
  for name, method in METHODS.items()
  if method.target is not None and method.target.kind is None
}


@pytest.fixture(autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


def grid():
  """Returns all q whose entries are multiples of 1 / PARTS, [Q, V]."""
  cuts = itertools.combinations(range(PARTS + V - 1), V - 1)
  ends = [(-1, *cut, PARTS + V - 1) for cut in cuts]
  return (np.diff(ends, axis=1) - 1) / PARTS


def verifiers():
  """Returns some p [P, V]: worked, with ties, with zeros, near and random."""
  chosen = [
    [0.2, 0.4, 0.3, 0.1],
    [0.1, 0.7, 0.15, 0.05],
    [0.4, 0.4, 0.1, 0.1],
    [0.25, 0.25, 0.25, 0.25],
    [0.6, 0.4, 0, 0],
    [0, 0, 1, 0],
    [0.3, 0.3 + 1e-6, 0.2, 0.2 - 1e-6],
  ]
  drawn = np.random.default_rng(7).dirichlet(np.full(V, 0.7), 9)
  return np.concatenate([chosen, drawn])


def one_hot(p):
  return jax.nn.one_hot(numerics.first_argmax(p), p.shape[-1], dtype=p.dtype)


@functools.partial(jax.jit, static_argnums=0)
def is_rejected(target, q, p, alpha):
  """Returns whether a greedy draft of q may be rejected, [...] bool."""
  q, p = jnp.broadcast_arrays(q, p)
  drawn = one_hot(q), one_hot(p)
  pi = target.probs(q, p, alpha=alpha, sampled=drawn)
  return numerics.overlap(drawn[0], pi) < 1 - 1e-9


def nearest(p, accepted, num):
  """Returns the nearest q in KL(p, q), KL(q, p) and TV, by sorting; or None."""
  rising = [v for v in np.argsort(-p, kind="stable") if not accepted[v]][:num]
  if len(rising) < num:
    return None
  sinking = [v for v in np.argsort(-p, kind="stable") if accepted[v]]

  def levelled(values):
    level = min(
      max(
        (sum(values[sinking[:n]]) + sum(values[rising[-j:]])) / (n + j)
        for n in range(len(sinking) + 1)
      )
      for j in range(1, num + 1)
    )
    values = values.copy()
    values[sinking] = np.minimum(values[sinking], level)
    values[rising] = np.maximum(values[rising], level)
    return values

  arithmetic = levelled(p)
  with np.errstate(divide="ignore", invalid="ignore"):
    geometric = np.exp(levelled(np.log(p)))
    geometric /= geometric.sum()
  # Of TV the likeliest r alone takes what the others lose.
  return arithmetic, geometric, arithmetic, rising


def tilted(q, rising):
  """Returns q with a little more of the tokens that are to be drafted."""
  more = np.isin(np.arange(len(q)), rising) / len(rising)
  return (1 - 1e-7) * q + 1e-7 * more


def bounds_of(target, p, alpha, num=1):
  accepted = certificates.accepted_drafts(target, p, alpha)
  return accepted, certificates.least_rejected(p, accepted, num)


@pytest.mark.parametrize(("method", "alpha"), LEVEL_SETS)
def test_no_draft_within_the_bounds_is_rejected(method, alpha):
  target = TARGETS[method]
  p, q = jnp.asarray(verifiers())[:, None], jnp.asarray(grid())
  accepted, bounds = bounds_of(target, p, alpha)
  measured = certificates.divergences(*jnp.broadcast_arrays(p, q))
  rejected = np.asarray(is_rejected(target, q, p, alpha))
  # The set is all there is to the rule.
  draft = numerics.first_argmax(q)
  np.testing.assert_array_equal(
    rejected, ~np.asarray(accepted)[:, 0][:, np.asarray(draft)]
  )
  for name, mine, least in zip(bounds._fields, measured, bounds):
    assert (~rejected | np.asarray(mine >= least - 1e-12)).all(), name
  certified = np.asarray(measured.certify(bounds))
  assert not (certified & rejected & (measured.kl > 1e-12)).any()
  assert certified.any()


@pytest.mark.parametrize("num", [1, 2])
@pytest.mark.parametrize(("method", "alpha"), LEVEL_SETS)
def test_a_drafter_just_beyond_a_bound_is_rejected(method, alpha, num):
  target, p = TARGETS[method], verifiers()
  accepted, bounds = bounds_of(target, jnp.asarray(p), alpha, num)
  # [3, P, V], the nearest drafter of each divergence; p where there is none.
  q, is_there = np.stack([p] * 3), np.isfinite(bounds)
  for place, row in enumerate(p):
    found = nearest(row, accepted[place], num)
    if found is None:
      assert not is_there[:, place].any()
      continue
    *found, rising = found
    for which in np.flatnonzero(is_there[:, place]):
      q[which, place] = tilted(found[which], rising)
      drafts = np.argsort(-q[which, place], kind="stable")[:num]
      assert not accepted[place, drafts].any()
  if num == 1:
    rejected = is_rejected(target, jnp.asarray(q), jnp.asarray(p), alpha)
    assert rejected[is_there].all()
  measured = certificates.divergences(jnp.asarray(np.stack([p] * 3)), q)
  for which, (mine, bound) in enumerate(zip(measured, bounds)):
    excess = np.asarray(mine[which] - bound)
    # A tilt to a token that p lacks is infinitely far in KL(q, p).
    is_far = (which == 1) & (num > 1) & np.isinf(excess) & (p == 0).any(axis=1)
    assert (excess > -1e-12)[is_there[which]].all()
    assert (is_far | (excess < 1e-5))[is_there[which]].all()
  assert is_there.any() or alpha == 1


@pytest.mark.parametrize(
  "method",
  [
    pytest.param(name, marks=() if name in DAILY else pytest.mark.slow)
    for name in TARGETS
  ],
)
def test_the_bounds_of_the_arg_max_hold_for_every_target(method):
  target = TARGETS[method]
  p, q = jnp.asarray(verifiers())[:, None], jnp.asarray(grid())
  bounds = certificates.least_rejected(
    p, certificates.accepted_drafts(lossless, p, 0)
  )
  measured = certificates.divergences(*jnp.broadcast_arrays(p, q))
  rejected = is_rejected(target, q, p, target.interval.default)
  for mine, least in zip(measured, bounds):
    assert (~rejected | (mine >= least - 1e-12)).all()


@pytest.mark.parametrize("num", [1, 2, 3])
def test_a_greedy_tree_covers_the_arg_max_within_the_bounds(num):
  p, q = jnp.asarray(verifiers())[:, None], jnp.asarray(grid())
  accepted, bounds = bounds_of(lossless, p, 0, num)
  drafts, _ = children.draw_children(
    q[None], q[None], jnp.zeros((1, len(q), num)), TOP_K, greedy=True
  )
  of_best = numerics.first_argmax(p)[..., None]
  rejected = ~np.asarray((drafts == of_best).any(axis=-1))
  assert rejected.any()
  measured = certificates.divergences(*jnp.broadcast_arrays(p, q))
  for mine, least in zip(measured, bounds):
    assert (~rejected | np.asarray(mine >= least - 1e-12)).all()
  # More drafts certify more.
  fewer = certificates.least_rejected(p, accepted, max(1, num - 1))
  assert all((a >= b).all() for a, b in zip(bounds, fewer))


def test_worked_bounds():
  """p = [.6, .3, .1] and strict greedy: a level of .45, or sqrt(.18)."""
  p = jnp.array([0.6, 0.3, 0.1])
  bounds = bounds_of(lossless, p, 0)[1]
  np.testing.assert_allclose(
    bounds,
    [
      0.6 * np.log(0.6 / 0.45) + 0.3 * np.log(0.3 / 0.45),
      -np.log(1 - (np.sqrt(0.6) - np.sqrt(0.3)) ** 2),
      0.15,
    ],
  )
  # The best token has to sink below the two others.
  level = 1 / 3
  np.testing.assert_allclose(
    bounds_of(lossless, p, 0, 2)[1].tv, 2 * level - 0.4
  )
  assert np.isinf(bounds_of(lossless, p, 0, 3)[1]).all()
  assert np.isinf(bounds_of(lossless, p, 0, 4)[1]).all()


def test_a_drawn_draft_has_no_certificate():
  """With q = p Token V3 rejects a draw with probability p(A) p(R)."""
  p = jnp.array([0.2, 0.4, 0.3, 0.1])
  target = TARGETS["spec_cascade_token_v3"]
  pi = target.probs(p, p, alpha=0.3)
  np.testing.assert_allclose(1 - numerics.overlap(p, pi), 0.7 * 0.3)


def test_large_vocabularies_in_float32():
  rng = np.random.default_rng(3)
  p = rng.dirichlet(np.full(3000, 0.02), 8)
  p[3] = np.linspace(1, 1.1, 3000) / np.linspace(1, 1.1, 3000).sum()
  accepted = np.array(
    [
      np.isin(np.arange(3000), np.argsort(-row)[:num])
      for row, num in zip(p, [1, 1, 2, 40, 7, 1, 3, 1])
    ]
  )
  for num in (1, 3):
    bounds = certificates.least_rejected(
      jnp.asarray(p, jnp.float32), jnp.asarray(accepted), num
    )
    for place, (row, keep) in enumerate(zip(p, accepted)):
      *found, _ = nearest(row, keep, num)
      wanted = [
        certificates.divergences(jnp.asarray(row), jnp.asarray(q))[which]
        for which, q in enumerate(found)
      ]
      got = [bound[place] for bound in bounds]
      np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-7)
