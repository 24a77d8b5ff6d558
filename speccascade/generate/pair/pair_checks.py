"""Checks whether the models of a pair, and a vocabulary, belong together.

Two models of one tokenizer may have embedding tables of different sizes. The
rows after the tokenizer's last id only round the table up, and models of one
family round differently: Qwen2.5 has 151,936 rows up to 3B and 152,064 rows
from 7B on; Gemma 3 has 262,144 rows up to 1B and 262,208 rows from 4B on. The
verifier of such a pair keeps its rows, so that a lossless method writes exactly
its distribution. A drafter is cut to these rows, or never drafts those that it
lacks.
"""

from collections.abc import Iterable
import dataclasses
import functools
import math
import os

from absl import logging
import numpy as np

from speccascade.checkpoints import (
  CheckpointError,
  hub,
  hugging_face,
  storage,
)
from speccascade.decoding.programs.method import Method
from speccascade.decoding.records import prompts
from speccascade.generate.batches.sources import Sources
from speccascade.models.markov_lm import FiniteContext
from speccascade.models.parameters import Config
from speccascade.text import prompting, token_names, vocabulary_paths

_MUST_SHARE = (
  "a drafter and its verifier must share one vocabulary, or"
  " DRAFTER_VOCABULARY name the drafter's: then it drafts what both have"
)


class PairError(ValueError):
  """The models of a pair, or its vocabulary, do not belong together."""


def check_models(pair):
  """Checks that the models are of one kind and share one vocabulary.

  Args:
    pair: the `ModelPair`.

  Raises:
    PairError: one model is decoder-only and another an encoder-decoder, or the
      models have different numbers of vocabulary rows or different start
      tokens, or an id is another token of one than of the other. Vocabularies
      are compared only where both are known. Or draft heads were trained for
      another verifier.
  """
  _check_made_for(pair)
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
    starts = [prompts.start_id(each.lm) for each in (first, model)]
    is_counted = isinstance(model.lm, FiniteContext)  # it knows any beginning
    if not model.prompted and not is_counted and starts[0] != starts[1]:
      raise PairError(
        f"outputs of {first.name} begin with the token {starts[0]}, those of"
        f" {model.name} with {starts[1]}; a drafter and its verifier must have"
        " the same start token"
      )
    differs = token_names.difference(
      first.vocabulary,
      model.vocabulary,
      functools.partial(_own, first),
      functools.partial(_own, model),
    )
    if differs:
      raise PairError(
        f"{first.name} was trained with the vocabulary"
        f" {first.vocabulary['path']}, {model.name} with another,"
        f" {model.vocabulary['path']} ({differs}); {_MUST_SHARE}"
      )


def check_combined(pair):
  """Raises PairError where a drafter cannot be combined with others.

  Args:
    pair: the `ModelPair`.
  """
  for model in pair.drafters:
    if not model.drafts_alone:
      raise PairError(
        f"{model.name} has {model.words}, and CASCADE combines language models;"
        " leave CASCADE out"
      )


def check_other_vocabulary(pair):
  """Raises PairError where a drafter cannot have another vocabulary.

  Args:
    pair: the `ModelPair`.
  """
  for model in pair.drafters:
    if not model.drafts_alone:
      raise PairError(
        f"{model.name} has {model.words}, which have the verifier's vocabulary;"
        " leave DRAFTER_VOCABULARY out"
      )


def _check_made_for(pair):
  """Raises PairError where a drafter was made for another verifier."""
  for model in pair.drafters:
    if model.drafts_alone:
      continue
    if len(pair.drafters) > 1:
      raise PairError(
        f"{model.name} has {model.words}, which draft alone; give no other"
        " drafter"
      )
    verifier = pair.verifier
    if verifier is None:
      raise PairError(
        f"{model.name} has {model.words}, and there is no verifier to draft"
        " for: use a speculative method, and set VERIFIER_CHECKPOINT"
      )
    wanted = model.lm.config.verifier_sha256
    where = model.tuned_verifier and f", {model.tuned_verifier}"
    if wanted and verifier.fingerprint and wanted != verifier.fingerprint:
      raise PairError(
        f"{model.name} has {model.words} trained for another verifier than"
        f" {verifier.name} (the parameters of {verifier.name} differ from those"
        f" of that verifier): give that verifier{where}, or train for this one"
      )


def check_vocabulary(pair, vocabulary, name: str = "VOCABULARY"):
  """Checks that the vocabulary in use is the one the models were trained with.

  Args:
    pair: the `ModelPair`.
    vocabulary: an object with `vocab_size`, the number of ids that it can
      produce. It may have an `identity` and a `path`; see
      `prompting.identity`.
    name: the name of the setting that gives the vocabulary, for messages.

  Raises:
    PairError: the vocabulary has an id without a row in a model, or a model was
      trained with another vocabulary file.
  """
  identity = prompting.identity(vocabulary)
  for model in pair.models:
    rows = model.lm.vocab_size
    if vocabulary.vocab_size > rows:
      # An added token, such as padding, whose row was never
      # added: texts seldom have it, and `check_rows` refuses those that do.
      added = getattr(vocabulary, "added_from", lambda first: None)(rows)
      if added is None:
        raise PairError(
          f"{name} has {vocabulary.vocab_size} ids, {model.name} only {rows}"
          " rows; give the vocabulary that the model was trained with"
        )
      what = "texts with %s, which were added, are refused"
      if name != "VOCABULARY":
        what = "it reads its unknown token for %s, which were added"
      logging.warning(
        f"%s has %d ids, %s only %d rows: {what}",
        name,
        vocabulary.vocab_size,
        model.name,
        rows,
        ", ".join(map(repr, added)),
      )
    differs = token_names.difference(
      model.vocabulary,
      identity,
      functools.partial(_own, model),
      lambda: vocabulary,
    )
    if differs:
      raise PairError(
        f"{model.name} was trained with the vocabulary"
        f" {model.vocabulary['path']}, {name} is {identity['path']}"
        f" ({differs}); give the one that the model was trained with"
      )


def check_rows(pair, tokens, what: str):
  """Raises PairError if a model has no row for one of some ids.

  A device reads the last row in the place of a missing one, without a word. The
  source of a Markov chain or an n-gram model only names a table, and has any
  ids; draft heads read what their verifier reads.

  Args:
    pair: the `ModelPair`.
    tokens: [T] ids.
    what: what a message calls the text of the ids.
  """
  readers = [
    model if model.drafts_alone else pair.verifier for model in pair.models
  ]
  for model in readers:
    if isinstance(model.lm, FiniteContext) and not model.prompted:
      continue
    largest = int(np.max(tokens, initial=0))
    if largest >= model.lm.vocab_size:
      raise PairError(
        f"{what} has the token {largest}, and {model.name} has"
        f" {model.lm.vocab_size} rows; remove the text of this token"
      )


def check_sources(
  pair, sources: Sources, most_new: int, methods: Iterable[Method] = ()
):
  """Raises PairError where a model cannot read the examples and an output.

  Args:
    pair: the `ModelPair`.
    sources: the examples.
    most_new: the most tokens of an output.
    methods: the methods that decode; () where they are not known. Methods that
      continue without a drafter do not need its window to hold a text.
  """
  methods = tuple(methods)
  continues = bool(methods) and all(continues_alone(pair, x) for x in methods)
  for example in sources.examples:
    check_rows(pair, example.tokens, f"example {example.index}")
  for model in pair.models:
    if model.prompted != sources.prompted:
      kind, wanted = "an encoder-decoder", "sources: set PROMPT = 'source'"
      if model.prompted:
        kind, wanted = "decoder-only", "prompts: set PROMPT = 'text' or 'chat'"
      raise PairError(f"{model.name} is {kind} and takes {wanted}")
    if model.window == math.inf or (continues and model is not pair.verifier):
      continue
    worst = max(sources.examples, key=lambda example: len(example.tokens))
    num_tokens = len(worst.tokens)
    # A prompt and its output are one text; a source and its output are two.
    if not model.prompted and max(num_tokens, most_new) > model.window:
      raise PairError(
        f"example {worst.index} has {num_tokens} tokens, and MAX_DECODE_LEN is"
        f" {most_new}: one is more than the {model.window} that {model.name}"
        " was made for; shorten it"
      )
    if model.prompted and num_tokens + most_new > model.window:
      raise PairError(
        f"example {worst.index} has {num_tokens} tokens, and MAX_DECODE_LEN is"
        f" {most_new}: together more than the {model.window} that"
        f" {model.name} was made for; shorten one of them"
      )


def _own(model):
  """Returns the vocabulary that a model was trained with; None if unknown."""
  if not model.vocabulary:
    return None
  beside = vocabulary_paths.vocabulary_path_of(model.path)
  return token_names.find(model.vocabulary, beside)


def continues_alone(pair, method: Method) -> bool:
  """Whether a method continues where the window of the drafter ends.

  Args:
    pair: the `ModelPair`.
    method: the method that decodes.
  """
  if not method.execution.needs_drafter:
    return True
  # What is combined, or reads its own ids, is made for whole texts.
  is_plain = pair.composed is None and pair.shared is None
  [*drafters] = pair.drafters
  is_one = len(drafters) == 1 and drafters[0].drafts_alone
  return is_plain and is_one and method.continues_alone


def drafter_window(
  pair, sources: Sources, most_new: int, method: Method
) -> int | None:
  """Returns the window past which the verifier of a decoder continues alone.

  Args:
    pair: the `ModelPair`.
    sources: the examples.
    most_new: the most tokens after an example.
    method: the method that decodes.

  Returns:
    None where the drafter can read all examples with what follows them, or
    where the method needs it to.
  """
  if not method.has_blocks or not continues_alone(pair, method):
    return None
  [drafter] = pair.drafters
  lengths = [len(example.tokens) for example in sources.examples]
  # An encoder-decoder's source is a text of its own.
  longest = most_new + (max(lengths, default=0) if drafter.prompted else 0)
  if longest <= drafter.window:
    return None
  _say_once(drafter.name, int(drafter.window))
  return int(drafter.window)


@functools.cache
def _say_once(name: str, window: int):
  logging.warning(
    "%s was made for %d tokens, fewer than a text may have: past them it drafts"
    " nothing, and the verifier writes alone",
    name,
    window,
  )


def _differ(trained, used) -> bool:
  """Returns whether two identities are known and name different files."""
  if not trained or not used:
    return False
  hashes = (trained.get("sha256"), used.get("sha256"))
  return all(hashes) and hashes[0] != hashes[1]


def verifier_rows(
  verifier: str | os.PathLike | None,
  drafters: Iterable[str | os.PathLike | None],
) -> int | None:
  """Returns how many vocabulary rows the drafters of a pair have to have.

  Args:
    verifier: the verifier's checkpoint; None of a model in memory.
    drafters: the drafters' checkpoints.

  Returns:
    The rows of the verifier where all checkpoints are Hugging Face directories
    of one tokenizer and the sizes of their tables differ. None otherwise, which
    leaves all models as they are.
  """
  sizes, tokenizers = [], []
  for path in (verifier, *drafters):
    try:
      directory = storage.Directory(hub.local(path or "", weights=False))
      if not directory.has(storage.TOKENIZER):
        return None
      sizes.append(hugging_face.config_of(directory).vocab_size)
    except CheckpointError:
      return None  # Reading the model will raise it with a message.
    tokenizers.append(str(directory))
  if len(set(sizes)) < 2:
    return None
  from speccascade.text import vocabularies

  first, *others = map(vocabularies.load, dict.fromkeys(tokenizers))
  if any(other != first for other in others):
    return None
  logging.info(
    "the models have %s rows for one tokenizer: the verifier keeps its %d, and"
    " the drafter drafts tokens that both have",
    " and ".join(map(str, sorted({*sizes}))),
    sizes[0],
  )
  return sizes[0]


def cut_rows(config: Config, params: dict, rows: int) -> tuple[Config, dict]:
  """Returns a model with only the first rows of its vocabulary.

  Args:
    config: the architecture of the model.
    params: the parameters of the model, in T5X's names.
    rows: the number of rows to keep, at most the number that the model has.

  Returns:
    The architecture and the parameters of the smaller model.
  """

  def cut(part):
    # Copies: a view of the first rows would hold the whole table in memory.
    table = np.array(part["token_embedder"]["embedding"][:rows], order="C")
    embedder = {**part["token_embedder"], "embedding": table}
    return part | {"token_embedder": embedder}

  params, decoder = cut(params), params["decoder"]
  # The encoder of a T5Gemma may have a table of its own.
  if "token_embedder" in params.get("encoder", {}):
    params["encoder"] = cut(params["encoder"])
  # A model that ties its output to its embedding has no kernel of its own.
  if "logits_dense" in decoder:
    kernel = decoder["logits_dense"]["kernel"][:, :rows]
    kernel = np.array(kernel, order="C")
    params["decoder"] = decoder | {"logits_dense": {"kernel": kernel}}
  return dataclasses.replace(config, vocab_size=rows), params
