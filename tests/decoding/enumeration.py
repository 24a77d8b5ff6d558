"""The exact distribution of a speculative decode, path by path, in float64.

Nothing is proved about a second implementation: the distributions are those of
`Sampling.laws`, the target is the row's own, and what a path does is read off
the product's `verify`, called with uniforms on both edges of every cell in
which it cannot change: [0, threshold) and [threshold, 1) of each accept
uniform, the steps of the cumulative sum for the draw. Where the edges disagree
`verify` does not switch where the theory says, and the enumeration fails.

Axes: S contexts, D drafts (all V**G), C cells, G gamma, V vocabulary.
"""

import dataclasses
import functools
import itertools

import jax
import numpy as np

from speccascade.decoding.laws import numerics
from speccascade.decoding.programs.decoders import DraftLength
from speccascade.decoding.records import token_buffers
from speccascade.decoding.verification import steps
from speccascade.study.papers import theory
from tests import chunk_laws, method_laws, toy, toy_chains

EDGE = 1e-13
EXACT = 1e-10  # of a distribution in float64
FIXED = DraftLength()


@functools.partial(jax.jit, static_argnums=0)
def _verify(name, tokens, count, q, pi, u_accept, u_draw):
  verdict = steps.VERIFY[name](tokens, count, q, pi, u_accept, u_draw)
  return verdict.num_accepted, verdict.token


_block_thresholds = jax.jit(theory.block_thresholds)
_accept_probability = jax.jit(theory.accept_probability)
_residual = jax.jit(numerics.residual)
_cut = jax.jit(token_buffers.cut, static_argnums=3)


def draft_count(pair, law: method_laws.MethodLaws, drafts, policy: DraftLength):
  """Returns [S, D], how many tokens of each draft are drafted.

  Args:
    pair: gives the contexts.
    law: of each context.
    drafts: [D, G].
    policy: the draft length policy.
  """
  follow = pair.next_context()
  context = np.arange(pair.num_contexts)[:, None] + 0 * drafts[None, :, 0]
  going = np.ones(context.shape, bool)
  count = np.zeros(context.shape, np.int32)
  for token in drafts.T:
    if policy.policy == "max_prob":
      going = going & (law.q1.max(-1)[context] >= np.float32(policy.threshold))
    count += going
    if policy.policy == "token_prob":
      going = going & (law.q[context, token] >= np.float32(policy.threshold))
    context = follow[context, token]
  return count


@dataclasses.dataclass(frozen=True)
class Block:
  """Every path of one block from every context.

  Attributes:
    drafts: [D, G].
    count: [S, D].
    q: [S, D, G+1, V], distribution of each draft.
    pi: [S, D, G+1, V], with the bonus row at `count`.
    draft_prob: [S, D], the chance of the draft; 0 for all but one of the
      drafts that agree up to `count`.
    thresholds: [S, D, G], the chance that each accept uniform says yes.
    num_accepted: [S, D, G+1], the distribution of the number accepted.
    token: [S, D, G+1, V], the distribution of the token after them.
  """

  drafts: np.ndarray
  count: np.ndarray
  q: np.ndarray
  pi: np.ndarray
  draft_prob: np.ndarray
  thresholds: np.ndarray
  num_accepted: np.ndarray
  token: np.ndarray


@method_laws.in_float64
def block(
  pair: toy.Pair,
  law: method_laws.MethodLaws,
  gamma: int,
  *,
  verification: str = "token",
  bonus: str = "target",
  policy: DraftLength = FIXED,
) -> Block:
  """Enumerates a block from every context."""
  size, contexts = pair.vocab_size, pair.num_contexts
  drafts = np.array(list(itertools.product(range(size), repeat=gamma)))
  shape = (contexts, len(drafts))
  count = draft_count(pair, law, drafts, policy)
  follow = pair.next_context()
  path = [np.broadcast_to(np.arange(contexts)[:, None], shape)]
  for token in drafts.T:
    path.append(follow[path[-1], token])
  path = np.stack(path, axis=-1)  # [S, D, G+1]
  position = np.arange(gamma + 1)
  q, pi = law.q[path], law.pi[path]
  if bonus == "verifier":
    at_bonus = position == count[..., None]
    pi = np.where(at_bonus[..., None], law.p[path], pi)
  drafted = position[:-1] < count[..., None]
  draft_q = _at(q[:, :, :gamma], np.broadcast_to(drafts, (*shape, gamma)))
  # Of the drafts that agree up to `count`, the one that continues with zeros.
  draft_prob = np.where(
    np.all(drafted | (drafts == 0), axis=-1),
    np.prod(np.where(drafted, draft_q, 1), axis=-1),
    0,
  )
  thresholds, reach = _thresholds(verification, drafts, count, q, pi)
  call = functools.partial(_call, verification, drafts, count, q, pi)
  num_accepted = _num_accepted(call, thresholds, drafted, draft_prob)
  token = _token(call, count, q, pi, reach, num_accepted, draft_prob)
  return Block(
    drafts, count, q, pi, draft_prob, thresholds, num_accepted, token
  )


def _at(table, tokens):
  """Returns the entries of [..., V] tables at [...] tokens."""
  return np.take_along_axis(table, tokens[..., None], -1)[..., 0]


def _thresholds(verification, drafts, count, q, pi):
  """Returns [S, D, G] thresholds, and the [S, D, G+1] scale of the residual."""
  shape, gamma = count.shape, drafts.shape[1]
  tokens = np.broadcast_to(drafts, (*shape, gamma)).astype(np.int32)
  if verification == "token":
    table = np.asarray(_accept_probability(q, pi))[:, :, :gamma]
    return _at(table, tokens), np.ones((*shape, gamma + 1))
  thresholds = np.zeros((*shape, gamma))
  reach = np.ones((*shape, gamma + 1))
  for width in np.unique(count[count > 0]):
    # The last draft of a block has another threshold than one inside.
    p_i, h = _block_thresholds(
      tokens[..., :width], q[:, :, :width], pi[:, :, :width]
    )
    here = (count == width)[..., None]
    thresholds[..., :width] = np.where(here, h, thresholds[..., :width])
    reach[..., 1 : width + 1] = np.where(here, p_i, reach[..., 1 : width + 1])
  # A draft of probability 0 has no ratio; it never comes.
  return np.nan_to_num(thresholds), np.nan_to_num(reach)


def _call(verification, drafts, count, q, pi, u_accept, u_draw):
  """Calls `verify` on [S, D, C] cells; returns [S, D, C] twice.

  Args:
    u_accept: [S, D, C, G].
    u_draw: [S, D, C].
  """
  cells, gamma = u_draw.shape, drafts.shape[1]

  def flat(x):
    x = np.broadcast_to(x[:, :, None], (*cells, *x.shape[2:]))
    return x.reshape(-1, *x.shape[3:])

  tokens = np.broadcast_to(drafts.astype(np.int32), (*count.shape, gamma))
  blocks = map(flat, (tokens, count, q, pi))
  uniforms = u_accept.reshape(-1, gamma), u_draw.reshape(-1)
  verdict = _verify(verification, *blocks, *uniforms)
  return tuple(np.asarray(x).reshape(cells) for x in verdict)


def _num_accepted(call, thresholds, drafted, draft_prob):
  """Returns [S, D, G+1]: each cell of accept uniforms, and what it gives."""
  gamma = thresholds.shape[-1]
  yes = np.array(list(itertools.product([False, True], repeat=gamma)))  # [C, G]
  t = np.where(drafted, np.clip(thresholds, 0, 1), 1)[:, :, None]
  chance = np.prod(np.where(yes, t, 1 - t), axis=-1)
  near = np.where(yes, np.maximum(t - EDGE, 0), np.minimum(t + EDGE, 1 - EDGE))
  far = np.where(yes, 0.0, np.broadcast_to(1 - EDGE, near.shape))
  u_draw = np.full(chance.shape, 0.5)
  num, _ = call(near, u_draw)
  other, _ = call(far, u_draw)
  # Cells narrower than the edge are not distinguished.
  possible = (chance > 1e-9) & (draft_prob > 0)[..., None]
  assert np.array_equal(num[possible], other[possible]), (
    "verify accepts or rejects elsewhere than at the threshold"
  )
  return np.stack(
    [np.sum(np.where(num == n, chance, 0), axis=-1) for n in range(gamma + 1)],
    axis=-1,
  )


def _token(call, count, q, pi, reach, num_accepted, draft_prob):
  """Returns [S, D, G+1, V]: each step of the draw's cumulative sum."""
  shape, gamma, size = count.shape, q.shape[2] - 1, q.shape[3]
  n = np.arange(gamma + 1)
  weights = np.asarray(_residual(reach[..., None] * pi, q))
  is_bonus = n == count[..., None]
  weights = np.where(is_bonus[..., None], pi, weights)
  total = weights.sum(-1, keepdims=True)
  weights = weights / np.where(total > 0, total, 1)  # 0 where never reached
  top = np.cumsum(weights, axis=-1)
  low = np.minimum(top - weights + EDGE, 1 - EDGE)
  high = np.clip(top - EDGE, 0, 1 - EDGE)
  # Token verification needs a yes to all before n, block verification to n; a
  # no to all from n on serves both.
  u_accept = np.where(np.arange(gamma) < n[:, None], 0.0, 1 - EDGE)
  u_accept = np.broadcast_to(
    u_accept[None, None, :, None], (*shape, gamma + 1, size, gamma)
  ).reshape(*shape, -1, gamma)
  possible = (num_accepted > 1e-9) & (n <= count[..., None])
  possible = (possible & (draft_prob > 0)[..., None])[..., None]
  sure = possible & (weights > 1e-9)
  for u in (low, high):
    verdict = call(u_accept, u.reshape(*shape, -1))
    num, token = (x.reshape(weights.shape) for x in verdict)
    assert np.all((num == n[:, None])[sure])
    assert np.all((token == np.arange(size))[sure]), (
      "verify draws from another law than the residual or the bonus"
    )
  return np.where(possible, weights, 0)


def speculative_law(
  pair, law: method_laws.MethodLaws, gamma: int, length: int, **settings
):
  """Returns the output distribution of speculative execution; see `block`."""
  paths = block(pair, law, gamma, **settings)
  written = chunk_laws.chunks(
    paths.drafts, paths.draft_prob, paths.num_accepted, paths.token
  )
  # Each chunk is cut as the product cuts it.
  return chunk_laws.roll_out(pair, written, length, cut=_cut)


def assert_law(
  pair,
  law: method_laws.MethodLaws,
  gamma,
  length,
  expected=None,
  *,
  what="",
  **settings,
):
  """Asserts that speculative execution has the distribution of the target's
  chain.

  Args:
    pair: gives the contexts.
    law: of each context.
    gamma: tokens drafted.
    length: most tokens, EOS counted.
    expected: another distribution that the output must have, in `chain_law`'s
      order.
    what: the case, as a failure is to call it.
    **settings: see `block`.
  """
  if expected is None:
    expected = toy_chains.chain_law(pair, law.pi, length)
  assert abs(expected.sum() - 1) < EXACT, what
  actual = speculative_law(pair, law, gamma, length, **settings)
  assert np.abs(actual - expected).max() < EXACT, what
