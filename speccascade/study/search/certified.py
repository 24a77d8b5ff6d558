"""The share of positions whose first draft no rule can reject, by point.

At temperature 0 a certificate says of a position that the drafter is too near
to the verifier for its draft to be rejected, see `decoding.laws.certificates`.
Both models read the verifier's texts, and each position either has one or not.
Drawn drafts have none.
"""

from collections.abc import Sequence
import functools

import jax
import numpy as np

from speccascade.decoding.laws import certificates
from speccascade.decoding.laws.targets import Target, lossless
from speccascade.decoding.records.block_records import Decoded
from speccascade.generate.points.point import Point
from speccascade.study.measuring.study import Study
from speccascade.study.search.acceptance import laws_along, least_place
from speccascade.study.search.advice import Advice
from speccascade.study.search.candidates import Candidate


def shares(advice: Advice) -> dict[tuple, float]:
  """Returns the certified shares of what was decoded or timed, by its key.

  What has no certificates is left out: points above temperature 0, a model
  alone, and texts without a drafted position.

  Args:
    advice: what a search found; its offers have shares if nothing was timed.
  """
  known = [*advice.timed, *advice.decoded] or advice.offers[:1]
  found = {}
  for drafting in advice.draftings:
    offers = [x for x in known if x.study is drafting.study]
    found |= _shares_of(drafting.study, offers, drafting.alone)
  return found


def _shares_of(
  study: Study, offers: Sequence[Candidate], texts: Decoded
) -> dict[tuple, float]:
  """Returns the share of each offer of one drafter that has one."""
  offers = [x for x in offers if has_certificates(x.point)]
  if not offers:
    return {}
  of_points = positions(study, [x.point for x in offers], texts)
  is_drafted = drafted(study, texts)
  if not is_drafted.any():
    return {}
  means = of_points[:, is_drafted].mean(axis=1).tolist()
  return dict(zip((x.key for x in offers), means))


def has_certificates(point: Point) -> bool:
  """Returns whether a target decides on drafts that are chosen by arg-max."""
  drafts = point.spec.has_blocks and point.spec.target is not None
  return drafts and point.is_greedy


def drafted(study: Study, texts: Decoded) -> np.ndarray:
  """Returns the positions of texts that the first draft of a block may be at.

  Args:
    study: the pair of models.
    texts: N texts of T tokens at most.

  Returns:
    [N, T] bool.
  """
  places = np.arange(texts.tokens.shape[1])
  least = least_place(0, study.pair.first_block_drafts)
  return (places >= least) & (places < np.asarray(texts.lengths)[:, None])


def positions(
  study: Study, points: Sequence[Point], texts: Decoded
) -> np.ndarray:
  """Returns at which positions a block's first draft is certainly accepted.

  Args:
    study: the pair of models, and the N sources.
    points: A greedy methods with a target, of one sampling.
    texts: the texts that were written for the sources, of T tokens at most.

  Returns:
    [A, N, T] bool. Its values outside `drafted` mean nothing.
  """
  found = np.zeros((len(points), *texts.tokens.shape), bool)
  # What a rule of q accepts besides p's arg-max has no certificate, so all such
  # rules have those of a lossless method.
  places: dict[tuple, list[int]] = {}
  for place, point in enumerate(points):
    target, alpha = point.spec.target, point.decoder_alpha
    key = (target, alpha) if certificates.is_of_p(target) else (lossless, 0.0)
    places.setdefault(key, []).append(place)
  for here, _, ((q, _), *_), (p, _) in laws_along(
    study, points[0].sampling, texts
  ):
    for (target, alpha), same in places.items():
      certain = np.asarray(_certify(target, q, p, alpha))
      found[same, here] = certain[: here.stop - here.start]
  return found


@functools.partial(jax.jit, static_argnums=0)
def _certify(target: Target, q, p, alpha) -> jax.Array:
  """Returns whether q [..., V] is within a bound of a target at p, [...]."""
  accepted = certificates.accepted_drafts(target, p, alpha)
  bounds = certificates.least_rejected(p, accepted)
  return certificates.divergences(p, q).certify(bounds)
