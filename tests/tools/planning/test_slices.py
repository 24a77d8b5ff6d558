"""Compares the costs on slices with cases worked out by hand."""

import dataclasses
import pathlib
import types

import jax
import pytest

from speccascade.checkpoints.convert import config_from_gin
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.models import T5Config
from speccascade.models.sharding import meshes
from speccascade.tasks.inputs import Inputs
from speccascade.tools.planning import chips, footprint, hlo, roofline, slices

ROOT = pathlib.Path(__file__).parents[3]
CHIP = chips.Chip(1, 1e6, 1e6, clock=1e5, link_bandwidth=1e3)
SIZES = {"num_heads": 4, "head_dim": 2, "mlp_dim": 16, "vocab_size": 32}
CONFIG = T5Config(
  emb_dim=8, num_encoder_layers=1, num_decoder_layers=2, **SIZES
)


@pytest.fixture(scope="module")
def block():
  """A pass over two tokens of 3 rows, on four chips that cut the model."""
  layout = meshes.Mesh({"model": 4}).abstract()
  return slices.pass_of(CONFIG, layout, (3, 5), capacity=10, width=2)


def test_what_a_pass_reads_and_sends(block):
  # A layer's kernels: 4 of 8 x 8 of its attention, 2 of those to the source,
  # whose keys and values were made before, and 3 of 8 x 16: 768. Both layers,
  # the head's 8 x 32 and 4 x 32 offsets are cut in four; 7 scales of 8 are not.
  numbers = (2 * 768 + 256 + 128) // 4 + 56
  assert block.reads["weights"] == 4 * numbers
  assert block.flops == 2 * 6 * numbers
  # One head's keys and values for 10 + 5 tokens in two layers; lengths, the
  # source's mask, and all heads' biases of 19 distances.
  assert block.reads["caches"] == 4 * 3 * (2 * 2 * 2 * 15 + 1 + 5 + 4 * 19)
  assert block.reads["laws"] == 2 * 4 * 6 * 32
  assert block.sent == {
    hlo.Collective("all-reduce", "f32[6,8]", 4): 7,
    hlo.Collective("all-gather", "f32[6,32]", 4): 1,
  }
  assert hlo.sent_bytes(block.sent) == 7 * 192 + 768


def test_how_long_a_pass_takes(block, monkeypatch):
  monkeypatch.setattr(roofline, "HOP_S", 0.1)
  # 2 x 2 chips: a part makes two hops, over two links. A sum of 192 bytes is
  # so small that hops decide, and is gathered twice; the logits are not.
  sums, gathered = 2 * 7 * 0.2, 768 / 2000
  times = block.times(CHIP)
  assert times["network"] == pytest.approx(sums + gathered)
  assert times["compute"] == pytest.approx(6432 / 1e6)
  assert times["memory"] == pytest.approx((2144 + 2424 + 1536) / 1e6)
  assert block.limit(CHIP) == "network"
  assert block.seconds(CHIP) == pytest.approx(sums + gathered + 6432 / 1e6)
  # A compiler's cycles count where they are more than the products.
  slow = dataclasses.replace(block, cycles=1e4)
  assert slow.times(CHIP)["compute"] == pytest.approx(0.1)


def test_an_axis_of_four_is_a_ring_in_whole_cubes():
  assert roofline.gather_s(0, 64) == pytest.approx(6e-6)  # 2 + 2 + 2 hops
  assert roofline.gather_s(0, 32) == pytest.approx(7e-6)  # 1 + 3 + 3
  assert roofline.gather_s(27e9, 64) == pytest.approx(27e9 / (6 * 4.5e10))
  assert roofline.gather_s(27e9, 32) == pytest.approx(27e9 / (3 * 4.5e10))
  assert roofline.gather_s(1e9, 1) == 0


def test_the_speedup_is_tokens_over_time():

  def reads_for(seconds):
    return roofline.Work({"weights": seconds * roofline.V4.bandwidth})

  cost = slices.Cost(
    meshes.ONE,
    num_bytes=0,
    token=reads_for(1),
    block=reads_for(1.5),
    draft=reads_for(0.1),
    gamma=2,
  )
  assert cost.block_s == pytest.approx(1.7)
  assert cost.speedup(0.5) == pytest.approx(1.75 / 1.7)
  # A compiler's round has the drafts in it.
  whole = dataclasses.replace(cost, block=reads_for(1.7), draft=None)
  assert whole.speedup(0.5) == pytest.approx(1.75 / 1.7)


@pytest.mark.parametrize(
  ("mesh", "shapes"),
  [
    (None, ["1 x 4", "2 x 4", "4 x 4", "8 x 4", "16 x 4"]),
    ({"model": 2}, ["2 x 2", "4 x 2", "8 x 2", "16 x 2", "32 x 2"]),
  ],
)
def test_each_slice_has_a_row(mesh, shapes):
  settings = {
    "pair": PairSpec(CONFIG, CONFIG, mesh=meshes.Mesh(mesh)),
    "inputs": Inputs(input_file="a", task_feature_lengths={"inputs": 8}),
    "run": Run(max_decode_len=8, batch_size=64),
  }
  lines = slices.lines(**settings, point=Point("spec_decode", gamma=2))
  rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
  assert {len(row) for row in rows} == {14}
  assert [row[:2] for row in rows[2:]] == [
    *map(list, zip(slices.SLICES, shapes))
  ]
  with pytest.raises(ValueError, match="take spec_decode"):
    list(slices.lines(**settings, point=Point("token_cascade_chow")))
  with pytest.raises(ValueError, match="chains of one drafter; leave TREE"):
    list(
      slices.lines(**settings, point=Point("spec_decode", gamma=2, tree=(2, 1)))
    )


def test_a_compilers_figures_are_worked_out_from_few_layers(monkeypatch):
  def compile_decode(models, layout, pair, inputs, point, run):
    """Has 100 cycles and a sum for each layer."""
    layers = sum(config.num_decoder_layers for config in models.values())
    methods.append((point.method, layers))
    lines = [
      f"  %fusion.{i} = f32[8]{{0}} fusion(%c), kind=kLoop, calls=%f,"
      f' backend_config={{"estimated_cycles":"100"}}\n'
      f"  %sum.{i} = f32[8]{{0}} all-reduce(%c), replica_groups=[1,4]<=[4]"
      for i in range(layers)
    ]
    text = (
      "HloModule x, num_partitions=4\n\n%body (c: s32[]) -> s32[] {\n"
      + "\n".join(lines)
      + "\n}\n\nENTRY %main (c: s32[]) -> s32[] {\n"
      "  ROOT %loop = s32[] while(%c), condition=%on, body=%body\n}\n"
    )
    memory = types.SimpleNamespace(temp_size_in_bytes=1000 * layers)
    return types.SimpleNamespace(
      as_text=lambda: text, memory_analysis=lambda: memory
    )

  methods = []
  monkeypatch.setattr(slices, "SLICES", {"v4-8": 4})
  monkeypatch.setattr(chips, "devices", lambda target: jax.devices()[:1] * 4)
  monkeypatch.setattr(slices.few_layers, "compile_decode", compile_decode)
  deep = dataclasses.replace(CONFIG, num_decoder_layers=6)
  settings = {
    "pair": PairSpec(CONFIG, deep),
    "inputs": Inputs(input_file="a", task_feature_lengths={"inputs": 8}),
    "run": Run(max_decode_len=8, batch_size=4),
    "point": Point("spec_decode", gamma=2),
  }
  [(_, cost)] = slices.costs(compiles=True, **settings)
  assert methods == [
    *(("verifier", 1), ("verifier", 2)),
    *(("spec_decode", 2), ("spec_decode", 3), ("spec_decode", 3)),
  ]
  assert (cost.token.cycles, cost.block.cycles) == (600, 800)
  [(_, arrays)] = slices.costs(**settings)
  read = lambda work: sum(work.reads.values())
  assert read(cost.token) == read(arrays.token)
  assert read(cost.block) == read(arrays.block) + 2 * read(arrays.draft)
  assert cost.block.sent == {hlo.Collective("all-reduce", "f32[8]", 4): 8}
  layout = meshes.Mesh({"model": 4}).abstract()
  weights = footprint.weights(deep, layout, "float32")
  weights += footprint.weights(CONFIG, layout.whole(), "float32")
  assert cost.num_bytes == 8000 + weights
  assert cost.block_s == cost.block.seconds()
  head, _, row = slices.lines(compiles=True, **settings)
  assert head.count("|") == row.count("|")


@pytest.mark.parametrize(
  ("size", "rows", "mesh"),
  [("xl", 1, None), ("xxl", 1, None), ("xl", 64, {"model": 4})],
)
def test_the_page_has_the_tables(size, rows, mesh):
  small, large = (
    config_from_gin(str(ROOT / f"configs/models/t5_1_1_{name}.gin"))
    for name in ("small", size)
  )
  printed = slices.lines(
    pair=PairSpec(
      small,
      large,
      mesh=meshes.Mesh(mesh),
      dtype="bfloat16",
      kernel_dtype="bfloat16",
    ),
    inputs=Inputs(input_file="a", task_feature_lengths={"inputs": 80}),
    point=Point("spec_decode", gamma=5),
    run=Run(max_decode_len=80, batch_size=rows),
  )
  assert "\n".join(printed) in (ROOT / "docs/slices.md").read_text(
    encoding="utf-8"
  )
