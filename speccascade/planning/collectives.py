"""What devices send each other in a compiled program, read off its text.

Source: XLA's HLO text, as `jax.stages.Compiled.as_text` gives it.
"""

import collections
import dataclasses
import math
import re

KINDS = (
  *("all-reduce", "all-gather", "reduce-scatter"),
  *("all-to-all", "collective-permute"),
)
_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f64": 8, "s64": 8, "u64": 8}
_BYTES |= {"s8": 1, "u8": 1, "s16": 2, "u16": 2}  # all others have 4
_HEAD = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_OPERATION = re.compile(r" = (.*?) ([a-z-]+?)(?:-start)?\(")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.-]+)")
_BRANCHES = re.compile(
  r"(?:branch_computations=\{([^}]*)\}"
  r"|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+))"
)
_TRIPS = re.compile(r'known_trip_count"?:\{"n":"(\d+)"')
# What a device takes part in within a loop whose end the data says.
ONCE, ROUND = "once", "round"


@dataclasses.dataclass(frozen=True)
class Collective:
  """One kind of communication.

  Attributes:
    kind: of `KINDS`.
    arrays: what each device has of it afterwards, such as "f32[4,6,512]".
    num_devices: that take part together.
  """

  kind: str
  arrays: str
  num_devices: int

  @property
  def num_bytes(self) -> int:
    """The size of `arrays`."""
    return sum(
      _BYTES.get(dtype, 4) * math.prod(map(int, filter(None, dims.split(","))))
      for dtype, dims in _ARRAY.findall(self.arrays)
    )


Counted = collections.Counter  # of `Collective`


def read(text: str) -> dict[str, Counted]:
  """Returns how often a program communicates, once and in each round.

  A round is one of the last loop that has no number of rounds known before:
  that of `rounds.Loop`. Of the branches of a conditional the one that moves
  most bytes counts, and of a loop inside the known number of its rounds, or 1.

  Args:
    text: of a compiled decoder.
  """
  computations, entry = _computations(text)
  counted = {ONCE: Counted(), ROUND: Counted()}
  loops = []
  counted[ONCE] += _counted(computations, entry, loops)
  for number, body in enumerate(loops):
    place = ROUND if number == len(loops) - 1 else ONCE
    counted[place] += body
  return counted


def num_bytes(counted: Counted) -> int:
  """Returns the bytes of all that is counted."""
  return sum(each.num_bytes * num for each, num in counted.items())


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
  computations, entry, lines = {}, "", []
  for line in text.splitlines():
    if head := _HEAD.match(line):
      lines = computations[head[1]] = []
      entry = head[1] if line.startswith("ENTRY") else entry
    else:
      lines.append(line)
  return computations, entry


def _counted(computations, name, loops=None) -> Counted:
  """Counts what a computation does; open loops go to `loops`, where given."""
  total = Counted()
  for line in computations.get(name, ()):
    operation = _OPERATION.search(line)
    kind = operation and operation[2]
    if kind in KINDS:
      num_devices = _group(line)
      arrays = ", ".join(
        f"{dtype}[{dims}]" for dtype, dims in _ARRAY.findall(operation[1])
      )
      total[Collective(kind, arrays, num_devices)] += num_devices > 1
    elif kind == "while":
      parts = re.search(r"condition=%?([\w.-]+), body=%?([\w.-]+)", line)
      body = _counted(computations, parts[1]) + _counted(computations, parts[2])
      trips = _TRIPS.search(line)
      if trips or loops is None:
        times = int(trips[1]) if trips else 1
        total += Counted({x: times * num for x, num in body.items()})
      else:
        loops.append(body)
    elif branches := _BRANCHES.search(line):
      names = (branches[1] or f"{branches[2]}, {branches[3]}").split(",")
      each = [_counted(computations, x.strip(" %")) for x in names]
      total += max(each, key=num_bytes)
    elif kind in ("call", "fusion") and (called := _CALLED.search(line)):
      total += _counted(computations, called[1], loops)
  return +total


def _group(line: str) -> int:
  """Returns how many devices communicate with each other.

  >>> _group("replica_groups={{0,1},{2,3}}, x")
  2
  >>> _group("replica_groups=[2,4]<=[8], x")
  4
  >>> _group("replica_groups=mesh['a'=4,'b'=2], device_ids=([8]) {'a'}, x")
  4
  >>> _group("source_target_pairs={{0,1},{1,0}}")
  2
  """
  if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
    return len(listed[1].split(","))
  if shaped := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
    return int(shaped[1])
  if meshed := re.search(r"replica_groups=mesh\[(.*?)\].*? \{(.*?)\}", line):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", meshed[1]))
    return math.prod(int(sizes[x]) for x in re.findall(r"'(\w+)'", meshed[2]))
  return 2
