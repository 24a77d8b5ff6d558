"""A method with its static settings, as one compiled program: `Decoder`."""

import dataclasses
import functools
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from speccascade import native
from speccascade.decoding.drafting import windowed
from speccascade.decoding.drafting.autoregressive import StopPolicy
from speccascade.decoding.drafting.kept_tokens import with_columns
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.loops.execution import Execution, LoopSettings
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.programs import draft_models
from speccascade.decoding.programs.call_checks import (
  check_call,
  check_continues_alone,
  check_decoder,
)
from speccascade.decoding.programs.draft_models import DraftModels
from speccascade.decoding.programs.families import choose, family
from speccascade.decoding.programs.method import Method
from speccascade.decoding.programs.methods import find
from speccascade.decoding.records import prompts, readers
from speccascade.decoding.records.automaton import NONE, Constraints
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.decode_settings import (
  FIXED,
  MAX_PROB,
  BlockShape,
  DraftLength,
  Records,
  ReviewSettings,
)
from speccascade.decoding.records.draft_tree import TOP_K
from speccascade.decoding.records.language_model import Array, LanguageModel
from speccascade.decoding.records.masked_model import held_to
from speccascade.decoding.records.phased_alpha import PhasedAlpha
from speccascade.settings import fields
from speccascade.settings.fields import values_of

# Token ids, or their shape alone where a call is only lowered.
Inputs = Array | np.ndarray | jax.ShapeDtypeStruct

# What a verification of trees is on a chain.
_OF_CHAIN = {"token": "token", "traversal": "block", "k_seq": "token"}


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder(BlockShape, Records):
  """A method with its static settings; calling it decodes a batch.

  Equal decoders share one compiled program for each shape: alpha, temperature,
  top_p, the threshold of `draft_length` and the keys are traced.

  A decoder has the settings of `BlockShape` and of `Records`, and the settings
  below. Where a call gets a `Drafter`, gamma has to be the depth of its blocks.
  For `bild` the threshold of `draft_length` is the fallback threshold.

  Attributes:
    method: a row of the table of methods.
    max_decode_len: the most tokens of a row, EOS counted.
    eos_id: the id that ends a row, or a tuple of several ids.
    shared: whether the methods of a family share one program, so that a study
      of many methods compiles few programs. The program then branches at each
      target. On a CPU the branch costs little: 20 us of a block's 360 us, at
      V = 4000. On other devices it may wait for the host.
    drafter_window: the most tokens of a text that the drafter was made for; a
      block that ends past it has no drafts. None drafts every block.

  Raises:
    ValueError: a setting is of the wrong kind or out of range, the method would
      ignore it, or the output would have no stated distribution.
  """

  method: Method = dataclasses.field(kw_only=False)
  max_decode_len: fields.Positive
  eos_id: int | tuple[int, ...]
  shared: bool = False
  drafter_window: fields.Positive | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    check_decoder(self.method, self)
    if self.drafter_window is not None:
      check_continues_alone(self.method)

  def __call__(
    self,
    drafter: DraftModels | None,
    verifier: LanguageModel | None,
    inputs: Inputs,
    rngs: Array,
    alpha: float | FittedAlpha | PhasedAlpha,
    sampling: Sampling,
    constraints: Constraints = NONE,
  ) -> Decoded:
    """Decodes a batch.

    Args:
      drafter: a language model; a tuple of several, largest first, for methods
        that compose several; `Heads` or `Lookahead` of the verifier; or a
        `Drafter`, which is used as it is. None for the method `verifier`.
      verifier: a language model; None for the method `drafter`.
      inputs: [B, S] int32 source tokens, 0 is padding. For decoder-only models
        they are prompts, and `prompts.PAD` is padding.
      rngs: [B] typed keys, see `draws.row_keys`.
      alpha: a number in the method's range; or a `FittedAlpha` with such a
        number, for a method with parameters that were fitted to text. With a
        number alone such a method runs its plug-in rule, without parameters. Or
        a `PhasedAlpha` of two of these.
      sampling: a `Sampling`.
      constraints: what texts are held to, and what ends them; see
        `Constraints`.

    Raises:
      ValueError: alpha is outside its range; the method is greedy only; a model
        is missing; the models do not share a vocabulary; one model starts from
        prompts and another from sources; a prompt is not valid, see
        `prompts.check`; the drafter has no confidence for the rule to read; or
        the drafter cannot be masked, and the target reads it.
    """
    program, arguments = self.call(
      drafter, verifier, inputs, rngs, alpha, sampling, constraints
    )
    return _run(program, *arguments)

  def call(
    self,
    drafter: DraftModels | None,
    verifier: LanguageModel | None,
    inputs: Inputs,
    rngs: Array,
    alpha: float | FittedAlpha | PhasedAlpha,
    sampling: Sampling,
    constraints: Constraints = NONE,
  ) -> tuple["Decoder", "CallArguments"]:
    """Checks the arguments of a call, and returns what it compiles and runs.

    Arguments and errors are those of `__call__`.
    """
    self.check(drafter, verifier, alpha, sampling, constraints)
    execution = self.method.execution
    model: Any = verifier if execution.needs_verifier else drafter
    # (Shapes alone, which `lower` may get, have no tokens to check.)
    if model.prompted and not isinstance(inputs, jax.ShapeDtypeStruct):
      prompts.check(inputs, model.vocab_size)
    program, member = self.program(sampling.greedy)
    # Scalars stay NumPy's, because putting each on the device costs a launch.
    return program, CallArguments(
      drafter=drafter if execution.needs_drafter else None,
      verifier=verifier if execution.needs_verifier else None,
      inputs=inputs,
      rngs=rngs,
      alpha=host_alpha(execution, alpha),
      threshold=np.float32(self.draft_length.threshold),
      sampling=sampling,
      member=np.int32(member),
      constraints=constraints,
    )

  def lower(self, *arguments: Any) -> jax.stages.Lowered:
    """Returns the traced program of a call; all arrays may be shapes alone.

    Shapes with a sharding on devices of `jax.experimental.topologies` give the
    program for these devices, which need not be there.
    """
    program, program_arguments = self.call(*arguments)
    with native.tracing_for(program_arguments):
      return _run.lower(program, *program_arguments)

  def program(self, greedy: bool) -> tuple["Decoder", int]:
    """Returns what is compiled for a call, and the call's member of it.

    It is the decoder without what its program does not depend on: a setting
    that is traced, or that the method does not use, has a fixed value in it. So
    decoders that differ in such settings alone share one program. Methods that
    share a program are its members, and are distinguished by their number.

    Args:
      greedy: whether at temperature 0.
    """
    return self._programs[greedy]

  @functools.cached_property
  def _programs(self) -> dict[bool, tuple["Decoder", int]]:
    # Made once, so that each call looks up the very same object, which equals
    # itself without a comparison of its fields.
    return {greedy: self._program(greedy) for greedy in (False, True)}

  def _program(self, greedy: bool) -> tuple["Decoder", int]:
    method, members = self.method, self._members(greedy)
    shape = values_of(self, BlockShape)
    if not method.has_blocks:
      shape = values_of(BlockShape(gamma=1), BlockShape)
    if not method.uses_bonus:
      shape["bonus"] = "target"
    # A tree of one branch is a chain, unless its drafts are certain.
    tree = self.draft_tree
    if tree is not None and tree.is_chain and self.tree_drawing != TOP_K:
      shape |= dict.fromkeys(("tree", "drafts", "drawing"))
      shape["verification"] = _OF_CHAIN[self.verification]
    shape["draft_length"] = DraftLength(self.draft_length.policy)
    shared = len(members) > 1
    static = dataclasses.replace(
      self, method=members[0], shared=shared, **shape
    )
    return static, members.index(method)

  def _members(self, greedy: bool) -> list[Method]:
    """Returns the methods that share the program, this one among them."""
    return family(self.method, greedy) if self.shared else [self.method]

  @functools.cached_property
  def _hash(self) -> int:
    names = (field.name for field in dataclasses.fields(self))
    return hash(tuple(getattr(self, name) for name in names))

  def __hash__(self) -> int:
    # Every call asks for the hash, which reads all fields, so it is kept.
    return self._hash

  def check(
    self,
    drafter: DraftModels | None,
    verifier: LanguageModel | None,
    alpha: float | FittedAlpha | PhasedAlpha,
    sampling: Sampling,
    constraints: Constraints = NONE,
  ) -> None:
    """Checks what a call gets, without decoding; raises as a call does."""
    check_call(
      self.method, self, drafter, verifier, alpha, sampling, constraints
    )

  def run(self, *arguments: Any) -> Decoded:
    """Decodes, while a program is traced; takes the `CallArguments`."""
    loop = self.start(CallArguments(*arguments))
    if isinstance(loop, Decoded):
      return loop
    return loop.decoded(loop.advance(loop.begin()))

  def start(
    self, call: "CallArguments", room: int | None = None
  ) -> Loop | Decoded:
    """Returns the loop, while a program is traced.

    Args:
      call: what is traced.
      room: static, as in `LoopSettings`.

    Returns:
      A `Loop`; `Decoded` of an execution that is not one loop.
    """
    method, policy, stop = self.method, self.draft_length.policy, None
    if policy != FIXED:
      stop = StopPolicy(call.threshold, before_draw=policy == MAX_PROB)
    targets = tuple(x.target for x in self._members(call.sampling.greedy))
    settings = LoopSettings(
      **values_of(self, ReviewSettings),
      **values_of(self, Records),
      sampling=call.sampling,
      max_decode_len=self.max_decode_len,
      eos_id=self.eos_id,
      stops=call.constraints.stops,
      begins=call.constraints.begins,
      target=choose(targets, call.member),
      alpha=call.alpha,
      stop=stop,
      has_target=method.target is not None,
      room=room,
    )
    # Draft heads read the verifier itself, which is masked where it reviews.
    mask = call.constraints.mask
    drafter = draft_models.drafter_for(
      method,
      held_to(call.drafter, mask),
      call.verifier,
      self,
      alpha=call.alpha,
      stop=stop,
    )
    if self.drafter_window is not None:
      drafter = windowed.within(drafter, self.drafter_window)
    verifier = readers.verifier_read(call.drafter, call.verifier)
    verifier = held_to(verifier, mask)
    # What steps read of a cut head is computed once, before any of them.
    drafter = with_columns(drafter)
    return method.execution.run(
      drafter, verifier, call.inputs, call.rngs, settings
    )

  def loop(self, call: "CallArguments", room: int | None = None) -> Loop:
    """Returns what `start` does, of an execution that is one loop."""
    return cast(Loop, self.start(call, room))


class CallArguments(NamedTuple):
  """The traced arguments of `Decoder.run`.

  Attributes:
    drafter: as in a call of `Decoder`; None where the method needs none.
    verifier: as in a call of `Decoder`; None where the method needs none.
    inputs: [B, S] int32; None for a loop that only continues.
    rngs: [B] typed keys; None where a loop has keys of its own.
    alpha: float32 [], as `Execution.host_alpha` made it; or a `FittedAlpha` or
      a `PhasedAlpha` with such arrays.
    threshold: float32 [], the threshold of the draft length.
    sampling: a `Sampling`.
    member: int32 [], which of the methods that share the program.
    constraints: `Constraints`.
  """

  drafter: Any
  verifier: Any
  inputs: Inputs | None
  rngs: Array | None
  alpha: Any
  threshold: Any
  sampling: Sampling
  member: Any = 0
  constraints: Constraints = NONE


def host_alpha(execution: Execution, alpha: Any) -> Any:
  """Returns alpha, by phase or not, as a program takes it, in float32."""
  if isinstance(alpha, PhasedAlpha):
    before, after = (
      host_alpha(execution, each) for each in (alpha.before, alpha.after)
    )
    return alpha.replace(before=before, after=after)
  if isinstance(alpha, FittedAlpha):
    return alpha.replace(alpha=host_alpha(execution, alpha.alpha))
  return np.float32(execution.host_alpha(alpha))


_run = jax.jit(Decoder.run, static_argnums=0)


def decoder(name: str, **settings: Any) -> Decoder:
  """Returns the `Decoder` of a method.

  Args:
    name: the name of the method in `METHODS`.
    **settings: the other fields of `Decoder`.

  Raises:
    ValueError: the method is unknown, or a setting is out of range.
  """
  return Decoder(find(name), **settings)
