"""The checkpoints of draft heads whose verifier is trained together with them.

The tuned verifier is an ordinary checkpoint, `verifier/checkpoint_<step>` in
MODEL_DIR, and the heads are `checkpoint_<step>`, as without tuning. The heads'
checkpoint has the state of the optimizer for both, says where the verifier is,
and has the verifier's fingerprint. It is written after the verifier, so a step
counts only when both are on disk. Verifiers of other steps are removed last.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from speccascade.checkpoints import load, orbax_io, restore
from speccascade.checkpoints.errors import CheckpointError
from speccascade.models.draft_heads import fingerprint
from speccascade.training import optimizers, states
from speccascade.training.checkpointing import Checkpoints, StartingPoint
from speccascade.training.verifier_tuning import HEADS, VERIFIER

# The name under which a heads' checkpoint records its verifier's place, as a
# path from MODEL_DIR.
RECORD = "tuned_verifier"


@dataclasses.dataclass
class TunedCheckpoints(Checkpoints):
  """The checkpoints of a run that trains heads and their verifier.

  Attributes:
    verifier: the verifier before training.
  """

  _: dataclasses.KW_ONLY
  verifier: states.Teacher

  def _verifier_path(self, step: int) -> str:
    """Returns the directory of the tuned verifier at a step."""
    return f"{self.model_dir}/{self._place_of_verifier(step)}"

  def _place_of_verifier(self, step: int) -> str:
    """Returns the path from MODEL_DIR to the tuned verifier at a step."""
    return f"{VERIFIER}/{orbax_io.STEP_PREFIX}_{step}"

  def _resume(
    self, step: int, optimizer: optimizers.Optimizer, seed: int
  ) -> StartingPoint:
    stored = load(self.path(step), lazy=True)
    if RECORD not in stored.extra:
      raise CheckpointError(
        f"{stored.path} was trained with a verifier that stays as it is, and"
        " VERIFIER_TUNING is set: give it as INITIAL_CHECKPOINT_PATH and"
        " another MODEL_DIR"
      )
    # The heads' record names the verifier that was tuned up to this step.
    sha256 = getattr(stored.config, "verifier_sha256", "")
    self.config = dataclasses.replace(self.config, verifier_sha256=sha256)
    return super()._resume(step, optimizer, seed)

  def _whole(self, params: Mapping, step: int | None = None) -> Mapping:
    """Returns the parameters of the heads and of their verifier."""
    if step is None:
      return {HEADS: params, VERIFIER: self.verifier.params}
    path = self._verifier_path(step)
    tuned = load(path, config=self.verifier.module.config).params
    if fingerprint(tuned) != self.config.verifier_sha256:
      raise CheckpointError(
        f"{path} is not the verifier of {self.path(step)}: give another"
        " MODEL_DIR"
      )
    return {HEADS: params, VERIFIER: tuned}

  def _slots_of(self, opt_state: Any) -> None:
    """Returns None: no other run continues with accumulators of two models."""

  def _write_parts(
    self, step: int, params: Mapping, extra: dict[str, Any]
  ) -> Mapping:
    """Writes the verifier, and returns the parameters of the heads."""
    from etils import epath

    tuned = params[VERIFIER]
    self.config = dataclasses.replace(
      self.config, verifier_sha256=fingerprint(tuned)
    )
    extra[RECORD] = self._place_of_verifier(step)
    folder = epath.Path(self.model_dir) / VERIFIER
    folder.mkdir(parents=True, exist_ok=True)
    # A run that was killed before it wrote the heads left the verifier of this
    # step, whole or in part.
    prefix = orbax_io.STEP_PREFIX
    parts = folder.glob(f"{prefix}_*.orbax-checkpoint-tmp*")
    for path in (*parts, folder / f"{prefix}_{step}"):
      if path.exists():
        path.rmtree()
    try:
      orbax_io.save(
        self._verifier_path(step),
        tuned,
        self.verifier.module.config,
        step=step,
        vocabulary=self.vocabulary,
      )
    except (OSError, ValueError, RuntimeError) as error:
      raise self._unwritten(self._verifier_path(step), error) from error
    return params[HEADS]

  def _remove_parts(self) -> None:
    """Removes verifiers of steps whose heads are gone."""
    from etils import epath

    steps = set(restore.steps(self.model_dir))
    folder = epath.Path(self.model_dir) / VERIFIER
    for step in set(restore.steps(str(folder))) - steps:
      (folder / f"{orbax_io.STEP_PREFIX}_{step}").rmtree()
