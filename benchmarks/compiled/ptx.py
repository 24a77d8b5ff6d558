"""Reads PTX: a kernel's statements, its blocks, and the turns of its loops.

XLA dumps the PTX of every kernel, its own and those of Pallas' Triton backend,
and a custom call of PTX holds its text. See `in_flight` for what is read in it.
"""

import dataclasses
import math
import re

_STATEMENT = re.compile(
  r"^(?:@!?(?P<guard>%p\d+)\s+)?(?P<op>[a-z][\w.:]*)\s*(?P<rest>.*)$", re.S
)
_REGISTER = re.compile(r"%[a-z]+\d+")
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
    is_load = self.op.startswith("ld.") and ".global" in self.op
    return is_load and not self.receives

  @property
  def sends(self) -> bool:
    """Whether it writes what another program of the same launch waits for."""
    return self.op.startswith("st.relaxed.gpu")

  @property
  def receives(self) -> bool:
    """Whether it reads what another program of the same launch writes."""
    return self.op.startswith("ld.relaxed.gpu")

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


def body(text: str, start: int) -> str:
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


class Code:
  """The code of a kernel.

  Args:
    text: the kernel's, from its parameters on.

  Attributes:
    threads: of a program.
    blocks: its statements.
    loops: the first and the last block of each loop.
    unknown: those of them whose number of turns depends on data.
  """

  def __init__(self, text: str):
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
    self.unknown: set[tuple[int, int]] = set()
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
        self.unknown.add((first, last))
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
      if self._is_once_more(guard, inside):
        return 2
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

  def _is_once_more(self, guard: str, inside: range) -> bool:
    """Whether a loop turns twice: what it asks is true before it, and is then
    made false.
    """
    for place, each in self.definitions.get(guard, []):
      if place in inside and each.op == "mov.pred" and each.used:
        found = self.definitions.get(each.used[0], [])
        within = {
          _number(x.text.split(",")[-1]) for p, x in found if p in inside
        }
        before = {
          _number(x.text.split(",")[-1]) for p, x in found if p not in inside
        }
        return within == {0} and before == {-1}
    return False

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
        start = self._start(outside[0])
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

  def _start(self, each: Statement) -> int | None:
    """Returns what a counter starts with; 0 where that is its thread."""
    start = _number(each.text.split(",")[-1])
    if start is None and each.op.startswith("mov") and each.used:
      params, loads = self._sources(each.used[0])
      made = self.definitions.get(each.used[0], [])
      start = 0 if made and not params and not loads else None
    return start

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

  def address(self, each: Statement) -> tuple[frozenset[int], frozenset[int]]:
    """Returns parameters and loads that an access's address is made from."""
    places = re.findall(r"\[([^\]]*)\]", each.text)
    registers = _REGISTER.findall(places[-1]) if places else []
    params: frozenset[int] = frozenset()
    loads: frozenset[int] = frozenset()
    for register in registers:
      more = self._sources(register)
      params, loads = params | more[0], loads | more[1]
    return params, loads


def _number(text: str) -> int | None:
  """Returns a number as PTX writes it; None where it is not one."""
  text = text.strip()
  return int(text, 0) if re.fullmatch(r"-?(0x[\da-fA-F]+|\d+)", text) else None
