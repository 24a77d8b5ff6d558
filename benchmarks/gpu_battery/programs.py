"""The programs that are timed: passes, encoders, decodes."""

from collections.abc import Callable
import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.tree_drafter import TreeDrafter
from speccascade.decoding.laws import draws, numerics, sampling, targets
from speccascade.decoding.loops.execution import LoopSettings
from speccascade.decoding.loops.speculative import speculative
from speccascade.decoding.records.decode_settings import draft_tree
from speccascade.decoding.records.draft_tree import (
  WITHOUT_REPLACEMENT,
  DraftTree,
)
from speccascade.decoding.verification import steps, tree_steps

NO_EOS = -1
ROOM = 32  # slots of a cache, beside those of the tokens
# How often a later sibling is accepted, over how often the first draft of a
# place is: trees of the shapes here then accept 1.3 times what chains of their
# depth do at acceptance .73, as trees of trained pairs do.
SIBLING = 0.5


def source(length: int) -> np.ndarray:
  """Returns source tokens, or a prompt, of one row."""
  tokens = [3 + 7919 * i % 57 for i in range(length)]
  return np.asarray([tokens], np.int32)


def prefill(capacity: int) -> Callable:
  """Returns the program of the encoder, or of the prompt's pass."""
  return lambda lm, tokens: lm.prefill(tokens, capacity=capacity)


def passes(width: int, num: int, tree: tuple[int, ...] | None = None):
  """Returns the program of `num` passes over `width` tokens, one by one.

  Each pass takes the likeliest tokens of the one before it, and the state is
  rewound, as a decoding loop does. Of a tree the root is the first token.
  """
  described = {}
  if tree is not None:
    parents = DraftTree.of_branching(tree).parents
    described = _describe(parents)
    assert width == len(parents) + 1

  def run(lm, state):
    count = jnp.full((1,), width, jnp.int32)

    def feed(_, carry):
      before, tokens = carry
      after, out = lm.extend(before, tokens, count, **described)
      tokens = numerics.first_argmax(out.logits).astype(jnp.int32)
      return lm.rewind(after, before.length), tokens

    tokens = jnp.full((1, width), 3, jnp.int32)
    return jax.lax.fori_loop(0, num, feed, (state, tokens))[1]

  return run


def _describe(parents: tuple[int, ...]) -> dict[str, jax.Array]:
  """Returns what `extend` is given of a tree and its root, of one row."""
  size = len(parents) + 1
  depth = np.zeros((1, size), np.int32)
  ancestors = np.eye(size, dtype=bool)[None].copy()
  for node, parent in enumerate(parents, 1):
    depth[0, node] = depth[0, parent + 1] + 1
    ancestors[0, node] |= ancestors[0, parent + 1]
  return {"depth": jnp.asarray(depth), "ancestors": jnp.asarray(ancestors)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForcedSettings(LoopSettings):
  """Settings under which the models do not decide what is accepted.

  The verifier steps do the work of token verification, so that they cost the
  same; only the outcome is not the models'.

  Attributes:
    rate: scalar, traced, how often the first draft of a place is accepted.
  """

  rate: Any

  @property
  def verifier_step(self):
    def verify(tokens, count, q, pi, u_accept, u_draw):
      forced = _forced(u_accept, self.rate)
      return steps.token_verify(tokens, count, q, pi, forced, u_draw)

    return verify

  @property
  def tree_step(self):
    def verify(tokens, branches, q, pi, u_accept, u_draw):
      parents = branches.tree.parents
      is_first = [
        parent not in parents[:draft] for draft, parent in enumerate(parents)
      ]
      rates = jnp.where(jnp.asarray(is_first), self.rate, self.rate * SIBLING)
      forced = _forced(u_accept, rates)
      return tree_steps.TREE_VERIFY["token"](
        tokens, branches, q, pi, forced, u_draw
      )

    return verify


def _forced(u_accept: jax.Array, rate) -> jax.Array:
  """Returns uniforms that are taken at a rate, whatever the distributions.

  What was drawn has q > 0, and is taken where -q < pi.
  """
  return jnp.where(u_accept < rate, -1, jnp.inf)


def forced(gamma: int, tree: tuple[int, ...] | None, max_len: int) -> Callable:
  """Returns the program of a decode with forced acceptance, lossless."""

  def run(drafter, verifier, inputs, keys, how, rate):
    settings = ForcedSettings(
      sampling=how,
      max_decode_len=max_len,
      eos_id=NO_EOS,
      target=targets.lossless,
      rate=rate,
    )
    if tree is None:
      drafter = AutoregressiveDrafter(drafter, gamma, behind=0)
    else:
      # All children are drawn: a certain child is accepted by a draw, which no
      # uniform forces.
      shape = draft_tree(gamma, tree, None)
      drafter = TreeDrafter(drafter, shape, WITHOUT_REPLACEMENT)
    loop = speculative.run(drafter, verifier, inputs, keys, settings)
    return loop.decoded(loop.advance(loop.begin()))

  return run


def keys(example: int = 0) -> jax.Array:
  """Returns the key of one row, [1]."""
  return draws.row_keys(0, 0, jnp.asarray([example]))


def sampled() -> sampling.Sampling:
  """Returns plain sampling at temperature 1."""
  return sampling.Sampling.create(1.0)


def seconds(call: Callable[[], Any]) -> float:
  """Returns the seconds of a call whose results are ready."""
  began = time.perf_counter()
  jax.block_until_ready(call())
  return time.perf_counter() - began


def in_turn(
  calls: dict[str, Callable[[], Any]], rounds: int, warm: int = 2
) -> dict[str, list[float]]:
  """Times every call once a round; returns the seconds of each, by name.

  The first calls of each, which load the program, are not counted.
  """
  for call in calls.values():
    for _ in range(warm):
      jax.block_until_ready(call())
  times: dict[str, list[float]] = {name: [] for name in calls}
  for _ in range(rounds):
    for name, call in calls.items():
      times[name].append(seconds(call))
  return times
