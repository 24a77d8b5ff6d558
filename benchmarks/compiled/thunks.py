"""Reads the thunks of a GPU's program: what is launched, and in which graphs.

XLA writes them with `--xla_dump_to=FOLDER --xla_dump_hlo_as_text`: a sequence
with the grid of each kernel (`*.thunk_sequence_after_thunk_passes.txt`), and
the instruction behind each (`*.thunk_metadata.txt`). A command buffer is a CUDA
graph. A loop that stands outside a command buffer is turned by the host, which
waits for the device once a turn, unless the number of turns is known. None of
this is an interface of XLA's; tried with jax 0.10.2.
"""

from collections.abc import Iterator
import dataclasses
import pathlib
import re

SEQUENCE = ".thunk_sequence_after_thunk_passes.txt"
GRAPH, LOOP, BRANCHES = "kCommandBuffer", "kWhile", "kConditional"
# What launches nothing by itself.
_WHOLES = (GRAPH, LOOP, BRANCHES, "kSequential")
_LINE = re.compile(r"^(\s*)(\d+): (k\w+)\s*(?:\[[^\]]*\])?\s*(.*?)\s*$")
_LABEL = re.compile(r"^\s*([a-z][\w ]*):\s*$")
_GRID = re.compile(
  r"^(\S+) grid: \[(\d+), (\d+), (\d+)\] threads: \[(\d+), (\d+), (\d+)\]"
  r"\s+shared_memory: (\d+)"
)


@dataclasses.dataclass
class Thunk:
  """A thunk, and those inside it.

  Attributes:
    number: its number; thunks that passes add have 0.
    kind: as XLA names it, such as "kCommandBuffer".
    kernel: the kernel's name; "" where it launches none.
    programs: of the kernel's grid.
    threads: of a program.
    shared: bytes of shared memory of a program, asked for at the launch.
    parts: {name: thunks} of what is inside: a condition, a body, branches.
  """

  number: int
  kind: str
  kernel: str = ""
  programs: int = 0
  threads: int = 0
  shared: int = 0
  parts: dict[str, list["Thunk"]] = dataclasses.field(default_factory=dict)

  @property
  def body(self) -> list["Thunk"]:
    """What a loop turns, or a graph launches."""
    return self.parts.get("body") or self.parts.get("") or []

  @property
  def is_launch(self) -> bool:
    """Whether it is one launch."""
    return self.kind not in _WHOLES

  def inside(self) -> Iterator["Thunk"]:
    """Yields all thunks inside."""
    for part in self.parts.values():
      for each in part:
        yield each
        yield from each.inside()


def parse(text: str) -> list[Thunk]:
  """Returns the thunks of a sequence, as XLA writes it."""
  top = Thunk(-1, "")
  stack = [(-1, top, "")]
  label: str | None = None
  for line in text.splitlines():
    if named := _LABEL.match(line):
      label = named[1]
      continue
    found = _LINE.match(line)
    if not found:
      continue
    indent, number, kind, rest = found.groups()
    while stack[-1][0] >= len(indent):
      stack.pop()
    depth, parent, part = stack[-1]
    if label is not None:
      # A label's own indentation is not to be relied on.
      part, label = label, None
      stack[-1] = depth, parent, part
    each = Thunk(int(number), kind)
    if grid := _GRID.match(rest):
      each.kernel = grid[1]
      sizes = [int(x) for x in grid.groups()[1:]]
      each.programs = sizes[0] * sizes[1] * sizes[2]
      each.threads = sizes[3] * sizes[4] * sizes[5]
      each.shared = sizes[6]
    parent.parts.setdefault(part, []).append(each)
    stack.append((len(indent), each, ""))
  return top.parts.get("", [])


def names(text: str) -> dict[int, str]:
  """Returns the instruction of each thunk, by the thunk's number."""
  found = {}
  for info in re.findall(r"thunk_info \{(.*?)\}", text, re.S):
    name = re.search(r'profile_annotation: "([^"]*)"', info)
    number = re.search(r"thunk_id: (\d+)", info)
    if name and number:
      found[int(number[1])] = name[1]
  return found


def round_of(
  sequence: list[Thunk], named: dict[int, str], loop: str
) -> Thunk | None:
  """Returns the thunk of a round's loop.

  Args:
    sequence: the thunks of a program.
    named: the instruction of each.
    loop: the instruction of the loop.
  """
  top = Thunk(-1, "", parts={"": sequence})
  for each in top.inside():
    if each.kind == LOOP and named.get(each.number) == loop:
      return each
  return None


@dataclasses.dataclass(frozen=True)
class Graphs:
  """The CUDA graphs of a round, and what the host does beside them.

  Attributes:
    graphs: command buffers that the host starts in a round.
    captured: launches inside them.
    outside: {kind of thunk: how many} that stand outside.
    waits: what the host decides inside the round: loops whose number of turns
      depends on data, each turn of which waits for the device, and branches.
    is_captured: whether the round's own loop is in a graph.
  """

  graphs: int
  captured: int
  outside: dict[str, int]
  waits: int
  is_captured: bool


def graphs(
  sequence: list[Thunk], loop: Thunk, known: frozenset[int] = frozenset()
) -> Graphs:
  """Returns what is captured in a round's graphs.

  Args:
    sequence: the thunks of a program.
    loop: the thunk of the round's loop.
    known: numbers of the loops whose turns are known before they run.
  """
  captured, outside, num, waits = 0, {}, 0, 0

  def go(part: list[Thunk]) -> None:
    nonlocal captured, num, waits
    for each in part:
      if each.kind == GRAPH:
        num += 1
        captured += sum(x.is_launch for x in each.inside())
        continue
      if each.kind == "kSequential":
        go(each.body)
        continue
      outside[each.kind] = outside.get(each.kind, 0) + 1
      waits += each.kind == BRANCHES
      waits += each.kind == LOOP and each.number not in known
      for inner in each.parts.values():
        go(inner)

  is_captured = any(
    inner is loop
    for each in sequence
    if each.kind == GRAPH
    for inner in each.inside()
  )
  if is_captured:
    inner = [x for x in loop.inside() if x.is_launch]
    return Graphs(1, len(inner), {}, 0, True)
  go(loop.body)
  return Graphs(num, captured, outside, waits, False)


@dataclasses.dataclass(frozen=True)
class Dump:
  """What XLA wrote of one module.

  Attributes:
    sequence: its thunks.
    named: the instruction of each thunk, by number.
    ptx: the PTX of all of its kernels.
  """

  sequence: list[Thunk]
  named: dict[int, str]
  ptx: list[str]


def read(folder: pathlib.Path, module: str) -> Dump:
  """Reads what XLA wrote of a module; the last, where there are several.

  Args:
    folder: of `--xla_dump_to`.
    module: the module's name, such as "jit_run".

  Raises:
    FileNotFoundError: nothing was written of such a module.
  """
  paths = sorted(folder.glob(f"*.{module}{SEQUENCE}"))
  if not paths:
    raise FileNotFoundError(f"{folder} has no *.{module}{SEQUENCE}")
  stem = paths[-1].name.removesuffix(SEQUENCE)
  metadata = folder / f"{stem}.thunk_metadata.txt"
  return Dump(
    parse(paths[-1].read_text()),
    names(metadata.read_text()),
    [path.read_text() for path in sorted(folder.glob(f"{stem}.*.ptx"))],
  )
