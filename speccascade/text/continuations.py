"""The ids of a text that follows another one.

Some tokenizers put a blank before a text: Llama 2's, Mistral's and T5's. A text
inside a conversation, or after a prompt, has no such blank.
"""

_BLANK = "\u2581"
# Texts that may come before another one. The first is not a letter's
# neighbour: tokenizers with byte fallback spell it as a byte.
_ANCHORS = ("\n", "|", "a", "0")


def ids_after(vocabulary, before: str, text: str) -> list[int] | None:
  """Returns the ids that a text has after another text.

  Args:
    vocabulary: an object with `encode`.
    before: the text before it.
    text: the text.

  Returns:
    The ids. None where the ids of `before` change as `text` follows: then the
    two texts have no ids of their own.
  """
  held = list(vocabulary.encode(before))
  whole = list(vocabulary.encode(before + text))
  return whole[len(held) :] if whole[: len(held)] == held else None


def output_ids(vocabulary, prompt: str, output: str) -> list[int]:
  """Returns the ids of an output after its prompt, without EOS.

  An output whose first letters would share a token with the end of the prompt
  has the ids that it has after another text.

  Args:
    vocabulary: an object with `encode`, and perhaps `piece`.
    prompt: the text of the prompt.
    output: the text of the output.
  """
  ids = ids_after(vocabulary, prompt, output)
  if ids is None and _puts_blank(vocabulary):
    for anchor in _ANCHORS:
      held = vocabulary.encode(anchor)
      if anchor in vocabulary.decode(held):
        ids = ids_after(vocabulary, anchor, output)
      if ids is not None:
        break
  return list(vocabulary.encode(output)) if ids is None else ids


def _puts_blank(vocabulary) -> bool:
  """Returns whether the tokenizer puts a blank before a text."""
  piece = getattr(vocabulary, "piece", lambda token: "")
  return any(
    piece(token).startswith(_BLANK) for token in vocabulary.encode("a")
  )


def text_inside(vocabulary, ids) -> str:
  """Returns the text of ids that follow others, special tokens as written.

  Args:
    vocabulary: an object with `encode` and `decode`.
    ids: the ids.
  """
  # With "a" before the ids, nothing takes the first blank for the one that the
  # tokenizer puts before every text.
  ids = list(ids)
  text = vocabulary.decode(ids)
  whole = vocabulary.decode([*vocabulary.encode("a"), *ids])
  is_whole = whole.startswith("a") and whole.endswith(text)
  return whole[1:] if is_whole else text
