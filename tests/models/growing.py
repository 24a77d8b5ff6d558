"""Trees of tokens in rows of different lengths, and small odd networks."""

import dataclasses

from flax import traverse_util
import jax.numpy as jnp
import numpy as np

from speccascade.decoding import METHODS
from speccascade.decoding.laws import draws
from speccascade.decoding.programs.decoders import Decoder
from speccascade.models import T5GemmaConfig, architectures
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.parameters import param_shapes
from tests import toy
from tests.models.feeding import extend, feed, int32, prefill

V = 50
# Heads are not a power of two, nor are they together as wide as the model.
T5 = toy.t5_config(
  vocab_size=V, emb_dim=20, head_dim=5, num_decoder_layers=2, mlp_dim=31
)
LLAMA = LlamaConfig(
  vocab_size=V,
  emb_dim=22,
  num_heads=6,
  num_kv_heads=3,
  num_decoder_layers=3,
  head_dim=6,
  mlp_dim=37,
  qkv_bias=True,
  query_key_norm=True,
  # The first layer sees all, the others four slots.
  window=4,
  windowed_layers=(1, 2),
)
# As a Gemma, with all that one of them has.
GEMMA = dataclasses.replace(
  LLAMA,
  qkv_bias=False,
  norm_offset=1,
  post_norms=True,
  scaled_embedding=True,
  query_pre_attn_scalar=9.0,
  attention_cap=1.5,
  logit_cap=3.0,
  local_rope_theta=50.0,
)
# An encoder of another width, and windows that a tree reaches past.
T5GEMMA = T5GemmaConfig(
  vocab_size=V,
  emb_dim=22,
  num_heads=6,
  num_kv_heads=3,
  num_decoder_layers=3,
  head_dim=6,
  mlp_dim=37,
  num_encoder_layers=2,
  encoder_emb_dim=18,
  encoder_num_heads=2,
  encoder_num_kv_heads=1,
  attention_cap=1.5,
  logit_cap=3.0,
  window=4,
  windowed_layers=(1, 2),
)
# As a T5Gemma 2, with its one attention and its one table.
T5GEMMA2 = dataclasses.replace(
  T5GEMMA,
  encoder_emb_dim=None,
  attention_cap=None,
  logit_cap=None,
  query_key_norm=True,
  local_rope_theta=50.0,
  split_window=True,
  merged_attention=True,
  shared_embedding=True,
  end_of_image_id=4,
)
SOURCES = [[3, 4, 5, 6], [7, 8, 0, 0], [9, 2, 3, 0]]
PROMPTS = [[3, 4, 5, 6], [7, 8, -1, -1], [-1, 9, 2, 3]]
HELD = (5, 0, 2)  # tokens that the rows hold before the tree
SIZES = (3, 4, 4)  # nodes of each level, so that a level has siblings
NUM_NODES = sum(SIZES)


def weights(config, noise=0.0):
  """Returns random weights, biases among them; see `network`."""
  rng, others = np.random.default_rng(0), np.random.default_rng(1)
  params = {
    path: rng.normal(size=shape) / shape[0] ** 0.5
    + noise * others.normal(size=shape) / shape[0] ** 0.5
    + path.endswith("scale")
    for path, shape in param_shapes(config).items()
  }
  return traverse_util.unflatten_dict(params, sep="/")


def network(config, kernel_dtype=None, *, noise=0.0):
  """Returns a network whose weights, biases among them, are random.

  With some `noise` it is another network, which agrees with the first at times.
  """
  params = weights(config, noise)
  return architectures.row_of(config).model.create(
    config, params, kernel_dtype=kernel_dtype
  )


def start(lm, capacity=24):
  """Returns the state of three rows that hold `HELD` tokens."""
  inputs = np.array(PROMPTS if lm.prompted else SOURCES, np.int32)
  if lm.vocab_size < V:
    inputs = np.minimum(inputs, 8)
  state = prefill(lm, inputs, capacity)
  text = np.random.default_rng(1).integers(2, 9, (3, max(HELD)), np.int32)
  return feed(lm, state, text, HELD)[0]


def some_tree(seed=0):
  """Returns the nodes [3, NUM_NODES] of a tree in each row, and their paths.

  A node's parent is the prefix or a node of an earlier level. Some siblings are
  equal. The path of a node is the list of nodes that it sees, itself last.
  """
  rng = np.random.default_rng(seed)
  nodes = rng.integers(2, 9, (3, NUM_NODES), np.int32)
  paths = [[] for _ in range(3)]
  ends = np.cumsum(SIZES)
  for b in range(3):
    for size, end in zip(SIZES, ends):
      first = end - size
      parents = rng.integers(-1, first, size)  # -1 is the prefix
      if first:
        parents[1] = deepest(paths[b])
        # The last two nodes of the level are equal, and siblings.
        parents[-1], nodes[b, end - 1] = parents[-2], nodes[b, end - 2]
      for i, parent in enumerate(parents, first):
        paths[b].append([*(paths[b][parent] if parent >= 0 else []), i])
  return nodes, paths


def deepest(paths):
  """Returns the first of the nodes with the longest path."""
  return max(range(len(paths)), key=lambda i: (len(paths[i]), -i))


def described(paths, end, num_fed):
  """Returns depth [B, end] and ancestors [B, num_fed, end] of a call.

  The window has the first `end` nodes; the last `num_fed` of them are fed.
  """
  depth = [[len(path) - 1 for path in row[:end]] for row in paths]
  ancestors = np.zeros((len(paths), num_fed, end), bool)
  for b, row in enumerate(paths):
    for i in range(num_fed):
      ancestors[b, i, row[end - num_fed + i]] = True
  return int32(depth), jnp.asarray(ancestors)


def grow(lm, state, nodes, paths, sizes=SIZES):
  """Feeds a tree level by level; returns the state and all logits."""
  logits, end = [], 0
  for size in sizes:
    end += size
    tree = described(paths, end, size)
    block, count = int32(nodes[:, end - size : end]), int32([size] * 3)
    state, out = extend(lm, state, block, count, None, *tree)
    logits.append(out.logits)
  return state, np.concatenate(logits, 1)


def along(lm, state, nodes, paths, i):
  """Feeds each row the path to its node i as a chain.

  Returns:
    The state after the chain, the logits [3, V] after the node, and the path
    [3, NUM_NODES] with its lengths [3].
  """
  length = np.array([len(row[i]) for row in paths])
  padded = np.zeros((3, NUM_NODES), np.int32)
  block = np.full((3, NUM_NODES), 8, np.int32)
  for b, row in enumerate(paths):
    padded[b, : length[b]] = row[i]
    block[b, : length[b]] = nodes[b, row[i]]
  state, logits = feed(lm, state, block, length)
  return state, logits[np.arange(3), length - 1], padded, length


def greedy(drafter, verifier) -> tuple:
  """Returns what `spec_decode` and the verifier alone write of four rows."""
  rng = np.random.default_rng(2)
  inputs = int32(rng.integers(2, V, (4, 6)))
  written = []
  for name, drafts in (("spec_decode", drafter), ("verifier", None)):
    method = METHODS[name]
    decoder = Decoder(method, gamma=3, max_decode_len=12, eos_id=1)
    keys = draws.row_keys(0, 0, np.arange(4))
    written.append(
      decoder(drafts, verifier, inputs, keys, method.default_alpha, toy.GREEDY)
    )
  return tuple(written)
