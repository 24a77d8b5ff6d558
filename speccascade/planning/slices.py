"""Computes what a decode costs on slices of TPU v4, before there are any.

  python -m speccascade.planning.slices \\
    --gin_file=configs/experiments/wmt_ende/decode.gin \\
    --gin_file=configs/models/t5_1_1_xl.gin --gin.VERIFIER=%MODEL \\
    --gin.METHOD='"spec_decode"' --gin.DTYPE='"bfloat16"' \\
    --gin.DRAFTER_CHECKPOINT=None --gin.VERIFIER_CHECKPOINT=None \\
    --gin.OUTPUT_DIR=None --gin.BATCH_SIZE=1

Takes the config of a decode, and computes on paper: no program is compiled, and
none was timed. Each slice is cut along `model` as often as the verifier allows,
or as --gin.MESH='{"model": 4}' says, and along `data` for the rest. The drafter
is whole on each chip.

A pass takes the time of its reads or of its arithmetic, whichever is longer,
plus the time of its communication: each sublayer waits for the sum of the
sublayer before it. The launches of operations and the arithmetic of attention
are not counted, so that real passes take longer. The speed-up is over the
verifier alone.
"""

from collections.abc import Iterator
import dataclasses
import math

from speccascade import cli
from speccascade.analysis import published, speedup
from speccascade.inference.pair.model_loading import KINDS
from speccascade.inference.pair.pairs import PairSpec
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Run
from speccascade.models import parameters
from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import DATA, MODEL, Layout
from speccascade.planning import decoding_plan, footprint


@dataclasses.dataclass(frozen=True)
class Chip:
  """The figures of a chip, as its maker publishes them.

  Attributes:
    name: the chip's name.
    flops: floating-point operations per second, in bfloat16.
    memory_gb: size of the chip's memory in GB.
    memory_bandwidth: bytes per second that the chip reads from its memory.
    link_bandwidth: bytes per second to a neighbour, in one direction.
    hop_s: seconds that even an empty message to a neighbour takes.
  """

  name: str
  flops: float
  memory_gb: float
  memory_bandwidth: float
  link_bandwidth: float
  hop_s: float


# Source of flops and of the two figures of memory:
# https://docs.cloud.google.com/tpu/docs/v4. Source of links and hops:
# https://jax-ml.github.io/scaling-book/tpus and /sharding ("around 1us").
V4 = Chip(
  name="TPU v4",
  flops=275e12,
  memory_gb=32,
  memory_bandwidth=1.2e12,
  link_bandwidth=4.5e10,
  hop_s=1e-6,
)
# {chips of a slice: chips along each of its three axes}. Source: the first page
# above.
TOPOLOGIES = {
  1: (1, 1, 1),
  2: (2, 1, 1),
  4: (2, 2, 1),
  8: (2, 2, 2),
  16: (2, 2, 4),
  32: (2, 4, 4),
  64: (4, 4, 4),
}
# {name of a slice: chips}; the name counts two cores for each chip.
SLICES = {f"v4-{2 * n}": n for n in (4, 8, 16, 32, 64)}
# The acceptance rate that speed-ups assume. Source: Leviathan et al. (arXiv
# 2211.17192), Table 4: T5 v1.1 small drafts for XXL on WMT14 at temperature 1.
RATE = published.leviathan_rate("ende", "small", 1)


def gather_s(num_bytes: float, num_chips: int, chip: Chip = V4) -> float:
  """Returns the seconds of an all-gather.

  The seconds are max(hops * hop_s, bytes / bandwidth). Along an axis of k chips
  a part makes k - 1 hops, and one link of each chip is used. Along a ring of k
  chips a part makes k / 2 hops, and two links are used. The axes are rings if
  the chips along each axis are a multiple of four.

  Source: "How to Scale Your Model", chapter "Sharded Matrices", the formula for
  several axes.

  Args:
    num_bytes: bytes that each chip has afterwards.
    num_chips: how many chips take part, a key of `TOPOLOGIES`.
    chip: the kind of the chips.

  >>> round(gather_s(0, 64) * 1e6), round(gather_s(2.7e6, 64) * 1e6)
  (6, 10)
  """
  axes = [k for k in TOPOLOGIES[num_chips] if k > 1]
  if not axes:
    return 0.0
  if all(k % 4 == 0 for k in axes):
    hops, links = sum(k / 2 for k in axes), 2 * len(axes)
  else:
    hops, links = sum(k - 1 for k in axes), len(axes)
  return max(hops * chip.hop_s, num_bytes / (links * chip.link_bandwidth))


@dataclasses.dataclass(frozen=True)
class Pass:
  """The work of one chip in one pass of a model over some tokens of each row.

  Attributes:
    weights: bytes of the kernels that the pass reads.
    caches: bytes of keys and values that the pass reads, of all slots.
    laws: bytes of float32 logits and of the distributions made from them.
    flops: floating-point operations of the products with kernels.
    sums: bytes of each all-reduce.
    num_sums: how many all-reduces there are.
    gathered: bytes of the all-gather of the logits; 0 if the model is not cut.
    num_chips: how many chips communicate with each other.
  """

  weights: float
  caches: float
  laws: float
  flops: float
  sums: float
  num_sums: int
  gathered: float
  num_chips: int

  @property
  def num_collectives(self) -> int:
    """How many collectives the pass has."""
    num_gathers = 1 if self.gathered > 0 else 0
    return self.num_sums + num_gathers

  @property
  def sent(self) -> float:
    """The bytes of all collectives, as `collectives.num_bytes` counts them."""
    return self.sums * self.num_sums + self.gathered

  def times(self, chip: Chip = V4) -> dict[str, float]:
    """Returns the seconds of memory, compute and network, by these names.

    An all-reduce is a reduce-scatter and an all-gather, so that it takes twice
    the time of an all-gather.
    """
    read = self.weights + self.caches + self.laws
    sums = 2 * self.num_sums * gather_s(self.sums, self.num_chips, chip)
    return {
      "memory": read / chip.memory_bandwidth,
      "compute": self.flops / chip.flops,
      "network": sums + gather_s(self.gathered, self.num_chips, chip),
    }

  def limit(self, chip: Chip = V4) -> str:
    """Returns the name that takes longest in `times`."""
    times = self.times(chip)
    return max(times, key=times.get)

  def seconds(self, chip: Chip = V4) -> float:
    """Returns the seconds of the pass; the module's text gives the formula."""
    times = self.times(chip)
    return max(times["memory"], times["compute"]) + times["network"]


def pass_of(
  config: Config,
  layout: Layout,
  inputs: tuple[int, int],
  capacity: int,
  width: int,
  kernel_dtype: str = "float32",
) -> Pass:
  """Returns the work of one chip in a pass of a decoder.

  With several chips along `model` the chips send a sum of [rows, width,
  emb_dim] for each sublayer and one for the embedding, and all logits.
  docs/meshes.md shows what the compiler made of this. An encoder has run before
  the pass, and the keys and values of the source have been computed.

  Args:
    config: the architecture.
    layout: where the model lies.
    inputs: (rows, source or prompt tokens of a row).
    capacity: slots of the caches.
    width: tokens of each row.
    kernel_dtype: dtype of the kernels, as in `T5LM.create`.
  """
  num_rows, _ = inputs
  # Rows that the axis DATA does not divide are all on every chip.
  is_batch_cut = dict(layout.of_rows(num_rows).rules)["batch"] is not None
  positions = num_rows * width
  if is_batch_cut:
    positions //= layout.sizes[DATA]
  read = [
    name for name in parameters.param_shapes(config) if _is_read(name, config)
  ]
  numbers = footprint.numbers(config, layout, read)
  logits = 4 * positions * config.vocab_size
  work = Pass(
    weights=footprint.weights(config, layout, kernel_dtype, read),
    caches=footprint.caches(
      KINDS[type(config)], config, layout, inputs, capacity
    ),
    laws=2 * logits,
    flops=2 * positions * numbers,
    sums=0,
    num_sums=0,
    gathered=0,
    num_chips=1,
  )
  is_cut = dict(layout.rules)["heads"] is not None and layout.sizes[MODEL] > 1
  if not is_cut:
    return work
  itemsize = 2 if config.dtype == "bfloat16" else 4
  # Attention, attention to the source (T5 alone) and the MLP.
  num_sublayers = 3 if hasattr(config, "num_encoder_layers") else 2
  return dataclasses.replace(
    work,
    sums=positions * config.emb_dim * itemsize,
    num_sums=num_sublayers * config.num_decoder_layers + 1,
    gathered=logits,
    num_chips=layout.sizes[MODEL],
  )


def _is_read(name: str, config: Config) -> bool:
  """Returns whether a decoder's pass reads all of a parameter."""
  if name == "token_embedder/embedding":
    # As an embedding, only the rows of the fed tokens are read.
    return config.logits_via_embedding
  # The keys and values of the source were computed before the pass.
  of_source = (
    "encoder_decoder_attention/key",
    "encoder_decoder_attention/value",
  )
  return name.startswith("decoder/") and not any(x in name for x in of_source)


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of a decode on one slice.

  Attributes:
    mesh: the mesh of the slice.
    num_bytes: bytes that each chip holds, by `decoding_plan`.
    token: the verifier's pass over one token of each row.
    block: the verifier's pass over a block of each row.
    draft: the drafter's pass over one token of each row.
    gamma: tokens that are drafted for a block.
  """

  mesh: meshes.Mesh
  num_bytes: float
  token: Pass
  block: Pass
  draft: Pass
  gamma: int

  @property
  def block_s(self) -> float:
    """The seconds of a round: gamma drafter passes, and a verifier's pass."""
    return self.gamma * self.draft.seconds() + self.block.seconds()

  def speedup(self, rate: float = RATE) -> float:
    """Returns the speed-up over the verifier alone.

    Args:
      rate: the acceptance rate of drafts.

    Source: Leviathan et al., Theorem 3.8, with the price of a block's pass in
    place of the price of a token's pass.
    """
    token_s = self.token.seconds()
    prediction = speedup.predicted_speedup(
      speedup.expected_tokens(rate, self.gamma),
      self.gamma,
      c=self.draft.seconds() / token_s,
      v=self.block.seconds() / token_s,
    )
    return float(prediction)


def costs(
  pair: PairSpec, inputs, point: Point, run: Run, **_
) -> Iterator[tuple[str, Cost]]:
  """Yields (name of a slice, cost of a decode on it), smallest slice first.

  The arguments are settings of `infer.infer`.

  Raises:
    ValueError: the method drafts no blocks, has not one drafter, or drafts
      trees, whose acceptance is not that of a chain.
  """
  if point.is_tree or pair.cascade is not None:
    raise ValueError(
      "a slice is priced for chains of one drafter; leave TREE, DRAFTS and"
      " CASCADE out"
    )
  models = decoding_plan.architectures(pair, point)
  if not point.spec.has_blocks or set(models) != {"drafter", "verifier"}:
    raise ValueError("METHOD has no blocks of one drafter; take spec_decode")
  drafter, verifier = models["drafter"], models["verifier"]
  rows = (run.batch_size, inputs.task_feature_lengths["inputs"])
  capacity = run.max_decode_len + 2 + point.verify_width
  # Each chip along MODEL has whole heads, and as many as the others.
  sizes = [getattr(verifier, x) for x in CUT if hasattr(verifier, x)]
  for name, num in SLICES.items():
    # The greatest common divisor with 0, for no wish, changes nothing.
    wanted = (pair.mesh.shape or {}).get(MODEL, 0)
    cut = math.gcd(num, wanted, *sizes)
    mesh = dataclasses.replace(
      pair.mesh,
      shape={DATA: num // cut, MODEL: cut},
      device_memory_gb=V4.memory_gb,
    )
    layout = mesh.abstract()
    # A plan wants a row for each chip along DATA, or more.
    bytes_of = decoding_plan.plan(
      dataclasses.replace(pair, mesh=mesh),
      inputs,
      point,
      dataclasses.replace(run, batch_size=max(run.batch_size, num // cut)),
    ).bytes_on(mesh)
    passes = {
      "token": (verifier, layout, 1),
      "block": (verifier, layout, point.verify_width),
      "draft": (drafter, layout.whole(), 1),
    }
    work = {
      each: pass_of(config, place, rows, capacity, width, pair.kernel_dtype)
      for each, (config, place, width) in passes.items()
    }
    yield name, Cost(mesh, sum(bytes_of.values()), gamma=point.gamma, **work)


# Fields of configs that the axis MODEL cuts.
CUT = ("num_heads", "num_kv_heads", "mlp_dim", "vocab_size")
HEAD = (
  "| slice | data x model | GB held | weights, GB | caches, MB | collectives"
  " | sent, MB | memory, us | compute, us | network, us | limit | token, ms"
  " | block, ms | speed-up |"
)


def table(**settings) -> str:
  """Returns the costs as a Markdown table; a row describes a block's pass.

  Args:
    **settings: settings of `costs`.
  """
  lines = [HEAD, "| --- | --- |" + " ---: |" * 8 + " --- |" + " ---: |" * 3]
  for name, cost in costs(**settings):
    block, sizes = cost.block, cost.mesh.shape
    cells = [
      name,
      f"{sizes[DATA]} x {sizes[MODEL]}",
      f"{cost.num_bytes / 1e9:.3g}",
      f"{block.weights / 1e9:.3g}",
      f"{block.caches / 1e6:.3g}",
      str(block.num_collectives),
      f"{block.sent / 1e6:.3g}",
    ]
    cells += [f"{seconds * 1e6:.3g}" for seconds in block.times().values()]
    cells += [
      block.limit(),
      f"{cost.token.seconds() * 1e3:.3g}",
      f"{cost.block_s * 1e3:.3g}",
      f"{cost.speedup():.2f}",
    ]
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def main():
  """Prints the costs of a decode as gin files configure `infer.infer`."""
  from speccascade.inference.measuring import infer

  settings = cli.bindings_of(infer.infer)
  print(table(**settings))
  point, run = settings["point"], settings["run"]
  print(
    f"\n{run.batch_size} rows, gamma {point.gamma}, drafts accepted at {RATE}"
    f" (assumed); {V4.name}: {V4.flops:.3g} FLOP/s, {V4.memory_gb} GB at"
    f" {V4.memory_bandwidth:.3g} B/s, links of {V4.link_bandwidth:.3g} B/s and"
    f" {V4.hop_s * 1e6:.0f} us. Computed, not measured."
  )


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/decode.gin")
