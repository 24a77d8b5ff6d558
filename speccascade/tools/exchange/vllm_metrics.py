"""The counts of a decode under vLLM's names of metrics.

Names with "vllm:" are those of vLLM's counters of speculative decoding. Those
with "spec_decode_" are the names under which `vllm bench serve` writes what it
derives from these counters; they have its values too, except
`spec_decode_acceptance_length`, see `metrics`.

Source: `vllm/v1/spec_decode/metrics.py`, `vllm/v1/metrics/reader.py` and
`vllm/benchmarks/serve.py` of github.com/vllm-project/vllm.
"""

import json

from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.decode_counts import Counts
from speccascade.tools.exchange.decode_folder import DecodeFolder


def text(folder: DecodeFolder) -> str:
  """Returns the metrics of a decode as a JSON object.

  Raises:
    ValueError: the method drafted nothing.
  """
  row = folder.row
  if not row.counts.drafted:
    raise ValueError(
      f"{folder.path} is of {row.label}, which drafted no tokens: vLLM's"
      " metrics count drafts"
    )
  return json.dumps(metrics(row.counts), indent=2) + "\n"


def metrics(counts: Counts) -> dict[str, float | list]:
  """Returns vLLM's metrics by name.

  The acceptance length is `mean_acceptance_length` under vLLM's name. vLLM
  itself counts a bonus token for every block, also where the end of a text cut
  the block; that number has a name of its own.

  Args:
    counts: the counts of a method that drafted at least one token.

  >>> counts = Counts(num_tokens=4, num_blocks=2, drafted=4, accepted=3,
  ...                 accepted_by_position=(2, 1))
  >>> metrics(counts)["spec_decode_acceptance_length"]
  2.0
  >>> metrics(counts)["acceptance_length_with_every_bonus"]
  2.5
  """
  rates = decode_counts.summary(counts)
  by_position = list(counts.accepted_by_position)
  return {
    "vllm:spec_decode_num_drafts": counts.num_blocks,
    "vllm:spec_decode_num_draft_tokens": counts.drafted,
    "vllm:spec_decode_num_accepted_tokens": counts.accepted,
    "vllm:spec_decode_num_accepted_tokens_per_pos": by_position,
    "spec_decode_acceptance_rate": 100 * counts.accepted / counts.drafted,
    "spec_decode_acceptance_length": rates["mean_acceptance_length"],
    "acceptance_length_with_every_bonus": (
      1 + counts.accepted / counts.num_blocks
    ),
    "spec_decode_per_position_acceptance_rates": [
      num / counts.num_blocks for num in by_position
    ],
  }
