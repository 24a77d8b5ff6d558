"""What is written of each decoded example, one JSON object a line.

T5X's shape: "inputs", "prediction" and, where they are known, "targets", and of
a conversation its "messages"; all else is under "aux".
"""

import dataclasses
import json
import math

import jax
import numpy as np

from speccascade.decoding.types import SOURCES, Decoded
from speccascade.evaluation import efficiency
from speccascade.inference.batches.inputs import Source

_DIGITS = 6  # of what is float32: probabilities, their logs, rule sides


def text_of(vocabulary, tokens) -> str:
  """Returns the text of emitted tokens.

  EOS, the pad id and ids past the tokenizer can be sampled like any other; they
  are dropped from the text, not from the tokens.

  Args:
    vocabulary: with `text(ids)`, or `decode(ids)`, `eos_id` and `vocab_size`.
    tokens: the emitted ids.
  """
  if hasattr(vocabulary, "text"):
    return vocabulary.text(tokens)
  dropped = {0, vocabulary.eos_id}
  kept = [
    int(token)
    for token in tokens
    if token not in dropped and token < vocabulary.vocab_size
  ]
  return vocabulary.decode(kept)


def records(
  decoded: Decoded, batch: list[Source], vocabulary, trial: int
) -> list[dict]:
  """Returns the records of a batch; rows that only pad it are left out."""
  decoded, written = jax.device_get(decoded), []
  counts = efficiency.row_counts(decoded)
  pieces = lambda tokens: [piece(vocabulary, token) for token in tokens]
  for row, example in enumerate(batch):
    here = np.s_[row, : decoded.lengths[row]]
    of_row = lambda part, here=here: {x: y[here] for x, y in vars(part).items()}
    emitted = decoded.tokens[here]
    aux = {
      "index": example.index,
      "trial": trial,
      "tokens": emitted.tolist(),
      "counts": dataclasses.asdict(counts[row]),
    }
    if decoded.trace is not None:
      cut = of_row(decoded.trace)
      told = {name: _plain(column) for name, column in cut.items()}
      # One entry for each token.
      told["source"] = [SOURCES[source] for source in cut["source"]]
      told["piece"] = pieces(emitted)
      for top in ("q_top", "p_top"):
        told[f"{top}_piece"] = list(map(pieces, cut[top]))
      aux["trace"] = told
    if decoded.log_probs is not None:
      aux["log_probs"] = {
        name: _plain(column, least="-inf")
        for name, column in of_row(decoded.log_probs).items()
      }
    record = {"inputs": example.text}
    if example.messages:
      record["messages"] = list(example.messages)
    if example.references:
      record["targets"] = list(example.references)
    record["prediction"] = text_of(vocabulary, emitted)
    written.append({**record, "aux": aux})
  return written


def _plain(array, least=None):
  """Returns nested lists; NaN and infinities, which JSON lacks, are None.

  Args:
    array: of numbers or bools.
    least: what stands for -inf.
  """
  if array.dtype.kind != "f":
    return array.tolist()

  def number(x):
    if isinstance(x, list):
      return [number(y) for y in x]
    if x == -math.inf:
      return least
    return round(x, _DIGITS) if math.isfinite(x) else None

  return number(array.astype(np.float64).tolist())


def piece(vocabulary, token: int) -> str:
  """Returns a token as its tokenizer spells it, with its leading blank."""
  token = int(token)
  if token >= vocabulary.vocab_size:
    return f"<{token}>"
  if hasattr(vocabulary, "piece"):
    return vocabulary.piece(token)
  tokenizer = getattr(vocabulary, "tokenizer", None)
  if hasattr(tokenizer, "id_to_piece"):
    return tokenizer.id_to_piece(token)
  return vocabulary.decode([token])


def to_line(record: dict) -> str:
  """Returns a record as one line of JSON."""
  return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
