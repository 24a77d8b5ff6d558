"""Writes a checkpoint in another layout.

  python -m speccascade.checkpoints.convert --source=flan-t5-small/ \\
    --destination=converted --format=t5x

makes converted/checkpoint_<step>. In Hugging Face's format the destination is
the directory itself. The source is anything that
`speccascade.checkpoints.load` reads. The state of Adafactor is converted too,
if the source has one. The tokenizer of a decoder-only model, from a Hugging
Face directory or out of a GGUF file, is written next to its arrays.
"""

from collections.abc import Sequence
import os
import sys
from typing import Annotated, Any, Literal

from absl import logging

from speccascade.checkpoints import (
  eagle_files,
  gguf_file,
  hub,
  hub_names,
  hugging_face,
  orbax_io,
  restore,
  storage,
  t5x_native,
)
from speccascade.checkpoints.errors import (
  CheckpointError,
  CheckpointNotFoundError,
)
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import Config
from speccascade.models.reader_config import StateReaderConfig
from speccascade.runtime import command_line, folders
from speccascade.settings import fields

FORMATS = ("t5x", "speccascade", "hugging_face", *eagle_files.FORMATS)
DTYPES = ("float32", "bfloat16")


@fields.checked
def convert(
  source: fields.Path,
  destination: Annotated[fields.Path, fields.NOT_EMPTY],
  *,
  format: Literal[FORMATS],
  config: Config | None = None,
  step: fields.NonNegative | None = None,
  dtype: Literal[DTYPES] = "float32",
  vocabulary: fields.Path | None = None,
  parameters_only: bool = False,
  verifier: str | None = None,
) -> str:
  """Writes a checkpoint in another layout, and returns its directory.

  Args:
    source: a path that `restore.load` reads.
    destination: the run directory that gets a `checkpoint_<step>`.
    format: "t5x" (T5X's native layout), "speccascade" (Orbax), or one that has
      no steps and writes `destination` itself: "hugging_face"; or for state
      readers "eagle" or "speculators".
    config: the architecture, checked against the source. None takes the
      source's own, or the one that its arrays have.
    step: the step to write. None takes the source's own, or 0.
    dtype: dtype of the parameters, float32 or bfloat16. The format
      "speccascade" is float32.
    vocabulary: path of a SentencePiece model, or the name of a model on
      Hugging Face's hub that has one. The format "speccascade" stores its
      identity, and "hugging_face" a copy.
    parameters_only: whether to leave out the state of the optimizer, of
      whatever kind it is.
    verifier: with the format "speculators", a reader's verifier: its path, or
      its name on Hugging Face's hub.

  Raises:
    CheckpointError: the source cannot be read, or a setting does not fit it.
    ValueError: a setting is wrong, or the destination cannot be written to.
  """
  if format == "t5x" and vocabulary is not None:
    raise CheckpointError("T5X's format says no vocabulary: leave it out")
  if format == "speccascade" and dtype != "float32":
    raise CheckpointError("ours is float32: dtype is a choice of the others")
  if hub_names.parse(vocabulary):
    folder = hub.local(vocabulary, weights=False)
    vocabulary = f"{folder}/{storage.SENTENCE_PIECE}"
  if verifier is not None and format != "speculators":
    raise CheckpointError("verifier is for format 'speculators': leave it out")
  has_no_steps = format in ("hugging_face", *eagle_files.FORMATS)
  destination = storage.Directory(destination).url
  folder, name = destination, ""
  if has_no_steps:
    # The directory is renamed to its destination when it is complete. So its
    # name in its parent is locked.
    folder, name = os.path.split(destination)
  with folders.sole_writer(folder, "the folder of destination", file=name):
    checkpoint = restore.load(
      source, config=config, optimizer=not parameters_only
    )
    if step is None:
      step = checkpoint.step or 0
    path = os.path.join(destination, f"checkpoint_{step}")
    params, slots = checkpoint.params, checkpoint.optimizer
    if format == "t5x":
      if isinstance(checkpoint.config, LlamaConfig):
        raise CheckpointError(
          f"{checkpoint.path} is not a T5: T5X's format is not for it"
        )
      t5x_native.save(path, params, step=step, optimizer=slots, dtype=dtype)
      return path
    config, identity = checkpoint.require_config(), checkpoint.vocabulary
    if format in eagle_files.FORMATS:
      _check_reader(config, format, vocabulary)
      eagle_files.save(
        destination,
        params,
        config,
        format=format,
        dtype=dtype,
        verifier=verifier,
      )
      return destination
    if vocabulary is not None:
      _check_vocabulary(vocabulary, config)
      identity = orbax_io.vocabulary_identity(vocabulary)
    tokenizer = _tokenizer(checkpoint)
    if format == "hugging_face":
      hugging_face.save(
        destination,
        params,
        config,
        dtype=dtype,
        vocabulary=vocabulary,
        beside=tokenizer,
      )
      return destination
    orbax_io.save(
      path,
      params,
      config,
      step=step,
      slots=slots,
      vocabulary=identity,
      extra=checkpoint.extra,
    )
    # Orbax has renamed the directory, so that these files come after it. The
    # weights can be read without them.
    for name, content in tokenizer.items():
      storage.Directory(path).write(name, content.encode())
    return path


def _check_reader(config: Config, format: str, vocabulary: Any) -> None:
  """Raises CheckpointError where a format of drafters is not for a model."""
  if not isinstance(config, StateReaderConfig):
    raise CheckpointError(
      f"format {format!r} is for state readers, and the source is of a"
      f" {type(config).__name__}: take format 'hugging_face' or 'speccascade'"
    )
  if vocabulary is not None:
    raise CheckpointError(
      f"format {format!r} has no vocabulary, which is the verifier's: leave it"
      " out"
    )


def _tokenizer(checkpoint: restore.Checkpoint) -> dict[str, str]:
  """Returns {name: text} of a decoder-only model's tokenizer; {} of a T5."""
  # The tokenizer of a GGUF file may be of a kind that is not translated. A
  # warning then says so, and {} is returned.
  if not isinstance(checkpoint.config, LlamaConfig):
    return {}
  directory = storage.Directory(checkpoint.path)
  if checkpoint.layout != "gguf":
    return hugging_face.read_tokenizer_files(
      restore.vocabulary_directory(checkpoint.path) or directory
    )
  try:
    return gguf_file.tokenizer(directory)
  except CheckpointError as error:
    # The weights can be converted all the same.
    logging.warning("no tokenizer is written: %s", error)
    return {}


def _check_vocabulary(path: fields.Path, config: Config):
  """Checks that a file is a vocabulary that a model may have."""
  import sentencepiece

  model = sentencepiece.SentencePieceProcessor()
  proto = storage.read_vocabulary(path)
  try:
    model.LoadFromSerializedProto(proto)
  except RuntimeError as error:
    raise CheckpointError(f"{path} is not a SentencePiece model") from error
  if len(model) > config.vocab_size:
    raise CheckpointError(
      f"{path} has {len(model)} pieces, the model {config.vocab_size} rows:"
      " give the vocabulary that it was trained with"
    )


def config_from_gin(path: str) -> Config:
  """Returns the MODEL of a gin file such as configs/models/t5_1_1_small.gin.

  This function is for command lines without a gin config of their own: gin's
  config is empty afterwards.

  Args:
    path: path of the file.

  Raises:
    CheckpointError: there is no such file, or it defines no MODEL.
  """
  import gin

  # gin would look for the file in Python packages too, and fail there.
  if not os.path.isfile(path):
    raise CheckpointNotFoundError(f"there is no gin file {path}")
  try:
    gin.parse_config_file(path)
    return gin.query_parameter("MODEL/macro.value").scoped_configurable_fn()
  except Exception as error:  # A user's file may call any function.
    reason = str(error).strip().split("\n", 1)[0]
    raise CheckpointError(
      f"{path} defines no MODEL ({reason}): want a file like "
      "configs/models/t5_1_1_small.gin"
    ) from error
  finally:
    gin.clear_config()


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line, and returns the exit code."""

  def write(model_gin_file: str | None, **flags):
    config = config_from_gin(model_gin_file) if model_gin_file else None
    print(f"wrote {convert(**flags, config=config)}")

  parser = command_line.Parser("checkpoints.convert", __doc__)
  parser.add_argument(
    "--source",
    required=True,
    help="step, run or Hugging Face directory, local or gs://, or ORG/NAME of"
    " a model on Hugging Face's hub",
  )
  parser.add_argument(
    "--destination",
    required=True,
    help="run directory that gets checkpoint_<step>; Hugging Face's itself",
  )
  parser.add_argument(
    "--format",
    required=True,
    choices=FORMATS,
    help="T5X's native layout, ours (Orbax, which T5X reads too), or that of"
    " transformers; for state readers EAGLE's or that of vLLM's speculators",
  )
  parser.add_argument(
    "--model_gin_file",
    help="gin file of the model, to check it, or for a source that does not say"
    " its architecture, where its MLP is not that of T5 1.0 or 1.1",
  )
  parser.add_argument("--step", type=int, help="default: the source's, else 0")
  parser.add_argument(
    "--dtype",
    default="float32",
    choices=DTYPES,
    help="of the parameters, but for --format=speccascade (default: float32)",
  )
  parser.add_argument(
    "--vocabulary", help="SentencePiece model, but for --format=t5x"
  )
  parser.add_argument(
    "--verifier",
    help="with --format=speculators, the path of the reader's verifier, or its"
    " name on Hugging Face's hub",
  )
  parser.add_argument(
    "--parameters_only",
    action="store_true",
    help="leave the optimizer's state out, as of Adafactor with momentum or"
    " AdamW, which are not converted",
  )
  return parser.run(write, argv)


if __name__ == "__main__":
  sys.exit(main())
