"""Chooses a row's next draft length from its acceptance history.

A draft costs time, and is worth what it saves. With a chance a that a draft is
accepted, a block of gamma drafts writes (1 - a^(gamma + 1)) / (1 - a) tokens in
expectation. The gamma with the most tokens per second is chosen, where seconds
are measured beforehand and a is estimated from the row's own blocks so far.
"""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

# The block sizes that a program is compiled for. 0 is the verifier alone.
SIZES = (0, 1, 2, 3, 5, 8)
# Tokens of a pass in which a drafter reads what it missed.
CATCH_UP_WIDTH = 8
# A row begins as if it had examined `PRIOR_WEIGHT` drafts, of which this share
# was accepted.
PRIOR_MEAN = 0.75
PRIOR_WEIGHT = 4.0
# What a draft weighs in the estimate when another one has been examined.
DECAY = 0.97
# Blocks in which the reading of missed tokens is to pay for itself.
HORIZON = 16
# Rounds without drafts that follow each other before a row asks again. Nothing
# is learned in them, so that asking each time would only take time.
IDLE_ROUNDS = 8
# The share of a row's draft-free time that is budgeted for trying drafts again,
# and what a trial costs, in blocks of the size that it begins with.
TRIAL_SHARE = 0.01
TRIAL_BLOCKS = 3.0


class PaceCosts(struct.PyTreeNode):
  """What rounds cost, in rounds that draft nothing. K = the number of sizes.

  Attributes:
    rounds: [K] float32, a round whose blocks have each of the sizes.
    catch_up: [] float32, a pass of the drafter over `CATCH_UP_WIDTH` tokens.
  """

  rounds: Array
  catch_up: Array


class Pace(struct.PyTreeNode):
  """What a row remembers of its own blocks. All 0 is a row without a past.

  Attributes:
    accepted: [B] float32, accepted drafts, the older ones with less weight.
    examined: [B] float32, examined drafts, with the same weights.
    saved: [B] float32, the time budgeted so far for a trial, in rounds that
      draft nothing.
    held: [B] int32, tokens that the drafter would hold if the row were alone.
    length: [B] int32, the tokens before the last block; 0 before any block.
    gamma: [B] int32, of the last block.
  """

  accepted: Array
  examined: Array
  saved: Array
  held: Array
  length: Array
  gamma: Array

  @classmethod
  def zeros(cls, rows: int) -> "Pace":
    """Returns the memory of rows without a past."""
    share = jnp.zeros((rows,), jnp.float32)
    count = jnp.zeros((rows,), jnp.int32)
    return cls(
      accepted=share,
      examined=share,
      saved=share,
      held=count,
      length=count,
      gamma=count,
    )

  def begin_turn(self, held: Array) -> "Pace":
    """Returns the memory after external tokens up to `held` [B] int32."""
    return self.replace(
      held=jnp.maximum(self.held, held), length=jnp.zeros_like(self.length)
    )

  def passes(self, length: Array, first: int = 2) -> Array:
    """Returns [B] int32, passes that a drafter needs to read what it missed.

    Args:
      length: [B] int32, tokens now.
      first: static, how many tokens a chain's own first pass reads.
    """
    lacks = length - self.held
    passes = -(-(lacks - 1) // CATCH_UP_WIDTH)
    return jnp.where(lacks > first, passes, 0)

  def is_idle(self, length: Array) -> Array:
    """Returns [B] bool, the rows that continue without drafts, unasked."""
    began = (self.length > 0) & (self.gamma == 0)
    return began & (length - self.length < IDLE_ROUNDS)

  def next(
    self, costs: PaceCosts, sizes: tuple[int, ...], length: Array
  ) -> "Pace":
    """Returns the memory for the next block: `observe`, and then `choose`.

    Idle rows stay as they are. Arguments as in `choose`.
    """
    asked = self.observe(length).choose(costs, sizes, length)
    if 0 not in sizes:
      return asked
    idle = self.is_idle(length)
    return jax.tree.map(lambda old, new: jnp.where(idle, old, new), self, asked)

  def observe(self, length: Array) -> "Pace":
    """Returns the memory with the outcome of the last block.

    Args:
      length: [B] int32, tokens now. The last block wrote its accepted drafts
        and one token more; blocks without drafts wrote one token each.
    """
    emitted = jnp.where(self.length > 0, length - self.length, 0)
    accepted = jnp.clip(emitted - 1, 0, self.gamma)
    examined = jnp.where(emitted > 0, jnp.minimum(accepted + 1, self.gamma), 0)
    weight = DECAY ** examined.astype(jnp.float32)
    idle = jnp.where(self.gamma == 0, emitted, 0).astype(jnp.float32)
    return self.replace(
      accepted=weight * self.accepted + accepted.astype(jnp.float32),
      examined=weight * self.examined + examined.astype(jnp.float32),
      saved=self.saved + TRIAL_SHARE * idle,
      held=jnp.minimum(self.held, length - 1),
    )

  def choose(
    self, costs: PaceCosts, sizes: tuple[int, ...], length: Array
  ) -> "Pace":
    """Returns the memory with `gamma` [B] and `length` of the next block.

    Args:
      costs: `PaceCosts` of the sizes.
      sizes: static, the block sizes, ascending.
      length: [B] int32, tokens now.
    """
    gammas = jnp.asarray(sizes, jnp.int32)
    reading = self.passes(length).astype(jnp.float32) * costs.catch_up
    best = _best(self._acceptance, costs.rounds, sizes, reading)
    pace = self
    if 0 in sizes:
      # A trial restarts from the prior, once the budget covers it.
      # It is not made where no acceptance would make drafts pay.
      prior = jnp.full((1,), PRIOR_MEAN, jnp.float32)
      first = _best(prior, costs.rounds, sizes, jnp.zeros_like(prior))
      first = jnp.maximum(first, 1)
      most = gammas.astype(jnp.float32) + 1  # tokens, where all are accepted
      may_pay = jnp.max(most / costs.rounds) > 1
      loss = TRIAL_BLOCKS * (costs.rounds[first] - costs.rounds[0])
      price = reading + jnp.maximum(loss, 0)
      tries = (best == 0) & (self.saved >= price) & (price > 0) & may_pay
      best = jnp.where(tries, first, best)
      pace = self.replace(
        accepted=jnp.where(tries, 0, self.accepted),
        examined=jnp.where(tries, 0, self.examined),
        saved=jnp.where(tries, self.saved - price, self.saved),
      )
    return pace.replace(gamma=gammas[best], length=length)

  def draft(self, length: Array, num_fed: Array) -> "Pace":
    """Returns the memory after a drafter read `length + num_fed` tokens."""
    held = jnp.where(self.gamma > 0, length + num_fed, self.held)
    return self.replace(held=held)

  @property
  def _acceptance(self) -> Array:
    """[B] float32, the estimate of a."""
    prior = PRIOR_MEAN * PRIOR_WEIGHT
    return (prior + self.accepted) / (PRIOR_WEIGHT + self.examined)


def _best(
  acceptance: Array, rounds: Array, sizes: tuple[int, ...], reading: Array
) -> Array:
  """Returns [B] int32, the place of the size with most tokens per time."""
  # 1 + a + ... + a^gamma, which is (1 - a^(gamma + 1)) / (1 - a) at a = 1, too.
  # As powers and a sum XLA makes one operation of it; a cumulative sum would be
  # several, which cost as much as a small model's token.
  power = np.arange(sizes[-1] + 1)
  is_in = (power[None] <= np.array(sizes)[:, None])[None]
  powers = acceptance[:, None, None] ** power.astype(np.float32)[None, None]
  tokens = jnp.sum(jnp.where(is_in, powers, 0), axis=2)
  reads = jnp.where((np.array(sizes) > 0)[None], reading[:, None], 0)
  cost = rounds[None] + reads / HORIZON
  return jnp.argmax(tokens / cost, axis=1).astype(jnp.int32)
