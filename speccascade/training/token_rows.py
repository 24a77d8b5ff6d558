"""Rows of right tokens: what a pair says before each of them.

The pair reads the right outputs of a split, which is a teacher-forced pass. The
rows are written in files of a few hundred examples, so that a run that is
killed reads at most so many examples again. A row takes 56 bytes; the two
distributions themselves are not kept.
"""

from collections.abc import Sequence
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.laws import learned
from speccascade.decoding.laws.numerics import first_argmax, of_token
from speccascade.decoding.laws.sampling import Sampling
from speccascade.generate import teacher_forcing
from speccascade.generate.batches import padding
from speccascade.generate.batches.sources import InputError, Source, Sources
from speccascade.generate.pair.pairs import ModelPair
from speccascade.models.sharding.partitioning import fetch
from speccascade.runtime import array_files, files
from speccascade.runtime.progress import ProgressBar
from speccascade.text.arrays import order_by_length, pad
from speccascade.training.rule_fitting import TokenRows

PART = 512  # examples of a file
_WIDTH = 16  # outputs are padded to a multiple of so many tokens


def read(
  pair: ModelPair,
  sources: Sources,
  folder: pathlib.Path,
  *,
  max_len: int,
  batch_size: int,
  progress: bool = True,
) -> TokenRows:
  """Returns the rows of all right tokens of a split.

  Args:
    pair: a drafter and a verifier.
    sources: the examples, with references; the first reference is read.
    folder: holds the files of rows. Files that are there are not made again.
    max_len: the most tokens of an output, EOS counted; a longer one is
      truncated.
    batch_size: the most rows that the models read at once.
    progress: whether to show a bar.

  Raises:
    InputError: an example has no reference.
  """
  gold = [_gold(example, sources, max_len) for example in sources.examples]
  parts, num = [], len(gold)
  with ProgressBar(
    total=num, desc=folder.name, unit="example", disable=not progress
  ) as bar:
    for start in range(0, num, PART):
      stop = min(start + PART, num)
      path = folder / f"{start:08d}.npz"
      if not path.exists():
        rows = _read_part(
          pair,
          sources,
          range(start, stop),
          gold,
          batch_size=batch_size,
        )
        with files.open_whole(path, "wb") as file:
          np.savez(file, **rows._asdict())
      parts.append(TokenRows(**array_files.read_npz(path)))
      bar.update(stop - start)
  return TokenRows(*(np.concatenate(columns) for columns in zip(*parts)))


def _gold(example: Source, sources: Sources, max_len: int) -> np.ndarray:
  """Returns the tokens of the right output, [T] int32 with EOS."""
  if not example.references:
    raise InputError(
      f"example {example.index} of {sources.task} has no right output; a rule"
      " is fitted to examples with references"
    )
  vocabulary, right = sources.vocabulary, example.references[0]
  if sources.prompting is None:
    ids = vocabulary.encode(right)
  else:
    ids = sources.prompting.output(example.messages or example.text, right)
  ids = [*ids, vocabulary.eos_id]
  return np.asarray(ids[:max_len], np.int32)


def _read_part(
  pair: ModelPair,
  sources: Sources,
  places: Sequence[int],
  gold: Sequence[np.ndarray],
  *,
  batch_size: int,
) -> TokenRows:
  """Returns the rows of some examples, in batches of like output lengths."""
  size = pair.verifier_lm.vocab_size
  order = [places[i] for i in order_by_length([gold[i] for i in places])]
  lengths, parts = padding.buckets(sources.max_len), []
  while order:
    # The longest output that is left decides how many rows fit in memory.
    width = _WIDTH * -(-len(gold[order[-1]]) // _WIDTH)
    rows = min(batch_size, teacher_forcing.most_rows(width * size))
    chosen, order = order[-rows:], order[:-rows]
    tokens = pad([gold[i] for i in chosen], rows, width)
    count = np.array([len(gold[i]) for i in chosen])
    batch = [sources.examples[i] for i in chosen]
    inputs, _ = padding.pad_batch(batch, rows, lengths, prompted=pair.prompted)
    columns = fetch(
      _observe(pair.drafter_of(inputs, width), pair.verifier_lm, inputs, tokens)
    )
    is_inside = np.arange(width) < count[:, None]
    parts.append([x[: len(chosen)][is_inside] for x in columns])
  return TokenRows(*map(np.concatenate, zip(*parts)))


@jax.jit
def _observe(drafter, verifier, inputs, tokens) -> TokenRows:
  """Returns the columns of `TokenRows`, [B, T, ...], before each token."""
  q, p = (laws(model, inputs, tokens) for model in (drafter, verifier))
  return TokenRows(
    features=learned.features(q, p),
    q_right=(first_argmax(q) == tokens).astype(jnp.float32),
    p_right=(first_argmax(p) == tokens).astype(jnp.float32),
    q_gold=of_token(q, tokens),
    p_gold=of_token(p, tokens),
  )


def laws(model, inputs, tokens):
  """Returns a model's distribution before each token, [B, T, V]."""
  out = teacher_forcing.read(model, inputs, tokens)
  return Sampling.create(1.0).laws(out.logits)[0]
