"""benchmarks.compiled: what it reads from a program, its rows and tables."""

import dataclasses
import json
import math

import jax
import pytest

from benchmarks.compiled import __main__ as command
from benchmarks.compiled import case, programs, rounds, tables
from benchmarks.gpu_battery import passes
from speccascade.models import T5Config
from speccascade.native.gpu import nvrtc
from speccascade.tools.planning import chips

# ruff: noqa: E501 (XLA writes long lines)
TEXT = """
HloModule jit_f

%fused_update (p0: bf16[1,2,64,71], p1: bf16[1,2,64,1], p2: s32[]) -> bf16[1,2,64,71] {
  %p0 = bf16[1,2,64,71]{3,2,1,0} parameter(0)
  %p1 = bf16[1,2,64,1]{3,2,1,0} parameter(1)
  %p2 = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %update = bf16[1,2,64,71]{3,2,1,0} dynamic-update-slice(%p0, %p1, %zero, %zero, %zero, /*index=5*/%p2)
}

%fused_gather (p0: f32[1000,8], p1: s32[3]) -> f32[3,8] {
  %p0 = f32[1000,8]{1,0} parameter(0)
  %p1 = s32[3]{0} parameter(1)
  ROOT %rows = f32[3,8]{1,0} gather(%p0, %p1), offset_dims={1}
}

%inner_condition (c: s32[]) -> pred[] {
  %c = s32[] parameter(0)
  %four = s32[] constant(4)
  ROOT %less = pred[] compare(%c, %four), direction=LT
}

%inner_body (c: s32[]) -> s32[] {
  %c = s32[] parameter(0)
  ROOT %next = s32[] fusion(%c), kind=kLoop, calls=%add_one, metadata={op_name="jit(f)/while/body/draft/while/body/add"}
}

%body (state: (s32[], bf16[1,2,64,71])) -> (s32[], bf16[1,2,64,71]) {
  %state = (s32[], bf16[1,2,64,71]{3,2,1,0}) parameter(0)
  %index = s32[] get-tuple-element(%state), index=0
  %slots = bf16[1,2,64,71]{3,2,1,0} get-tuple-element(%state), index=1
  %table = f32[1000,8]{1,0} constant({...})
  %ids = s32[3]{0} constant({...})
  %new = bf16[1,2,64,1]{3,2,1,0:T(8,128)S(1)} fusion(%index), kind=kLoop, calls=%make, metadata={op_name="jit(f)/while/body/score/layers_0/mlp/mul"}, backend_config={"estimated_cycles":"120"}
  %fusion.1 = bf16[1,2,64,71]{3,2,1,0} fusion(%slots, %new, %index), kind=kLoop, calls=%fused_update, metadata={op_name="jit(f)/while/body/score/dynamic_update_slice"}
  %fusion.2 = f32[3,8]{1,0} fusion(%table, %ids), kind=kLoop, calls=%fused_gather, metadata={op_name="jit(f)/while/body/draft/gather"}
  %turned = bf16[1,2,64,71]{1,2,3,0} copy(%fusion.1)
  %many = s32[] while(%index), condition=%inner_condition, body=%inner_body, backend_config={"known_trip_count":{"n":"4"}}
  ROOT %out = (s32[], bf16[1,2,64,71]{3,2,1,0}) tuple(%many, %turned)
}

%condition (state: (s32[], bf16[1,2,64,71])) -> pred[] {
  %state = (s32[], bf16[1,2,64,71]{3,2,1,0}) parameter(0)
  ROOT %on = pred[] constant(true)
}

ENTRY %main (given: (s32[], bf16[1,2,64,71])) -> (s32[], bf16[1,2,64,71]) {
  %given = (s32[], bf16[1,2,64,71]{3,2,1,0}) parameter(0)
  ROOT %loop = (s32[], bf16[1,2,64,71]{3,2,1,0}) while(%given), condition=%condition, body=%body
}
"""


def test_a_round_is_read_from_a_programs_text():
  program = rounds.Program(TEXT)
  # Four fusions, of which one is in a loop of four turns, and its comparison.
  assert program.count() == {"all": 12}
  assert program.count(rounds.step_of) == {"score": 2, "draft": 5, "rest": 5}
  kinds = program.count(rounds.kind_of)
  assert (kinds["cache write"], kinds["lookup"], kinds["copy"]) == (1, 1, 1)
  assert kinds["activation"] == 1
  assert program.copies({(1, 2, 64, 71)}) == 1
  assert program.copies({(1, 2, 64, 70)}) == 0
  assert (program.num_loops, program.cycles) == (1, 120)
  slots = 2 * 2 * 64 * 71
  # The write reads its index alone, as what it writes is in the small memory;
  # the lookup reads three rows of the table; the copy reads and writes all.
  update = 4 + 2 * 2 * 64
  lookup = 3 * 8 * 4 + 3 * 4 + 3 * 8 * 4
  index = 4 + 4 * (4 + 4) + 4 * (4 + 4 + 1)
  assert program.num_bytes == update + lookup + 2 * slots + index


KERNELS = """
HloModule jit_f

%body (state: (s32[], bf16[8,500])) -> (s32[], bf16[8,500]) {
  %state = (s32[], bf16[8,500]{1,0}) parameter(0)
  %index = s32[] get-tuple-element(%state), index=0
  %x = bf16[8,500]{1,0} get-tuple-element(%state), index=1
  %small = bf16[8,500]{1,0:T(8,128)S(1)} fusion(%x), kind=kLoop, calls=%make, backend_config={"estimated_cycles":"1800"}
  %large = bf16[8,500]{1,0:T(8,128)S(1)} fusion(%x), kind=kLoop, calls=%make, backend_config={"estimated_cycles":"2500"}
  %first = bf16[8,500]{1,0:T(8,128)S(1)} custom-call(%small), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"SAME"}}
  %second = bf16[8,500]{1,0} custom-call(%first), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"SAME"}}
  %third = bf16[8,500]{1,0:T(8,128)S(1)} custom-call(%second), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"OTHER"}}
  ROOT %out = (s32[], bf16[8,500]{1,0}) tuple(%index, %third)
}

%condition (state: (s32[], bf16[8,500])) -> pred[] {
  %state = (s32[], bf16[8,500]{1,0}) parameter(0)
  ROOT %on = pred[] constant(true)
}

ENTRY %main (given: (s32[], bf16[8,500])) -> (s32[], bf16[8,500]) {
  %given = (s32[], bf16[8,500]{1,0}) parameter(0)
  ROOT %loop = (s32[], bf16[8,500]{1,0}) while(%given), condition=%condition, body=%body
}
"""


def test_kernels_have_cycles_of_their_own():
  program = rounds.Program(KERNELS, {"first": 700, "third": 90}, 500)
  # Three launches; the second kernel writes 8 kB, and the third reads them.
  assert program.kernel_cycles == 3 * 1800 + 2 * 700 + 90 + 2 * 8000 / 500
  assert program.cycles == 1800 + 2500 + program.kernel_cycles
  chip = chips.Chip(memory=1, bandwidth=500, flops=1, clock=1)
  assert program.seconds(chip) == {"rest": program.cycles}
  assert rounds.Program(TEXT).kernel_cycles == 0


def test_the_instructions_of_kernels_are_read_from_a_dump(tmp_path):
  name = "12-block_attention.7-00-schedule-analysis_final_bundles.txt"
  said = "Schedule analysis:\n\ttotal scheduled bundles:    836\n"
  (tmp_path / name).write_text(said)
  (tmp_path / name.replace("schedule-analysis_", "")).write_text("0x0: x")
  assert case.instructions(tmp_path) == {"block_attention.7": 836}


def test_a_tpu_takes_cycles_or_bytes_of_each_instruction():
  program = rounds.Program(TEXT)
  slow = chips.Chip(memory=1, bandwidth=1e12, flops=1, clock=1e6)
  steps = program.seconds(slow)
  # 120 cycles at 1 MHz, and the bytes of the update.
  update = 4 + 2 * 2 * 64
  assert math.isclose(steps["score"], 120e-6 + update / 1e12)
  fast = dataclasses.replace(slow, clock=1e15)
  # What the same instruction reads: an index.
  assert math.isclose(
    fast_s := program.seconds(fast)["score"], (update + 4) / 1e12
  )
  assert fast_s < steps["score"]
  case = {**CASE, "target": "v5e:1x1"}
  found = row(predicted_steps={"draft": 1500.0, "score": 1000.0, "rest": 20.0})
  assert math.isclose(tables.at_least({"case": case, **found}), 2.52e-3)
  text = tables.tables([{"case": case, **found}])
  assert "| 2.52 | 1.50 | 1.00 | 0.00 | 0.02 |" in text


@pytest.fixture(scope="module")
def tiny():
  sizes = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 24}
  return tuple(
    T5Config(
      **sizes,
      vocab_size=40,
      num_encoder_layers=1,
      num_decoder_layers=num,
      dtype="bfloat16",
    )
    for num in (1, 2)
  )


def test_the_operations_of_a_round_are_those_of_its_products(tiny):
  place = programs.Place((jax.devices()[0],))
  slots = 6 + 2  # a cache has room for the longest output and a block

  def layer(tokens):
    kernels = (4 + 2) * 16 * 16 + 3 * 16 * 24
    attended = 2 * 16 * (slots + 4)  # scores and mixes of 4 source tokens
    return 2 * tokens * (kernels + attended)

  lowered = programs.lower(place, "verifier", tiny, 1, 4, 6)
  assert programs.num_flops(lowered) == 2 * layer(1) + 2 * 16 * 40


def test_a_pass_is_a_round_of_the_battery(tiny):
  place = programs.Place((jax.devices()[0],))
  lowered = programs.lower(place, "pass", tiny, 1, 4, 6)
  slots = passes.CAPACITY + passes.SOURCE_LEN
  products = 6 * 16 * 16 + 3 * 16 * 24 + 2 * 16 * slots
  # Two layers and the vocabulary; no draw is part of a pass.
  assert programs.num_flops(lowered) == 2 * 2 * products + 2 * 16 * 40
  program = rounds.Program(lowered.compile().as_text())
  assert program.loop is not None


def test_a_program_of_a_cpu_has_the_steps_of_a_round(tiny):
  place = programs.Place((jax.devices()[0],))
  lowered = programs.lower(place, "spec_decode", tiny, 1, 4, 6)
  program = rounds.Program(lowered.compile().as_text())
  steps = program.count(rounds.step_of)
  assert min(steps[step] for step in ("draft", "score", "verify")) > 0
  assert program.num_bytes > 0


def row(launches=100, **changes):
  return {
    "launches": launches,
    "fusions": 70,
    "by_step": {"draft": 40, "score": 48},
    "by_kind": {"product": 60, "copy": 1},
    "read_bytes": 8e8,
    "arguments_bytes": 1e9,
    "temporary_bytes": 1e8,
    "cache_copies": 0,
    "loops": 0,
    "cycles": 3_000_000,
    "collectives": 73,
    "sent_bytes": 9e5,
    "flops": 1e9,
    **changes,
  }


CASE = {"pair": "t5-small:t5-large", "method": "spec_decode", "rows": 1}


def test_a_table_says_what_does_not_fit_or_does_not_compile():
  rows = [
    {"case": {**CASE, "target": "h100"}, **row()},
    {"case": {**CASE, "target": "v5e:1x1"}, **row(worked_out=True)},
    {"case": {**CASE, "target": "v5e:1x1"}, **row(arguments_bytes=17e9)},
    {"case": {**CASE, "target": "v4:2x2x1"}, "error": "no room"},
    {
      "case": {**CASE, "target": "v5e:1x1"},
      "error": "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory"
      " required (16.44G) exceeds available HBM (15.75G).",
    },
  ]
  text = tables.tables(rows)
  assert "| t5-small for t5-large | spec_decode | 1 | 100 | 2.0 | 40 |" in text
  assert "17.10, does not fit" in text
  assert "| v4:2x2x1 | no room |" in text
  assert "| v5e:1x1 | does not fit: 16.44G of 15.75G |" in text
  assert "| 70 | 30 | 3.00 | 0.80 | 1.0 | 73 | 0.90 | 2.00 |" in text
  assert "from 2 and 4 layers" in text
  # 3 M cycles at 1.5 GHz take longer than 0.8 GB at 0.819 TB/s.
  assert "| 2.00 |" in text
  assert tables.at_least(rows[1]) == 2e-3


def test_a_program_is_worked_out_from_few_layers(monkeypatch):
  def compile_case(case, layers, limit_s, kernels=None):
    compiled_layers.append(layers)
    drafter, verifier = layers
    number = 7 + 3 * drafter + 5 * verifier
    return {
      "launches": number,
      "by_step": {"draft": 3 * drafter, "score": 5 * verifier},
      "compiled_s": 1.0,
    }

  compiled_layers = []
  monkeypatch.setattr(command, "compile_case", compile_case)
  found = command.from_few_layers(CASE)
  assert found == {
    "worked_out": True,
    "launches": 7 + 3 * 8 + 5 * 24,
    "by_step": {"draft": 3 * 8, "score": 5 * 24},
  }
  assert sorted(compiled_layers) == [(2, 2), (2, 4), (4, 2)]
  # A drafter that is not there is not compiled with more layers.
  compiled_layers.clear()
  command.from_few_layers(CASE | {"method": "verifier"})
  assert sorted(compiled_layers) == [(2, 2), (2, 4)]


def test_rows_are_kept_and_not_compiled_again(tmp_path, monkeypatch, capsys):
  compiled_cases = []

  def compile_case(case, layers, limit_s, kernels=None):
    compiled_cases.append(case["method"])
    return None if case["method"] == "spec_decode" else row()

  monkeypatch.setattr(command, "compile_case", compile_case)
  monkeypatch.setattr(
    command,
    "from_few_layers",
    lambda case, kernels: row(worked_out=True),
  )
  flags = ["--methods", "verifier", "spec_decode", "--output_dir"]
  assert command.main([*flags, str(tmp_path)]) == 0
  assert compiled_cases == ["verifier", "spec_decode"]
  assert command.main([*flags, str(tmp_path)]) == 0
  assert len(compiled_cases) == 2
  assert "is there" in capsys.readouterr().out
  lines = (tmp_path / command.ROWS).read_text().splitlines()
  assert [json.loads(x).get("worked_out") for x in lines] == [None, True]
  assert (tmp_path / command.TABLES).read_text().startswith("| models |")


def test_it_says_what_it_is(capsys):
  with pytest.raises(SystemExit) as end:
    command.main(["--help"])
  assert end.value.code == 0
  assert "--targets" in capsys.readouterr().out


def test_cuda_without_its_compiler_is_refused(monkeypatch, capsys):
  monkeypatch.setattr(nvrtc, "is_available", lambda: False)
  flags = "--target h100 --method verifier --pair t5-small:t5-large"
  with pytest.raises(SystemExit):
    case.main([*flags.split(), "--variant", "cuda"])
  last = capsys.readouterr().err.splitlines()[-1]
  assert "--variant cuda needs NVRTC" in last
  assert "pip install nvidia-cuda-nvrtc-cu12" in last
