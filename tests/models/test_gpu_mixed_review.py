"""The GPU's review of a chain by targets of two models, computed on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding import Sampling, decoder, row_keys
from speccascade.decoding.drafting import kept_tokens
from speccascade.decoding.laws import (
  deferral,
  kernel_laws,
  lossy_targets,
  targets,
  token_rules,
)
from speccascade.decoding.verification import kernel_reviews, steps
from speccascade.models.markov_lm import MarkovLM
from speccascade.native.gpu import (
  mixed_laws,
  mixed_review,
  mixed_review_triton,
)
from speccascade.native.gpu.chain_review import BonusScores, DraftScores
from speccascade.native.gpu.mixed_review import PlaceLaws
from speccascade.native.gpu.row_draws_triton import Configuration

TARGETS = {
  "lossless": targets.lossless,
  "lossy": lossy_targets.lossy,
  **{
    name: targets.defer(getattr(deferral, name))
    for name in ("chow", "diff", "opt")
  },
  **{
    name: targets.defer_tokens(getattr(token_rules, name))
    for name in ("token_v1", "token_v2", "token_v3")
  },
}
# A vocabulary in one part, and in several of which the last is not full.
ONE, SEVERAL = (300, None), (1100, Configuration(tokens=256, warps=4))


@pytest.fixture(autouse=True)
def _plainly(monkeypatch):
  monkeypatch.setenv("SPECCASCADE_NATIVE", "0")


def logits(rows: int, size: int, places: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns a drafter's and a verifier's, [rows, places, size] each.

  Alike, far apart, the same, with tokens that only one of them has, and ties.
  """
  rng = np.random.default_rng(size)
  x = rng.normal(0, 2, (rows, places, size)).astype(np.float32)
  y = x + rng.normal(0, 0.7, x.shape).astype(np.float32)
  y[rows // 3] *= 3
  y[:, 1] = np.where(np.arange(rows)[:, None] % 4 == 1, x[:, 1], y[:, 1])
  x[2, :, : size // 3] = -np.inf
  y[3, :, size // 2 :] = -np.inf
  x[4], y[4] = np.round(x[4]), np.round(y[4])
  return x, y


def drafted(x, sampling, u, columns=None, kept=None):
  """Returns `DraftScores` of [B, P, V] logits, whose last are the bonus's."""
  rows = [jnp.asarray(x[:, i]) for i in range(x.shape[1])]
  if kept is not None:
    rows = [each[:, kept] for each in rows]
  with native.gpu_kernels("interpreted"):
    found = [
      kernel_laws.find(sampling, each, u, min(i, u.shape[1] - 1))
      for i, each in enumerate(rows)
    ]
  *drafts, bonus = found

  def of(name):
    return tuple(getattr(each, name) for each in drafts)

  tokens = of("token")
  if kept is not None:
    tokens = tuple(kept[each] for each in tokens)
  is_filtered = hasattr(bonus, "least")
  last = (bonus.least, bonus.last) if is_filtered else ()
  return DraftScores(
    tuple(rows[:-1]),
    of("top"),
    of("total"),
    tokens,
    columns,
    *((of("least"), of("last")) if is_filtered else (None, None)),
    plain_totals=of("plain_total"),
    bonus=BonusScores(
      rows[-1], bonus.top, bonus.total, bonus.plain_total, *last
    ),
  )


@pytest.mark.parametrize(
  ("rule", "alpha", "of_parts", "settings"),
  [
    ("lossless", 0.0, SEVERAL, {}),
    ("lossy", 0.4, SEVERAL, {"is_cut": True}),
    ("lossy", 0.0, ONE, {}),
    ("chow", 0.85, ONE, {}),
    ("diff", 0.02, SEVERAL, {}),
    ("opt", 0.03, SEVERAL, {"is_cut": True}),
    ("opt", 0.05, ONE, {"top_k": 40, "top_p": 0.9}),
    ("token_v1", 0.1, SEVERAL, {}),
    ("token_v2", 0.1, ONE, {"has_bonus": False}),
    ("token_v3", 0.7, SEVERAL, {"is_cut": True}),
    ("token_v3", 0.7, ONE, {"min_p": 0.01}),
    ("lossless", 0.0, ONE, {"blockwise": True}),
    ("lossless", 0.0, SEVERAL, {"blockwise": True, "is_cut": True}),
  ],
)
def test_a_chain_is_reviewed_as_in_separate_steps(
  rule, alpha, of_parts, settings
):
  rows, num, (size, parts) = 24, 3, of_parts
  settings = dict(settings)
  has_bonus = settings.pop("has_bonus", True) and rule != "lossless"
  blockwise = settings.pop("blockwise", False)
  is_cut = settings.pop("is_cut", False)
  sampling = Sampling.create(0.8, **settings)
  rng = np.random.default_rng(1)
  x, y = logits(rows, size, num + 1)
  columns = kept = None
  if is_cut:
    kept = np.unique([*rng.permutation(size)[: size // 2], size - 2])
    kept = jnp.asarray(kept, jnp.int32)
    columns = kept_tokens.columns_of(kept, size)
    x = np.asarray(
      kept_tokens.spread(jnp.asarray(x)[..., kept], columns, -np.inf)
    )
  u = jnp.asarray(rng.random((rows, num)), jnp.float32)
  drafts = drafted(x, sampling, u, columns, kept)
  u_accept = jnp.asarray(rng.random((rows, num)), jnp.float32)
  u_draw = jnp.asarray(rng.random(rows), jnp.float32)
  if not has_bonus:
    drafts = drafts._replace(bonus=None)
  with native.gpu_kernels("interpreted"):
    found = kernel_laws.find(sampling, jnp.asarray(y))
  law = PlaceLaws(
    *(
      None if values is None else values.reshape(y.shape[:2])
      for values in (getattr(found, name, None) for name in PlaceLaws._fields)
    )
  )
  arguments = (
    jnp.asarray(y),
    law,
    drafts,
    sampling.temperature,
    jnp.float32(alpha),
    u_accept,
    u_draw,
  )
  options = {"rule": rule, "blockwise": blockwise}
  got, plain = (
    mixed_review(*arguments, **options, implementation=name, configuration=own)
    for name, own in (("interpreted", parts), ("xla", None))
  )
  for name, mine in got._asdict().items():
    theirs = getattr(plain, name)
    np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6, err_msg=name)

  # The steps that XLA takes.
  with native.gpu_kernels("xla"):
    q1, q, *_ = sampling.step(jnp.asarray(x))
    p1, p, *_ = sampling.step(jnp.asarray(y))
  tokens = jnp.stack(drafts.tokens, axis=1)
  padded = jnp.pad(tokens, ((0, 0), (0, 1)))
  pi, left, right = TARGETS[rule].at(
    q1, p1, padded, alpha=alpha, sampled=(q, p)
  )
  if not has_bonus:
    pi = pi.at[:, -1].set(p[:, -1])
  step = steps.block_verify if blockwise else steps.token_verify
  count = jnp.full(rows, num, jnp.int32)
  want = step(tokens, count, q, pi, u_accept, u_draw)
  np.testing.assert_array_equal(got.num_accepted, want.num_accepted)
  assert len(np.unique(got.num_accepted)) > 2
  # Of equal distributions rounding alone is left, whatever it draws.
  end = np.asarray(got.num_accepted)[:, None, None]
  ends = np.take_along_axis(np.maximum(pi - q, 0), end, axis=1).sum((1, 2))
  is_sure = (ends > 1e-4) | (end[:, 0, 0] == num)
  np.testing.assert_array_equal(
    np.asarray(got.token)[is_sure], np.asarray(want.token)[is_sure]
  )
  np.testing.assert_allclose(
    got.overlap[:, :-1],
    jnp.minimum(q, pi).sum(axis=2)[:, :-1],
    rtol=2e-5,
    atol=1e-6,
  )
  if TARGETS[rule].rule is not None:
    known = num + has_bonus if rule in ("chow", "diff", "opt") else num
    for mine, theirs in ((got.left, left), (got.right, right)):
      np.testing.assert_allclose(
        mine[:, :known], theirs[:, :known], rtol=2e-5, atol=1e-6
      )
    defers = np.asarray(left < right)[:, :num]
    assert defers.any()
    assert not defers.all()


@pytest.mark.parametrize(
  ("method", "options", "settings"),
  [
    ("spec_cascade_opt", {}, {}),
    ("spec_cascade_token_v3", {}, {"top_k": 20}),
    ("spec_cascade_opt", {"bonus": "verifier"}, {}),
    ("spec_decode", {"verification": "block"}, {}),
  ],
)
def test_whole_decodes_of_rules_draw_the_same_tokens(
  method, options, settings, monkeypatch
):
  rng, size, rows = np.random.default_rng(3), 140, 32
  base = rng.normal(0, 1.5, (1, size, size))
  pair = [
    MarkovLM(jnp.asarray(base + rng.normal(0, scale, base.shape), jnp.float32))
    for scale in (0.5, 0.8)
  ]
  reviewed = []
  own = kernel_reviews.mixed_review

  class Counting:
    choose = staticmethod(own.choose)

    def __call__(self, *arrays, **options):
      reviewed.append(options["rule"])
      return own(*arrays, **options)

  monkeypatch.setattr(kernel_reviews, "mixed_review", Counting())
  inputs, keys = jnp.ones((rows, 1), jnp.int32), row_keys(0, 0, np.arange(rows))
  run = decoder(method, gamma=2, max_decode_len=6, eos_id=-1, **options)
  sampling = Sampling.create(0.8, **settings)
  found = []
  for kernels in ("xla", "interpreted"):
    with native.gpu_kernels(kernels):
      found.append(run(*pair, inputs, keys, 0.1, sampling))
  plain, got = found
  assert len(reviewed) == 1
  np.testing.assert_array_equal(got.tokens, plain.tokens)
  for name in ("accepted", "examined", "deferred", "drafted"):
    np.testing.assert_array_equal(
      getattr(got.stats, name), getattr(plain.stats, name), err_msg=name
    )
  np.testing.assert_allclose(
    got.stats.expected_acceptance, plain.stats.expected_acceptance, rtol=1e-4
  )


@pytest.mark.skipif(
  jax.__version_info__ >= (0, 11), reason="asks for the GPU, which is not here"
)
@pytest.mark.parametrize("rule", mixed_laws.RULES)
def test_the_kernels_are_lowered_for_a_gpu(rule):
  rows, num, size = 2, 2, 300

  def of(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)

  number, place, logits = of(rows), of(rows, num + 1), of(rows, size)
  id_, blockwise = of(rows, dtype=jnp.int32), rule == "lossless"
  drafts = DraftScores(
    *((each,) * num for each in (logits, number, number, id_)),
    columns=of(size, dtype=jnp.int32),
    least=(number,) * num,
    last=(id_,) * num,
    plain_totals=(number,) * num,
    bonus=None if blockwise else BonusScores(logits, *[number] * 4, id_),
  )
  law = PlaceLaws(*[place] * 4, of(rows, num + 1, dtype=jnp.int32))
  traced = mixed_review_triton.run.trace(
    of(rows, num + 1, size),
    law,
    drafts,
    of(),
    of(),
    of(rows, num),
    number,
    configuration=Configuration(tokens=256, warps=4),
    interpret=False,
    rule=rule,
    blockwise=blockwise,
  )
  text = traced.lower(lowering_platforms=("cuda",)).as_text()
  for name in ("mixed_review_parts", "mixed_review"):
    assert f'"{name}"' in text
  assert ("mixed_review_dropped" in text) == rule.startswith("token")
