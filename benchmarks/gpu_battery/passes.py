"""Passes over one token and over a block, against the card's bandwidth."""

from collections.abc import Sequence

import jax

from benchmarks.gpu_battery import programs
from benchmarks.gpu_battery.ahead import Ahead
from benchmarks.gpu_battery.records import Records, ratio_spread, spread

SOURCE_LEN = 16
CAPACITY = SOURCE_LEN + programs.ROOM


def name_of(model: str, width: int, variant: str) -> str:
  """Returns the name of a program of passes."""
  return f"{model}, passes of {width}, {variant}"


def add(
  ahead: Ahead,
  model: str,
  lm,
  widths: Sequence[int],
  num: int,
  variants: Sequence[str] = (),
  trees: dict[int, tuple[int, ...]] | None = None,
):
  """Adds the programs of a model's prefill and of its passes.

  Args:
    ahead: where they are added.
    model: the model's name.
    lm: the model, of shapes.
    widths: tokens of a pass.
    num: passes of a call.
    variants: how they are lowered; none takes the default.
    trees: the trees that widths stand for.
  """
  start = programs.prefill(CAPACITY)
  tokens = programs.source(SOURCE_LEN)
  ahead.add(f"{model}, prefill", start, lm, tokens)
  state = jax.eval_shape(start, lm, tokens)
  for variant in variants or (ahead.variant,):
    for width in widths:
      run = programs.passes(width, num, (trees or {}).get(width))
      name = name_of(model, width, variant)
      ahead.add(name, run, lm, state, variant=variant)


def measure(
  ahead: Ahead,
  model: str,
  lm,
  widths: Sequence[int],
  num: int,
  rounds: int,
  variants: Sequence[str] = (),
) -> dict[tuple[str, int], list[float]]:
  """Returns the seconds of each round's pass, by (variant, width).

  Width 0 stands for the prefill. A program that did not compile is left out.
  """
  variants = variants or (ahead.variant,)
  start, tokens = f"{model}, prefill", programs.source(SOURCE_LEN)
  prefill = ahead.ready(start)[start]
  state = prefill(lm, tokens)
  calls = {(variants[-1], 0): lambda: prefill(lm, tokens)}
  for variant in variants:
    for width in widths:
      for run in ahead.ready(name_of(model, width, variant)).values():
        calls[variant, width] = lambda run=run: run(lm, state)
  times = programs.in_turn(calls, rounds)
  return {
    key: [x / (num if key[1] else 1) for x in each]
    for key, each in times.items()
  }


def record(
  records: Records,
  part: str,
  table: str,
  model: str,
  times: dict[tuple[str, int], list[float]],
  num_bytes: int,
  bandwidth: float,
):
  """Adds a row for each pass: its time, and its share of the bound.

  Args:
    records: where the rows go.
    part: the part of the battery.
    table: the table's name.
    model: the model's name.
    times: as `measure` returns them.
    num_bytes: bytes of weights that a pass reads.
    bandwidth: bytes a second that the card reads.
  """
  for (variant, width), each in times.items():
    if not width:
      continue
    bound = num_bytes / bandwidth
    middle = spread(each)[0]
    records.add(
      part,
      table,
      model=model,
      variant=variant,
      tokens=width,
      ms_a_pass=[1e3 * x for x in spread(each)],
      weights_GB=num_bytes / 1e9,
      bound_ms=1e3 * bound,
      share_of_bound=bound / middle,
      over_one_token=ratio_spread(each, times.get((variant, 1), each)),
    )
