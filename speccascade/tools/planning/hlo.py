"""Reads the text of a compiled program: what a round launches and sends.

This is the one place that reads HLO, as `jax.stages.Compiled.as_text` gives it.
A round is a turn of the last loop whose number of turns is not known before the
program runs; in a decoder that is the loop over blocks, or over tokens. Loops
that a compiler makes of a gather or a scatter have its name, and are not
rounds. The text is not an interface of XLA's, which may change it in any
version. Tried with jax 0.10.2 and 0.11.2, for CPUs, GPUs and TPUs.
"""

import collections
from collections.abc import Iterator
import dataclasses
import functools
import math
import re
from typing import NamedTuple

COLLECTIVES = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)
# How often a program does something: once, or in each round.
ONCE, ROUND = "once", "round"
# What launches nothing: it names or views arrays, or waits.
FREE = {
  *("parameter", "constant", "bitcast", "get-tuple-element", "tuple"),
  *("after-all", "partition-id", "replica-id", "opt-barrier", "iota"),
}
_HEAD = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(
  r"^\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?:, |$)"
)
# Bytes of a number, by the dtype's name; all others have 4.
_BYTES = {
  **dict.fromkeys(("pred", "s8", "u8"), 1),
  **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
  **dict.fromkeys(("s64", "u64", "f64"), 8),
}
# An array, and the memory that a TPU's compiler puts it in; 0 is the large one.
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{[^}]*?(?:S\((\d+)\))?\})?")


class Array(NamedTuple):
  """An array of an instruction's type.

  Attributes:
    dtype: the name of its dtype, as XLA has it.
    sizes: the size of each axis.
    memory: the memory that a TPU's compiler puts it in; "" or "0" is the large
      one.
  """

  dtype: str
  sizes: tuple[int, ...]
  memory: str

  @property
  def num_bytes(self) -> int:
    """Its bytes."""
    return _BYTES.get(self.dtype, 4) * math.prod(self.sizes)


def arrays(type_: str) -> list[Array]:
  """Returns the arrays that a type names.

  >>> [tuple(x) for x in arrays("(bf16[2,3]{1,0:T(2,128)S(1)}, s32[])")]
  [('bf16', (2, 3), '1'), ('s32', (), '')]
  """
  return [
    Array(dtype, tuple(int(x) for x in sizes.split(",") if x), memory)
    for dtype, sizes, memory in _ARRAY.findall(type_)
  ]


@dataclasses.dataclass(frozen=True)
class Instruction:
  """An instruction of a compiled program.

  Attributes:
    name: its name.
    type: its arrays, as XLA writes them.
    opcode: what it is, such as "fusion".
    operands: names of what it reads.
    line: all of its text.
    is_root: whether its computation returns it.
  """

  name: str
  type: str
  opcode: str
  operands: tuple[str, ...]
  line: str
  is_root: bool

  def called(self, key: str) -> str | None:
    """Returns the computation that an attribute names."""
    found = re.search(rf"\b{key}=%?([\w.-]+)", self.line)
    return found and found[1]

  def num_devices(self, num_all: int) -> int:
    """Returns how many of a program's devices a collective joins.

    XLA writes groups as lists of devices, as a shape [groups, devices of each],
    as the axes of a mesh, or not at all where all devices are one; pairs of
    devices are groups of 2. A TPU v4 that computes with both cores of a chip
    has groups of cores, and is one device.
    """
    if "source_target_pairs=" in self.line:
      return 2
    if listed := re.search(r"replica_groups=\{(\{[\d,{}]*\})\}", self.line):
      groups = [
        group.split(",") for group in re.findall(r"[\d,]+\b", listed[1])
      ]
      size, total = len(groups[0]), sum(map(len, groups))
    elif shape := re.search(r"replica_groups=\[(\d+),(\d+)\]", self.line):
      size, total = int(shape[2]), int(shape[1]) * int(shape[2])
    elif mesh := re.search(
      r"replica_groups=mesh\[(.*?)\].*? \{(.*?)\}", self.line
    ):
      sizes = {
        name: int(num) for name, num in re.findall(r"'(\w+)'=(\d+)", mesh[1])
      }
      axes = re.findall(r"'(\w+)'", mesh[2])
      size, total = math.prod(map(sizes.get, axes)), math.prod(sizes.values())
    else:
      return num_all
    return size * num_all // total

  @property
  def path(self) -> str:
    """Where it comes from, as "jit(f)/while/body/score/…"."""
    found = re.search(r'op_name="([^"]*)"', self.line)
    return found[1] if found else ""

  @property
  def trips(self) -> int:
    """How often a loop turns; 1 where that is not known."""
    found = re.search(r'known_trip_count"?:\{"n":"(\d+)"', self.line)
    return int(found[1]) if found else 1

  @property
  def cycles(self) -> int:
    """The cycles that a TPU's compiler estimates, without reads of weights."""
    found = re.search(r'"estimated_cycles":"(\d+)"', self.line)
    return int(found[1]) if found else 0


@dataclasses.dataclass(frozen=True)
class Collective:
  """One kind of communication between devices.

  Attributes:
    kind: one of `COLLECTIVES`.
    arrays: the arrays that each device has afterwards, such as "f32[4,6,512]".
    num_devices: how many devices communicate with each other.
  """

  kind: str
  arrays: str
  num_devices: int

  @property
  def num_bytes(self) -> int:
    """The bytes of `arrays`."""
    return sum(each.num_bytes for each in arrays(self.arrays))


# How often each `Collective` occurs.
CollectiveCounts = collections.Counter


def sent_bytes(counts: CollectiveCounts) -> int:
  """Returns the bytes of all communication that is counted."""
  return sum(collective.num_bytes * num for collective, num in counts.items())


class Program:
  """A compiled program.

  Args:
    text: as `jax.stages.Compiled.as_text` gives it.

  Attributes:
    computations: the instructions of each computation, by its name.
    entry: the name of the computation that a run of the program begins with.
    num_devices: the devices that run it together.
  """

  def __init__(self, text: str):
    self.computations: dict[str, dict[str, Instruction]] = {}
    counted = re.search(r"^HloModule .*\bnum_partitions=(\d+)", text, re.M)
    self.num_devices = int(counted[1]) if counted else 1
    entry, found = "", {}
    for line in text.splitlines():
      if head := _HEAD.match(line):
        found = self.computations[head[2]] = {}
        entry = head[2] if head[1] else entry
      elif match := _INSTRUCTION.match(line):
        root, name, type_, opcode, operands = match.groups()
        names = tuple(re.findall(r"%([\w.-]+)", operands))
        found[name] = Instruction(name, type_, opcode, names, line, bool(root))
    self.entry = entry
    loops = [x for x in self._nested(entry) if x.opcode == "while"]
    open_loops = [
      x
      for x in loops
      if "known_trip_count" not in x.line
      and (x.path or "while").endswith("while")
    ]
    self._round = open_loops[-1] if open_loops else None

  def _nested(self, name: str) -> Iterator[Instruction]:
    """Yields a computation's instructions, and those of what it calls."""
    for each in self.computations.get(name, {}).values():
      yield each
      if each.opcode in ("call", "conditional"):
        for called in self._branches(each):
          yield from self._nested(called)

  def _branches(self, each: Instruction) -> list[str]:
    """Returns the computations that a call or a conditional may run."""
    listed = re.search(r"branch_computations=\{([^}]*)\}", each.line)
    if listed:
      return [name.strip(" %") for name in listed[1].split(",")]
    keys = ("to_apply", "true_computation", "false_computation")
    return [name for key in keys if (name := each.called(key))]

  @functools.cached_property
  def launches(self) -> list[tuple[str, Instruction, int]]:
    """Launches of a round: computation, instruction, how often."""
    if self._round is None:
      return []
    return list(self._launches(self._round.called("body")))

  def _launches(self, name: str, times: int = 1):
    for each in self.computations.get(name, {}).values():
      if each.opcode in FREE or each.opcode.endswith("-done"):
        continue
      if each is self._round:
        continue  # its launches are not those of what is around it
      if each.opcode == "while":
        for key in ("condition", "body"):
          yield from self._launches(each.called(key), times * each.trips)
      elif each.opcode in ("call", "conditional"):
        ways = [list(self._launches(x, times)) for x in self._branches(each)]
        yield from max(ways, key=self._price, default=[])
      else:
        yield name, each, times

  def _price(self, launches: list) -> tuple[int, int]:
    """Returns what branches are compared by: bytes sent, then launches."""
    return sent_bytes(self._collectives(launches)), len(launches)

  @functools.cached_property
  def sent(self) -> dict[str, CollectiveCounts]:
    """What devices send each other: {ONCE: counts, ROUND: counts}.

    A loop inside a round counts as often as its known number of turns, or once.
    """
    counts = {
      ONCE: self._collectives(self._launches(self.entry)),
      ROUND: CollectiveCounts(),
    }
    if self._round is not None:
      for key in ("condition", "body"):
        body = self._launches(self._round.called(key))
        counts[ROUND] += self._collectives(body)
    return counts

  def _collectives(self, launches) -> CollectiveCounts:
    """Returns the collectives of some launches, those of fusions too."""
    counts = CollectiveCounts()
    for name, each, times in launches:
      if each.opcode.removesuffix("-start") in COLLECTIVES:
        self._count(counts, name, each, times)
      elif inner := each.called("calls"):
        for part in self.computations.get(inner, {}).values():
          if part.opcode in COLLECTIVES:
            self._count(counts, inner, part, times)
    return counts

  def _count(self, counts, name: str, each: Instruction, times: int):
    num_devices = each.num_devices(self.num_devices)
    if num_devices < 2:
      return  # a collective of one device sends nothing
    kind, result = each.opcode, each.type
    if kind.endswith("-start"):
      # Its own type names what it reads, too, and its end's has the result.
      kind = kind.removesuffix("-start")
      result = next(
        other.type
        for other in self.computations[name].values()
        if other.opcode == f"{kind}-done" and each.name in other.operands
      )
    shapes = ", ".join(
      f"{dtype}[{','.join(map(str, sizes))}]"
      for dtype, sizes, _ in arrays(result)
    )
    counts[Collective(kind, shapes, num_devices)] += times

  @property
  def cycles(self) -> int:
    """Cycles that a TPU's compiler estimates for a round."""
    return sum(each.cycles * times for _, each, times in self.launches)
