"""Distributions against sorting twins in float64; draws at every edge."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from speccascade.decoding.laws import draws
from speccascade.decoding.laws import sampling as sampling_lib
from speccascade.decoding.laws.draws import draw
from speccascade.decoding.laws.sampling import Sampling

pytestmark = pytest.mark.usefixtures("either_way")
LAST = np.float32(1 - 2**-24)  # above every float32 uniform
TOP_UNIFORM = np.float32(1 - 2**-23)


def rows(vocab_size=11, num=40):
  """Logits with ties, zeros (-inf), one-hot rows and plain ones, float32."""
  rng = np.random.default_rng(1)
  x = rng.normal(0, 2, (num, vocab_size))
  x[:8] = np.round(x[:8])  # ties
  x[8] = 0  # all tied
  x[9:12, ::2] = -np.inf
  x[12:15] = np.where(np.eye(vocab_size)[:3] > 0, 0, -np.inf)
  x[15, 3:] = -np.inf
  x[16] = -30
  x[16, 4] = 30
  return x.astype(np.float32)


def twin(logits, temperature, top_k=None, top_p=None, min_p=0.0):
  """Sorts, where the product searches; float64."""

  def sort(x):
    return np.argsort(-x, axis=-1, kind="stable")

  x = logits.astype(np.float64) / np.float64(np.float32(temperature))
  if top_k is not None:
    np.put_along_axis(x, sort(x)[:, top_k:], -np.inf, axis=-1)
  p = special.softmax(x, axis=-1)
  if top_p is not None:
    order = sort(p)
    ranked = np.take_along_axis(p, order, axis=-1)
    # A set that holds top_p is complete; rounding must not ask for more.
    goal = np.minimum(np.float64(np.float32(top_p)), p.sum(-1, keepdims=True))
    is_kept = np.cumsum(ranked, axis=-1) - ranked < goal - 1e-12
    np.put_along_axis(p, order, np.where(is_kept, ranked, 0), axis=-1)
  # Rounding must not drop a token on the line.
  least = np.float64(np.float32(min_p)) * p.max(-1, keepdims=True)
  p[p < least * (1 - 1e-12)] = 0
  return p / p.sum(-1, keepdims=True)


SETTINGS = [
  {"temperature": 1.0},
  {"temperature": 0.3},
  {"temperature": 1.7},
  {"temperature": 1.0, "top_k": 1},
  {"temperature": 0.7, "top_k": 4},
  {"temperature": 1.0, "top_k": 50},
  {"temperature": 1.0, "top_p": 0.9},
  {"temperature": 1.3, "top_p": 0.35},
  {"temperature": 1.0, "top_p": 1e-6},
  {"temperature": 0.9, "top_k": 5, "top_p": 0.8},
  {"temperature": 1.0, "min_p": 0.2},
  {"temperature": 1.7, "min_p": 1.0},
  {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.15},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_laws_against_the_sorting_twin(settings):
  logits = rows()
  expected = twin(logits, **settings)
  with jax.enable_x64(True):
    plain, law = Sampling.create(**settings).laws(
      jnp.asarray(logits, jnp.float64)
    )
    assert law.dtype == jnp.float64
  np.testing.assert_allclose(law, expected, atol=1e-12)
  np.testing.assert_allclose(
    plain, special.softmax(logits.astype(float), axis=-1), atol=1e-12
  )


@pytest.mark.parametrize("settings", SETTINGS[3:5] + SETTINGS[6:], ids=str)
def test_filters_in_float32_keep_the_same_tokens(settings):
  logits = rows()[16:]  # without ties
  sampling = Sampling.create(**settings)
  plain, law = jax.jit(lambda x: sampling.laws(x))(logits)
  expected = twin(logits, **settings)
  np.testing.assert_array_equal(np.asarray(law) > 0, expected > 0)
  np.testing.assert_allclose(law, expected, atol=1e-5)
  np.testing.assert_allclose(np.asarray(plain).sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize(("top_p", "num"), [(0.5, 4), (0.3, 2), (1e-6, 1)])
def test_top_p_takes_the_lower_of_equals(top_p, num):
  """One token of 1/4 and eight of 3/32, all numbers of float32."""
  law = np.full((2, 9), 3 / 32, np.float32)
  law[0, 2] = law[1, 8] = 1 / 4
  _, actual = Sampling.create(1.0, top_p=top_p).laws(jnp.log(law))
  order = np.argsort(-law, axis=-1, kind="stable")
  for row, ids in zip(np.asarray(actual), order):
    assert set(np.flatnonzero(row)) == set(ids[:num].tolist())


def test_min_p_comes_after_temperature_and_top_p():
  """By hand: of .5, .3, .12, .08 the line of min-p .2 is .1."""
  law = jnp.log(jnp.array([[0.5, 0.3, 0.12, 0.08]]))
  keeps = lambda **settings: (
    Sampling.create(**settings).laws(law)[1] > 0
  ).sum()
  assert keeps(min_p=0.2) == 3
  # At temperature .5 the ratios are squared: .3 is .36 of the largest.
  assert keeps(temperature=0.5, min_p=0.2) == 2
  # Top-p .9 asks for three tokens of the whole, and min-p then drops one; of
  # the tokens that min-p .3 keeps, top-p .9 would ask for two as well.
  assert keeps(top_p=0.9, min_p=0.3) == 2
  assert keeps(top_p=0.9) == keeps(top_p=0.9, min_p=0.2) == 3
  got = Sampling.create(top_k=3, min_p=0.5).laws(law)[1]
  np.testing.assert_allclose(got, [[0.625, 0.375, 0, 0]], rtol=1e-6)


def test_top_k_is_the_scatter_of_its_ids():
  """All rows of five logits of four values, with both zeros."""
  values = [-np.inf, -0.0, 0.0, 1.0]
  logits = jnp.asarray(list(itertools.product(values, repeat=5)), jnp.float32)
  order = np.argsort(-np.asarray(logits), axis=-1, kind="stable")
  for k in range(1, 5):
    mask, ids = jax.jit(sampling_lib.top_k, static_argnums=1)(logits, k)
    np.testing.assert_array_equal(ids, order[:, :k])
    want = np.zeros(logits.shape, bool)
    np.put_along_axis(want, order[:, :k], True, axis=-1)
    np.testing.assert_array_equal(mask, want)


def test_top_p_after_top_k_is_top_p_of_the_whole():
  """All q of six tokens in sixteenths, whose sums are exact: many ties."""
  weights = [
    row
    for row in itertools.product([0, 1, 2, 3, 4, 8], repeat=6)
    if sum(row) == 16 and 0 < np.count_nonzero(row) <= 4
  ]
  laws = jnp.asarray(weights, jnp.float32) / 16
  # The four likeliest, or tokens without probability among them; in any order.
  _, ids = sampling_lib.top_k(laws, 4)
  mask = jax.jit(sampling_lib.top_p_mask)
  for top_p in np.arange(1, 17, dtype=np.float32) / 16:
    whole = mask(laws, top_p)
    for some in (ids, ids[:, ::-1]):
      np.testing.assert_array_equal(mask(laws, top_p, some), whole)


# The least normal number of float32; below it programs may see 0; 0 in float32.
@pytest.mark.parametrize("top_p", [1.2e-38, 1.1e-38, 1e-40, 1.5e-45, 1e-46])
def test_the_least_top_p_keeps_one_token(top_p):
  laws = np.array([[0.1, 0.4, 0.4, 0.1], [0.4, 0.2, 0.2, 0.2]], np.float32)
  sampling, u = Sampling.create(1.0, top_p=top_p), jnp.full((2, 1), 0.9)
  for settle in (sampling.step, jax.jit(lambda *args: sampling.step(*args))):
    step = settle(jnp.log(laws), u)
    np.testing.assert_array_equal(step.law, np.eye(4)[[1, 0]])
    np.testing.assert_array_equal(step.token, [1, 0])
    assert step.is_law.all()


def test_greedy_is_one_hot_at_the_lowest_best_id():
  sampling = Sampling.create(1e-4)
  assert sampling.greedy
  plain, law = sampling.laws(jnp.array([[0.0, 2.0, 2.0]]))
  np.testing.assert_array_equal(law, [[0, 1, 0]])
  assert float(plain[0, 2]) > 0.4  # confidences stay at temperature 1


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"temperature": -1}, "temperature is -1; .*of 0 or more"),
    ({"temperature": float("nan")}, "temperature is nan"),
    ({"temperature": float("inf")}, "temperature is inf"),
    ({"top_k": -2}, "top_k is -2; .*from 0"),
    ({"top_p": 0.0}, "top_p is 0.0; .*above 0 to 1"),
    ({"top_p": 1.5}, "top_p is 1.5; .*above 0 to 1"),
    # A number that float32 would round to 1.
    ({"top_p": 1 + 1e-9}, "top_p is 1.000000001; .*above 0 to 1"),
    ({"top_p": -1e-46}, "top_p is -1e-46; .*above 0 to 1"),
    ({"min_p": -0.1}, "min_p is -0.1; .*from 0 to 1"),
    ({"min_p": 1.5}, "min_p is 1.5; .*from 0 to 1"),
    ({"top_p": float("nan")}, "top_p is nan; .*above 0 to 1"),
    # As programs will see it, in float32.
    (
      {"temperature": 1e39},
      r"is 1e\+39; wanted a number .* that float32 holds",
    ),
  ],
)
def test_settings_are_checked(settings, message):
  with pytest.raises(ValueError, match=message):
    Sampling.create(**settings)


# Draws.


def jit_draw(weights, u):
  """Draws in a program of its own, made one way."""
  return jax.jit(lambda *args: draw(*args))(weights, u)


@pytest.mark.parametrize("size", [3, 40, 256, 257, 700, 1000])
def test_draw_inverts_the_cumulative_sum(size):
  rng = np.random.default_rng(size)
  weights = rng.dirichlet(np.full(size, 0.3)).astype(np.float32)
  weights[rng.random(size) < 0.5] = 0
  weights[size // 2] = 0.1
  top = np.cumsum(weights.astype(np.float64))
  low = np.concatenate([[0], top[:-1]])
  tokens = np.flatnonzero(top - low > 1e-4 * top[-1])
  inside = np.stack([low + 2e-5, top - 2e-5], axis=1) / top[-1]
  u = jnp.asarray(inside[tokens].astype(np.float32))
  actual = jit_draw(jnp.broadcast_to(weights, (*u.shape, size)), u)
  np.testing.assert_array_equal(
    actual, np.broadcast_to(tokens[:, None], actual.shape)
  )


@pytest.mark.parametrize("size", [4, 300, 1000])
def test_a_token_without_mass_is_never_drawn(size):
  # Every block of 128 ends in zeros, weights span many magnitudes so that
  # sums of blocks and running sums round differently, and the uniforms are the
  # first, the last, and those at the edges of the cumulative sum.
  rng = np.random.default_rng(size)
  weights = np.exp(rng.normal(0, 6, (64, size))).astype(np.float32)
  index = np.arange(size)
  weights[:, index % 128 > 100] = 0
  weights[:, size - 2 :] = 0
  weights[rng.random(weights.shape) < 0.3] = 0
  weights[:, 1] = 1e-6
  top = np.cumsum(weights, axis=-1, dtype=np.float32)
  edges = top / top[:, -1:]
  picks = edges[:, rng.integers(0, size, 40)]
  ends = np.broadcast_to([0, LAST, TOP_UNIFORM], (64, 3))
  near = np.nextafter(picks, 0), np.nextafter(picks, 2)
  u = np.concatenate([ends, picks, *near], axis=1).astype(np.float32)
  u = np.minimum(u, LAST)
  spread = np.broadcast_to(weights[:, None], (*u.shape, size))
  actual = np.asarray(jit_draw(jnp.asarray(spread), jnp.asarray(u)))
  assert np.all(np.take_along_axis(weights, actual, axis=-1) > 0)


@pytest.mark.parametrize("size", [5, 600])
@pytest.mark.parametrize("mass", [[0], [2], [-1], [1, -2]])
def test_the_ends_of_a_uniform(size, mass):
  # The first and the last uniform draw the first and the last token with mass.
  weights = np.zeros((2, size), np.float32)
  weights[:, mass] = 0.37
  actual = draw(jnp.asarray(weights), jnp.array([0.0, LAST]))
  np.testing.assert_array_equal(actual, [mass[0] % size, mass[-1] % size])


# Keys.


def test_a_rows_key_is_that_of_its_example():
  whole = draws.row_keys(3, 1, jnp.arange(6))
  part = draws.row_keys(3, 1, jnp.array([4, 2]))
  data = jax.random.key_data
  np.testing.assert_array_equal(data(whole)[jnp.array([4, 2])], data(part))
  assert "fry" in str(whole.dtype)
  for seed_and_trial in ((3, 2), (4, 1), (2, 2), (4, 0)):
    other = draws.row_keys(*seed_and_trial, jnp.arange(6))
    assert not np.array_equal(data(whole), data(other))


def test_uniforms_are_those_of_each_key():
  keys = draws.row_keys(0, 0, jnp.arange(5))
  u = draws.uniforms(keys, 3)
  assert u.shape == (5, 3)
  assert u.dtype == jnp.float32
  np.testing.assert_array_equal(u[3:], draws.uniforms(keys[3:], 3))
  # Bit for bit JAX's own: 23 bits, of which a tail depends on the lowest.
  np.testing.assert_array_equal(u, [jax.random.uniform(k, (3,)) for k in keys])
  folded = draws.fold_in(keys, jnp.arange(5))
  expected = jnp.stack([jax.random.fold_in(k, i) for i, k in enumerate(keys)])
  np.testing.assert_array_equal(*map(jax.random.key_data, (folded, expected)))


def test_is_law():
  nan, inf = jnp.nan, jnp.inf
  logits = jnp.array(
    [[0, 1], [nan, 0], [inf, 0], [-inf, 0], [-inf, -inf], [-inf, nan]]
  )
  actual = sampling_lib.is_law(logits)
  np.testing.assert_array_equal(actual, [1, 0, 0, 1, 0, 0])


@pytest.mark.parametrize("size", [7, 64, 300])
def test_a_nan_is_seen_wherever_it_is(size):
  # A maximum over many numbers is taken in lanes, which may drop it.
  logits = np.zeros((size, size), np.float32)
  np.fill_diagonal(logits, np.nan)
  assert not np.any(jax.jit(sampling_lib.is_law)(logits))


@pytest.mark.parametrize("settings", [*SETTINGS[3:5], SETTINGS[9]], ids=str)
def test_a_nan_that_top_k_drops_is_seen(settings):
  # inf - inf is a NaN of negative sign on x86, which sorts below every number.
  logits = np.tile(np.arange(8, dtype=np.float32), (3, 1))
  logits[0, 0] = np.copysign(np.nan, -1)
  logits[1, 0] = -np.inf
  assert np.signbit(logits[0, 0])
  assert not sampling_lib.top_k(jnp.asarray(logits), 5)[0][0, 0]
  sampling, u = Sampling.create(**settings), jnp.full((3, 1), 0.5)
  got = jax.jit(lambda x: sampling.step(x, u))(logits)
  assert got.is_law.tolist() == [False, True, True]
