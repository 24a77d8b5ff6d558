"""How a vocabulary spells its tokens, and whether two spell them alike."""

from collections.abc import Callable, Mapping
import re
from typing import Any

from speccascade.checkpoints import hub_names

_SENTINEL = re.compile("\u2581?(<extra_id_\\d+>)")


def piece(vocabulary, token: int) -> str:
  """Returns a token as its tokenizer spells it, with its leading blank.

  Args:
    vocabulary: an object with `vocab_size` and `piece(id)`, or with a
      `tokenizer` that has `id_to_piece(id)`, or with `decode(ids)`.
    token: an id. An id past the tokenizer is returned as "<id>".
  """
  token = int(token)
  if token >= vocabulary.vocab_size:
    return f"<{token}>"
  if hasattr(vocabulary, "piece"):
    return vocabulary.piece(token)
  tokenizer = getattr(vocabulary, "tokenizer", None)
  if hasattr(tokenizer, "id_to_piece"):
    return tokenizer.id_to_piece(token)
  return vocabulary.decode([token])


def find(identity: Mapping[str, Any] | None, beside: str | None = None):
  """Returns the vocabulary that an identity names; None if it is not there.

  A remote file is read only where it lies beside the checkpoint.

  Args:
    identity: {"path", "sha256"} of the vocabulary, or None.
    beside: path of the vocabulary beside the checkpoint, which may be a copy.
  """
  from speccascade.text import vocabularies

  identity = identity or {}
  path = identity.get("path") or ""
  is_remote = "://" in path or hub_names.parse(path) is not None
  for place in (beside, None if is_remote else path):
    if not place:
      continue
    try:
      found = vocabularies.load(place)
      if found.identity["sha256"] == identity.get("sha256"):
        return found
    except (ValueError, OSError):
      continue  # The file was moved, or another one is there now.
  return None


def difference(
  one: Mapping[str, Any] | None,
  other: Mapping[str, Any] | None,
  read: Callable[[], Any] | None = None,
  read_other: Callable[[], Any] | None = None,
) -> str | None:
  """Returns in words how two vocabularies differ; None if no id does.

  The files may differ while their tokens do not: a T5's spiece.model and the
  tokenizer.json that was made of it are one vocabulary. An id that only one of
  them has, such as a sentinel's or an added token's, is not a difference.

  Args:
    one: the identity {"path", "sha256"} of a vocabulary; None if unknown.
    other: the identity of another one; None if unknown.
    read: returns the vocabulary of `one`, or None; called where the files
      differ. None reads the file at its path.
    read_other: returns the vocabulary of `other`, likewise.
  """
  hashes = [(each or {}).get("sha256") for each in (one, other)]
  if not all(hashes) or hashes[0] == hashes[1]:
    return None
  vocabulary = read() if read else find(one)
  other_vocabulary = read_other() if read_other else find(other)
  if vocabulary is None or other_vocabulary is None:
    return "their sha256 differ"
  pairs = zip(_names(vocabulary), _names(other_vocabulary))
  for token, (name, other_name) in enumerate(pairs):
    if name != other_name:
      return f"token {token} is {name!r:.40} and {other_name!r:.40}"
  return None


def _names(vocabulary) -> tuple[str, ...]:
  """Returns the spelling of each id; sentinels without their blank."""
  # T5's SentencePiece model gives its sentinels a blank, its tokenizer none.
  names = (piece(vocabulary, i) for i in range(vocabulary.vocab_size))
  return tuple(_SENTINEL.sub(r"\1", name) for name in names)
