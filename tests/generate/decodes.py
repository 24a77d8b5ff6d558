"""Whole runs of a tiny pair, as the command makes them."""

from speccascade.generate import token_view
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.study.measuring import infer
from speccascade.study.measuring.study import Measuring
from speccascade.tasks.inputs import Inputs
from tests.generate import tiny

KINDS = {
  "pair": PairSpec,
  "inputs": Inputs,
  "point": Point,
  "run": Run,
  "measuring": Measuring,
}


def decode(folder, output_dir, **changes):
  """Decodes by the checkpoints "small" and "large"; returns the row.

  Args:
    folder: the folder of the checkpoints.
    output_dir: OUTPUT_DIR.
    **changes: settings, flat, in place of the ones here or beside them.
  """
  settings = {
    "method": "spec_decode",
    "output_dir": output_dir,
    "gamma": 2,
    "max_decode_len": 8,
    "batch_size": 2,
    "progress": False,
    "drafter_checkpoint": str(folder / "small"),
    "verifier_checkpoint": str(folder / "large"),
    **changes,
  }
  objects = tiny.objects(settings, **KINDS)
  return infer.infer(**objects, page=token_view.page_html).row
