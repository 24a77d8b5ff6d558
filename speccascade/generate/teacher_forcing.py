"""Reads given texts with a language model, which is a teacher-forced pass."""

import jax
import jax.numpy as jnp

from speccascade.decoding.records import prompts
from speccascade.decoding.records.block_records import Output
from speccascade.decoding.records.language_model import LanguageModel

_MOST = 2**23  # probabilities of one model that are in memory at once


def most_rows(num_probs: int) -> int:
  """Returns how many texts are read at once, at least one.

  Args:
    num_probs: the probabilities that a model gives of one text.
  """
  return max(1, _MOST // num_probs)


def read(model: LanguageModel, inputs: jax.Array, tokens: jax.Array) -> Output:
  """Returns what a model gives before each token of texts that it reads.

  Args:
    model: the language model.
    inputs: [B, S] int32, the padded sources or prompts.
    tokens: [B, T] int32, the texts that follow them.

  Returns:
    The output at each of the T places; its logits at place t are of token t.
  """
  rows, length = tokens.shape
  state = model.prefill(inputs, capacity=length)
  fed = tokens_before(model, inputs, tokens)
  _, out = model.extend(state, fed, jnp.full((rows,), length, jnp.int32))
  return out


def tokens_before(
  model: LanguageModel, inputs: jax.Array, tokens: jax.Array
) -> jax.Array:
  """Returns [B, T] int32, the token before each token of texts.

  Before token 0 comes the start token, or the last token of the prompt.
  """
  first = prompts.start(model, inputs)[:, None]
  return jnp.concatenate([first, tokens[:, :-1]], axis=1)
