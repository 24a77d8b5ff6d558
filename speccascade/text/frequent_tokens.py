"""A draft vocabulary: the tokens that texts use most, and their file.

The tokens that end a text and all other control tokens come first, then the
counted ones, the most frequent first. So the first N ids of a file are a draft
vocabulary of N tokens.
"""

import collections
from collections.abc import Collection, Iterable, Sequence
import json
import os
import pathlib
from typing import Annotated, Any, NamedTuple

import numpy as np

from speccascade.checkpoints import CheckpointError, storage
from speccascade.runtime import files, folders
from speccascade.settings import fields
from speccascade.text import chat, prompting, text_files

FILE = "draft_vocabulary.json"  # beside the checkpoint of a drafter


class Frequent(NamedTuple):
  """The most frequent tokens of texts.

  Attributes:
    ids: [N] ids, in order: those that are always kept, and then by their count.
    share: the share of the texts' tokens that they are.
    num_tokens: the number of the texts' tokens.
  """

  ids: list[int]
  share: float
  num_tokens: int


def special_ids(vocabulary) -> list[int]:
  """Returns the ids that end a text, and then the other control tokens."""
  is_control = getattr(vocabulary, "is_control", lambda token: False)
  ends = np.atleast_1d(prompting.eos_ids(vocabulary)).tolist()
  controls = filter(is_control, range(vocabulary.vocab_size))
  return list(dict.fromkeys([*ends, *controls]))


def count(
  texts: Iterable[str | Sequence[int]],
  vocabulary: Any,
  num: int,
  *,
  fill: bool = False,
) -> Frequent:
  """Returns the `num` most frequent tokens of texts, special tokens first.

  Fewer tokens are returned where fewer occur, unless others fill the list. Of
  tokens with equal counts the lower ids come first.

  Args:
    texts: each a string, or the ids of its tokens.
    vocabulary: an object as in `sources.Sources`.
    num: N.
    fill: whether tokens that no text has follow, the lowest ids first. A
      tokenizer numbers its tokens by their frequency in the texts that it was
      trained on, or nearly so.

  Raises:
    ValueError: `num` has no room beside the special tokens, or the texts have
      no tokens.
  """
  kept = special_ids(vocabulary)
  if num <= len(kept):
    raise ValueError(
      f"num is {num}, and the vocabulary has {len(kept)} special tokens, which"
      " are always kept: give a larger number"
    )
  counts: collections.Counter[int] = collections.Counter()
  for text in texts:
    counts.update(vocabulary.encode(text) if isinstance(text, str) else text)
  if not (total := counts.total()):
    raise ValueError("the texts have no tokens: nothing is counted")
  known = range(vocabulary.vocab_size) if fill else counts
  by_count = sorted(known, key=lambda token: (-counts[token], token))
  is_special = set(kept).__contains__
  others = [token for token in by_count if not is_special(token)]
  ids = [*kept, *others[: num - len(kept)]]
  share = sum(counts[token] for token in ids) / total
  return Frequent(ids=ids, share=share, num_tokens=total)


def texts_of(paths: Collection[fields.Path]) -> list[str | Sequence[int]]:
  """Returns the texts of files whose tokens a drafter would draft.

  Of a line of `predictions.jsonl` they are the tokens that the model wrote; of
  a JSON line with `targets` they are the first target. Else they are the line,
  or the inputs.

  Args:
    paths: files as `text_files.read_texts` takes them.
  """
  texts: list[str | Sequence[int]] = []
  for path in paths:
    for example in text_files.read_texts(
      path, what="--texts", chats=True, records=True
    ):
      if example.references:
        texts.append(example.references[0])
      else:
        texts.append(chat.format_messages(example.inputs))
  return texts


def write(
  path: fields.Path,
  texts: Collection[fields.Path],
  vocabulary: Any,
  num: int,
  *,
  fill: bool = False,
) -> Frequent:
  """Counts the texts of files, and writes a draft vocabulary.

  Args:
    path: of the JSON file; one that is there is replaced.
    texts: paths of the files; see `texts_of`.
    vocabulary: as in `count`.
    num: as in `count`.
    fill: as in `count`.
  """
  found = count(texts_of(texts), vocabulary, num, fill=fill)
  counts = {"share": round(found.share, 6), "num_tokens": found.num_tokens}
  save(path, found.ids, vocabulary, **counts)
  return found


def save(
  path: fields.Path, ids: Sequence[int], vocabulary: Any, **more: float
) -> None:
  """Writes a draft vocabulary, which `read` reads.

  Args:
    path: of the JSON file; one that is there is replaced.
    ids: the ids.
    vocabulary: whose ids they are.
    **more: what the file says of them.
  """
  path = pathlib.Path(path)
  with folders.sole_writer(path.parent, "the folder", file=path.name):
    files.write_whole(path, content(ids, vocabulary, **more))


def content(ids: Sequence[int], vocabulary: Any, **more: float) -> str:
  """Returns the text of a draft vocabulary's file; see `save`."""
  values = {
    "ids": [*ids],
    **more,
    "vocabulary": prompting.identity(vocabulary),
  }
  return json.dumps(values) + "\n"


class Stored(NamedTuple):
  """A draft vocabulary of a file.

  Attributes:
    ids: in the order of the file.
    vocabulary: the identity {"path", "sha256"} of the vocabulary whose ids they
      are; None where the file does not say it.
  """

  ids: tuple[int, ...]
  vocabulary: dict[str, str] | None = None


def read(path: fields.Path) -> Stored:
  """Reads a file of ids, local or on `gs://`.

  It is what `write` wrote, or a JSON list of ids, or ids between blanks.

  Raises:
    ValueError: there is no such file, or it does not hold ids.
  """
  folder, name = os.path.split(os.fspath(path))
  content = storage.Directory(folder or ".").read(name) if name else None
  if content is None:
    raise CheckpointError(
      f"there is no file of ids at {os.fspath(path)!r:.200}; give one that"
      " python -m speccascade.draft_vocabulary wrote, or ids"
    )
  return _parse(content, path)


def read_beside(checkpoint: fields.Path) -> Stored | None:
  """Returns the draft vocabulary in a checkpoint's folder; None without one.

  The folder of a step may have it, or the run's folder above.
  """
  folder = storage.Directory(checkpoint)
  if (content := folder.read(FILE)) is None:
    folder = storage.Directory(folder.url.rpartition("/")[0] or "/")
    content = folder.read(FILE)
  return None if content is None else _parse(content, f"{folder}/{FILE}")


_Ids = Annotated[Sequence[fields.NonNegative], fields.NOT_EMPTY]


def _parse(content: bytes, path: Any) -> Stored:
  """Returns the draft vocabulary that a file's content says."""
  try:
    text = content.decode().strip()
    if text[:1] in ("[", "{"):
      value = json.loads(text)
    else:
      value = [int(word) for word in text.split()]
    identity = value.get("vocabulary") if isinstance(value, dict) else None
    ids = value["ids"] if isinstance(value, dict) else value
    ids = fields.fit("ids", ids, _Ids)
    kind = dict[str, str] | None
    return Stored(tuple(ids), fields.fit("vocabulary", identity, kind))
  except (ValueError, LookupError, RecursionError) as error:
    raise CheckpointError(
      f"{os.fspath(path)!s:.200} does not hold ids"
      f" ({storage.first_line(error)}); wanted what python -m"
      " speccascade.draft_vocabulary writes, a JSON list of ids, or one id a"
      " line"
    ) from error


def file_beside(checkpoint: fields.Path) -> pathlib.PurePath:
  """Returns where `read_beside` looks first, for messages."""
  return pathlib.PurePath(os.fspath(checkpoint), FILE)
