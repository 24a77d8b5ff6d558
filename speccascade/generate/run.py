"""How a run decodes: `Run`, which gin makes once."""

import dataclasses
import os
import pathlib

from speccascade.constraints.limits import TextLimits
from speccascade.decoding.records.decode_settings import Records
from speccascade.settings import fields


@fields.checked
@dataclasses.dataclass(frozen=True)
class Run(Records, TextLimits):
  """Where a run writes its files, and how it decodes.

  The settings are the fields of `Records` and `TextLimits`, and the attributes
  below. They are checked when the record is made.

  Attributes:
    output_dir: a new folder, or the folder of this run, which then continues;
      None where nothing is written.
    max_decode_len: the most tokens of an output, EOS counted.
    batch_size: rows decoded at once where nothing is timed; a decode of fewer
      examples has as many rows. 1 shares its programs with the timed runs.
    refill: whether a row that ended makes way for the next example at once,
      before its batch has ended.
    one_at_a_time: whether a decode answers its examples one at a time, all
      turns of a question, timed. Every turn has a record then.
    num_lengths: how many source lengths batches are padded to. Each length is
      another program of every method. None takes all of `padding.buckets`.
    seed: the seed of the keys.
    trials: how often each example is decoded, each time with other keys.
    progress: whether to show progress bars.
    profile_dir: a folder for the profile of a few decodes, which take longer by
      it, without `refill`; None records none. See `runtime/profiling.py`.
  """

  output_dir: fields.Path | None = None
  max_decode_len: fields.Size = 128
  batch_size: fields.Size = 32
  refill: bool = False
  one_at_a_time: bool = False
  num_lengths: fields.Positive | None = None
  seed: fields.NonNegative = 0
  trials: fields.Size = 1
  progress: bool = True
  profile_dir: fields.Path | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.min_decode_len > self.max_decode_len:
      raise fields.SettingError(
        "min_decode_len",
        f" is {self.min_decode_len}, and max_decode_len {self.max_decode_len}:"
        " raise that one, or lower this one",
        Run,
      )
    if self.refill and self.profile_dir is not None:
      raise fields.SettingError(
        "profile_dir",
        " is given next to refill, whose batches are not profiled: leave out"
        " one of them",
        Run,
      )

  @property
  def folder(self) -> pathlib.Path:
    """OUTPUT_DIR, for a run that writes files.

    Raises:
      ValueError: `output_dir` is None, or no local folder.
    """
    folder = self.output_dir
    if not folder or "://" in os.fspath(folder):
      raise ValueError(f"OUTPUT_DIR is {folder!r}; wanted a local folder")
    return pathlib.Path(folder).expanduser()
