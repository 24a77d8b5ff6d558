"""Speculation of random T5s by forced acceptance, beside its prediction."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_battery import passes, programs
from benchmarks.gpu_battery.ahead import Ahead
from benchmarks.gpu_battery.records import Clock, Records, ratio_spread, spread
from benchmarks.gpu_battery.sizes import Sizes
from speccascade.decoding.programs import decoders
from speccascade.decoding.records.draft_tree import DraftTree

RATES = (0.7, 0.9, 1.0)
TREE = (3, 2, 1)
# By name: (gamma, tree, tokens of each of the drafter's passes, tokens of the
# verifier's). After a fully accepted chain the first pass feeds two tokens. Of
# a tree the last level is not read.
BLOCKS = {
  "chain of 5": (5, None, (2, 1, 1, 1, 1), 6),
  "chain of 3": (3, None, (2, 1, 1), 4),
  "tree (3, 2, 1)": (3, TREE, (2, 3, 6), 16),
}
LARGE_WIDTHS = (1, 4, 6, 16)
SMALL_WIDTHS = (1, 2, 3, 6)
TREES = {16: TREE}
assert DraftTree.of_branching(TREE).num_drafts + 1 == 16


def add(ahead: Ahead, lms: dict, sizes: Sizes):
  """Adds the programs of this part, but for the verifier's passes."""
  inputs, keys, how = _arguments()
  verifier, drafter = lms["large"], lms["small"]
  decoder = _alone(sizes)
  program, arguments = decoder.call(None, verifier, inputs, keys, 0.0, how)
  ahead.add("large, one by one", program.run, *arguments)
  for name, (gamma, tree, _, _) in BLOCKS.items():
    run = programs.forced(gamma, tree, sizes.new_tokens)
    rate = np.float32(0)
    ahead.add(
      f"small to large, {name}", run, drafter, verifier, inputs, keys, how, rate
    )
  passes.add(ahead, "small", drafter, SMALL_WIDTHS, sizes.passes)


def _arguments() -> tuple:
  source = jnp.asarray(programs.source(passes.SOURCE_LEN))
  return source, programs.keys(), programs.sampled()


def _alone(sizes: Sizes):
  return decoders.decoder(
    "verifier",
    gamma=1,
    max_decode_len=sizes.new_tokens,
    eos_id=programs.NO_EOS,
  )


def measure(
  ahead: Ahead,
  lms: dict,
  sizes: Sizes,
  large: dict[int, list[float]],
  records: Records,
  clock: Clock,
  part: str,
):
  """Times one by one and each block at each rate, in turn.

  Args:
    ahead: the compiled programs.
    lms: the models, "large" and "small".
    sizes: the sizes.
    large: seconds of the verifier's passes by width; width 0 is its prefill.
    records: where the rows go.
    clock: the time that is left.
    part: the part of the battery.
  """
  inputs, keys, how = _arguments()
  verifier, drafter = lms["large"], lms["small"]
  arguments = _alone(sizes).call(None, verifier, inputs, keys, 0.0, how)[1]
  [alone] = ahead.ready("large, one by one").values()
  calls = {"one by one": lambda: alone(*arguments)}
  blocks: dict[tuple[str, float], float] = {}
  programs_of = {name: f"small to large, {name}" for name in BLOCKS}
  ready = ahead.ready(*programs_of.values())
  for name, program in programs_of.items():
    for rate in RATES if program in ready else ():
      run = ready[program]
      call = lambda run=run, rate=rate: run(
        drafter, verifier, inputs, keys, how, np.float32(rate)
      )
      calls[f"{name}, {rate:g}"] = call
      decoded = call()
      if int(decoded.lengths[0]) != sizes.new_tokens:
        raise ValueError(
          f"{name} wrote {int(decoded.lengths[0])} tokens of"
          f" {sizes.new_tokens}: a distribution is not finite"
        )
      blocks[name, rate] = float(decoded.stats.num_blocks[0])
  times = programs.in_turn(calls, sizes.rounds)
  small = passes.measure(
    ahead, "small", drafter, SMALL_WIDTHS, sizes.passes, sizes.rounds
  )
  small = {width: each for (_, width), each in small.items()}
  for width, each in small.items():
    records.add(
      part,
      "Passes of the drafter",
      tokens=width or "encoder",
      ms=[1e3 * x for x in spread(each)],
      over_verifier_step=spread(each)[0] / spread(large[1])[0],
    )
  per_token = lambda seconds: [
    1e3 * x / sizes.new_tokens for x in spread(seconds)
  ]
  alone_s = times["one by one"]
  records.add(
    part, "Forced acceptance", block="one by one", ms_a_token=per_token(alone_s)
  )
  for (name, rate), num_blocks in blocks.items():
    _, _, drafts, width = BLOCKS[name]
    seconds = times[f"{name}, {rate:g}"]
    row = {
      "block": name,
      "acceptance": rate,
      "tokens_a_block": sizes.new_tokens / num_blocks,
      "ms_a_token": per_token(seconds),
      "speed_up": ratio_spread(alone_s, seconds),
    }
    if width in large and set(drafts) <= set(small):
      row["predicted"] = _predicted(
        sizes.new_tokens, num_blocks, drafts, width, small, large
      )
      row["over_predicted"] = row["speed_up"][0] / row["predicted"]
    records.add(part, "Forced acceptance", **row)
  clock.say(f"one by one: {per_token(alone_s)[0]:.3f} ms a token")


def _predicted(
  num_tokens: int,
  num_blocks: float,
  drafts: Sequence[int],
  width: int,
  small: dict[int, list[float]],
  large: dict[int, list[float]],
) -> float:
  """Returns the speed-up that the times of passes and encoders predict."""
  of = lambda times: spread(times)[0]
  alone = of(large[0]) + num_tokens * of(large[1])
  block = sum(of(small[each]) for each in drafts) + of(large[width])
  return alone / (of(large[0]) + of(small[0]) + num_blocks * block)
