"""The model shapes of the races, by the name that the results carry.

Read by the peer's Python too, which has neither jax nor flax.
"""

# d_model, heads, head width, d_ff, encoder and decoder layers, vocabulary. The
# peer's cache wants as many layers on both sides.
SHAPES = {
  "64/1": (64, 4, 16, 128, 1, 1, 1536),
  "128/3": (128, 4, 32, 256, 3, 3, 4096),
  "192/6": (192, 4, 48, 384, 6, 6, 1536),
  "256/4": (256, 8, 32, 512, 4, 4, 4096),
  "256/6": (256, 4, 64, 512, 6, 6, 1536),
  "tiny-32128": (128, 4, 32, 256, 2, 2, 32128),
  "t5-small": (512, 6, 64, 1024, 8, 8, 32128),
  "t5-base": (768, 12, 64, 2048, 12, 12, 32128),
  "t5-large": (1024, 16, 64, 2816, 24, 24, 32128),
  "t5-xl": (2048, 32, 64, 5120, 24, 24, 32128),
}

# The drafter that is used before each verifier.
DRAFTERS = {
  "192/6": "64/1",
  "256/6": "64/1",
  "t5-small": "tiny-32128",
  "t5-large": "t5-small",
}

SOURCE_LEN = 16
NEW_TOKENS = 64


def source_tokens() -> list[int]:
  """Returns the SOURCE_LEN tokens that both sides translate."""
  return [3 + 7919 * i % 497 for i in range(SOURCE_LEN)]


def config(shape: str):
  """Returns the architecture as a `T5Config`."""
  from speccascade.models.t5.config import T5Config

  d, heads, width, ff, encoder, decoder, vocab = SHAPES[shape]
  return T5Config(
    vocab_size=vocab,
    emb_dim=d,
    num_heads=heads,
    num_encoder_layers=encoder,
    num_decoder_layers=decoder,
    head_dim=width,
    mlp_dim=ff,
  )


def decoder_bytes(shape: str) -> int:
  """Returns the float32 bytes of weights that one decoder step reads."""
  d, heads, width, ff, _, layers, vocab = SHAPES[shape]
  inner = heads * width
  layer = 4 * d * inner + 2 * d * inner + 3 * d * ff
  return 4 * (layers * layer + d * vocab)


def folder(shape: str, role: str) -> str:
  """Returns the folder name of one model's weights."""
  return f"{shape.replace('/', 'x')}-{role}"
