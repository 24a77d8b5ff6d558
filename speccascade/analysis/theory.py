"""The lemmas of speculative cascades as functions on distributions.

Letters as everywhere: q drafter, p verifier, pi the target distribution; truth
is that of the data, r whether (or with which chance in [0, 1]) a rule defers,
price what deferring costs, loss "zero_one" or "log". Laws are [..., V] and
broadcast over their leading axes, r and prices [...]; the same code runs in
float32 and float64. Lemma and equation numbers are those of Narasimhan et al.,
"Faster Cascades via Speculative Decoding" (arXiv 2405.19261); where a statement
is worked out here and not read off the paper, its docstring says so.
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
  """Returns the chance that a draft of q is rejected for pi; [...].

  Source: Lemma 3: sum_v max(0, q(v) - pi(v)). For pi = (1 - r) q + r p it is
  r TV(p, q).

  >>> q, p = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
  >>> round(float(rejection_probability(q, p)), 3)
  0.4
  """
  return total_variation(pi, q)


def deferral_target(q: Array, p: Array, defer: Array) -> Array:
  """Returns (1 - r) q + r p, r being `defer`; [..., V].

  Source: Eq. (3) for r in {0, 1}.
  """
  r = jnp.asarray(defer).astype(q.dtype)[..., None]
  return (1 - r) * q + r * p


def realised_law(q: Array, accept: Array, replacement: Array) -> Array:
  """Returns the law of one token: a draft of q, kept or replaced; [..., V].

  Args:
    q: [..., V] law of the draft.
    accept: [..., V] chance that the draft v is kept.
    replacement: [..., V] law that a rejected draft is replaced from.
  """
  kept = q * accept
  rejected = jnp.sum(q - kept, axis=-1, keepdims=True)
  return kept + rejected * replacement


def accept_probability(q: Array, pi: Array) -> Array:
  """Returns min(1, pi / q), the chance that draft v is kept; [..., V].

  It is 1 where q is 0: such a draft never comes.
  """
  return jnp.minimum(1, ratio(pi, q, 1))


def token_verified_law(q: Array, pi: Array) -> Array:
  """Returns the law of one token-verified step; equals pi for any q; [..., V].

  Source: Algorithm 4: accept with min(1, pi/q), else draw from
  norm(max(0, pi - q)). The kept part is min(q, pi), the rejected mass
  sum max(0, q - pi) = sum max(0, pi - q), so the two parts add up to pi.
  """
  return realised_law(q, accept_probability(q, pi), residual(pi, q))


# Lossy speculative sampling.


def lossy_law(q: Array, p: Array, *, alpha, beta) -> Array:
  """Returns the law that lossy speculative sampling realises; [..., V].

  It accepts a draft with min(1, p / ((1-alpha) q)) and replaces it from
  norm(max(0, p/beta - q)); from p where that has no mass (beta > max p/q).

  Args:
    q: [..., V], like p.
    p: likewise.
    alpha: scalar in [0, 1).
    beta: scalar, or [..., 1]: one per row; at least 1 - alpha.

  Source: Lemma 2's procedure. Its output is `lossy_expression` only where
  `lossy_masses` balance.
  """
  accept = accept_probability(q, p / (1 - alpha))
  raised = normalise(jnp.maximum(p / beta - q, 0), p)
  return realised_law(q, accept, raised)


def lossy_expression(q: Array, p: Array, *, alpha, beta) -> Array:
  """Returns max{min{q, p/(1-alpha)}, p/beta}; a law only at one beta; [..., V].

  Derived here: for beta >= 1 - alpha it equals, token by token,
  min(q, p/(1-alpha)) + max(0, p/beta - q) (where q > p/(1-alpha) the second
  term is 0, elsewhere the first is q). With (R, S) of `lossy_masses` its sum is
  therefore 1 - R + S, and it is the realised law exactly if R = S. Arguments as
  in `lossy_law`.

  Source: Table 1, [Lossy]. At beta = 1 it sums to more than 1 unless alpha is
  0: the common heuristic is not this expression.
  """
  return jnp.maximum(jnp.minimum(q, p / (1 - alpha)), p / beta)


def lossy_masses(q: Array, p: Array, *, alpha, beta) -> tuple[Array, Array]:
  """Returns ([...], [...]): mass R rejected, mass S that is raised.

  R = sum max(0, q - p/(1-alpha)) and S = sum max(0, p/beta - q); arguments as
  in `lossy_law`.
  """
  return total_variation(p / (1 - alpha), q), total_variation(q, p / beta)


# When to defer, given the ground truth.


def expected_loss(truth: Array, prediction: Array, *, loss: Loss) -> Array:
  """Returns E_{v ~ truth} loss(v, prediction); [...].

  "zero_one" is 1[v != argmax prediction], ties to the lowest id; "log" is
  -log prediction(v), in nats: inf where the truth has mass and the prediction
  none.

  Raises:
    ValueError: another loss.
  """
  if loss == "zero_one":
    return 1 - of_token(truth, first_argmax(prediction))
  if loss == "log":
    return -jnp.sum(xlogy(truth, prediction), axis=-1)
  raise ValueError(f'loss is {loss!r}; it must be "zero_one" or "log"')


def plug_in_loss(prediction: Array, *, loss: Loss) -> Array:
  """Returns the loss that the prediction expects of itself; [...].

  1 - max_v prediction(v) for "zero_one", its entropy for "log": what is left of
  `expected_loss` where the truth is not known.
  """
  return expected_loss(prediction, prediction, loss=loss)


def speculative_price(q: Array, p: Array, *, alpha) -> Array:
  """Returns alpha TV(p, q): the price of deferring under speculation; [...].

  alpha times the chance that deferring cuts the block short (Lemma 3). Give the
  pair that is sampled from (Remark 3). In a sequential cascade the price of
  deferring is alpha itself.
  """
  return alpha * total_variation(q, p)


def deferral_risk(
  truth: Array, q: Array, p: Array, *, defer: Array, price, loss: Loss
) -> Array:
  """Returns (1 - r) E loss(q) + r (E loss(p) + price); [...].

  The price is alpha in a sequential cascade (Lemma 1's objective), and
  `speculative_price` under speculation (Eq. (8)).
  """
  keep_loss = expected_loss(truth, q, loss=loss)
  defer_loss = expected_loss(truth, p, loss=loss) + price
  r = jnp.asarray(defer).astype(keep_loss.dtype)
  # Either loss may be inf: a side that is never taken must not become NaN.
  kept = jnp.where(r < 1, (1 - r) * jnp.where(r < 1, keep_loss, 0), 0)
  return kept + jnp.where(r > 0, r * jnp.where(r > 0, defer_loss, 0), 0)


def optimal_deferral(
  truth: Array, q: Array, p: Array, *, price, loss: Loss
) -> Array:
  """Returns [...] bool, the deferral of least `deferral_risk`.

  Defers iff E loss(q) > E loss(p) + price: the risk is linear in r, so one of
  its two ends is optimal even among randomised rules; ties do not defer. Price
  alpha gives Lemma 1, `speculative_price` Lemma 4.
  """
  keep_loss = expected_loss(truth, q, loss=loss)
  return keep_loss > expected_loss(truth, p, loss=loss) + price


def plug_in_deferral(q: Array, p: Array, *, price, loss: Loss) -> Array:
  """Returns [...] bool: `optimal_deferral` with each model's own estimate.

  With "zero_one" it is the rule [Diff] (Eq. (5)) at price alpha and [OPT] (Eq.
  (10)) at `speculative_price`; with "log" their entropy forms.
  """
  return plug_in_loss(q, loss=loss) > plug_in_loss(p, loss=loss) + price


def regret(truth: Array, q: Array, p: Array, *, price, loss: Loss) -> Array:
  """Returns the risk of `plug_in_deferral` less the least risk; [...], >= 0.

  0 where both are infinite.
  """
  costs = {"price": price, "loss": loss}
  chosen = plug_in_deferral(q, p, **costs)
  risk = deferral_risk(truth, q, p, defer=chosen, **costs)
  best = optimal_deferral(truth, q, p, **costs)
  least = deferral_risk(truth, q, p, defer=best, **costs)
  return jnp.where(risk == least, 0, risk - jnp.where(risk == least, 0, least))


def regret_bound(truth: Array, q: Array, p: Array, *, loss: Loss) -> Array:
  """Returns a bound on `regret` that holds at every price; [...].

  Derived here, in the spirit of Lemma 5: the plug-in errors
  |E loss(q) - own(q)| + |E loss(p) - own(p)|, own being `plug_in_loss`. Proof:
  let d = E loss(q) - E loss(p) - price and d' the same with own losses. A wrong
  decision costs |d| and means that d and d' do not have the same sign, so that
  |d| <= |d - d'|, which is at most the sum of the two errors.
  """
  return sum(
    jnp.abs(expected_loss(truth, x, loss=loss) - plug_in_loss(x, loss=loss))
    for x in (q, p)
  )


def uniform_regret_bound(truth: Array, q: Array, p: Array) -> Array:
  """Returns max_v |truth - q| + max_v |truth - p|, for the 0-1 loss; [...].

  Looser than `regret_bound`, and free of argmaxes. Derived here: the 0-1 error
  of a model is |truth(m) - q(m)| at its own argmax m, at most the largest
  difference over v.
  """
  return sum(jnp.max(jnp.abs(truth - x), axis=-1) for x in (q, p))


# Whole blocks.


def accepted_law(acceptance: Array) -> Array:
  """Returns the law of the number of accepted drafts; [..., G+1].

  Args:
    acceptance: [..., G], the chance that draft i is accepted given that those
      before it were: sum_v min(q_i, pi_i) on average over prefixes.
  """
  reached = jnp.cumprod(acceptance, axis=-1)
  ones = jnp.ones_like(reached[..., :1])
  return -jnp.diff(reached, prepend=ones, append=0 * ones)


def tokens_per_block(acceptance: Array) -> Array:
  """Returns the expected tokens of a block, [...] in [1, G+1].

  The residual or bonus token is counted: 1 + sum_i prod_{j<=i} acceptance_j,
  arguments as in `accepted_law`. At one common rate it is Leviathan et al.'s
  Eq. (1); see `speccascade.analysis`.
  """
  return 1 + jnp.sum(jnp.cumprod(acceptance, axis=-1), axis=-1)


def block_thresholds(tokens: Array, q: Array, pi: Array) -> tuple[Array, Array]:
  """Returns ([..., G], [..., G]): P_i and h_i of block verification.

  P_i = min(1, P_{i-1} pi_i(x_i) / q_i(x_i)) from P_0 = 1; h_i = s_i / (s_i + 1
  - P_i) with s_i = sum_x max(0, P_i pi_{i+1}(x) - q_{i+1}(x)), 0 where that is
  0/0, and h_G = P_G. The block is accepted up to the largest i with u_i < h_i.

  Args:
    tokens: [..., G] int32 drafts.
    q: [..., G, V] law that each draft was drawn from.
    pi: [..., G, V] target after the same prefixes.

  Source: Sun et al., "Block Verification Accelerates Speculative Decoding"
  (arXiv 2403.10444).
  """
  change = of_token(pi, tokens) / of_token(q, tokens)
  reach = [jnp.ones_like(change[..., 0])]
  for i in range(tokens.shape[-1]):
    reach.append(jnp.minimum(1, reach[-1] * change[..., i]))
  reach = jnp.stack(reach[1:], -1)
  now = reach[..., :-1]
  s = total_variation(q[..., 1:, :], now[..., None] * pi[..., 1:, :])
  return reach, jnp.concatenate([ratio(s, s + 1 - now), reach[..., -1:]], -1)


def expected_block_accepted(thresholds: Array) -> Array:
  """Returns the expected accepted drafts of a block verified as a whole; [...].

  The chance that at least i are accepted is 1 - prod_{j>=i} (1 - h_j).

  Args:
    thresholds: [..., G], h of `block_thresholds`.
  """
  missed = jnp.cumprod(1 - thresholds[..., ::-1], axis=-1)
  return jnp.sum(1 - missed, axis=-1)
