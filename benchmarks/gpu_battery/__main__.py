"""Everything that one GPU can measure in eight minutes, in one command.

  python -m benchmarks.gpu_battery --output_dir out/battery
  python -m benchmarks.gpu_battery --prepare data --data out/battery_texts.npz
  python -m benchmarks.gpu_battery --data out/battery_texts.npz

Names the card, and measures how fast its memory is read. Then all programs are
compiled side by side, and the parts are measured one after the other:

  large   passes of T5-large over one token and over blocks, against the bound
  pair    trains a pair, and times its methods at temperature 1, with their BLEU
  forced  T5-small drafts for T5-large, at forced acceptance
  llamas  passes of Llamas of one and of eight billion weights
  memory  seconds and bytes of each program
  kernels configurations of the kernels of a T5's layer, and configurations.json
          with the best; only where --only asks for it

Parts begin when everything is compiled, or after --compile_s: XLA tries
kernels on the GPU while it compiles, and what is timed beside that is wrong.
Each row is written at once to rows.jsonl, and the tables to tables.md after
each part. The same command continues with the parts that are incomplete, and
does not train the pair again, which is kept as bfloat16 in pair.npz. When
--budget_s is over, the battery says what it left out, and ends.

The pair learns the package's built-in task, or the texts of --data: --prepare
makes such a file, on any machine, of FOLDER/train.en, FOLDER/train.de and the
files of a test set, plain or .gz. Needs jax, flax, optax, sentencepiece and
sacrebleu, and neither TensorFlow, seqio nor gin.
"""

import argparse
import os
import pathlib
import sys
import threading
import traceback

import jax

from benchmarks.gpu_battery import (
  card,
  configurations,
  figure,
  forced,
  models,
  passes,
  texts,
)
from benchmarks.gpu_battery.ahead import VARIANTS, Ahead
from benchmarks.gpu_battery.records import Clock, Records
from benchmarks.gpu_battery.sizes import FULL, TINY, Sizes

PARTS = ("large", "pair", "forced", "llamas", "memory")
ALL_PARTS = (*PARTS, configurations.PART)
LLAMA_WIDTHS = (1, 6)
# Seconds that the parts after the pair may need, which its decodes leave them.
AFTER_PAIR = 80.0


class Battery:
  """A run of the battery.

  Args:
    args: the command line.
    clock: the time that is left.
    records: where rows go.
  """

  def __init__(self, args: argparse.Namespace, clock: Clock, records: Records):
    self.args, self.clock, self.records = args, clock, records
    self.sizes: Sizes = TINY if args.tiny else FULL
    self.left_out: list[str] = []
    self.wanted = [
      part
      for part in ALL_PARTS
      if part in args.only and not records.is_whole(part)
    ]
    self.ahead = Ahead(args.variants[-1])
    self.described = {
      name: models.described(config)
      for name, config in {**self.sizes.t5s, **self.sizes.llamas}.items()
    }
    self.held: dict = {}  # models with weights, by name
    self.large_passes: dict[int, list[float]] = {}

  def run(self):
    """Measures the parts that are wanted and not whole."""
    if not self.wanted:
      self.clock.say("nothing to do: all parts are whole")
      return
    about = card.about()
    self.clock.say(f"{about['device']}, driver {about['driver']}")
    self.bandwidth = card.bandwidth(self.sizes.sum_bytes, self.sizes.rounds)
    self.clock.say(f"reads {self.bandwidth[0] / 1e12:.3f} TB/s")
    part = f"card {len(self.records.rows)}"
    about["read_TB_s"] = [x / 1e12 for x in self.bandwidth]
    for key, value in about.items():
      self.records.add(part, "The card", what=key, value=value)
    self.records.finish(part)
    self._add_programs()
    late = self.ahead.wait(
      min(self.args.compile_s - self.clock.elapsed, self.clock.left)
    )
    self.clock.say(
      f"{len(self.ahead.rows)} programs are compiled, {len(late)} are not"
    )
    for part in self._order(late):
      self._measure(part)

  def _order(self, late: list[str]) -> list[str]:
    """Returns the parts; the pair comes later if its training still compiles.

    Args:
      late: names of programs that still compile.
    """
    order = list(self.wanted)
    if "pair" in order and set(late) & self.pair.training_programs:
      self.clock.say("the training still compiles: the pair comes later")
      order.remove("pair")
      at = order.index("memory") if "memory" in order else len(order)
      order.insert(at, "pair")
    return order

  def _measure(self, part: str):
    """Measures a part; an error of one part leaves the others."""
    if self.clock.left < self.args.least_s:
      self.left_out.append(f"{part}: {self.clock.left:.0f} s were left")
      return
    began = self.clock.elapsed
    self.clock.say(f"part {part} begins")
    try:
      getattr(self, f"_{part}")()
    except Exception as error:
      traceback.print_exc()
      first = str(error).partition("\n")[0]
      self.left_out.append(f"{part}: {type(error).__name__}: {first}")
      print("\n".join(self.records.tables(part)), flush=True)
      return
    finally:
      self.records.write_tables(self.left_out)
    seconds = self.clock.elapsed - began
    self.records.finish(part, s=seconds, peak_bytes=card.peak_bytes())
    print("\n".join(self.records.tables(part)), flush=True)
    self.clock.say(f"part {part} took {seconds:.0f} s")

  def _add_programs(self):
    """Adds the programs of all parts that are wanted, the slowest first."""
    data = None
    if "pair" in self.wanted:
      data = self._texts()
      path = self.args.pair or self.args.output_dir / figure.PAIR
      self.pair = figure.Pair(self.sizes, data, path)
      self.pair.add_training(self.ahead)
    if {"large", "forced"} & set(self.wanted):
      passes.add(
        self.ahead,
        "large",
        self.described["large"],
        forced.LARGE_WIDTHS,
        self.sizes.passes,
        self.args.variants,
        forced.TREES,
      )
    if configurations.PART in self.wanted:
      t5s = list(self.sizes.t5s.values())
      self.tuning = configurations.Tuning(self.ahead, t5s)
    if "pair" in self.wanted:
      self.pair.add(self.ahead)
    if "forced" in self.wanted:
      forced.add(self.ahead, self.described, self.sizes)
    if "llamas" in self.wanted:
      for name in self.sizes.llamas:
        passes.add(
          self.ahead,
          name,
          self.described[name],
          LLAMA_WIDTHS,
          self.sizes.passes,
          self.args.variants,
        )

  def _texts(self) -> texts.Texts:
    if self.args.data is not None:
      return texts.load(self.args.data)
    sizes = self.sizes
    return texts.built_in(
      sizes.training.length,
      sizes.source_len,
      sizes.sentences,
      sizes.training.rows if self.args.tiny else texts.BUILT_IN_TRAIN,
    )

  def _model(self, name: str):
    """Returns a model with random weights, made once."""
    if name not in self.held:
      self.held[name] = models.filled(self.described[name])
      jax.block_until_ready(self.held[name])
      self.clock.say(f"{name} has its weights")
    return self.held[name]

  def _time_passes(self, name: str, widths) -> dict:
    return passes.measure(
      self.ahead,
      name,
      self._model(name),
      widths,
      self.sizes.passes,
      self.sizes.rounds,
      self.args.variants,
    )

  def _time_large(self) -> dict:
    times = self._time_passes("large", forced.LARGE_WIDTHS)
    last = self.args.variants[-1]
    self.large_passes = {
      width: each for (variant, width), each in times.items() if variant == last
    }
    return times

  def _record_passes(self, part: str, name: str, times: dict):
    table = "T5-large, a pass" if part == "large" else "Llamas, a pass"
    num_bytes = models.pass_bytes(self.described[name])
    passes.record(
      self.records, part, table, name, times, num_bytes, self.bandwidth[0]
    )

  def _large(self):
    self._record_passes("large", "large", self._time_large())

  def _pair(self):
    until = self.clock.elapsed + self.clock.left - self._after_pair()
    self.pair.measure(self.ahead, self.records, self.clock, "pair", until)

  def _after_pair(self) -> float:
    """Returns the seconds that the decodes of the pair leave the others."""
    return AFTER_PAIR if len(self.wanted) > 1 else 0.0

  def _forced(self):
    if not self.large_passes:  # the part "large" was whole, or failed
      self._time_large()
    lms = {name: self._model(name) for name in ("large", "small")}
    forced.measure(
      self.ahead,
      lms,
      self.sizes,
      self.large_passes,
      self.records,
      self.clock,
      "forced",
    )

  def _llamas(self):
    self.held.clear()
    for name in self.sizes.llamas:
      self._record_passes("llamas", name, self._time_passes(name, LLAMA_WIDTHS))
      self.held.clear()

  def _kernels(self):
    better = self.tuning.measure(self.records, self.sizes.rounds)
    device = jax.devices()[0].device_kind
    configurations.write(self.records.folder, device, better)
    self.clock.say(f"{len(better)} configurations are better than worked out")

  def _memory(self):
    for row in sorted(self.ahead.rows, key=lambda row: -row["compiled_s"]):
      self.records.add("memory", "Programs", **row)


def stop(battery: Battery):
  """Ends the process when the budget is over, whatever is running."""
  battery.clock.say("the budget is over")
  whole = battery.records.is_whole
  for part in battery.wanted:
    if not whole(part) and not any(
      note.startswith(f"{part}:") for note in battery.left_out
    ):
      battery.left_out.append(f"{part}: the budget was over")
  finish(battery)


def finish(battery: Battery):
  """Writes the tables, says what was left out, and ends the process.

  The process ends at once: a running compilation would hold it.
  """
  battery.records.write_tables(battery.left_out)
  for note in battery.left_out:
    battery.clock.say(f"left out: {note}")
  battery.clock.say(f"written to {battery.records.folder}")
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1 if battery.left_out else 0)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
  # Not the parser of our own mains, whose package reads gin files.
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.gpu_battery",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  path = pathlib.Path
  add("--output_dir", type=path, default=path("out/gpu_battery"))
  add("--budget_s", type=float, default=460.0, help="seconds in all")
  add(
    "--compile_s",
    type=float,
    default=230.0,
    help="seconds after which parts begin though programs still compile",
  )
  add(
    "--least_s",
    type=float,
    default=5.0,
    help="no part begins when fewer seconds are left",
  )
  add("--only", nargs="+", choices=ALL_PARTS, default=PARTS, metavar="PART")
  add(
    "--variants",
    nargs="+",
    choices=VARIANTS,
    default=["xla"],
    help="how passes are lowered, timed in turn; the last one is timed in"
    " decodes, too",
  )
  add("--data", type=path, help="texts that --prepare wrote")
  add(
    "--pair",
    type=path,
    help="a pair.npz of another battery with the same texts, which is then not"
    " trained",
  )
  add("--tiny", action="store_true", help="tiny models, to try the battery")
  add("--prepare", type=path, metavar="FOLDER", help="write --data and end")
  add("--train", default="train", help="name of FOLDER's training files")
  add("--test", default="test_2016_flickr", help="name of FOLDER's test files")
  args = parser.parse_args(argv)
  if args.prepare is not None and args.data is None:
    parser.error("--prepare writes the file that --data names; give it, too")
  return args


def prepare(args: argparse.Namespace):
  """Writes the texts of --data."""
  length, source_len = FULL.training.length, FULL.source_len
  data = texts.from_files(
    args.prepare, args.train, args.test, length, source_len
  )
  data.save(args.data)
  print(
    f"{len(data.train_inputs)} pairs to train on, {len(data.test_inputs)} to"
    f" test, {data.vocab_size} pieces in {args.data},"
    f" {args.data.stat().st_size / 1e6:.1f} MB"
  )


def main():
  args = parse()
  if args.prepare is not None:
    prepare(args)
    return
  clock = Clock(args.budget_s)
  battery = Battery(args, clock, Records(args.output_dir))
  timer = threading.Timer(args.budget_s, stop, [battery])
  timer.daemon = True
  timer.start()
  try:
    battery.run()
  except Exception as error:
    traceback.print_exc()
    battery.left_out.append(f"all: {type(error).__name__}")
  timer.cancel()
  finish(battery)


if __name__ == "__main__":
  main()
