"""Reads what Hugging Face's files say of generation: ends, and other settings.

generation_config.json has these settings. Older directories have them in
config.json.
"""

from collections.abc import Collection, Iterator
from typing import Any

from speccascade.checkpoints import storage
from speccascade.checkpoints.errors import CheckpointError
from speccascade.settings import fields

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


def ends_of(directory: storage.Directory) -> tuple[int, ...]:
  """Returns the tokens that end a text, each once; () if no file names any.

  generation_config.json is believed before config.json.

  Args:
    directory: a directory of Hugging Face.

  Raises:
    CheckpointError: a file is damaged, or names something else than ids.
  """
  for name in (GENERATION, CONFIG):
    if (ends := _settings(directory, name).get("eos_token_id")) is not None:
      try:
        return ids_of(ends)
      except fields.SettingError as error:
        raise CheckpointError(f"{directory}/{name}: {error}") from error
  return ()


def ids_of(ends: Any) -> tuple[int, ...]:
  """Returns the ids that the setting eos_token_id names, each once.

  Raises:
    SettingError: the setting names something else than ids.
  """
  ids = ends if isinstance(ends, list) else [ends]
  if not ids or not all(type(i) is int and i >= 0 for i in ids):
    fault = (
      f" is {ends!r:.60}; wanted the ids of the tokens that end a text, whole"
      " numbers from 0"
    )
    raise fields.SettingError("eos_token_id", fault)
  return tuple(dict.fromkeys(ids))


def overriding(
  directory: storage.Directory, names: Collection[str]
) -> dict[str, Any]:
  """Returns the settings of generation_config.json that count before others.

  Args:
    directory: a directory of Hugging Face.
    names: the settings of config.json that may be there too.
  """
  settings = _settings(directory, GENERATION)
  return {
    name: settings[name] for name in names if settings.get(name) is not None
  }


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
