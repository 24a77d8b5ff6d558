"""The lemmas of speculative cascades as functions on distributions.

Letters: q is the drafter's distribution, p the verifier's, pi the target
distribution, and truth the distribution of the data. r says whether a rule
defers, or is the chance in [0, 1] that it defers. price is the cost of
deferring, and loss is "zero_one" or "log".

Distributions are [..., V] and broadcast over their leading axes; r and prices
are [...]. The functions run in float32 and in float64.

The numbers of lemmas and equations are from Narasimhan et al., "Faster Cascades
via Speculative Decoding" (arXiv:2405.19261). A docstring says so where a
statement is derived here and is not in the paper.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from speccascade.decoding.laws.numerics import (
  first_argmax,
  normalise,
  of_token,
  ratio,
  residual,
  total_variation,
)

Array = jax.Array
Loss = Literal["zero_one", "log"]


# One verified token.


def rejection_probability(q: Array, pi: Array) -> Array:
  """Returns [...], the chance that a draft of q is rejected for the target pi.

  Args:
    q: [..., V] the drafter's distribution.
    pi: [..., V] the target distribution.

  Source: Lemma 3: sum_v max(0, q(v) - pi(v)). For pi = (1 - r) q + r p it is
  r TV(p, q).

  >>> q, p = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
  >>> round(float(rejection_probability(q, p)), 3)
  0.4
  """
  return total_variation(pi, q)


def deferral_target(q: Array, p: Array, defer: Array) -> Array:
  """Returns [..., V], the target distribution (1 - r) q + r p of a deferral.

  Args:
    q: [..., V] the drafter's distribution.
    p: [..., V] the verifier's distribution.
    defer: [...] bool, or the chance r of deferring.

  Source: Eq. (3) for r in {0, 1}.
  """
  r = jnp.asarray(defer).astype(q.dtype)[..., None]
  return (1 - r) * q + r * p


def realised_law(q: Array, accept: Array, replacement: Array) -> Array:
  """Returns [..., V], the distribution of one token after verification.

  The token is a draft of q that is accepted, or the replacement of a draft that
  is rejected.

  Args:
    q: [..., V] the distribution of the draft.
    accept: [..., V] the chance that a draft v is accepted.
    replacement: [..., V] the distribution from which a rejected draft is
      replaced.
  """
  accepted = q * accept
  rejected = jnp.sum(q - accepted, axis=-1, keepdims=True)
  return accepted + rejected * replacement


def accept_probability(q: Array, pi: Array) -> Array:
  """Returns [..., V], the chance min(1, pi / q) that a draft v is accepted.

  The chance is set to 1 where q is 0: no draft is ever such a token.

  Args:
    q: [..., V] the drafter's distribution.
    pi: [..., V] the target distribution.

  Source: Algorithm 4.
  """
  return jnp.minimum(1, ratio(pi, q, 1))


def token_verified_law(q: Array, pi: Array) -> Array:
  """Returns [..., V], the distribution of a step of token verification.

  It equals pi for any q. The accepted part is min(q, pi). The rejected
  probability is sum max(0, q - pi) = sum max(0, pi - q), so the replacement
  adds max(0, pi - q), and the two parts add up to pi.

  Args:
    q: [..., V] the drafter's distribution.
    pi: [..., V] the target distribution.

  Source: Algorithm 4: accept with min(1, pi/q), else draw from
  norm(max(0, pi - q)).
  """
  return realised_law(q, accept_probability(q, pi), residual(pi, q))


# Lossy speculative sampling.


def lossy_law(q: Array, p: Array, *, alpha, beta) -> Array:
  """Returns [..., V], the distribution of a step of lossy speculative sampling.

  Lossy sampling accepts a draft with min(1, p / ((1-alpha) q)) and replaces a
  rejected draft from norm(max(0, p/beta - q)). Where max(0, p/beta - q) is 0
  for every token (beta > max p/q), the replacement comes from p.

  Args:
    q: [..., V] the drafter's distribution.
    p: [..., V] the verifier's distribution.
    alpha: scalar in [0, 1).
    beta: scalar, or [..., 1] with a value for each row; at least 1 - alpha.

  Source: the procedure of Lemma 2. Its result equals `lossy_expression` only
  where the two `lossy_masses` are equal.
  """
  accept = accept_probability(q, p / (1 - alpha))
  raised = normalise(jnp.maximum(p / beta - q, 0), p)
  return realised_law(q, accept, raised)


def lossy_expression(q: Array, p: Array, *, alpha, beta) -> Array:
  """Returns [..., V], max{min{q, p/(1-alpha)}, p/beta}.

  Its sum is 1 at one beta only. Derived here: for beta >= 1 - alpha it equals,
  token by token, min(q, p/(1-alpha)) + max(0, p/beta - q), because the second
  term is 0 where q > p/(1-alpha), and the first term is q elsewhere. With the
  masses (R, S) of `lossy_masses` its sum is therefore 1 - R + S, and it is the
  realised distribution exactly if R = S.

  Args:
    q: see `lossy_law`.
    p: see `lossy_law`.
    alpha: see `lossy_law`.
    beta: see `lossy_law`.

  Source: Table 1, [Lossy]. At beta = 1, which is the common heuristic, the sum
  is more than 1 unless alpha is 0: the heuristic is not this expression.
  """
  return jnp.maximum(jnp.minimum(q, p / (1 - alpha)), p / beta)


def lossy_masses(q: Array, p: Array, *, alpha, beta) -> tuple[Array, Array]:
  """Returns ([...], [...]): the rejected mass R and the raised mass S.

  R = sum max(0, q - p/(1-alpha)) is the chance that a draft is rejected, and
  S = sum max(0, p/beta - q) is the mass that replacements are drawn from.

  Args:
    q: see `lossy_law`.
    p: see `lossy_law`.
    alpha: see `lossy_law`.
    beta: see `lossy_law`.
  """
  return total_variation(p / (1 - alpha), q), total_variation(q, p / beta)


# When to defer, given the ground truth.


def expected_loss(truth: Array, prediction: Array, *, loss: Loss) -> Array:
  """Returns [...], the expected loss E_{v ~ truth} loss(v, prediction).

  The loss "zero_one" is 1[v != argmax prediction], where the lowest id wins
  ties. The loss "log" is -log prediction(v) in nats; its expectation is inf
  where the truth gives a token a probability and the prediction gives it none.

  Args:
    truth: [..., V] the distribution of the data.
    prediction: [..., V] a model's distribution.
    loss: "zero_one" or "log".

  Raises:
    ValueError: the loss is neither of these.
  """
  if loss == "zero_one":
    return 1 - of_token(truth, first_argmax(prediction))
  if loss == "log":
    return -jnp.sum(xlogy(truth, prediction), axis=-1)
  raise ValueError(f'loss is {loss!r}; it must be "zero_one" or "log"')


def plug_in_loss(prediction: Array, *, loss: Loss) -> Array:
  """Returns [...], a model's own estimate of its expected loss.

  It is `expected_loss` with the prediction in place of the truth, which is not
  known: 1 - max_v prediction(v) for "zero_one", the prediction's entropy for
  "log".

  Args:
    prediction: [..., V] a model's distribution.
    loss: "zero_one" or "log".
  """
  return expected_loss(prediction, prediction, loss=loss)


def speculative_price(q: Array, p: Array, *, alpha) -> Array:
  """Returns [...], the price alpha TV(p, q) of deferring under speculation.

  The price is alpha times the chance that deferring cuts the block short
  (Lemma 3). In a sequential cascade the price of deferring is alpha itself.

  Args:
    q: [..., V] the drafter's distribution, as it is sampled from (Remark 3).
    p: [..., V] the verifier's distribution, as it is sampled from.
    alpha: scalar, the price per unit of total variation.
  """
  return alpha * total_variation(q, p)


def deferral_risk(
  truth: Array, q: Array, p: Array, *, defer: Array, price, loss: Loss
) -> Array:
  """Returns [...], the risk (1 - r) E loss(q) + r (E loss(p) + price).

  Args:
    truth: [..., V] the distribution of the data.
    q: [..., V] the drafter's distribution.
    p: [..., V] the verifier's distribution.
    defer: [...] bool, or the chance r of deferring.
    price: scalar or [...]; alpha in a sequential cascade (the objective of
      Lemma 1), `speculative_price` under speculation (Eq. (8)).
    loss: "zero_one" or "log".
  """
  keep_loss = expected_loss(truth, q, loss=loss)
  defer_loss = expected_loss(truth, p, loss=loss) + price
  r = jnp.asarray(defer).astype(keep_loss.dtype)
  # Either loss may be inf, and 0 * inf is NaN. So the loss of a side that is
  # never taken is replaced by 0 before it is multiplied.
  keep_risk = (1 - r) * jnp.where(r < 1, keep_loss, 0)
  return keep_risk + r * jnp.where(r > 0, defer_loss, 0)


def optimal_deferral(
  truth: Array, q: Array, p: Array, *, price, loss: Loss
) -> Array:
  """Returns [...] bool, the deferral with the least `deferral_risk`.

  It defers iff E loss(q) > E loss(p) + price; ties do not defer. The risk is
  linear in r, so r = 0 or r = 1 is optimal even among randomised rules.

  Args:
    truth: see `deferral_risk`.
    q: see `deferral_risk`.
    p: see `deferral_risk`.
    price: see `deferral_risk`.
    loss: see `deferral_risk`.

  Source: Lemma 1 with the price alpha, Lemma 4 with `speculative_price`.
  """
  keep_loss = expected_loss(truth, q, loss=loss)
  return keep_loss > expected_loss(truth, p, loss=loss) + price


def plug_in_deferral(q: Array, p: Array, *, price, loss: Loss) -> Array:
  """Returns [...] bool, `optimal_deferral` with each model's own estimates.

  With the loss "zero_one" and the price alpha it is the rule [Diff] (Eq. (5));
  with `speculative_price` it is [OPT] (Eq. (10)). With the loss "log" it is the
  entropy form of the two rules.

  Args:
    q: see `deferral_risk`.
    p: see `deferral_risk`.
    price: see `deferral_risk`.
    loss: see `deferral_risk`.
  """
  return plug_in_loss(q, loss=loss) > plug_in_loss(p, loss=loss) + price


def regret(truth: Array, q: Array, p: Array, *, price, loss: Loss) -> Array:
  """Returns [...], the risk of `plug_in_deferral` less the least risk, >= 0.

  It is 0 where both risks are infinite.

  Args:
    truth: see `deferral_risk`.
    q: see `deferral_risk`.
    p: see `deferral_risk`.
    price: see `deferral_risk`.
    loss: see `deferral_risk`.
  """
  costs = {"price": price, "loss": loss}
  chosen = plug_in_deferral(q, p, **costs)
  risk = deferral_risk(truth, q, p, defer=chosen, **costs)
  best = optimal_deferral(truth, q, p, **costs)
  least = deferral_risk(truth, q, p, defer=best, **costs)
  # inf - inf is NaN, so equal risks are not subtracted.
  is_least = risk == least
  return jnp.where(is_least, 0, risk - jnp.where(is_least, 0, least))


def regret_bound(truth: Array, q: Array, p: Array, *, loss: Loss) -> Array:
  """Returns [...], a bound on `regret` that holds at every price.

  Derived here, in the spirit of Lemma 5. The bound is the sum of the plug-in
  errors |E loss(q) - own(q)| + |E loss(p) - own(p)|, own being `plug_in_loss`.
  Proof: let d = E loss(q) - E loss(p) - price and d' = own(q) - own(p) - price.
  A wrong decision costs |d|, and it means that d and d' have different signs.
  Then |d| <= |d - d'|, which is at most the sum of the two errors.

  Args:
    truth: see `deferral_risk`.
    q: see `deferral_risk`.
    p: see `deferral_risk`.
    loss: see `deferral_risk`.
  """
  return sum(
    jnp.abs(expected_loss(truth, x, loss=loss) - plug_in_loss(x, loss=loss))
    for x in (q, p)
  )


def uniform_regret_bound(truth: Array, q: Array, p: Array) -> Array:
  """Returns [...], max_v |truth - q| + max_v |truth - p|, a bound on `regret`.

  It holds for the loss "zero_one". It is looser than `regret_bound`, and needs
  no argmax. Derived here: the plug-in error of a model is |truth(m) - q(m)| at
  the model's own argmax m, which is at most the largest difference over v.

  Args:
    truth: [..., V] the distribution of the data.
    q: [..., V] the drafter's distribution.
    p: [..., V] the verifier's distribution.
  """
  return sum(jnp.max(jnp.abs(truth - x), axis=-1) for x in (q, p))


# Whole blocks.


def accepted_law(acceptance: Array) -> Array:
  """Returns [..., G+1], the probabilities of 0, ..., G accepted drafts.

  Args:
    acceptance: [..., G], the chance that draft i is accepted, given that the
      drafts before it are: sum_v min(q_i, pi_i) on average over prefixes.
  """
  # P(at least i) for i = 0, ..., G + 1 is 1, a_1, a_1 a_2, ..., 0, and P(i) is
  # the difference of neighbours.
  reached = jnp.cumprod(acceptance, axis=-1)
  ones = jnp.ones_like(reached[..., :1])
  return -jnp.diff(reached, prepend=ones, append=0 * ones)


def tokens_per_block(acceptance: Array) -> Array:
  """Returns [...] in [1, G+1], the expected tokens of a block.

  It is 1 + sum_i prod_{j<=i} acceptance_j: the residual or bonus token counts.
  At one common rate it is Leviathan et al.'s Eq. (1),
  `speedup.expected_tokens`.

  Args:
    acceptance: see `accepted_law`.
  """
  return 1 + jnp.sum(jnp.cumprod(acceptance, axis=-1), axis=-1)


def block_thresholds(tokens: Array, q: Array, pi: Array) -> tuple[Array, Array]:
  """Returns ([..., G], [..., G]): P_i and h_i of block verification.

  From P_0 = 1, P_i = min(1, P_{i-1} pi_i(x_i) / q_i(x_i)). For i < G,
  h_i = s_i / (s_i + 1 - P_i) with s_i = sum_x max(0, P_i pi_{i+1}(x) -
  q_{i+1}(x)), and h_i = 0 where the quotient is 0/0. h_G = P_G. With uniform
  numbers u_i the block is accepted up to the largest i with u_i < h_i.

  Args:
    tokens: [..., G] int32, the drafts.
    q: [..., G, V] the distribution from which each draft was drawn.
    pi: [..., G, V] the target distribution at each draft, after the prefix that
      the draft was drawn after.

  Source: Sun et al., "Block Verification Accelerates Speculative Decoding"
  (arXiv 2403.10444).
  """
  ratios = of_token(pi, tokens) / of_token(q, tokens)
  reach = [jnp.ones_like(ratios[..., 0])]
  for i in range(tokens.shape[-1]):
    reach.append(jnp.minimum(1, reach[-1] * ratios[..., i]))
  reach = jnp.stack(reach[1:], -1)
  # P_i goes with the distributions of the next position, i + 1, so the last
  # P_i has no s_i. `total_variation(a, b)` sums max(0, b - a).
  before_last = reach[..., :-1]
  s = total_variation(q[..., 1:, :], before_last[..., None] * pi[..., 1:, :])
  inner = ratio(s, s + 1 - before_last)
  return reach, jnp.concatenate([inner, reach[..., -1:]], -1)


def expected_block_accepted(thresholds: Array) -> Array:
  """Returns [...], the expected accepted drafts under block verification.

  The chance that at least i drafts are accepted is 1 - prod_{j>=i} (1 - h_j).

  Args:
    thresholds: [..., G], the h_i of `block_thresholds`.
  """
  missed = jnp.cumprod(1 - thresholds[..., ::-1], axis=-1)
  return jnp.sum(1 - missed, axis=-1)
