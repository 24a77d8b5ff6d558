"""The settings of a point as they are recorded: `PointSettings`."""

import contextlib
import dataclasses
import hashlib
import json
from typing import Annotated, Any, Literal

from speccascade.decoding.records.decode_settings import (
  FIXED,
  BlockShape,
  BlockSize,
  Bonus,
  Verification,
  block_width,
)
from speccascade.decoding.records.draft_tree import ROOT, Drawing
from speccascade.generate.points.alpha_phases import (
  AlphaOrExact,
  Marker,
  PhaseSettings,
)
from speccascade.generate.points.point import Point
from speccascade.settings import fields
from speccascade.settings.fields import values_of

# The settings that rows leave out while they are None: they are younger than
# the first rows, whose keys stay what they are.
LEFT_OUT = (
  "rule_parameters",
  "min_p",
  "tree",
  "drafts",
  "drawing",
  "limits",
  "marker",
  "alpha_phase",
  "other_alpha",
)


@dataclasses.dataclass(frozen=True)
class PointSettings:
  """What was run at a point; equal settings are one point.

  The settings of a block are None where the method does not use them, and a
  filter of tokens is None where it keeps every token. The fields are written in
  this order to every row. A new setting comes last, with the default None, and
  in `LEFT_OUT`.

  Attributes:
    method: name in `METHODS`.
    alpha: None where the method has none.
    gamma: see `BlockShape`; or "adaptive", see `Point`.
    temperature: see `SamplingSettings`; 0 for all that is greedy.
    max_decode_len: see `Run`.
    task: name of the task or input file.
    split: split of the task.
    num_examples: examples decoded for quality and counts.
    drafter: name of the drafter, with its step.
    verifier: name of the verifier, with its step.
    seed: see `Run`.
    trials: how often each example was decoded.
    top_k: see `SamplingSettings`.
    top_p: see `SamplingSettings`.
    bonus: see `ReviewSettings`.
    verification: see `ReviewSettings`.
    draft_length: the policy of the `DraftLength`.
    draft_threshold: the threshold of the `DraftLength`.
    dtype: of the activations.
    rule_parameters: the digest of the file of the rule's parameters; None where
      the rule has none.
    min_p: see `SamplingSettings`.
    tree: see `BlockShape`.
    drafts: see `BlockShape`.
    drawing: see `BlockShape`.
    limits: the `TextLimits` that are not the default, as JSON; None where there
      are none.
    marker: see `PhaseSettings`; None where alpha holds everywhere.
    alpha_phase: see `PhaseSettings`.
    other_alpha: see `PhaseSettings`.
  """

  method: str
  alpha: float | None
  gamma: BlockSize | Literal["adaptive"] | None
  temperature: Annotated[float, fields.Bounds(0)]
  max_decode_len: fields.Positive
  task: str
  split: str
  num_examples: fields.Positive
  drafter: str
  verifier: str
  seed: int = 0
  trials: fields.Positive = 1
  top_k: fields.NonNegative | None = None
  top_p: Annotated[float, fields.Bounds(0, 1, low_open=True)] | None = None
  bonus: Bonus | None = None
  verification: Verification | None = None
  draft_length: str | None = None
  draft_threshold: float = 0.0
  dtype: str = "float32"
  rule_parameters: str | None = None
  min_p: fields.Share | None = None
  tree: tuple[Annotated[int, fields.Bounds(ROOT, 1024)], ...] | None = None
  drafts: Annotated[int, fields.Bounds(1, 1024)] | None = None
  drawing: Drawing | None = None
  limits: str | None = None
  marker: Marker | None = None
  alpha_phase: Literal["before", "after"] | None = None
  other_alpha: AlphaOrExact | None = None

  @property
  def key(self) -> str:
    """A name of the point, equal in every process."""
    text = json.dumps(self.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def to_dict(self) -> dict[str, Any]:
    """Returns the settings as a row has them."""
    values = dataclasses.asdict(self)
    return {
      name: value
      for name, value in values.items()
      if value is not None or name not in LEFT_OUT
    }

  @property
  def block_width(self) -> int | None:
    """The tokens of a verifier pass over a block.

    None without blocks, and where blocks are of several sizes.
    """
    if not isinstance(self.gamma, int):
      return None
    return block_width(self.gamma, self.tree, self.drafts)

  @property
  def cell(self) -> str:
    """The name of the temperature and the drafts, as SPEED-Bench's tables have.

    "t1_d5" is temperature 1 and blocks of 5 drafts, "t0_d0" a model alone,
    greedily. All drafts of a tree count.
    """
    num_drafts = self.gamma or 0
    if isinstance(num_drafts, int):
      # The shape of a row that was read may not be a tree.
      with contextlib.suppress(ValueError):
        num_drafts = block_width(num_drafts, self.tree, self.drafts) - 1
    return f"t{self.temperature:g}_d{num_drafts}"

  @property
  def block_changes(self) -> dict[str, Any]:
    """The settings of a block that differ from their defaults, gamma aside.

    The draft length is written as a configuration writes it.
    """
    changes = {}
    for field in dataclasses.fields(BlockShape):
      value = getattr(self, field.name)
      if field.name == "draft_length":
        if value not in (None, FIXED):
          changes[field.name] = (value, self.draft_threshold)
      elif field.name != "gamma" and value not in (None, field.default):
        changes[field.name] = value
    return changes

  @property
  def phases(self) -> PhaseSettings | None:
    """The settings of the phases of alpha; None where it has none."""
    if self.marker is None:
      return None
    return PhaseSettings(**values_of(self, PhaseSettings))

  @property
  def words(self) -> list[str]:
    """The settings that matter most, as "alpha 0.3"."""
    words = []
    for name in ("alpha", "gamma", "temperature"):
      value = getattr(self, name)
      if value is not None:
        text = value if isinstance(value, str) else f"{value:g}"
        words.append(f"{name} {text}")
      if name == "alpha" and self.phases is not None:
        words.append(self.phases.other_phase_in_words)
    return words


def settings_of(point: Point, **run) -> PointSettings:
  """Returns a point's settings; one that the method ignores is None.

  Args:
    point: the method and its settings.
    **run: the fields of `PointSettings` that are not settings of the point.
  """
  spec, length = point.spec, point.policy
  shape = values_of(point, BlockShape)
  if not spec.uses_bonus:
    shape["bonus"] = "target"
  # One draft is a chain, and a tree is drawn in one way by default.
  if not point.is_tree:
    shape |= {"drafts": None}
  elif point.drawing is None:
    shape |= {"drawing": point.tree_drawing}
  if not spec.has_blocks:
    shape = dict.fromkeys(shape)
  if spec.has_blocks or length.policy != FIXED:
    shape["draft_length"] = length.policy
  return PointSettings(
    method=point.method,
    alpha=point.alpha if spec.uses_alpha else None,
    draft_threshold=length.threshold,
    **(values_of(point, PhaseSettings) if point.has_phases else {}),
    rule_parameters=point.rule_file.digest if spec.has_parameters else None,
    **point.sampled,
    **shape,
    **run,
  )
