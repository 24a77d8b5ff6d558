"""What a kernel of a GPU takes at least, by arithmetic.

A kernel takes

    LAUNCH + waits + near bytes / NEAR_BANDWIDTH + FAR
    + max(far bytes / BANDWIDTH, FAR * (far bytes / in flight - 1),
          waits beside the stream)

    waits = near phases * NEAR + statements * ISSUE

Far bytes are large arrays that a round is given, such as weights and caches:
they come from the device's memory. All others were written by a kernel just
before, and come from the second cache. "In flight" is what all programs that
fit the multiprocessors have asked for at a time (Little's law: bytes in flight
= bandwidth * latency), and a phase is a load that waits for an earlier one. FAR
is left out where no bytes are far. Kernels of a round are added up: each waits
for the one before it.

No constant is fitted to a row that the sum is compared with.
"""

import dataclasses
import math

# Facts of an H100 SXM: NVIDIA's data sheet and CUDA's tables of sm_90.
MULTIPROCESSORS, MOST_THREADS, MOST_PROGRAMS = 132, 2048, 32
SHARED, RESERVED = 233_472, 1024
# Bytes a second that an H100 read in the best case (docs/benchmarks.md).
BANDWIDTH = 3.05e12
# Of its second cache, about: chipsandcheese.com, "Nvidia's H100" (2023).
NEAR_BANDWIDTH = 5.5e12
# Seconds until bytes of the device's memory come while it is busy, and of its
# second cache (some 260 cycles at 1.75 GHz: arXiv 2402.13499).
FAR, NEAR = 0.65e-6, 0.15e-6
# Cycles of a statement of one warp. NVIDIA's assembler writes into an
# instruction how long the next one waits: 1.6 to 2.1 cycles a statement of PTX,
# in ten kernels of this package and of XLA. What waits for shared memory or
# other warps comes on top. Warps that share a scheduler take a cycle each.
CLOCK, ISSUE, SCHEDULERS = 1.755e9, 2, 4
# Seconds of a barrier of a cluster. An estimate, not measured.
MEETING = 0.2e-6
# Seconds from one kernel of a graph to the next, measured on an H100 by
# hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles; without a graph, an
# estimate.
LAUNCH, LAUNCH_ALONE = 1.3e-6, 2.1e-6
# With a kernel before it that lets it start early. Not measured.
LAUNCH_EARLY = 0.7e-6
# The host reads a predicate, waits, and starts a graph. Not measured.
HOST = 10e-6
LARGE = 1 << 16  # bytes of an array that is streamed
# Bytes of the second cache that all multiprocessors reach: half of its 50 MB,
# as each half may hold the same lines.
CACHE = 25e6


@dataclasses.dataclass(frozen=True)
class Load:
  """What a kernel reads and keeps in flight.

  Attributes:
    programs: of its grid.
    threads: of a program.
    shared: bytes of shared memory of a program.
    num_bytes: that all programs read and write.
    far_bytes: those of them that come from the device's memory.
    fetched_bytes: those of `far_bytes` that only go to the second cache, for a
      later kernel.
    asked: bytes of large arrays that a program has asked for at a time; None
      where that is not known, or chosen on the device by timing.
    near: phases that wait for one another, of a program.
    work: statements that a warp issues.
    near_beside: phases in a loop that streams large arrays.
    work_beside: statements of such a loop.
    meetings: barriers of a cluster.
  """

  programs: int
  threads: int
  shared: int
  num_bytes: int
  far_bytes: int
  asked: int | None
  near: int = 0
  work: int = 0
  near_beside: int = 0
  work_beside: int = 0
  meetings: int = 0
  fetched_bytes: int = 0

  @property
  def shared_by(self) -> int:
    """Programs that a multiprocessor has at a time; registers may let fewer."""
    fit = min(
      MOST_PROGRAMS,
      MOST_THREADS // max(self.threads, 1),
      SHARED // (self.shared + RESERVED),
    )
    return max(1, min(fit, math.ceil(self.programs / MULTIPROCESSORS)))

  @property
  def resident(self) -> int:
    """Programs that all multiprocessors have at a time."""
    return min(self.programs, MULTIPROCESSORS * self.shared_by)

  def waits(self, near: int, work: int) -> float:
    """Returns the seconds of phases and statements of all programs."""
    warps = self.shared_by * math.ceil(self.threads / 32) / SCHEDULERS
    each = near * NEAR + work * max(ISSUE, warps) / CLOCK
    return math.ceil(self.programs / self.resident) * each

  @property
  def in_flight(self) -> int | None:
    """Bytes that all resident programs have asked for at a time."""
    return None if self.asked is None else self.asked * self.resident


@dataclasses.dataclass(frozen=True)
class Cost:
  """Seconds of a kernel, by what they are spent for; they add up.

  Attributes:
    launch: from the kernel before it.
    waits: for loads that wait for one another, for statements, and for the
      first bytes of a stream.
    reads: bytes over bandwidths.
    capped: what a stream takes longer as too little is in flight, or as its
      loop has waits of its own.
  """

  launch: float = 0.0
  waits: float = 0.0
  reads: float = 0.0
  capped: float = 0.0

  @property
  def total(self) -> float:
    """All of it."""
    return self.launch + self.waits + self.reads + self.capped

  def __add__(self, other: "Cost") -> "Cost":
    mine, more = dataclasses.astuple(self), dataclasses.astuple(other)
    return Cost(*(x + y for x, y in zip(mine, more)))

  def __mul__(self, times: int) -> "Cost":
    return Cost(*(times * x for x in dataclasses.astuple(self)))


def cost(load: Load, launch: float = LAUNCH) -> Cost:
  """Returns what a kernel takes.

  Args:
    load: what it reads.
    launch: seconds from the kernel before it.
  """
  waits = load.waits(load.near, load.work) + load.meetings * MEETING
  needed = load.far_bytes - load.fetched_bytes
  stream = needed / BANDWIDTH
  capped = load.waits(load.near_beside, load.work_beside)
  if needed:
    waits += FAR
    if load.in_flight:
      capped = max(capped, FAR * (needed / load.in_flight - 1))
  near = (load.num_bytes - load.far_bytes) / NEAR_BANDWIDTH
  found = Cost(launch, waits, stream + near, max(0.0, capped - stream))
  # What is fetched for later comes beside all else, from the launch on.
  longer = max(0.0, load.far_bytes / BANDWIDTH - found.total)
  return dataclasses.replace(found, reads=found.reads + longer)
