"""The seconds that a chip takes at least: reads, arithmetic, communication."""

from collections import Counter
import dataclasses

from speccascade.tools.planning import chips, hlo
from speccascade.tools.planning.chips import Chip

V4 = chips.CHIPS["v4"]
HOP_S = 1e-6  # jax-ml.github.io/scaling-book/sharding, "around 1us"
# {chips of a slice: chips along each of its three axes}. Source:
# docs.cloud.google.com/tpu/docs/v4.
TOPOLOGIES = {
  1: (1, 1, 1),
  2: (2, 1, 1),
  4: (2, 2, 1),
  8: (2, 2, 2),
  16: (2, 2, 4),
  32: (2, 4, 4),
  64: (4, 4, 4),
}


def gather_s(num_bytes: float, num_chips: int, chip: Chip = V4) -> float:
  """Returns the seconds of an all-gather.

  The seconds are max(hops * HOP_S, bytes / bandwidth). Along an axis of k chips
  a part makes k - 1 hops, and one link of each chip is used. Along a ring of k
  chips a part makes k / 2 hops, and two links are used. The axes are rings if
  the chips along each axis are a multiple of four.

  Source: "How to Scale Your Model", chapter "Sharded Matrices", the formula for
  several axes.

  Args:
    num_bytes: bytes that each chip has afterwards.
    num_chips: how many chips take part, a key of `TOPOLOGIES`.
    chip: the kind of the chips.

  >>> round(gather_s(0, 64) * 1e6), round(gather_s(2.7e6, 64) * 1e6)
  (6, 10)
  """
  axes = [k for k in TOPOLOGIES[num_chips] if k > 1]
  if not axes:
    return 0.0
  if all(k % 4 == 0 for k in axes):
    hops, links = sum(k / 2 for k in axes), 2 * len(axes)
  else:
    hops, links = sum(k - 1 for k in axes), len(axes)
  return max(hops * HOP_S, num_bytes / (links * chip.link_bandwidth))


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one chip in a pass or a round.

  Attributes:
    reads: bytes that are read, by what they are.
    flops: floating-point operations of the products with kernels.
    cycles: what a compiler estimates; 0 without one.
    sent: how often each collective occurs.
  """

  reads: dict[str, float]
  flops: float = 0.0
  cycles: float = 0.0
  sent: hlo.CollectiveCounts = dataclasses.field(default_factory=Counter)

  def times(self, chip: Chip = V4) -> dict[str, float]:
    """Returns the seconds of memory, compute and network, by these names.

    An all-reduce is a reduce-scatter and an all-gather, so that it takes twice
    the time of an all-gather.
    """
    cycles_s = self.cycles / chip.clock if chip.clock else 0.0
    network = 0.0
    for each, num in self.sent.items():
      gathered = gather_s(each.num_bytes, each.num_devices, chip)
      network += num * gathered * (2 if each.kind == "all-reduce" else 1)
    return {
      "memory": sum(self.reads.values()) / chip.bandwidth,
      "compute": max(self.flops / chip.flops, cycles_s),
      "network": network,
    }

  def limit(self, chip: Chip = V4) -> str:
    """Returns the name that takes longest in `times`."""
    times = self.times(chip)
    return max(times, key=times.get)

  def seconds(self, chip: Chip = V4) -> float:
    """Returns the seconds of the pass; the module's text gives the formula."""
    times = self.times(chip)
    return max(times["memory"], times["compute"]) + times["network"]
