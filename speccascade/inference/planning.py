"""What a decode will take of its devices, from its settings alone."""

from collections.abc import Sequence
import dataclasses

from speccascade import checkpoints, footprint, meshes
from speccascade.checkpoints import CheckpointNotFoundError
from speccascade.footprint import Footprint
from speccascade.inference.inputs import Inputs
from speccascade.inference.pair import KINDS, PairSpec, listed
from speccascade.inference.point import Point
from speccascade.inference.settings import Run
from speccascade.models.params import Config


def architectures(pair: PairSpec, point: Point) -> dict[str, Config]:
  """Returns the architecture of each model that a method needs, by its role.

  Where a setting gives one, its checkpoint need not be there.

  Raises:
    ValueError: neither a setting nor a checkpoint says it.
  """
  needs, found = point.spec.execution, {}
  drafters = list(zip(listed(pair.drafter), listed(pair.drafter_checkpoint)))
  roles = {"drafter": drafters * needs.needs_drafter}
  verifiers = [(pair.verifier, pair.verifier_checkpoint)]
  roles["verifier"] = verifiers * needs.needs_verifier
  for role, models in roles.items():
    for number, (config, path) in enumerate(models):
      if config is None:
        if not path:
          raise CheckpointNotFoundError(f"there is no {role} to plan for")
        config = checkpoints.load(path, lazy=True).require_config()
      if pair.dtype is not None:
        config = dataclasses.replace(config, dtype=pair.dtype)
      found[role + f" {number + 1}" * (len(models) > 1)] = config
  return found


def decoding(
  pair: PairSpec, inputs: Inputs, point: Point, run: Run, **_
) -> Footprint:
  """Returns what a decode takes; settings as in `infer.infer`."""
  models = architectures(pair, point)
  source_len = inputs.task_feature_lengths["inputs"]
  capacity = run.max_decode_len + 2 + point.verify_width

  def held(mesh: meshes.Mesh) -> dict[str, float]:
    large = mesh.abstract()
    large.check_rows(BATCH_SIZE=run.batch_size)
    bytes_of = {"caches": 0.0, "laws": 0.0}
    for role, config in models.items():
      layout = large
      if role != "verifier" and mesh.drafter == "whole":
        layout = large.whole()
      layout.check(config, role.upper())
      bytes_of[role] = footprint.weights(config, layout, pair.kernel_dtype)
      rows = (run.batch_size, source_len)
      bytes_of["caches"] += footprint.caches(
        KINDS[type(config)], config, layout, rows, capacity
      )
      positions = run.batch_size * point.verify_width
      bytes_of["laws"] += footprint.laws(config, layout, positions, cut=False)
    return bytes_of

  return Footprint(models, held, pair.mesh)


def decoded_rows(point: Point, run: Run) -> Sequence[float]:
  """Returns the fewest and the most tokens that a round writes, of all rows."""
  return run.batch_size, run.batch_size * point.verify_width
