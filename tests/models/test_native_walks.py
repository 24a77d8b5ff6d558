"""Native trees: the children and the decisions of the plain steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding.drafting import children
from speccascade.decoding.records import draft_tree
from speccascade.decoding.records.block_records import Branches
from speccascade.decoding.records.draft_tree import DraftTree
from speccascade.decoding.verification import tree_steps
from speccascade.models import cache
from tests.models import kept_paths
from tests.models.feeding import NEEDS_NATIVE

pytestmark = NEEDS_NATIVE
ROWS, SIZE = 600, 21
TREE = DraftTree((-1, -1, -1, 0, 0, 2, 3, 3, 5))
# (drawing, verification), and whether every draft has a distribution of its
# own.
WAYS = [
  (drawing, verification, False)
  for drawing in draft_tree.DRAWINGS
  for verification in tree_steps.TREE_VERIFY
  if verification != "k_seq" or drawing == draft_tree.IID
] + [(draft_tree.IID, "token", True)]


def laws(rng, num):
  """Returns q [ROWS, num, V], of which some have zeros or are one-hot."""
  x = rng.gamma(0.7, size=(ROWS, num, SIZE))
  x[: ROWS // 3] *= rng.random((ROWS // 3, num, SIZE)) < 0.2
  x[..., 0] += 1e-3
  x[-20:] = np.eye(SIZE)[rng.integers(0, SIZE, (20, num))]
  return jnp.asarray(x / x.sum(-1, keepdims=True), jnp.float32)


def plainly(monkeypatch, function, *arguments):
  """Returns what a function returns without native code."""
  with monkeypatch.context() as patch:
    patch.setattr(native, "takes", lambda *arrays: False)
    return jax.jit(lambda *x: function(*x))(*arguments)


def uniforms(rng, *shape):
  return jnp.asarray(rng.random(shape), jnp.float32)


def block(rng, drawing, has_laws):
  """Returns a tree's drafts, `Branches`, distributions and target."""
  num = TREE.num_drafts
  q, u = laws(rng, num + 1), uniforms(rng, ROWS, num)
  at = lambda nodes: (q[:, np.array(nodes)],) * 2
  levels = [
    children.draw_level(level, TREE, at, u, drawing, greedy=False)
    for level in TREE.levels
  ]
  tokens, certain = (jnp.concatenate(x, axis=1) for x in zip(*levels))
  parents = jnp.asarray(TREE.parents, jnp.int32)[None] + 1
  parents = jnp.broadcast_to(parents, tokens.shape)
  if drawing == draft_tree.IID:
    parents = children.merge_siblings(tokens, TREE)
  branches = Branches(
    TREE, drawing, parents, certain, laws(rng, num) if has_laws else None
  )
  # Some targets are near the drafter, so that whole paths are accepted.
  pi = laws(rng, num + 1)
  pi = pi.at[::2].set(0.9 * q[::2] + 0.1 * pi[::2])
  return tokens, branches, q, pi


@pytest.mark.parametrize(("drawing", "verification", "has_laws"), WAYS)
def test_walks_decide_as_the_steps_do(
  build, monkeypatch, drawing, verification, has_laws
):
  rng = np.random.default_rng(0)
  tokens, branches, q, pi = block(rng, drawing, has_laws)
  u = [uniforms(rng, ROWS, TREE.num_drafts + i) for i in range(2)]
  step = tree_steps.TREE_VERIFY[verification]
  actual = step(tokens, branches, q, pi, *u)
  want = plainly(monkeypatch, step, tokens, branches, q, pi, *u)
  for field in dataclasses.fields(want):
    np.testing.assert_array_equal(
      getattr(actual, field.name), getattr(want, field.name), field.name
    )
  accepted = np.bincount(actual.num_accepted, minlength=TREE.depth + 1)
  assert accepted.min() > 5
  # A row alone decides as it does with others.
  row = lambda x: jax.tree.map(lambda x: x[7:8], x)
  alone = step(*row((tokens, branches, q, pi, *u)))
  jax.tree.map(np.testing.assert_array_equal, alone, row(actual))


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("drawing", draft_tree.DRAWINGS)
def test_children_are_those_of_the_definition(
  build, monkeypatch, drawing, greedy
):
  rng = np.random.default_rng(1)
  q, plain = laws(rng, 3), jnp.round(laws(rng, 3), 1)
  u = uniforms(rng, ROWS, 3, 4)
  draw = lambda *x: children.draw_children(*x, drawing, greedy=greedy)
  actual = draw(q, plain, u)
  want = plainly(monkeypatch, draw, q, plain, u)
  for x, wanted in zip(actual, want):
    np.testing.assert_array_equal(x, wanted)


def test_caches_keep_the_path_of_the_definition(build):
  layers, start, path, count = kept_paths.case(2, 3, jnp.float32)
  want = cache.keep_path(layers, start, path, count)
  actual = native.keep_path(layers, start, path, count)
  jax.tree.map(np.testing.assert_array_equal, actual, want)
  assert np.any(actual[1][0] != layers[1][0])
