"""Builds n-gram models, and the bigram tables of Max-Gram, from text."""

from collections.abc import Sequence
import dataclasses
import os
import pathlib

import numpy as np
from tqdm import tqdm

from speccascade.data import text_files
from speccascade.fields import at_least
from speccascade.inference.inputs import check_one_source
from speccascade.models.ngram_lm import NgramLM
from speccascade.training import ngram_counts

FEATURES = ("inputs", "targets")


@dataclasses.dataclass(frozen=True)
class Text:
  """What is counted, a task's split or a file; checked when made.

  Attributes:
    vocabulary: path of a SentencePiece model; None takes the task's own.
    mixture_or_task_name: a registered seqio task; or else `input_file`.
    split: of the task.
    input_file: one text a line, or `.jsonl` with "inputs" and "targets"; either
      may end in `.gz`.
    num_examples: the first of them; None takes all.
    features: "inputs", "targets" or both, each counted as a text of its own; a
      file of lines has one text a line, whatever stands here.
    use_cached: read the task's cached examples.
  """

  vocabulary: str | None = None
  mixture_or_task_name: str | None = None
  split: str = "train"
  input_file: str | os.PathLike | None = None
  num_examples: int | None = None
  features: Sequence[str] = ("targets",)
  use_cached: bool = False

  def __post_init__(self):
    check_one_source(self.mixture_or_task_name, self.input_file)
    at_least(1, or_none=True, NUM_EXAMPLES=self.num_examples)
    if not self.features or not set(self.features) <= set(FEATURES):
      raise ValueError(
        f"FEATURES is {list(self.features)}; wanted 'inputs', 'targets' or both"
      )

  def read(self, progress: bool) -> tuple[list, object]:
    """Returns the texts, token ids each, and their vocabulary."""
    from speccascade.data import reading, tasks, vocabularies

    vocabulary = self.vocabulary and vocabularies.load(self.vocabulary)
    if not self.input_file:
      task = tasks.get(self.mixture_or_task_name, vocabulary)
      options = {"num": self.num_examples, "use_cached": self.use_cached}
      arrays = reading.from_task(task, self.split, progress=progress, **options)
      texts = [
        arrays.get(name, i) for name in self.features for i in arrays.rows
      ]
      return texts, task.output_features["targets"].vocabulary
    if not vocabulary:
      raise ValueError("INPUT_FILE needs a VOCABULARY; a file brings none")
    examples = text_files.read_texts(
      self.input_file,
      self.num_examples,
      what="INPUT_FILE",
      needs_targets=True,
    )
    columns = {"inputs": [example.inputs for example in examples]}
    names = ("inputs",)
    if examples[0].references:
      columns["targets"] = [example.references[0] for example in examples]
      names = self.features
    lines = [text for name in names for text in columns[name]]
    return [vocabulary.encode(line) for line in lines], vocabulary


def build(
  *,
  output_file: str | os.PathLike,
  text: Text,
  order: int = 2,
  successors: int = 32,
  min_count: int = 2,
  vocab_size: int | None = None,
  progress: bool = True,
) -> NgramLM:
  """Counts a text, writes the model, and returns it.

  Args:
    output_file: the `.npz` to write; an existing one is replaced.
    text: what is counted.
    order: n; 2 is a bigram model.
    successors: most next tokens kept of a context.
    min_count: longer contexts that were seen less often are left out.
    vocab_size: rows of the models it will draft for, if more than the ids.
    progress: show a bar.

  Raises:
    ValueError: a setting or the text is wrong; nothing is written then.
  """
  if pathlib.Path(output_file).suffix != ".npz":
    raise ValueError(
      f"OUTPUT_FILE is {os.fspath(output_file)!r}; wanted a name that ends in"
      " .npz"
    )
  from speccascade.data import vocabularies

  texts, vocabulary = text.read(progress)
  size = vocabulary.vocab_size if vocab_size is None else vocab_size
  vocabularies.check_fits(vocabulary, size)
  bar = tqdm(texts, "counting", unit=" texts", delay=3, disable=not progress)
  counts = ngram_counts.count(bar, vocab_size=size, order=order)
  model = ngram_counts.smooth(
    counts,
    vocab_size=size,
    successors=successors,
    min_count=min_count,
    vocabulary=(getattr(vocabulary, "identity", None) or {}).get("sha256", ""),
  )
  model.save(output_file)
  return model


def describe(model: NgramLM) -> str:
  """Returns in a line what a model holds."""
  contexts = [int((np.asarray(x.backoff) < 1).sum()) for x in model.levels]
  parts = [f"{n} contexts of {i}" for i, n in enumerate(contexts, start=1)]
  return (
    f"{model.order + 1}-gram model over {model.vocab_size} tokens:"
    f" {', '.join(parts)} token(s)"
  )
