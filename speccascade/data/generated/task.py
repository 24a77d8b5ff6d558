"""The built-in task for seqio: `speccascade_en_de`.

No sentence is made before it is read.
"""

from collections.abc import Iterator

from speccascade.data import registry
from speccascade.data._tf import seqio, tf
from speccascade.data.generated import examples, vocabulary
from speccascade.data.vocabularies import Vocabulary
from speccascade.settings import fields

NAME = "speccascade_en_de"

# Pairs handed to TensorFlow at once: one by one costs more than making them.
_CHUNK = 500


def _chunks(split: str, count: int) -> Iterator[dict]:
  """Features of the first `count` examples of a split, in chunks.

  Training is never scored, so its references, which take longer to find than
  the pair, are the target alone.
  """
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
  """Pairs; those of a longer split begin with those of a shorter one."""
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
  """Registers the task and returns its name, for gin.

  In a gin file: `MIXTURE_OR_TASK_NAME = @task.register()` with
  `task.register.name = "..."` for other sizes than these.

  Args:
    name: of the task.
    train: number of training pairs.
    validation: number of validation pairs.
    test: number of test pairs.

  Raises:
    ValueError: where the name is taken by a task with other settings.
  """
  sizes = {"train": train, "validation": validation, "test": test}
  return registry.register(
    name,
    _source(sizes),
    [],
    ["bleu", "chrf", "valid"],
    Vocabulary(vocabulary.model_path()),
    settings=sizes,
  )


register()
