"""How a run decodes and measures: settings that gin binds once each."""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Annotated

from speccascade.evaluation import quality
from speccascade.settings import fields


@fields.checked
@dataclasses.dataclass(frozen=True)
class Run:
  """Where a run leaves its files, and how it decodes; checked when made.

  Attributes:
    output_dir: a new folder, or that of the same run, which is taken up; None
      where nothing is written.
    max_decode_len: most tokens of an output, EOS counted.
    batch_size: rows decoded at once where nothing is timed; 1 shares its
      programs with the timed runs.
    refill: whether a row that ended makes room for the next example at once,
      before its batch has ended.
    num_lengths: source lengths that batches are padded to, each another program
      of every method; None takes all of `padding.buckets`.
    seed: of the keys.
    trials: how often each example is decoded, with other keys.
    trace: whether to record who wrote each token.
    log_probs: whether to record how likely the laws found each token; see
      docs/definitions.md.
    progress: show bars.
  """

  output_dir: fields.Path | None = None
  max_decode_len: fields.Size = 128
  batch_size: fields.Size = 32
  refill: bool = False
  num_lengths: fields.Positive | None = None
  seed: fields.NonNegative = 0
  trials: fields.Size = 1
  trace: bool = False
  log_probs: bool = False
  progress: bool = True

  @property
  def folder(self) -> pathlib.Path:
    """OUTPUT_DIR, which what writes files asks for.

    Raises:
      ValueError: there is none.
    """
    folder = self.output_dir
    if not folder or "://" in os.fspath(folder):
      raise ValueError(f"OUTPUT_DIR is {folder!r}; wanted a local folder")
    return pathlib.Path(folder).expanduser()


@fields.checked
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

  metrics: Sequence[Annotated[str, quality.metric]] | None = None
  num_timed: fields.NonNegative = 0
  repeats: fields.Size = 3
  agreement: bool = True
