"""Rows of compiled programs, as Markdown tables."""

from collections.abc import Iterable
import re

from benchmarks.compiled import measured, programs
from speccascade.tools.planning import chips, roofline

_STEPS = ("draft", "score", "verify", "commit")
_KINDS = (
  *(
    "product",
    "norm",
    "attention",
    "softmax",
    "cache write",
    "activation",
    "residual",
  ),
  *("reduction", "copy", "lookup", "collective"),
)


def tables(rows: Iterable[dict]) -> str:
  """Returns a table of GPU rows and one of TPU rows, where there are any."""
  rows = list(rows)
  parts = []
  for is_gpu, table in ((True, gpu_table), (False, tpu_table)):
    some = [
      row for row in rows if chips.is_gpu(row["case"]["target"]) == is_gpu
    ]
    if some:
      parts.append(table(some))
    if is_gpu and (told := [row for row in some if "predicted" in row]):
      parts.append(predictions(told))
  return "\n\n".join(parts) + "\n"


def _layers(case: dict) -> tuple[int, int]:
  whole = [each.num_decoder_layers for each in programs.pair(case["pair"])]
  return tuple(case.get("layers") or whole)


def _name(row: dict) -> str:
  case = row["case"]
  drafter, _, verifier = case["pair"].partition(":")
  models = (
    verifier
    if case["method"] in ("verifier", "pass")
    else f"{drafter} for {verifier}"
  )
  if case["method"] == "heads":
    models = f"heads for {verifier}"
  elif case["method"] == "reader":
    models = f"a state reader of {programs.KEPT:,} tokens for {verifier}"
  if "layers" in case:
    models += " ({} and {} layers)".format(*case["layers"])
  note = ", from 2 and 4 layers" if row.get("worked_out") else ""
  if "variant" in case:
    note += f", {case['variant']}"
  return f"{models} | {case['method']}{note} | {case['rows']}"


def _table(head: str, lines: list[str]) -> str:
  columns = head.count("|") - 1
  rule = "| --- | --- |" + " ---: |" * (columns - 2)
  return "\n".join([head, rule, *lines])


def gpu_table(rows: list[dict]) -> str:
  """Returns a table of launches: by step, by what they do, and of one layer.

  A layer's launches are those of the verifier's pass, alone or over a block,
  over its layers.
  """
  head = (
    "| models | method | rows | kernels | of a layer | "
    + " | ".join((*_STEPS, *_KINDS))
    + " | MB | cache copies | temporary MB |"
  )
  lines = []
  for row in rows:
    if "error" in row:
      lines.append(f"| {_name(row)} | {row['error']} |")
      continue
    layers = _layers(row["case"])[1]
    alone = row["case"]["method"] in ("verifier", "pass")
    a_pass = row["launches"] if alone else row["by_step"].get("score", 0)
    cells = [
      str(row["launches"]),
      f"{a_pass / layers:.1f}" if a_pass else "",
      *(str(row["by_step"].get(step, 0)) for step in _STEPS),
      *(str(row["by_kind"].get(kind, 0)) for kind in _KINDS),
      f"{row['read_bytes'] / 1e6:,.0f}",
      str(row["cache_copies"]),
      f"{row['temporary_bytes'] / 1e6:,.0f}",
    ]
    lines.append(f"| {_name(row)} | {' | '.join(cells)} |")
  return _table(head, lines)


def predictions(rows: list[dict]) -> str:
  """Returns a table of what rounds take on a GPU by arithmetic, in parts.

  The parts in milliseconds add up to the prediction (see `costs`). Measured are
  the committed rows of one H100.
  """
  taken = measured.committed()
  head = (
    "| models | method | rows | predicted ms | measured ms | over"
    " | without statements | launches"
    " | waits | reads | capped | host | kernels | MB | graphs"
    " | loops of the host | a further turn |"
  )
  lines = []
  for row in rows:
    found = row["predicted"]
    parts = ("us", "launch_us", "waits_us", "reads_us", "capped_us", "host_us")
    case = row["case"]
    whole = case["rows"] == 1 and "layers" not in case
    ms = taken.get((case["pair"], case["method"]))
    if not whole or case.get("variant") != "xla":
      ms = None
    predicted, *others = (f"{found[part] / 1e3:.3f}" for part in parts)
    cells = [
      predicted,
      f"{ms:.3f}" if ms else "",
      f"{found['us'] / 1e3 / ms:.2f}" if ms else "",
      f"{found['least_us'] / 1e3:.3f}",
      *others,
      f"{found['kernels']:.0f}",
      f"{found['bytes'] / 1e6:,.0f}",
      f"{found['graphs']:.0f}",
      f"{found['host_loops']:.0f}",
      f"{found['turn_us'] / 1e3:.3f}" if found["turn_us"] else "",
    ]
    lines.append(f"| {_name(row)} | {' | '.join(cells)} |")
  return _table(head, lines)


def tpu_table(rows: list[dict]) -> str:
  """Returns a table of what TPUs' compilers say, with the roofline's time."""
  head = (
    "| models | method | rows | TPU | memory, GB | fusions | others | Mcycles"
    " | GB | GFLOP | collectives | MB sent | at least, ms | draft | score"
    " | verify | others | loops | cache copies |"
  )
  lines = []
  for row in rows:
    target = row["case"]["target"]
    if "error" in row:
      lines.append(f"| {_name(row)} | {target} | {_fault(row['error'])} |")
      continue
    chip = chips.chip(target)
    memory = row["arguments_bytes"] + row["temporary_bytes"]
    fits = "" if memory < chip.memory else ", does not fit"
    cells = [
      target,
      f"{memory / 1e9:.2f}{fits}",
      str(row["fusions"]),
      str(row["launches"] - row["fusions"]),
      f"{row['cycles'] / 1e6:.2f}",
      f"{row['read_bytes'] / 1e9:.2f}",
      f"{row['flops'] / 1e9:.1f}",
      str(row["collectives"]),
      f"{row['sent_bytes'] / 1e6:.2f}",
      f"{1e3 * at_least(row):.2f}",
      *_of_steps(row.get("predicted_steps", {})),
      str(row["loops"]),
      str(row["cache_copies"]),
    ]
    lines.append(f"| {_name(row)} | {' | '.join(cells)} |")
  return _table(head, lines)


def _of_steps(steps: dict[str, float]) -> list[str]:
  """Returns milliseconds of the main steps and of all others, of a TPU."""
  main = ("draft", "score", "verify")
  others = sum(x for step, x in steps.items() if step not in main)
  found = [*(steps.get(step, 0.0) for step in main), others]
  return [f"{x / 1e3:.2f}" if steps else "" for x in found]


def _fault(error: str) -> str:
  """Returns a compiler's message, of memory that is too small in few words."""
  found = re.search(r"\((\S+G)\) exceeds available HBM \((\S+G)\)", error)
  return f"does not fit: {found[1]} of {found[2]}" if found else error


def at_least(row: dict) -> float:
  """Returns the seconds that a round takes at least, by the roofline.

  Bytes at the memory's bandwidth, operations at the peak, and the compiler's
  cycles, whichever is longest; or, where it is longer still, the sum of each
  instruction's cycles or bytes.
  """
  work = roofline.Work(
    {"round": row["read_bytes"]}, flops=row["flops"], cycles=row["cycles"]
  )
  each = sum(row.get("predicted_steps", {}).values()) / 1e6
  return max(work.seconds(chips.chip(row["case"]["target"])), each)
