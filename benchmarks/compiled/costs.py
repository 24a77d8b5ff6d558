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

A kernel that starts copies to shared memory and waits for them later, with no
loop that does both, is followed step by step: its copies come in the order in
which they were started, at the bandwidth of the memory that they are in, beside
statements, phases and barriers, until the code waits for them.

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
# Bytes a second from the second cache to one multiprocessor: 64 a cycle
# (NVIDIA's paper on the A100; the H100's is not said to be less).
WAY = 64 * CLOCK
# Seconds of a barrier of a cluster, from the arrival. An estimate.
MEETING = 0.2e-6
# Seconds until bytes of another multiprocessor's shared memory come: 180 cycles
# (arXiv 2402.13499).
PEER = 180 / CLOCK
# Seconds from a write until another multiprocessor, which reads again and
# again, has what was written. An estimate: four times what a load from the
# second cache takes, for the write, a read that just misses it, the read that
# sees it, and as a half of the cache may be the far one.
EXCHANGE = 4 * NEAR
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
class Step:
  """What a program does up to a wait, or to the end of a group of copies.

  Attributes:
    work: statements that a warp issues.
    phases: of loads that a loop asks for and waits for; the arrays of each.
    asks: (number, arrays) of other phases of loads that begin.
    needs: numbers of phases whose loads have come when it ends.
    from_peers: phases of loads from other programs of a cluster.
    arrives: whether it ends as the program arrives at a barrier of the cluster.
    meets: whether it ends as the program waits at one.
    sends: whether it ends with a number for all programs of the launch.
    receives: whether it ends as such a number has come, of another program.
    copies: (array, bytes that all programs copy of it).
    ends_group: whether these copies are the last of a group.
    waits: groups, the newest ones, that may be under way after it; None where
      it does not wait.
  """

  work: int
  phases: tuple[frozenset[str], ...] = ()
  asks: tuple[tuple[int, frozenset[str]], ...] = ()
  needs: tuple[int, ...] = ()
  from_peers: int = 0
  arrives: bool = False
  meets: bool = False
  sends: bool = False
  receives: bool = False
  copies: tuple[tuple[str, float], ...] = ()
  ends_group: bool = False
  waits: int | None = None


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
    steps: how its copies and its waits for them follow one another; none where
      that is not known.
    far: the arrays of its steps that come from the device's memory.
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
  steps: tuple[Step, ...] = ()
  far: frozenset[str] = frozenset()

  def without_work(self) -> "Load":
    """Returns the same load with statements that take no time."""
    steps = tuple(dataclasses.replace(each, work=0) for each in self.steps)
    return dataclasses.replace(self, work=0, work_beside=0, steps=steps)

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

  @property
  def waves(self) -> int:
    """How often all multiprocessors are filled with programs."""
    return math.ceil(self.programs / self.resident)

  def waits(self, near: int, work: int) -> float:
    """Returns the seconds of phases and statements of a program."""
    warps = self.shared_by * math.ceil(self.threads / 32) / SCHEDULERS
    return near * NEAR + work * max(ISSUE, warps) / CLOCK

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
  if load.steps:
    return _with_steps(load, launch)
  waits = load.waves * load.waits(load.near, load.work)
  waits += load.meetings * MEETING
  needed = load.far_bytes - load.fetched_bytes
  stream = needed / BANDWIDTH
  capped = load.waves * load.waits(load.near_beside, load.work_beside)
  if needed:
    waits += FAR
    if load.in_flight:
      capped = max(capped, FAR * (needed / load.in_flight - 1))
  near = (load.num_bytes - load.far_bytes) / NEAR_BANDWIDTH
  found = Cost(launch, waits, stream + near, max(0.0, capped - stream))
  return _with_fetched(load, found)


def _with_fetched(load: Load, found: Cost) -> Cost:
  """Returns a cost with what is fetched for later.

  It comes beside all else, from the launch on.
  """
  longer = max(0.0, load.far_bytes / BANDWIDTH - found.total)
  return dataclasses.replace(found, reads=found.reads + longer)


def _with_steps(load: Load, launch: float) -> Cost:
  """Returns what a kernel takes whose steps are known."""
  alone = _last(load, copies=False)
  beside = max(0.0, _last(load) - alone)
  far = load.far_bytes - load.fetched_bytes
  near = load.num_bytes - load.far_bytes
  for step in load.steps:
    for array, size in step.copies:
      if array in load.far:
        far -= size
      else:
        near -= size
  # What is not copied, by bandwidth alone.
  rest = max(0.0, far) / BANDWIDTH + max(0.0, near) / NEAR_BANDWIDTH
  return _with_fetched(load, Cost(launch, load.waves * alone, beside + rest))


def _last(load: Load, copies: bool = True) -> float:
  """Returns when a program has made its steps.

  Args:
    load: the kernel's.
    copies: whether it waits for its copies.
  """
  most = min(load.programs, MULTIPROCESSORS) * WAY
  now = free = 0.0  # of the program; of the way to its multiprocessor
  newest = 0.0  # when the copies of the open group have come
  met = 0.0  # when all others have arrived at the last barrier
  sent = 0.0  # when others have what was written last
  groups: list[float] = []
  come: dict[int, float] = {}  # when loads of a phase have come
  for step in load.steps:
    # The first copies are on their way as a step begins, the last ones are
    # started as it ends.
    start, free = now, max(free, now)
    now += load.waits(0, step.work) + step.from_peers * PEER
    for array, size in step.copies if copies else ():
      is_far = array in load.far
      free += size / min(most, BANDWIDTH if is_far else NEAR_BANDWIDTH)
      newest = max(newest, max(free, now) + (FAR if is_far else NEAR))
    # Loads come behind the copies that were started before them.
    for arrays in step.phases:
      now = max(now, free) + (FAR if arrays & load.far else NEAR)
    for number, arrays in step.asks:
      begin = max(free, now if step.copies else start)
      come[number] = begin + (FAR if arrays & load.far else NEAR)
    if step.arrives:
      met = now + MEETING
    if step.meets:
      now = max(now, met)
    if step.sends:
      sent = now + EXCHANGE
    if step.receives:
      now = max(now + NEAR, sent)
    if step.ends_group:
      groups.append(newest)
    if copies and step.waits is not None:
      now = max(now, *groups[: max(0, len(groups) - step.waits)], 0.0)
    now = max(now, *(come[number] for number in step.needs), 0.0)
  return now
