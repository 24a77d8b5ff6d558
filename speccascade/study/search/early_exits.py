"""The early exits of the verifier that advice tries: `EarlyExits`.

The verifier's first k layers are one more drafter in question, for each k with
costs and an acceptance of its own. They need no checkpoint, so advice has them
where there is no drafter, too.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from speccascade.generate.pair import draft_vocabulary
from speccascade.generate.pair.early_exit import EarlyExit
from speccascade.generate.pair.pair_checks import PairError
from speccascade.generate.pair.pairs import PairSpec, describe_dtypes
from speccascade.study.measuring.study import Study
from speccascade.study.search.wanted import Wanted

# Numbers of layers that are tried where none are asked for and there is no
# drafter, of those that are smaller than the verifier's.
LAYERS = (1, 2, 4, 8)
# Settings of a drafter that an early exit, which has none of its own, refuses.
_OF_DRAFTER = ("drafter", "drafter_kernel_dtype")


@dataclasses.dataclass(frozen=True, eq=False)
class EarlyExits:
  """The early exits that advice tries.

  Attributes:
    studies: one for each exit alone with the verifier, the fewest layers first;
      empty where none is tried.
    unset: macros of the pair that a decode with an exit sets to None.
  """

  studies: Sequence[Study] = ()
  unset: Sequence[str] = ()

  @classmethod
  def of(cls, spec: PairSpec, wanted: Wanted, study: Study) -> "EarlyExits":
    """Returns what is tried, checked.

    Args:
      spec: the models, as they are configured.
      wanted: what the user asks.
      study: of the examples, with the pair that `with_a_drafter` gives.

    Raises:
      PairError: the verifier has fewer layers than are asked for, or the pair
        has settings that no early exit can have.
    """
    if not _are_tried(spec, wanted):
      return cls()
    asked, verifier = wanted.early_exits, study.pair.verifier
    if asked is None:
      most = verifier.lm.module.config.num_decoder_layers
      asked = [k for k in LAYERS if k < most]
      if not asked:
        raise PairError(
          f"there is no drafter, and {verifier.name} has one decoder layer, of"
          " which no early exit is smaller: set DRAFTER_CHECKPOINT"
        )
    studies = [_with_exit(spec, study, k) for k in sorted(set(asked))]
    unset = [x.upper() for x in _OF_DRAFTER if getattr(spec, x) is not None]
    return cls(studies, unset)

  def bindings(self, study: Study) -> Mapping[str, str | None]:
    """Returns the macros that name a drafter if it is one of these exits.

    Args:
      study: of an offer, whose drafter may have a draft vocabulary.
    """
    [drafter] = study.pair.drafters
    settings = [x.pair.drafters[0].setting for x in self.studies]
    if drafter.setting not in settings:
      return {}
    values: dict[str, str | None] = {"DRAFTER_CHECKPOINT": drafter.setting}
    return values | dict.fromkeys(self.unset)


def has_drafter(spec: PairSpec) -> bool:
  """Whether a pair names anything that drafts."""
  if spec.drafter_checkpoint:
    return True
  return spec.drafter is not None or spec.cascade is not None


def with_a_drafter(spec: PairSpec, wanted: Wanted) -> PairSpec:
  """Returns a pair that can be read: one without a drafter gets an early exit.

  Args:
    spec: the models, as they are configured.
    wanted: what the user asks.

  Raises:
    PairError: exits are tried, and drafters have a vocabulary of their own.
  """
  if not _are_tried(spec, wanted):
    return spec
  if spec.drafter_vocabulary is not None:
    raise PairError(
      "an early exit has the verifier's vocabulary, and DRAFTER_VOCABULARY is"
      " set: leave it out, or set EARLY_EXITS = []"
    )
  if has_drafter(spec):
    return spec
  return dataclasses.replace(spec, drafter_checkpoint=str(EarlyExit(1)))


def _are_tried(spec: PairSpec, wanted: Wanted) -> bool:
  """Whether any early exit is tried."""
  if wanted.early_exits is None:
    return not has_drafter(spec)
  return bool(wanted.early_exits)


def _with_exit(spec: PairSpec, study: Study, num_layers: int) -> Study:
  """Returns the study of an early exit alone with the verifier."""
  try:
    drafter = EarlyExit(num_layers).of(study.pair.verifier)
  except PairError as error:
    raise PairError(f"EARLY_EXITS has {num_layers}: {error}") from error
  # The kernels are the verifier's, whatever other drafters have.
  dtype = describe_dtypes(spec.dtype, spec.kernel_dtype, study.pair.layout)
  pair = dataclasses.replace(study.pair, drafters=(drafter,), dtype=dtype)
  if spec.draft_vocabulary is not None:
    vocabulary = study.sources.vocabulary
    pair = draft_vocabulary.cut_drafters(
      pair, spec.draft_vocabulary, vocabulary
    )
  return study.with_session(pair=pair)
