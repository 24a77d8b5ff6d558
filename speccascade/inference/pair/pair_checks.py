"""Whether the models of a pair, and a vocabulary, belong together.

Models of one tokenizer may have embeddings of different numbers of rows: those
past the tokenizer only round the table up, and sizes of one family round
differently: Qwen2.5 has 151,936 up to 3B and 152,064 from 7B on. Such a pair
shares the rows that all of its models have, and no other token is ever drawn.
"""

from collections.abc import Iterable
import dataclasses
import os

from absl import logging
import numpy as np

from speccascade.checkpoints import CheckpointError, hugging_face, storage
from speccascade.data import prompting
from speccascade.models.parameters import Config

_MUST_SHARE = (
  "a drafter and its verifier must share one vocabulary, or"
  " DRAFTER_VOCABULARY name the drafter's: then it drafts what both have"
)


class PairError(ValueError):
  """Models, or a vocabulary, that do not belong together."""


def check_models(pair):
  """Checks that the models are of one kind and share one vocabulary.

  Raises:
    PairError: one is decoder-only, another not; or the number of rows, or the
      vocabularies they were trained with (where both are known), differ.
  """
  first, *others = pair.models
  for model in others:
    if model.prompted != first.prompted:
      kinds = ("an encoder-decoder", "decoder-only")
      raise PairError(
        f"{first.name} is {kinds[first.prompted]}, {model.name}"
        f" {kinds[model.prompted]}; a drafter and its verifier must be of one"
        " kind"
      )
    if model.lm.vocab_size != first.lm.vocab_size:
      raise PairError(
        f"{first.name} has {first.lm.vocab_size} vocabulary rows, {model.name}"
        f" {model.lm.vocab_size}; {_MUST_SHARE}"
      )
    if _differ(first.vocabulary, model.vocabulary):
      raise PairError(
        f"{first.name} was trained with the vocabulary"
        f" {first.vocabulary['path']}, {model.name} with another,"
        f" {model.vocabulary['path']} (their sha256 differ); {_MUST_SHARE}"
      )


def check_vocabulary(pair, vocabulary, name: str = "VOCABULARY"):
  """Checks that the vocabulary in use is the one the models were trained with.

  Args:
    pair: the models.
    vocabulary: with `vocab_size`, the ids that it can produce, and perhaps an
      `identity` and `path`; see `prompting.identity`.
    name: of the setting that gives it.

  Raises:
    PairError: an id has no row, or a model was trained with another file.
  """
  identity = prompting.identity(vocabulary)
  for model in pair.models:
    if vocabulary.vocab_size > model.lm.vocab_size:
      raise PairError(
        f"{name} has {vocabulary.vocab_size} ids, {model.name} only"
        f" {model.lm.vocab_size} rows; give the vocabulary that the model was"
        " trained with"
      )
    if _differ(model.vocabulary, identity):
      raise PairError(
        f"{model.name} was trained with the vocabulary"
        f" {model.vocabulary['path']}, {name} is {identity['path']} (their"
        " sha256 differ); give the one that the model was trained with"
      )


def _differ(trained, used) -> bool:
  known = trained and used and trained.get("sha256") and used.get("sha256")
  return bool(known) and trained["sha256"] != used["sha256"]


def shared_rows(paths: Iterable[str | os.PathLike | None]) -> int | None:
  """Returns how many rows to keep of each model, None for all.

  Args:
    paths: of Hugging Face directories; with any other checkpoint, or other
      tokenizers, all rows are kept.
  """
  sizes, tokenizers = set(), set()
  for path in paths:
    try:
      directory = storage.Directory(path or "")
      if not directory.has(storage.TOKENIZER):
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


def cut_rows(config: Config, params: dict, rows: int) -> tuple[Config, dict]:
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
