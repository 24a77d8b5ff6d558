"""What three launches a layer would take on an H100, by arithmetic alone.

  python -m benchmarks.three_launches

Nothing here was measured on a device: the constants are of published and
earlier measurements, the rest is sums. A launch reads its weights as one piece,
so that bytes in flight do not bound it: all of a block's loads are asked for
before the first is needed. "apart" is a launch that starts to read when the one
before has ended. "ahead" is one whose weights were asked into the second-level
cache by the launch before, so that memory never waits: the larger of the time
of memory and that of the multiprocessors is taken for a layer.
"""

import dataclasses

from benchmarks import shapes
from speccascade import cli

BANDWIDTH = 2.68e6  # bytes of memory in a microsecond, measured with XLA
CACHE_BANDWIDTH = 5.5e6  # bytes of the second-level cache in a microsecond
MULTIPROCESSORS, BLOCKS = 132, 8  # of the chip, of a cluster
LATENCY, CACHE_LATENCY = 0.65, 0.3  # of a read, us
GAP = 0.7  # us between two launches of a graph
BARRIER = 0.2  # us, of a cluster
STEP = 0.05  # us of work between two barriers of a block
OTHER = 1.3  # us of any other launch: draws, norms, commits
# Barriers of a cluster and of a block: two exchanges and the last one of
# attention, two exchanges of the MLP.
ATTENTION_TAIL = 3 * BARRIER + 8 * STEP + LATENCY / 2
MLP_TAIL = 2 * BARRIER + 5 * STEP + LATENCY / 2
PASS_OTHERS, DRAWS, DRAWS_FUSED, ROUND_OTHERS = 6, 12, 2, 32


@dataclasses.dataclass(frozen=True)
class Launch:
  """One launch: its bytes, its clusters, and us after its last weight."""

  name: str
  num_bytes: int
  num_clusters: int
  tail: float

  def _share(self) -> float:
    blocks = min(self.num_clusters * BLOCKS, MULTIPROCESSORS)
    return blocks / MULTIPROCESSORS

  def apart(self) -> float:
    """Returns us of a launch that reads from memory."""
    read = self.num_bytes / (BANDWIDTH * self._share())
    return GAP + LATENCY + read + self.tail

  def ahead(self) -> float:
    """Returns us of a launch that reads from the second-level cache."""
    read = self.num_bytes / (CACHE_BANDWIDTH * self._share())
    return GAP + CACHE_LATENCY + read + self.tail


def launches(config, slots: int, source: int, rows: int = 1) -> list[Launch]:
  """Returns the launches of one layer with bfloat16 weights."""
  emb, heads, mlp = config.emb_dim, config.num_heads, config.mlp_dim
  width = heads * config.head_dim
  cached = lambda num: 4 * rows * num * width
  gates = len(config.mlp_activations)
  return [
    Launch("self", 8 * emb * width + cached(slots), heads, ATTENTION_TAIL),
    Launch("source", 4 * emb * width + cached(source), heads, ATTENTION_TAIL),
    Launch("mlp", 2 * (gates + 1) * emb * mlp, 16, MLP_TAIL),
  ]


def main():
  parser = cli.Parser("three_launches", __doc__, "benchmarks")
  parser.add_argument("--slots", type=int, default=128)
  parser.add_argument("--source", type=int, default=128)
  args = parser.parse_args()
  print("| model | launch | MB | KB a block | floor, us | apart | ahead |")
  print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
  passes = {}
  for name in ("t5-small", "t5-large"):
    config = shapes.config(name)
    layer = launches(config, args.slots, args.source)
    for each in layer:
      block = each.num_bytes / each.num_clusters / BLOCKS / 1e3
      print(
        f"| {name} | {each.name} | {each.num_bytes / 1e6:.2f} | {block:.0f} |"
        f" {each.num_bytes / BANDWIDTH:.2f} | {each.apart():.1f} |"
        f" {each.ahead():.1f} |"
      )
    floor = sum(each.num_bytes for each in layer) / BANDWIDTH
    head = 2 * config.emb_dim * config.vocab_size / BANDWIDTH
    others = head + LATENCY + PASS_OTHERS * OTHER
    apart = sum(each.apart() for each in layer)
    ahead = max(floor, sum(each.ahead() for each in layer))
    num = config.num_decoder_layers
    print(f"| {name} | a layer | | | {floor:.1f} | {apart:.1f} | {ahead:.1f} |")
    passes[name] = num * apart + others, num * ahead + others
    print(
      f"| {name} | a pass, ms, without its draw | | |"
      f" {(num * floor + head) / 1e3:.3f} | {passes[name][0] / 1e3:.3f} |"
      f" {passes[name][1] / 1e3:.3f} |"
    )
  for draws, word in ((DRAWS, "12 launches"), (DRAWS_FUSED, "2 launches")):
    of_draft = draws * OTHER
    token = [(us + of_draft) / 1e3 for us in passes["t5-large"]]
    print(
      f"| t5-large | a token, ms, draws in {word} | | | | {token[0]:.3f} |"
      f" {token[1]:.3f} |"
    )
    block = [
      (5 * (small + of_draft) + large + ROUND_OTHERS * OTHER) / 1e3
      for small, large in zip(passes["t5-small"], passes["t5-large"])
    ]
    print(
      f"| small for large | a block of 5, ms, draws in {word} | | | |"
      f" {block[0]:.2f} | {block[1]:.2f} |"
    )


if __name__ == "__main__":
  main()
