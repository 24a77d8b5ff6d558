"""Writes a checkpoint in another layout.

  python -m speccascade.checkpoints.convert --source=flan-t5-small/ \\
    --destination=converted --format=t5x

makes converted/checkpoint_<step>. A destination in Hugging Face's format is the
directory itself. The source is anything that
`speccascade.checkpoints.load` reads; Adafactor's state goes along where there
is any. The tokenizer of a decoder-only model is laid beside its arrays, from a
Hugging Face directory or out of a GGUF file.
"""

from collections.abc import Sequence
import os
import sys
from typing import Annotated, Literal

from absl import logging

from speccascade.checkpoints import (
  gguf_file,
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
from speccascade.runtime import folders
from speccascade.settings import fields

FORMATS = ("t5x", "speccascade", "hugging_face")
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
) -> str:
  """Writes `source` under `destination` and returns the directory made.

  Args:
    source: what `restore.load` reads.
    destination: the run directory that gets a `checkpoint_<step>`.
    format: "t5x" (native), "speccascade" (Orbax), or "hugging_face", which has
      no steps and makes `destination` itself.
    config: the architecture, checked against the source; None takes its own,
      or what its arrays say.
    step: the step to write; the source's own by default, else 0.
    dtype: the parameters' dtype, float32 or bfloat16; ours is float32.
    vocabulary: SentencePiece model; ours stores its identity, Hugging Face's
      directory gets a copy.
    parameters_only: leave the optimizer's state out, of whatever kind it is.

  Raises:
    CheckpointError: the source cannot be read, or a setting does not fit it.
    ValueError: a setting is wrong, or the destination cannot be written to.
  """
  if format == "t5x" and vocabulary is not None:
    raise CheckpointError("T5X's format says no vocabulary: leave it out")
  if format == "speccascade" and dtype != "float32":
    raise CheckpointError("ours is float32: dtype is a choice of the others")
  folder, name = (destination := storage.Directory(destination).url), ""
  if format == "hugging_face":
    folder, name = os.path.split(destination)
  with folders.sole_writer(folder, "the folder of destination", file=name):
    read = restore.load(source, config=config, optimizer=not parameters_only)
    step = next(s for s in (step, read.step, 0) if s is not None)
    path = os.path.join(destination, f"checkpoint_{step}")
    params, slots = read.params, read.optimizer
    if format == "t5x":
      if isinstance(read.config, LlamaConfig):
        raise CheckpointError(
          f"{read.path} is no T5: T5X's format is not for it"
        )
      t5x_native.save(path, params, step=step, optimizer=slots, dtype=dtype)
      return path
    config, identity = read.require_config(), read.vocabulary
    if vocabulary is not None:
      _check_vocabulary(vocabulary, config)
      identity = orbax_io.vocabulary_identity(vocabulary)
    beside = _tokenizer(read)
    if format == "hugging_face":
      how = {"dtype": dtype, "vocabulary": vocabulary, "beside": beside}
      hugging_face.save(destination, params, config, **how)
      return destination
    said = {"vocabulary": identity, "extra": read.extra}
    orbax_io.save(path, params, config, step=step, slots=slots, **said)
    for name, content in beside.items():
      storage.Directory(path).write(name, content.encode())
    return path


def _tokenizer(checkpoint: restore.Checkpoint) -> dict[str, str]:
  """Returns a decoder-only model's tokenizer, as files by their names."""
  if not isinstance(checkpoint.config, LlamaConfig):
    return {}
  directory = storage.Directory(checkpoint.path)
  if checkpoint.layout != "gguf":
    return hugging_face.read_tokenizer_files(
      restore.vocabulary_directory(checkpoint.path) or directory
    )
  try:
    return gguf_file.tokenizer(directory)
  except CheckpointError as error:  # the weights are what was asked for
    logging.warning("no tokenizer is written: %s", error)
    return {}


def _check_vocabulary(path: fields.Path, config: Config):
  """Raises CheckpointError where a file is no vocabulary of a model."""
  import sentencepiece

  model = sentencepiece.SentencePieceProcessor()
  proto = storage.read_vocabulary(path)
  try:
    model.LoadFromSerializedProto(proto)
  except RuntimeError as error:
    raise CheckpointError(f"{path} is no SentencePiece model") from error
  if len(model) > config.vocab_size:
    raise CheckpointError(
      f"{path} has {len(model)} pieces, the model {config.vocab_size} rows:"
      " give the vocabulary that it was trained with"
    )


def config_from_gin(path: str) -> Config:
  """Returns the MODEL of a gin file such as configs/models/t5_1_1_small.gin.

  For command lines without a gin config of their own: it is empty afterwards.
  """
  import gin

  if not os.path.isfile(path):  # gin would look into packages too, and trip
    raise CheckpointNotFoundError(f"there is no gin file {path}")
  try:
    gin.parse_config_file(path)
    return gin.query_parameter("MODEL/macro.value").scoped_configurable_fn()
  except Exception as error:  # whatever a file of a user's may call
    reason = str(error).strip().split("\n", 1)[0]
    raise CheckpointError(
      f"{path} defines no MODEL ({reason}): want a file like "
      "configs/models/t5_1_1_small.gin"
    ) from error
  finally:
    gin.clear_config()


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  from speccascade import cli  # which asks for gin

  def write(model_gin_file: str | None, **flags):
    config = config_from_gin(model_gin_file) if model_gin_file else None
    print(f"wrote {convert(**flags, config=config)}")

  parser = cli.Parser("checkpoints.convert", __doc__)
  parser.add_argument(
    "--source",
    required=True,
    help="step, run or Hugging Face directory, local or gs://",
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
    " transformers",
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
    "--parameters_only",
    action="store_true",
    help="leave the optimizer's state out, as of Adafactor with momentum or"
    " AdamW, which are not converted",
  )
  return parser.run(write, argv)


if __name__ == "__main__":
  sys.exit(main())
