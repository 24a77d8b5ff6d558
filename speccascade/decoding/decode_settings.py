"""How to decode: each setting once, with its type, its check and its meaning.

A record below is the one place that declares a setting. Whatever needs the
setting inherits the record: `Point` and `Run`, which gin and the API make;
`Decoder`, which is compiled; and the settings that a loop is traced with. Rows
of results take their fields from the records too. A new setting is therefore a
field here, and whatever reads it.
"""

import dataclasses
import math
from typing import Annotated, Any, Literal

from speccascade.decoding.laws import numerics
from speccascade.settings import fields

FIXED: Literal["fixed"] = "fixed"
MAX_PROB: Literal["max_prob"] = "max_prob"
TOKEN_PROB: Literal["token_prob"] = "token_prob"
GREEDY_BELOW = 1e-4  # temperatures up to this mean arg-max, as in T5X

BlockSize = Annotated[int, fields.Bounds(1, 1024)]
Bonus = Literal["target", "verifier"]
Verification = Literal["token", "block"]  # the names in `steps.VERIFY`
StopRule = Literal["max_prob", "token_prob"]
# A `DraftLength` as a configuration writes it.
DraftLengthText = Literal["fixed"] | tuple[StopRule, fields.Share]


@fields.checked
@dataclasses.dataclass(frozen=True)
class DraftLength:
  """How long a block may grow: gamma, or shorter where the drafter is unsure.

  Attributes:
    policy: "fixed" always drafts gamma tokens. "max_prob" stops before a draw
      where max q < threshold. "token_prob" stops after a token whose sampled
      probability is below the threshold.
    threshold: a probability; "fixed" has none.

  Raises:
    ValueError: a field is of the wrong kind or out of range, or "fixed" has a
      threshold.
  """

  policy: Literal["fixed", StopRule] = FIXED
  threshold: fields.Share = 0.0

  def __post_init__(self):
    if self.policy == FIXED and self.threshold:
      fault = (
        f" is {self.threshold}, and {FIXED!r} has none; leave it out, or use"
        f" {MAX_PROB!r} or {TOKEN_PROB!r}"
      )
      raise fields.SettingError("threshold", fault, DraftLength)

  @classmethod
  def parse(cls, text: DraftLengthText) -> "DraftLength":
    """Returns the draft length that a configuration writes as `text`."""
    if isinstance(text, str):
      return cls(text)
    policy, threshold = text
    return cls(policy, threshold)


# A drafter that is a pytree inherits settings, which flax is to keep static.
_STATIC = {"pytree_node": False}


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class ReviewSettings:
  """How a verifier reviews a drafted block.

  Attributes:
    verification: "token" accepts or rejects each draft on its own, "block" the
      block as a whole.
    bonus: which distribution the token after a fully accepted block is drawn
      from. "target" is exact; where the drafter has no distribution at that
      position, the target there is the verifier's. "verifier" is what Algorithm
      4 prints; it changes the law of the output unless the target is the
      verifier itself. Methods whose target is the verifier, and methods without
      blocks, do not use this setting.
  """

  verification: Verification = dataclasses.field(
    default="token", metadata=_STATIC
  )
  bonus: Bonus = dataclasses.field(default="target", metadata=_STATIC)


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockShape(ReviewSettings):
  """How a block is drafted, and how it is reviewed.

  Attributes:
    gamma: block size, the number of drafted tokens. Methods without blocks do
      not use it.
    draft_length: whether a block may end before it has gamma tokens.
  """

  gamma: BlockSize
  draft_length: DraftLength = DraftLength()

  @property
  def block_width(self) -> int:
    """The tokens that a verifier pass over a block feeds."""
    return block_width(self.gamma)


def block_width(gamma: int) -> int:
  """Returns the tokens that a verifier pass over a block feeds: gamma + 1.

  They are the last token before the block, and the drafts. A block also writes
  at most so many tokens: the drafts, and the bonus token. With gamma 0, a model
  alone, it is one token.
  """
  return gamma + 1


class _IsFloat32:
  """A rule of a setting: float32 does not round the number to infinity."""

  def holds(self, value: float) -> bool:
    return math.isfinite(numerics.as_float32(value))

  def __str__(self) -> str:
    return "that float32 holds"


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings:
  """How tokens are drawn; `Sampling.of` makes the arrays of a program.

  Attributes:
    temperature: divides the logits. 0 is greedy: the likeliest token is taken.
    top_k: exactly so many of the likeliest tokens are kept; None or 0 keeps
      every token.
    top_p: the smallest set of likeliest tokens that holds this much probability
      is kept, and always the likeliest token; None or 1 keeps every token.
  """

  temperature: Annotated[float, fields.Bounds(0), _IsFloat32()] = 1.0
  # A filter says which number keeps every token, as None does.
  top_k: fields.NonNegative | None = dataclasses.field(
    default=None, metadata={"everything": 0}
  )
  top_p: Annotated[float, fields.Bounds(0, 1, low_open=True)] | None = (
    dataclasses.field(default=None, metadata={"everything": 1})
  )

  @property
  def is_greedy(self) -> bool:
    """Whether the likeliest token is taken instead of a draw."""
    return self.temperature <= GREEDY_BELOW

  @property
  def sampled(self) -> dict[str, float | None]:
    """The settings by name, with None for each filter that keeps every token.

    Equal dicts draw alike: nothing is filtered from an arg-max.
    """
    values = values_of(self, SamplingSettings)
    if self.is_greedy:
      values["temperature"] = 0.0
    for field in dataclasses.fields(SamplingSettings):
      if "everything" in field.metadata:
        keeps_all = values[field.name] == field.metadata["everything"]
        if keeps_all or self.is_greedy:
          values[field.name] = None
    return values


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
  """What is recorded of each token.

  Attributes:
    trace: whether to record which model wrote each token, and why.
    log_probs: whether to record how likely the target, the verifier and the
      drafter found each token; see docs/definitions.md.
  """

  trace: bool = False
  log_probs: bool = False


def names_of(record: type) -> list[str]:
  """Returns the names of a record's fields, inherited fields first."""
  return [field.name for field in dataclasses.fields(record)]


def values_of(settings: object, record: type) -> dict[str, Any]:
  """Returns the fields of a record by name, with the values of `settings`.

  Args:
    settings: an object that has all of these fields, as one that inherits the
      record.
    record: a dataclass.

  >>> values_of(BlockShape(gamma=3, bonus="verifier"), ReviewSettings)
  {'verification': 'token', 'bonus': 'verifier'}
  """
  return {name: getattr(settings, name) for name in names_of(record)}
