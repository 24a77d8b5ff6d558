"""What a decode will take of its devices, and have them send: no number of a
model is made for it."""

import collections
import dataclasses

import jax
import numpy as np

from speccascade import checkpoints
from speccascade.checkpoints import CheckpointNotFoundError
from speccascade.decoding import row_keys
from speccascade.inference.batches.inputs import Inputs
from speccascade.inference.pair.pairs import KINDS, PairSpec, listed
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Run
from speccascade.models import parameters
from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import DATA, Layout
from speccascade.planning import collectives, footprint
from speccascade.planning.footprint import Footprint


def architectures(pair: PairSpec, point: Point) -> dict[str, Config]:
  """Returns the architecture of each model that a method needs, by its role.

  Where a setting gives one, its checkpoint need not be there.

  Raises:
    ValueError: neither a setting nor a checkpoint says it.
  """
  needs, configs = point.spec.execution, {}
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
      configs[role + f" {number + 1}" * (len(models) > 1)] = config
  return configs


def plan(
  pair: PairSpec, inputs: Inputs, point: Point, run: Run, **_
) -> Footprint:
  """Returns what a decode takes; settings as in `infer.infer`."""
  models = architectures(pair, point)
  source_len = inputs.task_feature_lengths["inputs"]
  capacity = run.max_decode_len + 2 + point.verify_width

  def bytes_on(mesh: meshes.Mesh) -> dict[str, float]:
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

  return Footprint(models, bytes_on, pair.mesh)


@dataclasses.dataclass(frozen=True)
class Communication:
  """What a decode sends.

  Attributes:
    mesh: on which.
    sent: once and in each round, by `collectives.read`.
    rows: of a batch on one device.
    width: most tokens that a round writes of a row.
  """

  mesh: meshes.Mesh
  sent: dict[str, collectives.Counted]
  rows: int
  width: int

  def __str__(self) -> str:
    lines = [str(self.mesh)]
    for when, sent in self.sent.items():
      total = collectives.num_bytes(sent)
      lines.append(f"{when}: {sent.total()} collectives, {total:,} bytes")
      lines += [
        f"  {num} {each.kind} of {each.arrays} among {each.num_devices}"
        for each, num in sent.items()
      ]
    total = collectives.num_bytes(self.sent[collectives.ROUND]) / self.rows
    most = f"{total:,.0f} bytes where a round writes one token of a row"
    least = f", {total / self.width:,.0f} where it writes {self.width}"
    lines.append(f"for each token: {most}{least * (self.width > 1)}")
    return "\n".join(lines)


def communication(
  pair: PairSpec, inputs: Inputs, point: Point, run: Run, **_
) -> Communication:
  """Compiles a decode on the mesh, and returns what devices send each other.

  Its layers are all alike: programs of models with one and with two are
  compiled, and told apart. Settings as in `infer.infer`.

  Raises:
    ValueError: a setting does not fit, or there are fewer devices.
  """
  layout = pair.mesh.layout()
  if layout is None or pair.cascade is not None:
    raise ValueError("it takes a MESH of several devices, and no CASCADE")
  layout.check_rows(BATCH_SIZE=run.batch_size)
  models = architectures(pair, point)
  small = pair.mesh.drafter_layout()
  shape = (run.batch_size, inputs.task_feature_lengths["inputs"])
  tokens = np.ones(shape, np.int32)
  rows = layout.rows((tokens, row_keys(0, 0, np.arange(run.batch_size))))
  decoder = point.decoder(max_decode_len=run.max_decode_len, eos_id=1)

  def sent(num_layers: int) -> dict[str, collectives.Counted]:
    lms = {}
    for role, config in models.items():
      where = layout if role == "verifier" else small
      where.check(config, role.upper())
      counts = dict.fromkeys(parameters.layer_counts(config), num_layers)
      config = dataclasses.replace(config, **counts)
      lms[role] = shape_model(config, where, pair.kernel_dtype)
    large = lms.pop("verifier", None)
    drafters = tuple(lms.values())
    drafter = drafters[0] if len(drafters) == 1 else drafters or None
    lowered = decoder.lower(drafter, large, *rows, point.alpha, point.sampling)
    return collectives.read(lowered.compile().as_text())

  shallow, deeper = sent(1), sent(2)
  config = models.get("verifier") or max(
    models.values(), key=lambda config: config.num_decoder_layers
  )
  num_layers, total = [*parameters.layer_counts(config).values()], {}
  # An encoder runs once, where there is one, and a decoder in each round.
  of = {collectives.ONCE: num_layers[0], collectives.ROUND: num_layers[-1]}
  for when, first in shallow.items():
    more = collections.Counter(deeper[when])
    more.subtract(first)
    times = {x: first[x] + (of[when] - 1) * n for x, n in more.items()}
    total[when] = +collections.Counter(times)
  size = run.batch_size // layout.sizes[DATA]
  return Communication(pair.mesh, total, size, point.verify_width)


def shape_model(config: Config, layout: Layout, kernel_dtype: str):
  """Returns a language model of shapes, without numbers."""
  leaves = {
    name: jax.ShapeDtypeStruct(
      each.shape,
      parameters.kept(config, name, kernel_dtype)[0],
      sharding=layout.sharding(*each.axes),
    )
    for name, each in parameters.described(config).items()
  }
  kind = KINDS[type(config)]
  return kind(parameters.tree(leaves), parameters.network(config), layout)
