"""Reads the text of a compiled program: what a round launches and sends.

With `instructions` this is the one place that reads HLO, as
`jax.stages.Compiled.as_text` gives it. A round is a turn of the last loop whose
number of turns is not known before the program runs; in a decoder that is the
loop over blocks, or over tokens.
Loops that a compiler makes of a gather or a scatter have its name, and are no
rounds. The text is no interface of XLA's, which may change it in any version.
Tried with jax 0.10.2 and 0.11.2, for CPUs, GPUs and TPUs.
"""

import collections
from collections.abc import Iterator
import dataclasses
import functools
import re

from speccascade.planning.instructions import (
  Instruction,
  all_bytes,
  arrays,
  large_bytes,
  split_arrays,
)

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
    return all_bytes(self.arrays)


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

  def count(self, by: str | None = None) -> dict[str, int]:
    """Returns how many launches a round has, by "step" or by "kind"."""
    counts: dict[str, int] = {}
    for _, each, times in self.launches:
      key = getattr(each, by) if by else "all"
      counts[key] = counts.get(key, 0) + times
    return counts

  @property
  def num_loops(self) -> int:
    """The loops inside a round."""
    if self._round is None:
      return 0
    return self._loops(self._round.called("body"))

  def _loops(self, name: str) -> int:
    num = 0
    for each in self._nested(name):
      if each.opcode == "while":
        num += 1 + self._loops(each.called("body"))
    return num

  @property
  def cycles(self) -> int:
    """Cycles that a TPU's compiler estimates for a round."""
    return sum(each.cycles * times for _, each, times in self.launches)

  def copies(self, shapes: set[tuple[int, ...]]) -> int:
    """Returns the copies in a round whose array has one of some shapes.

    What only moves an array to another memory of a TPU is no copy.

    Args:
      shapes: sorted sizes of arrays, such as a cache's: a copy may turn it.
    """
    num = 0
    for _, each, times in self.launches:
      if each.opcode in ("copy", "copy-start") or "copy" in each.name:
        found = arrays(each.type)
        if each.opcode == "copy-start" and found[0][2] != found[1][2]:
          continue
        num += times * any(tuple(sorted(x[1])) in shapes for x in found)
    return num

  @property
  def num_bytes(self) -> int:
    """Bytes that a round reads from and writes to the large memory."""
    return sum(
      times * (self._read(name, each) + self._written(each))
      for name, each, times in self.launches
    )

  def _read(self, name: str, each: Instruction) -> int:
    """Returns the bytes that an instruction reads."""
    if each.opcode.endswith("-start"):
      # It names the array that is read, the array that is written, a context.
      sizes = [all_bytes(x) for x in split_arrays(each.type)]
      return min(sizes[:2], default=0) if large_bytes(each.type) else 0
    computation, total = self.computations[name], 0
    inner = each.called("calls")
    for number, operand in enumerate(dict.fromkeys(each.operands)):
      given = computation.get(operand)
      if given is None:
        continue
      size = large_bytes(given.type)
      if inner and size:
        size = min(size, self._used(inner, number, size))
      elif each.opcode in ("dynamic-slice", "gather"):
        size = min(size, large_bytes(each.type))
      elif each.opcode == "dynamic-update-slice" and number == 0:
        size = 0
      total += size
    return total

  def _used(self, inner: str, number: int, size: int) -> int:
    """Returns the bytes of a parameter that a fused computation reads."""
    computation = self.computations.get(inner)
    if computation is None:
      return size
    names = {
      each.name
      for each in computation.values()
      if each.opcode == "parameter" and f"parameter({number})" in each.line
    }
    total = 0
    for each in computation.values():
      if not names & set(each.operands):
        continue
      if each.opcode == "bitcast":
        names.add(each.name)
      elif each.operands[0] in names and each.opcode in (
        "dynamic-slice",
        "gather",
      ):
        total += all_bytes(each.type)
      elif each.operands[0] in names and each.opcode == "dynamic-update-slice":
        continue
      else:
        return size
    return total

  def _written(self, each: Instruction) -> int:
    """Returns the bytes that are written; of an update, its new part."""
    if each.opcode.endswith("-start"):
      return 0  # counted as read
    size = large_bytes(each.type)
    inner = self.computations.get(each.called("calls") or "", {})
    root = next((x for x in inner.values() if x.is_root), None)
    while root is not None and root.opcode == "bitcast":
      root = inner.get(root.operands[0])
    if root is not None and root.opcode == "dynamic-update-slice":
      update = inner.get(root.operands[1])
      return min(size, all_bytes(update.type)) if update else size
    return size
