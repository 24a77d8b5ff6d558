"""An output head that keeps some tokens: a drafter's draft vocabulary.

A small model spends much of a draft on the product with all rows of its head. A
cut head holds the rows of the kept tokens alone, so that products,
distributions and draws are over N tokens instead of V. The embedding stays
whole: the model reads every token.

The cut head lies in a model's parameter tree under `NAME`: "kernel" [E, N] or
its panels, and the kept "ids" [N] int32, ascending. Soft caps and factors of
the logits are the network's, as with the whole head.

Axes: E model width, N kept tokens, V vocabulary.

Source: Zhao et al., "FR-Spec" (arXiv 2502.14856), which keeps the most frequent
tokens of a corpus.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.models.products import matmul

NAME = "draft_vocabulary"


def cut(params: Mapping[str, Any], ids: np.ndarray) -> dict[str, Any]:
  """Returns a parameter tree whose head keeps some tokens.

  An untied head is left out, as nothing reads it any more. A tied one is the
  table of tokens, and stays.

  Args:
    params: the parameters of a T5, a T5Gemma or a Llama, packed or not, whose
      head is not cut.
    ids: [N] ids of rows of the head, ascending, without repetition.
  """
  decoder, tree = dict(params["decoder"]), dict(params)
  kernel: Any
  dense = decoder.pop("logits_dense", None)
  if dense is None:
    head = params["token_embedder"]["embedding"]
  else:
    head = dense["kernel"]
  index = jnp.asarray(ids, jnp.int32)
  if isinstance(head, native.Panels):
    columns = np.asarray(head.columns(index)).T
    kernel = native.pack(columns, head.array.dtype, head.rounds)
  elif dense is None:
    kernel = jnp.asarray(head)[index].T
  else:
    kernel = jnp.asarray(head)[:, index]
  return tree | {"decoder": decoder, NAME: {"kernel": kernel, "ids": index}}


def logits(x: jax.Array, head: Mapping[str, Any]) -> jax.Array:
  """Returns x [..., E] times the kernel of a cut head, [..., N] float32."""
  x, kernel = x.astype(jnp.float32), head["kernel"]
  if isinstance(kernel, native.Panels):
    [product] = native.products(x, [kernel])
    return product
  return matmul(x, kernel.astype(jnp.float32))


def spread(
  x: jax.Array, ids: jax.Array, vocab_size: int, fill: float
) -> jax.Array:
  """Returns x [..., N] of the kept tokens as [..., V].

  Args:
    x: logits or probabilities of the kept tokens.
    ids: [N] int32, ascending.
    vocab_size: V.
    fill: what the other tokens have.
  """
  whole = jnp.full((*x.shape[:-1], vocab_size), fill, x.dtype)
  if not whole.size:
    return whole
  return whole.at[..., ids].set(
    x,
    indices_are_sorted=True,
    unique_indices=True,
    mode="promise_in_bounds",
  )
