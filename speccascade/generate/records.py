"""What decodes wrote: `records`, one JSON object a line, and `Outputs`.

A record has T5X's shape: "inputs", "prediction" and, where they are known,
"targets". The record of a conversation has its "messages" too. Everything else
is under "aux": among it, for a benchmark's question, its fields as "question".
"""

from collections.abc import Sequence
import dataclasses
import json
import math

import jax
import numpy as np

from speccascade.constraints.limits import TextLimits
from speccascade.decoding.laws.phases import PHASES
from speccascade.decoding.records.block_records import SOURCES, Decoded
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.batches.sources import Source
from speccascade.text.prompting import eos_ids
from speccascade.text.token_names import piece

NO_LIMITS = TextLimits()
# After the point, of float32 numbers: probabilities, logs, sides of a rule.
_DIGITS = 6


def text_of(vocabulary, tokens, limits: TextLimits = NO_LIMITS) -> str:
  """Returns the text of emitted tokens.

  EOS, the pad id and ids past the tokenizer can be sampled like any other id.
  They are dropped from the text, not from the tokens.

  Args:
    vocabulary: an object with `text(ids)`, or with `decode(ids)`, `eos_id` and
      `vocab_size`.
    tokens: the emitted ids.
    limits: what ended the output. The text goes up to the stop, and on after
      an EOS that ended nothing.
  """
  tokens = limits.cut_tokens(tokens)
  if limits.ignore_eos:
    ends = np.atleast_1d(eos_ids(vocabulary))
    tokens = [token for token in tokens if token not in ends]
  if hasattr(vocabulary, "text"):
    return limits.cut(vocabulary.text(tokens))
  dropped = {0, vocabulary.eos_id}
  readable = [
    int(token)
    for token in tokens
    if token not in dropped and token < vocabulary.vocab_size
  ]
  return limits.cut(vocabulary.decode(readable))


def stop_reason(decoded: Decoded, row: int, ends: Sequence[int]) -> str:
  """Returns why a row ended: "stop", "eos", "length" or "fault".

  Args:
    decoded: what was decoded, in arrays of NumPy.
    row: the row.
    ends: the ids that end an output.
  """
  if decoded.bad_step[row] >= 0:
    return "fault"
  if decoded.stopped is not None and decoded.stopped[row]:
    return "stop"
  length = decoded.lengths[row]
  ended = length and decoded.tokens[row, length - 1] in ends
  return "eos" if ended else "length"


def records(
  decoded: Decoded,
  batch: Sequence[Source],
  vocabulary,
  trial: int,
  limits: TextLimits = NO_LIMITS,
) -> list[dict]:
  """Returns the records of a batch.

  Args:
    decoded: what was decoded, of at least as many rows as the batch has
      examples. Rows that only pad the batch come last and have no record.
    batch: the examples of the first rows.
    vocabulary: as in `text_of`.
    trial: the number of the sampling trial, from 0.
    limits: what outputs were held to.
  """
  decoded = jax.device_get(decoded)
  counts = decode_counts.row_counts(decoded)
  ends = np.atleast_1d(limits.end_ids(eos_ids(vocabulary))).tolist()
  written = []
  for row, example in enumerate(batch):
    # Entries after the row's length are padding.
    emitted = np.s_[row, : decoded.lengths[row]]
    tokens = decoded.tokens[emitted]
    aux = {
      "index": example.index,
      "trial": trial,
      "tokens": tokens.tolist(),
      "stop_reason": stop_reason(decoded, row, ends),
      "counts": counts[row].to_dict(),
    }
    if example.question:
      aux["question"] = dict(example.question)
    if decoded.trace is not None:
      columns = _slice_columns(decoded.trace, emitted)
      aux["trace"] = _trace_lists(columns, tokens, vocabulary)
    if (trees := decoded.extra.get("trees")) is not None:
      blocks = np.s_[row, : decoded.stats.num_blocks[row]]
      columns = _slice_columns(trees, blocks)
      aux["trees"] = _tree_lists(columns, vocabulary)
    if decoded.log_probs is not None:
      columns = _slice_columns(decoded.log_probs, emitted)
      aux["log_probs"] = {
        name: _to_lists(column, least="-inf", most="inf")
        for name, column in columns.items()
      }
    record = {"inputs": example.text}
    if example.messages:
      record["messages"] = list(example.messages)
    if example.references:
      record["targets"] = list(example.references)
    own_limits = limits.also(example.stop)
    record["prediction"] = text_of(vocabulary, tokens, own_limits)
    record["aux"] = aux
    written.append(record)
  return written


def _slice_columns(part, emitted) -> dict[str, np.ndarray]:
  """Returns the arrays of a record of arrays, cut to a row's tokens by name."""
  columns = part.by_name() if hasattr(part, "by_name") else vars(part)
  return {name: array[emitted] for name, array in columns.items()}


def _trace_lists(columns: dict[str, np.ndarray], tokens, vocabulary) -> dict:
  """Returns a row's trace, arrays [T] or [T, K] by name, as lists."""
  lists = {name: _to_lists(column) for name, column in columns.items()}
  # Readers of the JSON know neither the numbers of sources nor the tokenizer.
  lists["source"] = [SOURCES[source] for source in columns["source"]]
  if "phase" in columns:
    lists["phase"] = [PHASES[phase] for phase in columns["phase"]]
  lists["piece"] = _pieces(vocabulary, tokens)
  for top in ("q_top", "p_top"):
    lists[f"{top}_piece"] = [_pieces(vocabulary, ids) for ids in columns[top]]
  return lists


def _tree_lists(columns: dict[str, np.ndarray], vocabulary) -> list[dict]:
  """Returns a row's `DraftedTrees`, [J, N] each, as a dict for each block."""
  trees = []
  for tokens, parents, is_accepted in zip(
    columns["tokens"], columns["parents"], columns["is_accepted"]
  ):
    trees.append(
      {
        "tokens": tokens.tolist(),
        "parents": parents.tolist(),
        "accepted": np.flatnonzero(is_accepted).tolist(),
        "piece": _pieces(vocabulary, tokens),
      }
    )
  return trees


def _to_lists(
  array: np.ndarray, least: str | None = None, most: str | None = None
) -> list:
  """Returns an array as nested lists that JSON can hold; None is NaN."""
  if array.dtype.kind != "f":
    return array.tolist()

  def convert(value):
    if isinstance(value, list):
      return [convert(entry) for entry in value]
    if value == -math.inf:
      return least
    if value == math.inf:
      return most
    return round(value, _DIGITS) if math.isfinite(value) else None

  return convert(array.astype(np.float64).tolist())


def _pieces(vocabulary, tokens) -> list[str]:
  return [piece(vocabulary, token) for token in tokens]


def to_line(record: dict) -> str:
  """Returns a record as one line of JSON."""
  return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


@dataclasses.dataclass(frozen=True)
class Outputs:
  """What one point wrote, in all trials.

  Attributes:
    tokens: the emitted tokens [N] int32 of each output, EOS among them. A key
      is the trial and the example's index.
    counts: the counts of each output.
    log_probs: the fields of `LogProbs`, one dict for each batch. Empty where
      log-probabilities were not recorded.
    seconds: the seconds of each answer that was timed alone, a turn of a
      conversation each.
  """

  tokens: dict[tuple[int, int], np.ndarray] = dataclasses.field(
    default_factory=dict
  )
  counts: list[Counts] = dataclasses.field(default_factory=list)
  log_probs: list[dict] = dataclasses.field(default_factory=list)
  seconds: list[float] = dataclasses.field(default_factory=list)

  def add(self, decoded: Decoded, examples: Sequence[Source], trial: int = 0):
    """Adds what was decoded for some examples, the first rows of a batch."""
    # Rows after the examples only pad the batch.
    num, tokens = len(examples), np.asarray(decoded.tokens)
    for row, example in enumerate(examples):
      emitted = tokens[row, : decoded.lengths[row]]
      self.tokens[trial, example.index] = emitted
    self.counts.extend(decode_counts.row_counts(decoded)[:num])
    if decoded.log_probs is not None:
      columns = jax.tree.map(lambda column: column[:num], decoded.log_probs)
      self.log_probs.append(vars(columns))

  def add_record(self, record: dict):
    """Adds a record of `records`, as a decode's file has it."""
    aux = record["aux"]
    if not aux.get("turn"):  # references are of the first turn
      tokens = np.asarray(aux["tokens"], np.int32)
      self.tokens[aux["trial"], aux["index"]] = tokens
    self.counts.append(Counts(**aux["counts"]))
    if "log_probs" in aux:
      self.log_probs.append(aux["log_probs"])
    if "wall_time_s" in aux:
      self.seconds.append(aux["wall_time_s"])

  @property
  def num_trials(self) -> int:
    """How often each example was decoded."""
    return len({trial for trial, _ in self.tokens})
