"""What a program of a kernel has in flight and waits for, by its PTX.

What follows is read in the PTX, and not in the code that asked for it:

- Bytes that one program asks for before it must wait. Of a pipelined loop
  these are its `cp.async` before the loop; of any other code the loads of one
  phase. A loop that copies and does not wait asks for all that it copies.
- Phases: loads that cannot start before an earlier load has come back, as
  their address needs it, or as a barrier stands behind its use. A loop has its
  phases once a turn.
- Statements, in loops once a turn: what a warp has to issue.
- Copies to shared memory that run beside what follows them, until the code
  waits for them (`cp.async.wait_group`): steps, in the order of the code. Only
  where no loop both copies and waits; a pipelined loop is as above.
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
# Turns of a loop with copies or waits that are steps of their own.
_MOST_TURNS = 64
# Phases of a run that are numbered.
_MOST_PHASES = 1000


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
class Step:
  """Statements up to a wait, or to the end of a group of copies.

  Attributes:
    statements: how many.
    phases: the parameters of each phase that a loop asks for and waits for.
    asks: (number, parameters) of other phases whose loads begin.
    needs: numbers of phases whose loads have come when it ends.
    from_peers: phases of loads from the memory of other programs of a cluster.
    arrives: whether it ends as the program arrives at a barrier of the cluster.
    meets: whether it ends as the program waits at one.
    sends: whether it ends with a number for all programs of the launch.
    receives: whether it ends as such a number has come, of another program.
    copied: (parameter, bytes of a program) of copies that are started.
    ends_group: whether these copies are the last of a group.
    waits: the step ends when no more groups than this, the newest ones, are
      under way; None where it does not wait.
  """

  statements: int
  phases: tuple[frozenset[int], ...] = ()
  asks: tuple[tuple[int, frozenset[int]], ...] = ()
  needs: tuple[int, ...] = ()
  from_peers: int = 0
  arrives: bool = False
  meets: bool = False
  sends: bool = False
  receives: bool = False
  copied: tuple[tuple[int, int], ...] = ()
  ends_group: bool = False
  waits: int | None = None


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
    steps: the way through the code by its copies and waits for them; none where
      it copies nothing, or where a loop copies and waits.
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
  steps: tuple[Step, ...] = ()


def kernels(text: str) -> dict[str, Kernel]:
  """Returns the kernels of a module of PTX, by name."""
  found = {}
  for match in re.finditer(r"\.entry\s+([\w$]+)\s*\(", text):
    code = Code(body(text, match.end()))
    found[match[1]] = _Reader(match[1], code).kernel()
  return found


@dataclasses.dataclass
class _Placed:
  """A phase of a run of statements.

  Attributes:
    first: the statement that its first load is.
    last: the one that first needs what comes; None where the run has none.
    sizes: the bytes of each parameter.
  """

  first: int
  last: int | None = None
  sizes: Counter = dataclasses.field(default_factory=Counter)


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
    return [phase.sizes for phase in self._placed_phases(statements)]

  def _placed_phases(self, statements: list[Statement]) -> list[_Placed]:
    """Returns each phase of a run, and where it begins and is waited for."""
    phases: list[_Placed] = []
    depth: dict[int, int] = {}  # of the loads of this block
    owner: dict[str, int] = {}  # which load a register is made from
    floor = 0  # phases that a barrier has waited for
    used = 0
    for place, each in enumerate(statements):
      for register in each.used:
        loaded = owner.get(register, 0)
        used = max(used, loaded)
        if loaded and phases[loaded - 1].last is None:
          phases[loaded - 1].last = place
      if each.is_load:
        params, behind = self.code.address(each)
        at = max([floor, *(depth.get(x, 0) for x in behind)])
        depth[id(each)] = at + 1
        while len(phases) <= at:
          phases.append(_Placed(place))
        for param in params:
          phases[at].sizes[param] += each.num_bytes
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
      steps=self._steps(runs),
    )

  def _steps(
    self, runs: list[tuple[list[Statement], int, bool]]
  ) -> tuple[Step, ...]:
    """Returns the steps of a way; none where a loop copies and waits."""
    steps: list[Step] = []
    any_copies = False
    for number, (statements, turns, is_loop) in enumerate(runs):
      copied = self._copies(statements)
      waits = any("cp.async.wait_" in each.op for each in statements)
      if is_loop and copied and waits:
        return ()
      any_copies = any_copies or bool(copied)
      if turns > 1 and any(map(_ends_step, statements)):
        steps += min(turns, _MOST_TURNS) * self._cut(number, statements, 1)
      else:
        steps += self._cut(number, statements, turns)
    return tuple(steps) if any_copies else ()

  def _cut(
    self, number: int, statements: list[Statement], turns: int
  ) -> list[Step]:
    """Returns the steps of a run that is made some times.

    Args:
      number: of the run.
      statements: the run.
      turns: how often.
    """
    phases = self._placed_phases(statements)
    from_peers = _from_peers(statements)
    places = (at for at, each in enumerate(statements) if each.receives)
    received = next(places, None)
    end = len(statements)
    # A phase of a loop is asked for and waited for once a turn.
    single = dict(enumerate(phases)) if turns == 1 else {}
    needed: dict[int, list[int]] = {}
    for at, phase in single.items():
      place = end if phase.last is None else phase.last
      needed.setdefault(place, []).append(_MOST_PHASES * number + at)
    steps, first = [], 0
    for last, each in enumerate(statements):
      # What stands before the first copy of a step is a step of its own, but
      # not in a loop, whose turns follow one another.
      begins = (
        turns == 1
        and any(x.is_copy for x in statements[last + 1 : last + 2])
        and not any(x.is_copy for x in statements[first : last + 1])
      )
      ends = begins or last + 1 == end or last + 1 in needed
      if not (ends or _ends_step(each)):
        continue
      part = range(first, last + 1)
      copied = self._copies(statements[first : last + 1])
      steps.append(
        Step(
          statements=turns * len(part),
          phases=()
          if single
          else tuple(
            turns * [frozenset(x.sizes) for x in phases if x.first in part]
          ),
          asks=tuple(
            (_MOST_PHASES * number + at, frozenset(x.sizes))
            for at, x in single.items()
            if x.first in part
          ),
          needs=tuple(needed.get(last + 1, ())),
          from_peers=turns * sum(at in part for at in from_peers),
          arrives=each.op.startswith("barrier.cluster.arrive"),
          meets=each.op.startswith("barrier.cluster.wait"),
          sends=each.sends,
          # (Others of the same run are asked for together with the first.)
          receives=each.receives and last == received,
          copied=tuple(
            (param, turns * size * self.code.threads)
            for param, size in copied.items()
          ),
          ends_group="cp.async.commit" in each.op,
          waits=_groups_left(each),
        )
      )
      first = last + 1
    return steps

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


def _groups_left(each: Statement) -> int | None:
  """Returns how many groups of copies a wait leaves; None for others."""
  if each.op.startswith("cp.async.wait_all"):
    return 0
  if not each.op.startswith("cp.async.wait_group"):
    return None
  return int(each.text.strip() or 0)


def _ends_step(each: Statement) -> bool:
  """Whether a step ends with a statement."""
  return (
    "cp.async.commit" in each.op
    or each.op.startswith("barrier.cluster")
    or each.sends
    or each.receives
    or _groups_left(each) is not None
  )


def _from_peers(statements: list[Statement]) -> list[int]:
  """Returns where loads from peers begin that no barrier is between."""
  found, is_open = [], False
  for place, each in enumerate(statements):
    if each.op.startswith("ld.shared::cluster"):
      found += [] if is_open else [place]
      is_open = True
    elif each.op.startswith(("bar", "barrier")):
      is_open = False
  return found
