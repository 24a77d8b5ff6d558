"""Makes one line of the errors of the package `huggingface_hub`."""

from collections.abc import Iterator
import contextlib
from typing import Any

from speccascade.checkpoints import no_checkpoint, storage
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.checkpoints.hub_names import COMMIT, Name
from speccascade.runtime import extras


def is_offline() -> bool:
  """Returns whether HF_HUB_OFFLINE is set."""
  from huggingface_hub import constants

  return bool(constants.HF_HUB_OFFLINE)


class UnknownRevisionError(CheckpointNotFoundError):
  """A repository without the revision that is asked for."""


@contextlib.contextmanager
def explained(name: Name) -> Iterator[Any]:
  """Gives the package `huggingface_hub`; its errors become one line.

  Args:
    name: what is asked for, for the message.

  Raises:
    CheckpointError: the package is missing, or the block raised an error.
  """
  try:
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
  except ModuleNotFoundError as error:
    message = extras.line(error) or str(error)
    raise CheckpointNotFoundError(
      f"there is nothing at {name}{_near(name)}, and names of Hugging Face's"
      f" hub are read with a package: {message}"
    ) from error
  try:
    yield huggingface_hub
  except CheckpointError:
    raise
  except Exception as error:  # of its own, of httpx, and of the disk
    # The line says it all; the chain of causes would take a hundred lines.
    raise _explain(name, error, huggingface_hub) from None


def _explain(name: Name, error: Exception, hub: Any) -> CheckpointError:
  """Returns an error of `huggingface_hub` as one line that says what to do."""
  errors, address = hub.errors, hub.constants.ENDPOINT
  page = f"{address}/{'datasets/' if name.file else ''}{name.repo}"
  # `LocalEntryNotFoundError` only says that something else went wrong.
  while isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:
    error = error.__cause__
  response = getattr(error, "response", None)
  status = getattr(response, "status_code", None)
  log_in = (
    "log in with `hf auth login`, or set HF_TOKEN to a token of an account that"
    " may read it"
  )
  if isinstance(error, errors.GatedRepoError):
    return CheckpointError(
      f"{name.repo} is gated: accept its conditions at {page}, and {log_in}"
    )
  if status == 401 and "Invalid" in response.headers.get("X-Error-Message", ""):
    return CheckpointError(
      f"{name} cannot be read: {address} does not know the token of HF_TOKEN or"
      " `hf auth login`; give a valid one, or none"
    )
  # The hub does not say which of the two a private one is: 401, or not found.
  if status == 401 or isinstance(error, errors.RepositoryNotFoundError):
    what = "data set" if name.file else "model"
    return CheckpointNotFoundError(
      f"there is no folder {name.repo} here{_near(name)}, and no {what}"
      f" {name.repo} at {address}; if it is private, {log_in}"
    )
  if isinstance(error, errors.RevisionNotFoundError):
    return UnknownRevisionError(
      f"{page} has no revision {name.revision!r:.99}: give a branch, a tag or"
      " the 40 digits of a commit"
    )
  if isinstance(error, errors.RemoteEntryNotFoundError):
    what = f"the file {name.file}" if name.file else "a file that it lists"
    return CheckpointNotFoundError(
      f"{page} does not have {what} at revision {name.revision or 'main'}"
    )
  if status == 403:
    return CheckpointError(
      f"{name} may not be read ({status} of {page}): {log_in}"
    )
  kind = "--repo-type dataset " if name.file else ""
  copy = (
    f"`hf download {kind}{name.repo} --local-dir FOLDER` where there is a"
    " network, and give the FOLDER"
  )
  if isinstance(error, errors.OfflineModeIsEnabled) or (
    isinstance(error, errors.LocalEntryNotFoundError) and is_offline()
  ):
    return CheckpointNotFoundError(
      f"there is no folder {name.repo} here{_near(name)}, and {name} is not"
      f" whole in the cache {hub.constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is"
      f" set: leave it out once; or {copy}"
    )
  if isinstance(error, errors.HFValidationError):
    return CheckpointNotFoundError(
      f"{name} is not a valid name on Hugging Face's hub:"
      f" {storage.first_line(error)}"
    )
  reason = storage.first_line(error) or type(error).__name__
  if isinstance(error, OSError) and error.filename:  # of the disk
    return CheckpointError(
      f"{name} cannot be stored: {error.filename}: {error.strerror}"
    )
  # With a commit it is known that a name of the hub is meant.
  absent = f"there is no folder {name.repo} here{_near(name)}, and "
  if name.file or COMMIT.fullmatch(name.revision):
    absent = ""
  return CheckpointError(
    f"{absent}{name} cannot be read from {address} ({reason:.200}): try again,"
    f" what was downloaded whole is kept; or {copy}"
  )


def _near(name: Name) -> str:
  """Returns the folders here that have nearly the name of a model."""
  return "" if name.file else no_checkpoint.near_misses(name.repo, quiet=True)
