"""Result rows: the schema of one measured point, and the file of all points.

The file has one JSON object a line. A row is appended with one write, which
reaches the disk before `append` returns. So a kill loses at most the row that
is being written, and the torn line is dropped when the file is opened again.
"""

from collections.abc import Callable, Iterator
import dataclasses
import json
import os
import pathlib
from typing import Annotated, Any, NotRequired, TypedDict

from speccascade.generate.batches.decode_counts import Counts
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point_settings import PointSettings
from speccascade.runtime import files, processes
from speccascade.settings import fields
from speccascade.study.evaluation.lengths import RelativeLength
from speccascade.study.evaluation.walltime import Latency

SCHEMA = 1
FILE_NAME = "rows.jsonl"
METRICS = "metrics.json"  # the row of a decode
PREDICTIONS = "predictions.jsonl"  # the records of a decode
# A row has some 10 kB, of which gzip makes 2; a record with a trace has more.
_ROWS = files.FileBounds(line=1 << 22, size=1 << 25, ratio=20)
RECORDS = files.FileBounds(line=1 << 23, size=1 << 26, ratio=50)

_Ratio = Annotated[float, fields.Bounds(0)]
# Fields of rows that the first rows lack.
_YOUNGER = ("sharpness", "seconds_per_answer", "lengths", "relative_length")
_YOUNGER += ("drafter_kind",)


def _is_short(text: str):
  """Raises ValueError where a string is too long for a label."""
  if len(text) > 1000:
    raise ValueError(f"has {len(text):,} characters, wanted 1,000 at most")


class Score(TypedDict):
  """A quality, with its 95% bootstrap interval and the resampled scores.

  A metric that reads answers has "unread", the percentage of outputs in which
  it found none.
  """

  value: float
  low: NotRequired[float | None]
  high: NotRequired[float | None]
  unread: NotRequired[float]
  replicates: NotRequired[list[float]]


class Environment(TypedDict):
  """The machine and the versions of a row; see `environment.environment`.

  "revisions" has "org/name@commit" of models of the hub, by role.
  """

  device: NotRequired[str | None]
  versions: NotRequired[dict[str, str | None]]
  flags: NotRequired[dict[str, str]]
  git_commit: NotRequired[str | None]
  revisions: NotRequired[dict[str, str]]


def describe_versions(environment: Environment) -> str:
  """Returns the versions and the compilers' flags of a row as a line.

  >>> describe_versions({"versions": {"jax": "1"}, "flags": {"F": "-a"}})
  'jax 1, F="-a"'
  """
  versions = environment.get("versions", {}).items()
  flags = environment.get("flags", {}).items()
  parts = [f"{name} {version}" for name, version in versions]
  return ", ".join([*parts, *(f'{name}="{text}"' for name, text in flags)])


class Agreement(TypedDict):
  """How many examples have the tokens of the greedy verifier.

  Examples that differ at a near tie of two choices are counted apart.
  """

  identical: fields.NonNegative
  near_ties: fields.NonNegative
  num_examples: fields.NonNegative


@dataclasses.dataclass(frozen=True)
class ResultRow:
  """One measured point; definitions in docs/definitions.md.

  Attributes:
    settings: what was run.
    label: the method's name in the paper.
    counts: counts, summed over examples and trials.
    efficiency: `decode_counts.summary(counts)`.
    quality: for each metric {"value", "low", "high"}, with a 95% bootstrap
      interval, and other entries of `quality.evaluate`; "replicates" are the
      resampled scores.
    latency: wall-clock time; None where nothing was timed.
    costs: c, q2 and v, measured in the same run, or None.
    predicted_speedup: the speed-up that counts and costs predict.
    measured_speedup: 1 / relative latency.
    agreement: how many examples have the tokens of the verifier at temperature
      0; None where the tokens were not compared.
    num_truncated: sources that were truncated.
    environment: device, versions, flags of compilers, git commit.
    num_parameters: parameters of the "drafter", of several together, and of the
      "verifier", as far as the numbers are known.
    log_probs: `efficiency.mean_log_probs`; None where nothing was recorded.
    sharpness: `efficiency.sharpness`; None where nothing was recorded.
    seconds_per_answer: the mean seconds of an answer that was timed alone; None
      where none was.
    lengths: the tokens of each example's answers, a mean over trials, by rising
      index; empty in rows of older versions.
    relative_length: `lengths` relative to those of the verifier alone at the
      same sampling; None where the verifier did not answer.
    drafter_kind: what the drafter is, "state reader" for example; "" where it
      is a language model of its own, and in rows of older versions.
  """

  settings: PointSettings
  label: Annotated[str, _is_short]
  counts: Counts
  efficiency: dict[str, Any]
  quality: dict[str, Score]
  latency: Latency | None = None
  costs: Costs | None = None
  predicted_speedup: _Ratio | None = None
  measured_speedup: _Ratio | None = None
  agreement: Agreement | None = None
  num_truncated: fields.NonNegative = 0
  environment: Environment = dataclasses.field(default_factory=dict)
  num_parameters: dict[str, fields.Count] = dataclasses.field(
    default_factory=dict
  )
  log_probs: dict[str, float | None] | None = None
  sharpness: dict[str, float | None] | None = None
  seconds_per_answer: _Ratio | None = None
  lengths: tuple[_Ratio, ...] = ()
  relative_length: RelativeLength | None = None
  drafter_kind: Annotated[str, _is_short] = ""

  def __post_init__(self):
    fields.freeze(self)

  @property
  def cell(self) -> str:
    """The cell of a table of SPEED-Bench, see `PointSettings.cell`."""
    return self.settings.cell

  @property
  def key(self) -> str:
    """A name of the point, see `PointSettings.key`."""
    return self.settings.key

  def to_json(self) -> str:
    """Returns the row as a line of JSON, without the line's end."""
    names = {"schema": SCHEMA, "key": self.key, "cell": self.cell}
    values = {**names, **dataclasses.asdict(self)}
    values["settings"] = self.settings.to_dict()
    values["counts"] = self.counts.to_dict()
    # Younger than the first rows, and left out where they say nothing.
    for name in _YOUNGER:
      if not values[name]:
        del values[name]
    if self.costs is not None and not self.costs.heads:
      del values["costs"]["heads"]
    if self.costs is not None and self.costs.loop_c is None:
      del values["costs"]["loop_c"]
    return json.dumps(values, ensure_ascii=False, allow_nan=False)

  @classmethod
  def from_json(cls, line: str) -> "ResultRow":
    """Returns the row of a line that `to_json` made.

    Raises:
      ValueError: not JSON, another schema, or a field that is unknown,
        missing or of another kind.
    """
    values = fields.of_json(line)
    if not isinstance(values, dict):
      raise ValueError(f"not a result row: {values!r:.60}")
    schema = values.pop("schema", None)
    if schema != SCHEMA:
      raise ValueError(
        f"the row has schema {schema!r:.60}; this reads {SCHEMA}"
      )
    for name in ("key", "cell"):  # they follow from the settings
      values.pop(name, None)
    return fields.build(cls, values)


class ResultFile:
  """Rows on disk, appended one by one; opening drops a torn last line.

  Where several processes run, the first of them reads and writes, and all have
  the rows.

  Attributes:
    path: the file.
    rows: all rows of the file.
  """

  def __init__(self, path: str | os.PathLike):
    """Opens `path`, which need not exist yet.

    Raises:
      ValueError: a whole line is not a result row (the message has the number
        of the line), or two rows are of one point.
    """
    self.path = pathlib.Path(path)
    self.rows = share_rows(self._read)
    self._keys = {row.key for row in self.rows}

  def _read(self) -> list[ResultRow]:
    if not self.path.exists():
      return []
    # A text after the last line end is torn: its write was killed.
    content = self.path.read_bytes()
    if (whole := content.rfind(b"\n") + 1) < len(content):
      os.truncate(self.path, whole)
    return read_rows(self.path)

  def __contains__(self, settings: PointSettings) -> bool:
    return settings.key in self._keys

  def append(self, row: ResultRow):
    """Adds a row, which is on the disk when this returns.

    Raises:
      ValueError: the file has a row of the point already.
    """
    if row.key in self._keys:
      raise ValueError(f"{self.path} has the point {row.key} already")
    [row] = share_rows(lambda: [row])
    if processes.is_first():
      self._write(row)
    self.rows.append(row)
    self._keys.add(row.key)

  def _write(self, row: ResultRow):
    self.path.parent.mkdir(parents=True, exist_ok=True)
    line = (row.to_json() + "\n").encode()
    with files.name_file_in_errors(self.path), self.path.open("ab") as file:
      file.write(line)
      file.flush()
      os.fsync(file.fileno())


def share_rows(rows: Callable[[], list[ResultRow]]) -> list[ResultRow]:
  """Returns in each process the rows that the first process makes.

  Args:
    rows: makes the rows; only the first process calls it.
  """
  if processes.count() == 1:
    return rows()
  lines = processes.agree(lambda: [row.to_json() for row in rows()])
  return [ResultRow.from_json(line) for line in lines]


def read_lines(
  path: str | os.PathLike, bounds: files.FileBounds = RECORDS
) -> Iterator[bytes]:
  """Yields the lines of a file, plain or .gz, without a torn last line.

  Args:
    path: path of the file.
    bounds: what the file may hold.

  Raises:
    ValueError: the file is not gzip data, or holds more than `bounds` allows.
  """
  with files.open_bytes(path, bounds) as file:
    for line in file:
      if line.endswith(b"\n"):
        yield line.removesuffix(b"\n")


def read_rows(path: str | os.PathLike) -> list[ResultRow]:
  """Returns the rows of a file, plain or .gz, without a torn last line.

  Raises:
    ValueError: a whole line is not a result row (the message has the number of
      the line), or two rows are of one point.
  """
  rows = {}
  for number, line in enumerate(read_lines(path, _ROWS), start=1):
    try:
      row = ResultRow.from_json(line.decode())
    except ValueError as error:
      raise ValueError(
        f"{path} line {number}: {error}; remove the line, the point is measured"
        " again"
      ) from error
    if row.key in rows:
      raise ValueError(
        f"{path} holds a point twice; remove line {number}, or the other of key"
        f" {row.key}"
      )
    rows[row.key] = row
  return list(rows.values())


def read_row(path: str | os.PathLike) -> ResultRow:
  """Returns the row in a decode's metrics.json, plain or .gz.

  Raises:
    ValueError: the file holds no row, or not a whole one.
  """
  try:
    with files.open_bytes(path, _ROWS) as file:
      return ResultRow.from_json(file.read().decode())
  except ValueError as error:
    raise ValueError(f"{path} is not a whole result row: {error}") from error
