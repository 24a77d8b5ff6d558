"""`GAMMA = "auto"`: the gamma that `speccascade.advise` wrote down.

It is read from a file and not measured when a run starts: two starts of one
command then decode alike, a killed run goes on, and the clock of a busy moment
decides nothing unseen.
"""

import dataclasses
import os
import pathlib
from typing import Any, TypedDict

from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.points.point import AUTO, BlockSize, Point
from speccascade.settings import fields

FILE_NAME = "advice.json"


class _Offer(TypedDict):
  drafter: str
  method: str
  alpha: float | None
  gamma: BlockSize | None


class _Told(TypedDict):
  about: dict[str, Any]
  offers: list[_Offer]


def resolved(point: Point, pair: ModelPair) -> Point:
  """Returns the point with a number for gamma.

  A drafter that was composed beforehand has its own block size, which is the
  gamma of every point that it drafts for.

  Args:
    point: one whose gamma is "auto" has `advice`, a file of
      `speccascade.advise` or its folder.
    pair: that decodes.

  Raises:
    ValueError: there is no advice, or it is of something else.
  """
  if pair.composed is not None:
    return dataclasses.replace(point, gamma=pair.composed.width)
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
  if not os.path.isfile(path):
    raise ValueError(
      f"ADVICE {path} is not there; run python -m speccascade.advise"
    )
  try:
    read = fields.of_json(path.read_text(encoding="utf-8"))
    told = fields.fit("it", read, _Told)
  except ValueError as error:
    raise ValueError(
      f"ADVICE {path} is no advice ({error}); run python -m speccascade.advise"
    ) from error
  settings, asked = about(point, pair), (pair.drafter_name, point.method)
  for name, there in told["about"].items():
    if settings.get(name) != there:
      raise ValueError(
        f"ADVICE {path} is about {name} {there!r}, here it is"
        f" {settings.get(name)!r}; run python -m speccascade.advise for that"
      )
  fitting = {
    offer["alpha"] or 0.0: offer["gamma"]
    for offer in told["offers"]
    if (offer["drafter"], offer["method"]) == asked
  }
  if not fitting:
    raise ValueError(
      f"ADVICE {path} says nothing of {point.method} with {pair.drafter_name};"
      " give GAMMA a number"
    )
  # Where that alpha was not looked at, the nearest one's.
  alpha = point.alpha if point.spec.uses_alpha else 0.0
  nearest = min(fitting, key=lambda there: abs(there - alpha))
  return dataclasses.replace(point, gamma=fitting[nearest])


def about(point: Point, pair: ModelPair) -> dict:
  """Returns what advice holds for: the verifier, and how it is sampled."""
  verifier = {"verifier": pair.verifier_name}
  return verifier | point.sampled | {"bonus": point.bonus}
