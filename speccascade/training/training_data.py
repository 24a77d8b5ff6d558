"""The data that a model is trained on, and the tokens of the data.

The modules that read tasks are imported when the data is read, so the package
`training` itself needs neither seqio nor TensorFlow.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
from typing import Annotated, Any, Literal

from speccascade.generate.pair.draft_vocabulary import Setting as Kept
from speccascade.settings import fields
from speccascade.text import prompting, text_files
from speccascade.text.prompting import FORMATS, Prompting
from speccascade.training.trainer import TrainingRun


def _is_rising(buckets):
  """Raises ValueError where the widths of buckets are not in rising order."""
  widths = [w if isinstance(w, tuple) else (w, w) for w in buckets]
  if not widths or any(
    max(narrow) > max(wide) for narrow, wide in itertools.pairwise(widths)
  ):
    raise ValueError(f"wanted widths in rising order, not {list(buckets)}")


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
  """The data that a model is trained on, and its batches.

  Attributes:
    mixture_or_task_name: a task or mixture registered with seqio; None where
      `files` are given.
    files: {"train": ..., "validation": ...}, the files of each split. They are
      line files, or JSON lines with `targets`, or JSON lines that `decode`
      wrote; see `prompting.read_files`.
    teacher_checkpoint: the checkpoint of a teacher. `Objective.loss`
      says what is learned of its distributions; evaluations compare the
      model with it.
    earlier_drafters: checkpoints of drafters of the teacher, already trained.
      The model learns only positions where the most likely token of none of
      them is the teacher's.
    student_text: the share of steps whose texts the model itself writes, see
      `WrittenText`.
    teacher_text: the share of steps whose texts the teacher writes.
    prompt: see `Prompting.format`.
    chat_variables: see `Prompting.variables`.
    task_feature_lengths: {"inputs": ..., "targets": ...}, the most tokens of
      each feature. Longer examples are truncated, and the run prints how many.
    batch_size: rows of a batch; with buckets, rows of a batch of the widest.
    vocabulary: path of a SentencePiece model, or of a Hugging Face directory;
      None takes the task's vocabulary.
    use_cached: whether to read the task's cached examples.
    token_cache_dir: a folder that holds the tokenized training split, so that a
      next start need not tokenize it again; None tokenizes at each start.
    teacher_cache_dir: a folder that holds a decoder-only teacher's hidden
      states for the training split, in float16; None computes the teacher's
      distributions in each step.
    draft_vocabulary: of a state reader: the tokens that it learns to draft, as
      `DRAFT_VOCABULARY` of a pair. N counts the N most frequent tokens of the
      training split's targets, and the run's folder holds them.
    num_examples: how many examples of the training split are used, the first
      ones; None takes all.
    buckets: the widths of batches; None pads all batches to the feature
      lengths.
    pack: whether to put several examples in a row.
  """

  mixture_or_task_name: str | None = None
  files: Mapping[str, text_files.Files | None] = dataclasses.field(
    default_factory=dict
  )
  teacher_checkpoint: fields.Path | None = None
  earlier_drafters: Sequence[fields.Path] = ()
  student_text: fields.Share = 0.0
  teacher_text: fields.Share = 0.0
  prompt: Literal[FORMATS] | None = None
  chat_variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  task_feature_lengths: Annotated[
    Mapping[str, fields.Size], fields.Keys(("inputs", "targets"))
  ]
  batch_size: fields.Size
  vocabulary: fields.Path | None = None
  use_cached: bool = False
  token_cache_dir: fields.Path | None = None
  teacher_cache_dir: fields.Path | None = None
  draft_vocabulary: Kept = None
  num_examples: fields.Positive | None = None
  buckets: (
    Annotated[
      Sequence[fields.Size | tuple[fields.Size, fields.Size]], _is_rising
    ]
    | None
  ) = None
  pack: bool = False

  def __post_init__(self):
    if bool(self.mixture_or_task_name) == bool(self.files):
      raise ValueError(
        "give MIXTURE_OR_TASK_NAME or TRAIN_FILES, one of them and not both"
      )
    if self.files and not self.vocabulary:
      raise ValueError("files need a VOCABULARY: they do not bring one")
    if (self.student_text or self.teacher_text) and (
      self.pack or self.teacher_cache_dir
    ):
      raise ValueError(
        "STUDENT_TEXT and TEACHER_TEXT are written during the run, in rows"
        " apart; leave out PACK and TEACHER_CACHE_DIR"
      )
    if self.earlier_drafters and not self.teacher_checkpoint:
      raise ValueError("EARLIER_DRAFTERS need a TEACHER_CHECKPOINT")

  @functools.cached_property
  def _vocabulary_of_path(self):
    """The vocabulary that `vocabulary` names; None where it names none."""
    from speccascade.text import vocabularies

    if not self.vocabulary:
      return None
    return vocabularies.load(os.fspath(self.vocabulary))

  @functools.cached_property
  def task(self):
    """The task, with the vocabulary in use; None where there are files."""
    from speccascade.tasks import tasks

    name = self.mixture_or_task_name
    return tasks.get(name, self._vocabulary_of_path) if name else None

  @property
  def name(self) -> str:
    """The task's name, or "files"."""
    return self.task.name if self.task else "files"

  @functools.cached_property
  def prompting(self) -> Prompting:
    """How texts become tokens, with the vocabulary in use."""
    vocabulary = self._vocabulary_of_path
    if self.task:
      vocabulary = self.task.output_features["targets"].vocabulary
    return Prompting(vocabulary, self.prompt, self.chat_variables)

  @property
  def identity(self) -> dict[str, str] | None:
    """{"path", "sha256"} of the vocabulary in use; None if it has no file."""
    return prompting.identity(self.prompting.vocabulary)

  @property
  def shapes(self) -> dict[str, Any]:
    """The arguments of `train_batches` and `eval_batches` on shapes."""
    return {
      "batch_size": self.batch_size,
      "lengths": None if self.buckets else dict(self.task_feature_lengths),
      "buckets": self.buckets,
      "prompted": self.prompting.prompted,
    }

  def read(self, split: str, num: int | None, run: TrainingRun):
    """Returns the tokens of a split's examples, a `TokenArrays`.

    Args:
      split: the split's name.
      num: how many examples are read, the first ones; None reads all.
      run: has the seed, and says whether to show a progress bar.
    """
    from speccascade.tasks import reading

    lengths = dict(self.task_feature_lengths)
    if self.task and self.prompting.format == "source":
      return reading.from_task(
        self.task,
        split,
        lengths,
        num=num,
        use_cached=self.use_cached,
        seed=run.seed,
        progress=run.progress,
      )
    if self.task:
      examples = reading.completions(self.task, split)
    else:
      examples = prompting.read_files(self.files, split)
    examples = itertools.islice(examples, num)
    return prompting.tokenize(examples, self.prompting, lengths)

  def fingerprint(self, split: str) -> str:
    """Returns a text that differs where a split or its prompts differ.

    Caches have it in their names, so that a change of data is not overlooked.
    """
    from speccascade.tasks import reading

    if self.task:
      source = reading.fingerprint(self.task, split)
    else:
      source = str(text_files.stamp(self.files[split]))
    return f"{source} {self.prompting.format} {dict(self.chat_variables)}"

  def training_tokens(self, run: TrainingRun):
    """Returns the training split's tokens, a `TokenArrays`.

    They come from the token cache where it is set. A cache file's name holds a
    digest of all that the tokens depend on, so a file that is there need not be
    compared with the data.

    Args:
      run: has the seed, and says whether to show a progress bar.
    """
    from speccascade.text.arrays import TokenArrays

    if self.token_cache_dir is None:
      return self.read("train", self.num_examples, run)
    key = [
      self.name,
      self.fingerprint("train"),
      dict(self.task_feature_lengths),
      self.num_examples,
      run.seed,
      self.identity,
    ]
    text = json.dumps(key, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder = pathlib.Path(self.token_cache_dir).expanduser()
    path = folder / f"{self.name}-{digest[:16]}.npz"
    if not path.is_file():
      self.read("train", self.num_examples, run).save(path)
    # The tokens are read back even after they were written: a first start then
    # trains on the arrays that a next start will read.
    return TokenArrays.load(path)
