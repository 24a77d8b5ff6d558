"""Says what a decode costs on slices of TPU v4, before there are any.

  python -m speccascade.planning.slices \\
    --gin_file=configs/experiments/wmt_ende/decode.gin \\
    --gin_file=configs/models/t5_1_1_xl.gin --gin.VERIFIER=%MODEL \\
    --gin.METHOD='"spec_decode"' --gin.DTYPE='"bfloat16"' \\
    --gin.DRAFTER_CHECKPOINT=None --gin.VERIFIER_CHECKPOINT=None \\
    --gin.OUTPUT_DIR=None --gin.BATCH_SIZE=1

Takes the config of a decode, and computes on paper: no program is compiled, and
none was timed. Each slice is cut along `model` as often as the verifier allows,
or as --gin.MESH='{"model": 4}' says, the rest along `data`; the drafter is
whole on each chip. A pass takes as long as its reads or its arithmetic,
whichever is longer, and then what it sends, since each sublayer waits for the
sum of the one before; launches of operations and attention's arithmetic are not
counted, so that real ones take longer. The speed-up is over the verifier alone.
"""

from collections.abc import Iterator
import dataclasses
import math

from speccascade import cli
from speccascade.analysis import published, speedup
from speccascade.inference.pair.pairs import KINDS, PairSpec
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Run
from speccascade.models import parameters
from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import DATA, MODEL, Layout
from speccascade.planning import decoding_plan, footprint


@dataclasses.dataclass(frozen=True)
class Chip:
  """What a chip's maker says of it; all that is known here of hardware.

  Attributes:
    name: of it.
    flops: a second, in bfloat16.
    memory_gb: of it.
    memory_bandwidth: bytes a second.
    link_bandwidth: bytes a second to a neighbour, one way.
    hop_s: least seconds to a neighbour, however few bytes.
  """

  name: str
  flops: float
  memory_gb: float
  memory_bandwidth: float
  link_bandwidth: float
  hop_s: float


# The first three: https://docs.cloud.google.com/tpu/docs/v4. Links and hops:
# https://jax-ml.github.io/scaling-book/tpus and /sharding ("around 1us").
V4 = Chip("TPU v4", 275e12, 32, 1.2e12, 4.5e10, 1e-6)
# Slices by their chips; v4-N has N / 2 of them. Source: the first page above.
TOPOLOGIES = {
  **{1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1), 8: (2, 2, 2)},
  **{16: (2, 2, 4), 32: (2, 4, 4), 64: (4, 4, 4)},
}
SLICES = {f"v4-{2 * n}": n for n in (4, 8, 16, 32, 64)}
# Leviathan et al. (arXiv 2211.17192), Table 4: T5 v1.1 small drafts for XXL on
# WMT14, T = 1.
RATE = published.leviathan_rate("ende", "small", 1)


def gather_s(num_bytes: float, num_chips: int, chip: Chip = V4) -> float:
  """Returns how long an all-gather takes, of so many bytes afterwards.

  max(hops * hop_s, bytes / bandwidth): along each axis of k chips a part makes
  k - 1 hops and one link is used, or, where the axis is a ring, k / 2 and both.
  Axes are rings where all are of a multiple of four chips.

  Source: "How to Scale Your Model", chapter "Sharded Matrices", its formula for
  several axes.

  Args:
    num_bytes: what each chip has afterwards.
    num_chips: that take part, of `TOPOLOGIES`.
    chip: what they are.

  >>> round(gather_s(0, 64) * 1e6), round(gather_s(2.7e6, 64) * 1e6)
  (6, 10)
  """
  axes = [k for k in TOPOLOGIES[num_chips] if k > 1]
  is_ring = all(k % 4 == 0 for k in axes)
  hops = sum(k / 2 if is_ring else k - 1 for k in axes)
  links = len(axes) * (2 if is_ring else 1)
  if not axes:
    return 0.0
  return max(hops * chip.hop_s, num_bytes / (links * chip.link_bandwidth))


@dataclasses.dataclass(frozen=True)
class Pass:
  """One pass of a model over a few tokens of each row, on one chip.

  Attributes:
    weights: bytes of kernels that it reads.
    caches: bytes of keys and values, all slots.
    laws: bytes of float32 logits, and of what is made of them.
    flops: of its products with kernels.
    sums: bytes of each all-reduce.
    num_sums: how many.
    gathered: bytes of the all-gather of logits, 0 where nothing is cut.
    num_chips: that communicate.
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
    return self.num_sums + (self.gathered > 0)

  @property
  def sent(self) -> float:
    """Bytes of all collectives, as `collectives.num_bytes` counts them."""
    return self.sums * self.num_sums + self.gathered

  def times(self, chip: Chip = V4) -> dict[str, float]:
    """Returns seconds for each of what may limit it.

    An all-reduce is a reduce-scatter and an all-gather, twice as long as one.
    """
    read = self.weights + self.caches + self.laws
    sums = 2 * self.num_sums * gather_s(self.sums, self.num_chips, chip)
    return {
      "memory": read / chip.memory_bandwidth,
      "compute": self.flops / chip.flops,
      "network": sums + gather_s(self.gathered, self.num_chips, chip),
    }

  def limit(self, chip: Chip = V4) -> str:
    """Returns what takes longest."""
    times = self.times(chip)
    return max(times, key=times.get)

  def seconds(self, chip: Chip = V4) -> float:
    """Returns how long it takes; see the head of this module."""
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
  """Returns what a decoder's pass takes.

  With several chips along `model` it sends a sum of [rows, width, emb_dim] for
  each sublayer and one for the embedding, and all logits; docs/meshes.md has
  what the compiler made of it. An encoder has run before, and so have the keys
  and values of the source.

  Args:
    config: the architecture.
    layout: where it lies.
    inputs: (rows, source or prompt tokens).
    capacity: slots of the caches.
    width: tokens of each row.
    kernel_dtype: as in `T5LM.create`.
  """
  is_t5 = hasattr(config, "num_encoder_layers")
  is_cut = dict(layout.rules)["heads"] is not None and layout.sizes[MODEL] > 1
  rows = layout.of_rows(inputs[0])
  cut_rows = dict(rows.rules)["batch"] is not None
  positions = inputs[0] * width // (layout.sizes[DATA] if cut_rows else 1)
  read = [
    name for name in parameters.param_shapes(config) if _is_read(name, config)
  ]
  weights = footprint.weights(config, layout, kernel_dtype, read)
  numbers = footprint.numbers(config, layout, read)
  itemsize = 2 if config.dtype == "bfloat16" else 4
  laws = 4 * positions * config.vocab_size
  sublayers = 3 if is_t5 else 2
  return Pass(
    weights=weights,
    caches=footprint.caches(
      KINDS[type(config)], config, layout, inputs, capacity
    ),
    laws=2 * laws,
    flops=2 * positions * numbers,
    sums=positions * config.emb_dim * itemsize * is_cut,
    num_sums=(sublayers * config.num_decoder_layers + 1) * is_cut,
    gathered=laws * is_cut,
    num_chips=layout.sizes[MODEL] if is_cut else 1,
  )


def _is_read(name: str, config: Config) -> bool:
  """Whether a decoder's pass reads all of a parameter."""
  if name == "token_embedder/embedding":
    return config.logits_via_embedding
  made_before = (
    "encoder_decoder_attention/key",
    "encoder_decoder_attention/value",
  )
  return name.startswith("decoder/") and not any(x in name for x in made_before)


@dataclasses.dataclass(frozen=True)
class Cost:
  """What a decode costs on one slice.

  Attributes:
    mesh: of the slice.
    held: bytes that each chip holds, by the plan.
    token: the verifier's pass over one token of each row.
    block: over a block.
    draft: the drafter's over one token.
    gamma: drafted tokens.
  """

  mesh: meshes.Mesh
  held: float
  token: Pass
  block: Pass
  draft: Pass
  gamma: int

  @property
  def block_s(self) -> float:
    """Seconds of a round: gamma drafter steps, and the verifier's pass."""
    return self.gamma * self.draft.seconds() + self.block.seconds()

  def speedup(self, rate: float = RATE) -> float:
    """Returns it over the verifier alone, drafts being accepted at a rate.

    Source: Leviathan et al., Theorem 3.8, with a block at its own price.
    """
    token = self.token.seconds()
    costs = {
      "c": self.draft.seconds() / token,
      "v": self.block.seconds() / token,
    }
    tokens = speedup.expected_tokens(rate, self.gamma)
    return float(speedup.predicted_speedup(tokens, self.gamma, **costs))


def costs(
  pair: PairSpec, inputs, point: Point, run: Run, **_
) -> Iterator[tuple[str, Cost]]:
  """Yields slices and what a decode costs there; settings as in `infer.infer`.

  Raises:
    ValueError: the method drafts no blocks, or not with one model.
  """
  models = decoding_plan.architectures(pair, point)
  if not point.spec.has_blocks or set(models) != {"drafter", "verifier"}:
    raise ValueError("METHOD has no blocks of one drafter; take spec_decode")
  small, large = models["drafter"], models["verifier"]
  rows = (run.batch_size, inputs.task_feature_lengths["inputs"])
  how = (rows, run.max_decode_len + 2 + point.verify_width)
  for name, num in SLICES.items():
    sizes = (getattr(large, x) for x in CUT if hasattr(large, x))
    cut = math.gcd(num, (pair.mesh.shape or {}).get(MODEL, 0), *sizes)
    shape = {DATA: num // cut, MODEL: cut}
    mesh = dataclasses.replace(
      pair.mesh, shape=shape, device_memory_gb=V4.memory_gb
    )
    layout, dtype = mesh.abstract(), pair.kernel_dtype
    at = dataclasses.replace(pair, mesh=mesh)
    many = dataclasses.replace(run, batch_size=max(run.batch_size, num // cut))
    held = decoding_plan.plan(at, inputs, point, many).bytes_on(mesh)
    yield (
      name,
      Cost(
        mesh,
        sum(held.values()),
        pass_of(large, layout, *how, 1, dtype),
        pass_of(large, layout, *how, point.verify_width, dtype),
        pass_of(small, layout.whole(), *how, 1, dtype),
        point.gamma,
      ),
    )


CUT = ("num_heads", "num_kv_heads", "mlp_dim", "vocab_size")
HEAD = (
  "| slice | data x model | GB held | weights, GB | caches, MB | collectives"
  " | sent, MB | memory, us | compute, us | network, us | limit | token, ms"
  " | block, ms | speed-up |"
)


def table(**settings) -> str:
  """Returns the costs as a Markdown table; a row of it is a block's pass.

  Args:
    **settings: as in `costs`.
  """
  lines = [HEAD, "| --- | --- |" + " ---: |" * 8 + " --- |" + " ---: |" * 3]
  for name, cost in costs(**settings):
    block, sizes = cost.block, cost.mesh.shape
    cells = [
      *(name, f"{sizes[DATA]} x {sizes[MODEL]}", f"{cost.held / 1e9:.3g}"),
      *(f"{block.weights / 1e9:.3g}", f"{block.caches / 1e6:.3g}"),
      *(str(block.num_collectives), f"{block.sent / 1e6:.3g}"),
      *(f"{seconds * 1e6:.3g}" for seconds in block.times().values()),
      *(block.limit(), f"{cost.token.seconds() * 1e3:.3g}"),
      *(f"{cost.block_s * 1e3:.3g}", f"{cost.speedup():.2f}"),
    ]
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def main():
  """Prints what the decode that gin configured costs."""
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
