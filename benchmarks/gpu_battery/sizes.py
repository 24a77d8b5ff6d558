"""What the battery measures: the full sizes, and tiny ones for a CPU."""

import dataclasses

from benchmarks import shapes
from speccascade.models import LlamaConfig, T5Config


@dataclasses.dataclass(frozen=True)
class Training:
  """How the pair is trained.

  Attributes:
    steps: the most steps of each model; the learning rate falls to 0 at the
      last one.
    warmup: steps of rising rate.
    chunk: steps of one call.
    rows: sentences of a step.
    length: tokens that each side of a sentence has room for.
    rate: the highest rate, relative to the size of each array.
    dropout: share of activations dropped from the verifier; the drafter drops
      half as many.
    seconds: how long both trainings may take together, without compilation.
  """

  steps: int
  warmup: int
  chunk: int
  rows: int
  length: int
  rate: float
  dropout: float
  seconds: float


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of a battery.

  Attributes:
    large: the T5 that verifies, a name in `shapes.SHAPES`.
    small: the T5 that drafts for it.
    llamas: Llamas by name.
    passes: passes of one timed call.
    rounds: how often each case is timed.
    new_tokens: tokens of a decode with random weights.
    sum_bytes: bytes that are read to measure the bandwidth.
    verifier: the trained verifier, but for its vocabulary.
    drafter: the trained drafter.
    training: how the two are trained.
    source_len: room for a test sentence.
    decode_len: most tokens of its translation.
    sentences: most test sentences.
  """

  large: str
  small: str
  llamas: dict[str, LlamaConfig]
  passes: int
  rounds: int
  new_tokens: int
  sum_bytes: int
  verifier: T5Config
  drafter: T5Config
  training: Training
  source_len: int
  decode_len: int
  sentences: int

  @property
  def t5s(self) -> dict[str, T5Config]:
    """The T5s with random weights, by role."""
    return {
      "large": shapes.config(self.large),
      "small": shapes.config(self.small),
    }


_LLAMA_1B = LlamaConfig(
  vocab_size=128_256,
  emb_dim=2048,
  num_heads=32,
  num_kv_heads=8,
  num_decoder_layers=16,
  head_dim=64,
  mlp_dim=8192,
  rope_theta=500_000.0,
)
FULL = Sizes(
  large="t5-large",
  small="t5-small",
  llamas={
    "Llama-1B": _LLAMA_1B,
    "Llama-8B": dataclasses.replace(
      _LLAMA_1B,
      emb_dim=4096,
      num_decoder_layers=32,
      head_dim=128,
      mlp_dim=14_336,
      logits_via_embedding=False,
    ),
  },
  passes=32,
  rounds=15,
  new_tokens=64,
  sum_bytes=4 << 30,
  # Deep and narrow: on a GPU the kernels of a pass are its price, and a deep
  # verifier has many more of them than its drafter.
  verifier=T5Config(
    emb_dim=512,
    num_heads=8,
    num_encoder_layers=2,
    num_decoder_layers=12,
    head_dim=64,
    mlp_dim=1280,
  ),
  drafter=T5Config(
    emb_dim=256,
    num_heads=4,
    num_encoder_layers=1,
    num_decoder_layers=1,
    head_dim=64,
    mlp_dim=1024,
  ),
  training=Training(
    steps=2400,
    warmup=200,
    chunk=50,
    rows=128,
    length=32,
    rate=0.03,
    dropout=0.1,
    seconds=75.0,
  ),
  source_len=64,
  decode_len=64,
  sentences=1000,
)

# The same parts, so small that a CPU runs through all of them.
_WIDTH = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 16}
_DEPTH = {"num_encoder_layers": 1, "num_decoder_layers": 1}
TINY = Sizes(
  large="64/1",
  small="64/1",
  llamas={
    "Llama-tiny": LlamaConfig(
      vocab_size=64, num_kv_heads=1, num_decoder_layers=1, **_WIDTH
    ),
  },
  passes=2,
  rounds=2,
  new_tokens=6,
  sum_bytes=1 << 16,
  verifier=T5Config(**_WIDTH, **_DEPTH),
  drafter=dataclasses.replace(
    FULL.drafter, emb_dim=8, num_heads=1, head_dim=8, mlp_dim=8
  ),
  training=dataclasses.replace(
    FULL.training, steps=4, warmup=1, chunk=2, rows=4, seconds=5.0
  ),
  source_len=32,
  decode_len=8,
  sentences=3,
)
