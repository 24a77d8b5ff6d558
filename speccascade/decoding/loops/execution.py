"""Executions: compiled loops, and facts about them for other modules."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax

from speccascade.decoding.laws.interval import ANY, Interval
from speccascade.decoding.records import token_buffers
from speccascade.decoding.records.automaton import TokenAutomaton
from speccascade.decoding.records.decode_settings import (
  FIXED,
  Records,
)
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.decoding.verification.review_records import BlockSettings

Array = jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopSettings(BlockSettings, Records):
  """The settings of an execution, while its program is traced.

  The settings of `BlockSettings` and of `Records`, which are static, and:

  Attributes:
    max_decode_len: static, the most tokens of a row, EOS counted.
    eos_id: static, the id that ends a row, or a tuple of several ids.
    stops: the `TokenAutomaton` that ends rows; None where only EOS and the
      limit end them.
    begins: [B] int32, as in `Constraints`.
    stop: a `StopPolicy` of the drafter; None drafts whole blocks.
    has_target: static, whether a target of the method's own says what tokens
      are drawn from. `LogProbs.pi` is not known without one.
    room: static, the most tokens that the buffers of a row hold, where a user
      writes some of them between two turns; None is `max_decode_len`.
  """

  max_decode_len: int
  eos_id: int | tuple[int, ...]
  stops: TokenAutomaton | None = None
  begins: Array | None = None
  stop: Any = None
  has_target: bool = True
  room: int | None = None

  @property
  def records(self) -> bool:
    """Whether anything is recorded of the tokens."""
    return bool(self.trace) or self.log_probs

  def alpha_after(self, prefix: Prefix) -> Any:
    """Returns alpha as a target takes it at the place [B, 1] after a prefix."""
    if self.phased is None:
      return self.alpha
    assert prefix.phase_state is not None
    return self.phased.at(self.phased.phase(prefix.phase_state)[:, None])

  def buffer_size(self, width: int) -> int:
    """Returns the slots of a token buffer for blocks of `width` drafts."""
    room = self.max_decode_len if self.room is None else self.room
    return token_buffers.buffer_size(room, width)


@dataclasses.dataclass(frozen=True)
class Execution:
  """A loop that makes tokens, and facts about it for other modules.

  Attributes:
    run: a function from `(drafter, verifier, inputs, rngs, settings)` to a
      `rounds.Loop`. A model that the execution does not need is None. `inputs`
      are [B, S] int32 as `prefill` takes them; None for a loop that only goes
      on. `rngs` are [B] typed keys, `settings` a `LoopSettings`.
    label: the name in the table of methods.
    law: what tokens are sampled from, in words, where no target says it.
    interval: the range of alpha, where no target says it.
    needs_drafter: whether the execution needs a drafter.
    needs_verifier: whether the execution needs a verifier.
    has_blocks: whether the execution drafts blocks of gamma tokens; its drafter
      is a `Drafter`.
    draft_lengths: the policies of `DraftLength` that the execution can run.
    verifications: the names in `steps.VERIFY` that the execution can run.
    fallback: the threshold of `MAX_PROB` that `FIXED` stands for; None where
      nothing stops a block of `FIXED`.
    host_alpha: a function from the user's alpha to the loop's alpha, computed
      on the host in float64.
    pass_width: tokens of one verifier pass, where there are no blocks.
    unit: what a rule decides on, in words, where no target has an alpha of each
      token.
    is_predictable: whether counts and costs determine the speed. They do not
      where calls are of several widths.
    is_one_loop: whether the execution can run some rounds at a time. Otherwise
      it has several loops, and `run` itself returns `Decoded`.
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
  unit: str = ""
  is_predictable: bool = True
  is_one_loop: bool = True

  def __repr__(self) -> str:
    return f"<Execution {self.label}>"


def execution(
  label: str, **facts: Any
) -> Callable[[Callable[..., Any]], Execution]:
  """Returns a decorator that makes an `Execution` of a loop.

  Args:
    label: the name in the table of methods.
    **facts: other fields of `Execution`.
  """

  def decorate(run: Callable[..., Any]) -> Execution:
    return Execution(run, label, **facts)

  return decorate
