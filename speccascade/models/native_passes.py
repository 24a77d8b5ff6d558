"""Passes of a T5 and of a Llama as native calls, from their parameters."""

from collections.abc import Iterator, Sequence
import functools
import logging
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import native
from speccascade.decoding.records.block_records import DraftedChain
from speccascade.models import cut_head
from speccascade.models.block import Block
from speccascade.models.layers import look_up
from speccascade.models.llama import rotary
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama.eagle import EagleConfig
from speccascade.models.t5.config import T5Config

Pairs = tuple[tuple[jax.Array, jax.Array], ...]  # (keys, values) of each layer


# Fields of `LlamaConfig` that the native passes do not compute.
_PLAIN_ONLY = {
  "out_bias": "a bias of attention's output",
  "post_norms": "norms of outputs",
  "norm_offset": "an offset of norms",
  "scaled_embedding": "scaled embeddings",
  "query_pre_attn_scalar": "another scale of queries",
  "attention_cap": "a cap of attention",
  "logit_cap": "a cap of logits",
}


def is_native(config: T5Config | LlamaConfig, params: dict) -> bool:
  """Whether the native code can run a model's passes.

  All kernels must be packed, and the native code must know the activations and
  all else that the config asks for. Where it does not, the log says so once.
  The head may be packed in another way than the layers, or not, as where a
  state reader has the head of a verifier.
  """
  attention = params["decoder"]["layers_0"]["self_attention"]
  kernels = attention["query"]["kernel"], _head(config, params)
  if not all(isinstance(kernel, native.Panels) for kernel in kernels):
    return False
  unknown = [
    f"the activation {name!r}"
    for name in sorted(set(config.mlp_activations) - set(native.ACTIVATIONS))
  ]
  unknown += [
    what for field, what in _PLAIN_ONLY.items() if getattr(config, field, None)
  ]
  if isinstance(config, EagleConfig):
    unknown.append("the layer of EAGLE's drafters")
  elif type(config) not in (T5Config, LlamaConfig):
    unknown.append("attention to a source as this model has it")
  if unknown:
    _say(", ".join(unknown))
  return not unknown


@functools.cache
def _say(unknown: str):
  """Says once why the plain network is run although kernels are packed."""
  logging.getLogger("speccascade").info(
    "the CPU's native passes lack %s: XLA runs the network between native"
    " products, at 1.1 to 1.4 times the time of a pass",
    unknown,
  )


def _projections(attention: dict) -> native.Projections:
  return native.Projections(
    query=attention["query"]["kernel"],
    key=attention["key"]["kernel"],
    value=attention["value"]["kernel"],
  )


def _mlp(layer: dict) -> native.MlpSublayer:
  mlp = layer["mlp"]
  # "wi" alone, or "wi_0" and "wi_1" of a gated MLP.
  inner = [name for name in sorted(mlp) if name != "wo"]
  return native.MlpSublayer(
    scale=layer["pre_mlp_layer_norm"]["scale"],
    inner=tuple(mlp[name]["kernel"] for name in inner),
    out=mlp["wo"]["kernel"],
  )


def _t5_sublayers(
  config: T5Config, decoder: dict, state: Any
) -> Iterator[native.DecoderSublayer]:
  """Yields the sublayers of a T5's decoder."""
  for i in range(config.num_decoder_layers):
    layer = decoder[f"layers_{i}"]
    attention = layer["self_attention"]
    keys, values = state.caches[i]
    yield native.CachedAttention(
      scale=layer["pre_self_attention_layer_norm"]["scale"],
      kernels=_projections(attention),
      out=attention["out"]["kernel"],
      keys=keys,
      values=values,
      bias=state.by_offset,
    )
    attention = layer["encoder_decoder_attention"]
    keys, values = state.sources[i]
    yield native.SourceAttention(
      scale=layer["pre_cross_attention_layer_norm"]["scale"],
      query=attention["query"]["kernel"],
      out=attention["out"]["kernel"],
      keys=keys,
      values=values,
      mask=state.source_bias,
    )
    yield _mlp(layer)


def _llama_sublayers(
  config: LlamaConfig,
  decoder: dict,
  state: Any,
  angles: dict[int | None, tuple[jax.Array, jax.Array]],
) -> Iterator[native.DecoderSublayer]:
  """Yields the sublayers of a Llama, for the fed tokens' angles by window."""
  for i in range(config.num_decoder_layers):
    layer = decoder[f"layers_{i}"]
    attention = layer["self_attention"]
    keys, values = state.caches[i]
    biases, head_norms, window = None, None, config.window_of(i)
    cosines, sines = angles[window]
    if config.qkv_bias:
      biases = native.Biases(
        query=attention["query"]["bias"],
        key=attention["key"]["bias"],
        value=attention["value"]["bias"],
      )
    if config.query_key_norm:
      head_norms = native.HeadNorms(
        query=attention["query_norm"]["scale"],
        key=attention["key_norm"]["scale"],
      )
    yield native.RotaryAttention(
      scale=layer["pre_self_attention_layer_norm"]["scale"],
      kernels=_projections(attention),
      out=attention["out"]["kernel"],
      keys=keys,
      values=values,
      cosines=cosines,
      sines=sines,
      biases=biases,
      head_norms=head_norms,
      window=window,
    )
    yield _mlp(layer)


class _Decoder(NamedTuple):
  """What a native pass reads of a decoder."""

  table: Any  # vectors of tokens
  sublayers: list[Any]
  scale: jax.Array  # of the last norm
  head: Any  # of the logits
  options: dict[str, Any]  # numbers of norms and of the head; activations


def _decoder(
  config: T5Config | LlamaConfig,
  params: dict,
  state: Any,
  shape: tuple[int, ...],
  depth: jax.Array | None = None,
) -> _Decoder:
  """Returns a decoder that is ready to be fed tokens of a shape (B, N)."""
  decoder = params["decoder"]
  table = params["token_embedder"]["embedding"]
  options: dict[str, Any] = {"activations": config.mlp_activations}
  sublayers: list[Any]
  if isinstance(config, T5Config):
    sublayers = [*_t5_sublayers(config, decoder, state)]
    if config.logits_via_embedding:
      options["factor"] = config.emb_dim**-0.5
  else:
    positions = rotary.positions(state.end, shape, depth)
    angles = rotary.angles_by_window(config, positions)
    sublayers = [*_llama_sublayers(config, decoder, state, angles)]
    options["epsilon"] = config.norm_epsilon
  return _Decoder(
    table=table,
    sublayers=sublayers,
    scale=decoder["decoder_norm"]["scale"],
    head=_head(config, params),
    options=options,
  )


def _head(config: T5Config | LlamaConfig, params: dict) -> Any:
  """Returns the kernel of the logits."""
  if (cut := params.get(cut_head.NAME)) is not None:
    return cut["kernel"]
  if config.logits_via_embedding:
    return params["token_embedder"]["embedding"]
  return params["decoder"]["logits_dense"]["kernel"]


def extend(
  config: T5Config | LlamaConfig,
  params: dict,
  state: Any,
  block: Block,
  count: jax.Array,
  state_layers: Sequence[int] = (),
) -> tuple[Pairs, jax.Array, jax.Array]:
  """Returns (caches, logits, hidden) of a fed block; see `CachedLM.extend`.

  Args:
    config: the architecture.
    params: its parameters, packed.
    state: `T5State` or `LlamaState`.
    block: the fed tokens, without spare ones.
    count: [B] int32, tokens fed to each row.
    state_layers: whose inputs are the hidden states; see `CachedLM`.
  """
  tokens, read = block.tokens, block.read
  decoder = _decoder(config, params, state, tokens.shape, block.depth)
  table, tree = decoder.table, None
  vectors = block.vectors
  lookahead = params["token_embedder"].get("lookahead")
  if vectors is None and lookahead is not None:
    vectors = look_up(table, tokens, config.dtype, lookahead)
  if vectors is not None:
    # The native code knows one table. It is handed the vectors of the fed
    # tokens as a table of their own, of which it reads each vector once.
    table = vectors.reshape(-1, config.emb_dim)
    tokens = jnp.arange(tokens.size, dtype=jnp.int32).reshape(tokens.shape)
  if block.depth is not None and block.ancestors is not None:
    tree = (block.depth, block.ancestors)
  # Where no position is wanted, a pass without a head costs less.
  is_silent = read is not None and not read.shape[1]
  head = decoder.head
  if not block.has_logits:
    # Hidden states are computed for a head alone: a narrow one takes no time.
    kernel = np.zeros((config.emb_dim, 1), np.float32)
    panels = decoder.sublayers[0].out
    head = native.pack(kernel, panels.array.dtype, panels.rounds)
  caches, logits, hidden = native.decoder_pass(
    tokens,
    table,
    block.start,
    count,
    decoder.sublayers,
    decoder.scale,
    None if is_silent else head,
    read=read,
    tree=tree,
    state_layers=state_layers,
    **decoder.options,
  )
  if logits is None or hidden is None:
    logits = jnp.zeros((len(tokens), 0, config.vocab_size), jnp.float32)
    hidden = jnp.zeros((len(tokens), 0, config.emb_dim), jnp.float32)
  return caches, logits, hidden


def draft_chain(
  config: T5Config | LlamaConfig,
  params: dict,
  state: Any,
  prefix: native.ChainPrefix,
  draws: native.ChainDraws,
  *,
  first_width: int,
  num_passes: int,
  states: native.ChainStates | None = None,
) -> tuple[Pairs, DraftedChain]:
  """Returns (caches, chain) of a drafted chain; see `CachedLM.draft_chain`.

  With a cut head the chain's distributions are over its N tokens.

  Args:
    config: the architecture.
    params: its parameters, packed.
    state: `T5State` or `LlamaState`.
    prefix: what the chain follows.
    draws: how tokens are drawn.
    first_width: static, the most tokens that a cache lacks of its prefix.
    num_passes: static, P of `DraftedChain`.
    states: what is read of hidden states; None where tokens are read alone.
  """
  num_fed = native.angles_of_chain(first_width, num_passes)
  decoder = _decoder(config, params, state, (len(draws.u), num_fed))
  caches, tokens, q, logits, bad = native.draft_chain(
    prefix,
    draws,
    decoder.table,
    decoder.sublayers,
    decoder.scale,
    decoder.head,
    first_width=first_width,
    num_passes=num_passes,
    ids=params[cut_head.NAME]["ids"] if cut_head.NAME in params else None,
    states=states,
    **decoder.options,
  )
  return caches, DraftedChain(tokens=tokens, q=q, logits=logits, bad=bad)


def encode(
  config: T5Config,
  params: dict,
  inputs: jax.Array,
  mask: jax.Array,
  by_offset: jax.Array,
  reader: tuple[T5Config, dict] | None = None,
) -> Pairs:
  """Returns (keys, values) of a T5's source for each decoder layer.

  The pairs of the layers of a reader, another decoder with as many heads, come
  after those of the T5.

  Args:
    config: the architecture.
    params: its parameters, packed.
    inputs: [B, S] int32.
    mask: [B, 1, 1, S] float32, hides the padding.
    by_offset: [H, 2 S - 1] float32, the encoder's bias by distance.
    reader: its architecture and its parameters, packed; None for none.
  """
  encoder, decoder = params["encoder"], params["decoder"]
  sublayers: list[native.EncoderSublayer] = []
  for i in range(config.num_encoder_layers):
    layer = encoder[f"layers_{i}"]
    attention = layer["attention"]
    sublayers.append(
      native.EncoderAttention(
        scale=layer["pre_attention_layer_norm"]["scale"],
        kernels=_projections(attention),
        out=attention["out"]["kernel"],
        bias=by_offset,
      )
    )
    sublayers.append(_mlp(layer))
  source_kernels = []
  decoders = [(config, decoder)]
  if reader is not None:
    decoders.append((reader[0], reader[1]["decoder"]))
  for of_decoder, params_of_decoder in decoders:
    for i in range(of_decoder.num_decoder_layers):
      layer = params_of_decoder[f"layers_{i}"]
      attention = layer["encoder_decoder_attention"]
      source_kernels.append(
        native.SourceKernels(
          key=attention["key"]["kernel"], value=attention["value"]["kernel"]
        )
      )
  return native.encoder_pass(
    inputs,
    params["token_embedder"]["embedding"],
    mask,
    sublayers,
    encoder["encoder_norm"]["scale"],
    source_kernels,
    num_heads=config.num_heads,
    activations=config.mlp_activations,
  )
