"""A method with its static settings, as one compiled program: `Decoder`."""

import dataclasses
import functools

import jax
import numpy as np

from speccascade.decoding.drafting.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.loops import prompts
from speccascade.decoding.loops.execution import (
  FIXED,
  MAX_PROB,
  TOKEN_PROB,
  LoopSettings,
)
from speccascade.decoding.loops.rounds import Loop
from speccascade.decoding.programs.families import choose
from speccascade.decoding.programs.methods import Method, family, find
from speccascade.decoding.types import Decoded, is_drafter
from speccascade.decoding.verification import steps


@dataclasses.dataclass(frozen=True)
class DraftLength:
  """How long a block may grow: gamma, or shorter where the drafter is unsure.

  Attributes:
    policy: "fixed"; "max_prob" stops where max q < threshold, before a draw;
      "token_prob" stops after a drawn token of sampled probability < threshold.
    threshold: in [0, 1]; "fixed" has none.
  """

  policy: str = FIXED
  threshold: float = 0.0

  def __post_init__(self):
    _one_of("draft length policy", self.policy, FIXED, MAX_PROB, TOKEN_PROB)
    if not 0 <= self.threshold <= 1:
      raise ValueError(
        f"draft length threshold is {self.threshold}; wanted a number in [0, 1]"
      )
    if self.policy == FIXED and self.threshold:
      raise ValueError(
        f"draft length threshold is {self.threshold}, and {FIXED!r} has none;"
        f" leave it out, or use {MAX_PROB!r} or {TOKEN_PROB!r}"
      )


def _one_of(name: str, value: str, *known: str):
  if value not in known:
    raise ValueError(f"{name} is {value!r}; wanted one of {', '.join(known)}")


@dataclasses.dataclass(frozen=True)
class Decoder:
  """A method with its static settings; calling it decodes a batch.

  Equal decoders share one compiled program for each shape: alpha, temperature,
  top_p and the keys are traced.

  Attributes:
    method: row of the table.
    gamma: block size, 1 or more: the width of a `Drafter`, where a call gets
      one. Methods without blocks do not use it.
    max_decode_len: most tokens of a row, EOS counted.
    eos_id: id that ends a row, or a tuple of them.
    bonus: "target" or "verifier"; see `BlockSettings`. Methods whose target is
      the verifier, and methods without blocks, do not use it.
    verification: "token" or "block".
    draft_length: a `DraftLength`; for `bild` the threshold is its fallback.
    trace: whether to record who wrote each token.
    log_probs: whether to record what each law gave each token, `LogProbs`.
    shared: whether the methods of a family share one program, which then
      branches at each target: a study of many methods compiles few programs. On
      a CPU the branch costs little (20 us a block of 360, V = 4000); elsewhere
      it may wait for the host.
  """

  method: Method
  gamma: int
  max_decode_len: int
  eos_id: int | tuple[int, ...]
  bonus: str = "target"
  verification: str = "token"
  draft_length: DraftLength = DraftLength()
  trace: bool = False
  log_probs: bool = False
  shared: bool = False

  def __post_init__(self):
    for name in ("gamma", "max_decode_len"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} is {getattr(self, name)}; wanted 1 or more")
    if self.bonus not in ("target", "verifier"):
      raise ValueError(
        f"bonus is {self.bonus!r}; wanted 'target' (exact) or 'verifier' (as"
        " Algorithm 4 prints it)"
      )
    _one_of("verification", self.verification, *steps.VERIFY)
    self.method.check_settings(
      draft_length=self.draft_length.policy, verification=self.verification
    )
    if (
      self.verification == "block"
      and self.bonus == "verifier"
      and not self.method.is_lossless
    ):
      raise ValueError(
        "block verification with bonus 'verifier' has no stated law unless the"
        " target is the verifier; use bonus 'target' or verification 'token'"
      )

  def __call__(
    self, drafter, verifier, inputs, rngs, alpha: float, sampling: Sampling
  ) -> Decoded:
    """Decodes a batch.

    Args:
      drafter: a language model, a tuple of them (largest first) for methods
        that compose several, or a `Drafter` that is used as it is; None for
        `verifier`.
      verifier: a language model; None for `drafter`.
      inputs: [B, S] int32 source tokens, 0 is padding; of decoder-only models
        prompts, `prompts.PAD` is padding.
      rngs: [B] typed keys, see `draws.row_keys`.
      alpha: number in the method's range.
      sampling: a `Sampling`.

    Raises:
      ValueError: alpha is outside its range, the method is greedy only, the two
        models do not share a vocabulary, one starts from prompts and another
        does not, a prompt is none (see `prompts.check`), or the drafter has no
        confidence for the rule to read.
    """
    return _run(*self.call(drafter, verifier, inputs, rngs, alpha, sampling))

  def call(
    self, drafter, verifier, inputs, rngs, alpha: float, sampling: Sampling
  ) -> tuple:
    """Returns what a call runs: a `Program`, and the arguments of its `run`.

    Checks them; arguments and errors are those of a call.
    """
    self.check(drafter, verifier, alpha, sampling)
    execution = self.method.execution
    model = verifier if execution.needs_verifier else drafter
    if model.prompted:
      prompts.check(inputs, model.vocab_size)
    program, index = self.program(sampling.greedy)
    return (
      program,
      drafter if execution.needs_drafter else None,
      verifier if execution.needs_verifier else None,
      inputs,
      rngs,
      # Of NumPy: to put each on the device here would cost a launch.
      np.float32(execution.host_alpha(alpha)),
      np.float32(self.draft_length.threshold),
      sampling,
      np.int32(index),
    )

  def lower(self, *arguments) -> jax.stages.Lowered:
    """Returns the program of a call, traced; models may be of shapes alone."""
    return _run.lower(*self.call(*arguments))

  def program(self, greedy: bool) -> tuple["Program", int]:
    """Returns what a call runs, and the place of the method's target in it.

    Args:
      greedy: whether at temperature 0.
    """
    return self._programs[greedy]

  @functools.cached_property
  def _programs(self) -> dict[bool, tuple["Program", int]]:
    """What `program` returns, made once: equal programs that are one object
    are told to be so at once."""
    return {greedy: self._program(greedy) for greedy in (False, True)}

  def _program(self, greedy: bool) -> tuple["Program", int]:
    method = self.method
    members = family(method, greedy) if self.shared else [method]
    static = dataclasses.replace(
      self,
      method=members[0],
      gamma=self.gamma if method.has_blocks else 1,
      bonus=self.bonus if method.uses_bonus else "target",
      draft_length=DraftLength(self.draft_length.policy),
      shared=False,
    )
    targets = tuple(member.target for member in members)
    return Program(static, targets), members.index(method)

  def check(self, drafter, verifier, alpha: float, sampling: Sampling):
    """Checks what a call gets, without decoding; raises as a call does."""
    method, execution = self.method, self.method.execution
    for role, model, is_needed in (
      ("drafter", drafter, execution.needs_drafter),
      ("verifier", verifier, execution.needs_verifier),
    ):
      if is_needed and model is None:
        raise ValueError(f"{method.label} needs a {role}; none was given")
    drafters = () if drafter is None else _models(drafter)
    num = len(drafters)
    if is_drafter(drafter) and execution.needs_drafter:
      self._check_drafter(drafter)
    elif execution.needs_drafter:
      if method.compose is None and num != 1:
        raise ValueError(f"{method.label} takes one drafter; {num} were given")
      if num < method.num_drafters:
        raise ValueError(
          f"{method.label} takes {method.num_drafters} drafters, largest first;"
          f" {num} was given"
        )
    models = drafters if verifier is None else (*drafters, verifier)
    sizes = [model.vocab_size for model in models]
    if len(set(sizes)) > 1:
      raise ValueError(
        f"drafter has {sizes[0]} vocabulary rows, verifier {sizes[-1]}; a pair"
        " must share one vocabulary"
      )
    # A drafter is a tree of models and such that copy prompts.
    knows = lambda x: hasattr(x, "prompted")
    parts = filter(knows, jax.tree.leaves((drafter, verifier), is_leaf=knows))
    kinds = {part.prompted: type(part).__name__ for part in parts}
    if len(kinds) > 1:
      raise ValueError(
        f"a {kinds[True]} goes on from prompts (decoder-only), a {kinds[False]}"
        " from a source; the models of a pair must be of one kind"
      )
    method.check_alpha(alpha, sizes[0])
    if method.greedy_only and not sampling.greedy:
      raise ValueError(
        f"{method.label} is defined at temperature 0 only; temperature is"
        f" {float(sampling.temperature):g}"
      )
    has_confidence = not is_drafter(drafter) or drafter.has_confidence
    target = method.target
    if target is not None and target.needs_confidence and not has_confidence:
      raise ValueError(
        f"{method.label} reads the drafter's confidence, and a"
        f" {type(drafter).__name__} has none (its proposals are one-hot); use"
        " spec_decode, or a rule that looks at the verifier only, such as"
        " spec_cascade_token_v3"
      )

  def _check_drafter(self, drafter):
    """Raises where the method takes no `Drafter`, or this one would ignore a
    setting."""
    label, kind = self.method.label, type(drafter).__name__
    policy = self.draft_length.policy
    if not self.method.has_blocks:
      raise ValueError(
        f"the drafter is a {kind}, which drafts blocks; {label} wants a"
        " language model: give one, or use a speculative method"
      )
    if policy != FIXED:
      raise ValueError(
        f"draft_length is {policy!r}; the drafter given, a {kind}, does not use"
        " it: leave it out, or give the drafter a stop of its own"
      )
    if self.gamma != drafter.width:
      raise ValueError(
        f"gamma is {self.gamma}; the drafter given, a {kind}, drafts blocks of"
        f" {drafter.width}: set gamma to {drafter.width}, or change the drafter"
      )


@dataclasses.dataclass(frozen=True)
class Program:
  """What is compiled: all that is static of a decoder, or of a family of them.

  Attributes:
    decoder: the settings; what is traced, or means nothing to the execution, is
      left at a default, so that equal programs are equal.
    targets: of the methods that share it; a call names one by its place.
  """

  decoder: "Decoder"
  targets: tuple[Target | None, ...]

  @functools.cached_property
  def _hash(self) -> int:
    return hash((self.decoder, self.targets))

  def __hash__(self) -> int:
    return self._hash  # of all that is in it: every call asks

  def run(self, *arguments, **more) -> Decoded:
    """Decodes, while it is traced; arguments as in `start`."""
    result = self.start(*arguments, **more)
    return result.run() if self.decoder.method.execution.is_one_loop else result

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
    """Returns the loop, while it is traced; see `Execution.run`.

    Arguments up to `rngs` as in a call of `Decoder`, and:

    Args:
      alpha: scalar, as `Execution.host_alpha` made it.
      threshold: scalar, of the draft length.
      sampling: a `Sampling`.
      index: int32 [], which of the targets.
      room: static, as in `LoopSettings`.
    """
    static, method = self.decoder, self.decoder.method
    stop, policy = None, static.draft_length.policy
    if policy != FIXED:
      stop = StopPolicy(threshold, before_draw=policy == MAX_PROB)
    if method.has_blocks and not is_drafter(drafter):
      if method.compose is not None:
        drafter = method.compose(_models(drafter), static.gamma, alpha)
      else:
        drafter = AutoregressiveDrafter(drafter, static.gamma, stop, behind=0)
    settings = LoopSettings(
      sampling=sampling,
      max_decode_len=static.max_decode_len,
      eos_id=static.eos_id,
      target=choose(self.targets, index),
      alpha=alpha,
      bonus=static.bonus,
      verify=steps.VERIFY[static.verification],
      stop=stop,
      trace=static.trace,
      log_probs=static.log_probs,
      has_target=method.target is not None,
      room=room,
    )
    return method.execution.run(drafter, verifier, inputs, rngs, settings)


def _models(drafter) -> tuple:
  """Returns the drafter, or drafters, as a tuple."""
  return drafter if isinstance(drafter, tuple) else (drafter,)


@functools.partial(jax.jit, static_argnums=0)
def _run(program, *arguments) -> Decoded:
  return program.run(*arguments)


def decoder(name: str, **settings) -> Decoder:
  """Returns the `Decoder` of a method by name; settings as fields there.

  Raises:
    ValueError: an unknown method, or a setting out of range.
  """
  return Decoder(method=find(name), **settings)
