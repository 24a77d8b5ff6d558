"""Works out the memory of a decode, without weights."""

from collections.abc import Mapping
import dataclasses
import math

from speccascade import checkpoints
from speccascade.checkpoints import CheckpointNotFoundError, hub_headers
from speccascade.generate.pair import draft_vocabulary, early_exit
from speccascade.generate.pair.model_loading import check_role
from speccascade.generate.pair.pairs import PairSpec, describe_dtypes
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.models.parameters import Config, check_one_device
from speccascade.models.reader_config import StateReaderConfig
from speccascade.models.sharding import meshes
from speccascade.models.taught_exit import ExitConfig
from speccascade.tasks.inputs import Inputs
from speccascade.tools.planning import footprint, model_bytes
from speccascade.tools.planning.footprint import Footprint
from speccascade.tools.planning.model_bytes import DecodeSizes


def architectures(pair: PairSpec, point: Point) -> dict[str, Config]:
  """Returns the architecture of each model that a method needs, by its role.

  The roles are "drafter" and "verifier". Several drafters are "drafter 1",
  "drafter 2" and so on. The checkpoint of a model whose setting gives its
  architecture does not have to exist. An early exit is an architecture of fewer
  layers.

  Raises:
    ValueError: neither a setting nor a checkpoint gives an architecture.
  """
  needs, configs = point.spec.execution, {}
  if needs.needs_drafter:
    drafters = pair.drafters()
    for number, source in enumerate(drafters, 1):
      role = f"drafter {number}" if len(drafters) > 1 else "drafter"
      setting = early_exit.setting_of(source.path)
      if setting is None:
        config = _architecture(
          "drafter", source.config, source.path, pair.dtype
        )
      else:
        config = setting.config_of(_verifier(pair))
      configs[role] = config
  if needs.needs_verifier:
    configs["verifier"] = _verifier(pair)
  return configs


def _verifier(pair: PairSpec) -> Config:
  """Returns the architecture of the verifier."""
  return _architecture(
    "verifier", pair.verifier, pair.verifier_checkpoint, pair.dtype
  )


def kernel_dtype(pair: PairSpec, role: str) -> str:
  """Returns the dtype of the kernels of a model, by a role above."""
  if role == "verifier":
    return pair.kernel_dtype
  number = int(role.removeprefix("drafter") or 1)
  return pair.drafters()[number - 1].kernel_dtype


def _architecture(role: str, config, path, dtype: str | None) -> Config:
  """Returns an architecture, of a setting or else of a checkpoint."""
  if config is None:
    if not path:
      raise CheckpointNotFoundError(f"there is no {role} to plan for")
    with hub_headers.outline(path) as place:
      config = checkpoints.load(place, lazy=True).require_config()
  check_role(config, role, path)
  # Draft heads keep float32; see `HeadsModel.create`.
  if dtype is not None and model_bytes.row_of(config).has_kernel_dtype:
    if isinstance(config, StateReaderConfig):
      return config.with_dtype(dtype)
    config = dataclasses.replace(config, dtype=dtype)
  return config


def plan(
  pair: PairSpec, inputs: Inputs, point: Point, run: Run, **_
) -> Footprint:
  """Returns the memory that a decode needs.

  The arguments are settings of `infer.infer`; its other settings do not matter
  to the memory.
  """
  models = architectures(pair, point)
  source_len = inputs.task_feature_lengths["inputs"]
  # The last block begins before the limit and is written whole, so a cache has
  # room for a block after the longest output.
  width = _block_width(pair, point, models)
  capacity = run.max_decode_len + 2 + width
  verifier = models.get("verifier")
  num_kept = draft_vocabulary.size(pair.draft_vocabulary)
  # An early exit has arrays of its verifier, which are counted once.
  shared = set()
  if verifier is not None and point.spec.execution.needs_drafter:
    settings = [early_exit.setting_of(x.path) for x in pair.drafters()]
    shared = {role for role, each in zip(models, settings) if each is not None}

  def bytes_on(mesh: meshes.Mesh) -> dict[str, float]:
    verifier_layout = mesh.abstract()
    verifier_layout.check_rows(BATCH_SIZE=run.batch_size)
    bytes_of = {"caches": 0.0, "distributions": 0.0}
    for role, config in models.items():
      layout = verifier_layout
      is_drafter = role != "verifier" and role not in shared
      if is_drafter and mesh.drafter == "whole":
        layout = verifier_layout.whole()
      layout.check(config, role.upper())
      model_bytes.check_layout(config, verifier_layout)
      # Draft heads keep float32.
      stores = model_bytes.row_of(config).has_kernel_dtype
      kernels = kernel_dtype(pair, role) if stores else None
      if math.prod(layout.sizes.values()) > 1:
        check_one_device(kernels)
      bytes_of[role] = 0.0
      if role not in shared:
        bytes_of[role] = footprint.weights(config, layout, kernels)
      if num_kept and role != "verifier":
        is_taught = isinstance(config, ExitConfig)
        bytes_of[role] += footprint.cut_head(
          config.whole if is_taught else config,
          kernels or pair.kernel_dtype,
          num_kept,
          layout,
          verifier,
          is_shared=is_taught or role in shared,
        )
      decode = DecodeSizes(
        verifier, layout, (run.batch_size, source_len), capacity
      )
      bytes_of["caches"] += model_bytes.row_of(config).state(config, decode)
      # A drafter, too, keeps the logits of a whole block until it is verified.
      positions = run.batch_size * width
      bytes_of["distributions"] += footprint.laws(
        config, layout, positions, cut=False
      )
    return bytes_of

  # `Footprint` asks for the bytes on the mesh of the settings, and on others to
  # say which mesh would do.
  dtypes = {}
  for role, config in models.items():
    if model_bytes.row_of(config).has_kernel_dtype:
      kernels, *_ = kernel_dtype(pair, role).split("_")
      dtypes[role] = describe_dtypes(config.dtype, kernels)
  return Footprint(models, bytes_on, pair.mesh, dtypes=dtypes)


def _block_width(
  pair: PairSpec, point: Point, models: Mapping[str, Config]
) -> int:
  """Returns the tokens that one verifier pass feeds."""
  if pair.cascade is None or not point.spec.has_blocks:
    return point.verify_width
  return 1 + pair.cascade.num_drafts(len(models.keys() - {"verifier"}))
