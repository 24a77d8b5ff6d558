"""The GPU's kernels of draws and of kept paths, computed on a CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding import Sampling, decoder, row_keys
from speccascade.decoding.drafting import children, kept_tokens
from speccascade.decoding.laws import draws, kernel_laws
from speccascade.models import cache
from speccascade.models.markov_lm import MarkovLM
from speccascade.native.gpu import (
  chain_review,
  filtered_laws,
  kept_path,
  row_children,
  row_draws,
  row_laws,
)
from speccascade.native.gpu.chain_review import DraftScores
from speccascade.native.gpu.row_draws_triton import Configuration
from tests.models import kept_paths

# A vocabulary in one part, and in several of which the last is not full.
PARTS = [(300, None), (1100, Configuration(tokens=512, warps=4))]
EXTREMES = (0.0, 0.5, 1 - 2**-24)


@pytest.fixture(autouse=True)
def _plainly(monkeypatch):
  monkeypatch.setenv("SPECCASCADE_NATIVE", "0")


def logits(size: int) -> np.ndarray:
  """Returns rows with ties, without most tokens, with one, far apart."""
  rng = np.random.default_rng(size)
  x = rng.normal(0, 2, (24, size)).astype(np.float32)
  x[:4] = np.round(x[:4])
  x[4:8, : size // 2] = -np.inf
  x[8:12, size // 3 :] = -np.inf
  x[12:16] = np.where(np.arange(size) == size - 2, 0, -np.inf)
  x[16:20] *= 40
  return x


@pytest.mark.parametrize(("size", "parts"), PARTS)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rows_have_the_laws_and_the_draws_of_plain_steps(
  size, parts, temperature
):
  x, sampling = jnp.asarray(logits(size)), Sampling.create(temperature)
  u = np.random.default_rng(0).random((len(x), 3)).astype(np.float32)
  u[:3, 1] = EXTREMES
  found = row_laws(
    x,
    sampling.temperature,
    jnp.asarray(u),
    column=1,
    greedy=sampling.greedy,
    implementation="interpreted",
    configuration=parts,
  )
  want = sampling.step(x, jnp.asarray(u), 1)
  np.testing.assert_array_equal(found.top, x.max(axis=1))
  np.testing.assert_array_equal(found.token, want.token)
  plain = np.exp(x - found.top[:, None]) / found.plain_total[:, None]
  np.testing.assert_allclose(plain, want.plain, rtol=2e-6, atol=1e-30)
  with native.gpu_kernels("interpreted"):
    step = sampling.step(x, jnp.asarray(u), 1)
  for got, plain in zip(step, want):
    np.testing.assert_allclose(got, plain, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
  ("size", "parts", "settings"),
  [
    (*PARTS[0], {"top_k": 7}),
    (*PARTS[1], {"top_p": 0.8}),
    (*PARTS[0], {"min_p": 0.1}),
    (*PARTS[1], {"top_k": 40, "top_p": 0.7, "min_p": 0.02}),
  ],
)
def test_filters_keep_and_draw_the_tokens_of_plain_steps(size, parts, settings):
  x, sampling = jnp.asarray(logits(size)), Sampling.create(0.7, **settings)
  x = x.at[0, 5].set(-0.0).at[0, 3].set(0.0)
  u = np.random.default_rng(0).random((len(x), 3)).astype(np.float32)
  u[:3, 1] = EXTREMES
  want = sampling.step(x, jnp.asarray(u), 1)
  found = filtered_laws(
    x,
    sampling.temperature,
    jnp.asarray(u),
    sampling.top_p,
    sampling.min_p,
    top_k=sampling.top_k,
    column=1,
    implementation="interpreted",
    configuration=parts,
  )
  got = sampling.step(x, found=found)
  np.testing.assert_array_equal(found.token, want.token)
  np.testing.assert_array_equal(got.law > 0, want.law > 0)
  np.testing.assert_allclose(got.law, want.law, rtol=4e-6, atol=1e-7)
  np.testing.assert_allclose(got.plain, want.plain, rtol=4e-6, atol=1e-7)
  plain = filtered_laws(
    x,
    sampling.temperature,
    None,
    sampling.top_p,
    sampling.min_p,
    top_k=sampling.top_k,
    implementation="xla",
  )
  np.testing.assert_array_equal(found.least, plain.least)
  np.testing.assert_array_equal(found.last, plain.last)
  np.testing.assert_allclose(found.total, plain.total, rtol=4e-6)


def test_filters_of_more_tokens_than_a_program_holds_are_plain():
  x = jnp.zeros((1, (1 << 15) + 1))
  with native.gpu_kernels("interpreted"):
    assert kernel_laws.find(Sampling.create(1.0, top_k=3), x) is None
  with pytest.raises(ValueError, match="of 32769 tokens, more than 32768"):
    filtered_laws(x, jnp.float32(1), top_k=3, implementation="interpreted")


def test_rows_without_a_distribution_are_seen_and_do_not_spoil_others():
  x = logits(300)
  x[0, 7], x[1, 299], x[2] = np.nan, np.inf, -np.inf
  with native.gpu_kernels("interpreted"):
    step = Sampling.create(1.0).step(jnp.asarray(x), jnp.full((24, 1), 0.3))
  assert step.is_law.tolist() == [False] * 3 + [True] * 21
  assert np.isfinite(step.law[3:]).all()
  assert ((np.asarray(step.token) >= 0) & (np.asarray(step.token) < 300)).all()


@pytest.mark.parametrize(("size", "parts"), PARTS)
def test_draws_invert_the_cumulative_sum(size, parts):
  rng = np.random.default_rng(1)
  weights = rng.gamma(0.3, size=(64, size)).astype(np.float32)
  weights *= rng.random(weights.shape) < 0.2
  weights[:6] = np.eye(size)[[0, 1, 127, 128, size - 2, size - 1]]
  weights[-8:] = 0  # as rounding leaves a residual
  rest = rng.random(weights.shape).astype(np.float32)
  u = rng.random(64).astype(np.float32)
  u[::3] = np.resize(EXTREMES, 22)
  got = row_draws(
    jnp.asarray(weights),
    jnp.asarray(u),
    otherwise=jnp.asarray(rest),
    implementation="interpreted",
    configuration=parts,
  )
  want = draws.draw(
    jnp.asarray(weights), jnp.asarray(u), otherwise=jnp.asarray(rest)
  )
  np.testing.assert_array_equal(got, want)
  drawn = np.take_along_axis(weights, np.asarray(got)[:, None], axis=1)
  assert (drawn[:-8] > 0).all()


@pytest.mark.parametrize(("size", "parts"), PARTS)
@pytest.mark.parametrize(
  ("num_certain", "drops", "greedy"),
  [(2, True, False), (0, True, False), (0, False, False), (3, True, True)],
)
def test_children_are_those_of_plain_steps(
  size, parts, num_certain, drops, greedy
):
  """With and without replacement, likeliest ones, more than q has tokens."""
  rng = np.random.default_rng(5)
  q = rng.gamma(0.3, size=(24, size)).astype(np.float32)
  q[:4] = np.round(q[:4])  # of which many are equal
  q[4:8] *= rng.random(q[4:8].shape) < 0.03
  q[8:12] = np.eye(size)[[0, 128, size - 2, size - 1]]
  q /= q.sum(axis=1, keepdims=True)
  confidence = rng.dirichlet(np.full(size, 0.5), 24).astype(np.float32)
  u = rng.random((24, 3)).astype(np.float32)
  u[12:15] = np.array(EXTREMES)[:, None]
  arguments = jnp.asarray(q), jnp.asarray(confidence), jnp.asarray(u)
  options = {"num_certain": num_certain, "drops": drops, "greedy": greedy}
  got, want = (
    row_children(*arguments, **options, implementation=name, configuration=own)
    for name, own in (("interpreted", parts), ("xla", None))
  )
  # Next to 1 a uniform draws as sums are ordered.
  others = np.arange(24) != 14
  np.testing.assert_array_equal(got[0][others], want[0][others])
  np.testing.assert_array_equal(got[1], want[1])
  drawing = {2: "greedy_and_random", 3: "top_k"}.get(
    num_certain, "without_replacement" if drops else "iid"
  )
  plain = children.draw_children(
    *(x[:, None] for x in arguments), drawing, greedy=greedy
  )
  np.testing.assert_array_equal(got[0], plain[0][:, 0])
  np.testing.assert_array_equal(got[1], plain[1][:, 0])


def test_every_token_has_its_share_of_the_uniforms():
  """By bisection: tokens are drawn from u * total = 0 on, in their order."""
  weights = np.array([0.2, 0.0, 0.45, 0.05, 0.3], np.float32)
  x = jnp.log(jnp.asarray(weights))[None]
  low, high = np.zeros(5), np.ones(5)
  with native.gpu_kernels("interpreted"):
    step = jax.jit(
      lambda u: (
        Sampling.create(1.0).step(jnp.broadcast_to(x, (5, 5)), u[:, None]).token
      )
    )
    for _ in range(26):
      middle = (low + high) / 2
      is_below = np.asarray(step(middle.astype(np.float32))) <= np.arange(5)
      low, high = (
        np.where(is_below, middle, low),
        np.where(is_below, high, middle),
      )
  np.testing.assert_allclose(high, np.cumsum(weights), atol=1e-6)


@pytest.mark.parametrize(
  ("size", "parts", "is_cut", "filters"),
  [
    (300, None, False, {}),
    (1100, Configuration(tokens=256, warps=4), False, {}),
    (1100, Configuration(tokens=512, warps=4), True, {}),
    (300, None, False, {"min_p": 0.01}),
    (
      1100,
      Configuration(tokens=512, warps=4),
      True,
      {"top_k": 30, "top_p": 0.8},
    ),
  ],
)
def test_places_of_a_chain_are_reviewed_as_in_separate_steps(
  size, parts, is_cut, filters
):
  rng = np.random.default_rng(4)
  rows, num = 5, 3
  x = [jnp.asarray(logits(size)[i : i + rows]) for i in range(num)]
  drafted, columns, kept = x, None, None
  if is_cut:
    # Every row of logits has a kept token.
    kept = np.unique([*rng.permutation(size)[: size // 3], size - 2])
    kept = jnp.asarray(kept, jnp.int32)
    columns = kept_tokens.columns_of(kept, size)
    drafted = [each[:, kept] for each in x]
    x = [kept_tokens.spread(each, columns, -np.inf) for each in drafted]
  p = jnp.asarray(logits(size)[: rows * (num + 1)].reshape(rows, num + 1, -1))
  p = p.at[:, 1].set(jnp.where(p[:, 1] > -9, x[1], -jnp.inf))  # as the drafter
  sampling = Sampling.create(0.8, **filters)
  u = jnp.asarray(rng.random((rows, num)), jnp.float32)
  with native.gpu_kernels("interpreted"):
    found = [
      kernel_laws.find(sampling, each, u, i) for i, each in enumerate(drafted)
    ]
  tokens = [each.token if kept is None else kept[each.token] for each in found]
  drafts = DraftScores(
    tuple(drafted),
    tuple(each.top for each in found),
    tuple(each.total for each in found),
    tuple(tokens),
    columns,
  )
  if filters:
    drafts = drafts._replace(
      least=tuple(each.least for each in found),
      last=tuple(each.last for each in found),
    )
  arguments = p, drafts, sampling.temperature, u[:, 0]
  if filters:
    arguments += (sampling.top_p, sampling.min_p)
  chain = functools.partial(chain_review, top_k=sampling.top_k)
  got = chain(*arguments, implementation="interpreted", configuration=parts)
  want = chain(*arguments, implementation="xla")
  # Of equal distributions rounding alone is left, whatever it draws.
  is_same = got.overlap > 0.999
  assert is_same.any()
  assert not is_same.all()
  for name, mine in got._asdict().items():
    plain = getattr(want, name)
    if plain is None:
      assert not filters
      continue
    if name == "token":
      mine, plain = (jnp.where(is_same, 0, token) for token in (mine, plain))
    np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6, err_msg=name)
  with native.gpu_kernels("xla"):
    law, q = sampling.step(p).law, sampling.step(x[0]).law
  np.testing.assert_allclose(
    got.overlap[:, 0], jnp.minimum(law[:, 0], q).sum(1), rtol=1e-5
  )


@pytest.mark.parametrize(
  ("size", "parts"),
  [(300, None), (1100, Configuration(tokens=256, warps=4))],
)
def test_places_of_a_greedy_chain_take_the_first_of_the_largest(size, parts):
  rows, num = 5, 3
  p = jnp.asarray(logits(size)[: rows * (num + 1)].reshape(rows, num + 1, -1))
  first = np.asarray(p).argmax(axis=2)
  first[:, 1] += 1  # another token than the verifier's
  none = tuple(p[:, 0] for _ in range(num))
  drafts = DraftScores(
    none, none, none, tuple(jnp.asarray(first[:, :num].T, jnp.int32))
  )
  arguments = p, drafts, jnp.float32(0), jnp.zeros(rows)
  got, want = (
    chain_review(
      *arguments, greedy=True, implementation=name, configuration=own
    )
    for name, own in (("interpreted", parts), ("xla", None))
  )
  for name in ("top", "total", "plain_total", "token", "draft_q"):
    mine, plain = getattr(got, name), getattr(want, name)
    np.testing.assert_allclose(mine, plain, rtol=1e-5, err_msg=name)
  np.testing.assert_array_equal(got.token, np.asarray(p).argmax(axis=2))
  np.testing.assert_array_equal(got.draft_p, [[1, 0, 1, 0]] * rows)
  np.testing.assert_array_equal(got.draft_q, [[1, 1, 1, 0]] * rows)
  np.testing.assert_array_equal(got.overlap, got.draft_p)


def test_a_path_is_kept_to_the_bit_and_nothing_else_moves():
  layers, start, path, count = kept_paths.case(3, 24, jnp.bfloat16)
  want = cache.keep_path(layers, start, path, count)
  with native.gpu_kernels("interpreted"):
    got = cache.keep_path(layers, start, path, count)
  jax.tree.map(np.testing.assert_array_equal, got, want)
  moved = np.asarray(start)[:, None] + np.asarray(path)
  got = kept_path(layers, jnp.asarray(moved), start, implementation="xla")
  assert got[0][0].dtype == jnp.bfloat16


@pytest.mark.parametrize(
  ("method", "options", "settings"),
  [
    ("spec_decode", {"gamma": 3}, {"temperature": 0.8}),
    ("spec_decode_lossy", {"gamma": 3}, {"temperature": 0.0}),
    ("spec_decode", {"gamma": 2}, {"top_k": 20, "top_p": 0.9}),
    ("spec_cascade_opt", {"gamma": 2, "tree": (2, 2)}, {"temperature": 0.8}),
  ],
)
def test_whole_decodes_draw_the_same_tokens(method, options, settings):
  rng, size, rows = np.random.default_rng(3), 300, 48
  pair = [
    MarkovLM(jnp.asarray(rng.normal(0, scale, (1, size, size)), jnp.float32))
    for scale in (1.0, 1.5)
  ]
  inputs, keys = jnp.ones((rows, 1), jnp.int32), row_keys(0, 0, np.arange(rows))
  run = decoder(method, max_decode_len=7, eos_id=-1, **options)
  found = []
  for kernels in ("xla", "interpreted"):
    with native.gpu_kernels(kernels):
      found.append(run(*pair, inputs, keys, 0.2, Sampling.create(**settings)))
  plain, got = found
  np.testing.assert_array_equal(got.tokens, plain.tokens)
  np.testing.assert_array_equal(got.stats.accepted, plain.stats.accepted)
  np.testing.assert_allclose(
    got.stats.expected_acceptance, plain.stats.expected_acceptance, rtol=1e-4
  )
