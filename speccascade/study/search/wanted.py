"""What a user asks of a method, and which points are in question."""

from collections.abc import Sequence
import dataclasses
from typing import Annotated

from speccascade.decoding.programs import methods
from speccascade.decoding.records.decode_settings import BlockSize
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points.point import Point
from speccascade.settings import fields
from speccascade.study.search import grid

LOSSLESS = "spec_decode"
_GAMMAS = (1, 2, 3, 4, 5, 6, 8, 10)
_Method = Annotated[str, methods.find]


@fields.checked
@dataclasses.dataclass(frozen=True)
class Wanted:
  """What a user asks of a method; its values are checked.

  Attributes:
    max_loss: how much less of the first metric is allowed than the verifier
      alone has on the same examples. The fastest answers of such quality are
      wanted: a method that writes longer ones takes longer. None asks for a
      method whose outputs have the verifier's distribution.
    methods: names of methods with a target and one drafter; None takes all
      these methods.
    gammas: the block sizes in question. With draft heads those are left out
      that are larger than the number of heads.
    num_decoded: the largest number of points that are decoded for their
      quality.
    draft_vocabularies: the numbers of tokens that the drafter's head may keep;
      None takes those of `draft_vocabularies.SIZES` for which there are counts.
    num_counted: how many further inputs the verifier writes texts for, to count
      tokens; 0 takes the counts of a file beside the drafter.
    early_exits: the numbers of the verifier's first layers that may draft; None
      takes some where there is no drafter, see `early_exits.LAYERS`.
  """

  max_loss: float | None = 0.0
  methods: Sequence[_Method] | None = None
  gammas: Annotated[Sequence[BlockSize], fields.NOT_EMPTY] = _GAMMAS
  num_decoded: fields.NonNegative = 24
  draft_vocabularies: Sequence[fields.Positive] | None = None
  num_counted: fields.NonNegative = 0
  early_exits: Sequence[fields.Positive] | None = None

  def __post_init__(self):
    for name in self.methods or ():
      if not _is_predicted(methods.find(name)):
        raise ValueError(
          f"METHODS has {name}, whose drafts are not one model's, or which has"
          " no target: its acceptance is not read off the two"
          " distributions; see it in a sweep"
        )

  def gammas_for(self, pair: ModelPair) -> list[int]:
    """Returns the block sizes that a pair can draft, ascending.

    Draft heads draft at most as many tokens in a row as there are heads, and
    look-ahead embeddings one token more.

    Raises:
      ValueError: there are too few draft heads for every block size.
    """
    gammas, most = sorted(set(self.gammas)), pair.most_drafts
    fitting = [gamma for gamma in gammas if gamma <= most]
    if not fitting:
      raise ValueError(
        f"GAMMAS is {gammas}, and {pair.drafter_name} drafts {most} tokens in a"
        f" row at most: name a gamma of 1 to {most}"
      )
    return fitting

  def points(self, common: Point, vocab_size: int) -> list[Point]:
    """Returns the points in question, the lossless point first.

    Args:
      common: the settings that all points share.
      vocab_size: the number of rows of the models' vocabulary.
    """
    names = [
      name
      for name, method in methods.METHODS.items()
      if _is_predicted(method)
      if common.rule_parameters is not None or not method.has_parameters
      if name == LOSSLESS or self.methods is None or name in self.methods
    ]
    curves = grid.curves(
      common,
      names,
      lambda point: grid.default_grid(
        point.spec, vocab_size, greedy=point.sampling.greedy
      ),
      temperatures=[common.temperature],
      gammas=[common.gamma],
    )
    points = [point for curve in curves for point in curve.points]
    return sorted(points, key=lambda point: point.method != LOSSLESS)


def _is_predicted(method: methods.Method) -> bool:
  """Returns whether the two models' distributions determine its acceptance."""
  return method.has_blocks and method.target is not None and not method.compose
