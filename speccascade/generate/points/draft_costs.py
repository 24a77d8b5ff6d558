"""`GAMMA = "adaptive"`: the costs of rounds by block size, and the drafter.

The costs are measured once, and are stored in a file next to the outputs: a run
that continues reads them there. They are a part of what decides a row's gammas,
so the same costs give the same outputs; different costs may not.
"""

from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
from typing import Annotated, Any, Self

import numpy as np

from speccascade.decoding.drafting.adaptive import AdaptiveDrafter
from speccascade.decoding.drafting.adaptive_reader import ChoosingReader
from speccascade.decoding.drafting.draft_pace import (
  CATCH_UP_WIDTH,
  SIZES,
  PaceCosts,
)
from speccascade.decoding.records.readers import reads_states
from speccascade.generate.points.call_costs import Costs
from speccascade.runtime import files
from speccascade.settings import fields

FILE_NAME = "draft_costs.json"
WIDEST = SIZES[-1]
_UNIT_FACTOR = 2.0  # between the unit of a file and the right one
_MUCH = 1e6  # the cost of a round that is never to be chosen

_Cost = Annotated[float, fields.Bounds(0, low_open=True)]


@fields.checked
@dataclasses.dataclass(frozen=True)
class DraftCosts:
  """What rounds cost, in rounds of the verifier alone.

  Attributes:
    sizes: the block sizes, ascending; among `draft_pace.SIZES`.
    rounds: the cost of a round whose blocks have each of the sizes.
    catch_up: the cost of a drafter's pass over `CATCH_UP_WIDTH` tokens.
  """

  sizes: tuple[Annotated[int, fields.Bounds(0, WIDEST)], ...]
  rounds: tuple[_Cost, ...]
  catch_up: _Cost

  def __post_init__(self):
    """Raises SettingError where sizes and costs do not fit each other."""
    fault = ""
    if not set(self.sizes) <= set(SIZES) or not any(self.sizes):
      fault = f" are {list(self.sizes)}; wanted some of {list(SIZES)}"
    elif list(self.sizes) != sorted(set(self.sizes)):
      fault = f" are {list(self.sizes)}; wanted each once, ascending"
    elif len(self.sizes) != len(self.rounds):
      fault = f" are {len(self.sizes)}, and rounds {len(self.rounds)}"
    if fault:
      raise fields.SettingError("sizes", fault, DraftCosts)

  @classmethod
  def of_one_size(cls, size: int, sizes: Sequence[int]) -> Self:
    """Returns costs at which every row takes one of the sizes."""
    rounds = tuple(1.0 if other == size else _MUCH for other in sizes)
    return cls(tuple(sizes), rounds, 1.0)

  @classmethod
  def of_calls(cls, costs: Costs, *, folds: bool) -> Self:
    """Returns the costs of rounds that consist of their calls alone.

    Args:
      costs: of calls, in passes of the verifier over one token.
      folds: whether a block's first drafter pass feeds two tokens.

    Raises:
      ValueError: the costs have no pass over two tokens.
    """
    widths = sorted(costs.v)
    # (A pass that was not measured is not extrapolated.)
    sizes = [size for size in SIZES if size < widths[-1]]
    rounds = []
    for size in sizes:
      drafting = (size - 1) * costs.c + costs.q2
      if not folds:
        drafting = (size + 1) * costs.c
      passes = [costs.v[width] for width in widths]
      verifying = float(np.interp(size + 1, widths, passes))
      rounds.append(verifying + (drafting if size else 0.0))
    wide = costs.c + (CATCH_UP_WIDTH - 1) * max(costs.q2 - costs.c, 0.0)
    return cls(tuple(sizes), tuple(rounds), wide)

  @classmethod
  def read(cls, path: str | os.PathLike) -> Self:
    """Returns the costs in a file, or in the `FILE_NAME` of a folder.

    Raises:
      ValueError: there is no such file, or it holds no costs, or not in rounds
        of the verifier alone.
    """
    path = pathlib.Path(path).expanduser()
    path = path / FILE_NAME if os.path.isdir(path) else path
    if not os.path.isfile(path):
      raise ValueError(
        f"DRAFT_COSTS {path} is not there; leave it out, and the costs are"
        " measured"
      )
    try:
      return cls._of_file(path)
    except ValueError as error:
      raise ValueError(
        f"DRAFT_COSTS {path} has no costs ({error}); leave it out, and they are"
        " measured"
      ) from error

  @classmethod
  def read_own(cls, path: pathlib.Path) -> Self:
    """Returns the costs that an earlier start of a run left in its folder.

    Raises:
      ValueError: the file is damaged.
    """
    try:
      return cls._of_file(path)
    except ValueError as error:
      raise ValueError(
        f"{path} is damaged ({error}), and the gammas of this run depend on it:"
        " restore it from draft_costs in run.json beside it, or give another"
        " OUTPUT_DIR"
      ) from error

  @classmethod
  def _of_file(cls, path: pathlib.Path) -> Self:
    costs = fields.build(cls, fields.of_json(path.read_text("utf-8")))
    # Every round has a pass of the verifier, and one without drafts is nothing
    # else: it is the unit.
    size, cost = costs.sizes[0], costs.rounds[0]
    if cost < 1 / _UNIT_FACTOR or (not size and cost > _UNIT_FACTOR):
      raise ValueError(
        f"a round with {size} drafts costs {cost:g}, and the unit is a round of"
        " the verifier alone: divide all costs by that of such a round"
      )
    return costs

  def write(self, path: pathlib.Path):
    """Writes the costs to a file, whole or not at all."""
    text = json.dumps(dataclasses.asdict(self), indent=2)
    files.write_whole(path, text + "\n")

  @property
  def may_pay(self) -> bool:
    """Whether drafts pay if all of them are accepted."""
    return any(
      size and size + 1 > cost for size, cost in zip(self.sizes, self.rounds)
    )

  def without_zero(self) -> Self:
    """Returns the costs of the sizes from 1 on."""
    kept = [(s, cost) for s, cost in zip(self.sizes, self.rounds) if s]
    sizes, rounds = zip(*kept)
    return dataclasses.replace(self, sizes=sizes, rounds=rounds)

  def drafter(self, model: Any) -> AdaptiveDrafter | ChoosingReader:
    """Returns what drafts with a model, or a state reader, at these costs."""
    # (NumPy's numbers: putting each on the device costs a launch.)
    costs = PaceCosts(
      np.asarray(self.rounds, np.float32), np.float32(self.catch_up)
    )
    if reads_states(model):
      return ChoosingReader(model, costs, self.sizes)
    return AdaptiveDrafter.of(model, costs, self.sizes)
