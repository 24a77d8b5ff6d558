"""The GPU's kernel that reviews a tree, computed on a CPU."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import native
from speccascade.decoding.records import draft_tree
from speccascade.decoding.verification import tree_steps
from speccascade.native.gpu import tree_review
from speccascade.native.gpu.row_draws_triton import Configuration
from speccascade.native.gpu.tree_review import Trials
from tests.models.test_native_walks import TREE, block, uniforms


@pytest.fixture(autouse=True)
def _plainly(monkeypatch):
  monkeypatch.setenv("SPECCASCADE_NATIVE", "0")


@pytest.mark.parametrize("drawing", draft_tree.DRAWINGS)
def test_a_tree_is_reviewed_as_in_separate_steps(drawing):
  rng = np.random.default_rng(0)
  arguments = jax.tree.map(lambda x: x[::10], block(rng, drawing, False))
  rows = len(arguments[0])
  u = [uniforms(rng, rows, TREE.num_drafts + i) for i in range(2)]
  got, want = (
    _verdict(kernels, *arguments, *u) for kernels in ("interpreted", "xla")
  )
  for field in dataclasses.fields(want):
    np.testing.assert_array_equal(
      getattr(got, field.name), getattr(want, field.name), field.name
    )
  assert np.bincount(got.num_accepted, minlength=TREE.depth + 1).min() > 0


def _verdict(kernels, *arguments):
  with native.gpu_kernels(kernels):
    return jax.jit(lambda *x: tree_steps.tree_token_verify(*x))(*arguments)


@pytest.mark.parametrize("drops_drawn", [False, True])
def test_nodes_of_several_parts_are_those_of_the_definition(drops_drawn):
  rng, shape, size = np.random.default_rng(1), (3, 4), 700
  q, pi = (rng.dirichlet(np.full(size, 0.3), shape) for _ in range(2))
  pi[:, 1] = q[:, 1]
  pi[0], q[0] = 0.5 * pi[0] + 0.5 * q[0], np.eye(size)[3]
  tokens = rng.permuted(np.argsort(q, axis=2)[..., -6:], axis=2)
  tokens[1, :, 2], tokens[2, 0] = -1, -1  # nodes with fewer children
  arguments = (
    jnp.asarray(pi, jnp.float32),
    jnp.asarray(q, jnp.float32),
    Trials(
      jnp.asarray(tokens[..., :3], jnp.int32),
      jnp.asarray(rng.random((*shape, 3)), jnp.float32),
      jnp.asarray(tokens[..., 3:5], jnp.int32),
    ),
    jnp.asarray(rng.random(shape), jnp.float32),
  )
  got, want = (
    tree_review(
      *arguments,
      drops_drawn=drops_drawn,
      implementation=name,
      configuration=parts,
    )
    for name, parts in (("interpreted", Configuration(256, 4)), ("xla", None))
  )
  np.testing.assert_array_equal(got.accepted, want.accepted)
  np.testing.assert_array_equal(got.token, want.token)
  assert 0 < np.mean(got.accepted < 3) < 1
