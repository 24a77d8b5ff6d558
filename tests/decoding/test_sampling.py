"""Laws against sorting twins in float64; draws at every edge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import draws
from speccascade.decoding import sampling as sampling_lib
from speccascade.decoding.draws import draw
from speccascade.decoding.sampling import Sampling

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


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def twin(logits, temperature, top_k=None, top_p=None):
  """Sorts, where the product searches; float64."""
  made = []
  for row in logits.astype(np.float64):
    row = row / np.float64(np.float32(temperature))
    order = np.argsort(-row, kind="stable")
    if top_k is not None:
      row = np.where(np.isin(np.arange(len(row)), order[:top_k]), row, -np.inf)
    p = softmax(row)
    if top_p is not None:
      order = np.argsort(-p, kind="stable")
      before = np.cumsum(p[order]) - p[order]
      # A set that holds top_p is complete; rounding must not ask for more.
      needed = before < min(np.float64(np.float32(top_p)), p.sum()) - 1e-12
      kept = np.isin(np.arange(len(p)), order[needed])
      p = np.where(kept, p, 0)
      p /= p.sum()
    made.append(p)
  return np.array(made)


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
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_laws_against_the_sorting_twin(settings):
  logits = rows()
  want = twin(logits, **settings)
  with jax.enable_x64(True):
    plain, law = Sampling.create(**settings).laws(
      jnp.asarray(logits, jnp.float64)
    )
    assert law.dtype == jnp.float64
  np.testing.assert_allclose(law, want, atol=1e-12)
  np.testing.assert_allclose(plain, softmax(logits.astype(float)), atol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS[3:5] + SETTINGS[6:], ids=str)
def test_filters_in_float32_keep_the_same_tokens(settings):
  logits = rows()[16:]  # without ties
  plain, law = jax.jit(Sampling.laws)(Sampling.create(**settings), logits)
  want = twin(logits, **settings)
  np.testing.assert_array_equal(np.asarray(law) > 0, want > 0)
  np.testing.assert_allclose(law, want, atol=1e-5)
  np.testing.assert_allclose(np.asarray(plain).sum(-1), 1, atol=1e-6)


def test_top_k_keeps_exactly_k_and_the_lower_ids_of_a_tie():
  logits = jnp.array([[1.0, 2, 2, 2, 0], [3, 3, 3, 3, 3], [5, 1, 2, 1, 1]])
  mask = sampling_lib.top_k_mask(logits, 3)
  np.testing.assert_array_equal(
    mask, [[0, 1, 1, 1, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]
  )


def test_top_p_keeps_the_smallest_set_the_crossing_token_included():
  p = jnp.array([[0.5, 0.25, 0.125, 0.125]])

  def kept(top_p):
    return np.asarray(sampling_lib.top_p_mask(p, jnp.float32(top_p)))[0]

  # .5 alone holds .5; a little more needs the second token, whole.
  np.testing.assert_array_equal(kept(0.25), [1, 0, 0, 0])
  np.testing.assert_array_equal(kept(0.5), [1, 0, 0, 0])
  np.testing.assert_array_equal(kept(0.501), [1, 1, 0, 0])
  np.testing.assert_array_equal(kept(0.75), [1, 1, 0, 0])
  # Of the two at .125 the lower id goes first.
  np.testing.assert_array_equal(kept(0.8), [1, 1, 1, 0])
  np.testing.assert_array_equal(kept(0.9), [1, 1, 1, 1])
  np.testing.assert_array_equal(kept(1.0), [1, 1, 1, 1])


def test_greedy_is_one_hot_at_the_lowest_best_id():
  sampling = Sampling.create(1e-4)
  assert sampling.greedy
  plain, law = sampling.laws(jnp.array([[0.0, 2.0, 2.0]]))
  np.testing.assert_array_equal(law, [[0, 1, 0]])
  assert float(plain[0, 2]) > 0.4  # confidences stay at temperature 1


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"temperature": -1}, "temperature is -1; wanted a finite number, 0"),
    ({"temperature": float("nan")}, "temperature is nan"),
    ({"temperature": float("inf")}, "temperature is inf"),
    ({"top_k": -2}, "top_k is -2; wanted 1 or more"),
    ({"top_p": 0.0}, r"top_p is 0.0; wanted a number in \(0, 1\]"),
    ({"top_p": 1.5}, r"top_p is 1.5; wanted a number in \(0, 1\]"),
    # As programs will see them, in float32.
    ({"temperature": 1e39}, r"temperature is 1e\+39; wanted a finite number"),
    ({"top_p": 1e-46}, "top_p is 1e-46, 0 in float32; wanted a number"),
  ],
)
def test_settings_are_checked(settings, message):
  with pytest.raises(ValueError, match=message):
    Sampling.create(**settings)


# Draws.


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
  got = jax.jit(draw)(jnp.broadcast_to(weights, (*u.shape, size)), u)
  np.testing.assert_array_equal(
    got, np.broadcast_to(tokens[:, None], got.shape)
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
  u = np.concatenate(
    [
      np.zeros((64, 1)),
      np.full((64, 1), LAST),
      np.full((64, 1), TOP_UNIFORM),
      picks,
      np.nextafter(picks, 0),
      np.nextafter(picks, 2),
    ],
    axis=1,
  ).astype(np.float32)
  u = np.minimum(u, LAST)
  spread = np.broadcast_to(weights[:, None], (*u.shape, size))
  got = np.asarray(jax.jit(draw)(jnp.asarray(spread), jnp.asarray(u)))
  assert np.all(np.take_along_axis(weights, got, axis=-1) > 0)


@pytest.mark.parametrize("size", [5, 600])
@pytest.mark.parametrize("where", [0, 2, -1])
def test_draw_from_a_one_hot(size, where):
  weights = np.zeros((3, size), np.float32)
  weights[:, where] = 0.37
  u = jnp.array([0.0, 0.5, LAST])
  np.testing.assert_array_equal(draw(jnp.asarray(weights), u), where % size)


@pytest.mark.parametrize("size", [5, 600])
def test_the_ends_of_a_uniform(size):
  weights = np.full((2, size), 1 / size, np.float32)
  weights[:, 0] = weights[:, -1] = 0
  got = draw(jnp.asarray(weights), jnp.array([0.0, LAST]))
  np.testing.assert_array_equal(got, [1, size - 2])


def test_draws_do_not_favour_a_side():
  # The mean of many draws by evenly spread uniforms is that of the law.
  law = np.array([0.125, 0.5, 0.0, 0.375], np.float32)
  u = (np.arange(4000, dtype=np.float32) + 0.5) / 4000
  got = draw(jnp.broadcast_to(law, (4000, 4)), jnp.asarray(u))
  counts = np.bincount(np.asarray(got), minlength=4)
  np.testing.assert_array_equal(counts, [500, 2000, 0, 1500])


# Keys.


def test_a_rows_key_is_that_of_its_example():
  whole = draws.row_keys(3, 1, jnp.arange(6))
  part = draws.row_keys(3, 1, jnp.array([4, 2]))
  data = jax.random.key_data
  np.testing.assert_array_equal(data(whole)[jnp.array([4, 2])], data(part))
  assert "fry" in str(whole.dtype)
  others = [
    draws.row_keys(*x, jnp.arange(6)) for x in ((3, 2), (4, 1), (2, 2), (4, 0))
  ]
  for other in others:
    assert not np.array_equal(data(whole), data(other))


def test_uniforms_are_those_of_each_key():
  keys = draws.row_keys(0, 0, jnp.arange(5))
  u = draws.uniforms(keys, 3)
  assert u.shape == (5, 3)
  assert u.dtype == jnp.float32
  np.testing.assert_array_equal(u[3:], draws.uniforms(keys[3:], 3))
  # Bit for bit JAX's own: 23 bits, of which a tail hangs on the lowest.
  np.testing.assert_array_equal(u, [jax.random.uniform(k, (3,)) for k in keys])
  folded = draws.fold_in(keys, jnp.arange(5))
  for row in range(5):
    want = jax.random.fold_in(keys[row], row)
    assert jnp.all(
      jax.random.key_data(folded[row]) == jax.random.key_data(want)
    )


def test_is_law():
  nan, inf = jnp.nan, jnp.inf
  logits = jnp.array(
    [[0, 1], [nan, 0], [inf, 0], [-inf, 0], [-inf, -inf], [-inf, nan]]
  )
  got = sampling_lib.is_law(logits)
  np.testing.assert_array_equal(got, [1, 0, 0, 1, 0, 0])


@pytest.mark.parametrize("size", [7, 64, 300])
def test_a_nan_is_seen_wherever_it_stands(size):
  # A maximum over many numbers is taken in lanes, which may drop it.
  logits = np.zeros((size, size), np.float32)
  np.fill_diagonal(logits, np.nan)
  assert not np.any(jax.jit(sampling_lib.is_law)(logits))
