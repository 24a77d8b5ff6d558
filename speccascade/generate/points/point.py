"""A point of a trade-off: a method, and the settings that it decodes with."""

import dataclasses
import functools
from typing import Annotated, Literal, Self

import jax
import jax.numpy as jnp

from speccascade.checkpoints import rule_files
from speccascade.decoding.drafting.draft_pace import SIZES
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.laws.phases import EXACT
from speccascade.decoding.laws.sampling import Sampling, SamplingSettings
from speccascade.decoding.programs import decoders, methods
from speccascade.decoding.programs.decoders import Decoder
from speccascade.decoding.programs.methods import Method
from speccascade.decoding.records.automaton import TokenAutomaton
from speccascade.decoding.records.decode_settings import (
  FIXED,
  MAX_PROB,
  BlockShape,
  BlockSize,
  DraftLength,
  DraftLengthText,
  block_width,
)
from speccascade.decoding.records.phased_alpha import PhasedAlpha
from speccascade.generate.points import alpha_phases, point_checks
from speccascade.generate.points.alpha_phases import (
  AFTER,
  ByPhase,
  PhaseSettings,
)
from speccascade.generate.points.draft_costs import WIDEST, DraftCosts
from speccascade.generate.points.point_checks import ADAPTIVE
from speccascade.settings import fields
from speccascade.settings.fields import values_of

AUTO = "auto"


@fields.checked
@dataclasses.dataclass(frozen=True)
class Point(SamplingSettings, BlockShape, PhaseSettings):
  """A method and its settings, which are checked when the point is made.

  A point has the settings of `SamplingSettings`, `BlockShape` and
  `PhaseSettings`, and the attributes below. Two settings of `BlockShape` are
  written in another way here.

  A verification or a draft length that the method would ignore is refused. The
  configuration of a figure sets gamma, bonus, rule_parameters and marker for
  all of its methods, so a method that does not use them leaves them aside.

  Attributes:
    method: a name in `METHODS`.
    alpha: the parameter of the rule or target; None takes the method's default.
      A `ByPhase` stands for alpha and the settings of `PhaseSettings`.
    gamma: block size; methods without blocks do not use it. "auto" means
      the size that `advice` names, see `advice_files.resolve_gamma`. With
      "adaptive" each row chooses the size of each block; see docs/adaptive.md.
    draft_length: "fixed", or (policy, threshold) as in ("max_prob", 0.4); see
      `DraftLength`.
    advice: OUTPUT_DIR of `speccascade.advise`, or its JSON file.
    draft_costs: what "adaptive" chooses by: the `DraftCosts`, or their file, as
      a run leaves it. None takes those of `advice`, or measures them.
    rule_parameters: the file of `speccascade.learned_rule`, for methods whose
      rule or target was fitted to text.

  Raises:
    ValueError: a setting is unknown or out of range, or the method ignores it.
  """

  method: Annotated[str, methods.find]
  alpha: float | ByPhase | None = None
  _: dataclasses.KW_ONLY
  gamma: BlockSize | Literal["auto", "adaptive"] = 5
  draft_length: DraftLengthText = FIXED
  advice: fields.Path | None = None
  draft_costs: fields.Path | DraftCosts | None = None
  rule_parameters: fields.Path | None = None

  def __post_init__(self):
    if isinstance(self.alpha, ByPhase):
      for name, default in values_of(PhaseSettings(), PhaseSettings).items():
        if getattr(self, name) != default:
          fault = (
            " is given next to a ByPhase, which sets it: leave out one of them"
          )
          raise fields.SettingError(name, fault, Point)
      for name, value in self.alpha.settings.items():
        object.__setattr__(self, name, value)
    if self.alpha is None:
      object.__setattr__(self, "alpha", self.spec.default_alpha)
    if isinstance(self.draft_costs, fields.Path):
      costs = DraftCosts.read(self.draft_costs)
      object.__setattr__(self, "draft_costs", costs)
    try:
      super().__post_init__()
      alpha_phases.check(self)
      point_checks.check_phases(self)
      if self.is_adaptive:
        point_checks.check_adaptive(self)
      self.spec.check_settings(**self.optional_settings)
      if self.is_tree:
        self.spec.check_takes_trees()
    except fields.SettingError as error:
      raise fields.SettingError(error.name, error.fault, Point) from error
    if self.spec.greedy_only and not self.is_greedy:
      raise ValueError(
        f"{self.method} is defined at temperature 0 only; TEMPERATURE is"
        f" {self.temperature:g}"
      )
    if self.spec.has_parameters:
      point_checks.check_parameters(self)

  @property
  def rule_file(self) -> rule_files.RuleFile:
    """The file of the rule's parameters, which is read once."""
    return rule_files.read(self.rule_parameters)

  @functools.cached_property
  def decoder_alpha(self) -> float | FittedAlpha:
    """Alpha as a decoder takes it: with the parameters of the rule, if any.

    Raises:
      SettingError: alpha is by phase, and needs the marker's automaton.
    """
    if self.has_phases:
      fault = (
        f" is {self.marker!r}; only what decodes texts reads one: leave it out"
      )
      raise fields.SettingError("marker", fault, Point)
    return self.with_parameters(self.alpha)

  def phased_alpha(self, marker: TokenAutomaton) -> PhasedAlpha:
    """Returns both alphas, as a decoder takes them.

    Args:
      marker: the automaton of the point's own marker.
    """
    alphas = [
      each if each == EXACT else self.with_parameters(each)
      for each in (self.alpha, self.other_alpha)
    ]
    if self.alpha_phase == AFTER:
      alphas.reverse()
    return PhasedAlpha.of(*alphas, marker)

  def with_parameters(self, alpha: float) -> float | FittedAlpha:
    """Returns an alpha with the parameters of the rule, if it has any."""
    if not self.spec.has_parameters:
      return alpha
    parameters = self.rule_file.parameters[self.spec.target.kind.name]
    return FittedAlpha(alpha, jax.tree.map(jnp.asarray, parameters))

  @property
  def has_phases(self) -> bool:
    """Whether alpha differs between the phases of an output."""
    return self.marker is not None and self.spec.takes_phases

  @property
  def optional_settings(self) -> dict[str, str]:
    """The values of the settings in `Method.settings`."""
    policy = DraftLength.parse(self.draft_length).policy
    return {"draft_length": policy, "verification": self.verification}

  def of(self, method: str, **changes) -> Self:
    """Returns the point of another method with the settings of this point.

    A gamma, draft length, verification or tree that the method does not use is
    left out, as are costs of drafts, and alpha is the method's default.

    Args:
      method: name of the other method.
      **changes: fields of the point that get another value.
    """
    values_of_method = methods.find(method).settings
    defaults = {"alpha": None}
    for name, value in self.optional_settings.items():
      if value not in values_of_method[name]:
        defaults[name] = values_of_method[name][0]
    if not methods.find(method).takes_trees:
      defaults |= {"tree": None, "drafts": None, "drawing": None}
    if not methods.find(method).takes_phases:
      defaults |= values_of(PhaseSettings(), PhaseSettings)
    if not methods.find(method).has_blocks:
      # Points of one method and sampling are then equal, and are decoded once.
      changes |= {"gamma": Point.gamma, "draft_costs": None}
    return dataclasses.replace(self, method=method, **defaults | changes)

  @property
  def is_tree(self) -> bool:
    """Whether the settings say that a block is a tree."""
    return self.tree is not None or (self.drafts or 1) > 1

  @property
  def is_adaptive(self) -> bool:
    """Whether each row chooses the sizes of its blocks."""
    return self.gamma == ADAPTIVE and self.spec.has_blocks

  @property
  def sizes(self) -> tuple[int, ...]:
    """The block sizes that "adaptive" chooses from.

    Without a draft the target has no q, so only a lossless method drafts none.
    """
    return SIZES if self.spec.is_lossless else SIZES[1:]

  @property
  def widest(self) -> int:
    """The size of the widest block, gamma itself where it is a number."""
    if self.gamma != ADAPTIVE:
      return self.gamma
    costs = self.draft_costs
    return costs.sizes[-1] if isinstance(costs, DraftCosts) else WIDEST

  def drafter(self, model):
    """Returns what a decoder drafts with: the model, or one that chooses.

    Args:
      model: the draft model of the pair, or None.
    """
    if not self.is_adaptive:
      return model
    costs = self.draft_costs
    assert isinstance(costs, DraftCosts), "the costs are not known yet"
    return (costs if 0 in self.sizes else costs.without_zero()).drafter(model)

  @property
  def spec(self) -> Method:
    """The method's row of the table."""
    return methods.find(self.method)

  @functools.cached_property
  def sampling(self) -> Sampling:
    """The settings of `SamplingSettings` as a decoder takes them."""
    return Sampling.of(self)

  @property
  def policy(self) -> DraftLength:
    """The draft length as a decoder takes it.

    It is "fixed" where the threshold is the one that "fixed" stands for.
    """
    if self.draft_length == (MAX_PROB, self.spec.execution.fallback):
      return DraftLength(FIXED)
    return DraftLength.parse(self.draft_length)

  def decoder(self, **run) -> Decoder:
    """Returns the decoder of the point.

    Args:
      **run: the fields of `Decoder` that are not settings of the point.
    """
    shape = values_of(self, BlockShape)
    shape |= {"draft_length": self.policy, "gamma": self.widest}
    return decoders.decoder(self.method, **shape, **run)

  @property
  def verify_width(self) -> int:
    """The tokens that one verifier pass feeds."""
    if self.spec.has_blocks:
      return block_width(self.widest, self.tree, self.drafts)
    return self.spec.execution.pass_width

  @property
  def folds(self) -> bool:
    """Whether the drafter's catch-up folds into its next call."""
    return (
      self.spec.has_blocks
      and self.policy.policy == "fixed"
      and (not self.spec.target.uses_q or self.bonus == "verifier")
    )
