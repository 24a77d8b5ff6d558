"""What an H100 took for rounds that are predicted: the battery's rows.

A pass is timed by itself. A block is timed as part of decodes, which begin with
both encoders: decodes at two rates of acceptance write as many tokens in more
and in fewer blocks, and their difference is that of the blocks alone.
"""

from collections.abc import Iterable
import json
import pathlib

from benchmarks.gpu_battery import sizes

# The committed rows, of XLA's kernels.
ROWS = (
  pathlib.Path(__file__).resolve().parents[2] / "docs/results/h100/rows.jsonl"
)
# Pairs of `programs.PAIRS` by the model whose passes were timed.
_PASSES = {
  "large": "t5-small:t5-large",
  "Llama-1B": "llama-1b:llama-1b",
  "Llama-8B": "llama-1b:llama-8b",
  "pair's verifier": "battery-drafter:battery-verifier",
  "pair's drafter": "battery-drafter:battery-drafter",
}
_SMALL = "t5-small:t5-small"
# Methods of `programs.METHODS` by the block that was timed.
_BLOCKS = {
  "chain of 5": "spec_decode",
  "chain of 3": "spec_decode_3",
  "tree (3, 2, 1)": "tree",
}


def rounds(rows: Iterable[dict]) -> dict[tuple[str, str], float]:
  """Returns milliseconds of a round by (pair, method), of one row.

  Args:
    rows: of the battery, as its rows.jsonl holds them.
  """
  found: dict[tuple[str, str], float] = {}
  decodes: dict[str, list[tuple[float, float]]] = {}
  for row in rows:
    table = row.get("table", "")
    ms = row.get("ms_a_pass") or row.get("ms")
    if row.get("tokens") == 1 and ms and row.get("variant", "xla") == "xla":
      name = _PASSES.get(row.get("model", ""), _SMALL)
      found[name, "pass"] = ms[0]
    if table == "Forced acceptance" and "acceptance" in row:
      tokens = sizes.FULL.new_tokens
      decode = tokens / row["tokens_a_block"], tokens * row["ms_a_token"][0]
      decodes.setdefault(row["block"], []).append(decode)
  for block, points in decodes.items():
    (few, least), (many, most) = min(points), max(points)
    if block in _BLOCKS and many > few:
      of_block = (most - least) / (many - few)
      found["t5-small:t5-large", _BLOCKS[block]] = of_block
  return found


def committed() -> dict[tuple[str, str], float]:
  """Returns `rounds` of the committed rows."""
  lines = ROWS.read_text(encoding="utf-8").splitlines()
  return rounds(map(json.loads, lines))
