"""A sweep of seconds, as a function."""

import json
import pathlib

from speccascade.inference.inputs import Inputs
from speccascade.inference.pair import PairSpec
from speccascade.inference.point import Point
from speccascade.inference.settings import Measuring, Run
from speccascade.sweep import sweep
from speccascade.sweep.plan import Plan
from speccascade.sweep.shown import Shown
from tests.inference import tiny

# It shares its programs with no other: they compile in seconds.
METHOD = "seq_cascade_chow_norm"
TEXTS = ["one two", "three", "four five six", "seven", "eight nine", "zero"]


def write_files(folder: pathlib.Path):
  """Writes a pair and six examples."""
  lines = [
    json.dumps({"inputs": text, "targets": "one two three"}) for text in TEXTS
  ]
  (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
  tiny.save(folder / "small", 0)
  tiny.save(folder / "large", 1, emb_dim=12)


def run(files: pathlib.Path, out, call=sweep.sweep, **changes):
  """Sweeps one method with three alphas, at two temperatures.

  `call` is `sweep.sweep`, or what takes the same settings.
  """
  settings = {
    **{"output_dir": out, "task_feature_lengths": {"inputs": 8}},
    "vocabulary": tiny.Vocabulary(),
    "drafter_checkpoint": str(files / "small"),
    "verifier_checkpoint": str(files / "large"),
    "input_file": str(files / "in.jsonl"),
    **{"methods": [METHOD], "alphas": {METHOD: [0.2, 0.5, 0.8]}},
    **{"gammas": [2], "temperatures": [1.0, 0.7], "method": "verifier"},
    **{"max_decode_len": 8, "batch_size": 4, "num_timed": 2, "repeats": 1},
    **{"num_shown": 2, "shown_methods": [METHOD], "progress": False},
    **changes,
  }
  shown = Shown(settings.pop("num_shown"), settings.pop("shown_methods"))
  kinds = {"pair": PairSpec, "inputs": Inputs, "plan": Plan, "common": Point}
  kinds |= {"run": Run, "measuring": Measuring}
  return call(shown=shown, **tiny.objects(settings, **kinds))
