"""Numbers printed in the papers, to compare with; none of them is a goal."""

from typing import NamedTuple


class SpeedRow(NamedTuple):
  """A row of Leviathan et al., arXiv:2211.17192, Table 4.

  The verifier is T5 v1.1 XXL, at batch 1 on a TPU v4.

  Attributes:
    task: "ende" (WMT) or "cnndm".
    drafter: the drafter's size of T5 v1.1.
    temperature: 0 or 1.
    gamma: the block size that was measured, in most rows below the optimum.
    acceptance_rate: the paper's alpha, printed with two digits.
    c: the cost of a drafter step, measured in profiler traces.
    expected: the printed walltime factor, which the authors computed from the
      unrounded alpha.
    measured: the printed speed-up.
  """

  task: str
  drafter: str
  temperature: int
  gamma: int
  acceptance_rate: float
  c: float
  expected: float
  measured: float


LEVIATHAN_TABLE_4 = (
  SpeedRow("ende", "small", 0, 7, 0.75, 0.02, 3.2, 3.4),
  SpeedRow("ende", "base", 0, 7, 0.80, 0.04, 3.3, 2.8),
  SpeedRow("ende", "large", 0, 7, 0.82, 0.11, 2.5, 1.7),
  SpeedRow("ende", "small", 1, 7, 0.62, 0.02, 2.3, 2.6),
  SpeedRow("ende", "base", 1, 5, 0.68, 0.04, 2.4, 2.4),
  SpeedRow("ende", "large", 1, 3, 0.71, 0.11, 2.0, 1.4),
  SpeedRow("cnndm", "small", 0, 5, 0.65, 0.02, 2.4, 3.1),
  SpeedRow("cnndm", "base", 0, 5, 0.73, 0.04, 2.6, 3.0),
  SpeedRow("cnndm", "large", 0, 3, 0.74, 0.11, 2.0, 2.2),
  SpeedRow("cnndm", "small", 1, 5, 0.53, 0.02, 1.9, 2.3),
  SpeedRow("cnndm", "base", 1, 3, 0.55, 0.04, 1.8, 2.2),
  SpeedRow("cnndm", "large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)


def leviathan_rate(task: str, drafter: str, temperature: int = 0) -> float:
  """Returns the acceptance rate of a row of Leviathan et al.'s Table 4.

  Args:
    task: see `SpeedRow`.
    drafter: see `SpeedRow`.
    temperature: see `SpeedRow`.
  """
  key = (task, drafter, temperature)
  return next(
    row.acceptance_rate
    for row in LEVIATHAN_TABLE_4
    if (row.task, row.drafter, row.temperature) == key
  )


class EwifRow(NamedTuple):
  """A row of Chen et al., arXiv:2312.11462, Table 1.

  Attributes:
    task: "cnndm" or "ende".
    drafts: pairs (size of T5 v1.1, tokens that it drafts), in the order of the
      block.
    printed: the printed EWIF.
  """

  task: str
  drafts: tuple[tuple[str, int], ...]
  printed: float


CS_DRAFTING_TABLE_1 = (
  EwifRow("cnndm", (("small", 9),), 2.65),
  EwifRow("cnndm", (("base", 8),), 2.96),
  EwifRow("cnndm", (("base", 5), ("small", 3)), 3.03),
  EwifRow("ende", (("small", 12),), 3.61),
  EwifRow("ende", (("base", 11),), 3.75),
  EwifRow("ende", (("base", 5), ("small", 8)), 3.93),
)
