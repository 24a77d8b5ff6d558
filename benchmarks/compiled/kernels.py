"""The kernels of a round on a GPU: what each reads, and what it takes at least.

Joins what XLA writes of a program: the instructions (bytes, steps), the thunks
(grids, graphs) and the PTX (what is in flight). See `costs` for the sum.
"""

from collections.abc import Iterator, Sequence, Set
import dataclasses
import re

from benchmarks.compiled import costs, in_flight, rounds, thunks
from benchmarks.compiled.costs import Cost, Load
from benchmarks.compiled.thunks import Thunk
from speccascade.tools.planning.hlo import Instruction

# Kernels that the device chooses by timing them, so that what was compiled here
# does not say what is in flight there.
_TUNED = re.compile(
  r'"kind":"__(triton_nested_gemm_fusion|triton_gemm|cublas|cudnn)'
  r'|custom_call_target="__(cublas|cudnn)'
)
_PTX_CALL = "__gpu$xla.gpu.ptx"


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A launch of a round.

  Attributes:
    name: the instruction's, or the kernel's.
    step: of the round.
    kind: what it does, in a word.
    load: what it reads and has in flight.
    stages: parts of a loop that are asked for before it; 0 without such a loop.
    is_tuned: whether the device chooses how it is computed.
    waits: whether it may start before the kernel before it has ended, and
      waits for it inside (programmatic launches).
    triggers: whether it lets the next kernel start early.
    asked_before: bytes that a program asks for before it waits.
    open_loops: its loops whose turns depend on data; one turn counts.
    cost: what it takes.
    far: {array of the device's memory: bytes} that it reads.
    fetched: those that it only fetches, for a later kernel.
  """

  name: str
  step: str
  kind: str
  load: Load
  stages: int
  is_tuned: bool
  waits: bool
  triggers: bool
  asked_before: int
  open_loops: int
  cost: Cost
  far: tuple[tuple[str, int], ...] = ()
  fetched: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Round:
  """What a round takes by arithmetic.

  Attributes:
    kernels: its launches, with how often each is.
    graphs: the CUDA graphs.
    turn: what each further turn of loops inside the round takes, whose turns
      depend on data.
    is_counted: whether the number of rounds is known before they run, so that
      the host does not ask for each.
  """

  kernels: list[tuple[Kernel, int]]
  graphs: thunks.Graphs
  turn: float
  is_counted: bool = False

  @property
  def cost(self) -> Cost:
    """All kernels, one after the other."""
    return sum((each.cost * num for each, num in self.kernels), Cost())

  @property
  def host(self) -> float:
    """Seconds in which the device waits for the host."""
    asks = not (self.graphs.is_captured or self.is_counted)
    return (self.graphs.waits + asks) * costs.HOST

  @property
  def least(self) -> float:
    """Seconds where statements took no time: what was not estimated."""
    total = self.host
    for each, num in self.kernels:
      saved = each.cost.total - costs.cost(each.load, each.cost.launch).total
      load = each.load.without_work()
      found = costs.cost(load, each.cost.launch).total + saved
      total += num * found
    return total

  @property
  def seconds(self) -> float:
    """All of it: the prediction."""
    return self.cost.total + self.host

  def numbers(self) -> dict[str, float]:
    """Returns the prediction and its parts, in microseconds, and counts."""
    cost = self.cost
    each = [(kernel, num) for kernel, num in self.kernels]
    count = lambda good: sum(num for kernel, num in each if good(kernel))
    return {
      "kernels": count(lambda _: True),
      "us": 1e6 * self.seconds,
      "least_us": 1e6 * self.least,
      "launch_us": 1e6 * cost.launch,
      "waits_us": 1e6 * cost.waits,
      "reads_us": 1e6 * cost.reads,
      "capped_us": 1e6 * cost.capped,
      "host_us": 1e6 * self.host,
      "turn_us": 1e6 * self.turn,
      "bytes": sum(kernel.load.num_bytes * num for kernel, num in each),
      "graphs": self.graphs.graphs,
      "host_loops": self.graphs.waits,
      "outside_graphs": sum(self.graphs.outside.values()),
      "tuned": count(lambda x: x.is_tuned),
      "waiting": count(lambda x: x.waits),
      "triggering": count(lambda x: x.triggers),
    }


class Reader:
  """Reads the kernels of a program's round.

  Args:
    program: the compiled program.
    dump: what XLA wrote of it.
  """

  def __init__(self, program: rounds.Program, dump: thunks.Dump):
    self._program = program
    self._dump = dump
    self._where = {
      each.name: (name, each)
      for name, computation in program.computations.items()
      for each in computation.values()
    }
    self._ptx = {}
    for text in dump.ptx:
      self._ptx |= in_flight.kernels(text)

  def round(self, is_counted: bool = False) -> Round:
    """Returns the kernels of a round.

    Args:
      is_counted: leave out what asks whether there is another round.

    Raises:
      ValueError: the program has no loop that is a round.
    """
    loop = self._program.loop
    found = loop and thunks.round_of(
      self._dump.sequence, self._dump.named, loop.name
    )
    if found is None:
      raise ValueError("the program has no loop whose turns depend on data")
    known = frozenset(
      number
      for number, name in self._dump.named.items()
      if self._trips(name) is not None
    )
    graphs = thunks.graphs(self._dump.sequence, found, known)
    asks = [] if is_counted else found.parts.get("condition", [])
    kernels = list(self._kernels([*asks, *found.body], graphs.is_captured))
    if sum(x.load.far_bytes * num for x, num in kernels) < costs.CACHE:
      # All of it stays in the second cache from round to round.
      kernels = [(_near(each), num) for each, num in kernels]
    counts: dict[Kernel, int] = {}
    before: Kernel | None = None
    second = _SecondCache()
    for each, times in kernels:
      each = second.passed(each)
      if before is not None and before.triggers and each.waits:
        each = _early(each)
      counts[each] = counts.get(each, 0) + times
      before = each
    turn = self._turn(found, graphs.is_captured)
    return Round(list(counts.items()), graphs, turn, is_counted)

  def _trips(self, name: str) -> int | None:
    """Returns the known turns of a loop; None where they depend on data."""
    each = self._where.get(name, ("", None))[1]
    if each is None or "known_trip_count" not in each.line:
      return None
    return each.trips

  def _turn(self, loop: Thunk, is_captured: bool) -> float:
    """Returns the seconds of a turn of each loop that depends on data."""
    total = 0.0
    for each in loop.inside():
      name = self._dump.named.get(each.number, "")
      if each.kind == thunks.LOOP and self._trips(name) is None:
        inside = [*each.parts.get("condition", []), *each.body]
        kernels = self._kernels(inside, is_captured)
        total += 0.0 if is_captured else costs.HOST
        total += sum(kernel.cost.total * num for kernel, num in kernels)
    return total

  def _kernels(
    self, part: list[Thunk], is_captured: bool, times: int = 1
  ) -> Iterator[tuple[Kernel, int]]:
    """Yields the launches of some thunks, with how often each is."""
    for each in part:
      captured = is_captured or each.kind == thunks.GRAPH
      if each.kind == thunks.LOOP:
        turns = self._trips(self._dump.named.get(each.number, "")) or 1
        for inner in each.parts.values():
          yield from self._kernels(inner, captured, times * turns)
      elif each.kind == thunks.BRANCHES:
        parts = each.parts.values()
        ways = [list(self._kernels(x, captured, times)) for x in parts]
        price = lambda way: sum(x.cost.total * num for x, num in way)
        yield from max(ways, key=price, default=[])
      elif each.parts:
        for inner in each.parts.values():
          yield from self._kernels(inner, captured, times)
      elif each.is_launch:
        yield self._kernel(each, captured), times

  def _kernel(self, thunk: Thunk, is_captured: bool) -> Kernel:
    """Returns what a launch reads and takes."""
    name = self._dump.named.get(thunk.number, thunk.kernel or thunk.kind)
    where, each = self._where.get(name, ("", None))
    code = self._ptx.get(thunk.kernel)
    is_call = code is None and each is not None and _PTX_CALL in each.line
    if is_call:
      code = _given_ptx(each)
    sizes = self._program.reads(where, each) if each else {}
    if each is not None and each.opcode == "custom-call" and code:
      # It may look up some rows of an array.
      for number, operand in enumerate(each.operands):
        most = code.most.get(number)
        if most is not None and operand not in each.operands[:number]:
          all_read = most * max(thunk.programs, 1)
          sizes[operand] = min(sizes.get(operand, 0), all_read)
    num_bytes = sum(sizes.values())
    num_bytes += self._program.written(each) if each else 0
    tuned = each is not None and bool(_TUNED.search(each.line))
    operands = each.operands if each else ()
    far: dict[int, tuple[str, int]] = {}
    for number, operand in enumerate(operands):
      given = self._given(where, operand)
      is_large = sizes.get(operand, 0) >= costs.LARGE
      if given and is_large and operand not in operands[:number]:
        far[number] = given, sizes[operand]
    fetched = code.fetched - code.whole - set(code.asked) if code else set()
    fetched &= set(far)
    names = {
      number: far[number][0] if number in far else operand
      for number, operand in enumerate(operands)
    }
    near = [0, 0]  # phases apart from large arrays, and beside them
    work = [0, 0]
    asked: int | None = None
    if code is not None and not tuned:
      asked = sum(code.asked.get(number, 0) for number in far)
      if whole := code.whole & set(far):
        # All that a program needs, as far as its shared memory goes.
        size = sum(far[number][1] for number in whole)
        size = -(-size // max(thunk.programs, 1))
        asked += min(size, max(thunk.shared, costs.LARGE))
      for phase in code.phases:
        if not phase.params & set(far):
          near[bool(phase.beside & set(far))] += phase.turns
      for some in code.work:
        work[bool(some.beside & set(far))] += some.statements
    elif not far:
      near[0] = 1
    load = Load(
      programs=max(thunk.programs, 1),
      threads=max(thunk.threads, 1),
      shared=thunk.shared,
      num_bytes=num_bytes,
      far_bytes=sum(size for _, size in far.values()),
      fetched_bytes=sum(far[number][1] for number in fetched),
      asked=asked or None,
      near=near[0],
      work=work[0],
      near_beside=near[1],
      work_beside=work[1],
      meetings=code.meetings if code else 0,
      steps=_steps(code, operands, sizes, names) if code and not tuned else (),
      far=frozenset(name for name, _ in far.values()),
    )
    return Kernel(
      name=_plain(thunk.kernel or name),
      step=rounds.step_of(each) if each else "rest",
      kind=rounds.kind_of(each) if each else "other",
      load=load,
      stages=code.stages if code else 0,
      is_tuned=tuned,
      # XLA launches no call of PTX programmatically, whatever its code says.
      waits=bool(code and code.waits) and not is_call,
      triggers=bool(code and code.triggers),
      asked_before=code.asked_before if code else 0,
      open_loops=code.open_loops if code else 0,
      cost=costs.cost(
        load, costs.LAUNCH if is_captured else costs.LAUNCH_ALONE
      ),
      far=tuple(far.values()),
      fetched=frozenset(far[number][0] for number in fetched),
    )

  def _given(self, where: str, operand: str) -> str:
    """Returns the array of what the round was given that an operand is.

    An array that a kernel of the round made gives "".
    """
    computation = self._program.computations[where]
    each = computation.get(operand)
    name = f"{where} {operand}"
    while each is not None and each.operands:
      if each.opcode not in ("bitcast", "get-tuple-element", "copy"):
        return ""
      if each.opcode == "get-tuple-element":
        name = f"{where} {each.name}"
      each = computation.get(each.operands[0])
    return name if each is not None else ""


def _steps(
  code: in_flight.Kernel,
  operands: Sequence[str],
  sizes: dict[str, int],
  names: dict[int, str],
) -> tuple[costs.Step, ...]:
  """Returns the steps of a kernel.

  Args:
    code: what its PTX says.
    operands: the arrays that it is given.
    sizes: bytes that all programs read of each.
    names: the array of each operand, by number.
  """

  def arrays(phase: Set[int]) -> frozenset[str]:
    return frozenset(names[number] for number in phase if number in names)

  total: dict[int, int] = {}
  for step in code.steps:
    for number, size in step.copied:
      total[number] = total.get(number, 0) + size
  # A loop whose turns depend on data counts one, so that shares are counted.
  return tuple(
    costs.Step(
      work=step.statements,
      phases=tuple(map(arrays, step.phases)),
      asks=tuple((number, arrays(phase)) for number, phase in step.asks),
      needs=step.needs,
      from_peers=step.from_peers,
      arrives=step.arrives,
      meets=step.meets,
      sends=step.sends,
      receives=step.receives,
      copies=tuple(
        (names[number], sizes.get(operands[number], 0) * size / total[number])
        for number, size in step.copied
        if number in names
      ),
      ends_group=step.ends_group,
      waits=step.waits,
    )
    for step in code.steps
  )


class _SecondCache:
  """What kernels have fetched for later ones, as far as the cache holds it.

  Of all that passes through it, the oldest bytes leave first.
  """

  def __init__(self):
    self._passed: dict[str, float] = {}  # {array: when its last byte passed}
    self._bytes = 0.0

  def passed(self, each: Kernel) -> Kernel:
    """Returns a kernel that has near what was fetched for it."""
    sizes = dict(each.far)
    found = {
      name
      for name, size in sizes.items()
      if name in self._passed
      and self._bytes - self._passed[name] + size <= costs.CACHE
    }
    self._bytes += each.load.num_bytes
    for name in sizes:
      self._passed.pop(name, None)
    self._passed |= dict.fromkeys(each.fetched, self._bytes)
    return _near(each, found) if found else each


def _near(each: Kernel, arrays: Set[str] | None = None) -> Kernel:
  """Returns a kernel that has large arrays, or all, in the second cache."""
  load = each.load
  moved = {
    name: size for name, size in each.far if arrays is None or name in arrays
  }
  far_bytes = load.far_bytes - sum(moved.values())
  fetched = sum(moved.get(name, 0) for name in each.fetched)
  fetched_bytes = load.fetched_bytes - fetched
  load = dataclasses.replace(
    load,
    far_bytes=far_bytes,
    fetched_bytes=fetched_bytes,
    near=load.near + (far_bytes == fetched_bytes and bool(moved)),
    far=load.far - {*moved},
  )
  found = costs.cost(load, each.cost.launch)
  return dataclasses.replace(each, load=load, cost=found)


def _early(each: Kernel) -> Kernel:
  """Returns a kernel behind one that lets it start early."""
  cost = dataclasses.replace(each.cost, launch=costs.LAUNCH_EARLY)
  if each.asked_before and each.load.far_bytes:
    # Its first bytes come while the kernel before it ends.
    cost = dataclasses.replace(cost, waits=cost.waits - costs.FAR)
  return dataclasses.replace(each, cost=cost)


def _plain(name: str) -> str:
  """Returns a kernel's name without the number that makes it unique."""
  return re.sub(r"(_{1,2}\d+|\.\d+)+$", "", name)


def _given_ptx(each: Instruction) -> in_flight.Kernel | None:
  """Returns the kernel of a custom call that holds its PTX."""
  if _PTX_CALL not in each.line:
    return None
  found = re.search(r'kernel_data = "((?:[^"\\]|\\.)*)"', each.line)
  if not found:
    return None
  text = re.sub(
    r"\\([0-9A-F]{2}|.)",
    lambda x: chr(int(x[1], 16)) if len(x[1]) == 2 else x[1],
    found[1],
  )
  return next(iter(in_flight.kernels(text).values()), None)


def steps(found: Round) -> dict[str, float]:
  """Returns the microseconds of each step of a round."""
  total: dict[str, float] = {}
  for each, num in found.kernels:
    total[each.step] = total.get(each.step, 0.0) + 1e6 * each.cost.total * num
  return total
