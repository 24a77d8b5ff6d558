"""Races our decoders against Hugging Face generation, in turn, in one run.

  python -m benchmarks.race --peer_python PATH --output_dir out/race

PATH is a Python with torch and transformers; they need not be in this one. Each
side is a process of its own, warmed up once; every round asks both, so that a
ratio is taken between neighbours in time. Prints a table and writes race.json
and race.md. The weights are random and come from the peer. Each race is run by
kernel type, and the peer keeps its best. Our activations are float32 on a CPU,
and have the kernels' type on a GPU. Of this package's needs a box with a GPU
must have jax, flax, safetensors and what the checkpoints are read with; neither
TensorFlow, seqio nor gin.
"""

import argparse
from collections.abc import Generator
import dataclasses
import functools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

from tqdm import tqdm

from benchmarks import shapes
from speccascade.decoding.records.decode_settings import block_width
from speccascade.models import parameters
from speccascade.runtime import files
from speccascade.study.papers import speedup

AR_SHAPES = ("t5-small", "t5-base", "128/3", "256/4", "256/6", "192/6")
RACES = ("autoregressive", "blocks", "speculative", "rules", "batches")
PEER_DTYPES = ("float32", "bfloat16")
# The peer's (dtype, threads) on a CPU; elsewhere threads do not matter.
PEER_MODES = [(d, t) for d in PEER_DTYPES for t in (1, 2)]
RATES = (0.0, 0.7, 0.9, 1.0)
RULES = (
  "spec_cascade_chow",
  "spec_cascade_diff",
  "spec_cascade_opt",
  "spec_cascade_token_v1",
  "spec_cascade_token_v2",
  "spec_cascade_token_v3",
  "spec_decode_lossy",
  "spec_decode_lossy_star",
)


class Worker:
  """One side of the race: a process that answers requests."""

  def __init__(self, command, environment):
    try:
      self._process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
      )
    except OSError as error:
      raise SystemExit(f"error: {error}") from error
    self.about = json.loads(self._line())

  def _line(self):
    line = self._process.stdout.readline()
    if not line:
      raise SystemExit("a worker died; its message is above")
    return line

  def ask(self, **request):
    """Returns the answer to a request."""
    self._process.stdin.write(json.dumps(request) + "\n")
    self._process.stdin.flush()
    return json.loads(self._line())

  def close(self):
    self._process.stdin.close()
    self._process.wait()


@dataclasses.dataclass(frozen=True)
class Request:
  """A case that a worker times.

  Attributes:
    worker: the worker.
    fields: the request.
  """

  worker: Worker
  fields: dict

  def __call__(self) -> dict:
    return self.worker.ask(**self.fields)


@dataclasses.dataclass(frozen=True)
class Race:
  """The two sides, and what each round asks them.

  Attributes:
    ours: our worker.
    peer: the peer's.
    rounds: how many rounds there are.
    dtypes: the types of kernels that take part.
  """

  ours: Worker
  peer: Worker
  rounds: int
  dtypes: list[str]

  @property
  def is_on_cpu(self) -> bool:
    """Whether both sides compute on a CPU."""
    return self.ours.about["platform"] == "cpu"

  @property
  def kernels(self) -> tuple[str, ...]:
    """The types of our kernels."""
    all_types = parameters.KERNEL_DTYPES if self.is_on_cpu else PEER_DTYPES
    return tuple(x for x in all_types if x in self.dtypes)

  @property
  def peer_modes(self) -> list[tuple[str, int]]:
    """The peer's (dtype, threads)."""
    modes = PEER_MODES if self.is_on_cpu else [(x, 1) for x in PEER_DTYPES]
    return [mode for mode in modes if mode[0] in self.dtypes]

  def of_ours(self, case: str, **fields) -> Request:
    return Request(self.ours, {"case": case, **fields})

  def of_peer(self, mode: tuple[str, int], case: str, **fields) -> Request:
    dtype, threads = mode
    asked = {"case": case, "dtype": dtype, "threads": threads, **fields}
    return Request(self.peer, asked)

  def heat(self, cases: dict, label: str) -> "Heat":
    return Heat(cases, label, self.rounds)

  def compile(self, heats: list["Heat"]):
    """Compiles all of our programs side by side."""
    requests = [x for heat in heats for x in heat.cases.values()]
    fields = [x.fields for x in requests if x.worker is self.ours]
    print(f"compiling {len(fields)} cases", flush=True)
    seconds = self.ours.ask(case="compile", requests=fields)["seconds"]
    print(f"compiled in {seconds:.0f} s", flush=True)


@dataclasses.dataclass(frozen=True)
class Heat:
  """Cases that are timed in turn.

  A race is a generator: it yields its heat, is sent the seconds of each case,
  a list by name, and returns its row. So all programs are known before any
  runs.

  Attributes:
    cases: requests by name.
    label: what the progress bar says.
    rounds: how many rounds there are.
  """

  cases: dict
  label: str
  rounds: int


Running = Generator[Heat, dict, dict]


def in_turn(cases: dict, rounds: int, label: str) -> dict:
  """Asks every case once a round; returns the seconds of each, by name."""
  for ask in cases.values():
    ask()  # compile, load, warm up
  times = {name: [] for name in cases}
  for _ in tqdm(range(rounds), desc=label, leave=False):
    for name, ask in cases.items():
      times[name].append(ask()["seconds"])
  return times


def ratio(over: list, under: list) -> dict:
  """Returns median, least and most of the per-round ratio."""
  ratios = [a / b for a, b in zip(over, under)]
  return {
    "median": statistics.median(ratios),
    "min": min(ratios),
    "max": max(ratios),
  }


def race_autoregressive(race: Race, shape: str) -> Running:
  """Tokens one by one, against the peer's best mode."""
  cases = {
    f"ours {kernels}": race.of_ours("ar", shape=shape, kernels=kernels)
    for kernels in race.kernels
  }
  for mode in race.peer_modes:
    cases[f"peer {mode[0]} {mode[1]} thr"] = race.of_peer(
      mode, "ar", shape=shape
    )
  times = yield race.heat(cases, f"autoregressive {shape}")
  per_token = {
    name: statistics.median(values) / shapes.NEW_TOKENS * 1e3
    for name, values in times.items()
  }
  row = {"race": "autoregressive", "shape": shape, "ms_per_token": per_token}
  bandwidth = race.ours.ask(case="bandwidth", repeats=5)["bytes_per_s"]
  best = min(
    (name for name in times if name.startswith("peer")),
    key=lambda name: statistics.median(times[name]),
  )
  row |= {"peer_best": best, "bandwidth_share": {}, "ratio": {}}
  for kernels in race.kernels:
    mine = times[f"ours {kernels}"]
    size = shapes.decoder_bytes(shape) / (1 if kernels == "float32" else 2)
    used = size / (min(mine) / shapes.NEW_TOKENS)
    row["bandwidth_share"][kernels] = used / bandwidth
    row["ratio"][kernels] = ratio(times[best], mine)
  # In bfloat16 the two sides round differently, and tokens may differ.
  if "float32" in race.kernels:
    mine = race.ours.ask(case="ar", shape=shape)["tokens"]
    theirs = race.peer.ask(case="ar", shape=shape, threads=1)["tokens"]
    row["same_tokens"] = mine == theirs
  return row


def race_blocks(race: Race, shape: str, widths: list[int]) -> Running:
  """A block of N tokens over one token."""
  cases = {
    (kernels, n): race.of_ours("block", shape=shape, width=n, kernels=kernels)
    for kernels in race.kernels
    for n in sorted({1, *widths})
  }
  times = yield race.heat(cases, f"blocks {shape}")
  name = lambda case: f"{case[0]} {case[1]}"
  return {
    "race": "block over one token",
    "shape": shape,
    "ms": {name(case): min(times[case]) * 1e3 for case in cases},
    "ratio": {
      name(case): ratio(times[case], times[case[0], 1]) for case in cases
    },
  }


def race_speculative(
  race: Race, shape: str, gamma: int, kernels: str
) -> Running:
  """Forced acceptance, the cost model, and assisted generation."""
  small = shapes.DRAFTERS[shape]
  ours = functools.partial(race.of_ours, kernels=kernels)
  cases = {"ar": ours("ar", shape=shape)}
  for rate in RATES:
    cases[f"spec {rate:g}"] = ours("spec", shape=shape, gamma=gamma, rate=rate)
  for name, model, role, width in (
    ("step", shape, "verifier", 1),
    ("verify", shape, "verifier", block_width(gamma)),
    ("draft", small, "drafter", 1),
    ("draft 2", small, "drafter", 2),
  ):
    cases[name] = ours("block", shape=model, role=role, width=width)
  for name, model, role in (
    ("encode", shape, "verifier"),
    ("encode small", small, "drafter"),
  ):
    cases[name] = ours("prefill", shape=model, role=role)
  for is_all in (True, False):
    for mode in race.peer_modes:
      key = f"peer {'all' if is_all else 'none'} {mode[0]} {mode[1]} thr"
      cases[key] = race.of_peer(
        mode, "spec", shape=shape, gamma=gamma, accept_all=is_all
      )
  times = yield race.heat(cases, f"speculative {shape}, {kernels}")
  low = {name: min(values) for name, values in times.items()}
  c, q2 = low["draft"] / low["step"], low["draft 2"] / low["step"]
  v = low["verify"] / low["step"]
  # In steps of the verifier, as c, q2 and v.
  encode = low["encode"] / low["step"]
  encode_both = encode + low["encode small"] / low["step"]
  row = {
    "race": f"speculative, {kernels} kernels",
    "shape": shape,
    "drafter": small,
    "gamma": gamma,
    "c": c,
    "q2": q2,
    "v": v,
    "ms_per_token": {
      name: statistics.median(values) / shapes.NEW_TOKENS * 1e3
      for name, values in times.items()
      if name.startswith(("ar", "spec", "peer"))
    },
    "speedup": {},
  }
  num = shapes.NEW_TOKENS
  for rate in RATES:
    answer = cases[f"spec {rate:g}"]()
    tokens = num / answer["blocks"]
    predicted = speedup.predicted_speedup(tokens, gamma, c, v=v, q2=q2)
    whole = (encode + num) / (encode_both + num / predicted)
    measured = ratio(times["ar"], times[f"spec {rate:g}"])
    row["speedup"][f"{rate:g}"] = {
      **measured,
      "tokens_per_block": tokens,
      "predicted": predicted,
      "measured_over_predicted": measured["median"] / predicted,
      "predicted_with_encoders": whole,
      "measured_over_predicted_with_encoders": measured["median"] / whole,
    }
  for word, rate in (("all", "1"), ("none", "0")):
    modes = [name for name in times if name.startswith(f"peer {word} ")]
    best = min(modes, key=lambda name: statistics.median(times[name]))
    row[f"ratio_{word}"] = {
      **ratio(times[best], times[f"spec {rate}"]),
      "peer_best": best,
    }
  return row


def race_rules(race: Race, shape: str, gamma: int) -> Running:
  """What a rule adds to a block of lossless verification, at temperature 1."""
  ours = functools.partial(
    race.of_ours, "spec", shape=shape, gamma=gamma, rate=0.7, temperature=1.0
  )
  cases = {"spec_decode": ours()}
  for name in (*RULES, "ensemble"):
    cases[name] = ours(target=name)
  cases["top_p .9"] = ours(top_p=0.9)
  times = yield race.heat(cases, f"rules {shape}")
  # A target that uses q pays one drafter step more, which is not the rule's:
  # `ensemble` is the cheapest of them and stands for lossless verification.
  return {
    "race": "rules",
    "shape": shape,
    "gamma": gamma,
    "over_spec_decode": {
      name: ratio(values, times["spec_decode"])
      for name, values in times.items()
    },
    "over_cheapest_target_of_q": {
      name: ratio(values, times["ensemble"])
      for name, values in times.items()
      if name in RULES
    },
  }


def race_batches(race: Race, shape: str) -> Running:
  """Tokens a second of ragged batches over batch 1."""
  cases = {
    (kernels, rows): race.of_ours("ar", shape=shape, rows=rows, kernels=kernels)
    for kernels in race.kernels
    for rows in (1, 8, 32)
  }
  times = yield race.heat(cases, f"batches {shape}")
  return {
    "race": "batch",
    "shape": shape,
    "throughput_ratio": {
      f"{kernels} {rows}": {
        k: rows * x
        for k, x in ratio(times[kernels, 1], times[kernels, rows]).items()
      }
      for kernels, rows in cases
    },
  }


def markdown(about, rows) -> str:
  """Returns the tables of a run."""
  lines = ["# Race", ""]
  lines += [f"- {key}: {value}" for key, value in about.items()]
  fmt = lambda r: f"{r['median']:.2f} [{r['min']:.2f}, {r['max']:.2f}]"
  lines += ["", "Ratios are medians over rounds [least, most].", ""]
  for row in rows:
    lines += [f"## {row['race']}, {row['shape']}", ""]
    if row["race"] == "autoregressive":
      lines += ["| mode | ms a token |", "| --- | ---: |"]
      lines += [f"| {k} | {x:.3f} |" for k, x in row["ms_per_token"].items()]
      lines += [""]
      lines += [
        f"{kernels} kernels, against {row['peer_best']}:"
        f" **{fmt(row['ratio'][kernels])}** times faster, at"
        f" {row['bandwidth_share'][kernels]:.0%} of the read bandwidth."
        for kernels in row["ratio"]
      ]
      if "same_tokens" in row:
        lines += [f"Same tokens in float32: {row['same_tokens']}."]
    elif row["race"].startswith("speculative"):
      lines += [
        f"Drafter {row['drafter']}, gamma {row['gamma']}; c {row['c']:.3f},"
        f" q2 {row['q2']:.3f}, v {row['v']:.2f}.",
        "",
        "| acceptance | tokens a block | speed-up | predicted | ratio |"
        " with encoders | ratio |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
      ]
      lines += [
        f"| {rate} | {x['tokens_per_block']:.2f} | {fmt(x)} |"
        f" {x['predicted']:.2f} | {x['measured_over_predicted']:.2f} |"
        f" {x['predicted_with_encoders']:.2f} |"
        f" {x['measured_over_predicted_with_encoders']:.2f} |"
        for rate, x in row["speedup"].items()
      ]
      for word in ("all", "none"):
        if f"ratio_{word}" in row:
          x = row[f"ratio_{word}"]
          lines += [
            "",
            f"Against assisted generation, {word} accepted"
            f" ({x['peer_best']}): **{fmt(x)}** times faster.",
          ]
    else:
      for key, table in row.items():
        if isinstance(table, dict) and key != "ms":
          title = key.replace("_", " ")
          lines += [f"| case | {title} |", "| --- | ---: |"]
          lines += [f"| {name} | {fmt(x)} |" for name, x in table.items()]
          lines += [""]
    lines += [""]
  return "\n".join(lines)


def write(out: pathlib.Path, about, rows):
  """Writes race.json and race.md."""
  files.write_whole(
    out / "race.json", json.dumps({"about": about, "rows": rows}, indent=2)
  )
  files.write_whole(out / "race.md", markdown(about, rows))


def main():
  # Not the parser of our own mains, whose package reads gin files.
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.race",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--peer_python", required=True, help="a Python with torch and transformers"
  )
  parser.add_argument("--rounds", type=int, default=7)
  parser.add_argument("--gamma", type=int, default=5)
  parser.add_argument("--output_dir", default="out/race")
  parser.add_argument(
    "--shapes",
    nargs="*",
    choices=shapes.SHAPES,
    default=AR_SHAPES,
    help="verifiers that take part",
  )
  parser.add_argument("--only", nargs="*", choices=RACES, default=RACES)
  parser.add_argument(
    "--widths",
    nargs="+",
    type=int,
    default=[2, 4, 6, 8],
    help="tokens of the blocks that are timed against one token",
  )
  parser.add_argument(
    "--dtypes",
    nargs="+",
    choices=parameters.KERNEL_DTYPES,
    default=[*parameters.KERNEL_DTYPES],
    help="types of kernels that take part; the peer has the first two",
  )
  args = parser.parse_args()
  if not set(args.dtypes) & set(PEER_DTYPES):
    parser.error(f"the peer has --dtypes {' and '.join(PEER_DTYPES)} alone")
  pairs = {s: d for s, d in shapes.DRAFTERS.items() if s in args.shapes}
  blocks = [s for s in ("256/4", *shapes.DRAFTERS) if s in args.shapes]
  takes_part = {
    "autoregressive": args.shapes,
    "blocks": blocks,
    "speculative": pairs,
    "rules": "t5-small" in pairs,
    "batches": pairs,
  }
  if not any(takes_part[race] for race in args.only):
    parser.error(
      f"none of {', '.join(args.shapes) or 'no shapes'} takes part in"
      f" {', '.join(args.only) or 'no race'}; 192/6 and t5-small do in most"
    )
  root = str(pathlib.Path(__file__).resolve().parents[1])
  environment = {"PYTHONPATH": root}
  rows = []
  with tempfile.TemporaryDirectory() as weights:
    peer = Worker([args.peer_python, "-m", "benchmarks.peer"], environment)
    wanted = {(shape, "verifier") for shape in args.shapes}
    wanted |= {(small, "drafter") for small in pairs.values()}
    for shape, role in sorted(wanted):
      folder = str(pathlib.Path(weights) / shapes.folder(shape, role))
      peer.ask(case="save", shape=shape, role=role, folder=folder)
    ours = Worker(
      [sys.executable, "-m", "benchmarks.ours", weights], environment
    )
    platforms = {"cpu": "cpu", "gpu": "cuda"}
    theirs = peer.about["peer's device"]
    if platforms.get(ours.about["platform"]) != theirs:
      raise SystemExit(
        f"error: our side computes on {ours.about['platform']}, the peer on"
        f" {theirs}: hide a GPU from both with CUDA_VISIBLE_DEVICES= and"
        " JAX_PLATFORMS=cpu, or install the jax and the torch that use it"
      )
    race = Race(ours, peer, args.rounds, args.dtypes)
    about = {
      "machine": platform.processor() or platform.machine(),
      "cores": os.cpu_count(),
      **ours.about,
      **peer.about,
      "rounds": args.rounds,
      "source tokens": shapes.SOURCE_LEN,
      "new tokens": shapes.NEW_TOKENS,
    }
    out = pathlib.Path(args.output_dir)

    races = []
    if "autoregressive" in args.only:
      races += [race_autoregressive(race, shape) for shape in args.shapes]
    if "blocks" in args.only:
      races += [race_blocks(race, shape, args.widths) for shape in blocks]
    if "speculative" in args.only:
      races += [
        race_speculative(race, shape, args.gamma, kernels)
        for shape in pairs
        for kernels in race.kernels
      ]
    if "rules" in args.only and takes_part["rules"]:
      races += [race_rules(race, "t5-small", args.gamma)]
    for shape in pairs if "batches" in args.only else ():
      rounds = args.rounds
      if shape == "t5-small":  # which is slow
        rounds = max(3, rounds // 2)
      few = dataclasses.replace(race, rounds=rounds)
      races += [race_batches(few, shape)]
    heats = [next(running) for running in races]
    if not race.is_on_cpu:
      race.compile(heats)
    for running, heat in zip(races, heats):
      times = in_turn(heat.cases, heat.rounds, heat.label)
      try:
        running.send(times)
      except StopIteration as end:
        rows.append(end.value)
        write(out, about, rows)  # a later race may die
    ours.close()
    peer.close()
  print(markdown(about, rows))
  print(f"written to {out}")


if __name__ == "__main__":
  main()
