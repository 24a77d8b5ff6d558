"""Reads from a compiled program's text what its devices send each other.

This is the one module that reads HLO, XLA's text of a compiled program, as
`jax.stages.Compiled.as_text` gives it. The text is no interface: XLA may change
it in any version. Tried with jax and jaxlib 0.10.2. These parts are read:

  ENTRY %main (arguments) -> type {         the head of a computation
  %x = f32[4,6]{1,0} all-reduce(...)        an operation, its arrays and kind
  replica_groups=...                        the devices that take part
  condition=%c, body=%b                     the computations of a while loop
  known_trip_count":{"n":"8"                the rounds of a loop, if known
  branch_computations={%a, %b}              the branches of a conditional
  calls=%f, to_apply=%f                     the computation of a fusion or call

An unknown text is counted as no communication. `tests/models/test_meshes.py`
compares the counts of small programs with counts worked out by hand.
"""

import collections
import dataclasses
import math
import re

KINDS = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)
# Bytes of a number, by HLO's name of its dtype; all other dtypes have 4.
_BYTES = {
  "pred": 1,
  "s8": 1,
  "u8": 1,
  "s16": 2,
  "u16": 2,
  "bf16": 2,
  "f16": 2,
  "f64": 8,
  "s64": 8,
  "u64": 8,
}
_HEAD = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
# A collective may be split into a start and a done; only the start is counted.
_OPERATION = re.compile(r" = (.*?) ([a-z-]+?)(?:-start)?\(")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_LOOP = re.compile(r"condition=%?([\w.-]+), body=%?([\w.-]+)")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.-]+)")
_BRANCHES = re.compile(
  r"(?:branch_computations=\{([^}]*)\}"
  r"|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+))"
)
_TRIPS = re.compile(r'known_trip_count"?:\{"n":"(\d+)"')
# How often a program does something: once, or in each round of the loop whose
# number of rounds depends on the data.
ONCE, ROUND = "once", "round"


@dataclasses.dataclass(frozen=True)
class Collective:
  """One kind of communication between devices.

  Attributes:
    kind: one of `KINDS`.
    arrays: the arrays that each device has afterwards, such as "f32[4,6,512]".
    num_devices: how many devices communicate with each other.
  """

  kind: str
  arrays: str
  num_devices: int

  @property
  def num_bytes(self) -> int:
    """The bytes of `arrays`."""
    total = 0
    for dtype, dims in _ARRAY.findall(self.arrays):
      sizes = [int(size) for size in dims.split(",") if size]  # [] of "s32[]"
      total += _BYTES.get(dtype, 4) * math.prod(sizes)
    return total


# How often each `Collective` occurs.
CollectiveCounts = collections.Counter


def read(text: str) -> dict[str, CollectiveCounts]:
  """Returns how often a program communicates, once and in each round.

  A round is a round of the last loop whose number of rounds is not known before
  the program runs. In a decoder that is the loop of `rounds.Loop`. A loop
  inside a round counts as often as its known number of rounds, or once. Of the
  branches of a conditional, the branch that sends most bytes counts.

  Args:
    text: HLO of a compiled decoder.

  Returns:
    {ONCE: counts, ROUND: counts}.
  """
  computations, entry = _split(text)
  counts = {ONCE: CollectiveCounts(), ROUND: CollectiveCounts()}
  open_loops = []
  counts[ONCE] += _count(computations, entry, open_loops)
  for number, body in enumerate(open_loops):
    # Earlier loops, such as a search for a prompt's end, have few rounds.
    is_last = number == len(open_loops) - 1
    counts[ROUND if is_last else ONCE] += body
  return counts


def num_bytes(counts: CollectiveCounts) -> int:
  """Returns the bytes of all communication that is counted."""
  return sum(collective.num_bytes * num for collective, num in counts.items())


def _split(text: str) -> tuple[dict[str, list[str]], str]:
  """Returns the lines of each computation by its name, and the entry's name."""
  computations, entry, lines = {}, "", []
  for line in text.splitlines():
    if head := _HEAD.match(line):
      lines = computations[head[1]] = []
      entry = head[1] if line.startswith("ENTRY") else entry
    else:
      lines.append(line)
  return computations, entry


def _count(
  computations: dict[str, list[str]],
  name: str,
  open_loops: list[CollectiveCounts] | None = None,
) -> CollectiveCounts:
  """Returns how often a computation communicates."""
  # `open_loops` gets the counts of a round of each loop without a known number
  # of rounds. None counts one round of such a loop with the rest.
  total = CollectiveCounts()
  for line in computations.get(name, ()):
    operation = _OPERATION.search(line)
    kind = operation[2] if operation else None
    if kind in KINDS:
      # A collective of one device sends nothing.
      if (num_devices := _group(line)) > 1:
        arrays = ", ".join(
          f"{dtype}[{dims}]" for dtype, dims in _ARRAY.findall(operation[1])
        )
        total[Collective(kind, arrays, num_devices)] += 1
    elif kind == "while":
      condition, body = _LOOP.search(line).groups()
      counts = _count(computations, condition) + _count(computations, body)
      trips = _TRIPS.search(line)
      if trips is None and open_loops is not None:
        open_loops.append(counts)
      else:
        num_rounds = int(trips[1]) if trips else 1
        for collective, num in counts.items():
          total[collective] += num_rounds * num
    elif branches := _BRANCHES.search(line):
      listed, if_true, if_false = branches.groups()
      names = listed.split(",") if listed else [if_true, if_false]
      counts = [_count(computations, branch.strip(" %")) for branch in names]
      total += max(counts, key=num_bytes)
    elif kind in ("call", "fusion") and (called := _CALLED.search(line)):
      total += _count(computations, called[1], open_loops)
  return +total  # without collectives of which there are 0


def _group(line: str) -> int:
  """Returns how many devices communicate with each other in an operation.

  HLO writes groups as lists of devices, as a shape [groups, devices of each],
  or as the axes of a mesh; pairs of devices are groups of 2.

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
  if shape := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
    return int(shape[1])
  if mesh := re.search(r"replica_groups=mesh\[(.*?)\].*? \{(.*?)\}", line):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
    axes = re.findall(r"'(\w+)'", mesh[2])
    return math.prod(int(sizes[axis]) for axis in axes)
  return 2
