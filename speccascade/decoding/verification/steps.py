"""Verifier steps: a drafted block in, an accepted prefix and one token out.

Both steps are exact for any target. If draft i was drawn from q_i, and pi_i is
the target distribution after the drafts before it, then each emitted token has
the distribution pi given the tokens before it. That needs a bonus row of `pi`
that is the target's, too.
"""

import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.numerics import of_token, ratio
from speccascade.decoding.records.block_records import Verdict
from speccascade.native.gpu.chain_review import PlaceReviews

Array = jax.Array


def token_verify(
  tokens: Array,
  count: Array,
  q: Array,
  pi: Array,
  u_accept: Array,
  u_draw: Array,
) -> Verdict:
  """Verifies draft by draft, up to the first draft that is rejected.

  A draft x is accepted if u q(x) < pi(x), which has probability
  min(1, pi(x) / q(x)).

  Args:
    tokens: [B, G] int32 drafts.
    count: [B] int32 in 0..G, how many drafts there are.
    q: [B, G+1, V] distribution that each draft was drawn from.
    pi: [B, G+1, V] target; index `count` is the distribution of the bonus
      token.
    u_accept: [B, G] uniforms in [0, 1), one for each draft.
    u_draw: [B] uniforms in [0, 1), for the token after the accepted drafts.

  Returns:
    `Verdict`.

  Source: Narasimhan et al. (arXiv 2405.19261), Algorithm 4 (GenSpecSample).
  """
  q_x, pi_x = _at_drafts(q, tokens), _at_drafts(pi, tokens)
  num_accepted = _num_accepted(q_x, pi_x, count, u_accept)
  token = replacement(num_accepted, count, q, pi, u_draw)
  examined = jnp.minimum(num_accepted + 1, count)
  return Verdict(num_accepted, token, examined, read=num_accepted + 1)


def verdict_of_places(
  places: PlaceReviews, count: Array, u_accept: Array
) -> Verdict:
  """Returns what `token_verify` does, from what is known of each place.

  Args:
    places: of a chain of G drafts, whose target is the verifier.
    count: [B] int32, how many drafts there are, all G of them.
    u_accept: [B, G] as in `token_verify`.
  """
  q_x, p_x = places.draft_q[:, :-1], places.draft_p[:, :-1]
  num_accepted = _num_accepted(q_x, p_x, count, u_accept)
  examined = jnp.minimum(num_accepted + 1, count)
  token = of_token(places.token, num_accepted)
  return Verdict(num_accepted, token, examined, read=num_accepted + 1)


def _num_accepted(
  q_x: Array, pi_x: Array, count: Array, u_accept: Array
) -> Array:
  """Returns the drafts before the first that is rejected, [B] int32."""
  position = jnp.arange(q_x.shape[1], dtype=jnp.int32)
  accept = (u_accept * q_x < pi_x) & (position[None] < count[:, None])
  # The index of the first rejected draft is the number accepted. With answers
  # yes, yes, no, yes the minimum of (G, G, 2, G) is 2. A block that is
  # shorter than G answers no at index `count`.
  first_no = jnp.where(accept, q_x.shape[1], position[None])
  # (A block without drafts has nothing to take the minimum of.)
  return jnp.min(first_no, axis=1, initial=q_x.shape[1])


def block_verify(
  tokens: Array,
  count: Array,
  q: Array,
  pi: Array,
  u_accept: Array,
  u_draw: Array,
) -> Verdict:
  """Verifies the block as a whole: a later draft can rescue an earlier one.

  P_0 = 1 and P_i = min(1, P_{i-1} pi_i(x_i) / q_i(x_i)). For i < count,

    s_i = sum_x max(0, P_i pi_{i+1}(x) - q_{i+1}(x)),
    h_i = s_i / (s_i + 1 - P_i),

  and h_count = P_count. The step accepts the drafts up to the largest i with
  u_i < h_i. In expectation it accepts no fewer drafts than `token_verify`. It
  is exact only with the target's own bonus.

  Example: pi = (1/3, 2/3), q = (2/3, 1/3) at both of two positions, drafts 0 1.
  Then P = (1/2, 1) and h = (0, 1): both drafts are accepted, though token by
  token the first would be rejected half the time.

  Arguments and the result are those of `token_verify`.

  Source: Sun et al., "Block Verification Accelerates Speculative Decoding"
  (arXiv 2403.10444).
  """
  width = tokens.shape[1]
  q_x, pi_x = _at_drafts(q, tokens), _at_drafts(pi, tokens)
  # `ratio` guards the division: a draft of probability 0 is never drawn, but
  # the slots after `count` may hold anything.
  change = ratio(pi_x, q_x)

  def chain(before: Array, change: Array) -> tuple[Array, Array]:
    now = jnp.minimum(1, before * change)
    return now, now

  # A loop of tiny kernels takes longer on a GPU than all the rest.
  first = jnp.ones_like(pi[:, 0, 0])
  _, reach = jax.lax.scan(chain, first, change.T, unroll=True)
  scales = jnp.pad(reach.T, ((0, 0), (1, 0)), constant_values=1)  # P_0 .. P_G
  gains = jnp.sum(jnp.maximum(scales[:, :, None] * pi - q, 0), axis=-1)
  reach, gain = scales[:, 1:], gains[:, 1:]
  # h_i, from P_i and s_i at index i - 1. It is exactly 1 where P_i is 1, and 0
  # where both terms of the denominator are 0.
  inner = ratio(gain, gain + (1 - reach))
  index = jnp.arange(1, width + 1, dtype=jnp.int32)[None]
  accept_prob = jnp.where(index == count[:, None], reach, inner)
  accept = (u_accept < accept_prob) & (index <= count[:, None])
  # The largest accepted index, whatever the answers before it.
  num_accepted = jnp.max(jnp.where(accept, index, 0), axis=1, initial=0)
  scale = of_token(scales, num_accepted)
  token = replacement(num_accepted, count, q, pi, u_draw, scale=scale)
  examined = jnp.minimum(num_accepted + 1, count)
  # Every answer depends on the distributions of later positions: a fault at any
  # of them spoils the decision, so all of them count as read.
  return Verdict(num_accepted, token, examined, read=count + 1)


# The steps that a chain is verified with. On a chain the traversal of a tree is
# block verification, and K-SEQ with one draft a place is token verification.
VERIFY = {
  "token": token_verify,
  "block": block_verify,
  "traversal": block_verify,
  "k_seq": token_verify,
}


def _at_drafts(law: Array, tokens: Array) -> Array:
  """Returns the probabilities [B, G] of drafts under `law` [B, G+1, V].

  The tokens are padded instead of cutting `law` to its first G rows, because
  XLA would copy these rows.
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
  """Returns a draw of the token after the accepted prefix, [B] int32.

  At the bonus position, where no draft was rejected, the token is drawn from
  pi. Elsewhere it is drawn from the residual max(0, scale * pi - q), or from pi
  where rounding leaves the residual without mass.

  Args:
    num_accepted: [B] int32.
    count: [B] int32, how many drafts there were.
    q: [B, G+1, V] as in `token_verify`.
    pi: [B, G+1, V] as in `token_verify`.
    u_draw: [B] uniforms in [0, 1).
    scale: [B], P at `num_accepted` in `block_verify`; None is 1.
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
  return draws.draw(left, u_draw, otherwise=pi_n)
