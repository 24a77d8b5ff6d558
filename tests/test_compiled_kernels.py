"""benchmarks.compiled: what a GPU's round takes, from what XLA wrote of it.

The texts of `golden/compiled_h100` were written by jax 0.10.2 for an H100, and
are cut: comments, metadata and multiplications are left out. program.txt is a
loop with a custom call of PTX, a branch, a loop whose turns depend on data, and
a loop of five turns; captured.txt has the thunks of the same program where
loops and branches go into graphs.
"""

import dataclasses
import json
import math
import os
import pathlib
import subprocess

import pytest

from benchmarks.compiled import (
  costs,
  in_flight,
  kernels,
  measured,
  reports,
  rounds,
  tables,
  thunks,
)

ROOT = pathlib.Path(__file__).parents[1]
GOLDEN = ROOT / "tests/golden/compiled_h100"


@pytest.fixture(scope="module")
def found():
  program = rounds.Program((GOLDEN / "program.txt").read_text())
  return kernels.Reader(program, thunks.read(GOLDEN, "jit_f"))


def test_a_pipelined_kernel_has_stages_in_flight_and_a_serial_norm():
  text = (GOLDEN / "few_rows__2.ptx").read_text()
  [kernel] = in_flight.kernels(text).values()
  assert (kernel.name, kernel.threads) == ("few_rows__2", 128)
  # Two parts of 128 inputs by 16 columns in bfloat16 are asked for ahead.
  assert kernel.stages == 2
  assert kernel.asked[2] == 2 * 128 * 16 * 2
  # 1,024 inputs are 8 parts: the norm's, one after the other, then the scale's,
  # which each turn of the product's loop waits for.
  norm, scale = kernel.phases
  assert (norm.params, norm.turns, norm.beside) == ({0}, 8, frozenset())
  assert (scale.params, scale.turns, scale.beside) == ({1}, 8, {0, 2})
  assert (kernel.waits, kernel.triggers, kernel.open_loops) == (True, False, 0)
  assert kernel.asked_before == 0


def test_a_kernel_without_stages_waits_in_each_turn():
  text = (GOLDEN / "gemm_fusion_dot_14.ptx").read_text()
  [kernel] = in_flight.kernels(text).values()
  assert kernel.stages == 0
  # 1,024 inputs by 16: 64 turns, and 16 x 16 numbers of the weights in each.
  assert [phase.turns for phase in kernel.phases] == [64, 64]
  assert kernel.asked == {1: 16 * 16 * 2, 0: 8 * 16 * 2}


LOOP = """
.visible .entry f(.param .u64 f_param_0, .param .u64 f_param_1)
.reqntid 32, 1, 1
{
  ld.param.b64 %rd1, [f_param_0];
  ld.param.b64 %rd2, [f_param_1];
  BEFORE
  griddepcontrol.wait;
  mov.b32 %r1, 0;
  ld.global.b32 %r9, [%rd2];
$L__BB0_1:
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd1, %rd3;
  ld.global.v2.b32 {%r2, %r3}, [%rd4];
  add.s32 %r1, %r1, 32;
  setp.lt.u32 %p1, %r1, BOUND;
  @%p1 bra $L__BB0_1;
  griddepcontrol.launch_dependents;
  ret;
}
"""


@pytest.mark.parametrize(
  ("bound", "turns", "open_loops"),
  [("96", 3, 0), ("%r9", 1, 1), ("0x41", 3, 0)],
)
def test_turns_of_a_loop_are_read_or_one(bound, turns, open_loops):
  text = LOOP.replace("BOUND", bound).replace("BEFORE", "")
  kernel = in_flight.kernels(text)["f"]
  assert [phase.turns for phase in kernel.phases] == [1, turns]
  assert kernel.open_loops == open_loops
  assert kernel.asked == {0: 8 * 32, 1: 4 * 32}
  assert kernel.triggers
  assert kernel.asked_before == 0


def test_a_loop_of_two_turns_has_a_flag_in_place_of_a_counter():
  text = LOOP.replace("BEFORE", "mov.pred %p2, -1;")
  text = text.replace("$L__BB0_1:\n", "$L__BB0_1:\n  mov.pred %p1, %p2;\n")
  text = text.replace("setp.lt.u32 %p1, %r1, BOUND", "mov.pred %p2, 0")
  kernel = in_flight.kernels(text)["f"]
  assert [phase.turns for phase in kernel.phases] == [1, 2]
  assert kernel.open_loops == 0


def test_what_is_asked_for_before_the_wait_is_counted():
  asked = "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd2];"
  text = LOOP.replace("BOUND", "96").replace("BEFORE", asked)
  assert in_flight.kernels(text)["f"].asked_before == 16 * 32


def test_a_load_that_needs_another_is_a_phase_of_its_own():
  text = """
.visible .entry f(.param .u64 f_param_0)
{
  ld.param.b64 %rd1, [f_param_0];
  ld.global.b32 %r1, [%rd1];
  ld.global.b32 %r2, [%rd1+4];
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.b32 %r3, [%rd3];
  bar.sync 0;
  ld.global.b32 %r4, [%rd1+8];
  ret;
}
"""
  # The fourth load stands behind a barrier, but nothing has used the third.
  assert len(in_flight.kernels(text)["f"].phases) == 2
  used = text.replace("bar.sync 0", "add.s32 %r5, %r3, 1;\n  bar.sync 0")
  assert len(in_flight.kernels(used)["f"].phases) == 3


AHEAD = """
.visible .entry f(.param .u64 f_param_0, .param .u64 f_param_1)
.maxntid 256, 1, 1
.reqnctapercluster 8, 1, 1
{
  ld.param.u64 %rd1, [f_param_0];
  ld.param.u64 %rd2, [f_param_1];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %r1;
$L__BB0_1:
  mul.wide.s32 %rd3, %r2, 16;
  add.s64 %rd4, %rd1, %rd3;
  cp.async.cg.shared.global [%r9], [%rd4], 16;
  add.s32 %r2, %r2, 256;
  setp.lt.s32 %p1, %r2, 2048;
  @%p1 bra $L__BB0_1;
  cp.async.commit_group;
  cp.async.bulk.prefetch.L2.global [%rd2], %r5;
  griddepcontrol.wait;
  cp.async.wait_group 0;
  bar.sync 0;
  barrier.cluster.arrive.release;
  barrier.cluster.wait.acquire;
  ret;
}
"""


def test_a_loop_that_copies_and_does_not_wait_asks_for_all():
  kernel = in_flight.kernels(AHEAD)["f"]
  assert (kernel.whole, kernel.stages, kernel.threads) == ({0}, 0, 256)
  assert kernel.fetched == {1}
  assert kernel.meetings == 1
  # The counter starts with the thread: 2,048 lines by 256 threads are 8 turns.
  assert kernel.open_loops == 0
  assert sum(some.statements for some in kernel.work) == 4 + 8 * 6 + 8
  waiting = AHEAD.replace(
    "add.s32 %r2", "cp.async.wait_group 1;\n  add.s32 %r2"
  )
  kernel = in_flight.kernels(waiting)["f"]
  assert kernel.whole == set()


def test_copies_have_steps_up_to_the_code_that_waits_for_them():
  kernel = in_flight.kernels(AHEAD)["f"]
  # All turns of the loop are one step; what stands before it is another.
  before, copies, after, *rest = kernel.steps
  assert copies.copied == ((0, 8 * 256 * 16),)
  assert (copies.statements, copies.ends_group) == (8 * 6, False)
  assert (after.statements, after.ends_group) == (1, True)
  waits, arrives, meets, last = rest
  assert (waits.waits, waits.ends_group) == (0, False)
  assert (arrives.arrives, meets.meets) == (True, True)
  assert before.copied == after.copied == last.copied == ()
  total = sum(step.statements for step in kernel.steps)
  assert total == sum(some.statements for some in kernel.work)
  # A loop that copies and waits is a pipeline, which `stages` describes.
  waiting = AHEAD.replace(
    "add.s32 %r2", "cp.async.wait_group 1;\n  add.s32 %r2"
  )
  assert in_flight.kernels(waiting)["f"].steps == ()


def test_loads_from_peers_between_two_barriers_are_one_phase():
  load = "ld.shared::cluster.f32 %f1, [%r9];\n"
  text = AHEAD.replace("  ret;", f"  {load * 3}  bar.sync 0;\n  {load}  ret;")
  kernel = in_flight.kernels(text)["f"]
  assert sum(step.from_peers for step in kernel.steps) == 2


def test_of_two_ways_the_one_with_more_phases_counts():
  text = """
.visible .entry f(.param .u64 f_param_0, .param .u64 f_param_1)
{
  ld.param.b64 %rd1, [f_param_0];
  ld.param.b64 %rd2, [f_param_1];
  @%p1 bra $L__BB0_2;
  ld.global.b32 %r1, [%rd1];
  bra.uni $L__BB0_3;
$L__BB0_2:
  ld.global.b32 %r2, [%rd2];
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd4, %rd2, %rd3;
  ld.global.b32 %r3, [%rd4];
$L__BB0_3:
  ret;
}
"""
  kernel = in_flight.kernels(text)["f"]
  assert [phase.params for phase in kernel.phases] == [{1}, {1}]
  assert set(kernel.asked) == {1}


def test_thunks_say_what_is_in_graphs_and_what_the_host_decides(found):
  dump = thunks.read(GOLDEN, "jit_f")
  loop = thunks.round_of(dump.sequence, dump.named, "while.27")
  assert loop is not None
  conditional = loop.body[1]
  assert set(conditional.parts) == {"false_branch", "true_branch"}
  [copy, inner] = conditional.parts["false_branch"]
  assert (copy.kind, inner.kind) == ("kCopy", "kWhile")
  assert set(inner.parts) == {"condition", "body"}
  few = next(x for x in loop.inside() if x.kernel.startswith("few_rows"))
  assert (few.programs, few.threads, few.shared) == (64, 128, 16384)
  graphs = found.round().graphs
  assert (graphs.graphs, graphs.captured) == (1, 10)
  assert graphs.outside["kWhile"] == 3
  # The branch, and the two loops whose turns depend on data.
  assert graphs.waits == 3
  assert not graphs.is_captured


def test_thunks_of_a_loop_in_a_graph_wait_for_nobody():
  dump = thunks.read(GOLDEN, "jit_f")
  captured = thunks.parse((GOLDEN / "captured.txt").read_text())
  program = rounds.Program((GOLDEN / "program.txt").read_text())
  reader = kernels.Reader(program, dataclasses.replace(dump, sequence=captured))
  whole = reader.round()
  assert whole.graphs.is_captured
  assert (whole.graphs.waits, whole.host) == (0, 0.0)
  outside = kernels.Reader(program, dump).round()
  assert len(whole.kernels) > 0
  assert whole.numbers()["kernels"] == outside.numbers()["kernels"]
  assert whole.seconds < outside.seconds


def test_a_round_is_the_sum_of_its_kernels(found):
  whole = found.round()
  numbers = whole.numbers()
  parts = ("launch_us", "waits_us", "reads_us", "capped_us", "host_us")
  assert math.isclose(numbers["us"], sum(numbers[part] for part in parts))
  # A loop of five turns counts five, one whose turns depend on data one.
  counts = {}
  for each, num in whole.kernels:
    counts[each.name] = counts.get(each.name, 0) + num
  assert counts["loop_multiply_fusion"] == 3 + 2 + 1 + 5
  [few] = [x for x, _ in whole.kernels if x.name == "few_rows"]
  # Its PTX stands in the custom call.
  assert few.stages == 2
  assert few.load.asked == 8192
  assert few.load.in_flight == 64 * 8192
  assert few.load.far_bytes == 1024 * 1024 * 2
  text = reports.report(whole)
  assert "3 kWhile" in text
  assert "| few_rows | rest | 1 | 64 | 48% | 128 | 2 | 2.101 | 0.52 |" in text
  steps = kernels.steps(whole)
  assert math.isclose(sum(steps.values()), 1e6 * whole.cost.total)


def load(**changes):
  given = {
    "programs": 132,
    "threads": 128,
    "shared": 0,
    "num_bytes": 0,
    "far_bytes": 0,
    "asked": None,
  }
  return costs.Load(**{**given, **changes})


def test_a_small_kernel_takes_its_launch_and_its_phases():
  found = costs.cost(load(near=2))
  assert math.isclose(found.total, costs.LAUNCH + 2 * costs.NEAR)


def test_few_bytes_in_flight_cap_what_a_kernel_reads():
  size = 4 << 20
  free = costs.cost(load(num_bytes=size, far_bytes=size))
  assert math.isclose(
    free.total, costs.LAUNCH + costs.FAR + size / costs.BANDWIDTH
  )
  # Bandwidth * latency bytes are in flight: nothing is lost.
  enough = math.ceil(costs.BANDWIDTH * costs.FAR / 132)
  whole = costs.cost(load(num_bytes=size, far_bytes=size, asked=enough))
  assert whole.capped == 0
  # With a quarter of them a read takes four times as long, but for the first.
  few = load(num_bytes=size, far_bytes=size, asked=enough // 4)
  found = costs.cost(few)
  assert math.isclose(
    found.total, costs.LAUNCH + size / few.in_flight * costs.FAR
  )
  assert found.total > costs.LAUNCH + 3.9 * size / costs.BANDWIDTH
  # On half of the multiprocessors half is in flight.
  half = dataclasses.replace(few, programs=66)
  assert half.in_flight == few.in_flight // 2


def test_bytes_that_are_fetched_for_later_come_beside_all_else():
  size = 16 << 20
  given = {"num_bytes": size, "far_bytes": size, "asked": 1}
  found = costs.cost(load(**given, fetched_bytes=size, near=2))
  assert math.isclose(found.total, size / costs.BANDWIDTH)
  few = load(num_bytes=64, far_bytes=64, fetched_bytes=64, near=2)
  assert math.isclose(costs.cost(few).total, costs.LAUNCH + 2 * costs.NEAR)


def test_what_was_fetched_is_near_for_the_next_kernel():
  size = 4 << 20
  given = load(num_bytes=size, far_bytes=size, asked=1 << 10)
  kernel = kernels.Kernel(
    name="f",
    step="score",
    kind="product",
    load=given,
    stages=0,
    is_tuned=False,
    waits=True,
    triggers=False,
    asked_before=0,
    open_loops=0,
    cost=costs.cost(given),
    far=(("weights", size),),
  )
  assert kernels._near(kernel, {"others"}) == kernel
  near = kernels._near(kernel, {"weights"})
  assert math.isclose(
    near.cost.total,
    costs.LAUNCH + costs.NEAR + size / costs.NEAR_BANDWIDTH,
  )


def steps(*given, far=(), programs=128):
  size = sum(size for step in given for _, size in step.copies)
  far_bytes = sum(
    size for step in given for name, size in step.copies if name in far
  )
  return costs.Load(
    programs=programs,
    threads=256,
    shared=100_000,
    num_bytes=size,
    far_bytes=far_bytes,
    asked=None,
    steps=given,
    far=frozenset(far),
  )


def test_copies_come_beside_work_until_the_code_waits_for_them():
  size, step = 12e6, costs.Step
  start = step(10, copies=(("w", size),), ends_group=True)
  issue = costs.ISSUE / costs.CLOCK
  stream = size / costs.NEAR_BANDWIDTH + costs.NEAR
  # Less work than the stream takes is not seen where it stands before the wait.
  for work in (0, 1000):
    given = steps(start, step(work, waits=0))
    found = costs.cost(given)
    assert math.isclose(found.total, costs.LAUNCH + stream)
    assert math.isclose(found.waits, (10 + work) * issue)
  # More of it hides the stream.
  found = costs.cost(steps(start, step(9000, waits=0)))
  assert math.isclose(found.total, costs.LAUNCH + 9010 * issue)
  assert found.reads == 0
  # Behind the wait all of it counts.
  found = costs.cost(steps(start, step(0, waits=0), step(9000)))
  assert math.isclose(found.total, costs.LAUNCH + stream + 9000 * issue)
  # From the device's memory it takes longer.
  found = costs.cost(steps(start, step(0, waits=0), far={"w"}))
  assert math.isclose(
    found.total, costs.LAUNCH + size / costs.BANDWIDTH + costs.FAR
  )
  # Eight multiprocessors take no more than 64 bytes a cycle each.
  found = costs.cost(steps(start, step(0, waits=0), programs=8))
  assert math.isclose(
    found.total, costs.LAUNCH + size / (8 * costs.WAY) + costs.NEAR
  )


def test_a_wait_for_older_groups_leaves_newer_ones_under_way():
  size, step = 5.5e6, costs.Step
  copy = step(0, copies=(("w", size),), ends_group=True)
  first = costs.cost(steps(copy, copy, step(0, waits=1)))
  # The first group's copies: what the second group reads is not waited for.
  one = size / costs.NEAR_BANDWIDTH + costs.NEAR
  assert math.isclose(first.total, costs.LAUNCH + one)
  both = costs.cost(steps(copy, copy, step(0, waits=1), step(0, waits=0)))
  assert math.isclose(
    both.total, costs.LAUNCH + one + size / costs.NEAR_BANDWIDTH
  )


def test_work_between_arriving_at_a_barrier_and_its_wait_is_beside_it():
  step, issue = costs.Step, costs.ISSUE / costs.CLOCK
  for work, wanted in ((0, costs.MEETING), (900, 901 * issue)):
    found = costs.cost(
      steps(step(0, arrives=True), step(work), step(1, meets=True))
    )
    assert math.isclose(found.waits, max(wanted, costs.MEETING))
  found = costs.cost(steps(step(0, from_peers=2)))
  assert math.isclose(found.waits, 2 * costs.PEER)


def test_what_one_program_waits_for_of_another_is_an_exchange():
  send = "st.relaxed.gpu.global.b64 [%rd9], %rd8;\n"
  read = "ld.relaxed.gpu.global.b64 %rd7, [%rd9];\n"
  loop = f"$L__BB0_2:\n{read * 2}  setp.ne.s64 %p2, %rd7, 1;\n"
  text = AHEAD.replace("  ret;", f"  {send}{loop}  @%p2 bra $L__BB0_2;\n  ret;")
  kernel = in_flight.kernels(text)["f"]
  # A read that is asked for again is one, with others of the same turn.
  assert [each.sends for each in kernel.steps].count(True) == 1
  assert [each.receives for each in kernel.steps].count(True) == 1
  assert kernel.open_loops == 1
  assert len(kernel.phases) == len(in_flight.kernels(AHEAD)["f"].phases)

  step, issue = costs.Step, costs.ISSUE / costs.CLOCK
  for work, wanted in (
    (0, costs.EXCHANGE),
    # Written long ago, a number is read once.
    (9000, 9000 * issue + costs.NEAR),
  ):
    given = steps(step(0, sends=True), step(work), step(0, receives=True))
    assert math.isclose(costs.cost(given).waits, wanted)


def reading(name, size, fetches=(), **changes):
  """Returns a kernel that reads an array, and fetches others."""
  arrays = ((name, size), *fetches)
  given = load(
    num_bytes=sum(x for _, x in arrays),
    far_bytes=sum(x for _, x in arrays),
    fetched_bytes=sum(x for _, x in fetches),
    asked=1 << 16,
  )
  return kernels.Kernel(
    **{
      **dict(name="f", step="score", kind="product", load=given, stages=0),
      **dict(is_tuned=False, waits=True, triggers=False, asked_before=0),
      **dict(open_loops=0, cost=costs.cost(given), far=arrays),
      **dict(fetched=frozenset(x for x, _ in fetches)),
      **changes,
    }
  )


def test_the_second_cache_keeps_what_it_has_room_for():
  size = int(costs.CACHE / 4)
  wanted = reading("weights", size)
  for others, is_near in ((3, True), (4, False)):
    second = kernels._SecondCache()
    second.passed(reading("x", 1 << 16, [("weights", size)]))
    for number in range(others):
      second.passed(reading(f"other {number}", size))
    found = second.passed(wanted)
    assert (found.load.far_bytes == 0) is is_near
    # It was fetched for one kernel.
    assert second.passed(wanted).load.far_bytes == size


def test_a_call_of_ptx_does_not_start_before_the_kernel_before_it(found):
  # XLA launches only kernels that it compiles programmatically.
  [few] = [x for x, _ in found.round().kernels if x.name == "few_rows"]
  [kernel] = in_flight.kernels(
    (GOLDEN / "few_rows__2.ptx").read_text()
  ).values()
  assert kernel.waits
  assert not few.waits


def test_programs_that_do_not_fit_come_in_waves():
  # 100 kB of shared memory: two programs a multiprocessor.
  many = load(programs=3 * 264, shared=100_000, near=1)
  assert many.resident == 264
  assert math.isclose(costs.cost(many).waits, 3 * costs.NEAR)


def test_measured_rounds_are_passes_and_differences_of_decodes():
  rows = [
    {"model": "large", "variant": "xla", "tokens": 1, "ms_a_pass": [1.1, 1, 2]},
    {
      "model": "large",
      "variant": "kernels",
      "tokens": 1,
      "ms_a_pass": [9, 9, 9],
    },
    {"model": "large", "variant": "xla", "tokens": 6, "ms_a_pass": [5, 5, 5]},
    *(
      {
        "table": "Forced acceptance",
        "block": "chain of 5",
        "acceptance": rate,
        "tokens_a_block": 64 / blocks,
        # 3 ms of encoders, and 2 ms a block.
        "ms_a_token": [(3 + 2 * blocks) / 64, 0, 0],
      }
      for rate, blocks in ((0.7, 25), (1.0, 11))
    ),
  ]
  found = measured.rounds(rows)
  assert found["t5-small:t5-large", "pass"] == 1.1
  assert math.isclose(found["t5-small:t5-large", "spec_decode"], 2.0)
  committed = measured.committed()
  assert len(committed) == 9
  assert 2.6 < committed["t5-small:t5-large", "spec_decode"] < 2.8


def test_a_prediction_stands_beside_what_was_measured():
  predicted = {
    **dict.fromkeys(("launch_us", "waits_us", "reads_us", "capped_us"), 100.0),
    **dict.fromkeys(("host_us", "turn_us", "bytes", "host_loops"), 0.0),
    **{"us": 2680.0, "least_us": 2500.0, "kernels": 1454, "graphs": 1},
  }
  case = {"pair": "t5-small:t5-large", "method": "spec_decode", "rows": 1}
  case["variant"] = "xla"
  text = tables.predictions(
    [
      {"case": case, "predicted": predicted},
      {"case": {**case, "variant": "triton"}, "predicted": predicted},
    ]
  )
  assert (
    "| spec_decode, xla | 1 | 2.680 | 2.680 | 1.00 | 2.500 | 0.100 |" in text
  )
  assert "| spec_decode, triton | 1 | 2.680 |  |  | 2.500 | 0.100 |" in text


@pytest.mark.slow
def test_an_h100s_compiler_writes_what_is_read_here(tmp_path):
  python = ROOT / ".venv-gpu-compiler/bin/python"
  if not python.exists():
    pytest.skip("no compiler for GPUs: bash launch/gpu_compiler.sh")
  kept = tmp_path / "kernels.md"
  done = subprocess.run(
    [
      *(python, "-m", "benchmarks.compiled.case", "--target", "h100"),
      *("--pair", "battery-drafter:battery-drafter", "--method", "pass"),
      *("--variant", "triton", "--kernels", kept),
    ],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={"PATH": os.environ["PATH"]},
  )
  assert done.returncode == 0, done.stderr[-2000:]
  row = json.loads(done.stdout.splitlines()[-1])
  assert row["predicted"]["kernels"] >= row["launches"]
  assert row["predicted"]["waiting"] > 0
  assert "| few_rows |" in kept.read_text()
