"""Builds n-gram models, and the bigram tables of Max-Gram, from text."""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Annotated, Literal

import numpy as np

from speccascade.models.ngram_lm import NgramLM
from speccascade.runtime import files, folders
from speccascade.runtime.progress import ProgressBar
from speccascade.settings import fields
from speccascade.tasks.inputs import TextSource
from speccascade.training import ngram_counts


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(TextSource):
  """The text that is counted. The fields are checked when the object is made.

  Attributes:
    features: "inputs", "targets" or both; each is counted as a text of its own.
      A file of lines has one text on each line, and this setting does not
      matter. In a file that `decode` wrote, the targets are the tokens of the
      predictions.
  """

  split: str = "train"
  features: Annotated[
    Sequence[Literal["inputs", "targets"]], fields.NOT_EMPTY
  ] = ("targets",)

  def read(self, progress: bool) -> tuple[list, object]:
    """Reads the texts.

    Args:
      progress: whether to show a bar.

    Returns:
      The texts, each as a list of token ids, and their vocabulary.
    """
    vocabulary = self.load_vocabulary()
    if not self.input_file:
      from speccascade.tasks import reading, tasks

      task = tasks.get(self.mixture_or_task_name, vocabulary)
      options = {"num": self.num_examples, "use_cached": self.use_cached}
      arrays = reading.from_task(task, self.split, progress=progress, **options)
      texts = [
        arrays.get(name, i) for name in self.features for i in arrays.rows
      ]
      return texts, task.output_features["targets"].vocabulary
    examples = self.texts(needs_targets=True, records=True)
    lines = [example.inputs for example in examples]
    if examples[0].references:
      targets = [example.references[0] for example in examples]
      columns = {"inputs": lines, "targets": targets}
      lines = [text for name in self.features for text in columns[name]]
    texts = []
    for line in lines:
      # The predictions of a record are token ids already.
      ids = vocabulary.encode(line) if isinstance(line, str) else line
      texts.append(list(ids))
    return texts, vocabulary


@fields.checked
def build(
  *,
  output_file: fields.Path,
  text: Text,
  order: Annotated[int, fields.Bounds(2, 62)] = 2,
  successors: fields.Positive = 32,
  min_count: fields.Positive = 2,
  vocab_size: Annotated[int, fields.Bounds(1, 2**24)] | None = None,
  progress: bool = True,
) -> NgramLM:
  """Counts a text, writes the model, and returns it.

  Args:
    output_file: the path of the `.npz` file. A file that is there is replaced.
    text: the text that is counted.
    order: n of the n-grams; 2 makes a bigram model.
    successors: the most next tokens that are stored for a context.
    min_count: a context of two tokens or more that occurs less often is left
      out.
    vocab_size: the number of rows of the models that the n-grams will draft
      for. None takes the number of ids of the vocabulary.
    progress: whether to show a bar.

  Raises:
    ValueError: a setting or the text is wrong. Nothing is written then.
  """
  path = pathlib.Path(output_file).expanduser()
  if path.suffix != ".npz":
    raise ValueError(
      f"OUTPUT_FILE is {os.fspath(output_file)!r}; wanted a name that ends in"
      " .npz"
    )
  from speccascade.text import vocabularies

  with folders.sole_writer(
    path.parent, "the folder of OUTPUT_FILE", file=path.name
  ):
    folders.check_files(path.parent, "the folder of OUTPUT_FILE", path.name)
    texts, vocabulary = text.read(progress)
    size = vocabulary.vocab_size if vocab_size is None else vocab_size
    vocabularies.check_fits(vocabulary, size, "VOCAB_SIZE")
    bar = ProgressBar(
      texts, "counting", unit=" texts", delay=3, disable=not progress
    )
    counts = ngram_counts.count(
      bar, vocab_size=size, order=order, eos_id=vocabulary.eos_id
    )
    identity = getattr(vocabulary, "identity", None) or {}
    model = ngram_counts.smooth(
      counts,
      vocab_size=size,
      successors=successors,
      min_count=min_count,
      # A decode compares this hash with the hash of its own vocabulary.
      vocabulary=identity.get("sha256", ""),
    )
    with files.open_whole(path, "wb") as file:
      model.save(file)
  return model


def describe(model: NgramLM) -> str:
  """Returns a model's order, vocabulary and contexts in one line."""
  # A context that was never counted has the back-off weight 1.
  contexts = [int((np.asarray(x.backoff) < 1).sum()) for x in model.levels]
  parts = [f"{n} contexts of {i}" for i, n in enumerate(contexts, start=1)]
  return (
    f"{model.order + 1}-gram model over {model.vocab_size} tokens:"
    f" {', '.join(parts)} token(s)"
  )
