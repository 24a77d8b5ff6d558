"""The reviews of a chain that kernels for a GPU do whole.

Axes: B rows, G drafts, V vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from speccascade.decoding.laws import (
  deferral,
  kernel_laws,
  lossy_targets,
  targets,
  token_rules,
)
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.records.block_records import Proposal, Verdict
from speccascade.decoding.records.block_scores import BlockScores
from speccascade.decoding.verification import steps
from speccascade.decoding.verification.review_records import BlockSettings
from speccascade.native.gpu import chain_review, mixed_review
from speccascade.native.gpu.filtered_laws import FilteredLaw
from speccascade.native.gpu.mixed_review import PlaceLaws

Array = jax.Array

# The targets that `mixed_review` knows, and their names there. A target of
# which these are not the very function is XLA's.
_TARGETS: dict[Target, str] = {
  targets.lossless: "lossless",
  lossy_targets.lossy: "lossy",
  **{
    targets.defer(rule): rule.name
    for rule in (deferral.chow, deferral.diff, deferral.opt)
  },
  **{
    targets.defer_tokens(rule): rule.name
    for rule in (
      token_rules.token_v1,
      token_rules.token_v2,
      token_rules.token_v3,
    )
  },
}


class KernelReview(NamedTuple):
  """What kernels find of a chain.

  Attributes:
    law: what is known of the verifier's rows.
    verdict: the decision.
    overlap: [B, G+1], sum_v min(q, pi) at the drafts.
    sides: the sides of the rule, [B, G+1] each, as of `Target.at`; None without
      a rule.
  """

  law: kernel_laws.Found
  verdict: Verdict
  overlap: Array
  sides: tuple[Array, Array] | None = None


def find(
  proposal: Proposal,
  logits: Array,
  u_accept: Array,
  u_draw: Array,
  settings: BlockSettings,
  *,
  exact_copies: bool = False,
) -> KernelReview | None:
  """Returns what kernels find of a chain of drafts.

  They review drafts of one model against a target that they know. Otherwise,
  and where they are not asked for, None.

  Args:
    proposal: the block.
    logits: [B, G+1, V] of the verifier.
    u_accept: [B, G] as in `steps.token_verify`.
    u_draw: [B] as in `steps.token_verify`.
    settings: `BlockSettings`.
    exact_copies: as of `review.verify`.
  """
  scores, target = proposal.scores, settings.target
  if scores is None or not scores.are_of(proposal):
    return None
  if settings.phased is not None:
    return None
  # With few drafted tokens a filter may keep all of the drafter's alone.
  is_filtered = settings.sampling.filters(logits.shape[-1])
  if is_filtered != (scores.drafts.least is not None):
    return None
  is_lossless = getattr(target, "is_lossless", False)
  if settings.sampling.greedy:
    is_lossless |= getattr(target, "is_lossless_when_greedy", False)
  if is_lossless and settings.verifier_step is steps.token_verify:
    return _lossless(proposal, scores, logits, u_accept, u_draw, settings)
  if settings.sampling.greedy or exact_copies:
    return None
  return _mixed(proposal, scores, logits, u_accept, u_draw, settings)


def _lossless(
  proposal: Proposal,
  scores: BlockScores,
  logits: Array,
  u_accept: Array,
  u_draw: Array,
  settings: BlockSettings,
) -> KernelReview | None:
  """Reviews a chain whose target is the verifier, draft by draft."""
  sampling = settings.sampling
  kernel = chain_review.choose(None, logits, scores.drafts)
  if kernel == "xla":
    return None
  is_filtered = scores.drafts.least is not None
  found = chain_review(
    logits,
    scores.drafts,
    sampling.temperature.astype(logits.dtype),
    u_draw,
    **(kernel_laws.filters_of(sampling) if is_filtered else {}),
    greedy=sampling.greedy,
    implementation=kernel,
  )
  verdict = steps.verdict_of_places(found, proposal.count, u_accept)
  return KernelReview(kernel_laws.of_places(found), verdict, found.overlap)


def _mixed(
  proposal: Proposal,
  scores: BlockScores,
  logits: Array,
  u_accept: Array,
  u_draw: Array,
  settings: BlockSettings,
) -> KernelReview | None:
  """Reviews a chain whose target mixes both models, or as a whole block."""
  target, sampling = settings.target, settings.sampling
  options: dict[str, Any] = {
    "rule": _name(target),
    "blockwise": settings.verifier_step is steps.block_verify,
  }
  is_known = options["blockwise"] or (
    settings.verifier_step is steps.token_verify
  )
  if options["rule"] is None or not is_known:
    return None
  drafts = scores.drafts
  if isinstance(settings.alpha, FittedAlpha):
    return None
  if settings.needs_bonus_law != (drafts.bonus is not None):
    return None
  kernel = mixed_review.choose(None, logits, **options)
  law = None if kernel == "xla" else kernel_laws.find(sampling, logits)
  if law is None:
    return None
  places = PlaceLaws(law.top, law.total, law.plain_total)
  if isinstance(law, FilteredLaw):
    places = places._replace(least=law.least, last=law.last)
  places = jax.tree.map(lambda x: x.reshape(logits.shape[:2]), places)
  temperature = sampling.temperature.astype(logits.dtype)
  alpha = jnp.asarray(settings.alpha, logits.dtype)
  found = mixed_review(
    logits,
    places,
    drafts,
    temperature,
    alpha,
    u_accept,
    u_draw,
    implementation=kernel,
    **options,
  )
  end, count = found.num_accepted, proposal.count
  examined = jnp.minimum(end + 1, count)
  read = count + 1 if options["blockwise"] else end + 1
  verdict = Verdict(end, found.token, examined, read=read)
  sides = (found.left, found.right)
  return KernelReview(
    law, verdict, found.overlap, None if target.rule is None else sides
  )


def _name(target: Any) -> str | None:
  """Returns a target's name among the kernels' rules; None if it has none."""
  return _TARGETS.get(target) if isinstance(target, Target) else None
