"""What a tokenizer of Hugging Face may cost, and how its library fails.

A tokenizer.json is a small program that comes with a model. Its normalizers may
make a long text of a short one, and its library panics at some of its settings.
"""

import base64
from collections.abc import Iterator, Sequence
import contextlib
import functools
import json
import os
import re
import struct
from typing import Any

from speccascade.checkpoints import storage

MOST_CHARACTERS = 1 << 20  # or four times what the text has
# How many characters become of one, at most; of Unicode's forms U+FDFA.
_MOST_GROWTH = 32
_GROWTH = {
  "NFC": 3,
  "NFD": 4,
  "NFKC": 18,
  "NFKD": 18,
  "Lowercase": 3,
  "BertNormalizer": 4,
  "ByteLevel": 4,
}


@contextlib.contextmanager
def one_line(where: str, action: str):
  """Turns what the tokenizers' library raises into a ValueError of one line.

  Args:
    where: the tokenizer.
    action: what is done with it, after "cannot".
  """
  try:
    yield
  except (ValueError, TypeError, OSError, MemoryError):
    raise
  except BaseException as error:  # A panic of Rust is not an Exception.
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
      raise
    raise ValueError(
      f"{where} cannot {action}: {storage.first_line(error):.200}; take"
      f" {storage.TOKENIZER} again from where the model was published"
    ) from error


class GrowthBounds:
  """Bounds the texts that normalizers and decoders make.

  Args:
    content: the bytes of tokenizer.json.
    where: the tokenizer, for messages.

  Raises:
    ValueError: the normalizers make too long a text of an added token.
  """

  def __init__(self, content: bytes, where: str):
    # Rust reads this at its first panic. A user may have asked for backtraces.
    os.environ.setdefault("RUST_BACKTRACE", "0")
    self._where = where
    try:
      self._read(content.decode("utf-8", "replace"))
    except RecursionError as error:
      raise ValueError(f"{where} is nested too deep") from error

  def _read(self, text: str):
    """Reads the steps, and checks what they make of added tokens."""
    self._steps = _flat(_values(text, "normalizer"), "normalizers")
    self._decoders = [
      step
      for step in _flat(_values(text, "decoder"), "decoders")
      if _most(step, 1000) > 1000
    ]
    self._normalizers = None
    if not self._steps:
      return
    for added in _values(text, "added_tokens"):
      for token in added if isinstance(added, list) else ():
        # The library normalizes such a token as it reads the file.
        if isinstance(token, dict) and token.get("normalized"):
          self.check(str(token.get("content")))

  def check(self, text: str):
    """Raises ValueError if the normalizers make too long a text of a text."""
    most, length = max(MOST_CHARACTERS, 4 * len(text)), len(text)
    for step in self._steps:
      length = _most(step, length)
      if length > most:
        break
    else:
      return
    # Few texts become so long. What one step may do is small enough to try.
    value = text
    for step, normalizer in zip(self._steps, self._single_steps()):
      bound = _most(step, len(value), value)
      if bound <= max(most, _MOST_GROWTH * len(value)):
        with one_line(self._where, "normalize a text"):
          value = normalizer.normalize_str(value)
        bound = len(value)
      if bound > most:
        raise ValueError(
          f"the normalizers of {self._where} make over {most:,} characters of a"
          f" text of {len(text):,}; take {storage.TOKENIZER} again from where"
          " the model was published"
        )

  def check_decoded(self, pieces: Iterator[str]):
    """Raises ValueError if the decoders make too long a text of tokens.

    Args:
      pieces: the tokens. They are read only where a decoder adds characters.
    """
    if not self._decoders:
      return
    first = length = sum(map(len, pieces))
    most = max(MOST_CHARACTERS, 4 * length)
    for step in self._decoders:
      length = _most(step, length)
      if length > most:
        raise ValueError(
          f"the decoders of {self._where} make over {most:,} characters of"
          f" tokens of {first:,}; take {storage.TOKENIZER} again from where the"
          " model was published"
        )

  def _single_steps(self) -> Sequence[Any]:
    """Returns the normalizers, each alone."""
    import tokenizers

    if self._normalizers is None:
      whole = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
      self._normalizers = [
        tokenizers.Tokenizer.from_str(
          json.dumps(whole | {"normalizer": step})
        ).normalizer
        for step in self._steps
      ]
    return self._normalizers


def steps(content: bytes, name: str, parts: str) -> list[dict]:
  """Returns the single steps of a part of tokenizer.json.

  Args:
    content: the bytes of tokenizer.json.
    name: the name of the part.
    parts: what a sequence of this kind calls its steps.
  """
  return _flat(_values(content.decode("utf-8", "replace"), name), parts)


def _values(text: str, name: str) -> list:
  """Returns the objects and lists of a name in a JSON text."""
  # A tokenizer has millions of characters, and these few are looked for alone.
  # A token of this name is followed by a number.
  decoder, found = json.JSONDecoder(), []
  places = [*re.finditer(rf'"{name}"\s*:\s*(?=[\[{{])', text)]
  try:
    for place in places:
      found.append(decoder.raw_decode(text, place.end())[0])
    if not places and not re.search(rf'"{name}"\s*:\s*null', text):
      whole = json.loads(text)  # the name may be written with escapes
      found.append(whole.get(name) if isinstance(whole, dict) else None)
  except ValueError:
    pass  # The library says what is wrong with it.
  return found


def _flat(steps: Sequence, name: str) -> list[dict]:
  """Returns the single steps of sequences of steps, in order."""
  waiting, flat = [*steps][::-1], []
  while waiting:
    step = waiting.pop()
    if not isinstance(step, dict):
      continue
    parts = step.get(name)
    if isinstance(parts, list):
      waiting += parts[::-1]
    else:
      flat.append(step)
  return flat


def _most(step: dict, length: int, text: str | None = None) -> int:
  """Returns how long a text may be after a step.

  Args:
    step: the settings of a normalizer or decoder.
    length: the characters of the text before it.
    text: the text itself, which gives a smaller bound; None if it is unknown.
  """
  kind = step.get("type")
  if kind == "Prepend":
    return length + len(str(step.get("prepend")))
  if kind == "Precompiled":
    return length * _longest(str(step.get("precompiled_charsmap")))
  if kind != "Replace":
    return length * _GROWTH.get(str(kind), 1)
  pattern, new = step.get("pattern"), len(str(step.get("content")))
  old = pattern.get("String") if isinstance(pattern, dict) else None
  if not isinstance(old, str) or not old:
    # An expression may match between any two characters.
    return length + (length + 1) * new
  matches = length // len(old) if text is None else text.count(old)
  return length + matches * max(0, new - len(old))


@functools.lru_cache(maxsize=4)
def _longest(table: str) -> int:
  """Returns the longest text that a table of SentencePiece's puts in."""
  try:
    content = base64.b64decode(table)
    (size,) = struct.unpack_from("<I", content)
  except (ValueError, struct.error):
    return 1  # The library says what is wrong with it.
  texts = content[4 + size :].decode("utf-8", "replace").split("\0")
  return max(1, *map(len, texts))
