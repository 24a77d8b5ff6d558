"""Races a pretrained decoder-only model against Hugging Face, text by text.

  python -m benchmarks.pretrained --peer_python PATH --model out/smollm/model

PATH is a Python with torch and transformers. Both sides read the same weights
and answer the same prompts greedily, alone and by prompt lookup, in turn. The
peer's dtype and threads are those that are fastest for its own generation; its
prompt lookup is `prompt_lookup_num_tokens`. Prints a table: whether the tokens
are those of the peer in float32, and ratios of seconds, the median of the
rounds and their range.
"""

import pathlib
import sys
import time

import jax
import numpy as np

from benchmarks.race import PEER_MODES, Worker, in_turn, ratio
from speccascade import cli
from speccascade.study.measuring import point_timing
from speccascade.study.measuring.environment import device_name
from speccascade.tools.examples import smollm_race
from speccascade.tools.examples.smollm_texts import TEXTS

WIDTH = 5


def our_cases(model, kernel_dtype: str, texts, new_tokens: int) -> tuple:
  """Returns {name: function of a text's number}, and the prompts' tokens."""
  [rival], vocabulary = smollm_race.read_rivals(model, None, kernel_dtype)
  settings = smollm_race.RaceSettings.create(
    max_decode_len=new_tokens, repeats=1
  )
  study = smollm_race.study(rival, vocabulary, texts, settings)
  [lookup] = rival.points

  def of(point):
    batches = study.batches(point, timed=True)

    def run(number):
      decode = batches.bind(batches.prepare([study.examples[number]]))
      begin = time.perf_counter()
      decoded = jax.block_until_ready(decode())
      seconds = time.perf_counter() - begin
      tokens = np.asarray(decoded.tokens)[0, : int(decoded.lengths[0])]
      return {"seconds": seconds, "tokens": tokens.tolist()}

    return run

  cases = {"alone": of(point_timing.reference(lookup)), "lookup": of(lookup)}
  return cases, [example.tokens.tolist() for example in study.examples]


def fastest(peer: Worker, model: str, tokens: list) -> dict:
  """Returns the dtype and threads with which the peer is fastest alone."""
  modes = [dict(zip(("dtype", "threads"), mode)) for mode in PEER_MODES]

  def seconds(mode):
    asked = {"case": "causal", "folder": model, "tokens": tokens}
    runs = [peer.ask(**asked, new_tokens=24, **mode) for _ in range(3)]
    return min(run["seconds"] for run in runs[1:])

  return min(modes, key=seconds)


def shown(ratios: dict) -> str:
  return "{median:.2f} [{min:.2f}, {max:.2f}]".format(**ratios)


def main():
  parser = cli.Parser("pretrained", __doc__, "benchmarks")
  add = parser.add_argument
  add("--peer_python", required=True, help="a Python with torch, transformers")
  add("--model", required=True, type=pathlib.Path, help="its directory")
  add("--kernel_dtype", default="float32", help="of ours (%(default)s)")
  add("--new_tokens", type=int, default=64)
  add("--rounds", type=int, default=2)
  args = parser.parse_args()
  asked = [(kind, texts[0]) for kind, texts in TEXTS.items()]
  ours, prompts = our_cases(
    args.model, args.kernel_dtype, [text for _, text in asked], args.new_tokens
  )
  root = str(pathlib.Path(__file__).resolve().parents[1])
  command = [args.peer_python, "-m", "benchmarks.peer"]
  peer = Worker(command, {"PYTHONPATH": root})
  mode = fastest(peer, str(args.model), prompts[0])
  print(
    f"{device_name()}; {peer.about}; the peer's best: {mode}; ours:"
    f" {args.kernel_dtype} kernels"
  )
  print(
    "| text | tokens | same tokens | ours alone, tokens/s | alone: peer / ours"
    " | lookup: peer / ours | ours: alone / lookup | peer: alone / lookup |"
  )
  print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
  for number, (kind, _) in enumerate(asked):
    asking = {
      "case": "causal",
      "folder": str(args.model),
      "tokens": prompts[number],
      "new_tokens": args.new_tokens,
      **mode,
    }
    cases = {
      "ours alone": lambda number=number: ours["alone"](number),
      "ours lookup": lambda number=number: ours["lookup"](number),
      "peer alone": lambda asking=asking: peer.ask(**asking),
      "peer lookup": lambda asking=asking: peer.ask(**asking, lookup=WIDTH),
    }
    exact = asking | {"dtype": "float32"}
    written = [cases["ours alone"](), cases["ours lookup"](), peer.ask(**exact)]
    times = in_turn(cases, args.rounds, kind)
    first = written[0]["tokens"]
    same = all(each["tokens"] == first for each in written)
    ratios = (
      ratio(times[over], times[under])
      for over, under in (
        ("peer alone", "ours alone"),
        ("peer lookup", "ours lookup"),
        ("ours alone", "ours lookup"),
        ("peer alone", "peer lookup"),
      )
    )
    speed = len(first) / min(times["ours alone"])
    cells = [kind, len(first), "yes" if same else "no", f"{speed:.1f}"]
    print("|", " | ".join(map(str, [*cells, *map(shown, ratios)])), "|")
    sys.stdout.flush()
  peer.close()


if __name__ == "__main__":
  main()
