"""Distributions over the vocabularies of real models, against float64, to 1e-6.

Beside a weight of 1 a float32 sum has no room for the small ones, of which a
vocabulary has a few hundred thousand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from speccascade import native
from speccascade.decoding import Sampling
from speccascade.decoding.laws import draws, numerics
from speccascade.decoding.records import draft_tree
from speccascade.decoding.records.block_records import Branches
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.verification import tree_steps
from speccascade.study.papers import draft_acceptance
from tests import toy
from tests.models import conftest

# T5, Llama 3, Qwen 2 and Gemma.
SIZES = (32_128, 128_256, 151_936, 256_128)
# Logits of a tail below one token at 0. Near exp(-16.6) half of the last place
# of 1 is as much as a weight: a sum loses all of them or adds twice as much.
TAILS = (-2.0, -8.0, -12.0, -14.0, -15.5, -16.25, -16.5, -16.75, -17.0, -20.0)
# The last uniforms are as near to 1 as `draws.uniforms` comes.
UNIFORMS = (0.0, 1e-7, 0.3, 0.999, 1 - 1e-6, 1 - 2.0**-23)


@pytest.fixture(
  params=[
    "xla",
    *(
      pytest.param(name, marks=[] if name == "best" else [pytest.mark.slow])
      for name in conftest.BUILDS
    ),
  ]
)
def path(request, monkeypatch):
  """XLA, or one path of the native source."""
  if request.param == "xla":
    monkeypatch.setattr(native, "takes", lambda *arrays: False)
  elif not native.is_available():
    pytest.skip("no native code")
  else:
    conftest.use_build(request.param, monkeypatch)


def compiled(function):
  """Returns a function as a program of its own: jit would share a path."""
  return jax.jit(lambda *arguments: function(*arguments))


def rows(size: int) -> dict[str, np.ndarray]:
  """Returns logits [size] by the name of their shape.

  The largest is 0, and all are multiples of 2^-16 above -32: no difference of
  two is rounded.
  """
  rng = np.random.default_rng(size)
  shapes = {}
  for tail in TAILS:
    shapes[f"flat {tail}"] = np.full(size, tail)
    shapes[f"flat {tail}"][rng.integers(size)] = 0
  shapes["flat, top first"] = np.full(size, -17.0)
  shapes["flat, top first"][0] = 0
  shapes["flat, top last"] = np.full(size, -17.0)
  shapes["flat, top last"][-1] = 0
  ranks = np.log(np.arange(1, size + 1))
  shapes["zipf"], shapes["steep zipf"] = -ranks, rng.permutation(-1.3 * ranks)
  shapes["uniform"] = np.zeros(size)
  two = np.where(np.arange(size) < size // 2, -12.0, -16.75)
  two[rng.integers(size)] = 0
  shapes["two levels"] = two
  shapes["ties"] = np.round(2 * rng.normal(size=size))
  shapes["normal"] = 3 * rng.normal(size=size)
  # As a mask leaves it: no token of the last third, and none of every other.
  shapes["masked"] = np.where(np.arange(size) % 2, -np.inf, -16.5)
  shapes["masked"][2 * size // 3 :] = -np.inf
  shapes["masked"][0] = 0
  for name, x in shapes.items():
    x = np.round((x - x.max()) * 2**16) / 2**16
    shapes[name] = np.where(np.isneginf(x), x, np.maximum(x, -31.5))
  return shapes


def logits_of(size: int) -> np.ndarray:
  return np.stack(list(rows(size).values())).astype(np.float32)


def assert_near(actual, want, what):
  """Asserts that numbers are within 1e-6 of float64, of 1 or of themselves."""
  want = np.asarray(want, np.float64)
  error = np.abs(np.asarray(actual, np.float64) - want)
  error /= np.maximum(np.abs(want), 1)
  assert error.max() <= 1e-6, (what, error.max())


def assert_law(law, want):
  """Asserts that distributions [N, V] sum to 1, and are those of float64."""
  law = np.asarray(law, np.float64)
  assert_near(law.sum(-1), np.ones(len(law)), "sum")
  share = np.divide(law, want, where=want > 0, out=np.ones_like(want))
  assert_near(share, np.ones_like(want), "share")
  np.testing.assert_array_equal(law[want == 0], 0)


def assert_drawn(law, u, token):
  """Asserts that tokens [N] are where u [N] is in the distribution [N, V]."""
  law = np.asarray(law, np.float64)
  of_token = np.take_along_axis(law, token[:, None], axis=1)[:, 0]
  assert np.all(of_token > 0)
  total = np.cumsum(law, axis=1)
  end = np.take_along_axis(total, token[:, None], axis=1)[:, 0]
  assert np.all(u <= end / total[:, -1] + 1e-6)
  assert np.all((end - of_token) / total[:, -1] <= u + 1e-6)


SIZED = pytest.mark.parametrize("size", toy.nightly(SIZES, SIZES[-1:]))


@SIZED
@pytest.mark.parametrize("temperature", toy.nightly([1.0, 0.5], [1.0]))
def test_laws_and_draws(path, size, temperature):
  logits = logits_of(size)
  want = special.softmax(logits.astype(np.float64) / temperature, axis=-1)
  plain = special.softmax(logits.astype(np.float64), axis=-1)
  step = compiled(Sampling.create(temperature).step)
  draw = compiled(draws.draw)
  for u in UNIFORMS:
    u = np.full(len(logits), u, np.float32)
    if u[0] in (UNIFORMS[0], UNIFORMS[-1]):
      actual = step(logits, u[:, None])
      assert_drawn(actual.law, u, np.asarray(actual.token))
    # From weights that do not sum to 1, too.
    assert_drawn(actual.law, u, np.asarray(draw(3 * actual.law, u)))
  assert np.all(actual.is_law)
  assert_law(actual.law, want)
  assert_law(actual.plain, plain)
  confidence = compiled(Sampling.create(temperature).confidence)
  assert_law(confidence(logits), plain)
  has_mass = want > 0
  log_law = np.log(np.asarray(actual.law, np.float64)[has_mass])
  assert_near(log_law, np.log(want[has_mass]), "log-probability")


@SIZED
def test_bfloat16_logits_make_the_laws_of_their_numbers(path, size):
  logits = jnp.asarray(logits_of(size), jnp.bfloat16)
  want = special.softmax(np.asarray(logits, np.float64), axis=-1)
  assert_law(compiled(Sampling.create().step)(logits).law, want)


@SIZED
@pytest.mark.parametrize(
  "filtered", [{"top_p": 0.9999}, {"min_p": 1e-8}, {"top_k": 30_000}]
)
def test_filters(path, size, filtered):
  logits = logits_of(size)
  whole = special.softmax(logits.astype(np.float64), axis=-1)
  sampling = Sampling.create(**filtered)
  u = np.full(len(logits), UNIFORMS[-1], np.float32)
  step = compiled(sampling.step)(logits, u[:, None])
  is_kept = np.asarray(step.law) > 0
  kept = np.where(is_kept, whole, 0)
  assert_law(step.law, kept / kept.sum(-1, keepdims=True))
  assert_drawn(step.law, u, np.asarray(step.token))
  # What is kept is likelier than what is not.
  least = np.where(is_kept, whole, 1).min(-1)
  assert np.all(np.where(is_kept, 0, whole).max(-1) <= least)
  if "top_p" in filtered:
    assert np.all(kept.sum(-1) >= 0.9999 - 1e-6)
    assert np.all(kept.sum(-1) - least <= 0.9999 + 1e-6)


@SIZED
def test_distances_and_entropies(path, size):
  q = special.softmax(logits_of(size).astype(np.float64), axis=-1)
  q = q.astype(np.float32)
  for p in (np.roll(q, 1, axis=1), np.roll(q, 1, axis=0)):
    wide = [x.astype(np.float64) for x in (q, p)]
    overlap = compiled(numerics.overlap)(q, p)
    assert_near(overlap, np.minimum(*wide).sum(-1), "overlap")
    distance = np.maximum(wide[1] - wide[0], 0).sum(-1)
    actual = compiled(numerics.total_variation)(q, p)
    assert_near(actual, distance, "total variation")
    left = np.asarray(compiled(numerics.residual)(p, q), np.float64)
    assert_near(left.sum(-1), np.ones(len(q)), "residual")
  entropy = special.entr(q.astype(np.float64)).sum(-1)
  assert_near(compiled(numerics.entropy)(q), entropy, "entropy")


@pytest.mark.parametrize("tail", TAILS[2:5])
def test_k_seq_takes_a_draft_up_to_its_factor(path, tail):
  # The factor of two draws depends on a sum over all tokens. A draft is
  # accepted where u r q(x) < pi(x).
  law = rows(SIZES[-1])[f"flat {tail}"]
  law = special.softmax(law).astype(np.float32)
  pi = np.roll(law, 1)
  x = np.argmax(law)
  wide = law.astype(np.float64), pi.astype(np.float64)
  # The chance is 1 - (1 - b)^2 = r b, so that r is 2 - b.
  factor = 1 + np.sqrt(1 - draft_acceptance.k_seq_acceptance(*wide, 2))
  edge = pi[x] / (factor * law[x])
  tokens = np.full((2, 2), x, np.int32)
  tree = DraftTree((-1, -1))
  branches = Branches(
    tree, draft_tree.IID, jnp.zeros((2, 2), jnp.int32), jnp.zeros((2, 2), bool)
  )
  u_accept = edge * np.array([[1 - 5e-6, 2], [1 + 5e-6, 2]], np.float32)
  verify = tree_steps.TREE_VERIFY["k_seq"]
  half = jnp.full((2, 3), 0.5)
  laws = [np.broadcast_to(x, (2, 3, len(x))) for x in (law, pi)]
  verdict = compiled(lambda u, q, p: verify(tokens, branches, q, p, u, half))(
    jnp.asarray(u_accept, jnp.float32), *laws
  )
  assert list(verdict.num_accepted) == [1, 0]
