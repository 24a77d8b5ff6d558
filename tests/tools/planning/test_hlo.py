"""What is read from programs' texts, of each platform as its compiler writes
it: small extracts, with what no reader needs left out."""

import pytest

from benchmarks.compiled import rounds
from speccascade.tools.planning import hlo

# ruff: noqa: E501 (XLA writes long lines)
# A v4 of four chips: groups name its eight cores. A fusion gathers and adds.
TPU = """
HloModule jit_run, is_scheduled=true, num_partitions=4

%add.1 (lhs: bf16[], rhs: bf16[]) -> bf16[] {
  %lhs = bf16[]{:T(256)} parameter(0)
  %rhs = bf16[]{:T(256)} parameter(1)
  ROOT %sum = bf16[]{:T(256)} add(%lhs, %rhs)
}

%all-reduce-scatter (input: f32[4,512]) -> f32[1,512] {
  %input = f32[4,512]{1,0:T(4,128)} parameter(0)
  %all-reduce.7 = f32[4,512]{1,0:T(4,128)} all-reduce(%input), channel_id=9, replica_groups=mesh['axis_0'=1,'axis_1'=8] {'axis_1'}, use_global_device_ids=true, to_apply=%add.1
  %zero = s32[]{:T(128)} constant(0)
  ROOT %part = f32[1,512]{1,0:T(1,128)} dynamic-slice(%all-reduce.7, %zero, %zero), dynamic_slice_sizes={1,512}
}

%body (state: (s32[], bf16[1024])) -> (s32[], bf16[1024]) {
  %state = (s32[]{:T(128)}, bf16[1024]{0:T(1024)(128)(2,1)}) parameter(0)
  %index = s32[]{:T(128)} get-tuple-element(%state), index=0
  %cache = bf16[1024]{0:T(1024)(128)(2,1)} get-tuple-element(%state), index=1
  %copy-start.1 = (bf16[1024]{0:T(1024)(128)(2,1)}, bf16[1024]{0:T(1024)(128)(2,1)S(1)}, u32[]{:S(2)}) copy-start(%cache)
  %fusion.1 = bf16[1,1,1024]{2,1,0:T(2,128)(2,1)S(3)} fusion(%index), kind=kLoop, calls=%make, metadata={op_name="jit(run)/while/body/draft/mul"}, backend_config={"estimated_cycles":"700"}
  %copy-done.1 = bf16[1024]{0:T(1024)(128)(2,1)S(1)} copy-done(%copy-start.1)
  %all-reduce.225 = bf16[1,1,1024]{2,1,0:T(2,128)(2,1)S(3)} all-reduce(%fusion.1), channel_id=2, replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, use_global_device_ids=true, to_apply=%add.1, metadata={op_name="jit(run)/while/body/score/gather"}, backend_config={"barrier_config":{"barrier_type":"CUSTOM","id":"0"}}
  %all-reduce.226 = bf16[1,1,1024]{2,1,0:T(2,128)(2,1)S(3)} all-reduce(%all-reduce.225), channel_id=3, replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_1'}, use_global_device_ids=true, to_apply=%add.1
  %all-gather-start.1 = (f32[8,64]{1,0:T(8,128)}, f32[32,64]{1,0:T(8,128)}) all-gather-start(%scores), channel_id=4, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true
  %all-gather-done.1 = f32[32,64]{1,0:T(8,128)} all-gather-done(%all-gather-start.1)
  %fusion.2 = f32[1,512]{1,0:T(1,128)} fusion(%all-gather-done.1), kind=kCustom, calls=%all-reduce-scatter
  %turned = bf16[1024]{0:T(256)} copy(%copy-done.1)
  ROOT %out = (s32[]{:T(128)}, bf16[1024]{0:T(256)}) tuple(%index, %turned)
}

%condition (state: (s32[], bf16[1024])) -> pred[] {
  %state = (s32[]{:T(128)}, bf16[1024]{0:T(1024)(128)(2,1)}) parameter(0)
  ROOT %on = pred[]{:T(512)} constant(true)
}

ENTRY %main_spmd (given: (s32[], bf16[1024])) -> (s32[], bf16[1024]) {
  %given = (s32[]{:T(128)}, bf16[1024]{0:T(1024)(128)(2,1)}) parameter(0)
  %all-reduce.73 = bf16[1,16,1024]{2,1,0:T(8,128)(2,1)S(1)} all-reduce(%encoded), channel_id=77, replica_groups=mesh['axis_0'=1,'axis_1'=8] {'axis_1'}, use_global_device_ids=true, to_apply=%add.1
  %while.1 = (s32[]{:T(128)}, bf16[1024]{0:T(1024)(128)(2,1)}) while(%given), condition=%condition, body=%body, metadata={op_name="jit(run)/while"}
  %rows = s32[]{:T(128)} get-tuple-element(%while.1), index=0
  %while.2 = s32[]{:T(128)} while(%rows), condition=%row_condition, body=%row_body, metadata={op_name="jit(run)/scatter"}
  ROOT %result = (s32[]{:T(128)}, bf16[1024]{0:T(1024)(128)(2,1)}) tuple(%while.2, %given)
}
"""
# Eight devices. A loop of four turns is in a round, and a choice of two ways.
CPU = """
HloModule jit_run, is_scheduled=true, num_partitions=8

%less (x: f32[4,2]) -> f32[4,2] {
  %x = f32[4,2]{1,0} parameter(0)
  ROOT %sum.1 = f32[4,2]{1,0} all-reduce(%x), channel_id=5, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
}

%more (x: f32[4,2]) -> f32[4,2] {
  %x = f32[4,2]{1,0} parameter(0)
  %next = f32[4,2]{1,0} collective-permute(%x), channel_id=6, source_target_pairs={{0,1},{1,0}}
  ROOT %all = f32[4,2]{1,0} all-to-all(%next), channel_id=7, replica_groups={}, dimensions={0}
}

%turn (c: s32[]) -> s32[] {
  %c = s32[] parameter(0)
  ROOT %sum.2 = s32[] all-reduce(%c), channel_id=8, replica_groups=[2,4]<=[8], to_apply=%add
}

%body (c: s32[]) -> s32[] {
  %c = s32[] parameter(0)
  %many = s32[] while(%c), condition=%condition, body=%turn, backend_config={"known_trip_count":{"n":"4"}}
  %choice = f32[4,2]{1,0} conditional(%many, %y, %y), branch_computations={%less, %more}
  ROOT %called = s32[] call(%many), to_apply=%turn
}

%condition (c: s32[]) -> pred[] {
  %c = s32[] parameter(0)
  ROOT %left = pred[] all-reduce(%c), channel_id=9, replica_groups={{0,2,4,6},{1,3,5,7}}, to_apply=%and
}

ENTRY %main (c: s32[]) -> s32[] {
  %c = s32[] parameter(0)
  ROOT %loop = s32[] while(%c), condition=%condition, body=%body
}
"""
# What a GPU sends begins and ends: the end alone says what was sent.
GPU = """
HloModule jit_run, is_scheduled=true, num_partitions=4

ENTRY %main (x: bf16[2,8]) -> bf16[8,8] {
  %x = bf16[2,8]{1,0} parameter(0)
  %all-reduce-start.1 = bf16[2,8]{1,0} all-reduce-start(%x), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %all-reduce-done.1 = bf16[2,8]{1,0} all-reduce-done(%all-reduce-start.1)
  %permute-start = (bf16[2,8]{1,0}, bf16[2,8]{1,0}, u32[], u32[]) collective-permute-start(%all-reduce-done.1), channel_id=2, source_target_pairs={{0,1},{1,2}}
  %permute-done = bf16[2,8]{1,0} collective-permute-done(%permute-start)
  %one = bf16[2,8]{1,0} all-reduce(%permute-done), channel_id=3, replica_groups={{0},{1},{2},{3}}, to_apply=%add
  %all-gather-start.1 = (bf16[2,8]{1,0}, bf16[8,8]{1,0}) all-gather-start(%one), channel_id=4, replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %all-gather-done.1 = bf16[8,8]{1,0} all-gather-done(%all-gather-start.1)
}
"""


def sent(text):
  """Returns what is sent once and in a round, as (words, how often)."""
  return {
    when: {f"{x.kind} {x.arrays} {x.num_devices}": n for x, n in each.items()}
    for when, each in hlo.Program(text).sent.items()
  }


def test_what_tpus_send():
  assert sent(TPU) == {
    "once": {"all-reduce bf16[1,16,1024] 4": 1},
    # A sum over an axis of one sends nothing. A fusion's sum counts.
    "round": {
      "all-reduce bf16[1,1,1024] 4": 1,
      "all-gather f32[32,64] 4": 1,
      "all-reduce f32[4,512] 4": 1,
    },
  }
  program = hlo.Program(TPU)
  total = 2 * 1024 + 4 * 32 * 64 + 4 * 4 * 512
  assert hlo.sent_bytes(program.sent[hlo.ROUND]) == total
  assert program.cycles == 700
  # What moves to the small memory is not a copy.
  assert rounds.Program(TPU).copies({(1024,)}) == 1


def test_what_cpus_send():
  assert sent(CPU) == {
    "once": {},
    # The inner loop's condition is the outer one's: five times in all.
    "round": {
      "all-reduce s32[] 4": 5,
      "all-reduce pred[] 4": 5,
      "collective-permute f32[4,2] 2": 1,
      "all-to-all f32[4,2] 8": 1,
    },
  }


def test_what_gpus_send():
  assert sent(GPU) == {
    "once": {
      "all-reduce bf16[2,8] 4": 1,
      "collective-permute bf16[2,8] 2": 1,
      "all-gather bf16[8,8] 4": 1,
    },
    "round": {},
  }


@pytest.mark.parametrize("text", ["", "no program", "ENTRY"])
def test_an_unknown_text_sends_nothing(text):
  assert sent(text) == {"once": {}, "round": {}}
  assert rounds.Program(text).count() == {}
