"""Writes the card of a drafter: what it learned from, and how well it drafts.

  python -m speccascade.report.card --checkpoint=out/drafter \\
    --results out/sweep/rows.jsonl out/advice/advice.json --licence=CC-BY-4.0

Reads the checkpoint's settings and the configuration of its run, and the rows
of decodes (metrics.json), of sweeps (rows.jsonl) and of advice (advice.json)
that have this drafter. Writes card.md and card.json into the folder of the run.
The card of the package's own pair has the same shape.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import json
import pathlib
import re
import sys
from typing import Any

from speccascade import cli
from speccascade.runtime import files
from speccascade.study.report import markdown, templates

NAMES = ("card.md", "card.json")
# The macros of a run's configuration that a card names, in their order.
_MACROS = (
  "TRAIN_FILES",
  "MIXTURE_OR_TASK_NAME",
  "VOCABULARY",
  "TEACHER_CHECKPOINT",
  "LOSS",
  "TEACHER_SHARE",
  "JSD_BETA",
  "ACCEPTANCE_METHOD",
  "ACCEPTANCE_ALPHA",
  "ACCEPTANCE_RULE_PARAMETERS",
  "STUDENT_TEXT",
  "TEACHER_TEXT",
  "EARLIER_DRAFTERS",
  "INITIAL_CHECKPOINT_PATH",
  "TRAIN_STEPS",
  "BATCH_SIZE",
  "LABEL_SMOOTHING",
  "RANDOM_SEED",
)
_OWNERS = {
  "GeneralJSD": ("JSD_BETA",),
  "RejectionLoss": (
    "ACCEPTANCE_METHOD",
    "ACCEPTANCE_ALPHA",
    "ACCEPTANCE_RULE_PARAMETERS",
  ),
}
# What a card says of a measured point: its name in card.json, its title.
_COLUMNS = {
  "task": "task",
  "split": "split",
  "method": "method",
  "alpha": "alpha",
  "gamma": "gamma",
  "temperature": "T",
  "verifier": "verifier",
  "num_examples": "examples",
  "acceptance": "acceptance",
  "tokens_per_block": "tokens a block",
  "cost": "cost of a token",
  "drafter": "as",
  "dtype": "dtype",
}


# What a drafter is for: a model, or one that writes nothing alone.
_ALONE = (
  "Drafts tokens for a verifier that has the same vocabulary. It is not meant"
  " to be used alone."
)
_FOR_ONE_VERIFIER = (
  "Drafts tokens for the verifier that it was trained with, and writes nothing"
  " without it."
)


@dataclasses.dataclass(frozen=True)
class ModelCard:
  """What is known of a model, or of a pair of models.

  Attributes:
    title: the heading.
    text: what the model is for, in sentences.
    facts: name -> value, one line each.
    licence: the licence of the parameters.
    points: how the model did: for each point the values of its columns, which
      are None where a file does not say them, its machine with versions and
      compilers' flags, and its file as "source".
    hashes: file -> (bytes, SHA-256).
    closing: a last sentence before the table of files, or "".
  """

  title: str
  text: str
  facts: Mapping[str, Any]
  licence: str
  points: Sequence[Mapping[str, Any]] = ()
  hashes: Mapping[str, tuple[int, str]] = dataclasses.field(
    default_factory=dict
  )
  closing: str = ""

  def to_markdown(self) -> str:
    """Returns the card as Markdown."""
    return templates.load("study/report/card.md").render(
      card=self,
      titles=[*_COLUMNS.values()],
      points=[[_cell(x[name]) for name in _COLUMNS] for x in self.points],
      files=[
        [markdown.cell_text(name), str(size), digest]
        for name, (size, digest) in self.hashes.items()
      ],
    )

  def to_json(self) -> str:
    """Returns the card as JSON, with all that the Markdown says."""
    values = dataclasses.asdict(self)
    values["hashes"] = {
      name: {"bytes": size, "sha256": digest}
      for name, (size, digest) in self.hashes.items()
    }
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

  def write(self, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes card.md and card.json into a folder, and returns their paths."""
    texts = (self.to_markdown(), self.to_json())
    paths = [folder / name for name in NAMES]
    for path, text in zip(paths, texts):
      files.write_whole(path, text)
    return paths


def _cell(value) -> str:
  """Returns the cell of a value; it is empty where the value is not known."""
  if value is None:
    return ""
  if isinstance(value, float):
    return f"{value:.3g}"
  return markdown.cell_text(str(value))


def hashes_of(
  folder: pathlib.Path, parts: Sequence[str] = (".",)
) -> dict[str, tuple[int, str]]:
  """Returns {file: (bytes, SHA-256)} of the files of folders.

  Args:
    folder: the files' names begin below it.
    parts: folders in it, in the order of the result; all of their files count,
      in the order of their names.
  """
  hashes = {}
  for part in parts:
    for path in sorted((folder / part).rglob("*")):
      if path.is_file():
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        name = path.relative_to(folder).as_posix()
        hashes[name] = (len(content), digest)
  return hashes


def read_points(
  paths: Sequence[pathlib.Path], drafter: str
) -> list[dict[str, Any]]:
  """Returns the points of a drafter in files of rows and of advice.

  Args:
    paths: files metrics.json, rows.jsonl (or .gz) and advice.json.
    drafter: the drafter's name in them, say "small-5000". Points of it with a
      draft vocabulary, "small-5000 cut to 8192", are among them.

  Raises:
    ValueError: a file is none of these, or has no point of the drafter.
  """
  from speccascade.study.rows import results

  points = []
  for path in paths:
    if path.name.startswith("advice"):
      there, names = _advised(path, drafter)
    else:
      rows = results.read_rows(path)
      names = {row.settings.drafter for row in rows}
      there = [
        _measured(row, str(path))
        for row in rows
        if _is_of(row.settings.drafter, drafter) and row.counts.examined
      ]
    if not there:
      raise ValueError(
        f"{path} has no drafts of {drafter}; it has the drafters"
        f" {', '.join(sorted(filter(None, names))) or 'none'}"
      )
    points += there
  return points


def _measured(row, source: str) -> dict[str, Any]:
  """Returns the point of a result row."""
  names = ("task", "split", "method", "alpha", "gamma", "temperature")
  names += ("drafter", "dtype")
  return {name: getattr(row.settings, name) for name in names} | {
    "verifier": row.settings.verifier,
    "num_examples": row.counts.num_examples,
    "acceptance": row.counts.accepted / row.counts.examined,
    "tokens_per_block": row.efficiency.get("mean_acceptance_length"),
    "cost": row.costs and row.costs.c,
    "machine": _machine(row.environment),
    "source": source,
  }


def _is_of(name: str, drafter: str) -> bool:
  """Whether a point's drafter is the card's, whole or with a cut head."""
  return name == drafter or name.startswith(f"{drafter} cut to ")


def kind_of(config) -> str:
  """Returns what a drafter of an architecture is, with what it reads."""
  from speccascade.decoding.programs import draft_models
  from speccascade.models import (
    HeadsConfig,
    StateReaderConfig,
    architectures,
  )
  from speccascade.models.taught_exit import ExitConfig

  kind = architectures.kind_of(config)
  name = draft_models.DRAFT_MODELS[kind].name
  if isinstance(config, StateReaderConfig):
    states = "the verifier's last state"
    if config.fused:
      states = "states of several layers of the verifier"
    name += f" that reads {states}"
    if config.draft_vocab_size:
      name += f", with a head of {config.draft_vocab_size:,} tokens"
  elif isinstance(config, ExitConfig):
    name += (
      f" after {config.num_layers} of the verifier's layers, with"
      f" {config.num_new_layers} of its own"
    )
  elif isinstance(config, HeadsConfig):
    name += f" ({config.kind}, {config.num_heads})"
  return name


def _machine(environment: Mapping[str, Any]) -> str:
  """Returns the device, the versions and the flags of a row, in words."""
  from speccascade.study.rows import results

  device = environment.get("device") or "a device that is not named"
  return f"{device}, {results.describe_versions(environment)}".rstrip(", ")


def _advised(
  path: pathlib.Path, drafter: str
) -> tuple[list[dict[str, Any]], set[str]]:
  """Returns the points of a drafter in advice, and all drafters of it."""
  try:
    advice = json.loads(path.read_text(encoding="utf-8"))
    offers, about = advice["offers"], advice["about"]
    points = [
      {
        "task": advice["task"],
        "split": advice["split"],
        "method": offer["method"],
        "alpha": offer["alpha"],
        "gamma": offer["gamma"],
        "temperature": about.get("temperature"),
        "verifier": about.get("verifier", ""),
        "num_examples": advice["num_examples"],
        # Advice has no counts, but the chance that a first draft is accepted.
        "acceptance": next(
          iter(offer["expected"]["acceptance_by_position"]), None
        ),
        "tokens_per_block": offer["expected"]["tokens_per_block"],
        "cost": advice["costs"].get(offer["drafter"], {}).get("c"),
        "drafter": offer["drafter"],
        "dtype": None,
        "machine": None,
        "source": str(path),
      }
      for offer in offers
      if _is_of(offer["drafter"], drafter)
    ]
    return points, {offer["drafter"] for offer in offers}
  except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
    raise ValueError(
      f"{path} is not advice of speccascade.advise: {error!r}"
    ) from error


def macros_in(text: str) -> dict[str, str]:
  """Returns the macros of a resolved configuration that a card names.

  Args:
    text: the content of a run's config.gin.

  >>> macros_in("LOSS = 'tvd'\\nEVAL_PERIOD = 5\\nTRAIN_STEPS = 9\\n")
  {'LOSS': "'tvd'", 'TRAIN_STEPS': '9'}
  """
  # A long value continues in the lines below, which are indented.
  lines = re.findall(r"^([A-Z_]+) = (.*(?:\n[ \t]+.*)*)", text, re.MULTILINE)
  values = {
    name: " ".join(value.replace("\\", "").split()) for name, value in lines
  }
  # Settings of a loss are named where the run has that loss.
  loss = values.get("LOSS", "")
  for owner, settings in _OWNERS.items():
    if owner not in loss:
      values = {k: v for k, v in values.items() if k not in settings}
  names = [name for name in _MACROS if values.get(name, "None") != "None"]
  return {name: values[name] for name in names}


def of_checkpoint(
  path: str, results: Sequence[pathlib.Path], licence: str
) -> tuple[ModelCard, pathlib.Path]:
  """Returns the card of a drafter, and the folder that it belongs to.

  Args:
    path: the folder of a run, or of one of its steps, on a local disk.
    results: see `read_points`.
    licence: the licence of the parameters.

  Raises:
    CheckpointError: the checkpoint cannot be read.
    ValueError: a file of results does not fit.
  """
  from speccascade import checkpoints
  from speccascade.checkpoints import hub_names
  from speccascade.models import architectures, parameters

  checkpoint = checkpoints.load(path, lazy=True)
  if name := hub_names.name_of(checkpoint.path):
    raise ValueError(
      f"{name} is in the cache of Hugging Face's hub, where no card is written:"
      " give the folder of a run, or a copy that `hf download` makes"
    )
  config = checkpoint.require_config()
  place = pathlib.Path(checkpoint.path)
  is_step = place.name.startswith("checkpoint_")
  folder = place.parent if is_step else place
  name = folder.name
  if checkpoint.step is not None:
    name = f"{name}-{checkpoint.step}"
  facts = {
    "Draft model": kind_of(config),
    "Architecture": type(config).__name__,
    "Parameters": f"{parameters.num_parameters(config):,}",
    "Steps": checkpoint.step,
  }
  if checkpoint.vocabulary:
    facts["SHA-256 of the vocabulary"] = checkpoint.vocabulary["sha256"]
  if (folder / "config.gin").is_file():
    facts |= macros_in((folder / "config.gin").read_text(encoding="utf-8"))
  # What the checkpoint itself says comes last: it holds values, not references.
  facts |= checkpoint.extra.get("settings") or {}
  points = read_points(results, name)
  if machines := dict.fromkeys(filter(None, (x["machine"] for x in points))):
    facts["Measured on"] = "; ".join(machines)
  card = ModelCard(
    title=f"The drafter {name}",
    text=_ALONE if architectures.drafts_alone(config) else _FOR_ONE_VERIFIER,
    facts=facts,
    licence=licence,
    points=points,
    hashes=hashes_of(folder, [place.name] if is_step else ["."]),
  )
  return card, folder


def main(argv: list[str] | None = None) -> int:
  """Writes the card; returns the exit code."""
  parser = cli.Parser("report.card", __doc__)
  parser.add_argument(
    "--checkpoint", required=True, help="folder of the drafter's run"
  )
  parser.add_argument(
    "--results",
    nargs="*",
    type=cli.path,
    default=[],
    help="metrics.json, rows.jsonl and advice.json files that have the drafter",
  )
  parser.add_argument(
    "--licence", default="not stated", help="of the parameters (%(default)s)"
  )
  return parser.run(run, argv)


def run(checkpoint: str, results: list[pathlib.Path], licence: str) -> None:
  """Writes the card of a drafter, and prints where it is."""
  card, folder = of_checkpoint(checkpoint, results, licence)
  for path in card.write(folder):
    print(f"card: {path.absolute()}")


if __name__ == "__main__":
  sys.exit(main())
