"""Whether the models of a pair, and a vocabulary, belong together."""

from speccascade.inference import inputs

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
      `identity` and `path`; see `inputs.identity`.
    name: of the setting that gives it.

  Raises:
    PairError: an id has no row, or a model was trained with another file.
  """
  identity = inputs.identity(vocabulary)
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
