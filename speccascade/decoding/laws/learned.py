"""Learned deferral: rules and a target fitted to correct answers.

The plug-in rules take max q and max p for the probabilities that the drafter
and the verifier are right (Narasimhan et al., Eqs. 5 and 10). Here a small
function that was fitted to texts with their right tokens y takes their place:

- calibrated rules: two increasing functions of one number each, fitted by
  isotonic regression of [y = arg-max] on the largest probability;
- `learned`: two heads g_q and g_p on ten features of the pair (q, p), fitted by
  cross-entropies of whether a draw of q and of p is y, or the arg-maxes are;
- `mixture`: no rule but a distribution, pi = (1 - phi) q + phi p, whose phi is
  a function of the same features and of alpha, fitted by
  -log pi(y) + alpha phi TV(p, q), the last term being the chance of rejection.

All of them read only q and p, at temperature 1. The position of a token is not
a feature, because a rule does not receive it.

`training.rule_fitting` fits the parameters. Without parameters (alpha is a
number) each of them is a plug-in that corrects nothing: Chow, Diff and OPT, or
a mixture of one weight.

Sources: Narasimhan et al. (arXiv 2405.19261) name a rule that is trained on
ground truth as future work; the form of the heads is ours. The loss of the
mixture is Co-LLM's (Shen et al., arXiv 2403.03870) with the price of a
rejection added; the addition is ours.
"""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws.fitted import FittedAlpha, ParameterKind
from speccascade.decoding.laws.interval import Interval
from speccascade.decoding.laws.numerics import (
  entropy,
  first_argmax,
  max_prob,
  of_token,
  ratio,
  total_variation,
)
from speccascade.decoding.laws.rules import Pair, Sides, rule
from speccascade.decoding.laws.targets import target

Array = jax.Array
Parameter = jax.Array | np.ndarray

# The features of a position, in their order.
FEATURES = (
  "max_q",
  "max_p",
  "entropy_q",
  "entropy_p",
  "margin_q",
  "margin_p",
  "q_at_argmax_p",
  "p_at_argmax_q",
  "total_variation",
  "argmaxes_agree",
)
HIDDEN = 16  # units of the small networks
KNOTS = 32  # of an increasing function
# A largest probability of exactly 0 or 1 has no finite logit.
_EDGE = 1e-6


def features(q: Array, p: Array) -> Array:
  """Returns what the learned rules see of a pair, [..., F] as in `FEATURES`.

  Entropies are in nats. A margin is the largest probability minus the second
  largest.

  Args:
    q: [..., V] drafter probabilities at temperature 1.
    p: [..., V] verifier probabilities at temperature 1.
  """
  best_q, best_p = first_argmax(q), first_argmax(p)
  max_q, max_p = max_prob(q), max_prob(p)
  columns = (
    max_q,
    max_p,
    entropy(q),
    entropy(p),
    max_q - _second(q, best_q),
    max_p - _second(p, best_p),
    of_token(q, best_p),
    of_token(p, best_q),
    total_variation(q, p),
    (best_q == best_p).astype(q.dtype),
  )
  return jnp.stack(columns, axis=-1)


def _second(probs: Array, best: Array) -> Array:
  """Returns the second largest probability, [...]; `best` is the arg-max."""
  index = jax.lax.broadcasted_iota(jnp.int32, probs.shape, probs.ndim - 1)
  return jnp.max(jnp.where(index == best[..., None], 0, probs), axis=-1)


class Network(struct.PyTreeNode):
  """The parameters of a network with one hidden layer.

  Attributes:
    mean: [I] subtracted from the inputs.
    scale: [I] multiplied with what is left.
    kernel: [I, H] of the hidden layer.
    bias: [H] of the hidden layer.
    out: [H, O] of the outputs.
    shift: [O] added to the outputs.
  """

  mean: Parameter
  scale: Parameter
  kernel: Parameter
  bias: Parameter
  out: Parameter
  shift: Parameter

  def __call__(self, inputs: Array) -> Array:
    """Returns the outputs [..., O] of inputs [..., I]."""
    # Sums of a few terms instead of `dot`: accelerators multiply float32 in
    # less precision there, and a rule compares close numbers.
    num = inputs.ndim
    scaled = (inputs - _lead(self.mean, num)) * _lead(self.scale, num)
    hidden = scaled[..., None] * _lead(self.kernel, num + 1)
    hidden = jnp.tanh(jnp.sum(hidden, axis=-2) + _lead(self.bias, num))
    outputs = hidden[..., None] * _lead(self.out, num + 1)
    return jnp.sum(outputs, axis=-2) + _lead(self.shift, num)


def _lead(x: Parameter, ndim: int) -> Array:
  """Returns x with leading axes of size 1, so that it has `ndim` axes."""
  return jnp.reshape(x, (1,) * (ndim - x.ndim) + x.shape)


def zero_network(num_inputs: int, num_outputs: int) -> Network:
  """Returns a `Network` of NumPy float32 arrays whose outputs are all 0."""

  def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)

  return Network(
    mean=zeros(num_inputs),
    scale=np.ones(num_inputs, np.float32),
    kernel=zeros(num_inputs, HIDDEN),
    bias=zeros(HIDDEN),
    out=zeros(HIDDEN, num_outputs),
    shift=zeros(num_outputs),
  )


class Increasing(struct.PyTreeNode):
  """The parameters of an increasing function: lines between its knots.

  Left of the first knot and right of the last one the function is constant.

  Attributes:
    at: [K] ascending; a knot may be repeated, with the same value.
    values: [K] ascending, the function at the knots.
  """

  at: Parameter
  values: Parameter

  def __call__(self, x: Array) -> Array:
    """Returns the function at x [...], [...]."""
    # Each stretch between two knots adds the part of its rise that lies left of
    # x. That takes no search, which XLA makes a loop of.
    num = x.ndim + 1
    start, width = _lead(self.at[:-1], num), _lead(jnp.diff(self.at), num)
    share = jnp.clip(ratio(x[..., None] - start, width), 0, 1)
    rise = _lead(jnp.diff(self.values), num)
    return self.values[0] + jnp.sum(share * rise, axis=-1)


class Calibration(struct.PyTreeNode):
  """How sure the models are in truth, given how sure they say they are.

  Attributes:
    of_q: an `Increasing` from max q to P(y = arg-max q).
    of_p: an `Increasing` from max p to P(y = arg-max p).
  """

  of_q: Increasing
  of_p: Increasing

  def __call__(self, q: Array, p: Array) -> tuple[Array, Array]:
    """Returns how sure both models are in truth, [...] each."""
    return self.of_q(max_prob(q)), self.of_p(max_prob(p))


def identity() -> Increasing:
  """Returns the increasing function x of x in [0, 1], with `KNOTS` knots."""
  line = np.minimum(np.arange(KNOTS, dtype=np.float32), 1)
  return Increasing(line, line)


HEADS = ParameterKind("heads", lambda: zero_network(len(FEATURES), 2))
MIXTURE = ParameterKind("mixture", lambda: zero_network(len(FEATURES) + 1, 1))
CALIBRATION = ParameterKind(
  "calibration", lambda: Calibration(identity(), identity())
)
KINDS = {kind.name: kind for kind in (HEADS, MIXTURE, CALIBRATION)}


def confidences(network: Network, seen: Array) -> tuple[Array, Array]:
  """Returns (g_q, g_p) [...], how likely each model's token is right.

  g is the sigmoid of the logit of the largest probability plus an output of the
  network. So a network of zeros gives max q and max p.

  Args:
    network: has two outputs.
    seen: [..., F], see `features`.
  """
  logits = _logit(seen[..., :2]) + network(seen)
  both = jax.nn.sigmoid(logits)
  return both[..., 0], both[..., 1]


def _logit(x: Array) -> Array:
  x = jnp.clip(x, _EDGE, 1 - _EDGE)
  return jnp.log(x) - jnp.log1p(-x)


def verifier_logit(
  network: Network, seen: Array, alpha: Array | float
) -> Array:
  """Returns the logit [...] of phi, the verifier's weight in the mixture.

  Args:
    network: reads the features and asinh(alpha), and has one output.
    seen: [..., F], see `features`.
    alpha: a scalar, or [...]: the price of a rejection.
  """
  # asinh is linear at 0, and a logarithm of large prices.
  price = jnp.broadcast_to(jnp.arcsinh(alpha), seen.shape[:-1])
  inputs = jnp.concatenate([seen, price[..., None]], axis=-1)
  return network(inputs)[..., 0] - price


_OF_OPT = (-1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9)


@rule(grid=_OF_OPT, kind=HEADS)
def learned(
  q: Array, p: Array, *, alpha: FittedAlpha, sampled: Pair | None = None
) -> Sides:
  """Learned OPT: defers where g_q < g_p - alpha TV(p, q).

  g_q and g_p are the probabilities that a token of q and of p is correct, as
  estimated by two heads on ten features of the pair. The heads were fitted to
  texts with their correct tokens. With heads that correct nothing the rule is
  OPT.

  Args:
    alpha: scalar, price per unit of total variation; any finite number.

  Source: ours, after the future work of Narasimhan et al. (arXiv 2405.19261);
  the price is that of their Eq. (10).
  """
  left, right = confidences(alpha.parameters, features(q, p))
  tv = total_variation(*(sampled or (q, p)))
  return left, right - alpha.alpha * tv


@rule(
  low=0,
  high=1,
  default=0.3,
  grid=(0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9),
  kind=CALIBRATION,
)
def chow_calibrated(
  q: Array,
  p: Array | None = None,
  *,
  alpha: FittedAlpha,
  sampled: Pair | None = None,
) -> Sides:
  """Calibrated Chow: defers where c_q(max q) < 1 - alpha.

  c_q is an increasing function, fitted to how often the arg-max of q is the
  right token. Because it increases, the rule is Chow's at another alpha. Where
  c_q is level, all max q of that stretch are deferred together or kept
  together. An alpha means the same for all pairs.

  Args:
    alpha: scalar in [0, 1]. Alpha 1 never defers.

  Source: ours; isotonic calibration in Narasimhan et al., Eq. (2).
  """
  sure = alpha.parameters.of_q(max_prob(q))
  return sure, jnp.full_like(sure, 1 - alpha.alpha)


@rule(
  low=-1, high=1, grid=(-0.6, -0.3, -0.1, 0.0, 0.1, 0.3, 0.6), kind=CALIBRATION
)
def diff_calibrated(
  q: Array, p: Array, *, alpha: FittedAlpha, sampled: Pair | None = None
) -> Sides:
  """Calibrated Diff: defers where c_q(max q) < c_p(max p) - alpha.

  c_q and c_p are increasing functions, fitted to how often the arg-max of q and
  of p is the right token.

  Args:
    alpha: scalar in [-1, 1]. Alpha 1 never defers; alpha -1 always defers.

  Source: ours; isotonic calibration in Narasimhan et al., Eq. (5).
  """
  left, right = alpha.parameters(q, p)
  return left, right - alpha.alpha


@rule(grid=_OF_OPT, kind=CALIBRATION)
def opt_calibrated(
  q: Array, p: Array, *, alpha: FittedAlpha, sampled: Pair | None = None
) -> Sides:
  """Calibrated OPT: defers where c_q(max q) < c_p(max p) - alpha TV(p, q).

  c_q and c_p are the functions of calibrated Diff.

  Args:
    alpha: scalar, price per unit of total variation; any finite number.

  Source: ours; isotonic calibration in Narasimhan et al., Eq. (10).
  """
  left, right = alpha.parameters(q, p)
  return left, right - alpha.alpha * total_variation(*(sampled or (q, p)))


@target(
  interval=Interval(
    -8, 32, default=1.0, grid=(-4.0, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0)
  ),
  needs_confidence=True,
  kind=MIXTURE,
)
def mixture(q: Array, p: Array, *, alpha: FittedAlpha, sampled: Pair) -> Array:
  """The learned mixture (1 - phi) q + phi p of the sampled pair.

  phi is a network's function of ten features of the pair and of alpha. It was
  fitted to texts with their right tokens y by -log pi(y) + alpha phi TV(p, q),
  at alphas of the whole range. At temperature 0 it mixes two one-hot
  distributions and is still drawn from. With a network of zeros phi is
  1 / (1 + exp(asinh(alpha))), whatever the pair.

  Args:
    alpha: scalar in [-8, 32], nats per rejection.

  Source: ours; the loss of Co-LLM (Shen et al., arXiv 2403.03870) with the
  price of a rejection.
  """
  logit = verifier_logit(alpha.parameters, features(q, p), alpha.alpha)
  phi = jax.nn.sigmoid(logit)[..., None]
  q, p = sampled
  return (1 - phi) * q + phi * p
