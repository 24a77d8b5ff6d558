"""The generated task for seqio: `speccascade_en_de`.

Nothing is made when this module is imported: sentences and vocabulary come
when they are first read.
"""

from collections.abc import Iterator

from speccascade.data._tf import seqio, tf
from speccascade.data.generated import examples, metrics, vocabulary
from speccascade.data.vocabularies import Vocabulary
from speccascade.evaluation import quality

NAME = "speccascade_en_de"
SIZES = {"train": 100_000, "validation": 500, "test": 500}


class GeneratedVocabulary(Vocabulary):
  """The task's own vocabulary, trained when it is first used.

  Args:
    size: number of pieces.
  """

  def __init__(self, size: int = vocabulary.SIZE):
    self.size = size
    self._file = None
    super().__init__(f"generated_{size}.model", extra_ids=0)

  def _model_context(self):
    if self._model is None:
      self._file = str(vocabulary.model_path(self.size))
    return super()._model_context()

  @property
  def path(self) -> str:
    """Of the model file, in the user's cache directory."""
    return self._file or self._placeholder

  @path.setter
  def path(self, value: str):
    self._placeholder = value

  @property
  def identity(self) -> dict:
    """What makes it this vocabulary: the file's hash, and the sentinels."""
    self._model_context()
    return super().identity


class Renderings(list):
  """References of a source: a list of texts that remembers the source."""

  def __init__(self, texts, inputs: str):
    super().__init__(texts)
    self.inputs = inputs


# Pairs handed to TensorFlow at once: one by one costs more than making them.
_CHUNK = 500


def _chunks(split: str, count: int) -> Iterator[dict]:
  """Features of the first `count` examples of a split, in chunks.

  Training is never scored, so its references, which take longer to find than
  the pair, are the target alone.
  """
  for start in range(0, count, _CHUNK):
    numbers = range(start, min(start + _CHUNK, count))
    if split == "train":
      pairs = [examples.pair(split, index) for index in numbers]
      references = [[targets] for _, targets in pairs]
    else:
      found = [examples.example(split, index) for index in numbers]
      pairs = [(one.inputs, one.targets) for one in found]
      references = [one.references for one in found]
    yield {
      "inputs": [inputs for inputs, _ in pairs],
      "targets": [targets for _, targets in pairs],
      "references": tf.ragged.constant(references, ragged_rank=1),
    }


def _dataset(split: str, count: int) -> tf.data.Dataset:
  text = tf.TensorSpec([None], tf.string)
  signature = {
    "inputs": text,
    "targets": text,
    "references": tf.RaggedTensorSpec([None, None], tf.string),
  }
  return tf.data.Dataset.from_generator(
    lambda: _chunks(split, count), output_signature=signature
  ).unbatch()


class GeneratedSource(seqio.FunctionDataSource):
  """A seqio source of generated pairs.

  Args:
    sizes: split -> number of examples; those of a longer split begin with
      those of a shorter one.
  """

  def __init__(self, sizes: dict[str, int]):
    def dataset(split, shuffle_files=False, seed=None):
      del shuffle_files, seed
      return _dataset(split, sizes[split])

    super().__init__(
      dataset, splits=tuple(sizes), num_input_examples=dict(sizes)
    )


def postprocess(text: str, example=None, is_target: bool = False):
  """The text of a prediction; for a target, its `Renderings`."""
  if is_target and example is not None:
    decode = tf.compat.as_text
    return Renderings(
      map(decode, example["references"]), decode(example["inputs_pretokenized"])
    )
  return text


def valid(targets, predictions) -> dict[str, float]:
  """`metrics.valid` in seqio's form; the targets come from `postprocess`."""
  (share,) = metrics.valid(predictions, [target.inputs for target in targets])
  return {share.name: share.value}


def register(
  name: str = NAME,
  train: int = SIZES["train"],
  validation: int = SIZES["validation"],
  test: int = SIZES["test"],
  vocab_size: int = vocabulary.SIZE,
) -> str:
  """Registers the task and returns its name, for gin.

  In a gin file: `MIXTURE_OR_TASK_NAME = @task.register()` with
  `task.register.name = "..."` for other sizes than `SIZES`.

  Args:
    name: of the task.
    train: number of training pairs.
    validation: number of validation pairs.
    test: number of test pairs.
    vocab_size: number of pieces.

  Raises:
    ValueError: where the name is taken by a task with other settings.
  """
  sizes = {"train": train, "validation": validation, "test": test}
  settings = (sizes, vocab_size)
  if name in seqio.TaskRegistry.names():
    if _REGISTERED.get(name) == settings:
      return name
    raise ValueError(f"there is a task {name!r} already: choose another name")
  pieces = GeneratedVocabulary(vocab_size)
  feature = seqio.Feature(vocabulary=pieces, add_eos=True)
  seqio.TaskRegistry.add(
    name,
    source=GeneratedSource(sizes),
    preprocessors=[
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      seqio.preprocessors.append_eos_after_trim,
    ],
    postprocess_fn=postprocess,
    metric_fns=[
      *map(quality.seqio_metric, ("bleu", "chrf", "exact_match")),
      valid,
    ],
    output_features={"inputs": feature, "targets": feature},
  )
  _REGISTERED[name] = settings
  return name


_REGISTERED: dict[str, tuple] = {}
register()
