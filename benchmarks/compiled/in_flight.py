"""What a program of a kernel has in flight and waits for, by its PTX.

What follows is read in the PTX, and not in the code that asked for it:

- Bytes that one program asks for before it must wait. Of a pipelined loop
  these are its `cp.async` before the loop; of any other code the loads of one
  phase. A loop that copies and does not wait asks for all that it copies.
- Phases: loads that cannot start before an earlier load has come back, as
  their address needs it, or as a barrier stands behind its use. A loop has its
  phases once a turn.
- Statements, in loops once a turn: what a warp has to issue.
- Where a kernel waits for the kernel before it (`griddepcontrol.wait`), what it
  asks for before that, and whether it lets the next start early; what it
  fetches into the second cache; how often the blocks of a cluster meet.

The way through the code is the one that takes longest by phases and statements.
Of a loop whose number of turns depends on data one turn counts. Registers are
not counted, so that fewer programs than said may fit a multiprocessor.
"""

from collections import Counter
import dataclasses
import re

from benchmarks.compiled.ptx import Code, Statement, body

# Statements that a phase is compared with, where there are two ways.
_OF_PHASE = 130


@dataclasses.dataclass(frozen=True)
class Phase:
  """Loads that a program waits for together.

  Attributes:
    params: the parameters that are read, by number.
    turns: how often, where the phase is in a loop.
    beside: parameters that the same loop copies without waiting.
  """

  params: frozenset[int]
  turns: int
  beside: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Work:
  """Statements that a warp issues.

  Attributes:
    statements: how many, those of a loop once a turn.
    beside: parameters that the same loop copies without waiting.
  """

  statements: int
  beside: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Kernel:
  """What a kernel's PTX says.

  Attributes:
    name: its name.
    threads: of a program.
    asked: {parameter: bytes that a program asks for before it must wait}, of
      parameters by number.
    most: {parameter: bytes that a program reads of it at most}; what is read in
      a loop whose turns depend on data is left out.
    whole: parameters of which a program copies all that it needs, before it
      waits.
    fetched: parameters that it fetches into the second cache, for a later
      kernel.
    phases: of loads that wait for one another.
    work: what a warp issues.
    stages: parts of a pipelined loop that are asked for before the loop.
    meetings: how often the programs of a cluster wait for one another.
    waits: whether it waits for the kernel before it.
    triggers: whether it lets the next kernel start early.
    asked_before: bytes that a program asks for before it waits.
    open_loops: loops whose number of turns depends on data.
  """

  name: str
  threads: int
  asked: dict[int, int]
  most: dict[int, int]
  whole: frozenset[int]
  fetched: frozenset[int]
  phases: tuple[Phase, ...]
  work: tuple[Work, ...]
  stages: int
  meetings: int
  waits: bool
  triggers: bool
  asked_before: int
  open_loops: int


def kernels(text: str) -> dict[str, Kernel]:
  """Returns the kernels of a module of PTX, by name."""
  found = {}
  for match in re.finditer(r"\.entry\s+([\w$]+)\s*\(", text):
    code = Code(body(text, match.end()))
    found[match[1]] = _Reader(match[1], code).kernel()
  return found


class _Reader:
  """Reads one kernel.

  Args:
    name: its name.
    code: its code.
  """

  def __init__(self, name: str, code: Code):
    self.name, self.code = name, code

  def _phases(self, statements: list[Statement]) -> list[Counter]:
    """Returns, for each phase of a run, the bytes of each parameter."""
    phases: list[Counter] = []
    depth: dict[int, int] = {}  # of the loads of this block
    owner: dict[str, int] = {}  # which load a register is made from
    floor = 0  # phases that a barrier has waited for
    used = 0
    for each in statements:
      for register in each.used:
        used = max(used, owner.get(register, 0))
      if each.is_load:
        params, behind = self.code.address(each)
        at = max([floor, *(depth.get(x, 0) for x in behind)])
        depth[id(each)] = at + 1
        while len(phases) <= at:
          phases.append(Counter())
        for param in params:
          phases[at][param] += each.num_bytes
        for register in each.defined:
          owner[register] = at + 1
      elif each.op.startswith(("bar", "barrier")):
        floor = max(floor, used)
      else:
        behind = max([0, *(owner.get(x, 0) for x in each.used)])
        for register in each.defined:
          owner[register] = behind
    return phases

  def _way(self) -> list[int]:
    """Returns the blocks of the way through the code that takes longest."""
    blocks = self.code.blocks
    best: dict[int, tuple[int, tuple[int, ...]]] = {}
    for number in reversed(range(len(blocks))):
      block = blocks[number]
      ways = [best[following] for following in block.follows]
      rest = max(ways, default=(0, ()))
      num = len(self._phases(block.statements))
      cost = (len(block.statements) + _OF_PHASE * num) * block.turns
      best[number] = rest[0] + cost, (number, *rest[1])
    return list(best[0][1])

  def _loop(self, number: int) -> tuple[int, int] | None:
    """Returns the innermost loop that a block is in."""
    around = [x for x in self.code.loops if x[0] <= number <= x[1]]
    return min(around, key=lambda x: x[1] - x[0], default=None)

  def _runs(self, way: list[int]) -> list[tuple[list[Statement], int, bool]]:
    """Returns statements that run one after the other, their turns, and
    whether they are in a loop.
    """
    runs: list[tuple[list[Statement], int, bool]] = []
    last: tuple[int, int] | None = (-1, -1)  # none yet
    for number in way:
      block, loop = self.code.blocks[number], self._loop(number)
      if loop != last:
        runs.append(([], block.turns, loop is not None))
      runs[-1][0].extend(block.statements)
      last = loop
    return runs

  def kernel(self) -> Kernel:
    """Returns what the kernel's text says."""
    runs = self._runs(self._way())
    found: list[Phase] = []
    work: list[Work] = []
    asked: Counter = Counter()
    for statements, turns, is_loop in runs:
      beside = frozenset(self._copies(statements) if is_loop else ())
      work.append(Work(turns * len(statements), beside))
      for phase in self._phases(statements):
        found.append(Phase(frozenset(phase), turns, beside))
        for param, size in phase.items():
          asked[param] = max(asked[param], size)
    ahead, stages, whole = self._copied(runs)
    asked |= ahead
    flat = [each for statements, _, _ in runs for each in statements]
    ops = [each.op for each in flat]
    before, waits = 0, False
    for each in flat:
      if each.op.startswith("griddepcontrol.wait"):
        waits = True
        break
      if each.is_load or each.is_copy:
        before += each.num_bytes
    threads = self.code.threads
    fetched: set[int] = set()
    for each in flat:
      if ".prefetch" in each.op or each.op.startswith("prefetch"):
        fetched |= self.code.address(each)[0]
    return Kernel(
      name=self.name,
      threads=threads,
      asked={param: size * threads for param, size in asked.items()},
      most=self._most(threads),
      whole=whole,
      fetched=frozenset(fetched),
      phases=tuple(found),
      work=tuple(work),
      stages=stages,
      meetings=sum(op.startswith("barrier.cluster.wait") for op in ops),
      waits=waits,
      triggers=any(op.startswith("griddepcontrol.launch") for op in ops),
      asked_before=before * threads if waits else 0,
      open_loops=len(self.code.unknown),
    )

  def _most(self, threads: int) -> dict[int, int]:
    """Returns the bytes that a program reads of each parameter at most."""
    total: Counter = Counter()
    unknown: set[int] = set()
    for number, block in enumerate(self.code.blocks):
      is_open = any(x[0] <= number <= x[1] for x in self.code.unknown)
      for each in block.statements:
        if each.is_load or each.is_copy:
          for param in self.code.address(each)[0]:
            total[param] += each.num_bytes * block.turns * threads
            if is_open or not each.num_bytes:
              unknown.add(param)
    return {x: size for x, size in total.items() if x not in unknown}

  def _copies(self, statements: list[Statement]) -> Counter:
    """Returns the bytes that a thread copies, by parameter."""
    copied: Counter = Counter()
    for each in statements:
      if each.is_copy:
        for param in self.code.address(each)[0]:
          copied[param] += each.num_bytes
    return copied

  def _copied(
    self, runs: list[tuple[list[Statement], int, bool]]
  ) -> tuple[Counter, int, frozenset[int]]:
    """Returns bytes that a thread copies before a loop waits, in how many parts
    of one turn, and the parameters of which all is copied without a wait.
    """
    ahead: Counter = Counter()
    largest: Counter = Counter()
    stages, whole = 0, set()
    for statements, _, is_loop in runs:
      copied = self._copies(statements)
      if not is_loop:
        ahead += copied
      elif not any("wait_" in each.op for each in statements):
        whole |= set(copied)
      else:
        for param, size in copied.items():
          before = ahead.pop(param, 0)
          largest[param] = max(largest[param], before)
          stages = max(stages, before // size if size else 0)
    return largest | ahead, stages, frozenset(whole)
