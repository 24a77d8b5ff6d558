"""Reads right outputs with a pair of models, and fits rules to what they said.

This shares nothing with `training/finetune.py`: it takes a pair and not a
model, reads a split once, and fits a few hundred numbers in seconds, without
steps to save.
"""

from collections.abc import Callable
import dataclasses
import json
import pathlib
from typing import NamedTuple

import numpy as np

from speccascade.checkpoints import rule_files
from speccascade.generate.batches.sources import InputError
from speccascade.generate.pair.pair_checks import PairError
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.run import Run
from speccascade.runtime import files, folders
from speccascade.settings import fields
from speccascade.study.rows.run_folder import RunFolder
from speccascade.tasks.inputs import Inputs
from speccascade.training import rule_fitting, token_rows
from speccascade.training.rule_fitting import Fitting

FILE_NAME = "rule.npz"
LOSSES = "losses.json"


@fields.checked
@dataclasses.dataclass(frozen=True)
class Splits:
  """The splits that a rule is fitted to and tuned on.

  Attributes:
    train: the split whose rows are fitted.
    num_train: how many of its first examples are read; None reads all.
    validation: the split that says when to stop.
    num_validation: how many of its first examples are read; None reads all.
  """

  train: str = "train"
  num_train: fields.Positive | None = 5000
  validation: str = "validation"
  num_validation: fields.Positive | None = None

  def __post_init__(self):
    if self.train == self.validation:
      raise ValueError(
        f"TRAIN_SPLIT and VALIDATION_SPLIT are both {self.train!r}; a rule that"
        " is tuned on what it was fitted to looks better than it is: name two"
        " splits"
      )


class FittedRule(NamedTuple):
  """What a run leaves.

  Attributes:
    path: of the file of the parameters.
    num_rows: the number of right tokens of each split, by its name.
    losses: on the validation split, see `rule_fitting.losses`.
  """

  path: pathlib.Path
  num_rows: dict[str, int]
  losses: dict[str, dict[str, float]]


def learn(
  *,
  pair: PairSpec,
  inputs: Inputs,
  run: Run,
  splits: Splits = Splits(),
  fitting: Fitting = Fitting(),
  on_start: Callable[[pathlib.Path], object] = lambda folder: None,
) -> FittedRule:
  """Fits the parameters of all learned rules to a task, and writes them.

  Args:
    pair: a drafter and a verifier.
    inputs: the task; its own split and number of examples are not used.
    run: OUTPUT_DIR, the most tokens of an output, and the batch size.
    splits: what is read.
    fitting: how the networks are fitted.
    on_start: called with OUTPUT_DIR once all settings are checked.

  Raises:
    ValueError: a setting, a model or an input does not fit.
  """
  if inputs.input_file:
    raise InputError(
      "a rule is fitted to one split and tuned on another, and INPUT_FILE has"
      " none; register the files as a task (configs/data/text_files.gin), and"
      " set MIXTURE_OR_TASK_NAME"
    )
  with folders.sole_writer(run.folder):
    sources = {
      split: dataclasses.replace(inputs, split=split, num_examples=num).read(
        pair.vocabulary_path
      )
      for split, num in (
        (splits.train, splits.num_train),
        (splits.validation, splits.num_validation),
      )
    }
    models = pair.load(sources[splits.train].vocabulary)
    if len(models.drafters) != 1:
      raise PairError(
        f"a rule is fitted to one drafter, and {len(models.drafters)} are"
        " given; set DRAFTER_CHECKPOINT to one of them"
      )
    about = {
      "drafter": models.drafter_name,
      "verifier": models.verifier_name,
      "task": inputs.mixture_or_task_name,
      "max_decode_len": run.max_decode_len,
      "inputs_sha256": {
        split: each.fingerprint for split, each in sources.items()
      },
      "fitting": dataclasses.asdict(fitting),
    }
    folder = RunFolder(run.folder, about, FILE_NAME)
    folder.check()
    folder.open()
    on_start(run.folder)
    rows = {
      split: token_rows.read(
        models,
        each,
        run.folder / "rows" / split.replace("/", "_"),
        max_len=run.max_decode_len,
        batch_size=run.batch_size,
        progress=run.progress,
      )
      for split, each in sources.items()
    }
    held_out = rows[splits.validation]
    parameters = rule_fitting.fit(rows[splits.train], held_out, fitting)
    losses = rule_fitting.losses(parameters, held_out, fitting)
    path = run.folder / FILE_NAME
    rule_files.write(path, parameters, about)
    files.write_whole(run.folder / LOSSES, json.dumps(losses, indent=2) + "\n")
  num_rows = {split: len(np.asarray(x.q_gold)) for split, x in rows.items()}
  return FittedRule(path, num_rows, losses)


def describe(fitted: FittedRule) -> str:
  """Returns the losses of a fitted rule, and where its parameters are."""
  counts = [f"{num:,} of {split}" for split, num in fitted.num_rows.items()]
  lines = [f"right tokens: {', '.join(counts)}; on the last, in nats a token:"]
  for what, variants in fitted.losses.items():
    values = [f"{name} {value:.4f}" for name, value in variants.items()]
    lines.append(f"  {what}: {', '.join(values)}")
  lines.append(f"--gin.RULE_PARAMETERS='\"{fitted.path}\"'")
  return "\n".join(lines)
