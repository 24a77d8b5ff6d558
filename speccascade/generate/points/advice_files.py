"""Reads the file that `speccascade.advise` wrote: a gamma, and costs.

`GAMMA = "auto"` takes the gamma, and `GAMMA = "adaptive"` the costs.

The gamma is read from a file and not measured when a run starts. So two starts
of one command decode alike, a killed run can continue, and a busy machine at
the moment of the start does not silently decide the gamma.
"""

import dataclasses
import os
import pathlib
from typing import Any, NotRequired, TypedDict

from speccascade.decoding.programs import draft_models
from speccascade.decoding.records.decode_settings import BlockSize
from speccascade.decoding.records.drafter import block_depth
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.readers import ReadsStates
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.draft_costs import DraftCosts
from speccascade.generate.points.point import AUTO, Point
from speccascade.generate.points.point_checks import ADAPTIVE
from speccascade.settings import fields

FILE_NAME = "advice.json"


class _Offer(TypedDict):
  """The best gamma of a method with a drafter, as the file has it."""

  drafter: str
  method: str
  alpha: float | None
  gamma: BlockSize | None


class _Advice(TypedDict):
  """The part of an advice file that is read here."""

  about: dict[str, Any]
  offers: list[_Offer]
  costs: NotRequired[dict[str, dict]]


def resolve_gamma(point: Point, pair: ModelPair) -> Point:
  """Returns a point whose gamma is a number, or "adaptive".

  A drafter that was composed beforehand has a block size of its own, which
  becomes the gamma of every point that it drafts for.

  Args:
    point: a point. If its gamma is "auto", its `advice` is a file of
      `speccascade.advise`, or the folder of the file.
    pair: the models that decode the point.

  Raises:
    ValueError: there is no advice, or it is about another pair or sampling; or
      the pair's drafter cannot choose the sizes of its blocks.
  """
  if point.is_adaptive:
    _check_chooses(pair)
    if point.draft_costs is None and point.advice is not None:
      return dataclasses.replace(point, draft_costs=_costs(point, pair))
    return point
  if not point.spec.has_blocks:
    return point.of(point.method, alpha=point.alpha)
  if pair.composed is not None:
    return dataclasses.replace(point, gamma=block_depth(pair.composed))
  if point.gamma not in (AUTO, ADAPTIVE):
    return point
  if point.advice is None:
    raise ValueError(
      "GAMMA is 'auto', which asks ADVICE, and that is None: run python -m"
      " speccascade.advise with this pair, and give its OUTPUT_DIR as ADVICE"
    )
  path, advice = _of(point, pair)
  return dataclasses.replace(point, gamma=_gamma(advice, path, point, pair))


def _check_chooses(pair: ModelPair):
  """Raises ValueError where a drafter cannot choose the sizes of its blocks."""
  drafter, kind = pair.drafter_lm, ""
  if pair.composed is not None:
    kind = f"the drafter is composed, {pair.composed_name}"
  elif len(pair.drafters) != 1:
    kind = f"the pair has {len(pair.drafters)} drafters"
  elif draft_models.kind_of(drafter) not in (LanguageModel, ReadsStates):
    kind = f"a {type(drafter).__name__} gives all drafts of a block at once"
  if kind:
    raise ValueError(
      f"GAMMA is 'adaptive', and {kind}: give GAMMA a number, or one small"
      " language model or state reader as the drafter"
    )


def _of(point: Point, pair: ModelPair) -> tuple[pathlib.Path, _Advice]:
  """Returns the advice for a point, and its file."""
  assert point.advice is not None
  path = pathlib.Path(point.advice).expanduser()
  path = path / FILE_NAME if os.path.isdir(path) else path
  advice = _read(path)
  _check_about(advice, path, about(point, pair))
  return path, advice


def _costs(point: Point, pair: ModelPair) -> DraftCosts:
  """Returns the costs of rounds by the costs of calls in the advice."""
  path, advice = _of(point, pair)
  try:
    costs = fields.build(Costs, advice.get("costs", {})[pair.drafter_name])
    return DraftCosts.of_calls(costs, folds=point.folds)
  except (KeyError, ValueError) as error:
    raise ValueError(
      f"ADVICE {path} has no costs of rounds with {pair.drafter_name}; leave"
      " ADVICE out, and they are measured"
    ) from error


def about(point: Point, pair: ModelPair) -> dict:
  """Returns what advice holds for: the verifier, and how tokens are drawn."""
  verifier = {"verifier": pair.verifier_name}
  return verifier | point.sampled | {"bonus": point.bonus}


def _read(path: pathlib.Path) -> _Advice:
  """Returns the advice in a file; raises ValueError where it holds none."""
  if not os.path.isfile(path):
    raise ValueError(
      f"ADVICE {path} is not there; run python -m speccascade.advise"
    )
  try:
    values = fields.of_json(path.read_text(encoding="utf-8"))
    return fields.fit("it", values, _Advice)
  except ValueError as error:
    raise ValueError(
      f"ADVICE {path} holds no advice ({error}); run python -m"
      " speccascade.advise"
    ) from error


def _check_about(advice: _Advice, path: pathlib.Path, wanted: dict):
  """Raises ValueError where the advice is about something else than wanted."""
  for name, value in advice["about"].items():
    if wanted.get(name) != value:
      raise ValueError(
        f"ADVICE {path} is about {name} {value!r}, here it is"
        f" {wanted.get(name)!r}; run python -m speccascade.advise for that"
      )


def _gamma(
  advice: _Advice, path: pathlib.Path, point: Point, pair: ModelPair
) -> int | None:
  """Returns the gamma of the method at the alpha nearest to the point's."""
  wanted = (pair.drafter_name, point.method)
  gammas = {
    offer["alpha"] or 0.0: offer["gamma"]
    for offer in advice["offers"]
    if (offer["drafter"], offer["method"]) == wanted
  }
  if not gammas:
    raise ValueError(
      f"ADVICE {path} says nothing of {point.method} with {pair.drafter_name};"
      " give GAMMA a number"
    )
  alpha = point.alpha if point.spec.uses_alpha else 0.0
  return gammas[min(gammas, key=lambda other: abs(other - alpha))]
