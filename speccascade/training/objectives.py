"""What training minimises: losses as settings, each with its own fields.

A loss is called with a `Lesson`, which has everything that one batch offers:
the model's logits, the teacher's, the targets, the step. It returns one number
for each target token. The training step multiplies the numbers with the tokens'
weights and sums them, so padding and prompts are left out in one place,
whatever the loss.

To add a loss, write a frozen dataclass with `needs_teacher` and `__call__`, and
its line in `LOSSES` if it needs no fields.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import (
  TYPE_CHECKING,
  Annotated,
  Any,
  ClassVar,
  Literal,
  NamedTuple,
)

import jax
import jax.numpy as jnp

from speccascade.checkpoints import rule_files
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.programs import methods
from speccascade.models import layers
from speccascade.settings import fields
from speccascade.training import losses
from speccascade.training.verifier_tuning import VerifierTuning

if TYPE_CHECKING:
  from speccascade.training.lesson import Lesson

Array = jax.Array


class TokenLoss(NamedTuple):
  """The loss of each target token, before it is weighted and summed.

  Attributes:
    loss: [B, T] float32, the loss, in nats or as a probability.
    z_loss: [B, T] float32, the z-loss part of `loss`, for the log.
  """

  loss: Array
  z_loss: Array

  @classmethod
  def plain(cls, loss: Array) -> "TokenLoss":
    """Returns a loss that has no z-loss."""
    return cls(loss, jnp.zeros_like(loss))


class TrainingLoss:
  """A loss of target tokens; the base of all losses.

  Attributes:
    needs_teacher: whether the loss reads a teacher's distributions.
  """

  needs_teacher: ClassVar[bool] = False

  def __call__(self, lesson: "Lesson") -> TokenLoss:
    """Returns the loss of each target token of a batch."""
    raise NotImplementedError


@fields.checked
@dataclasses.dataclass(frozen=True)
class CrossEntropy(TrainingLoss):
  """The cross-entropy of the text that a batch holds.

  Attributes:
    z_loss: the weight of log(Z) ** 2 in the loss, Z the softmax's normaliser.
    label_smoothing: the probability that the label gives to all other tokens.
    smoothing_ends: the step from which on there is no label smoothing; None
      smooths until the end.
  """

  z_loss: Annotated[float, fields.Bounds(0)] = 1e-4
  label_smoothing: Annotated[float, fields.Bounds(0, 1, high_open=True)] = 0.0
  smoothing_ends: fields.NonNegative | None = None

  def __call__(self, lesson: "Lesson") -> TokenLoss:
    smoothing: float | Array = self.label_smoothing
    # The smoothing is traced only where it ends.
    if smoothing and self.smoothing_ends is not None:
      smoothing = jnp.where(lesson.step < self.smoothing_ends, smoothing, 0.0)
    return TokenLoss(
      *losses.cross_entropy(
        lesson.logits,
        lesson.targets,
        label_smoothing=smoothing,
        z_loss=self.z_loss,
      )
    )


class TaughtLoss(TrainingLoss):
  """A loss of the teacher's p and the model's q alone, whatever the text."""

  needs_teacher = True

  def __call__(self, lesson: "Lesson") -> TokenLoss:
    return TokenLoss.plain(self.between(lesson.teacher_logits, lesson.logits))

  def between(self, teacher_logits: Array, logits: Array) -> Array:
    """Returns the loss [...] of logits [..., V] of p and of q."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class ForwardKL(TaughtLoss):
  """KL(p || q): the model covers all that the teacher may say."""

  between = staticmethod(losses.divergence)


@dataclasses.dataclass(frozen=True)
class ReverseKL(TaughtLoss):
  """KL(q || p): the model says nothing that the teacher would not say."""

  between = staticmethod(losses.reverse_divergence)


@fields.checked
@dataclasses.dataclass(frozen=True)
class GeneralJSD(TaughtLoss):
  """JSD(beta): between the forward and the reverse divergence.

  Attributes:
    beta: the weight of p; see `losses.jensen_shannon`.
  """

  beta: Annotated[float, fields.Bounds(0, 1, low_open=True, high_open=True)] = (
    0.5
  )

  def between(self, teacher_logits: Array, logits: Array) -> Array:
    return losses.jensen_shannon(teacher_logits, logits, beta=self.beta)


@dataclasses.dataclass(frozen=True)
class VariationLoss(TaughtLoss):
  """TV(p, q): the chance that speculative sampling rejects a draft."""

  between = staticmethod(losses.variation)


@fields.checked
@dataclasses.dataclass(frozen=True)
class RejectionLoss(TaughtLoss):
  """The chance that a draft is rejected under the target of a method.

  Attributes:
    method: a method of the table that has a target distribution.
    alpha: the target's alpha; None takes the default of its range.
    rule_parameters: the file of `speccascade.learned_rule`, for a method whose
      rule has parameters; None for all others.
  """

  method: str = "spec_decode"
  alpha: float | None = None
  rule_parameters: fields.Path | None = None

  def __post_init__(self):
    method = methods.find(self.method)
    if method.target is None:
      raise ValueError(
        f"method {self.method} has no target distribution, so it has no"
        " acceptance to train on; give a method that has one, say"
        " spec_cascade_opt"
      )
    kind, fault = method.target.kind, None
    if kind is None and self.rule_parameters is not None:
      fault = f" is given, and {self.method} has no parameters: leave it out"
    elif kind is not None and self.rule_parameters is None:
      # Without them the rule is its plug-in, which is not decoded under this
      # name.
      fault = (
        f" is None, and {self.method} has parameters: set"
        " ACCEPTANCE_RULE_PARAMETERS to the file that python -m"
        " speccascade.learned_rule writes"
      )
    elif kind is not None and kind.name not in self._parameters:
      fault = (
        f" names a file without {kind.name}, which {self.method} has: name the"
        " file that python -m speccascade.learned_rule writes"
      )
    if fault:
      raise fields.SettingError("rule_parameters", fault, RejectionLoss)

  @property
  def _parameters(self) -> Mapping[str, Any]:
    """The parameters of each kind in the file, which is read once."""
    assert self.rule_parameters is not None
    return rule_files.read(self.rule_parameters).parameters

  def between(self, teacher_logits: Array, logits: Array) -> Array:
    target = methods.find(self.method).target
    assert target is not None
    alpha: Any = target.interval.default if self.alpha is None else self.alpha
    vocab_size = logits.shape[-1]
    if not target.interval.contains(alpha, vocab_size):
      raise ValueError(
        f"alpha {alpha:g} is outside the range of {self.method}; wanted"
        f" {target.interval.describe(vocab_size)}"
      )
    if target.kind is not None:
      parameters = self._parameters[target.kind.name]
      alpha = FittedAlpha(alpha, jax.tree.map(jnp.asarray, parameters))
    return losses.rejection(teacher_logits, logits, target, alpha=alpha)


@fields.checked
@dataclasses.dataclass(frozen=True)
class MixedLoss(TrainingLoss):
  """(1 - share) times one loss plus share times another.

  Attributes:
    share: the weight of `second`.
    first: a loss.
    second: a loss.
  """

  share: fields.Share
  first: TrainingLoss
  second: TrainingLoss

  @property
  def needs_teacher(self) -> bool:  # type: ignore[override]
    """Whether one of the two losses reads a teacher."""
    return self.first.needs_teacher or self.second.needs_teacher

  def __call__(self, lesson: "Lesson") -> TokenLoss:
    first, second = self.first(lesson), self.second(lesson)
    return TokenLoss(
      *((1 - self.share) * x + self.share * y for x, y in zip(first, second))
    )


# The losses that a name stands for, with the defaults of their fields.
LOSSES: dict[str, Callable[[], TrainingLoss]] = {
  "cross_entropy": CrossEntropy,
  "forward_kl": ForwardKL,
  "reverse_kl": ReverseKL,
  "jsd": GeneralJSD,
  "tvd": VariationLoss,
  "acceptance": RejectionLoss,
}


@fields.checked
@dataclasses.dataclass(frozen=True)
class Objective:
  """What training minimises; the defaults are T5 v1.1's fine-tuning.

  Attributes:
    z_loss: the weight of log(Z) ** 2 in the loss, Z the softmax's normaliser.
    label_smoothing: the probability that the label gives to all other tokens.
    smoothing_ends: the step from which on there is no label smoothing; None
      smooths until the end. A model that will be sampled at temperature 1 does
      better without label smoothing at the end.
    loss_normalizing_factor: what the summed loss is divided by, see
      `losses.normalize`.
    loss: what is minimised: a name of `LOSSES`, or a loss with its
      own fields. None is the cross-entropy, of which `teacher_share` may
      replace a part by the forward divergence.
    teacher_share: share s of a loss that reads a teacher: (1 - s) times the
      cross-entropy with its smoothing and z-loss, plus s times the loss. None
      is 1 where `loss` reads a teacher, and 0 where `loss` is None.
    head_decay: of draft heads: the loss of head k, or of look-ahead embedding
      k, counts `head_decay` ** k.
    tuning: of draft heads: how their verifier learns too; None trains the heads
      alone.
    microbatches: the number of parts in which a batch is fed. The parts'
      gradients are added up; the step equals the whole batch's step but for
      rounding and dropout's masks.
    remat: which of a layer's arrays are computed again for the gradient, as in
      T5X. "full" stores the layer's input alone, "minimal" stores its products
      with kernels too, None stores everything. The steps differ by
      rounding only.
  """

  z_loss: Annotated[float, fields.Bounds(0)] = 1e-4
  label_smoothing: Annotated[float, fields.Bounds(0, 1, high_open=True)] = 0.0
  smoothing_ends: fields.NonNegative | None = None
  loss_normalizing_factor: (
    Annotated[float, fields.Bounds(0, low_open=True)] | losses.Normalizer | None
  ) = None
  loss: Literal[*LOSSES] | TrainingLoss | None = None
  teacher_share: fields.Share | None = None
  head_decay: Annotated[float, fields.Bounds(0, low_open=True)] = 0.8
  tuning: VerifierTuning | None = None
  microbatches: fields.Size = 1
  remat: Literal[*layers.REMAT] | None = None

  @functools.cached_property
  def whole(self) -> TrainingLoss:
    """The loss with the cross-entropy's part in it."""
    text = CrossEntropy(self.z_loss, self.label_smoothing, self.smoothing_ends)
    loss, share = self.loss, self.teacher_share
    if loss == "cross_entropy" or (loss is None and not share):
      return text
    if loss is None:
      loss = ForwardKL()
    elif isinstance(loss, str):
      loss = LOSSES[loss]()
    if share is None or not loss.needs_teacher:
      share = 1.0
    if share in (0, 1):
      return loss if share else text
    return MixedLoss(share, text, loss)

  @property
  def needs_teacher(self) -> bool:
    """Whether the loss reads a teacher's distributions."""
    return self.whole.needs_teacher


# The objective where none is given.
T5_FINE_TUNING = Objective()
