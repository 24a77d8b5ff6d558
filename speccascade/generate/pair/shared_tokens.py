"""The tokens that two vocabularies share, and a drafter that drafts only these.

A drafter with another vocabulary than the verifier's proposes the tokens that
both vocabularies have. It reads every text in its own tokens.
"""

from collections.abc import Sequence
import dataclasses
import functools
import re
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from speccascade.decoding.records import prompts
from speccascade.generate.pair.pair_checks import PairError, check_vocabulary
from speccascade.models.intersection import IntersectionLM
from speccascade.text.token_names import piece

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# Stands for the token that ends a text, however a vocabulary spells it.
_END = ""
# Of two vocabularies that are nearly the same one, so many ids are named.
_MOST_NAMED = 8


@dataclasses.dataclass(frozen=True, eq=False)
class SharedTokens:
  """The tokens that a drafter's vocabulary shares with a verifier's.

  Two text tokens are the same token if they stand for the same bytes, a leading
  blank included; the kind of tokenizer does not matter. Two control tokens are
  the same token if they are spelled alike. The two tokens that end a text are
  the same token, however they are spelled.

  Attributes:
    verifier: the verifier's vocabulary, an object as in `sources.Sources`.
    drafter: the drafter's vocabulary, an object as in `sources.Sources`.
    num_rows: V, the number of vocabulary rows of the verifier's model.
    drafter_rows: the least number of such rows of a drafter; None where the
      drafter's vocabulary has no token past them.

  Raises:
    PairError: the vocabularies share no text token.
  """

  verifier: object
  drafter: object
  num_rows: int
  drafter_rows: int | None = None

  def __post_init__(self):
    # Any two vocabularies share the end of a text.
    if self._num_shared < 2:
      names = (getattr(x, "path", "") for x in (self.verifier, self.drafter))
      raise PairError(
        f"the vocabularies {' and '.join(names)} share no token but the end of"
        " a text: nothing could be drafted"
      )

  def __str__(self) -> str:
    num, size = self._num_shared, self.verifier.vocab_size
    line = (
      f"{num} of the verifier's {size} tokens ({num / size:.0%}) are the"
      " drafter's too"
    )
    others = self._lone_ids()
    if 0 < len(others) <= _MOST_NAMED:
      names = ", ".join(
        f"{token} ({piece(self.verifier, token)!r:.40})" for token in others
      )
      line += (
        f"; never drafted, as the drafter has another token there: {names}"
      )
    return line

  def _lone_ids(self) -> list[int]:
    """Returns the verifier's ids that are another token of the drafter."""
    names = zip(self._verifier_spellings, self._drafter_spellings)
    return [
      token
      for token, (own, drafters) in enumerate(names)
      if own != drafters and not self._tables.is_shared[token]
    ]

  @property
  def _verifier_spellings(self) -> list[bytes | str]:
    # An added token may have no row; see `check_vocabulary`.
    return spellings(self.verifier)[: self.num_rows]

  @property
  def _drafter_spellings(self) -> list[bytes | str]:
    return spellings(self.drafter)[: self.drafter_rows]

  @property
  def _unknown(self) -> int:
    """What the drafter reads in the place of a token that it lacks."""
    unknown = getattr(self.drafter, "unk_id", None)
    return self.drafter.eos_id if unknown is None else unknown

  @property
  def _num_shared(self) -> int:
    return int(self._tables.is_shared.sum())

  @functools.cached_property
  def _tables(self) -> "_Tables":
    """The tables of an `IntersectionLM`.

    The drafter reads a token that it lacks as the longest of its tokens that
    ends in the same bytes, because the text that follows depends most on these
    bytes. Where it has no token that ends so, it reads its unknown token, or
    its end of a text if it has no unknown token.
    """
    verifier_spellings = self._verifier_spellings
    drafter_ids = _ids_by_spelling(self._drafter_spellings)
    unknown = self._unknown
    # The rows past the vocabulary, which round a table up, stay unknown.
    to_drafter = np.full(self.num_rows, unknown, np.int32)
    is_shared = np.zeros(self.num_rows, bool)
    for token, spelling in enumerate(verifier_spellings):
      to_drafter[token] = _closest_id(spelling, drafter_ids, unknown)
    # Of several tokens with one spelling only one is shared, so that no two
    # tokens of the verifier take the probability of one drafter token.
    for spelling, token in _ids_by_spelling(verifier_spellings).items():
      is_shared[token] = spelling in drafter_ids
    return _Tables(to_drafter, is_shared)

  def model(self, lm) -> IntersectionLM:
    """Returns a drafter's language model over the verifier's ids.

    Args:
      lm: the drafter's language model, over its own ids.
    """
    return IntersectionLM(
      lm,
      to_drafter=jnp.asarray(self._tables.to_drafter),
      is_shared=jnp.asarray(self._tables.is_shared),
    )

  def inputs(
    self, inputs: np.ndarray, *, prompted: bool, most: float
  ) -> np.ndarray:
    """Returns the inputs of a batch in the drafter's own ids.

    The width S' is a function of S alone, so that one program of the verifier
    needs one program of the drafter. It is 2 S, or `most` if `most` is less. An
    input with more ids is truncated: a prompt loses its start, because the
    output follows its end, and a source loses its end.

    Args:
      inputs: [B, S] int32 ids of the verifier, padded as
        `LanguageModel.prefill` takes them.
      prompted: whether the inputs are prompts.
      most: the most ids that the drafter's window has space for.

    Returns:
      [B, S'] int32 ids of the drafter, with the padding after them.
    """
    pad = prompts.PAD if prompted else 0
    width = max(1, int(min(2 * inputs.shape[1], most)))
    rows = np.full((len(inputs), width), pad, np.int32)
    for row, tokens in zip(rows, inputs):
      tokens = tokens[tokens != pad].tolist()
      if prompted:
        ids = self._prompt(tokens)[-width:]
      else:
        ids = self._source(tokens, width)
      row[: len(ids)] = ids
    return rows

  def _prompt(self, tokens: list[int]) -> list[int]:
    """Returns the drafter's ids of a prompt, given the verifier's."""
    # The drafter's tokenizer adds a BOS of its own where it has one.
    bos_id = getattr(self.verifier, "bos_id", None)
    without_bos = tokens[1:] if tokens[0] == bos_id else tokens
    text = self.verifier.decode(without_bos)
    encode = getattr(self.drafter, "prompt", self.drafter.encode)
    ids = self._with_rows(encode(text))
    # A prompt without a text has no ids, and a model must read one at least.
    return ids or [int(self._tables.to_drafter[tokens[-1]])]

  def _source(self, tokens: list[int], width: int) -> list[int]:
    """Returns at most `width` drafter ids of a source, its EOS among them."""
    text = self.verifier.decode(tokens[:-1])  # without the verifier's EOS
    ids = self._with_rows(self.drafter.encode(text))
    return [*ids[: width - 1], self.drafter.eos_id]

  def _with_rows(self, ids: Sequence[int]) -> list[int]:
    """Returns ids of the drafter, with its unknown token for lacking rows."""
    most = self.drafter_rows
    return [self._unknown if most and x >= most else x for x in ids]


class _Tables(NamedTuple):
  """What an `IntersectionLM` knows of each token of the verifier.

  Attributes:
    to_drafter: [V] int32, the drafter's id that is read in its place.
    is_shared: [V] bool, whether that id is the same token.
  """

  to_drafter: np.ndarray
  is_shared: np.ndarray


def share_tokens(pair, vocabulary, drafter_vocabulary):
  """Returns a pair whose drafters draft only tokens of both vocabularies.

  Prints how many tokens the vocabularies share.

  Args:
    pair: the `ModelPair`, with drafters over the ids of their own vocabulary.
    vocabulary: the verifier's vocabulary; see `check_vocabulary`.
    drafter_vocabulary: the drafters' vocabulary; see `check_vocabulary`.

  Raises:
    PairError: a model was trained with another vocabulary, or the two
      vocabularies share no text token.
  """
  without_drafters = dataclasses.replace(pair, drafters=())
  check_vocabulary(without_drafters, vocabulary)
  without_verifier = dataclasses.replace(pair, verifier=None)
  check_vocabulary(without_verifier, drafter_vocabulary, "DRAFTER_VOCABULARY")
  num_rows = vocabulary.vocab_size
  if pair.verifier is not None:
    num_rows = pair.verifier.lm.vocab_size
  drafter_rows = min((x.lm.vocab_size for x in pair.drafters), default=None)
  shared = SharedTokens(vocabulary, drafter_vocabulary, num_rows, drafter_rows)
  print(shared)
  # The drafters now take the verifier's ids: their own vocabulary was checked
  # above, and must not be compared with the verifier's.
  drafters = tuple(
    dataclasses.replace(model, lm=shared.model(model.lm), vocabulary=None)
    for model in pair.drafters
  )
  return dataclasses.replace(pair, drafters=drafters, shared=shared)


def spellings(vocabulary) -> list[bytes | str]:
  """Returns the spelling of each id of a vocabulary.

  The spelling of a text token is its bytes, of type bytes. The spelling of a
  control token is its name, of type str; the token that ends a text has the
  name "" in every vocabulary. A token that stands for no text has the spelling
  b"".
  """
  is_control = getattr(vocabulary, "is_control", lambda token: False)
  names = []
  for token in range(vocabulary.vocab_size):
    if token == vocabulary.eos_id:
      names.append(_END)
      continue
    name = piece(vocabulary, token)
    names.append(name if is_control(token) else _bytes(name))
  return names


def _bytes(name: str) -> bytes:
  """Returns the bytes that a piece stands for.

  Args:
    name: the piece as its tokenizer spells it. "\u2581" is a blank, and <0xC3>
      is the byte C3.

  >>> _bytes("\u2581caf<0xC3>")
  b' caf\\xc3'
  """
  # The pattern has one group, so that texts and codes of bytes alternate:
  # "a<0xC3>b" gives ["a", "C3", "b"].
  parts = _BYTE.split(name)
  parts[::2] = [text.replace("\u2581", " ").encode() for text in parts[::2]]
  parts[1::2] = [bytes.fromhex(code) for code in parts[1::2]]
  return b"".join(parts)


def _ids_by_spelling(names: list[bytes | str]) -> dict[bytes | str, int]:
  """Returns the id of each spelling; the last id where several share it."""
  # Byte tokens come before the pieces of a vocabulary. A piece of one byte thus
  # replaces the byte token, which no text contains: the tokenizer falls back on
  # bytes only where it has no piece.
  ids = {}
  for token, spelling in enumerate(names):
    if spelling != b"":
      ids[spelling] = token
  return ids


def _closest_id(
  spelling: bytes | str, ids: dict[bytes | str, int], default: int
) -> int:
  """Returns the id of the longest spelling in `ids` that ends `spelling`.

  A control token is found by its whole name only.

  >>> _closest_id(b"that", {b"at": 5, b"t": 6}, default=0)
  5
  """
  if isinstance(spelling, str):
    return ids.get(spelling, default)
  for start in range(len(spelling)):
    if spelling[start:] in ids:
      return ids[spelling[start:]]
  return default
