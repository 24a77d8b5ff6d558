"""The table of methods: execution x target, one line each.

Each row's `target` is what its output is sampled from, so one parametrised test
covers the table. Labels are those of the papers.
"""

from collections.abc import Callable
import dataclasses
import difflib
import functools
import math

import jax
import jax.numpy as jnp

from speccascade.decoding import deferral, rejection
from speccascade.decoding.drafters.autoregressive import (
  AutoregressiveDrafter,
  StopPolicy,
)
from speccascade.decoding.drafters.cascade import cascade_drafter
from speccascade.decoding.drafters.max_gram import MaxGramDrafter
from speccascade.decoding.drafters.reviewed import ReviewedDrafter
from speccascade.decoding.executions.autoregressive import (
  drafter_alone,
  verifier_alone,
)
from speccascade.decoding.executions.bild import FALLBACK, bild
from speccascade.decoding.executions.oracle_cascade import oracle_cascade
from speccascade.decoding.executions.sequence_cascade import sequence_cascade
from speccascade.decoding.executions.sequential_cascade import (
  sequential_cascade,
)
from speccascade.decoding.executions.speculative import speculative
from speccascade.decoding.families import Family
from speccascade.decoding.sampling import Sampling
from speccascade.decoding.target import (
  Target,
  defer,
  defer_tokens,
  ensemble,
  lossless,
  lossy,
  lossy_star,
  mentored,
)
from speccascade.decoding.types import Decoded, Drafter

per_token_sequence = functools.partial(sequence_cascade, per_token=True)


@dataclasses.dataclass(frozen=True)
class Method:
  """A row of the table.

  Attributes:
    execution: how the tokens are made.
    target: what they are sampled from; None for executions whose law is not
      that of a chain of targets (sequence cascade, BiLD).
    label: as in the papers.
    greedy_only: whether it is defined at temperature 0 alone.
    interval: the range of alpha; None takes the target's.
    default_alpha: for quick looks; not tuned.
    compose: `(models, gamma, alpha) -> Drafter`, what stands before the
      speculative loop; None for an autoregressive drafter of one model.
    num_drafters: neural drafters that `compose` takes at least, largest first.
  """

  execution: Callable
  target: Target | None
  label: str
  greedy_only: bool = False
  interval: deferral.Interval | None = None
  default_alpha: float = 0.0
  compose: Callable | None = None
  num_drafters: int = 1

  @property
  def alpha_interval(self) -> deferral.Interval:
    if self.interval is not None:
      return self.interval
    return self.target.interval

  @property
  def uses_alpha(self) -> bool:
    return self.target is not lossless

  @property
  def has_blocks(self) -> bool:
    """Whether gamma means anything to it."""
    return self.execution is speculative

  @property
  def needs_drafter(self) -> bool:
    return self.execution is not verifier_alone

  @property
  def needs_verifier(self) -> bool:
    return self.execution is not drafter_alone

  def check_alpha(self, alpha: float, vocab_size: int):
    """Raises ValueError where alpha is outside the range."""
    if not self.uses_alpha:
      return
    if not self.alpha_interval.contains(alpha, vocab_size):
      wanted = self.alpha_interval.describe(vocab_size)
      raise ValueError(f"alpha is {alpha:g}; {self.label} takes {wanted}")

  def host_alpha(self, alpha: float) -> float:
    """Returns what the execution gets for alpha.

    The sequence cascade compares log-probabilities with log(1 - alpha), made
    here in float64.
    """
    if self.execution in (sequence_cascade, per_token_sequence):
      return math.log1p(-alpha) if alpha < 1 else -math.inf
    return alpha


def _chow_cascade(execution, label, **known) -> Method:
  interval = deferral.Interval(0, 1)
  return Method(execution, None, label, interval=interval, **known)


def _cascade_drafting(models, gamma, alpha) -> Drafter:
  """The fixed default: a reviewed block of gamma tokens, then two copied ones.

  The first drafter writes the same gamma tokens as it does in plain speculative
  decoding, in fewer calls: each of them reviews two tokens of the drafters
  below. So in calls it is no worse, whatever is copied. On the built-in task
  (gamma 5, a bigram table, greedy) it made 3.96 drafter calls for each block of
  4.01 tokens, plain speculative decoding 5 for 3.96. Text that repeats itself
  deserves longer copies: pass a drafter of `cascade_drafter` for another K,
  lenience or bigram table; `speccascade.cascade_search` finds them.
  """
  size = models[0].vocab_size
  copied = 2
  copier = MaxGramDrafter(jnp.zeros((size,), jnp.int32), copied)
  num = len(models) + 1
  matrix = [[0] * num for _ in range(num)]
  for i in range(num - 1):
    matrix[i][i], matrix[i][-1] = copied, copied
  matrix[0][0], matrix[-1][-1] = gamma, copied
  return cascade_drafter(models, copier, matrix)


def _reviewed_pair(inner: Target) -> Callable:
  """A three-model cascade: the drafter is a speculative cascade of two."""

  def compose(models, gamma, alpha) -> Drafter:
    medium, small = models
    return ReviewedDrafter(
      drafter=AutoregressiveDrafter(small, gamma, behind=gamma + 1),
      reviewer=medium,
      alpha=alpha,
      width=gamma,
      target=inner,
    )

  return compose


METHODS = {
  # References: one model alone.
  "drafter": Method(drafter_alone, lossless, "Small model"),
  "verifier": Method(verifier_alone, lossless, "Large model"),
  # Speculative decoding, lossless and lossy.
  "spec_decode": Method(speculative, lossless, "SpecDecode"),
  "spec_decode_lossy": Method(
    speculative, lossy, "SpecDecode [Lossy]", default_alpha=0.3
  ),
  "spec_decode_lossy_star": Method(
    speculative, lossy_star, "SpecDecode [Lossy*]", default_alpha=0.3
  ),
  "mentored": Method(speculative, mentored, "Mentored", default_alpha=0.05),
  "bild_star": Method(
    speculative, defer(deferral.bild_tv), "BiLD*", default_alpha=0.3
  ),
  "bild_star_kl": Method(
    speculative, defer(deferral.bild_kl), "BiLD* [KL]", default_alpha=0.3
  ),
  "bild_star_js": Method(
    speculative, defer(deferral.bild_js), "BiLD* [JS]", default_alpha=0.1
  ),
  "bild_star_nll": Method(
    speculative, defer(deferral.bild_nll), "BiLD* [NLL]", default_alpha=2.0
  ),
  "bild": Method(
    bild,
    None,
    "BiLD",
    greedy_only=True,
    interval=deferral.Interval(0),
    default_alpha=5.0,
  ),
  # Sequential cascades and oracles.
  "seq_cascade_chow": _chow_cascade(
    sequence_cascade, "SeqCascade [Chow]", default_alpha=0.999
  ),
  "seq_cascade_chow_norm": _chow_cascade(
    per_token_sequence, "SeqCascade [Chow, per token]", default_alpha=0.3
  ),
  "token_cascade_chow": Method(
    sequential_cascade,
    defer(deferral.chow),
    "TokenCascade [Chow]",
    default_alpha=0.3,
  ),
  "token_cascade_chow_log": Method(
    sequential_cascade,
    defer(deferral.chow_log),
    "TokenCascade [Chow, log]",
    default_alpha=1.0,
  ),
  "oracle_cascade_diff": Method(
    oracle_cascade, defer(deferral.diff), "Oracle [Diff]"
  ),
  "oracle_cascade_chow": Method(
    oracle_cascade, defer(deferral.chow), "Oracle [Chow]", default_alpha=0.3
  ),
  "oracle_cascade_opt": Method(
    oracle_cascade, defer(deferral.opt), "Oracle [OPT]"
  ),
  "oracle_cascade_diff_log": Method(
    oracle_cascade, defer(deferral.diff_log), "Oracle [Diff, log]"
  ),
  "oracle_cascade_opt_log": Method(
    oracle_cascade, defer(deferral.opt_log), "Oracle [OPT, log]"
  ),
  # Speculative cascades.
  "spec_cascade_chow": Method(
    speculative, defer(deferral.chow), "SpecCascade [Chow]", default_alpha=0.3
  ),
  "spec_cascade_diff": Method(
    speculative, defer(deferral.diff), "SpecCascade [Diff]"
  ),
  "spec_cascade_opt": Method(
    speculative, defer(deferral.opt), "SpecCascade [OPT]"
  ),
  "spec_cascade_chow_log": Method(
    speculative,
    defer(deferral.chow_log),
    "SpecCascade [Chow, log]",
    default_alpha=1.0,
  ),
  "spec_cascade_diff_log": Method(
    speculative, defer(deferral.diff_log), "SpecCascade [Diff, log]"
  ),
  "spec_cascade_opt_log": Method(
    speculative, defer(deferral.opt_log), "SpecCascade [OPT, log]"
  ),
  "spec_cascade_token_v1": Method(
    speculative,
    defer_tokens(deferral.token_v1),
    "SpecCascade [Token V1]",
    default_alpha=0.3,
  ),
  "spec_cascade_token_v2": Method(
    speculative,
    defer_tokens(deferral.token_v2),
    "SpecCascade [Token V2]",
    default_alpha=0.3,
  ),
  "spec_cascade_token_v3": Method(
    speculative,
    defer_tokens(deferral.token_v3),
    "SpecCascade [Token V3]",
    default_alpha=0.3,
  ),
  "spec_cascade_typical": Method(
    speculative,
    defer_tokens(deferral.typical),
    "SpecCascade [Typical]",
    default_alpha=0.09,
  ),
  "ensemble": Method(speculative, ensemble, "Ensemble", default_alpha=0.3),
  # Drafters that are cascades themselves.
  "cascade_drafting": Method(
    speculative, lossless, "CS Drafting", compose=_cascade_drafting
  ),
  "spec_cascade_opt_three": Method(
    speculative,
    defer(deferral.opt),
    "SpecCascade [OPT, three models]",
    compose=_reviewed_pair(defer(deferral.opt)),
    num_drafters=2,
  ),
  # Greedy lenience: four papers, four rules (the fourth is Token V3).
  "lenient_leviathan": Method(
    speculative,
    defer_tokens(deferral.lenient_leviathan),
    "Lenient [Leviathan]",
    greedy_only=True,
    default_alpha=0.3,
  ),
  "lenient_cs_paper": Method(
    speculative,
    defer_tokens(deferral.lenient_cs_paper),
    "Lenient [CS Drafting, paper]",
    greedy_only=True,
    default_alpha=0.3,
  ),
  "lenient_cs_code": Method(
    speculative,
    defer_tokens(deferral.lenient_cs_code),
    "Lenient [CS Drafting, code]",
    greedy_only=True,
    default_alpha=0.3,
  ),
}


def find(name: str) -> Method:
  """Returns the method called `name`.

  Raises:
    ValueError: there is none; the message has the near misses.
  """
  if name not in METHODS:
    near = difflib.get_close_matches(name, METHODS, n=4, cutoff=0.5)
    hint = "did you mean" if near else "wanted one of"
    names = ", ".join(near or METHODS)
    raise ValueError(f"unknown method {name!r}; {hint} {names}")
  return METHODS[name]


def family(method: Method, greedy: bool) -> list[Method]:
  """Returns the methods that differ from one in their target alone, it among
  them: those that can share its program.

  Args:
    method: a row of the table, or one like them.
    greedy: whether at temperature 0; some are defined there alone.
  """

  def is_alike(other: Method) -> bool:
    return (
      other.execution is method.execution
      and other.compose is None
      and other.target not in (None, lossless)
      and other.target.uses_q == method.target.uses_q
      and (greedy or not other.greedy_only)
    )

  if method.target in (None, lossless) or method.compose is not None:
    return [method]
  members = [other for other in METHODS.values() if is_alike(other)]
  return members if method in members else [method]


@dataclasses.dataclass(frozen=True)
class DraftLength:
  """How long a block may grow: gamma, or shorter where the drafter is unsure.

  Attributes:
    policy: "fixed"; "max_prob" stops where max q < threshold, before a draw;
      "token_prob" stops after a drawn token of sampled probability < threshold.
    threshold: in [0, 1]; not used by "fixed".
  """

  policy: str = "fixed"
  threshold: float = 0.0

  def __post_init__(self):
    known = ("fixed", "max_prob", "token_prob")
    if self.policy not in known:
      raise ValueError(
        f"draft length policy is {self.policy!r}; wanted one of"
        f" {', '.join(known)}"
      )
    if not 0 <= self.threshold <= 1:
      raise ValueError(
        f"draft length threshold is {self.threshold}; wanted a number in [0, 1]"
      )


@dataclasses.dataclass(frozen=True)
class Decoder:
  """A method with its static settings; calling it decodes a batch.

  Equal decoders share one compiled program for each shape: alpha, temperature,
  top_p and the keys are traced.

  Attributes:
    method: row of the table.
    gamma: block size, 1 or more; not used by methods without blocks.
    max_decode_len: most tokens of a row, EOS counted.
    eos_id: id that ends a row.
    bonus: "target" or "verifier"; see `speculative`.
    verification: "token" or "block".
    draft_length: a `DraftLength`; for `bild` the threshold is its fallback.
    trace: whether to record who wrote each token.
    shared: whether the methods of a family share one program, which then
      branches at each target: a study of many methods compiles few programs. On
      a CPU the branch costs next to nothing; elsewhere it may wait for the
      host.
  """

  method: Method
  gamma: int
  max_decode_len: int
  eos_id: int
  bonus: str = "target"
  verification: str = "token"
  draft_length: DraftLength = DraftLength()
  trace: bool = False
  shared: bool = False

  def __post_init__(self):
    if self.gamma < 1:
      raise ValueError(f"gamma is {self.gamma}; wanted 1 or more")
    if self.max_decode_len < 1:
      raise ValueError(
        f"max_decode_len is {self.max_decode_len}; wanted 1 or more"
      )
    if self.bonus not in ("target", "verifier"):
      raise ValueError(
        f"bonus is {self.bonus!r}; wanted 'target' (exact) or 'verifier' (as"
        " Algorithm 4 prints it)"
      )
    if self.verification not in rejection.VERIFY:
      raise ValueError(
        f"verification is {self.verification!r}; wanted one of"
        f" {', '.join(rejection.VERIFY)}"
      )
    if (
      self.verification == "block"
      and self.bonus == "verifier"
      and self.method.target is not lossless
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
      inputs: [B, S] int32 source tokens, 0 is padding.
      rngs: [B] typed keys, see `sampling.row_keys`.
      alpha: number in the method's range.
      sampling: a `Sampling`.

    Raises:
      ValueError: alpha is outside its range, the method is greedy only, the two
        models do not share a vocabulary, or the drafter has no confidence for
        the rule to read.
    """
    self.check(drafter, verifier, alpha, sampling)
    alpha = jnp.asarray(self.method.host_alpha(alpha), jnp.float32)
    threshold = self.draft_length.threshold
    if self.method.execution is bild and self.draft_length.policy == "fixed":
      threshold = FALLBACK
    static, index = self.program(sampling.greedy)
    return _run(
      static,
      drafter if self.method.needs_drafter else None,
      verifier if self.method.needs_verifier else None,
      inputs,
      rngs,
      alpha,
      jnp.asarray(threshold, jnp.float32),
      sampling,
      jnp.asarray(index, jnp.int32),
    )

  def program(self, greedy: bool) -> "tuple[Decoder, int]":
    """Returns the decoder whose program a call runs, and the place of the
    method's target in it.

    Args:
      greedy: whether at temperature 0.
    """
    method, index = self.method, 0
    members = family(method, greedy) if self.shared else [method]
    if len(members) > 1:
      index = members.index(method)
      targets = Family(tuple(member.target for member in members))
      method = Method(method.execution, targets, "Family")
    settings = {"method": method, "shared": False}
    settings["draft_length"] = dataclasses.replace(
      self.draft_length, threshold=0.0
    )
    if not method.has_blocks:
      settings["gamma"] = 1
    return dataclasses.replace(self, **settings), index

  def check(self, drafter, verifier, alpha: float, sampling: Sampling):
    """Checks what a call gets, without decoding; raises as a call does."""
    method = self.method
    for role, model, needed in (
      ("drafter", drafter, method.needs_drafter),
      ("verifier", verifier, method.needs_verifier),
    ):
      if needed and model is None:
        raise ValueError(f"{method.label} needs a {role}; none was given")
    drafters = () if drafter is None else _models(drafter)
    is_composed = hasattr(drafter, "propose")
    if not is_composed and method.needs_drafter:
      wanted = method.num_drafters
      if method.compose is None and len(drafters) != 1:
        raise ValueError(
          f"{method.label} takes one drafter; {len(drafters)} were given"
        )
      if len(drafters) < wanted:
        raise ValueError(
          f"{method.label} takes {wanted} drafters, largest first;"
          f" {len(drafters)} was given"
        )
    models = drafters if verifier is None else (*drafters, verifier)
    sizes = {model.vocab_size for model in models}
    if len(sizes) > 1:
      raise ValueError(
        f"drafter has {drafters[0].vocab_size} vocabulary rows, verifier"
        f" {models[-1].vocab_size}; a pair must share one vocabulary"
      )
    size = sizes.pop()
    method.check_alpha(alpha, size)
    if method.greedy_only and not sampling.greedy:
      raise ValueError(
        f"{method.label} is defined at temperature 0 only; temperature is"
        f" {float(sampling.temperature):g}"
      )
    if (
      method.target is not None
      and method.target.needs_confidence
      and not getattr(drafter, "has_confidence", True)
    ):
      raise ValueError(
        f"{method.label} reads the drafter's confidence, and a"
        f" {type(drafter).__name__} has none (its proposals are one-hot); use"
        " spec_decode, or a rule that looks at the verifier only, such as"
        " spec_cascade_token_v3"
      )

  def run(
    self, drafter, verifier, inputs, rngs, alpha, threshold, sampling, index=0
  ) -> Decoded:
    """The traced part of a call; arguments as there, already checked."""
    target = self.method.target
    if isinstance(target, Family):
      target = target.choose(index)
    settings = {
      "target": target,
      "alpha": alpha,
      "sampling": sampling,
      "max_decode_len": self.max_decode_len,
      "eos_id": self.eos_id,
      "trace": self.trace,
    }
    if self.method.execution is speculative:
      if hasattr(drafter, "propose"):
        pass
      elif self.method.compose is not None:
        drafter = self.method.compose(_models(drafter), self.gamma, alpha)
      else:
        stop = None
        if self.draft_length.policy != "fixed":
          before = self.draft_length.policy == "max_prob"
          stop = StopPolicy(threshold, before_draw=before)
        drafter = AutoregressiveDrafter(drafter, self.gamma, stop, behind=0)
      settings["bonus"] = self.bonus
      settings["verify"] = rejection.VERIFY[self.verification]
    if self.method.execution is bild:
      settings["fallback"] = threshold
    return self.method.execution(drafter, verifier, inputs, rngs, **settings)


def _models(drafter) -> tuple:
  """Returns the drafter, or drafters, as a tuple."""
  return drafter if isinstance(drafter, tuple) else (drafter,)


@functools.partial(jax.jit, static_argnums=0)
def _run(
  decoder, drafter, verifier, inputs, rngs, alpha, threshold, sampling, index
):
  return decoder.run(
    drafter, verifier, inputs, rngs, alpha, threshold, sampling, index
  )


def decoder(name: str, **settings) -> Decoder:
  """Returns the `Decoder` of a method by name; settings as fields there.

  Raises:
    ValueError: an unknown method, or a setting out of range.
  """
  return Decoder(method=find(name), **settings)
