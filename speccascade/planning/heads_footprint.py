"""Works out the memory of draft heads, which are no language model.

Draft heads have neither layers nor caches, so `footprint` cannot count them.
Look-ahead embeddings take the layers and the cache of their verifier, which
`footprint` counts.
"""

from typing import Any

from speccascade.models.draft_heads import MEDUSA, HeadsConfig
from speccascade.models.sharding.partitioning import Layout
from speccascade.planning import footprint


def check_layout(layout: Layout) -> None:
  """Raises ValueError where draft heads are to lie on several devices."""
  if any(size > 1 for size in layout.sizes.values()):
    raise ValueError(
      "draft heads lie on one device, and a mesh is set: leave MESH out"
    )


def state(config: HeadsConfig, rows: int) -> float:
  """Returns the bytes that heads remember between two blocks.

  Args:
    config: the heads.
    rows: rows of a batch.

  Returns:
    The bytes of a hidden state in float32 and of a counter, for each row.
  """
  return rows * (4.0 * config.emb_dim + 4)


def activations(config: HeadsConfig, positions: int) -> float:
  """Returns the bytes that a step of training stores for the heads' gradient.

  Args:
    config: the heads, with the shape of their verifier.
    positions: rows times tokens of a row.
  """
  # The verifier's hidden state, which all heads read; and of each head the
  # products before its nonlinearity, and the state that is projected. A
  # blockwise head stores the layer after its nonlinearity, too.
  inner = config.emb_dim if config.kind == MEDUSA else 2 * config.mlp_dim
  numbers = config.emb_dim + config.num_heads * (inner + config.emb_dim)
  return 4.0 * positions * numbers


def logits(config: HeadsConfig, layout: Layout, positions: int) -> float:
  """Returns the bytes of logits and distributions of all heads in a step.

  Args:
    config: the heads, with the shape of their verifier.
    layout: one device.
    positions: rows times tokens of a row.
  """
  positions *= config.num_heads
  return footprint.laws(config, layout, positions, cut=True)


def shaped(heads: HeadsConfig, verifier: Any) -> HeadsConfig:
  """Returns heads with the shape of their verifier.

  Args:
    heads: the heads.
    verifier: the verifier's architecture; None where no verifier is set.

  Raises:
    ValueError: there is no verifier, or it is no language model.
  """
  if verifier is None or isinstance(verifier, HeadsConfig):
    raise ValueError(
      "draft heads need a TEACHER_CHECKPOINT, which is their verifier and a"
      " language model: set it"
    )
  return heads.shaped_like(verifier)
