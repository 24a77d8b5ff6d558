"""Downloads what models and data sets on Hugging Face's hub need.

The package `huggingface_hub` downloads: it has the cache (HF_HOME), the
progress bars, HF_TOKEN, HF_HUB_OFFLINE and HF_ENDPOINT. Only files that are
read are downloaded, and never pickles.

A name keeps the revision of its first use until `forget` is called, so that a
model and its tokenizer are of one revision.
"""

from collections.abc import Callable, Iterable
import contextlib
import glob
import os
from typing import Any

from absl import logging

from speccascade.checkpoints import (
  hub_errors,
  hub_names,
  no_checkpoint,
  safetensors_files,
  storage,
)
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.checkpoints.hub_names import COMMIT, Name
from speccascade.runtime import processes

_CONFIG = "config.json"
# What is read beside the weights. Each is small.
SMALL = (
  _CONFIG,
  "generation_config.json",
  "adapter_config.json",
  "spiece.model",
  "tokenizer.json",
  "tokenizer.model",
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "chat_template.jinja",
  "draft_vocabulary.json",
)

_TIMEOUT_S = 10.0  # of the question which revision is the newest


# The revision of each name that this process used, and the folder with it.
_pinned: dict[Name, str] = {}
_folders: dict[tuple[Name, bool], str] = {}
_unanswered: set[str] = set()  # repositories that the hub was asked in vain


def forget() -> None:
  """Makes the next use of each name ask for its newest revision again."""
  _pinned.clear()
  _folders.clear()
  _unanswered.clear()


def recorded(path: Any) -> Any:
  """Returns a path as records have it: the commit of a name of the hub.

  Args:
    path: a path, a name of a model or of a file that was used, a path in the
      cache, or None.
  """
  name = hub_names.parse(path) or hub_names.parse_file(path)
  commit = _pinned.get(name._replace(file="")) if name else None
  if name and commit:
    return str(name._replace(revision=commit))
  return hub_names.name_of(path) or path if isinstance(path, str) else path


def task_of(path: str | os.PathLike) -> str:
  """Returns what rows call the task of a file: its name, and its commit.

  Args:
    path: a path, or a name of a file that was used.
  """
  name = hub_names.parse_file(path)
  commit = _pinned.get(name._replace(file="")) if name else None
  # As models are named: where the file lies is not part of a figure's title.
  task = os.path.basename(path)
  return f"{task}@{commit[: hub_names.SHORT]}" if commit else task


def local(
  path: str | os.PathLike, *, weights: bool = True
) -> str | os.PathLike:
  """Returns the local folder of a name of the hub, after downloading it.

  Args:
    path: the name, or another path, which is returned as it is.
    weights: whether the weights are wanted, beside the settings and the
      tokenizer.

  Raises:
    CheckpointError: `huggingface_hub` is not installed, the hub cannot be
      reached and the cache lacks the files, the model is gated, or it has no
      files that are read.
    CheckpointNotFoundError: there is no such model, revision or file.
  """
  name = hub_names.parse(path)
  if name is None:
    return path
  folder = _folders.get((name, True)) or _folders.get((name, weights))
  if folder is None:
    pinned = name._replace(revision=_pinned.get(name, name.revision))
    folder = _fetch(pinned, weights)
    _folders[name, weights] = folder
    _pinned[name] = os.path.basename(folder)
  return folder


def file(path: str | os.PathLike) -> str | os.PathLike:
  """Returns the local path of a data set's file, after downloading it.

  Args:
    path: "hf://datasets/..."; any other path is returned as it is.

  Raises:
    CheckpointError: as of `local`.
  """
  name = hub_names.parse_file(path)
  if name is None:
    return path
  whole = name._replace(file="")
  pinned = name._replace(revision=_pinned.get(whole, name.revision))
  _check_job(pinned)
  with hub_errors.explained(pinned) as hub:
    # It takes the file of the cache where the hub cannot be reached.
    found = hub.hf_hub_download(filename=name.file, **pinned.place)
  if commit := hub_names.name_of(found):
    _pinned[whole] = commit.partition("@")[2]
  return found


def resolve(name: Name) -> tuple[Name, list[str]]:
  """Asks the hub for the commit of a name and the files that it has.

  Raises:
    CheckpointError: as of `local`.
  """
  revision = _pinned.get(name, name.revision)
  with hub_errors.explained(name) as hub:
    place = name._replace(revision=revision).place
    info = hub.HfApi().repo_info(timeout=_TIMEOUT_S, **place)
  pinned = name._replace(revision=info.sha)
  return pinned, [each.rfilename for each in info.siblings or ()]


def weights_of(name: Name, files: list[str]) -> list[str]:
  """Returns the files of a model's weights; downloads the index of shards.

  Args:
    name: the model, at a commit.
    files: all files that it has.

  Raises:
    CheckpointError: there are no safetensors, or the index is damaged.
    CheckpointNotFoundError: a shard is missing.
  """

  def read_index() -> dict:
    folder = storage.Directory(_get(name, [safetensors_files.INDEX]))
    return folder.read_json(safetensors_files.INDEX)

  if wanted := _choose(name, files, read_index):
    return wanted
  settings = {}
  if _CONFIG in files:
    with contextlib.suppress(CheckpointError):
      settings = storage.Directory(_get(name, [_CONFIG])).read_json(_CONFIG)
  raise no_checkpoint.of_files(str(name), files, settings)


def _choose(
  name: Name, files: Iterable[str], read_index: Callable[[], dict]
) -> list[str]:
  """Returns which files are the weights; [] where there are none."""
  files = {*files}
  if safetensors_files.WEIGHTS in files:
    return [safetensors_files.WEIGHTS]
  if safetensors_files.INDEX not in files:
    return []
  with storage.parsing(f"{name}/{safetensors_files.INDEX}"):
    shards = sorted({*read_index()["weight_map"].values()})
  for shard in shards:
    if shard not in files:
      raise CheckpointNotFoundError(
        f"{name} has no {shard!r:.99}, which its {safetensors_files.INDEX}"
        " names: the upload is not whole; give another revision"
      )
  return shards


def _fetch(name: Name, weights: bool) -> str:
  """Returns the folder of a model in the cache, with the files it needs."""
  _check_job(name)
  if name.repo in _unanswered and (folder := cached(name, weights=weights)):
    return folder  # without waiting for another answer
  try:
    pinned, files = resolve(name)
  except hub_errors.UnknownRevisionError:
    raise
  except CheckpointError as error:
    # As `from_pretrained` of transformers does.
    folder = cached(name, weights=weights)
    if folder is None:
      raise
    if not hub_errors.is_offline():
      commit = os.path.basename(folder)
      logging.warning("%s; taking revision %s of the cache", error, commit)
    _unanswered.add(name.repo)
    return folder
  small = [each for each in SMALL if each in files]
  if not small or (weights and _CONFIG not in small):
    raise no_checkpoint.of_files(str(name), files)
  folder = _get(pinned, small)
  # The weights come last: a cache that has them has all files.
  if weights:
    _get(pinned, weights_of(pinned, files))
  _write_reference(name, small[0], folder)
  return folder


def _get(name: Name, files: list[str]) -> str:
  """Downloads files that the cache lacks; returns their folder."""
  with hub_errors.explained(name) as hub:
    paths = {
      each: hub.try_to_load_from_cache(filename=each, **name.place)
      for each in files
    }
    missing = [x for x, path in paths.items() if not isinstance(path, str)]
    if missing:
      patterns = [glob.escape(each) for each in missing]
      return hub.snapshot_download(allow_patterns=patterns, **name.place)
  return os.path.dirname(str(paths[files[0]]))


def _write_reference(name: Name, file: str, folder: str) -> None:
  """Makes the cache know which commit a branch or a tag is, for offline."""
  if COMMIT.fullmatch(name.revision):
    return
  with hub_errors.explained(name) as hub:
    known = hub.try_to_load_from_cache(filename=file, **name.place)
    if known != os.path.join(folder, file):
      hub.hf_hub_download(filename=file, **name.place)


def cached(name: Name, *, weights: bool = True) -> str | None:
  """Returns the folder of a model in the cache; None where it is not whole.

  Args:
    name: the model.
    weights: whether the weights are wanted.
  """
  with hub_errors.explained(name) as hub:
    for each in SMALL:
      found = hub.try_to_load_from_cache(filename=each, **name.place)
      if isinstance(found, str):
        break
    else:
      return None
  folder = storage.Directory(os.path.dirname(found))
  if weights and not folder.has(safetensors_files.WEIGHTS):
    try:
      shards = _choose(
        name,
        folder.children(),
        lambda: folder.read_json(safetensors_files.INDEX),
      )
    except CheckpointNotFoundError:
      return None
    if not shards:
      return None
  return folder.url


def _check_job(name: Name) -> None:
  """Checks that all processes of a job read one revision."""
  if processes.count() > 1 and not COMMIT.fullmatch(name.revision):
    raise CheckpointError(
      f"{name} may be another model to each of {processes.count()} processes:"
      f" give {name.repo}@COMMIT with the 40 digits of a commit"
    )
