"""Reads a kernel's PTX: what a program of it has in flight, and waits for.

XLA dumps the PTX of every kernel, its own and those of Pallas' Triton backend,
and a custom call of PTX holds its text. What follows is read there, and not in
the code that asked for it:

- Bytes that one program asks for before it must wait. Of a pipelined loop
  these are its `cp.async` before the loop; of any other code the loads of one
  phase.
- Phases: loads that cannot start before an earlier load has come back, as
  their address needs it, or as a barrier stands behind its use. A loop has its
  phases once a turn.
- Where a kernel waits for the kernel before it (`griddepcontrol.wait`), what it
  asks for before that, and whether it lets the next start early.

- Statements, in loops once a turn: what a warp has to issue.

The way through the code is the one that takes longest by phases and statements.
Of a loop whose number of turns depends on data one turn counts. Registers are
not counted, so that fewer programs than said may fit a multiprocessor.
"""

from collections import Counter
import dataclasses
import math
import re

_STATEMENT = re.compile(
  r"^(?:@!?(?P<guard>%p\d+)\s+)?(?P<op>[a-z][\w.:]*)\s*(?P<rest>.*)$", re.S
)
_REGISTER = re.compile(r"%[a-z]+\d+")
# Statements that a phase is compared with, where there are two ways.
_OF_PHASE = 130
_WIDTH = re.compile(r"\.(?:v(\d))?\.?[busf](\d+)$")


@dataclasses.dataclass(frozen=True)
class Statement:
  """One instruction of PTX.

  Attributes:
    op: its name with all modifiers.
    defined: registers that it writes.
    used: registers that it reads.
    text: its operands as they stand.
  """

  op: str
  defined: tuple[str, ...]
  used: tuple[str, ...]
  text: str

  @property
  def is_load(self) -> bool:
    """Whether a thread reads the large memory and keeps what comes."""
    return self.op.startswith("ld.") and ".global" in self.op

  @property
  def is_copy(self) -> bool:
    """Whether it copies to shared memory without waiting."""
    return self.op.startswith("cp.async") and ".shared" in self.op

  @property
  def num_bytes(self) -> int:
    """The bytes that one thread reads; 0 where the text has no number."""
    if self.is_copy:
      found = re.search(r"\],\s*(0x[\da-fA-F]+|\d+)", self.text)
      return int(found[1], 0) if found else 0
    found = _WIDTH.search(self.op)
    return int(found[1] or 1) * int(found[2]) // 8 if found else 0


@dataclasses.dataclass
class Block:
  """Statements that run one after the other, and the blocks that may follow."""

  statements: list[Statement] = dataclasses.field(default_factory=list)
  follows: list[int] = dataclasses.field(default_factory=list)
  turns: int = 1


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
    phases: of loads that wait for one another.
    work: what a warp issues.
    stages: parts of a pipelined loop that are asked for before the loop.
    waits: whether it waits for the kernel before it.
    triggers: whether it lets the next kernel start early.
    asked_before: bytes that a program asks for before it waits.
    open_loops: loops whose number of turns depends on data.
  """

  name: str
  threads: int
  asked: dict[int, int]
  phases: tuple[Phase, ...]
  work: tuple[Work, ...]
  stages: int
  waits: bool
  triggers: bool
  asked_before: int
  open_loops: int


def kernels(text: str) -> dict[str, Kernel]:
  """Returns the kernels of a module of PTX, by name."""
  found = {}
  for match in re.finditer(r"\.entry\s+([\w$]+)\s*\(", text):
    found[match[1]] = _Reader(match[1], _body(text, match.end())).kernel()
  return found


def _body(text: str, start: int) -> str:
  """Returns a kernel's text, from its parameters to its last brace."""
  depth, at = 0, text.index("{", start)
  for place in range(at, len(text)):
    depth += {"{": 1, "}": -1}.get(text[place], 0)
    if not depth:
      return text[start : place + 1]
  return text[start:]


def _statement(text: str) -> Statement | None:
  """Returns what stands between two semicolons."""
  match = _STATEMENT.match(text.strip())
  if not match or text.lstrip().startswith("."):
    return None
  op, rest = match["op"], match["rest"]
  guard = (match["guard"],) if match["guard"] else ()
  writes = not op.startswith(("st.", "bra", "bar", "cp.", "red.", "ret"))
  if not writes:
    return Statement(op, (), (*guard, *_REGISTER.findall(rest)), rest)
  if rest.startswith("{"):
    first, _, others = rest.partition("}")
  else:
    first, _, others = rest.partition(",")
  defined = tuple(_REGISTER.findall(first))
  return Statement(op, defined, (*guard, *_REGISTER.findall(others)), rest)


class _Reader:
  """Reads one kernel."""

  def __init__(self, name: str, text: str):
    self.name = name
    threads = re.search(r"\.(?:reqntid|maxntid)\s+([\d, ]+)", text)
    sizes = threads[1].split(",") if threads else ["1"]
    self.threads = math.prod(int(x) for x in sizes if x.strip())
    self.blocks = [Block()]
    self.labels: dict[str, int] = {}
    self._split(text.partition("{")[2])
    self.definitions: dict[str, list[tuple[int, Statement]]] = {}
    for number, block in enumerate(self.blocks):
      for each in block.statements:
        for register in each.defined:
          self.definitions.setdefault(register, []).append((number, each))
    flat = (each for block in self.blocks for each in block.statements)
    self.order = {id(each): at for at, each in enumerate(flat)}
    self._known: dict[str, tuple[frozenset[int], frozenset[int]]] = {}
    self.loops: list[tuple[int, int]] = []
    self.open_loops = 0
    self._link()

  def _split(self, body: str) -> None:
    """Cuts the text into blocks at labels and branches."""
    body = re.sub(r"//[^\n]*", "", body)
    pieces = re.split(r"(\$?[\w$]+:(?!:))|;", body)
    for piece in pieces:
      if piece is None or not piece.strip():
        continue
      if piece.strip().endswith(":"):
        self.blocks.append(Block())
        self.labels[piece.strip()[:-1]] = len(self.blocks) - 1
        continue
      each = _statement(piece.strip().lstrip("{} \t\n"))
      if each is None:
        continue
      self.blocks[-1].statements.append(each)
      if each.op.startswith(("bra", "ret")):
        self.blocks.append(Block())

  def _link(self) -> None:
    """Finds what follows each block, and the turns of each loop."""
    for number, block in enumerate(self.blocks):
      last = block.statements[-1] if block.statements else None
      falls = last is None or not (
        last.op.startswith("ret")
        or (last.op.startswith("bra") and not last.used)
      )
      if falls and number + 1 < len(self.blocks):
        block.follows.append(number + 1)
      if last is not None and last.op.startswith("bra"):
        label = re.search(r"(\$?[\w$]+)\s*$", last.text)
        target = self.labels.get(label[1]) if label else None
        if target is None:
          continue
        if target <= number:
          self.loops.append((target, number))
        else:
          block.follows.append(target)
    for first, last in self.loops:
      turns = self._turns(first, last)
      if turns is None:
        self.open_loops += 1
        continue
      for block in self.blocks[first : last + 1]:
        block.turns *= turns

  def _turns(self, first: int, last: int) -> int | None:
    """Returns how often a loop turns; None where that depends on data.

    The branch back has a comparison of a counter with a number; the counter
    starts at a number, and a turn adds one to it.
    """
    inside = range(first, last + 1)
    for guard in self.blocks[last].statements[-1].used:
      for place, compared in self.definitions.get(guard, []):
        if not compared.op.startswith("setp") or place not in inside:
          continue
        operands = [x.strip() for x in compared.text.split(",")]
        bound, at = _number(operands[-1]), self.order[id(compared)]
        found = self._counted(operands[1], inside, at)
        if bound is None or found is None:
          continue
        start, step = found
        return max(1, math.ceil((bound - start) / step))
    return None

  def _counted(
    self, register: str, inside: range, at: int
  ) -> tuple[int, int] | None:
    """Returns what a counter is compared as before a first turn, and its step.

    Args:
      register: what is compared.
      inside: the blocks of the loop.
      at: where it is compared.
    """
    offset = 0
    for _ in range(8):
      found = self.definitions.get(register, [])
      within = [each for place, each in found if place in inside]
      outside = [each for place, each in found if place not in inside]
      if not within:
        return None
      each = within[0]
      operands = [x.strip() for x in each.text.split(",")]
      if outside:
        start = _number(outside[0].text.split(",")[-1])
        step = self._step(register, each, inside)
        if start is None or not step:
          return None
        # Compared before the counter moves, it has made a turn less.
        early = 0 if self.order[id(each)] < at else step
        return start + offset - early, step
      if each.op.startswith("add"):
        added = _number(operands[-1])
        if added is None:
          return None
        offset += added
      elif not each.op.startswith(("mov", "cvt")):
        return None
      at = self.order[id(each)]
      register = operands[1]
    return None

  def _step(self, register: str, each: Statement, inside: range) -> int:
    """Returns what a turn adds to a counter; 0 where it is not a number."""
    step = 0
    for _ in range(8):
      operands = [x.strip() for x in each.text.split(",")]
      if each.op.startswith("add"):
        step += _number(operands[-1]) or 0
      elif not each.op.startswith(("mov", "cvt")):
        return 0
      if operands[1] == register:
        return step
      found = self.definitions.get(operands[1], [])
      within = [other for place, other in found if place in inside]
      if not within:
        return 0
      each = within[0]
    return 0

  def _sources(self, register: str) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the parameters and the loads that a register is made from.

    Loads are numbers of `id(statement)`; what is behind a load is left out.
    """
    if register not in self._known:
      self._known[register] = self._found(register)
    return self._known[register]

  def _found(self, register: str) -> tuple[frozenset[int], frozenset[int]]:
    """Returns what `_sources` keeps."""
    params, loads = set(), set()
    seen, waiting = {register}, [register]
    while waiting:
      for _, each in self.definitions.get(waiting.pop(), []):
        if each.op.startswith("ld.param"):
          found = re.search(r"param_(\d+)", each.text)
          if found:
            params.add(int(found[1]))
        elif each.is_load:
          loads.add(id(each))
        else:
          for other in each.used:
            if other not in seen:
              seen.add(other)
              waiting.append(other)
    return frozenset(params), frozenset(loads)

  def _address(self, each: Statement) -> tuple[frozenset[int], frozenset[int]]:
    """Returns parameters and loads that an access's address is made from."""
    places = re.findall(r"\[([^\]]*)\]", each.text)
    registers = _REGISTER.findall(places[-1]) if places else []
    params: frozenset[int] = frozenset()
    loads: frozenset[int] = frozenset()
    for register in registers:
      more = self._sources(register)
      params, loads = params | more[0], loads | more[1]
    return params, loads

  def _phases(self, block: Block) -> list[Counter]:
    """Returns, for each phase of a block, the bytes of each parameter."""
    phases: list[Counter] = []
    depth: dict[int, int] = {}  # of the loads of this block
    owner: dict[str, int] = {}  # which load a register is made from
    floor = 0  # phases that a barrier has waited for
    used = 0
    for each in block.statements:
      for register in each.used:
        used = max(used, owner.get(register, 0))
      if each.is_load:
        params, behind = self._address(each)
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

  def kernel(self) -> Kernel:
    """Returns what the kernel's text says."""
    phases = [self._phases(block) for block in self.blocks]
    best: list[tuple[int, tuple[int, ...]]] = []
    for number in reversed(range(len(self.blocks))):
      block = self.blocks[number]
      ways = [best[len(self.blocks) - 1 - x] for x in block.follows]
      rest = max(ways, default=(0, ()))
      size = len(block.statements) + _OF_PHASE * len(phases[number])
      cost = size * block.turns
      best.append((rest[0] + cost, (number, *rest[1])))
    way = best[-1][1] if best else ()
    found: list[Phase] = []
    work: list[Work] = []
    asked: Counter = Counter()
    for number in way:
      block = self.blocks[number]
      copies = self._copies(block) if block.turns > 1 else ()
      beside = frozenset(copies)
      work.append(Work(block.turns * len(block.statements), beside))
      for phase in phases[number]:
        found.append(Phase(frozenset(phase), block.turns, beside))
        for param, size in phase.items():
          asked[param] = max(asked[param], size)
    ahead, stages = self._copied(way)
    asked |= ahead
    flat = [each for number in way for each in self.blocks[number].statements]
    before, waits = 0, False
    for each in flat:
      if each.op.startswith("griddepcontrol.wait"):
        waits = True
        break
      if each.is_load or each.is_copy:
        before += each.num_bytes
    return Kernel(
      name=self.name,
      threads=self.threads,
      asked={param: size * self.threads for param, size in asked.items()},
      phases=tuple(found),
      work=tuple(work),
      stages=stages,
      waits=waits,
      triggers=any(
        each.op.startswith("griddepcontrol.launch") for each in flat
      ),
      asked_before=before * self.threads if waits else 0,
      open_loops=self.open_loops,
    )

  def _copies(self, block: Block) -> Counter:
    """Returns the bytes that a thread copies in a block, by parameter."""
    copied: Counter = Counter()
    for each in block.statements:
      if each.is_copy:
        for param in self._address(each)[0]:
          copied[param] += each.num_bytes
    return copied

  def _copied(self, way: tuple[int, ...]) -> tuple[Counter, int]:
    """Returns bytes that a thread copies before a loop waits, and in how many
    parts of one turn.
    """
    ahead: Counter = Counter()
    largest: Counter = Counter()
    stages = 0
    for number in way:
      copied = self._copies(self.blocks[number])
      if any(first <= number <= last for first, last in self.loops):
        for param, size in copied.items():
          before = ahead.pop(param, 0)
          largest[param] = max(largest[param], before)
          stages = max(stages, before // size if size else 0)
      else:
        ahead += copied
    return largest | ahead, stages


def _number(text: str) -> int | None:
  """Returns a number as PTX writes it; None where it is not one."""
  text = text.strip()
  return int(text, 0) if re.fullmatch(r"-?(0x[\da-fA-F]+|\d+)", text) else None
