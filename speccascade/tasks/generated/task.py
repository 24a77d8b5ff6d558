"""Registers the built-in task with seqio, as `speccascade_en_de`.

A sentence is drawn when it is read.
"""

from collections.abc import Iterator

from speccascade.settings import fields
from speccascade.tasks import registry
from speccascade.tasks._tf import seqio, tf
from speccascade.tasks.generated import examples, task_pieces
from speccascade.tasks.seqio_vocabularies import Vocabulary

NAME = "speccascade_en_de"

# Pairs that are handed to TensorFlow at once. Handing them over one by one
# costs more than drawing them.
_CHUNK = 500


def _chunks(split: str, count: int) -> Iterator[dict]:
  """Yields the features of the first `count` examples of a split, in chunks."""
  # Finding all references takes longer than drawing the pair. Training examples
  # are never scored, so that their only reference is the target.
  for start in range(0, count, _CHUNK):
    rows = []
    for index in range(start, min(start + _CHUNK, count)):
      if split == "train":
        inputs, targets = examples.pair(split, index)
        rows.append((inputs, targets, [targets]))
      else:
        rows.append(examples.example(split, index))
    inputs, targets, references = map(list, zip(*rows))
    references = tf.ragged.constant(references, ragged_rank=1)
    yield {"inputs": inputs, "targets": targets, "references": references}


def _source(sizes: dict[str, int]) -> seqio.FunctionDataSource:
  """Returns a seqio source of as many pairs of each split as `sizes` says."""
  text = tf.TensorSpec([None], tf.string)
  several = tf.RaggedTensorSpec([None, None], tf.string)
  signature = {"inputs": text, "targets": text, "references": several}

  def dataset(split, shuffle_files=False, seed=None):
    del shuffle_files, seed
    return tf.data.Dataset.from_generator(
      lambda: _chunks(split, sizes[split]), output_signature=signature
    ).unbatch()

  return seqio.FunctionDataSource(
    dataset, splits=tuple(sizes), num_input_examples=dict(sizes)
  )


@fields.checked
def register(
  name: str = NAME,
  train: fields.Positive = 100_000,
  validation: fields.Positive = 500,
  test: fields.Positive = 500,
) -> str:
  """Registers the task, and returns its name, for gin.

  In a gin file: `MIXTURE_OR_TASK_NAME = @task.register()`, with
  `task.register.name = "..."` for other sizes than the default ones.

  Args:
    name: name of the task.
    train: how many training pairs.
    validation: how many validation pairs.
    test: how many test pairs.

  Raises:
    ValueError: a task with other settings has this name.
  """
  sizes = {"train": train, "validation": validation, "test": test}
  return registry.register(
    name,
    _source(sizes),
    [],
    ["bleu", "chrf", "valid"],
    Vocabulary(task_pieces.model_path()),
    settings=sizes,
  )


register()
