"""Names that users bring from transformers and other libraries.

`translate` gives a call the project's own names. What has a counterpart is
translated, and a line says the own name once. What has none is refused, with
what to do.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from speccascade.settings import fields, in_words

# Foreign name -> the own name of the same setting.
_SAME = {
  "max_new_tokens": "max_decode_len",
  "max_tokens": "max_decode_len",
  "stop_strings": "stop",
  "stop_token_ids": "stop",
  "suppress_tokens": "banned",
  "num_return_sequences": "num_outputs",
  "n": "num_outputs",
  "num_assistant_tokens": "gamma",
  "num_speculative_tokens": "gamma",
  "logprobs": "log_probs",
}
_LESS = "min_new_tokens"  # which does not count EOS, as min_decode_len does


class _Absent(NamedTuple):
  """A foreign name without a counterpart."""

  neutral: tuple  # values that change nothing, besides None
  advice: str


_BEAMS = "there is no beam search for any model; temperature=0 is greedy"
_SAMPLING = (
  "the distribution is set by temperature, top_k, top_p and min_p alone"
)
_ABSENT = {
  **dict.fromkeys(("num_beams", "num_beam_groups"), _Absent((1,), _BEAMS)),
  **dict.fromkeys(("early_stopping",), _Absent((False,), _BEAMS)),
  "length_penalty": _Absent((1,), _BEAMS),
  "diversity_penalty": _Absent((0,), _BEAMS),
  "max_length": _Absent(
    (), "max_decode_len bounds the output alone, without its prompt"
  ),
  "min_length": _Absent((0,), "min_decode_len is the least of the output"),
  "repetition_penalty": _Absent((1,), _SAMPLING),
  "encoder_repetition_penalty": _Absent((1,), _SAMPLING),
  "frequency_penalty": _Absent((0,), _SAMPLING),
  "presence_penalty": _Absent((0,), _SAMPLING),
  "no_repeat_ngram_size": _Absent((0,), _SAMPLING),
  "typical_p": _Absent((1,), _SAMPLING),
  "epsilon_cutoff": _Absent((0,), "min_p cuts off unlikely tokens"),
  "eta_cutoff": _Absent((0,), "min_p cuts off unlikely tokens"),
  "penalty_alpha": _Absent((0,), _SAMPLING),
  "guidance_scale": _Absent((1,), _SAMPLING),
  "bad_words_ids": _Absent(
    ((), []), "banned takes strings, and ids of single tokens"
  ),
  "force_words_ids": _Absent(((), []), "a grammar says what an output has"),
  "eos_token_id": _Absent(
    (), "EOS is the tokenizer's; stop=[ID] ends an output at further ids"
  ),
  "logits_processor": _Absent(
    ((), []),
    "banned, grammar, json_schema and min_decode_len mask tokens"
    " (docs/stops_and_masks.md)",
  ),
  "stopping_criteria": _Absent(((), []), "stop takes strings and ids"),
  "streamer": _Absent((), "pair.stream(text) yields the pieces of a text"),
  "generation_config": _Absent(
    (), "give its settings by name: temperature, top_k, top_p, max_decode_len"
  ),
  "assistant_model": _Absent(
    (), "load_pair(drafter=SMALL, verifier=LARGE) names both models"
  ),
  "prompt_lookup_num_tokens": _Absent(
    (), "load_pair(drafter=sc.PromptLookup(N), verifier=LARGE) copies drafts"
  ),
  "assistant_confidence_threshold": _Absent(
    (), 'draft_length=("max_prob", THRESHOLD) ends a block early'
  ),
  "input_ids": _Absent(
    (), "ids are the first argument, without padding: generate([[5, 8, 1]])"
  ),
  "inputs": _Absent((), "texts, or lists of ids, are the first argument"),
  "attention_mask": _Absent((), "lists of ids have no padding: leave it out"),
  "tokenizer": _Absent((), "load_pair(vocabulary=PATH) takes the tokenizer"),
  "output_scores": _Absent(
    (False,), "log_probs=True gives what pi, p and q gave each token"
  ),
  "output_logits": _Absent(
    (False,), "log_probs=True gives what pi, p and q gave each token"
  ),
  "return_dict_in_generate": _Absent(
    (True, False), "the result has texts, tokens and log_probs"
  ),
  "max_time": _Absent((), "max_decode_len bounds an output"),
  "use_cache": _Absent((True,), "there is no decoding without a cache"),
}
_said: set[str] = set()  # what was said already, in this process


def say_once(line: str):
  """Prints a line, unless this process has printed it."""
  if line not in _said:
    _said.add(line)
    print(line)


def translate(
  function: str, given: Mapping[str, Any], known: Collection[str]
) -> dict[str, Any]:
  """Returns settings by the names that a function has for them.

  Args:
    function: the name of the function.
    given: the settings of a call.
    known: the names of the function's settings.

  Raises:
    SettingError: a name has no counterpart, or two names set the same.
  """
  own: dict[str, Any] = {}
  for name, value in given.items():
    if name in known:
      own[name] = value
      continue
    if name == "do_sample":
      continue  # below: it is about the temperature
    if name == "pad_token_id":
      continue  # nothing is padded with it
    if name in _ABSENT:
      _check_neutral(name, value)
      continue
    target = "min_decode_len" if name == _LESS else _SAME.get(name)
    if target is None:
      own[name] = value  # which `takes` refuses
      continue
    if target not in known:
      if value in (None, 1) and target == "num_outputs":
        continue
      fault = f" is {target} of pair.generate, which {function} does not have"
      raise fields.SettingError(name, fault)
    if target in own or target in given:
      fault = f" is {target} here, which is given, too: leave one of them out"
      raise fields.SettingError(name, fault)
    if value is None:  # as transformers' own default
      continue
    if name == _LESS and isinstance(value, int) and value > 0:
      value += 1  # an EOS after these tokens
    own[target] = value
    say_once(f"{name} is {target} here: {target}={value!r}")
  if (sample := given.get("do_sample")) is not None:
    _set_temperature(sample, own)
  return own


def _check_neutral(name: str, value: Any):
  """Raises SettingError unless a foreign setting changes nothing."""
  absent = _ABSENT[name]
  is_neutral = value is None or any(
    type(value) is type(each) and value == each
    for each in (*absent.neutral, *map(_as_float, absent.neutral))
  )
  if is_neutral:
    return
  shown = in_words.format_value(value)
  raise fields.SettingError(name, f"={shown} is not here: {absent.advice}")


def _as_float(value: Any) -> Any:
  return float(value) if type(value) is int else value


def _set_temperature(sample: Any, own: dict[str, Any]):
  """Sets the temperature that do_sample stands for."""
  temperature = own.get("temperature")
  if not isinstance(sample, bool):
    shown = in_words.format_value(sample)
    fault = f" is {shown}; wanted True or False, or temperature=0 for greedy"
    raise fields.SettingError("do_sample", fault)
  if not sample:
    own["temperature"] = 0.0
    say_once("do_sample=False is temperature=0 here, which is greedy")
  elif temperature == 0:
    raise fields.SettingError(
      "do_sample",
      " is True, and temperature=0 is greedy: leave one of them out",
    )
  else:
    say_once(
      "do_sample=True is a temperature above 0 here; it is 1 where none is"
      " given"
    )
