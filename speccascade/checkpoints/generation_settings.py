"""Reads what Hugging Face's files say of generation: ends, and other settings.

generation_config.json has these settings. Older directories have them in
config.json.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from speccascade.checkpoints import storage
from speccascade.checkpoints.errors import CheckpointError

GENERATION, CONFIG = "generation_config.json", "config.json"

# Settings of a run, by the names that generation_config.json has for them. With
# do_sample false, transformers ignores them.
_OF_A_RUN = {
  "temperature": "TEMPERATURE",
  "top_k": "TOP_K",
  "top_p": "TOP_P",
  "min_p": "MIN_P",
}
# Settings that change what is written and that no method here has, with the
# values that change nothing, next to null.
_ABSENT: dict[str, tuple] = {
  "repetition_penalty": (1,),
  "encoder_repetition_penalty": (1,),
  "no_repeat_ngram_size": (0,),
  "encoder_no_repeat_ngram_size": (0,),
  "bad_words_ids": ([],),
  "force_words_ids": ([],),
  "suppress_tokens": ([],),
  "begin_suppress_tokens": ([],),
  "forced_bos_token_id": (),
  "forced_eos_token_id": (),
  "forced_decoder_ids": ([],),
  "sequence_bias": ({}, []),
  "min_length": (0,),
  "min_new_tokens": (0,),
  "exponential_decay_length_penalty": (),
  "num_beams": (1,),
  "penalty_alpha": (0,),
  "guidance_scale": (1,),
  "typical_p": (1,),
  "epsilon_cutoff": (0,),
  "eta_cutoff": (0,),
  "top_h": (),
  "stop_strings": ([], ""),
}
_SHOWN = 40  # characters of a value in a line


class Ends(NamedTuple):
  """The tokens that end a text, as a file names them.

  Attributes:
    where: the path of the file.
    ids: the ids, each once, in the file's order.
  """

  where: str
  ids: tuple[int, ...]


def ends_of(directory: storage.Directory) -> Ends | None:
  """Returns the tokens that end a text; None if no file names any.

  generation_config.json is believed before config.json.

  Args:
    directory: a directory of Hugging Face.

  Raises:
    CheckpointError: a file is damaged, or names something else than ids.
  """
  for name in (GENERATION, CONFIG):
    if (ends := _settings(directory, name).get("eos_token_id")) is None:
      continue
    ids = ends if isinstance(ends, list) else [ends]
    if not ids or not all(type(i) is int and i >= 0 for i in ids):
      raise CheckpointError(
        f"{directory}/{name}: eos_token_id is {ends!r:.60}; wanted the ids of"
        " the tokens that end a text, whole numbers from 0"
      )
    return Ends(f"{directory}/{name}", tuple(dict.fromkeys(ids)))
  return None


def describe_unapplied(directory: storage.Directory) -> str:
  """Returns one line with the settings that decoding does not apply, or "".

  Args:
    directory: the directory of a model, of any layout.

  Raises:
    CheckpointError: a file is damaged.
  """
  name = GENERATION
  settings = _settings(directory, name)
  if not settings:
    name = CONFIG
    settings = _settings(directory, name)
  absent = list(_changed(settings))
  chosen = []
  if settings.get("do_sample"):
    chosen = [
      f"{macro}={settings[key]!r:.{_SHOWN}}"
      for key, macro in _OF_A_RUN.items()
      if settings.get(key) is not None
    ]
  parts = []
  if absent:
    parts.append(f"{', '.join(absent)}, which no method here has")
  if chosen:
    parts.append(
      f"{', '.join(chosen)}, which count where they are set for the run"
    )
  if not parts:
    return ""
  return f"{directory}/{name} is not applied: it has {'; and '.join(parts)}"


def _changed(settings: dict[str, Any]) -> Iterator[str]:
  """Yields "name=value" of the settings that no method here has."""
  for name, neutral in _ABSENT.items():
    value = settings.get(name)
    if value is not None and value not in neutral:
      yield f"{name}={value!r:.{_SHOWN}}"


def _settings(directory: storage.Directory, name: str) -> dict[str, Any]:
  """Returns the object of a JSON file; {} where there is no such file."""
  return directory.read_json(name) if directory.has(name) else {}
