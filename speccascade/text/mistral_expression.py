"""A known fault of the tokenizers that were published with Mistral's models.

tokenizer.json of Mistral Small 3.1 and others, and of many models made of them,
splits texts by the expression of Llama 3. The models were trained with another
one, which begins a word at a capital letter and splits off every digit, so that
some texts have tokens that the model seldom saw.

Source: pull requests 42299 and 45444 of huggingface/transformers.
"""

from collections.abc import Collection

from absl import logging

from speccascade.text import tokenizer_bounds

_TYPES = (
  "mistral",
  "mistral3",
  "ministral",
  "ministral3",
  "pixtral",
  "voxtral",
)
_TURN = ("[INST]", "[/INST]")  # tokens of all tokenizers of this kind
_OF_LLAMA_3 = "<|begin_of_text|>"  # another vocabulary, of which it is right
_CAPITALS = r"\p{Lu}"  # a part of the right expression
_WORDS = r"\p{L}+|\p{N}{1,3}|"  # a part of the wrong one
_warned: set[str] = set()


def warn(
  content: bytes,
  where: str,
  sha256: str,
  model_type: object,
  tokens: Collection[str],
):
  """Logs a warning, once for a vocabulary that has the wrong expression.

  Args:
    content: the bytes of tokenizer.json.
    where: the tokenizer, for the message.
    sha256: the hash of the vocabulary.
    model_type: of config.json beside it; None if there is none.
    tokens: the tokenizer's added tokens.
  """
  is_mistral = model_type in _TYPES or all(token in tokens for token in _TURN)
  if not is_mistral or _OF_LLAMA_3 in tokens or sha256 in _warned:
    return
  steps = tokenizer_bounds.steps(content, "pre_tokenizer", "pretokenizers")
  if any(_WORDS in each and _CAPITALS not in each for each in _patterns(steps)):
    _warned.add(sha256)
    logging.warning(
      "%s splits texts by an expression that is known to be wrong for Mistral's"
      " models: texts get other tokens than those of training; write it again"
      " with transformers: AutoTokenizer.from_pretrained(FOLDER,"
      " fix_mistral_regex=True).save_pretrained(FOLDER)",
      where,
    )


def _patterns(steps):
  """Yields the expressions of pre-tokenizers that split a text."""
  for step in steps:
    pattern = step.get("pattern")
    if step.get("type") == "Split" and isinstance(pattern, dict):
      yield str(pattern.get("Regex"))
