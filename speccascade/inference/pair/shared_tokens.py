"""What two vocabularies have in common, and how one reads the other's texts."""

import dataclasses
import functools
import re

import jax.numpy as jnp
import numpy as np

from speccascade.decoding.loops import prompts
from speccascade.inference.pair.pair_checks import PairError, check_vocabulary
from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.rows.records import piece
from speccascade.models.intersection import IntersectionLM

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_END = ""  # the role of what ends a text, however it is spelled


@dataclasses.dataclass(frozen=True, eq=False)
class SharedTokens:
  """A drafter's vocabulary beside a verifier's.

  Tokens are shared where they stand for the same bytes, with the blank before
  them, whatever the kind of tokenizer; control tokens where they are spelled
  alike; and what ends a text, by its role.

  Attributes:
    verifier: its vocabulary, as in `inputs.Sources`.
    drafter: likewise.
    num_rows: V, of the verifier's model.

  Raises:
    PairError: they share no token of a text.
  """

  verifier: object
  drafter: object
  num_rows: int

  def __post_init__(self):
    if self._num_shared < 2:
      names = (getattr(x, "path", "") for x in (self.verifier, self.drafter))
      raise PairError(
        f"the vocabularies {' and '.join(names)} share no token but the end of"
        " a text: nothing could be drafted"
      )

  def __str__(self) -> str:
    num, size = self._num_shared, self.verifier.vocab_size
    return (
      f"{num} of the verifier's {size} tokens ({num / size:.0%}) are the"
      " drafter's too"
    )

  @property
  def _num_shared(self) -> int:
    return int(self._tables[1].sum())

  @functools.cached_property
  def _tables(self) -> tuple[np.ndarray, np.ndarray]:
    """[V] `to_drafter` and [V] `is_shared` of an `IntersectionLM`.

    What the drafter lacks it reads as the longest of its tokens that ends in
    the same bytes, for what follows goes by these; else as unknown, or the end.
    """
    ours, theirs = spellings(self.verifier), _ids(spellings(self.drafter))
    unknown = getattr(self.drafter, "unk_id", None)
    unknown = self.drafter.eos_id if unknown is None else unknown
    to_drafter = np.full(self.num_rows, unknown, np.int32)
    for token, spelled in enumerate(ours):
      ends = [spelled]
      if isinstance(spelled, bytes):
        ends = (spelled[start:] for start in range(len(spelled)))
      known = (theirs[end] for end in ends if end in theirs)
      to_drafter[token] = next(known, unknown)
    is_shared = np.zeros(self.num_rows, bool)
    is_shared[[i for x, i in _ids(ours).items() if x in theirs]] = True
    return to_drafter, is_shared

  def model(self, lm) -> IntersectionLM:
    """Returns a drafter's language model over the verifier's ids."""
    return IntersectionLM(lm, *map(jnp.asarray, self._tables))

  def inputs(
    self, inputs: np.ndarray, *, prompted: bool, most: float
  ) -> np.ndarray:
    """Returns [B, S'] int32, inputs of the verifier in the drafter's own ids.

    S' is 2 S, so that programs are as many as without it, or `most` if that is
    less; what is longer is cut, a prompt at its start and a source at its end.

    Args:
      inputs: [B, S] int32, padded as `LanguageModel.prefill` takes them.
      prompted: whether they are prompts.
      most: tokens that the drafter was made for.
    """
    pad = prompts.PAD if prompted else 0
    width = max(1, int(min(2 * inputs.shape[1], most)))
    ids_of_rows = np.full((len(inputs), width), pad, np.int32)
    for row, tokens in zip(ids_of_rows, inputs):
      tokens = tokens[tokens != pad].tolist()
      ids = self._prompt(tokens)[-width:] if prompted else []
      if not prompted:
        text = self.verifier.decode(tokens[:-1])
        ids = self.drafter.encode(text)[: width - 1]
        ids = [*ids, self.drafter.eos_id]
      row[: len(ids)] = ids
    return ids_of_rows

  def _prompt(self, tokens: list[int]) -> list[int]:
    """Returns a prompt's text, as it is without BOS, as one of the drafter."""
    has_bos = tokens[0] == getattr(self.verifier, "bos_id", None)
    text = self.verifier.decode(tokens[has_bos:])
    ids = getattr(self.drafter, "prompt", self.drafter.encode)(text)
    return list(ids) or [int(self._tables[0][tokens[-1]])]


def share_tokens(pair: ModelPair, vocabulary, drafter_vocabulary) -> ModelPair:
  """Returns a pair whose drafters draft what two vocabularies share.

  How much that is, is printed.

  Args:
    pair: the models.
    vocabulary: the verifier's; see `check_vocabulary`.
    drafter_vocabulary: the drafters', likewise.

  Raises:
    PairError: one is not that of its models, or they share nothing.
  """
  replace, large = dataclasses.replace, pair.verifier
  check_vocabulary(replace(pair, drafters=()), vocabulary)
  check_vocabulary(
    replace(pair, verifier=None), drafter_vocabulary, "DRAFTER_VOCABULARY"
  )
  num_rows = vocabulary.vocab_size if large is None else large.lm.vocab_size
  shared = SharedTokens(vocabulary, drafter_vocabulary, num_rows)
  print(shared)
  drafters = tuple(
    replace(model, lm=shared.model(model.lm), vocabulary=None)
    for model in pair.drafters
  )
  return replace(pair, drafters=drafters, shared=shared)


def spellings(vocabulary) -> list[bytes | str]:
  """Returns what each id stands for: bytes of a text, the name of a control
  token, or "" for what ends a text; b"" is nothing."""
  is_control = getattr(vocabulary, "is_control", lambda token: False)

  def spelled(token):
    if token == vocabulary.eos_id:
      return _END
    name = piece(vocabulary, token)
    return name if is_control(token) else _bytes(name)

  return list(map(spelled, range(vocabulary.vocab_size)))


def _bytes(name: str) -> bytes:
  """Returns the bytes of a piece.

  >>> _bytes("\u2581caf<0xC3>")
  b' caf\\xc3'
  """
  texts = _BYTE.split(name)  # text, byte, text, byte, ...
  texts[::2] = [text.replace("\u2581", " ").encode() for text in texts[::2]]
  texts[1::2] = [bytes.fromhex(code) for code in texts[1::2]]
  return b"".join(texts)


def _ids(spelled: list[bytes | str]) -> dict[bytes | str, int]:
  """Returns {what a token stands for: its id}, of several the last: the bytes
  of a fallback, which no text with such a piece has, come before pieces."""
  return {x: token for token, x in enumerate(spelled) if x != b""}
