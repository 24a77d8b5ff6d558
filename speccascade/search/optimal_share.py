"""How near the acceptance of drafts comes to the best exact verification."""

from collections.abc import Collection
from typing import Any

import numpy as np

from speccascade.analysis import draft_acceptance
from speccascade.decoding.records.block_records import Decoded
from speccascade.decoding.records.draft_tree import IID, Drawing
from speccascade.inference.measuring.study import Study
from speccascade.inference.points.point import Point
from speccascade.search.acceptance import laws_along
from speccascade.search.head_acceptance import head_laws_along
from speccascade.search.rank_acceptance import RankRates

_NUM_PLACES = 32  # at which the optimum is worked out


def shares_of_optimum(
  study: Study,
  point: Point,
  nums: Collection[int],
  rates: RankRates,
  texts: Decoded,
  drawing: Drawing,
) -> dict[int, float]:
  """Returns the acceptance at the first place of a block over the largest one.

  It is the mean over places of the first texts.

  Args:
    study: the pair, and the sources of the texts.
    point: the method and its sampling.
    nums: the numbers of drafts at the first place.
    rates: what `rank_acceptance.rank_rates_along` returns.
    texts: the texts of the rates.
    drawing: how several drafts are chosen.

  Returns:
    The share by the number of drafts. It is empty at temperature 0, where every
    way of drawing and verifying is one, and where nothing is drafted.
  """
  if point.is_greedy:
    return {}
  here, laws = _laws_of_first_drafts(study, point, texts)
  lengths = np.asarray(texts.lengths)[here]
  first = 0 if rates.first_drafts else 1
  places = [
    (row, t) for row, length in enumerate(lengths) for t in range(first, length)
  ]
  if not places:
    return {}
  chosen = np.linspace(0, len(places) - 1, min(_NUM_PLACES, len(places)))
  rows, columns = np.array([places[int(i)] for i in chosen]).T
  (q1, q), (p1, p) = [
    [np.asarray(law)[rows, columns] for law in model] for model in laws
  ]
  pi = point.spec.target.probs(
    q1, p1, alpha=point.decoder_alpha, sampled=(q, p)
  )
  shares = {}
  for num in nums:
    optimum = draft_acceptance.optimal_acceptance(
      q, np.asarray(pi), num, IID if num == 1 else drawing, plain=q1
    )
    accepted = rates.at(1)[here][rows, columns, num - 1].sum(axis=-1)
    shares[num] = float(min(1, accepted.mean() / optimum.mean()))
  return shares


def _laws_of_first_drafts(
  study: Study, point: Point, texts: Decoded
) -> tuple[slice, list[Any]]:
  """Returns the first texts as a slice, with the laws of drafter and verifier.

  Of draft heads the first head drafts the first place of a block.
  """
  if study.pair.has_heads:
    along = head_laws_along(study, point.sampling, texts, 1)
    here, _, (drafter,), verifier = next(along)
    return here, [drafter, verifier]
  here, _, laws = next(laws_along(study, point.sampling, texts))
  return here, laws
