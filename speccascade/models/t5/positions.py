"""T5's position bias: a learned number for each bucket of distances.

Axes: N queries, L keys, H heads. Source: Raffel et al. 2020, section 2.1, and
T5X's `examples/t5`.
"""

from flax import linen as nn
from flax.linen.partitioning import param_with_axes
import jax.numpy as jnp
import numpy as np

from speccascade.models.t5.config import T5Config

NUM_BUCKETS = 32
MAX_DISTANCE = 128


def relative_position_bucket(
  relative_position: np.ndarray, *, bidirectional: bool
) -> np.ndarray:
  """Returns the bucket, 0..31, of each distance from query to key.

  Small distances have a bucket each, larger ones share logarithmically wider
  buckets, and everything past 128 shares the last one.

  Args:
    relative_position: int array, key position minus query position.
    bidirectional: whether keys after the query have buckets of their own
      (encoder); otherwise they all fall into bucket 0 (decoder).
  """
  distance = -np.asarray(relative_position)
  first = np.zeros_like(distance)
  num_buckets = NUM_BUCKETS
  if bidirectional:
    num_buckets //= 2
    first = num_buckets * (distance < 0)
    distance = np.abs(distance)
  distance = np.maximum(distance, 0)
  num_exact = num_buckets // 2
  # The tiny number guards log(0), and T5X's bucket edges include it.
  ratio = distance.astype(np.float32) / num_exact + np.finfo(np.float32).eps
  steps = np.log(ratio) / np.log(MAX_DISTANCE / num_exact)
  far = num_exact + (steps * (num_buckets - num_exact)).astype(np.int32)
  far = np.minimum(far, num_buckets - 1)
  return first + np.where(distance < num_exact, distance, far)


class RelativePositions(nn.Module):
  """The position bias of one stack, a table [H, 32] shared by its layers."""

  config: T5Config
  bidirectional: bool

  def setup(self):
    self.rel_embedding = param_with_axes(
      "rel_embedding",
      nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
      (self.config.num_heads, NUM_BUCKETS),
      jnp.float32,
      axes=("heads", "relpos_buckets"),
    )

  def by_distance(self, relative_position: np.ndarray):
    """Returns [H, ...], the bias of key minus query position [...]."""
    buckets = relative_position_bucket(
      relative_position, bidirectional=self.bidirectional
    )
    return self.rel_embedding.astype(self.config.dtype)[:, buckets]

  def __call__(self, num_queries: int, num_keys: int):
    """Returns the bias [1, H, N, L] between all positions from 0 on.

    Bias depends on key - query only, so only N + L distances are looked up. A
    row of period P = N + L is repeated N times and cut into rows of P - 1:
    row i then starts i places earlier, so that entry [i, j] is that of j - i.
    """
    period = num_queries + num_keys
    offset = np.arange(period)
    offset = np.where(offset < num_keys, offset, offset - period)
    row = self.by_distance(offset)[:, None]
    rows = jnp.broadcast_to(row, (row.shape[0], num_queries, period))
    rows = rows.reshape(row.shape[0], num_queries * period)
    rows = rows[:, : num_queries * (period - 1)]
    rows = rows.reshape(1, row.shape[0], num_queries, period - 1)
    return rows[..., :num_keys]
