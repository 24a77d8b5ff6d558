"""Computes what a decode costs on slices of TPU v4, before there are any.

  python -m speccascade.planning.slices \\
    --gin_file=configs/experiments/wmt_ende/decode.gin \\
    --gin_file=configs/models/t5_1_1_xl.gin --gin.VERIFIER=%MODEL \\
    --gin.METHOD='"spec_decode"' --gin.DTYPE='"bfloat16"' \\
    --gin.DRAFTER_CHECKPOINT=None --gin.VERIFIER_CHECKPOINT=None \\
    --gin.OUTPUT_DIR=None --gin.BATCH_SIZE=1

Takes the config of a decode. Each slice is split along `model` as often as the
verifier allows, or as --gin.MESH='{"model": 4}' says, and along `data` for the
rest. The drafter is whole on each chip.

Where a compiler for TPUs is installed (the extra `tpu-compiler`), the decode
and the verifier alone are compiled for each slice, with one and two layers, and
buffers, cycles and collectives are the compiler's; what is read comes from the
sizes of arrays. Without a compiler everything is estimated from array sizes;
launch overhead and the arithmetic of attention are not counted, so real passes
take longer. Nothing is run.

A pass takes the time of its reads or of its arithmetic, whichever is longer,
plus the time of its communication: each sublayer waits for the sum of the
sublayer before it. The speed-up is over the verifier alone.
"""

from collections import Counter
from collections.abc import Iterator
import dataclasses
import importlib.util
import math

import jax
import numpy as np

from speccascade import cli
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.models import architectures, parameters
from speccascade.models.parameters import Config
from speccascade.models.sharding import meshes
from speccascade.models.sharding.partitioning import CUT, DATA, MODEL, Layout
from speccascade.study.papers import published, speedup
from speccascade.study.report import markdown, templates
from speccascade.tools.planning import (
  chips,
  decoding_plan,
  few_layers,
  footprint,
  hlo,
)
from speccascade.tools.planning.hlo import Collective
from speccascade.tools.planning.roofline import HOP_S, TOPOLOGIES, V4, Work

# {name of a slice: chips}; the name counts two cores for each chip.
SLICES = {f"v4-{2 * n}": n for n in (4, 8, 16, 32, 64)}
# The acceptance rate that speed-ups assume. Source: Leviathan et al. (arXiv
# 2211.17192), Table 4: T5 v1.1 small drafts for XXL on WMT14 at temperature 1.
RATE = published.leviathan_rate("ende", "small", 1)


def pass_of(
  config: Config,
  layout: Layout,
  inputs: tuple[int, int],
  capacity: int,
  width: int,
  kernel_dtype: str = "float32",
) -> Work:
  """Returns the work of one chip in a pass of a decoder, by sizes of arrays.

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
  kind = architectures.row_of(config).model
  vocab_size = config.vocab_size
  sent = hlo.CollectiveCounts()
  num_chips = layout.sizes[MODEL]
  if dict(layout.rules)["heads"] is not None and num_chips > 1:
    dtype = "bf16" if config.dtype == "bfloat16" else "f32"
    sums = f"{dtype}[{positions},{config.emb_dim}]"
    # Attention, attention to a source if it is another one, and the MLP.
    has_source = hasattr(config, "num_encoder_layers")
    is_merged = getattr(config, "merged_attention", False)
    num_sublayers = 3 if has_source and not is_merged else 2
    num_sums = num_sublayers * config.num_decoder_layers + 1
    sent[Collective("all-reduce", sums, num_chips)] = num_sums
    logits = f"f32[{positions},{vocab_size}]"
    sent[Collective("all-gather", logits, num_chips)] = 1
  return Work(
    {
      "weights": footprint.weights(config, layout, kernel_dtype, read),
      "caches": footprint.caches(kind, config, layout, inputs, capacity),
      # Logits, and the distributions that are made of them.
      "laws": 2 * 4 * positions * vocab_size,
    },
    flops=2 * positions * footprint.numbers(config, layout, read),
    sent=sent,
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
    num_bytes: bytes that each chip holds.
    token: a round of the verifier alone, over one token of each row.
    block: the verifier's pass over a block of each row; a whole round, where a
      compiler says what it costs.
    draft: the drafter's pass over one token of each row; None if it is part of
      `block`.
    gamma: tokens that are drafted for a block.
  """

  mesh: meshes.Mesh
  num_bytes: float
  token: Work
  block: Work
  draft: Work | None
  gamma: int

  @property
  def block_s(self) -> float:
    """The seconds of a round: gamma drafter passes, and a verifier's pass."""
    draft_s = self.draft.seconds() if self.draft else 0.0
    return self.gamma * draft_s + self.block.seconds()

  def speedup(self, rate: float = RATE) -> float:
    """Returns the speed-up over the verifier alone.

    Args:
      rate: the acceptance rate of drafts.

    Source: Leviathan et al., Theorem 3.8, with the price of a block's pass in
    place of the price of a token's pass.
    """
    tokens = speedup.expected_tokens(rate, self.gamma)
    return float(tokens * self.token.seconds() / self.block_s)


def has_compiler() -> bool:
  """Returns whether a compiler for TPUs is installed."""
  return importlib.util.find_spec("libtpu") is not None


def costs(
  pair: PairSpec,
  inputs,
  point: Point,
  run: Run,
  *,
  compiles: bool = False,
  **_,
) -> Iterator[tuple[str, Cost]]:
  """Yields (name of a slice, cost of a decode on it), smallest slice first.

  The arguments are settings of `infer.infer`.

  Args:
    compiles: whether a compiler for TPUs is asked, which takes about a minute
      for each slice.

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
  # Each chip along MODEL has whole heads, and as many as the others.
  fields = (*CUT["heads"], *CUT["mlp"], *CUT["vocab"])
  verifier = models["verifier"]
  sizes = [getattr(verifier, x, None) or 0 for x in fields]
  for name, num in SLICES.items():
    # The greatest common divisor with 0, for no wish, changes nothing.
    wanted = (pair.mesh.shape or {}).get(MODEL, 0)
    cut = math.gcd(num, wanted, *sizes)
    mesh = dataclasses.replace(
      pair.mesh,
      shape={DATA: num // cut, MODEL: cut},
      device_memory_gb=V4.memory / 1e9,
    )
    cost = _compiled if compiles else _computed
    yield name, cost(models, mesh, pair, inputs, point, run)


def _computed(models, mesh, pair, inputs, point, run) -> Cost:
  """Returns a cost by the sizes of arrays."""
  layout = mesh.abstract()
  # A plan wants a row for each chip along DATA, or more.
  num_rows = max(run.batch_size, layout.sizes[DATA])
  bytes_of = decoding_plan.plan(
    dataclasses.replace(pair, mesh=mesh),
    inputs,
    point,
    dataclasses.replace(run, batch_size=num_rows),
  ).bytes_on(mesh)
  rows = (run.batch_size, inputs.task_feature_lengths["inputs"])
  capacity = run.max_decode_len + 2 + point.verify_width

  def work(role: str, layout: Layout, width: int) -> Work:
    return pass_of(
      models[role],
      layout,
      rows,
      capacity,
      width,
      decoding_plan.kernel_dtype(pair, role),
    )

  return Cost(
    mesh,
    sum(bytes_of.values()),
    token=work("verifier", layout, 1),
    block=work("verifier", layout, point.verify_width),
    draft=work("drafter", layout.whole(), 1),
    gamma=point.widest,
  )


def _compiled(models, mesh, pair, inputs, point, run) -> Cost:
  """Returns a cost by what a compiler says of programs with few layers."""
  sizes = mesh.abstract().sizes
  topology = "x".join(map(str, TOPOLOGIES[math.prod(sizes.values())]))
  layout = dataclasses.replace(
    mesh.abstract(),
    mesh=jax.sharding.Mesh(
      np.reshape(chips.devices(f"v4:{topology}"), tuple(sizes.values())),
      tuple(sizes),
      axis_types=mesh.abstract().mesh.axis_types,
    ),
  )

  def count(models) -> dict[str, Counter]:
    is_alone = set(models) == {"verifier"}
    point_of = point.of("verifier") if is_alone else point
    compiled = few_layers.compile_decode(
      models, layout, pair, inputs, point_of, run
    )
    program = hlo.Program(compiled.as_text())
    memory = compiled.memory_analysis()
    numbers = Counter(program.sent[hlo.ROUND])
    numbers["cycles"] = program.cycles
    numbers["buffers"] = memory.temp_size_in_bytes
    return {hlo.ROUND: numbers}

  def work(models, read: float) -> tuple[Work, float]:
    numbers = few_layers.extrapolate(models, models, count)[hlo.ROUND]
    cycles, buffers = (numbers.pop(x, 0.0) for x in ("cycles", "buffers"))
    return Work({"round": read}, cycles=cycles, sent=numbers), buffers

  # Few layers may stay in a chip's small memory, where all layers would not.
  arrays = _computed(models, mesh, pair, inputs, point, run)
  read = lambda work: sum(work.reads.values())
  token, _ = work({"verifier": models["verifier"]}, read(arrays.token))
  block, held = work(
    models, read(arrays.block) + point.widest * read(arrays.draft)
  )
  for role, config in models.items():
    place = layout if role == "verifier" else layout.whole()
    kernel_dtype = decoding_plan.kernel_dtype(pair, role)
    held += footprint.weights(config, place, kernel_dtype)
  return Cost(mesh, held, token, block, draft=None, gamma=point.widest)


def lines(*, compiles: bool = False, **settings) -> Iterator[str]:
  """Yields the lines of the costs as a Markdown table.

  A row describes a block's pass; of a compiler, a whole round.

  Args:
    compiles: whether a compiler for TPUs is asked.
    **settings: settings of `costs`.
  """
  own = ["weights, GB", "caches, MB"]
  if compiles:
    own = ["read, GB", "Mcycles"]
  titles = ["slice", "data x model", "GB held", *own, "collectives", "sent, MB"]
  titles += ["memory, us", "compute, us", "network, us", "limit"]
  titles += ["token, ms", "block, ms", "speed-up"]
  rows = (
    _cells(name, cost, compiles)
    for name, cost in costs(compiles=compiles, **settings)
  )
  return markdown.table_lines(titles, rows, "ll" + "r" * 8 + "lrrr")


def _cells(name: str, cost: Cost, compiles: bool) -> list[str]:
  """Returns the row of a slice."""
  block, sizes = cost.block, cost.mesh.shape
  if compiles:
    own = [block.reads["round"] / 1e9, block.cycles / 1e6]
  else:
    own = [block.reads["weights"] / 1e9, block.reads["caches"] / 1e6]
  return [
    name,
    f"{sizes[DATA]} x {sizes[MODEL]}",
    f"{cost.num_bytes / 1e9:.3g}",
    *(f"{number:.3g}" for number in own),
    str(block.sent.total()),
    f"{hlo.sent_bytes(block.sent) / 1e6:.3g}",
    *(f"{seconds * 1e6:.3g}" for seconds in block.times().values()),
    block.limit(),
    f"{cost.token.seconds() * 1e3:.3g}",
    f"{cost.block_s * 1e3:.3g}",
    f"{cost.speedup():.2f}",
  ]


def main():
  """Prints the costs of a decode as gin files configure `infer.infer`."""
  from speccascade.study.measuring import infer

  compiles = has_compiler()
  if compiles:
    chips.prepare("v4")
  settings = cli.bindings_of(infer.infer)
  for line in lines(compiles=compiles, **settings):
    print(line, flush=True)
  template = templates.load("tools/planning/slices.md")
  note = template.render(
    **settings, rate=RATE, chip=V4, hop_s=HOP_S, compiles=compiles
  )
  print(f"\n{note}")


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/decode.gin")
