"""Fits the parameters of learned rules to texts with their right tokens.

The data are one row for each right token y, see `TokenRows`: what the rules see
of the pair (q, p) before the token, and whether the models were right. Fitting
takes seconds, and gives the same parameters each time.

N rows, F features, I inputs of a network.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from speccascade.decoding.laws import learned
from speccascade.decoding.laws.learned import (
  Calibration,
  Increasing,
  Network,
)
from speccascade.settings import fields

Array = jax.Array
_EVERY = 100  # steps between two looks at the validation rows
_TINY = 1e-9  # the least probability whose logarithm is taken


class TokenRows(NamedTuple):
  """What the rules see before each right token y, and how the models did.

  Attributes:
    features: [N, F] float32, see `learned.features`.
    q_right: [N] float32, 1 where y is the arg-max of q, else 0.
    p_right: [N] float32, 1 where y is the arg-max of p, else 0.
    q_gold: [N] float32, q(y).
    p_gold: [N] float32, p(y).
  """

  features: Any
  q_right: Any
  p_right: Any
  q_gold: Any
  p_gold: Any


@fields.checked
@dataclasses.dataclass(frozen=True)
class Fitting:
  """How the networks are fitted.

  Attributes:
    steps: the number of steps of Adam. The parameters with the least loss on
      the validation rows, of those after every hundred steps, are kept.
    batch_size: rows of a step.
    learning_rate: of the first step; it falls to 0 along a cosine.
    heads: what the two heads predict, see `head_rows`.
    seed: of the first parameters and of the batches.
  """

  steps: fields.Positive = 2000
  batch_size: fields.Positive = 1024
  learning_rate: Annotated[float, fields.Bounds(0, low_open=True)] = 0.01
  seed: fields.NonNegative = 0
  heads: Literal["sampled", "argmax"] = "sampled"


def fit(
  rows: TokenRows, held_out: TokenRows, fitting: Fitting
) -> dict[str, Any]:
  """Returns the fitted parameters of each kind, by the names of `KINDS`.

  Args:
    rows: the rows of the training split.
    held_out: the rows of the validation split.
    fitting: how the networks are fitted.
  """
  return {
    learned.CALIBRATION.name: calibration(rows),
    learned.HEADS.name: fit_network(
      _heads_loss,
      learned.HEADS.plug_in(),
      head_rows(rows, fitting),
      head_rows(held_out, fitting),
      fitting,
    ),
    learned.MIXTURE.name: fit_network(
      _mixture_loss, learned.MIXTURE.plug_in(), rows, held_out, fitting
    ),
  }


def head_rows(rows: TokenRows, fitting: Fitting) -> TokenRows:
  """Returns rows whose `q_right` and `p_right` are what the heads predict.

  Args:
    rows: the rows.
    fitting: "argmax" predicts whether a model's likeliest token is right, which
      is what the plug-in rules estimate. "sampled" predicts whether a token
      that is drawn from the model is right: q(y) and p(y), in the mean.
  """
  if fitting.heads == "argmax":
    return rows
  return rows._replace(q_right=rows.q_gold, p_right=rows.p_gold)


def calibration(rows: TokenRows) -> Calibration:
  """Returns the isotonic fits of both models' largest probabilities."""
  max_q, max_p = np.asarray(rows.features)[:, :2].T
  return Calibration(
    of_q=increasing(max_q, rows.q_right), of_p=increasing(max_p, rows.p_right)
  )


def increasing(x: np.ndarray, y: np.ndarray) -> Increasing:
  """Returns the increasing function that fits y best, by squared errors.

  The points are put into `learned.KNOTS` groups of equal size in the order of
  x. Groups whose means decrease are pooled until none does. Lines join the
  means.

  Args:
    x: [N].
    y: [N], numbers in [0, 1].

  Source: the pool-adjacent-violators algorithm (Ayer et al. 1955).

  >>> line = increasing(np.array([0.1, 0.2, 0.3]), np.array([0.0, 1.0, 0.0]))
  >>> line.values[:3].tolist()
  [0.0, 0.5, 0.5]
  """
  x, y = (np.asarray(values, np.float64) for values in (x, y))
  order = np.argsort(x, kind="stable")
  groups = [g for g in np.array_split(order, learned.KNOTS) if len(g)]
  at = np.array([x[group].mean() for group in groups])
  # Groups of one and the same x are one knot.
  at, knots = np.unique(at.astype(np.float32), return_inverse=True)
  weights = np.bincount(knots, [len(group) for group in groups])
  sums = np.bincount(knots, [y[group].sum() for group in groups])
  blocks: list[tuple[float, float, int]] = []  # the sum, weight and knots
  for block in zip(sums, weights, np.ones(len(at), int)):
    blocks.append(block)
    while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
      last, before = blocks.pop(), blocks.pop()
      blocks.append(tuple(a + b for a, b in zip(before, last)))
  values = [mean for block in blocks for mean in [_mean(block)] * block[2]]
  padding = (0, learned.KNOTS - len(at))
  return Increasing(
    np.pad(at, padding, mode="edge"),
    np.pad(np.array(values, np.float32), padding, mode="edge"),
  )


def _mean(block: tuple[float, float, int]) -> float:
  return block[0] / block[1]


def cross_entropy(prob: Array, right: Array) -> Array:
  """Returns the cross-entropy in nats of predictions, [N].

  Args:
    prob: [N], the predicted probability of being right.
    right: [N], 1 or 0.
  """
  log = lambda x: jnp.log(jnp.maximum(x, _TINY))
  return -right * log(prob) - (1 - right) * log(1 - prob)


def _heads_loss(network: Network, rows: TokenRows, key: Array) -> Array:
  """Returns the cross-entropies of both heads, [N] in nats; no key is used."""
  g_q, g_p = learned.confidences(network, rows.features)
  return cross_entropy(g_q, rows.q_right) + cross_entropy(g_p, rows.p_right)


def mixture_loss(network: Network, rows: TokenRows, alpha: Array) -> Array:
  """Returns -log pi(y) + alpha phi TV(p, q), [N] in nats.

  phi TV(p, q) is the chance that a draft of q is rejected.

  Args:
    network: of the mixture.
    rows: the rows.
    alpha: [] or [N], the price of a rejection.
  """
  logit = learned.verifier_logit(network, rows.features, alpha)
  phi = jax.nn.sigmoid(logit)
  gold = (1 - phi) * rows.q_gold + phi * rows.p_gold
  tv = rows.features[:, learned.FEATURES.index("total_variation")]
  return -jnp.log(jnp.maximum(gold, _TINY)) + alpha * phi * tv


def _mixture_loss(network: Network, rows: TokenRows, key: Array) -> Array:
  """Returns the loss of the mixture, [N], each row at an alpha of its own."""
  # alpha is the sinh of a uniform number: the range is covered by ratios. The
  # weights keep large prices from drowning small ones.
  low, high = learned.mixture.interval.ends(1)
  u = jax.random.uniform(key, rows.q_gold.shape)
  alpha = jnp.sinh(np.arcsinh(low) * (1 - u) + np.arcsinh(high) * u)
  return mixture_loss(network, rows, alpha) / (1 + jnp.abs(alpha))


def fit_network(
  loss: Callable[[Network, Any, Array], Array],
  plug_in: Network,
  rows: Any,
  held_out: Any,
  fitting: Fitting,
) -> Network:
  """Returns the network with the least loss on the validation rows.

  Args:
    loss: a function from a network, rows and a key to losses [N].
    plug_in: the network of zeros that the fit begins with.
    rows: `TokenRows`, or another named tuple of columns [N, ...], `features`
      among them.
    held_out: of the same type, the rows that say when to stop.
    fitting: as in `fit`.
  """
  rows, held_out = (
    type(each)(*(jnp.asarray(x, jnp.float32) for x in each))
    for each in (rows, held_out)
  )
  init_key, step_key, held_key = jax.random.split(
    jax.random.key(fitting.seed), 3
  )
  network = _standardised(plug_in, rows, init_key)
  schedule = optax.cosine_decay_schedule(fitting.learning_rate, fitting.steps)
  optimizer = optax.adam(schedule)
  state = (network, optimizer.init(_trained(network)), jnp.int32(0))

  @functools.partial(jax.jit, static_argnums=2)
  def advance(state, rows, num):
    step = functools.partial(one_step, rows)
    return jax.lax.scan(step, state, None, length=num)[0]

  def one_step(rows, state, _):
    network, moments, number = state
    keys = jax.random.split(jax.random.fold_in(step_key, number))
    size = (fitting.batch_size,)
    chosen = jax.random.randint(keys[0], size, 0, len(rows.features))
    batch = type(rows)(*(x[chosen] for x in rows))

    def objective(trained):
      return jnp.mean(loss(network.replace(**trained), batch, keys[1]))

    gradient = jax.grad(objective)(_trained(network))
    change, moments = optimizer.update(gradient, moments)
    trained = optax.apply_updates(_trained(network), change)
    return (network.replace(**trained), moments, number + 1), None

  @jax.jit
  def held_out_loss(network, held_out):
    return jnp.mean(loss(network, held_out, held_key))

  best, least = network, held_out_loss(network, held_out)
  for start in range(0, fitting.steps, _EVERY):
    state = advance(state, rows, min(_EVERY, fitting.steps - start))
    now = held_out_loss(state[0], held_out)
    if now < least:
      best, least = state[0], now
  return jax.tree.map(np.asarray, best)


def _trained(network: Network) -> dict[str, Any]:
  """Returns the parameters that are trained; the inputs' scales are not."""
  names = ("kernel", "bias", "out", "shift")
  return {name: jnp.asarray(getattr(network, name)) for name in names}


def _standardised(plug_in: Network, rows: Any, key: Array) -> Network:
  """Returns the first network: it scales its inputs, and its outputs are 0."""
  num = len(learned.FEATURES)
  mean, scale = np.array(plug_in.mean), np.array(plug_in.scale)
  mean[:num] = np.mean(rows.features, axis=0)
  scale[:num] = 1 / np.maximum(np.std(rows.features, axis=0), 1e-3)
  shape = plug_in.kernel.shape
  kernel = jax.random.normal(key, shape) / np.sqrt(shape[0])
  return plug_in.replace(mean=mean, scale=scale, kernel=kernel)


def losses(
  parameters: dict[str, Any], rows: TokenRows, fitting: Fitting
) -> dict[str, dict[str, float]]:
  """Returns the mean losses of fitted parameters and of their plug-ins.

  Args:
    parameters: as `fit` returns them.
    rows: of a split that the parameters were not fitted to.
    fitting: as in `fit`.

  Returns:
    {what: {variant: nats}}. "drafter right" and "verifier right" are the
    cross-entropies of what the heads predict, under the largest probability
    itself, its isotonic fit, and the head. "right token" is -log of the right
    token's probability under the drafter, the verifier, and the mixture at
    alpha 0.
  """
  rows = TokenRows(*(jnp.asarray(x, jnp.float32) for x in rows))
  rows = head_rows(rows, fitting)
  fitted = parameters[learned.CALIBRATION.name]
  max_q, max_p = rows.features[:, 0], rows.features[:, 1]
  g_q, g_p = learned.confidences(parameters[learned.HEADS.name], rows.features)
  mean = lambda values: float(jnp.mean(values))

  def of(right, plug_in, isotonic, head):
    variants = {"plug-in": plug_in, "isotonic": isotonic, "learned": head}
    return {
      name: mean(cross_entropy(prob, right)) for name, prob in variants.items()
    }

  log_loss = lambda prob: mean(-jnp.log(jnp.maximum(prob, _TINY)))
  mixed = mixture_loss(parameters[learned.MIXTURE.name], rows, jnp.float32(0))
  return {
    "drafter right": of(rows.q_right, max_q, fitted.of_q(max_q), g_q),
    "verifier right": of(rows.p_right, max_p, fitted.of_p(max_p), g_p),
    "right token": {
      "drafter": log_loss(rows.q_gold),
      "verifier": log_loss(rows.p_gold),
      "mixture": mean(mixed),
    },
  }
