"""Works out the memory and the communication of a decode, without weights."""

from collections.abc import Mapping
import dataclasses

import jax
import numpy as np

from speccascade import checkpoints
from speccascade.checkpoints import CheckpointNotFoundError
from speccascade.decoding import row_keys
from speccascade.inference.batches.inputs import Inputs
from speccascade.inference.pair.model_loading import KINDS, check_role
from speccascade.inference.pair.pairs import PairSpec, as_list
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Run
from speccascade.models import parameters
from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import DATA, Layout
from speccascade.planning import collectives, footprint, model_bytes
from speccascade.planning.collectives import CollectiveCounts
from speccascade.planning.footprint import Footprint
from speccascade.planning.model_bytes import DecodeSizes


def architectures(pair: PairSpec, point: Point) -> dict[str, Config]:
  """Returns the architecture of each model that a method needs, by its role.

  The roles are "drafter" and "verifier". Several drafters are "drafter 1",
  "drafter 2" and so on. The checkpoint of a model whose setting gives its
  architecture does not have to exist.

  Raises:
    ValueError: neither a setting nor a checkpoint gives an architecture.
  """
  needs, configs = point.spec.execution, {}
  if needs.needs_drafter:
    paths, given = as_list(pair.drafter_checkpoint), as_list(pair.drafter)
    # Architectures without checkpoints are enough, and the other way round.
    if pair.drafter is None:
      given = [None] * len(paths)
    elif pair.drafter_checkpoint is None:
      paths = [None] * len(given)
    drafters = [*zip(given, paths)]
    for number, (config, path) in enumerate(drafters, 1):
      role = f"drafter {number}" if len(drafters) > 1 else "drafter"
      configs[role] = _architecture("drafter", config, path, pair.dtype)
  if needs.needs_verifier:
    configs["verifier"] = _architecture(
      "verifier", pair.verifier, pair.verifier_checkpoint, pair.dtype
    )
  return configs


def _architecture(role: str, config, path, dtype: str | None) -> Config:
  """Returns an architecture, of a setting or else of a checkpoint."""
  if config is None:
    if not path:
      raise CheckpointNotFoundError(f"there is no {role} to plan for")
    config = checkpoints.load(path, lazy=True).require_config()
  check_role(config, role, path)
  # Draft heads keep float32; see `HeadsModel.create`.
  if dtype is not None and not model_bytes.row_of(config).is_over_verifier:
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

  def bytes_on(mesh: meshes.Mesh) -> dict[str, float]:
    verifier_layout = mesh.abstract()
    verifier_layout.check_rows(BATCH_SIZE=run.batch_size)
    bytes_of = {"caches": 0.0, "distributions": 0.0}
    for role, config in models.items():
      layout = verifier_layout
      if role != "verifier" and mesh.drafter == "whole":
        layout = verifier_layout.whole()
      layout.check(config, role.upper())
      row, kernel_dtype = model_bytes.row_of(config), pair.kernel_dtype
      row.check_layout(verifier_layout)
      if row.is_over_verifier:
        kernel_dtype = None
      bytes_of[role] = footprint.weights(config, layout, kernel_dtype)
      decode = DecodeSizes(
        verifier, layout, (run.batch_size, source_len), capacity
      )
      bytes_of["caches"] += row.state(config, decode)
      # A drafter, too, keeps the logits of a whole block until it is verified.
      positions = run.batch_size * width
      bytes_of["distributions"] += footprint.laws(
        config, layout, positions, cut=False
      )
    return bytes_of

  # `Footprint` asks for the bytes on the mesh of the settings, and on others to
  # say which mesh would do.
  return Footprint(models, bytes_on, pair.mesh)


def _block_width(
  pair: PairSpec, point: Point, models: Mapping[str, Config]
) -> int:
  """Returns the tokens that one verifier pass feeds."""
  if pair.cascade is None or not point.spec.has_blocks:
    return point.verify_width
  return 1 + pair.cascade.num_drafts(len(models.keys() - {"verifier"}))


@dataclasses.dataclass(frozen=True)
class Communication:
  """What the devices of a mesh send each other in a decode.

  Attributes:
    mesh: the mesh.
    sent: {"once": counts, "round": counts}, as `collectives.read` gives them.
    rows: rows of a batch on one device.
    width: most tokens that a round writes in a row.
  """

  mesh: meshes.Mesh
  sent: dict[str, CollectiveCounts]
  rows: int
  width: int

  def __str__(self) -> str:
    lines = [str(self.mesh)]
    for when, counts in self.sent.items():
      total = collectives.num_bytes(counts)
      lines.append(f"{when}: {counts.total()} collectives, {total:,} bytes")
      lines += [
        f"  {num} {each.kind} of {each.arrays} among {each.num_devices}"
        for each, num in counts.items()
      ]
    round_bytes = collectives.num_bytes(self.sent[collectives.ROUND])
    row_bytes = round_bytes / self.rows
    line = (
      f"for each token: {row_bytes:,.0f} bytes where a round writes one token"
      " of a row"
    )
    if self.width > 1:
      line += f", {row_bytes / self.width:,.0f} where it writes {self.width}"
    return "\n".join([*lines, line])


def communication(
  pair: PairSpec, inputs: Inputs, point: Point, run: Run, **_
) -> Communication:
  """Compiles a decode for its mesh, and returns what devices send each other.

  All layers of a model are alike. So programs of models with one layer and with
  two layers are compiled, and the difference is the part of one layer. The
  arguments are settings of `infer.infer`.

  Raises:
    ValueError: a setting does not fit the mesh, or there are fewer devices.
  """
  layout = pair.mesh.layout()
  if layout is None or pair.cascade is not None:
    raise ValueError("it takes a MESH of several devices, and no CASCADE")
  layout.check_rows(BATCH_SIZE=run.batch_size)
  models = architectures(pair, point)
  for config in models.values():
    model_bytes.row_of(config).check_layout(layout)
  drafter_layout = pair.mesh.drafter_layout()
  shape = (run.batch_size, inputs.task_feature_lengths["inputs"])
  tokens = np.ones(shape, np.int32)
  rows = layout.rows((tokens, row_keys(0, 0, np.arange(run.batch_size))))
  decoder = point.decoder(max_decode_len=run.max_decode_len, eos_id=1)

  def count(num_layers: int) -> dict[str, CollectiveCounts]:
    """Returns the counts of a program whose stacks have `num_layers` layers."""
    lms = {}
    for role, config in models.items():
      place = layout if role == "verifier" else drafter_layout
      place.check(config, role.upper())
      layers = dict.fromkeys(parameters.layer_counts(config), num_layers)
      config = dataclasses.replace(config, **layers)
      lms[role] = shape_model(config, place, pair.kernel_dtype)
    verifier = lms.pop("verifier", None)
    drafters = tuple(lms.values())
    drafter = drafters[0] if len(drafters) == 1 else drafters or None
    lowered = decoder.lower(
      drafter, verifier, *rows, point.decoder_alpha, point.sampling
    )
    return collectives.read(lowered.compile().as_text())

  # The verifier is what the mesh cuts. Without one, the deepest drafter counts.
  config = models.get("verifier") or max(
    models.values(), key=lambda config: config.num_decoder_layers
  )
  sent = _add_layers(count(1), count(2), config)
  rows_of_device = run.batch_size // layout.sizes[DATA]
  # A round writes one path of a tree, and a token more.
  most = point.gamma + 1 if point.is_tree else point.verify_width
  return Communication(pair.mesh, sent, rows_of_device, most)


def _add_layers(
  shallow: Mapping[str, CollectiveCounts],
  deeper: Mapping[str, CollectiveCounts],
  config: Config,
) -> dict[str, CollectiveCounts]:
  """Returns the counts of a model from those with 1 and with 2 layers."""
  # With 5 collectives in one layer and 8 in two, a layer has 3 and the rest of
  # the model 2, so that 12 layers have 5 + 11 * 3 = 38.
  # An encoder, where there is one, runs once, and a decoder in each round.
  layers = [*parameters.layer_counts(config).values()]
  num_layers = {collectives.ONCE: layers[0], collectives.ROUND: layers[-1]}
  total = {}
  for when, first in shallow.items():
    total[when] = CollectiveCounts()
    # A counter gives 0 for a collective that it has not counted.
    for collective in dict.fromkeys([*deeper[when], *first]):
      layer = deeper[when][collective] - first[collective]
      times = first[collective] + (num_layers[when] - 1) * layer
      if times > 0:
        total[when][collective] = times
  return total


def shape_model(config: Config, layout: Layout, kernel_dtype: str):
  """Returns a language model whose parameters are shapes without numbers.

  Args:
    config: the architecture.
    layout: where the parameters lie.
    kernel_dtype: dtype of the kernels, as in `T5LM.create`.
  """
  leaves = {
    name: jax.ShapeDtypeStruct(
      parameter.shape,
      parameters.storage(config, name, kernel_dtype).dtype,
      sharding=layout.sharding(*parameter.axes),
    )
    for name, parameter in parameters.describe(config).items()
  }
  kind = KINDS[type(config)]
  return kind(parameters.tree(leaves), parameters.network(config), layout)
