"""`GAMMA = "auto"`: the gamma that `speccascade.advise` wrote to a file.

The gamma is read from a file and not measured when a run starts. So two starts
of one command decode alike, a killed run can go on, and a busy machine at the
moment of the start does not silently decide the gamma.
"""

import dataclasses
import os
import pathlib
from typing import Any, TypedDict

from speccascade.decoding.records.decode_settings import BlockSize
from speccascade.decoding.records.drafter import block_depth
from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.points.point import AUTO, Point
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


def resolve_gamma(point: Point, pair: ModelPair) -> Point:
  """Returns a point whose gamma is a number.

  A drafter that was composed beforehand has a block size of its own, which
  becomes the gamma of every point that it drafts for.

  Args:
    point: a point. If its gamma is "auto", its `advice` is a file of
      `speccascade.advise`, or the folder of the file.
    pair: the models that decode the point.

  Raises:
    ValueError: there is no advice, or it is about another pair or sampling.
  """
  if pair.composed is not None:
    return dataclasses.replace(point, gamma=block_depth(pair.composed))
  if point.gamma != AUTO:
    return point
  if not point.spec.has_blocks:
    return dataclasses.replace(point, gamma=1)
  if point.advice is None:
    raise ValueError(
      "GAMMA is 'auto', which asks ADVICE, and that is None: run python -m"
      " speccascade.advise with this pair, and give its OUTPUT_DIR as ADVICE"
    )
  path = pathlib.Path(point.advice).expanduser()
  path = path / FILE_NAME if os.path.isdir(path) else path
  advice = _read(path)
  _check_about(advice, path, about(point, pair))
  return dataclasses.replace(point, gamma=_gamma(advice, path, point, pair))


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
      f"ADVICE {path} is no advice ({error}); run python -m speccascade.advise"
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
