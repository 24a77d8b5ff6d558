"""The programs that are compiled: a method, a pair, a number of rows."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
import numpy as np

from benchmarks import shapes
from benchmarks.gpu_battery import models, passes, sizes
from benchmarks.gpu_battery import programs as battery
from speccascade.decoding import Sampling, decoder, row_keys
from speccascade.models import (
  T5LM,
  LlamaConfig,
  LlamaLM,
  StateReader,
  StateReaderConfig,
  T5Config,
  cut_head,
  parameters,
)
from speccascade.models.draft_heads import HeadsConfig, HeadsNetwork
from speccascade.models.heads_model import model_of
from speccascade.models.sharding.partitioning import DATA, MODEL, Layout
from speccascade.models.state_reader import StateReaderNetwork
from speccascade.native.lowering import tracing_for

Config = T5Config | LlamaConfig
# Drafter and verifier of each pair.
PAIRS = {
  "t5-small:t5-large": ("t5-small", "t5-large"),
  "t5-small:t5-xl": ("t5-small", "t5-xl"),
  "t5-small:t5-small": ("t5-small", "t5-small"),
  "llama-1b:llama-1b": ("Llama-1B", "Llama-1B"),
  "llama-1b:llama-8b": ("Llama-1B", "Llama-8B"),
  # The pair that the battery trains (docs/results/h100).
  "battery-drafter:battery-verifier": ("battery-drafter", "battery-verifier"),
  "battery-drafter:battery-drafter": ("battery-drafter", "battery-drafter"),
}
_BATTERY = {
  "battery-drafter": sizes.FULL.drafter,
  "battery-verifier": sizes.FULL.verifier,
}
_BATTERY_TOKENS = 4032
# The method of each row of a table, and its settings.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
  "verifier": ("verifier", {"gamma": 1}),
  # A pass over one token, as the battery times it, without a draw.
  "pass": ("verifier", {"gamma": 1}),
  "spec_decode": ("spec_decode", {"gamma": 5}),
  "greedy": ("spec_decode", {"gamma": 5}),
  "filtered": ("spec_decode", {"gamma": 5}),
  "spec_decode_3": ("spec_decode", {"gamma": 3}),
  "opt": ("spec_cascade_opt", {"gamma": 5}),
  "token_v3": ("spec_cascade_token_v3", {"gamma": 5}),
  "block": ("spec_decode", {"gamma": 5, "verification": "block"}),
  "cascade": ("token_cascade_chow", {"gamma": 1}),
  "tree": ("spec_decode", {"gamma": 3, "tree": (3, 2, 1)}),
  "heads": ("spec_decode", {"gamma": 4}),
  "reader": ("spec_decode", {"gamma": 5}),
  "copies": ("cascade_drafting", {"gamma": 5}),
  "top_k": ("verifier", {"gamma": 1}),
  "top_k_top_p": ("verifier", {"gamma": 1}),
}
# Methods whose drafter belongs to the verifier: no second model drafts.
OF_VERIFIER = {"verifier", "pass", "heads", "reader"}
KEPT = 8192  # tokens of a state reader's head
# The sampling of methods that do not draw from the whole distribution.
SAMPLING: dict[str, dict[str, Any]] = {
  "greedy": {"temperature": 0.0},
  "filtered": {"top_k": 50, "top_p": 0.9},
  "top_k": {"top_k": 50},
  "top_k_top_p": {"top_k": 50, "top_p": 0.9},
}


def config(name: str, layers: int | None = None) -> Config:
  """Returns an architecture, whole or with fewer layers in each stack.

  The encoder keeps one layer: it runs once, and no round has a part of it.
  """
  if name in shapes.SHAPES:
    whole = shapes.config(name)
    whole = dataclasses.replace(whole, num_encoder_layers=1)
  elif name in _BATTERY:
    whole = dataclasses.replace(
      _BATTERY[name], vocab_size=_BATTERY_TOKENS, num_encoder_layers=1
    )
  else:
    whole = sizes.FULL.llamas[name]
  deep = layers or whole.num_decoder_layers
  return dataclasses.replace(whole, num_decoder_layers=deep)


def pair(name: str, layers: tuple[int, int] | None = None):
  """Returns the architectures of a drafter and a verifier.

  Args:
    name: the pair, of `PAIRS`.
    layers: layers of the drafter's and the verifier's decoder; None is all.
  """
  return tuple(map(config, PAIRS[name], layers or (None, None)))


@dataclasses.dataclass(frozen=True)
class Place:
  """Where the arrays of a program lie: one device, or a mesh that shards
  models.

  Attributes:
    devices: the devices; the verifier is sharded over all.
  """

  devices: tuple[jax.Device, ...]

  @property
  def layout(self) -> Layout | None:
    """The verifier's layout; None on one device."""
    if len(self.devices) == 1:
      return None
    mesh = jax.sharding.Mesh(
      np.reshape(self.devices, (1, -1)),
      (DATA, MODEL),
      axis_types=(AxisType.Auto, AxisType.Auto),
    )
    return Layout(mesh)

  def model(self, config: Config, is_drafter: bool) -> T5LM | LlamaLM:
    """Returns a model of shapes; a mesh holds a drafter whole."""
    layout = self.layout
    if layout is not None and is_drafter:
      layout = layout.whole()
    if layout is not None:
      layout.check(config, "a model")
    return models.described(config, layout, self._one)

  def heads(self, verifier: T5LM | LlamaLM, num: int):
    """Returns Medusa heads for a verifier, of shapes."""
    config = HeadsConfig(kind="medusa", num_heads=num)
    config = config.shaped_like(verifier.module.config)
    leaves = {
      name: jax.ShapeDtypeStruct(
        each.shape, parameters.storage(config, name, models.DTYPE).dtype
      )
      for name, each in parameters.describe(config).items()
    }
    params = self.whole(parameters.tree(leaves))
    return model_of(config)(params, HeadsNetwork(config))

  def reader(self, verifier: T5LM | LlamaLM, num_kept: int) -> StateReader:
    """Returns a state reader with a cut head for a verifier, of shapes."""
    config = StateReaderConfig().shaped_like(verifier.module.config)

    def kernel(shape: tuple[int, ...], name: str) -> jax.ShapeDtypeStruct:
      stored = parameters.storage(config, name, models.DTYPE)
      return jax.ShapeDtypeStruct(shape, stored.dtype)

    params = parameters.tree(
      {
        name: kernel(each.shape, name)
        for name, each in parameters.describe(config).items()
      }
    )
    params[cut_head.NAME] = {
      "kernel": kernel(
        (config.emb_dim, num_kept), "decoder/logits_dense/kernel"
      ),
      "ids": jax.ShapeDtypeStruct((num_kept,), jnp.int32),
    }
    return StateReader(self.whole(params), StateReaderNetwork(config))

  def whole(self, tree: Any) -> Any:
    """Returns shapes that every device holds whole."""
    layout = self.layout
    place = self._one if layout is None else layout.sharding()
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree
    )

  @property
  def _one(self) -> jax.sharding.Sharding:
    return jax.sharding.SingleDeviceSharding(self.devices[0])


def lower(
  place: Place,
  method: str,
  configs: tuple[Config, Config],
  rows: int,
  source_len: int,
  max_decode_len: int,
) -> jax.stages.Lowered:
  """Returns a whole decode, lowered for the devices of a place.

  Args:
    place: the devices.
    method: of `METHODS`.
    configs: the drafter's and the verifier's architecture.
    rows: rows of the batch.
    source_len: tokens of each source or prompt.
    max_decode_len: most tokens of an output.
  """
  name, options = METHODS[method]
  drafter, verifier = (
    place.model(each, is_drafter)
    for each, is_drafter in zip(configs, (True, False))
  )
  if method == "pass":
    return _passes(place, verifier, rows)
  if method == "heads":
    drafter = place.heads(verifier, options["gamma"])
  elif method == "reader":
    drafter = place.reader(verifier, KEPT)
  elif name == "verifier":
    drafter = None
  inputs, keys = place.whole(
    jax.eval_shape(
      lambda: (
        jnp.ones((rows, source_len), jnp.int32),
        row_keys(0, 0, jnp.arange(rows)),
      )
    )
  )
  run = decoder(name, max_decode_len=max_decode_len, eos_id=1, **options)
  sampling = Sampling.create(**SAMPLING.get(method, {}))
  return run.lower(drafter, verifier, inputs, keys, 0.0, sampling)


def _passes(place: Place, lm: T5LM | LlamaLM, rows: int) -> jax.stages.Lowered:
  """Returns passes over one token, of a number that is given to the program."""
  prompt = jnp.ones((rows, passes.SOURCE_LEN), jnp.int32)
  start = battery.prefill(passes.CAPACITY)
  state = place.whole(jax.eval_shape(lambda lm: start(lm, prompt), lm))
  number = place.whole(jax.ShapeDtypeStruct((), jnp.int32))

  def run(lm, state, number):
    return battery.passes(1, number)(lm, state)

  with tracing_for(lm):
    return jax.jit(run).lower(lm, state, number)


def cache_shapes(
  configs: tuple[Config, Config], rows: int, slots: range, num_devices: int
) -> set[tuple[int, ...]]:
  """Returns the sorted sizes that a cache on one device may have.

  Args:
    configs: the drafter's and the verifier's architecture.
    rows: rows of the batch.
    slots: how many slots a cache may have.
    num_devices: devices that share the verifier's heads.
  """
  found = set()
  for each in configs:
    heads = getattr(each, "num_kv_heads", each.num_heads)
    for part in {heads, max(1, heads // num_devices)}:
      for size in slots:
        found.add(tuple(sorted((rows, part, each.head_dim, size))))
  return found


def num_flops(lowered: jax.stages.Lowered) -> float:
  """Returns the operations of all products of a round.

  A round is a turn of the program's last loop. Of a conditional the branch with
  most products counts, and of a loop within a round one turn.
  """
  module = lowered.compiler_ir("stablehlo")
  functions = {
    op.attributes["sym_name"].value: op for op in module.body.operations
  }

  def within(op) -> float:
    regions = [
      sum(of(each) for block in region for each in block.operations)
      for region in op.regions
    ]
    if op.name in ("stablehlo.case", "stablehlo.if"):
      return max(regions, default=0.0)
    return sum(regions)

  def of(op) -> float:
    op = op.operation
    if op.name == "func.call":
      return within(functions[op.attributes["callee"].value].operation)
    if op.name != "stablehlo.dot_general":
      return within(op)
    numbers = str(op.attributes["dot_dimension_numbers"])
    axes = re.search(r"lhs_contracting_dimensions = \[([\d, ]*)\]", numbers)
    sizes = op.operands[0].type.shape
    inner = [sizes[int(axis)] for axis in axes[1].split(",")] if axes else []
    return 2.0 * math.prod(op.results[0].type.shape) * math.prod(inner)

  def loops(op):
    for region in op.regions:
      for block in region:
        for each in block.operations:
          each = each.operation
          if each.name == "stablehlo.while":
            yield each
          elif each.name == "func.call":
            callee = functions[each.attributes["callee"].value]
            yield from loops(callee.operation)
          else:
            yield from loops(each)

  rounds = list(loops(functions["main"].operation))
  return within(rounds[-1]) if rounds else 0.0
