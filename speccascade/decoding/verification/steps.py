"""Verifier steps: a drafted block in, an accepted prefix and one token out.

Both are exact for any target: if token i was drawn from q_i, and pi_i is the
target's law after the same prefix, then the emitted tokens are a draw of the
chain of pi, provided that the bonus row of `pi` is the target's too.
"""

import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.numerics import of_token, ratio
from speccascade.decoding.types import Verdict

Array = jax.Array


def token_verify(
  tokens: Array,
  count: Array,
  q: Array,
  pi: Array,
  u_accept: Array,
  u_draw: Array,
) -> Verdict:
  """Verifies draft by draft: accepts x iff u q(x) < pi(x), up to a first no.

  Args:
    tokens: [B, G] int32 drafts.
    count: [B] int32 in 0..G, how many there are.
    q: [B, G+1, V] law that each draft was drawn from.
    pi: [B, G+1, V] target; index `count` is the law of the bonus token.
    u_accept: [B, G] uniforms in [0, 1).
    u_draw: [B] uniforms in [0, 1).

  Returns:
    `Verdict`.

  Source: Narasimhan et al. (arXiv 2405.19261), Algorithm 4 (GenSpecSample).
  """
  position = jnp.arange(tokens.shape[1], dtype=jnp.int32)
  q_x, pi_x = _at_drafts(q, tokens), _at_drafts(pi, tokens)
  accept = (u_accept * q_x < pi_x) & (position[None] < count[:, None])
  first_no = jnp.where(accept, tokens.shape[1], position[None])
  num_accepted = jnp.min(first_no, axis=1)
  token = replacement(num_accepted, count, q, pi, u_draw)
  examined = jnp.minimum(num_accepted + 1, count)
  return Verdict(num_accepted, token, examined, read=num_accepted + 1)


def block_verify(
  tokens: Array,
  count: Array,
  q: Array,
  pi: Array,
  u_accept: Array,
  u_draw: Array,
) -> Verdict:
  """Verifies the block as a whole: a later draft can rescue an earlier one.

  With P_i = min(1, P_{i-1} pi_i(x_i) / q_i(x_i)), P_0 = 1, and for i < count
  s_i = sum_x max(0, P_i pi_{i+1}(x) - q_{i+1}(x)), h_i = s_i / (s_i + 1 - P_i),
  h_count = P_count, it accepts up to the largest i with u_i < h_i. Never fewer
  accepted drafts in expectation than `token_verify`; exact with the target's
  own bonus only.

  Args and Returns as in `token_verify`.

  Source: Sun et al., "Block Verification Accelerates Speculative Decoding"
  (arXiv 2403.10444).
  """
  width = tokens.shape[1]
  q_x, pi_x = _at_drafts(q, tokens), _at_drafts(pi, tokens)
  # A draft of probability 0 cannot be drawn; after `count` anything may stand.
  change = ratio(pi_x, q_x)

  def chain(before, change):
    now = jnp.minimum(1, before * change)
    return now, now

  _, reach = jax.lax.scan(chain, jnp.ones_like(change[:, 0]), change.T)
  scales = jnp.pad(reach.T, ((0, 0), (1, 0)), constant_values=1)  # P_0 .. P_G
  gains = jnp.sum(jnp.maximum(scales[:, :, None] * pi - q, 0), axis=-1)
  reach, gain = scales[:, 1:], gains[:, 1:]
  inner = ratio(gain, gain + (1 - reach))  # exactly 1 where reach is 1
  index = jnp.arange(1, width + 1, dtype=jnp.int32)[None]
  accept_prob = jnp.where(index == count[:, None], reach, inner)
  accept = (u_accept < accept_prob) & (index <= count[:, None])
  num_accepted = jnp.max(jnp.where(accept, index, 0), axis=1)
  scale = of_token(scales, num_accepted)
  token = replacement(num_accepted, count, q, pi, u_draw, scale=scale)
  examined = jnp.minimum(num_accepted + 1, count)
  # A draft that was not accepted was weighed by the laws after it, too.
  return Verdict(num_accepted, token, examined, read=count + 1)


VERIFY = {"token": token_verify, "block": block_verify}


def _at_drafts(law: Array, tokens: Array) -> Array:
  """Returns the probabilities [B, G] of drafts by laws [B, G+1, V].

  The laws are not cut: XLA would copy what is left of them.
  """
  return of_token(law, jnp.pad(tokens, ((0, 0), (0, 1))))[:, :-1]


def replacement(
  num_accepted: Array,
  count: Array,
  q: Array,
  pi: Array,
  u_draw: Array,
  scale: Array | None = None,
) -> Array:
  """Draws the token after the accepted prefix, [B] int32.

  At the bonus position (nothing was rejected) the law is pi; elsewhere it is
  the residual max(0, scale * pi - q), which falls back to pi where rounding
  leaves it without mass.
  """
  if native.takes(q, pi, u_draw):
    scale = jnp.ones_like(u_draw) if scale is None else scale
    return native.replacement(num_accepted, count, q, pi, scale, u_draw)
  row = num_accepted[:, None, None]
  pi_n = jnp.take_along_axis(pi, row, axis=1)[:, 0]
  q_n = jnp.take_along_axis(q, row, axis=1)[:, 0]
  scaled = pi_n if scale is None else scale[:, None] * pi_n
  is_bonus = (num_accepted == count)[:, None]
  left = jnp.where(is_bonus, pi_n, jnp.maximum(scaled - q_n, 0))
  empty = jnp.max(left, axis=-1, keepdims=True) <= 0
  return draws.draw(jnp.where(empty, pi_n, left), u_draw)
