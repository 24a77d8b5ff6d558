"""Models of one tokenizer whose embeddings have different numbers of rows.

Rows past the tokenizer only round the table up, and sizes of one family round
differently: Qwen2.5 has 151,936 up to 3B and 152,064 from 7B on. Such a pair
shares the rows that all of its models have, and no other token is ever drawn.
"""

from collections.abc import Iterable
import dataclasses
import os

from absl import logging
import numpy as np

from speccascade.checkpoints import CheckpointError, hugging_face, storage
from speccascade.models.params import Config


def of_pair(paths: Iterable[str | os.PathLike | None]) -> int | None:
  """Returns how many rows to keep of each model, None for all.

  Args:
    paths: of Hugging Face directories; with any other checkpoint, or other
      tokenizers, all rows are kept.
  """
  sizes, tokenizers = set(), set()
  for path in paths:
    try:
      directory = storage.Directory(path or "")
      if not directory.has("tokenizer.json"):
        return None
      settings = directory.read_json(hugging_face.CONFIG)
    except CheckpointError:  # which reading the model will say
      return None
    sizes.add(settings.get("vocab_size"))
    tokenizers.add(str(directory))
  if len(sizes) < 2 or not all(isinstance(size, int) for size in sizes):
    return None
  from speccascade.data import vocabularies

  first, *others = map(vocabularies.load, sorted(tokenizers))
  least = min(sizes)
  if any(other != first for other in others) or first.vocab_size > least:
    return None
  logging.info(
    "the models have %s rows for one tokenizer: the first %d are kept",
    " and ".join(map(str, sorted(sizes))),
    least,
  )
  return least


def cut(config: Config, params: dict, rows: int) -> tuple[Config, dict]:
  """Returns a model of the first rows of its vocabulary.

  Args:
    config: its architecture.
    params: its parameters, in T5X's names.
    rows: at most those that it has.
  """
  kept = lambda array: np.array(array, order="C")
  table = params["token_embedder"]["embedding"][:rows]
  params = params | {"token_embedder": {"embedding": kept(table)}}
  decoder = params["decoder"]
  if "logits_dense" in decoder:
    kernel = kept(decoder["logits_dense"]["kernel"][:, :rows])
    params["decoder"] = decoder | {"logits_dense": {"kernel": kernel}}
  return dataclasses.replace(config, vocab_size=rows), params
