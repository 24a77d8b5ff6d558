"""What an execution is: a compiled loop, and what the rest knows of it."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax

from speccascade.decoding.laws.interval import ANY, Interval
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.loops import emission
from speccascade.decoding.types import VerifyFunction
from speccascade.decoding.verification import steps

FIXED, MAX_PROB, TOKEN_PROB = "fixed", "max_prob", "token_prob"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSettings:
  """How a block is drafted and verified; also what a reviewed pair is told.

  Attributes:
    sampling: how logits become laws.
    target: a `Target` or a `Choice` of them; None where the execution's law is
      not that of a chain of targets.
    alpha: scalar, traced, as `Execution.host_alpha` made it.
    bonus: static; "target" draws the token after a fully accepted block from
      the target, which is exact, and p itself where the drafter has no law;
      "verifier" from p, as Algorithm 4 prints it, which changes the law of
      every target but the lossless one.
    verify: static, a verifier step of `verification`.
  """

  sampling: Sampling
  target: Any = None
  alpha: jax.Array | float = 0.0
  bonus: str = "target"
  verify: VerifyFunction = steps.token_verify

  @property
  def bonus_law(self) -> bool:
    """Whether the bonus token needs the drafter's law at its position."""
    return self.target.uses_q and self.bonus == "target"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopSettings(BlockSettings):
  """What an execution is told, while its program is traced.

  Attributes:
    max_decode_len: static, most tokens of a row, EOS counted.
    eos_id: static, the id that ends a row, or a tuple of them.
    stop: a `StopPolicy` of the drafter, or None.
    trace: static, whether to record `Trace`.
    log_probs: static, whether to record `LogProbs`.
    has_target: static, whether a target of the method's own says what tokens
      are drawn from; else `LogProbs.pi` is not known.
    room: static, most tokens that the buffers of a row hold, where others write
      some of them; None is `max_decode_len`.
  """

  max_decode_len: int
  eos_id: int | tuple[int, ...]
  stop: Any = None
  trace: bool = False
  log_probs: bool = False
  has_target: bool = True
  room: int | None = None

  @property
  def records(self) -> bool:
    """Whether anything is recorded of the tokens."""
    return self.trace or self.log_probs

  def buffer_size(self, width: int) -> int:
    """Returns the slots of a token buffer for blocks of `width` drafts."""
    room = self.max_decode_len if self.room is None else self.room
    return emission.buffer_size(room, width)


@dataclasses.dataclass(frozen=True)
class Execution:
  """How tokens are made: a loop, and what the rest knows of it.

  Attributes:
    run: `(drafter, verifier, inputs, rngs, settings)` to its `rounds.Loop`: the
      models (None where not needed), [B, S] int32 inputs as `prefill` takes
      them (None for a loop that only goes on), [B] typed keys and
      `LoopSettings`.
    label: as in the table of methods.
    law: what it samples from where no target says it.
    interval: the range of alpha where no target says it.
    needs_drafter: whether it has one.
    needs_verifier: whether it has one.
    has_blocks: whether gamma means anything to it; it takes a `Drafter`.
    draft_lengths: the policies of `DraftLength` that it can run.
    verifications: the names in `steps.VERIFY` that it can run.
    fallback: the threshold of `MAX_PROB` that `FIXED` stands for; None where
      nothing stops a block of `FIXED`.
    host_alpha: makes what the loop gets for alpha, on the host in float64.
    pass_width: tokens of one verifier pass, where it has no blocks.
    is_predictable: whether counts and costs tell its speed; they do not where
      calls are of several widths.
    is_one_loop: whether it can be run some rounds at a time; else it has
      several loops, and `run` itself gives `Decoded`.
  """

  run: Callable[..., Any]
  label: str
  law: str = ""
  interval: Interval = ANY
  needs_drafter: bool = True
  needs_verifier: bool = True
  has_blocks: bool = False
  draft_lengths: tuple[str, ...] = (FIXED,)
  verifications: tuple[str, ...] = ("token",)
  fallback: float | None = None
  host_alpha: Callable[[float], float] = float
  pass_width: int = 1
  is_predictable: bool = True
  is_one_loop: bool = True


def execution(label: str, **known):
  """Returns a decorator that makes a loop an `Execution`; fields as there."""
  return lambda run: Execution(run, label, **known)
