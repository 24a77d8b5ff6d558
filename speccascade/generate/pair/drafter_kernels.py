"""The kernels of drafters: their dtype, and a verifier that drafts for itself.

A drafter's kernels may have another dtype than the verifier's, int8 among them:
q is whatever the drafter computes, and a method's distribution is stated with
that q. So the texts of a lossless method are the verifier's, whatever is lost.
"""

from collections.abc import Sequence
import os
from typing import Any, NamedTuple

from speccascade.decoding.records.language_model import LanguageModel
from speccascade.decoding.records.readers import ReadsStates
from speccascade.generate.pair.pair_checks import PairError
from speccascade.models import architectures
from speccascade.models.parameters import EIGHT_BITS, KERNEL_DTYPES, Config

# In the place of a drafter's path: the verifier itself, in int8.
SELF = "self-int8"


class DrafterSource(NamedTuple):
  """Where a drafter is read from, and how.

  Attributes:
    config: its architecture, None takes the checkpoint's.
    path: of its checkpoint, None where there is none.
    kernel_dtype: the dtype of its kernels.
    is_self: whether it is the verifier, in int8.
  """

  config: Config | None
  path: str | os.PathLike | None
  kernel_dtype: str
  is_self: bool = False


def check_kernel_dtype(value: str) -> None:
  """Raises ValueError unless the kernels of a verifier may have a dtype."""
  if value == EIGHT_BITS:
    raise ValueError(
      "'int8' is for a drafter: a verifier in int8 is another model, whose"
      " texts a lossless method would write; set DRAFTER_KERNEL_DTYPE = 'int8'"
    )
  if value not in KERNEL_DTYPES:
    wanted = ", ".join(map(repr, KERNEL_DTYPES))
    raise ValueError(f"{value!r:.60}; wanted one of {wanted}")


def check_quantised(
  kernel_dtype: str | None, config: Config, name: Any, layout: Any
) -> None:
  """Raises PairError where a drafter cannot have kernels in int8.

  Args:
    kernel_dtype: the dtype that its kernels are to have.
    config: its architecture.
    name: its name, for messages.
    layout: where it lies, None on one device.
  """
  if kernel_dtype != EIGHT_BITS:
    return
  if architectures.kind_of(config) not in (LanguageModel, ReadsStates):
    raise PairError(
      "DRAFTER_KERNEL_DTYPE = 'int8' is for a language model or a state reader,"
      f" and {name} has {architectures.words_of(config)}; leave it out"
    )
  if layout is not None:
    raise PairError(
      f"a drafter in int8 lies on one device, and {name} is on a mesh; set MESH"
      " = None, or DRAFTER_KERNEL_DTYPE to another dtype"
    )


def check_is_used(
  given: str | None, kernel_dtype: str, dtypes: Sequence[str]
) -> None:
  """Raises PairError where a dtype is given, and no drafter is read with it.

  Args:
    given: DRAFTER_KERNEL_DTYPE.
    kernel_dtype: of the verifier's kernels, which may be given again.
    dtypes: of the kernels of each drafter that is read from a checkpoint.
  """
  if given not in (None, kernel_dtype, *dtypes):
    raise PairError(
      f"DRAFTER_KERNEL_DTYPE is {given!r}, and no drafter is read from a"
      " checkpoint of its own; leave it out"
    )


def names_self(path: Any) -> bool:
  """Whether a drafter's path is `SELF`."""
  return isinstance(path, str | os.PathLike) and os.fspath(path) == SELF


def resolve(
  config: Config | None,
  path: Any,
  verifier: tuple[Config | None, Any],
  kernel_dtype: str,
) -> DrafterSource:
  """Returns where a drafter is read from.

  Args:
    config: its architecture, or None.
    path: of its checkpoint; `SELF` is the verifier's.
    verifier: the architecture and the path of the verifier.
    kernel_dtype: the dtype of the kernels of drafters that are not `SELF`.

  Raises:
    PairError: it is `SELF` with an architecture of its own.
  """
  if not names_self(path):
    return DrafterSource(config, path, kernel_dtype)
  if config is not None:
    raise PairError(
      f"a drafter {SELF!r} has the verifier's architecture; set DRAFTER = None"
    )
  return DrafterSource(*verifier, kernel_dtype=EIGHT_BITS, is_self=True)


def describe(dtypes: Sequence[str], kernel_dtype: str) -> str:
  """Returns what the drafters' kernels add to a row's description, or "".

  Args:
    dtypes: of each drafter's kernels.
    kernel_dtype: of the verifier's.

  >>> describe(["int8"], "bfloat16"), describe(["float32"], "float32")
  (', drafter in int8', '')
  """
  if all(dtype == kernel_dtype for dtype in dtypes):
    return ""
  return f", drafter in {' and '.join(dict.fromkeys(dtypes))}"
