"""Look-ahead embeddings that are tables, over chains of order 1."""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade.models.markov_lm import FiniteContext
from tests.decoding.drafting import toy_heads


@struct.dataclass
class AheadLM(FiniteContext):
  """A chain of order 1 that reads look-ahead embeddings.

  Attributes:
    chain: [V, V] float logits, after each token.
    ahead: [K, V, V] float logits, at each embedding, by the last token before
      the embeddings.
    prompted: static, as of any model.
  """

  chain: jax.Array
  ahead: jax.Array
  prompted: bool = struct.field(pytree_node=False, default=False)

  @property
  def vocab_size(self) -> int:
    return self.chain.shape[-1]

  @property
  def order(self) -> int:
    return len(self.ahead) + 1

  def look_up(self, source, context):
    last, size = context[-1], self.vocab_size
    logits = self.chain[jnp.minimum(last, size - 1)]
    for k, table in enumerate(self.ahead):
      # Embedding k + 1 knows the token so many places before it. Where another
      # embedding is there it knows nothing, and says so.
      token = context[-k - 2]
      law = table[jnp.minimum(token, size - 1)]
      law = jnp.where((token < size)[..., None], law, jnp.nan)
      logits = jnp.where((last == size + k)[..., None], law, logits)
    # No embedding comes before a token. One that was left in a cache would.
    is_left = (last < size) & (jnp.stack(context[:-1]).max(0) >= size)
    return jnp.where(is_left[..., None], jnp.nan, logits)


@struct.dataclass
class TableAhead:
  """Look-ahead embeddings of a `MarkovLM` of order 1.

  Attributes:
    table: [K, V, V] float logits: at each embedding, after each last token.
  """

  table: jax.Array

  @property
  def num_heads(self) -> int:
    return self.table.shape[0]

  @property
  def vocab_size(self) -> int:
    return self.table.shape[-1]

  def language_model(self, verifier):
    return AheadLM(verifier.table[0], self.table, verifier.prompted)


def of_laws(laws) -> TableAhead:
  """Returns the embeddings of distributions [K, V, V]."""
  return TableAhead(toy_heads.logits_of(laws))


def knowing(transitions: np.ndarray, num: int, blur: float) -> TableAhead:
  """Returns the embeddings that know a chain of order 1.

  Args:
    transitions: [V, V], the distributions of the chain.
    num: K.
    blur: weight of the uniform distribution in each.
  """
  return of_laws(toy_heads.laws_ahead(transitions, num, blur))
