"""Teachers, from checkpoints: models whose distributions others learn."""

import jax
import jax.numpy as jnp

from speccascade.checkpoints import restore
from speccascade.models.params import Config, lying, network
from speccascade.training.state import Teacher


def read(path, model: Config, identity, layout=None) -> Teacher | None:
  """Returns the teacher of a checkpoint, None where none is given.

  Args:
    path: of any layout, or None.
    model: the architecture that learns.
    identity: {"path", "sha256"} of the vocabulary in use, where it is known.
    layout: where its arrays lie; None on one device.

  Raises:
    CheckpointError: it cannot be read.
    ValueError: it is of another kind than the model, or has another vocabulary.
  """
  from speccascade.data import vocabularies

  if not path:
    return None
  checkpoint = restore.load(path, lazy=layout is not None)
  config, known = checkpoint.require_config(), checkpoint.vocabulary
  if not known and vocabularies.brought_by(checkpoint.path):
    known = vocabularies.load(checkpoint.path).identity
  faults = {
    "is of another kind than MODEL": type(config) is not type(model),
    f"has {config.vocab_size} vocabulary rows, MODEL {model.vocab_size}": (
      config.vocab_size != model.vocab_size
    ),
    "has another vocabulary than VOCABULARY (their sha256 differ)": (
      identity and known and known["sha256"] != identity["sha256"]
    ),
  }
  for fault, is_so in faults.items():
    if is_so:
      raise ValueError(f"TEACHER_CHECKPOINT {checkpoint.path} {fault}")
  if layout is not None:
    layout.check(config, "TEACHER_CHECKPOINT")
    params = lying(config, checkpoint.params, layout)
    return Teacher(params, network(config))
  params = jax.tree.map(
    lambda leaf: jnp.asarray(leaf, "float32"), checkpoint.params
  )
  return Teacher(params, network(config))
