"""An instruction of a compiled program's text, and the arrays of its type."""

import dataclasses
import math
import re

STEPS = ("draft", "score", "verify", "commit", "count", "record")
# Bytes of a number, by the dtype's name; all others have 4.
_BYTES = {
  **dict.fromkeys(("pred", "s8", "u8"), 1),
  **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
  **dict.fromkeys(("s64", "u64", "f64"), 8),
}
# An array, and the memory that a TPU's compiler puts it in; 0 is the large one.
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{[^}]*?(?:S\((\d+)\))?\})?")
# What an instruction does, by its name or the end of its path, first match.
_KINDS = (
  ("product", r"few_rows"),
  ("attention", r"block_attention"),
  ("copy", r"^copy|^wrapped_copy|^transpose"),
  ("product", r"gemm|dot|convolution|cublas|/dot_general$"),
  ("cache write", r"dynamic[_-]update[_-]slice|scatter"),
  ("softmax", r"softmax|\.attend/"),
  ("norm", r"norm(/|$)"),
  ("activation", r"mlp/"),
  ("collective", r"all-|reduce-scatter|collective-permute"),
  ("reduction", r"reduce"),
  ("lookup", r"gather"),
  ("residual", r"layers_\d+\S*/add$"),
)


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
  def step(self) -> str:
    """The step of a round that it belongs to."""
    parts = self.path.split("/")
    return next((part for part in parts if part in STEPS), "rest")

  @property
  def kind(self) -> str:
    """What it does, in a word."""
    if self.opcode == "copy":
      return "copy"
    for kind, pattern in _KINDS:
      if re.search(pattern, self.name) or re.search(pattern, self.path):
        return kind
    return "other"

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


def arrays(type_: str) -> list[tuple[str, tuple[int, ...], str]]:
  """Returns (dtype, sizes, memory) of the arrays that a type names.

  >>> arrays("(bf16[2,3]{1,0:T(2,128)S(1)}, s32[])")
  [('bf16', (2, 3), '1'), ('s32', (), '')]
  """
  return [
    (dtype, tuple(int(size) for size in sizes.split(",") if size), memory)
    for dtype, sizes, memory in _ARRAY.findall(type_)
  ]


def split_arrays(type_: str) -> list[str]:
  """Returns the arrays that a type names, each as it is written."""
  return [match[0] for match in _ARRAY.finditer(type_)]


def all_bytes(type_: str) -> int:
  """Returns the bytes of all arrays that a type names."""
  return sum(
    _BYTES.get(dtype, 4) * math.prod(sizes) for dtype, sizes, _ in arrays(type_)
  )


def large_bytes(type_: str) -> int:
  """Returns the bytes of arrays in a device's large memory."""
  return sum(
    _BYTES.get(dtype, 4) * math.prod(sizes)
    for dtype, sizes, memory in arrays(type_)
    if memory in ("", "0")
  )
