"""What a round of a compiled program launches, copies, reads and writes."""

from collections.abc import Callable, Mapping
import functools
import math
import re
from types import MappingProxyType

from speccascade.native.gpu import cuda_launches
from speccascade.tools.planning import hlo
from speccascade.tools.planning.chips import Chip
from speccascade.tools.planning.hlo import Instruction

STEPS = ("draft", "score", "verify", "commit", "count", "record")
_LAUNCH = re.compile(r"/(attend_(?:self|source|both)|gated|layer)/")
# What an instruction does, by its name or the end of its path, first match.
_KINDS = (
  ("product", r"few_rows|/gated/|/layer/"),
  ("attention", r"block_attention|/attend_(self|source|both)/"),
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


def step_of(each: Instruction) -> str:
  """Returns the step of a round that an instruction belongs to."""
  parts = each.path.split("/")
  return next((part for part in parts if part in STEPS), "rest")


def kind_of(each: Instruction) -> str:
  """Returns what an instruction does, in a word."""
  if each.opcode == "copy":
    return "copy"
  for kind, pattern in _KINDS:
    if re.search(pattern, each.name) or re.search(pattern, each.path):
      return kind
  return "other"


def _is_kernel(each: Instruction) -> bool:
  """Whether an instruction is a kernel for a TPU, not one of the compiler's."""
  return '"tpu_custom_call"' in each.line


def _body(kernel: Instruction) -> str:
  """Returns the text of a kernel, the same for kernels that do the same."""
  found = re.search(r'"body":"([^"]*)"', kernel.line)
  return found[1] if found else kernel.name


class Program(hlo.Program):
  """A compiled program, and what a round of it does besides sending.

  The compiler estimates no cycles of this package's kernels for a TPU. A kernel
  takes what the compiler says of the round's smallest operation, which is the
  price of a launch; its instructions, each a cycle; and the time of what it
  reads from the large memory and writes to it, while it does nothing else.

  Args:
    text: as `jax.stages.Compiled.as_text` gives it.
    instructions: how many each kernel has, by its name. Of kernels that do the
      same in the same memories a compiler names one.
    bytes_per_cycle: that the large memory reads or writes.
  """

  def __init__(
    self,
    text: str,
    instructions: Mapping[str, int] = MappingProxyType({}),
    bytes_per_cycle: float = math.inf,
  ):
    super().__init__(text)
    self._bytes_per_cycle = bytes_per_cycle
    self._instructions: dict[str, int] = {}
    for _, each, _ in self.launches:
      if _is_kernel(each) and each.name in instructions:
        self._instructions[_body(each)] = instructions[each.name]

  @property
  def cycles(self) -> int:
    """Cycles of a round: the compiler's, and those of kernels."""
    return super().cycles + self.kernel_cycles

  @property
  def kernel_cycles(self) -> int:
    """Cycles of a round's kernels for a TPU."""
    return round(
      sum(
        times * self._cycles(name, each)
        for name, each, times in self.launches
        if _is_kernel(each)
      )
    )

  def _cycles(self, name: str, each: Instruction) -> float:
    """Returns the cycles of an instruction of a computation."""
    if not _is_kernel(each):
      return each.cycles
    size = self._read(name, each) + self.written(each)
    work = self._instructions[_body(each)] + size / self._bytes_per_cycle
    return self._launch_cycles + work

  @functools.cached_property
  def _launch_cycles(self) -> int:
    """The cycles of the smallest operation."""
    return min(
      each.cycles
      for _, each, _ in self.launches
      if each.opcode == "fusion" and each.cycles
    )

  def count(
    self, by: Callable[[Instruction], str] | None = None
  ) -> dict[str, int]:
    """Returns how many launches a round has, by a function of each."""
    counts: dict[str, int] = {}
    for _, each, times in self.launches:
      key = by(each) if by else "all"
      counts[key] = counts.get(key, 0) + times
    return counts

  @property
  def loop(self) -> Instruction | None:
    """The loop whose turns are rounds."""
    return self._round

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

  def copies(self, shapes: set[tuple[int, ...]]) -> int:
    """Returns the copies in a round whose array has one of some shapes.

    What only moves an array to another memory of a TPU is not a copy.

    Args:
      shapes: sorted sizes of arrays, such as a cache's: a copy may turn it.
    """
    num = 0
    for _, each, times in self.launches:
      if each.opcode in ("copy", "copy-start") or "copy" in each.name:
        found = hlo.arrays(each.type)
        if each.opcode == "copy-start" and found[0].memory != found[1].memory:
          continue
        num += times * any(tuple(sorted(x.sizes)) in shapes for x in found)
    return num

  def seconds(self, chip: Chip) -> dict[str, float]:
    """Returns the seconds of each step of a round on a TPU.

    Each instruction takes the compiler's cycles, or its bytes at the memory's
    bandwidth, whichever is longer. What is fetched meanwhile is left out: the
    bytes of a round are a bound of their own.

    Args:
      chip: the chip.
    """
    found: dict[str, float] = {}
    for name, each, times in self.launches:
      if each.opcode.endswith("-start"):
        continue
      size = self._read(name, each) + self.written(each)
      cycles_s = self._cycles(name, each) / chip.clock if chip.clock else 0.0
      took = times * max(cycles_s, size / chip.bandwidth)
      step = step_of(each)
      found[step] = found.get(step, 0.0) + took
    return found

  @property
  def num_bytes(self) -> int:
    """Bytes that a round reads from and writes to the large memory."""
    return sum(
      times * (self._read(name, each) + self.written(each))
      for name, each, times in self.launches
    )

  def _read(self, name: str, each: Instruction) -> int:
    """Returns the bytes that an instruction reads."""
    if each.opcode.endswith("-start"):
      # It names the array that is read, the array that is written, a context.
      sizes = [array.num_bytes for array in hlo.arrays(each.type)]
      return min(sizes[:2], default=0) if _large_bytes(each.type) else 0
    found = self.reads(name, each)
    if cuda_launches.TARGET in each.line and _LAUNCH.search(each.path):
      # The last ones are asked for ahead, and counted where they are used.
      ahead = each.operands[-cuda_launches.NUM_NEXT :]
      kept = set(each.operands[: -cuda_launches.NUM_NEXT])
      found = {x: num for x, num in found.items() if x in kept - {*ahead}}
    return sum(found.values())

  def reads(self, name: str, each: Instruction) -> dict[str, int]:
    """Returns the bytes that an instruction reads of each operand.

    Args:
      name: the computation that the instruction is in.
      each: the instruction.
    """
    computation, found = self.computations[name], {}
    inner = each.called("calls")
    for number, operand in enumerate(each.operands):
      given = computation.get(operand)
      if given is None or operand in found:
        continue
      size = _large_bytes(given.type)
      if inner and size:
        size = min(size, self._used(inner, number, size))
      elif each.opcode in ("dynamic-slice", "gather"):
        size = min(size, _large_bytes(each.type))
      elif each.opcode == "dynamic-update-slice" and number == 0:
        size = 0
      elif rows := self._looked_up(name, each, number):
        [table] = hlo.arrays(given.type)
        size = min(size, rows * table.num_bytes // table.sizes[0])
      found[operand] = size
    return found

  def _looked_up(self, name: str, each: Instruction, number: int) -> int:
    """Returns how many rows of an operand a product looks up; 0 reads all."""
    if "few_rows" not in each.path or number + 1 >= len(each.operands):
      return 0
    index = self.computations[name].get(each.operands[number + 1])
    if index is None or not index.type.startswith("s32["):
      return 0
    return sum(array.num_bytes // 4 for array in hlo.arrays(index.type))

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
        total += _all_bytes(each.type)
      elif each.operands[0] in names and each.opcode == "dynamic-update-slice":
        continue
      else:
        return size
    return total

  def written(self, each: Instruction) -> int:
    """Returns the bytes that are written; of an update, its new part."""
    if each.opcode.endswith("-start"):
      return 0  # counted as read
    size = _large_bytes(each.type)
    inner = self.computations.get(each.called("calls") or "", {})
    root = next((x for x in inner.values() if x.is_root), None)
    while root is not None and root.opcode == "bitcast":
      root = inner.get(root.operands[0])
    if root is not None and root.opcode == "dynamic-update-slice":
      update = inner.get(root.operands[1])
      return min(size, _all_bytes(update.type)) if update else size
    return size


def _all_bytes(type_: str) -> int:
  """Returns the bytes of all arrays that a type names."""
  return sum(array.num_bytes for array in hlo.arrays(type_))


def _large_bytes(type_: str) -> int:
  """Returns the bytes of arrays in a device's large memory."""
  return sum(
    array.num_bytes for array in hlo.arrays(type_) if array.memory in ("", "0")
  )
