"""What a round takes on a GPU by arithmetic, in words and as a table."""

import dataclasses

from benchmarks.compiled import costs
from benchmarks.compiled.kernels import Round, steps


def table(found: Round) -> str:
  """Returns the kernels of a round as a table, those that take most first."""
  lines = [
    "| kernel | step | number | programs | of 132 | threads | stages | MB"
    " | in flight, MB | phases | statements | us each | launch | waits | reads"
    " | capped | ms in all |",
    "| --- | --- |" + " ---: |" * 15,
  ]
  merged: dict[tuple, list] = {}
  for each, num in found.kernels:
    # (Layers differ in the names of their arrays.)
    load = dataclasses.replace(each.load, steps=(), far=frozenset())
    key = (each.name, each.step, load, each.cost)
    entry = merged.setdefault(key, [each, 0])
    entry[1] += num
  rows = sorted(merged.values(), key=lambda x: -x[0].cost.total * x[1])
  for each, num in rows:
    load, cost = each.load, each.cost
    flight = load.in_flight
    shown = f"{flight / 1e6:.2f}" if flight else ""
    if each.is_tuned:
      shown = "tuned"
    cells = [
      f"{each.name}{' *' if each.open_loops else ''}",
      each.step,
      num,
      load.programs,
      f"{min(1, load.programs / costs.MULTIPROCESSORS):.0%}",
      load.threads,
      each.stages or "",
      f"{load.num_bytes / 1e6:.3f}",
      shown,
      load.near + load.near_beside,
      load.work + load.work_beside,
      f"{1e6 * cost.total:.2f}",
      f"{1e6 * cost.launch:.2f}",
      f"{1e6 * cost.waits:.2f}",
      f"{1e6 * cost.reads:.2f}",
      f"{1e6 * cost.capped:.2f}",
      f"{1e3 * cost.total * num:.4f}",
    ]
    lines.append("| " + " | ".join(map(str, cells)) + " |")
  return "\n".join(lines)


def report(found: Round) -> str:
  """Returns the prediction in words, and the table of kernels."""
  numbers, cost, graphs = found.numbers(), found.cost, found.graphs
  parts = {
    "launches": cost.launch,
    "waits": cost.waits,
    "reads": cost.reads,
    "capped": cost.capped,
    "host": found.host,
  }
  words = ", ".join(f"{key} {1e3 * x:.3f}" for key, x in parts.items())
  lines = [
    f"Predicted: {1e3 * found.seconds:.3f} ms a round: {words}. Without what"
    f" statements are estimated to take: {1e3 * found.least:.3f}."
  ]
  words = ", ".join(f"{key} {x / 1e3:.3f}" for key, x in steps(found).items())
  lines.append(f"By step, ms: {words}.")
  if graphs.is_captured:
    lines.append("The loop over rounds is in a graph: no wait for the host.")
  else:
    cut = ", ".join(f"{num} {kind}" for kind, num in graphs.outside.items())
    lines.append(
      f"CUDA graphs of a round: {graphs.graphs}, of {graphs.captured} launches;"
      f" outside of them: {cut or 'nothing'}. Waits for the host:"
      f" {1 - found.is_counted + graphs.waits}."
    )
  if found.turn:
    lines.append(
      "Loops whose turns depend on data count one turn; a further turn of each"
      f" takes {1e3 * found.turn:.3f} ms."
    )
  lines.append(
    f"Launches: {numbers['kernels']}. Programmatic launches:"
    f" {numbers['waiting']} wait for the kernel before them,"
    f" {numbers['triggering']} let the next start early. Chosen by the device,"
    f" so that no cap is known: {numbers['tuned']}."
  )
  return "\n".join([*lines, "", table(found)])
