"""An early exit that was taught: its hyperparameters, and its network.

It is the first k layers of a verifier, then layers of its own of the same kind,
and a last norm of its own. The verifier's table of tokens, its encoder and its
head are the exit's, too. What is trained, and lies in its checkpoint, is the
new layers and the norm.

Source: Liu et al., "Kangaroo" (arXiv 2404.18911), whose adapter is one layer's
attention with two norms; here a new layer is a whole layer of the verifier's
kind, so that whatever runs the verifier runs the exit.
"""

from collections.abc import Mapping
import dataclasses
import functools
import json
from typing import Annotated, Any, Literal

from flax import linen as nn
import jax

from speccascade.models import early_exit
from speccascade.models.draft_heads import fingerprint
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.network import CausalTransformer
from speccascade.models.t5.config import T5Config
from speccascade.models.t5.network import Transformer
from speccascade.models.t5gemma.config import T5GemmaConfig
from speccascade.models.t5gemma.network import T5GemmaTransformer
from speccascade.settings import fields

_VERIFIERS: dict[type, Any] = {
  T5Config: Transformer,
  T5GemmaConfig: T5GemmaTransformer,
  LlamaConfig: CausalTransformer,
}
_BY_NAME = {kind.__name__: kind for kind in _VERIFIERS}


@fields.checked
@dataclasses.dataclass(frozen=True)
class ExitConfig:
  """Hyperparameters of an early exit that is taught.

  A user sets the first two. The others say which verifier it is an exit of;
  `of_verifier` fills them in.

  Attributes:
    num_layers: k, the verifier's layers that the exit begins with.
    num_new_layers: layers of its own after them; with 0 the norm alone learns.
    architecture: the verifier's hyperparameters, as JSON.
    verifier_sha256: what `draft_heads.fingerprint` says of its parameters.
    dtype: dtype of the activations; parameters are always float32.
  """

  num_layers: Annotated[int, fields.Bounds(1, 1024)] = 4
  num_new_layers: Annotated[int, fields.Bounds(0, 8)] = 1
  architecture: str = ""
  verifier_sha256: str = ""
  dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"

  def of_verifier(self, config: Any, params: Mapping) -> "ExitConfig":
    """Returns the exit of a verifier.

    Args:
      config: the verifier's architecture.
      params: the verifier's parameters, in T5X's names.

    Raises:
      ValueError: the verifier has fewer layers.
    """
    return dataclasses.replace(
      self.shaped_like(config), verifier_sha256=fingerprint(params)
    )

  def shaped_like(self, config: Any) -> "ExitConfig":
    """Returns the exit with the shape of a verifier.

    Args:
      config: the verifier's architecture.

    Raises:
      ValueError: the verifier has fewer layers.
    """
    early_exit.shortened(config, self.num_layers)
    values = {"kind": type(config).__name__, **dataclasses.asdict(config)}
    text = json.dumps(values, sort_keys=True)
    return dataclasses.replace(self, architecture=text)

  @property
  def verifier(self) -> Any:
    """The verifier's architecture; None where it is not known yet."""
    return _parsed(self.architecture) if self.architecture else None

  @property
  def whole(self) -> Any:
    """The architecture of the exit as a language model."""
    num = self.num_layers + self.num_new_layers
    changes: dict[str, Any] = {"num_decoder_layers": num, "dtype": self.dtype}
    return dataclasses.replace(self.verifier, **changes)

  @property
  def vocab_size(self) -> int:
    """V, rows of the verifier's vocabulary."""
    return self.verifier.vocab_size if self.architecture else 1

  @property
  def emb_dim(self) -> int:
    """E, the verifier's model width."""
    return self.verifier.emb_dim if self.architecture else 1

  @property
  def prompted(self) -> bool:
    """Whether the verifier is decoder-only."""
    config = self.verifier
    return config is not None and not hasattr(config, "num_encoder_layers")


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Any:
  """Returns the architecture that a text of JSON has."""
  values = json.loads(text)
  return fields.build(_BY_NAME[values.pop("kind")], values)


class ExitNetwork(nn.Module):
  """The parameters of an exit that is taught; a verifier runs them.

  Attributes:
    config: the exit.
    remat: what training computes again, see `layers.REMAT`.
  """

  config: ExitConfig
  remat: str | None = None

  @nn.nowrap
  def initial(self, rng: jax.Array) -> Any:
    """Returns random parameters."""
    return self.initial_variables(rng)["params"]

  @nn.nowrap
  def initial_variables(self, rng: jax.Array) -> Any:
    """Returns random "params", and the names of their axes as "params_axes"."""
    config, names = self.config, new_names(self.config)
    shallow = dataclasses.replace(
      config.verifier or LlamaConfig(vocab_size=1), num_decoder_layers=1
    )
    network = _VERIFIERS[type(shallow)](shallow)
    keys = jax.random.split(rng, len(names) + 1)
    each = [network.initial_variables(key) for key in keys]
    return {
      kind: {
        "decoder": {
          "decoder_norm": tree["decoder"]["decoder_norm"],
          **{
            name: variables[kind]["decoder"]["layers_0"]
            for name, variables in zip(names, each[1:])
          },
        }
      }
      for kind, tree in each[0].items()
    }

  @nn.nowrap
  def network(self) -> Any:
    """Returns the network of the exit, with the verifier's layers in it."""
    config = self.config.whole
    return _VERIFIERS[type(config)](config, self.remat)


def new_names(config: ExitConfig) -> list[str]:
  """Returns the names of the new layers in the decoder of the exit."""
  first = config.num_layers
  return [f"layers_{first + i}" for i in range(config.num_new_layers)]


def merged(config: ExitConfig, verifier: Mapping, params: Mapping) -> dict:
  """Returns the parameters of the exit as a language model.

  Args:
    config: the exit.
    verifier: the verifier's parameters, packed or not.
    params: the exit's own.
  """
  tree = early_exit.first_layers(verifier, config.num_layers)
  return {**tree, "decoder": {**tree["decoder"], **params["decoder"]}}


def initial_params(
  config: ExitConfig, verifier: Any, verifier_params: Any
) -> dict:
  """Returns the parameters of an exit before training.

  They are the verifier's last norm, and its next layers as the new ones, so
  that the exit begins as an untaught one after all of its layers.

  Args:
    config: the exit.
    verifier: the verifier's network.
    verifier_params: the verifier's parameters.
  """
  decoder, most = verifier_params["decoder"], verifier.config.num_decoder_layers
  layers = {
    name: decoder[f"layers_{min(config.num_layers + i, most - 1)}"]
    for i, name in enumerate(new_names(config))
  }
  return {"decoder": {"decoder_norm": decoder["decoder_norm"], **layers}}
