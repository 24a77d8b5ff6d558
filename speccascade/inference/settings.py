"""How a run decodes and measures: settings that gin binds once each."""

from collections.abc import Sequence
import dataclasses
import os
import pathlib

from speccascade.evaluation import quality
from speccascade.fields import at_least, names_of


@dataclasses.dataclass(frozen=True)
class Run:
  """Where a run leaves its files, and how it decodes; checked when made.

  Attributes:
    output_dir: a new folder, or that of the same run, which is taken up; None
      where nothing is written.
    max_decode_len: most tokens of an output, EOS counted.
    batch_size: rows decoded at once where nothing is timed; 1 shares its
      programs with the timed runs.
    num_lengths: source lengths that batches are padded to, each another program
      of every method; None takes all of `batching.buckets`.
    seed: of the keys.
    trials: how often each example is decoded, with other keys.
    trace: whether to record who wrote each token.
    progress: show bars.
  """

  output_dir: str | os.PathLike | None = None
  max_decode_len: int = 128
  batch_size: int = 32
  num_lengths: int | None = None
  seed: int = 0
  trials: int = 1
  trace: bool = False
  progress: bool = True

  def __post_init__(self):
    at_least(1, MAX_DECODE_LEN=self.max_decode_len, TRIALS=self.trials)
    at_least(1, BATCH_SIZE=self.batch_size)
    at_least(1, or_none=True, NUM_LENGTHS=self.num_lengths)

  @property
  def folder(self) -> pathlib.Path:
    """OUTPUT_DIR, which what writes files asks for.

    Raises:
      ValueError: there is none.
    """
    folder = self.output_dir
    if not folder or "://" in os.fspath(folder):
      raise ValueError(f"OUTPUT_DIR is {folder!r}; wanted a local folder")
    return pathlib.Path(folder)


@dataclasses.dataclass(frozen=True)
class Measuring:
  """What is measured of each point; checked when made.

  Attributes:
    metrics: names in `quality.METRICS`; None takes the task's, or BLEU.
    num_timed: examples timed at batch 1 against the verifier alone; 0 leaves
      latency out.
    repeats: how often each is timed.
    agreement: whether greedy outputs are compared with the verifier's.
  """

  metrics: Sequence[str] | None = None
  num_timed: int = 0
  repeats: int = 3
  agreement: bool = True

  def __post_init__(self):
    names_of(quality.metric, METRICS=self.metrics)
    at_least(0, NUM_TIMED=self.num_timed)
    at_least(1, REPEATS=self.repeats)
