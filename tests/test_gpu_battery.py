"""The battery for one GPU, with tiny models on a CPU."""

import dataclasses
import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu_battery import __main__ as battery
from benchmarks.gpu_battery import (
  configurations,
  figure,
  models,
  programs,
  records,
  sizes,
  texts,
  training,
)
from benchmarks.gpu_battery.training import Trainer
from tests import toy


def measure(folder, *argv: str) -> battery.Battery:
  args = battery.parse(["--tiny", "--output_dir", str(folder), *argv])
  clock = records.Clock(args.budget_s)
  run = battery.Battery(args, clock, records.Records(args.output_dir))
  run.run()
  return run


def test_parts_are_written_and_a_second_run_leaves_them(tmp_path, capsys):
  first = measure(tmp_path, "--only", "llamas", "memory")
  assert first.left_out == []
  lines = (tmp_path / records.ROWS).read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  passes = [row for row in rows if row["part"] == "llamas" and "table" in row]
  assert [row["tokens"] for row in passes] == [1, 6]
  for row in passes:
    middle, low, high = row["ms_a_pass"]
    assert 0 < low <= middle <= high
    assert row["share_of_bound"] == pytest.approx(row["bound_ms"] / middle)
  compiled = [row for row in rows if row["part"] == "memory" and "table" in row]
  assert len(compiled) == 3  # the prefill, and two widths
  assert all(row["compiled_s"] > 0 < row["argument_bytes"] for row in compiled)
  tables = (tmp_path / records.TABLES).read_text()
  assert "Llamas, a pass" in tables
  # Half a line of a killed run is not a row, and its part is measured again.
  with open(tmp_path / records.ROWS, "a") as file:
    file.write('{"part": "large", "table": "x"}\n{"part": "lar')
  second = measure(tmp_path, "--only", "llamas", "memory")
  assert second.wanted == []
  assert not second.records.of("large")
  assert len(second.records.rows) == len(rows)
  assert "nothing to do" in capsys.readouterr().out


def test_configurations_are_timed_and_written(tmp_path, monkeypatch):
  # With any time a configuration is better, but for the worked out one.
  monkeypatch.setattr(configurations, "WORTH", 1e9)
  monkeypatch.setattr(configurations, "_BYTES", 1 << 15)
  only = {"{}": None, '{"warps": 2}': None}
  plain = configurations.candidates

  def few(product):
    return {name: how for name, how in plain(product).items() if name in only}

  monkeypatch.setattr(configurations, "candidates", few)
  run = measure(tmp_path, "--only", "kernels")
  assert run.left_out == []
  rows = run.records.of("kernels")
  sizes = {row["sizes"] for row in rows}
  assert "64 to 64+64+64, normed, 16 rows, bfloat16" in sizes
  assert len(rows) == 3 * len(sizes)
  table = json.loads((tmp_path / "configurations.json").read_text())
  [kernels] = [table[device] for device in table if device.startswith("cpu")]
  written = kernels["row_products triton"]
  assert written.keys() == sizes
  assert all(each in ({}, {"warps": 2}) for each in written.values())


def test_no_part_begins_when_the_time_is_up(tmp_path):
  late = measure(tmp_path, "--only", "memory", "--least_s", "1000")
  assert late.left_out[0].startswith("memory: ")
  assert not late.records.is_whole("memory")


def test_a_trained_pair_is_read_and_not_trained_again(tmp_path):
  data, path = texts.built_in(32, 32, 2, 4), tmp_path / figure.PAIR
  pair = figure.Pair(sizes.TINY, data, path)
  assert len(pair.training_programs) == 4
  lms = [models.filled(models.described(x.config)) for x in pair.trainers]
  training.save(path, pair.trainers, lms, [{"steps": 4}])
  pair = figure.Pair(sizes.TINY, data, path)
  assert not pair.training_programs
  read, rows = training.load(path, pair.trainers)
  assert rows == [{"steps": 4}]
  for old, new in zip(lms, read):
    same = jax.tree.map(
      lambda x, y: x.dtype == y.dtype and bool((x == y).all()), old, new
    )
    assert all(jax.tree.leaves(same))
  wider = dataclasses.replace(sizes.TINY, drafter=sizes.TINY.verifier)
  with pytest.raises(ValueError, match="name another file"):
    training.load(path, figure.Pair(wider, data, path).trainers)


@pytest.mark.slow
def test_all_parts(tmp_path):
  whole = measure(tmp_path, "--budget_s", "1800", "--compile_s", "1700")
  assert whole.left_out == []
  assert all(map(whole.records.is_whole, battery.PARTS))
  rows = [
    row
    for row in whole.records.of("pair")
    if row["table"].startswith("Figure 2")
  ]
  assert len(rows) == 15
  assert (tmp_path / figure.PAIR).exists()
  assert all(row["ms_a_sentence"] > 0 for row in rows)


def test_acceptance_is_forced():
  # Of 12 tokens a chain of 2 writes 3 a block where all drafts are accepted, 1
  # where none is; so does a tree of this depth.
  drafter, verifier = toy.pair().models()
  inputs, keys = toy.pair().inputs(1), programs.keys()
  for tree in (None, (2, 1)):
    run = jax.jit(programs.forced(2, tree, 12))
    for rate, blocks in ((1.0, 4), (0.0, 12)):
      out = run(drafter, verifier, inputs, keys, programs.sampled(), rate)
      assert int(out.stats.num_blocks[0]) == blocks


def test_a_pass_reads_the_decoder_and_the_output_projection():
  config = sizes.TINY.drafter  # d 8, one head of 8, ff 8, V 32128, not tied
  own = 4 * 8 * 8 + 2 * 8 * 8 + 3 * 8 * 8  # attention, query and out, MLP
  norms, bias = 4 * 8, 32 * 1
  wanted = 2 * (own + norms + bias + 8 * 32128)
  assert models.pass_bytes(models.described(config)) == wanted
  tied = sizes.TINY.llamas["Llama-tiny"]
  wanted = 2 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 16 + 3 * 16 + 16 * 64)
  assert models.pass_bytes(models.described(tied)) == wanted


def test_texts_of_files_are_stored_and_read(tmp_path):
  words = ["one", "two", "three", "four", "five", "six", "seven"]
  rng = np.random.default_rng(0)
  for name, num in (("train", 300), ("test", 5)):
    for suffix in ("en", "de"):
      lines = [" ".join(rng.choice(words, 6)) for _ in range(num)]
      text = "\n".join(lines) + "\n"
      with gzip.open(tmp_path / f"{name}.{suffix}.gz", "wt") as file:
        file.write(text)
  made = texts.from_files(tmp_path, "train", "test", 32, 32, 24)
  made.save(tmp_path / "out" / "texts.npz")
  read = texts.load(tmp_path / "out" / "texts.npz")
  assert (read.name, read.model) == ("train, test", made.model)
  assert np.array_equal(read.train_targets, made.train_targets)
  assert read.references == made.references == [[x] for x in lines]
  row = read.test_inputs[0]
  assert row[np.argmin(row) - 1] == texts.EOS
  source = texts.text_of(read.processor, row[row > 0])
  assert set(source.split()) <= set(words)
  beyond = np.append(row[row > 0], read.vocab_size - 1)
  assert texts.text_of(read.processor, beyond) == source


def test_the_rate_rises_to_its_peak_and_falls_to_0():
  how = sizes.FULL.training
  trainer = Trainer("x", sizes.FULL.drafter, 0.1, how)
  steps = jnp.asarray([0, how.warmup - 1, how.warmup, 1000])
  rates = trainer._rate(steps, jnp.float32(1000)) / how.rate
  np.testing.assert_allclose(rates, [1 / how.warmup, 1, 1, 0], rtol=1e-5)
