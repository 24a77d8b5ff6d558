"""A method with its static settings, as one compiled program: `Decoder`."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from speccascade import native
from speccascade.decoding.drafting.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.drafting.heads_drafter import HeadsDrafter
from speccascade.decoding.drafting.lookahead_drafter import LookaheadDrafter
from speccascade.decoding.drafting.tree_drafter import TreeDrafter
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.loops.execution import Execution, LoopSettings
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.programs.call_checks import check_call, models_of
from speccascade.decoding.programs.families import choose
from speccascade.decoding.programs.methods import Method, family, find
from speccascade.decoding.records import prompts
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.decode_settings import (
  FIXED,
  LOOKS_AHEAD,
  MAX_PROB,
  BlockShape,
  DraftLength,
  Records,
  ReviewSettings,
)
from speccascade.decoding.records.draft_tree import TOP_K
from speccascade.decoding.records.drafter import (
  is_drafter,
  is_heads,
  is_lookahead,
)
from speccascade.settings import fields
from speccascade.settings.fields import values_of

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

  Raises:
    ValueError: a setting is of the wrong kind or out of range, the method would
      ignore it, or the output would have no stated distribution.
  """

  method: Method = dataclasses.field(kw_only=False)
  max_decode_len: fields.Positive
  eos_id: int | tuple[int, ...]
  shared: bool = False

  def __post_init__(self):
    super().__post_init__()
    self.method.check_settings(
      draft_length=self.draft_length.policy, verification=self.verification
    )
    if self.draft_tree is not None:
      self.method.check_takes_trees()
    if (
      self.verification in LOOKS_AHEAD
      and self.bonus == "verifier"
      and not self.method.is_lossless
    ):
      raise ValueError(
        f"{self.verification} verification with bonus 'verifier' has no stated"
        " distribution unless the target is the verifier; use bonus 'target' or"
        " verification 'token'"
      )

  def __call__(
    self,
    drafter,
    verifier,
    inputs,
    rngs,
    alpha: float | FittedAlpha,
    sampling: Sampling,
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
        number alone such a method runs its plug-in rule, without parameters.
      sampling: a `Sampling`.

    Raises:
      ValueError: alpha is outside its range; the method is greedy only; a model
        is missing; the models do not share a vocabulary; one model starts from
        prompts and another from sources; a prompt is not valid, see
        `prompts.check`; or the drafter has no confidence for the rule to read.
    """
    program, arguments = self.call(
      drafter, verifier, inputs, rngs, alpha, sampling
    )
    return _run(program, *arguments)

  def call(
    self,
    drafter,
    verifier,
    inputs,
    rngs,
    alpha: float | FittedAlpha,
    sampling: Sampling,
  ) -> tuple["Program", "ProgramArguments"]:
    """Checks the arguments of a call, and returns what the call runs.

    Arguments and errors are those of `__call__`.
    """
    self.check(drafter, verifier, alpha, sampling)
    execution = self.method.execution
    model = verifier if execution.needs_verifier else drafter
    # (Shapes alone, which `lower` may get, have no tokens to check.)
    if model.prompted and not isinstance(inputs, jax.ShapeDtypeStruct):
      prompts.check(inputs, model.vocab_size)
    program, index = self.program(sampling.greedy)
    # Scalars stay NumPy's, because putting each on the device costs a launch.
    return program, ProgramArguments(
      drafter=drafter if execution.needs_drafter else None,
      verifier=verifier if execution.needs_verifier else None,
      inputs=inputs,
      rngs=rngs,
      alpha=_host_alpha(execution, alpha),
      threshold=np.float32(self.draft_length.threshold),
      sampling=sampling,
      index=np.int32(index),
    )

  def lower(self, *arguments) -> jax.stages.Lowered:
    """Returns the traced program of a call; all arrays may be shapes alone.

    Shapes with a sharding on devices of `jax.experimental.topologies` give the
    program for these devices, which need not be there.
    """
    program, program_arguments = self.call(*arguments)
    with native.tracing_for(program_arguments):
      return _run.lower(program, *program_arguments)

  def program(self, greedy: bool) -> tuple["Program", int]:
    """Returns the program of a call, and the index of the target in it.

    Args:
      greedy: whether at temperature 0.
    """
    return self._programs[greedy]

  @functools.cached_property
  def _programs(self) -> dict[bool, tuple["Program", int]]:
    """What `program` returns for each `greedy`.

    Each program is made once. A call then looks up the very same object, which
    equals itself without a comparison of its fields.
    """
    return {greedy: self._program(greedy) for greedy in (False, True)}

  def _program(self, greedy: bool) -> tuple["Program", int]:
    method = self.method
    members = family(method, greedy) if self.shared else [method]
    # Settings that do not change the program take one value, so that decoders
    # which differ in them alone share the program.
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
    static = dataclasses.replace(self, method=members[0], shared=False, **shape)
    targets = tuple(member.target for member in members)
    return Program(static, targets), members.index(method)

  def check(
    self, drafter, verifier, alpha: float | FittedAlpha, sampling: Sampling
  ):
    """Checks what a call gets, without decoding; raises as a call does."""
    check_call(self.method, self, drafter, verifier, alpha, sampling)


class ProgramArguments(NamedTuple):
  """The arguments of a `Program`, which are traced.

  Attributes:
    drafter: as in a call of `Decoder`; None where the method needs none.
    verifier: as in a call of `Decoder`; None where the method needs none.
    inputs: [B, S] int32; None for a loop that only goes on.
    rngs: [B] typed keys.
    alpha: float32 [], as `Execution.host_alpha` made it; or a `FittedAlpha`
      with such an array.
    threshold: float32 [], the threshold of the draft length.
    sampling: a `Sampling`.
    index: int32 [], the index of a target of the program.
  """

  drafter: Any
  verifier: Any
  inputs: Any
  rngs: Any
  alpha: Any
  threshold: Any
  sampling: Sampling
  index: Any = 0


@dataclasses.dataclass(frozen=True)
class Program:
  """What is compiled: the static settings of a decoder, and its targets.

  Attributes:
    decoder: the settings. A setting that is traced, or that the execution does
      not use, has a fixed value here, so that decoders which differ in it alone
      have equal programs.
    targets: the targets of the methods that share the program; a call names one
      of them by its index.
  """

  decoder: Decoder
  targets: tuple[Target | None, ...]

  @functools.cached_property
  def _hash(self) -> int:
    return hash((self.decoder, self.targets))

  def __hash__(self) -> int:
    # Every call asks for the hash, which reads all fields, so it is kept.
    return self._hash

  def run(self, *arguments, **options) -> Decoded:
    """Decodes, while the program is traced; arguments as in `start`."""
    result = self.start(*arguments, **options)
    return result.run() if isinstance(result, Loop) else result

  def start(
    self,
    drafter,
    verifier,
    inputs,
    rngs,
    alpha,
    threshold,
    sampling,
    index=0,
    *,
    room=None,
  ) -> Loop | Decoded:
    """Returns the loop, while the program is traced; see `Execution.run`.

    Arguments as in `ProgramArguments`, and:

    Args:
      room: static, as in `LoopSettings`.

    Returns:
      A `Loop`; `Decoded` of an execution that is not one loop.
    """
    static, method = self.decoder, self.decoder.method
    stop, policy = None, static.draft_length.policy
    if policy != FIXED:
      stop = StopPolicy(threshold, before_draw=policy == MAX_PROB)
    if is_heads(drafter):
      drafter = HeadsDrafter(
        drafter, verifier, static.gamma, static.draft_tree, static.tree_drawing
      )
    elif is_lookahead(drafter):
      drafter = LookaheadDrafter(
        drafter.language_model(verifier),
        drafter.num_heads,
        static.gamma,
        static.draft_tree,
        static.tree_drawing,
      )
    elif method.has_blocks and not is_drafter(drafter):
      if method.compose is not None:
        drafter = method.compose(models_of(drafter), static.gamma, alpha)
      elif static.draft_tree is not None:
        drafter = TreeDrafter(drafter, static.draft_tree, static.tree_drawing)
      else:
        drafter = AutoregressiveDrafter(drafter, static.gamma, stop, behind=0)
    settings = LoopSettings(
      **values_of(static, ReviewSettings),
      **values_of(static, Records),
      sampling=sampling,
      max_decode_len=static.max_decode_len,
      eos_id=static.eos_id,
      target=choose(self.targets, index),
      alpha=alpha,
      stop=stop,
      has_target=method.target is not None,
      room=room,
    )
    return method.execution.run(drafter, verifier, inputs, rngs, settings)


def _host_alpha(execution: Execution, alpha: Any) -> np.float32 | FittedAlpha:
  """Returns alpha as a program takes it, in float32.

  Args:
    execution: the method's execution.
    alpha: a number or a `FittedAlpha`.
  """
  if isinstance(alpha, FittedAlpha):
    return alpha.replace(alpha=_host_alpha(execution, alpha.alpha))
  return np.float32(execution.host_alpha(alpha))


@functools.partial(jax.jit, static_argnums=0)
def _run(program, *arguments) -> Decoded:
  return program.run(*arguments)


def decoder(name: str, **settings) -> Decoder:
  """Returns the `Decoder` of a method.

  Args:
    name: the name of the method in `METHODS`.
    **settings: the other fields of `Decoder`.

  Raises:
    ValueError: the method is unknown, or a setting is out of range.
  """
  return Decoder(find(name), **settings)
