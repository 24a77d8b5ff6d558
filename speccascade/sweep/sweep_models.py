"""The models of a sweep, as each of its methods takes them."""

from collections.abc import Sequence
import dataclasses
import functools

from speccascade.decoding import methods
from speccascade.inference import cascades
from speccascade.inference.cascades import Cascade
from speccascade.inference.pair import Pair
from speccascade.inference.point import Point


@dataclasses.dataclass(frozen=True)
class Models:
  """The pair as each method takes it.

  Attributes:
    pair: as it was read.
    composed: with the drafters combined, for methods with blocks; or None.
  """

  pair: Pair
  composed: Pair | None = None

  @classmethod
  def of(cls, pair: Pair, cascade: Cascade | None, sha256: str | None):
    """Returns the models; `cascade` combines the cascades."""
    if cascade is None:
      return cls(pair)
    method = methods.find("cascade_drafting")
    return cls(pair, cascades.combine(pair, cascade, method, sha256))

  @functools.cached_property
  def first(self) -> Pair:
    """The largest drafter alone, and the verifier."""
    if len(self.pair.drafters) == 1:
      return self.pair
    return dataclasses.replace(self.pair, drafters=self.pair.drafters[:1])

  def pair_of(self, point: Point) -> Pair:
    """Returns what decodes a point."""
    if self.composed is not None and point.spec.has_blocks:
      return self.composed
    return self.pair if point.spec.compose is not None else self.first

  def check(self, points: Sequence[Point]):
    """Raises ValueError where a point cannot be decoded by these models."""
    for point in points:
      pair = self.pair_of(point)
      decoder = point.decoder(max_decode_len=1, eos_id=1)
      decoder.check(
        pair.drafter_lm, pair.verifier_lm, point.alpha, point.sampling
      )

  def allowed(self, names: Sequence[str], draft_length="fixed") -> list[str]:
    """Returns the methods whose needs the drafters and `draft_length` meet."""
    kept = []
    for name in names:
      try:
        self.check([Point(name, temperature=0.0, draft_length=draft_length)])
      except ValueError:
        continue
      kept.append(name)
    return kept
