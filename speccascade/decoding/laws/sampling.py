"""From logits to the two distributions of a model.

One is the confidence, at temperature 1 and unfiltered, which deferral rules
read. The other is the sampled distribution, which tokens are drawn from. Each
model filters its own logits: temperature first, then top-k, then top-p, then
min-p.

`SamplingSettings` are the settings as a user gives them, `Sampling` what a
program is traced with.

Nothing here sorts. A sort over a vocabulary inside the loop costs more than the
model does.
"""

import dataclasses
import math
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, overload

from flax import struct
import jax
import jax.numpy as jnp

from speccascade import native
from speccascade.decoding.laws import draws, kernel_laws, numerics
from speccascade.settings import fields
from speccascade.settings.fields import values_of

Array = jax.Array

GREEDY_BELOW = 1e-4  # temperatures up to this mean arg-max, as in T5X


class _IsFloat32:
  """A rule of a setting: float32 does not round the number to infinity."""

  def holds(self, value: float) -> bool:
    return math.isfinite(numerics.as_float32(value))

  def __str__(self) -> str:
    return "that float32 holds"


@fields.checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings:
  """How tokens are drawn; `Sampling.of` makes the arrays of a program.

  The temperature comes first, then top-k, then top-p, then min-p, each on the
  tokens that the one before it kept.

  Attributes:
    temperature: divides the logits. 0 is greedy: the likeliest token is taken.
    top_k: exactly so many of the likeliest tokens are kept; None or 0 keeps
      every token.
    top_p: the smallest set of likeliest tokens that holds this much probability
      is kept, and always the likeliest token; None or 1 keeps every token.
    min_p: tokens are kept that are at least so many times as likely as the
      likeliest token; None or 0 keeps every token.
  """

  temperature: Annotated[float, fields.Bounds(0), _IsFloat32()] = 1.0
  # A filter says which number keeps every token, as None does.
  top_k: fields.NonNegative | None = dataclasses.field(
    default=None, metadata={"everything": 0}
  )
  top_p: Annotated[float, fields.Bounds(0, 1, low_open=True)] | None = (
    dataclasses.field(default=None, metadata={"everything": 1})
  )
  min_p: fields.Share | None = dataclasses.field(
    default=None, metadata={"everything": 0}
  )

  @property
  def is_greedy(self) -> bool:
    """Whether the likeliest token is taken instead of a draw."""
    return self.temperature <= GREEDY_BELOW

  @property
  def sampled(self) -> dict[str, float | None]:
    """The settings by name, with None for each filter that keeps every token.

    Equal dicts draw alike: nothing is filtered from an arg-max.
    """
    values = values_of(self, SamplingSettings)
    if self.is_greedy:
      values["temperature"] = 0.0
    for field in dataclasses.fields(SamplingSettings):
      if "everything" in field.metadata:
        keeps_all = values[field.name] == field.metadata["everything"]
        if keeps_all or self.is_greedy:
          values[field.name] = None
    return values


Token = TypeVar("Token", bound=Array | None, covariant=True)


class Step(NamedTuple, Generic[Token]):
  """The distributions of the next token, and a draw.

  Attributes:
    plain: [..., V] distribution at temperature 1, unfiltered: the confidence.
    law: [..., V] distribution that tokens are drawn from.
    token: [...] int32 token drawn from `law`; None where none was wanted.
    is_law: [...] bool, whether the logits gave a distribution. Where it is
      False the other fields are undefined.
  """

  plain: Array
  law: Array
  token: Token
  is_law: Array


@struct.dataclass
class Sampling:
  """How logits become the distribution that tokens are drawn from.

  Attributes:
    temperature: scalar, traced.
    top_p: scalar in (0, 1], traced; None keeps every token.
    top_k: static; None keeps every token.
    min_p: scalar in [0, 1], traced; None keeps every token.
    greedy: static. The distribution is one-hot at the arg-max; ties go to the
      lowest id.
  """

  temperature: Array
  top_p: Array | None = None
  top_k: int | None = struct.field(pytree_node=False, default=None)
  min_p: Array | None = None
  greedy: bool = struct.field(pytree_node=False, default=False)

  @classmethod
  def create(
    cls,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    **others: Any,
  ) -> "Sampling":
    """Returns the sampling of settings, which are checked on the host.

    Args:
      temperature: see `SamplingSettings`.
      top_k: see `SamplingSettings`.
      top_p: see `SamplingSettings`.
      **others: the other fields of `SamplingSettings`, if it has any.

    Raises:
      ValueError: a setting is out of range.
    """
    settings = SamplingSettings(
      temperature=temperature, top_k=top_k, top_p=top_p, **others
    )
    return cls.of(settings)

  @classmethod
  def of(cls, settings: SamplingSettings) -> "Sampling":
    """Returns the sampling of settings, with arrays for what is traced."""
    values: dict[str, Any] = {**settings.sampled}
    for field in dataclasses.fields(cls):
      is_traced = field.metadata.get("pytree_node", True)
      if is_traced and values[field.name] is not None:
        values[field.name] = jnp.asarray(values[field.name], jnp.float32)
    return cls(**values, greedy=settings.is_greedy)

  def laws(self, logits: Array) -> tuple[Array, Array]:
    """Returns the two distributions of logits.

    Args:
      logits: [..., V]; -inf means probability zero.

    Returns:
      The distribution at temperature 1, unfiltered, and the distribution that
      tokens are drawn from: [..., V] each, in at least float32, each summing to
      1.
    """
    return self.step(logits)[:2]

  def confidence(self, logits: Array) -> Array:
    """Returns the distribution at temperature 1, unfiltered, [..., V]."""
    logits = numerics.at_least_float32(logits)
    unit = jnp.ones((), jnp.float32)
    return _law(logits, largest(logits), unit, None, 0)[0]

  @overload
  def step(
    self,
    logits: Array,
    u: None = None,
    column: int = 0,
    found: kernel_laws.Found | None = None,
  ) -> Step[None]: ...

  @overload
  def step(
    self,
    logits: Array,
    u: Array,
    column: int = 0,
    found: kernel_laws.Found | None = None,
  ) -> Step[Array]: ...

  def step(
    self,
    logits: Array,
    u: Array | None = None,
    column: int = 0,
    found: kernel_laws.Found | None = None,
  ) -> Step[Array | None]:
    """Returns both distributions of logits, and a token.

    Args:
      logits: [..., V].
      u: [..., N] uniforms in [0, 1); None where no token is wanted.
      column: static, which of the N uniforms draws the token.
      found: what `kernel_laws.find` returned of the same arguments, where it
        was asked before.
    """
    logits = numerics.at_least_float32(logits)
    if found is None:
      found = kernel_laws.find(self, logits, u, column)
    if found is not None:
      return Step(*kernel_laws.laws_of(self, logits, found))
    unit = jnp.ones((), jnp.float32)
    # No filter drops the largest logit, so one maximum serves all.
    top = largest(logits)
    if self.greedy:
      plain, _, _ = _law(logits, top, unit, None, 0)
      return Step(plain, *_law(logits, top, unit, u, column, greedy=True))
    kept, ids = logits, None
    if self.top_k is not None and self.top_k < logits.shape[-1]:
      scaled = logits / self.temperature.astype(logits.dtype)
      is_kept, ids = top_k(scaled, self.top_k)
      kept = jnp.where(is_kept, logits, -jnp.inf)
    is_filtered = self.top_p is not None or self.min_p is not None
    whole = None if is_filtered else u  # else drawn once filtered
    law, token, is_law = _law(kept, top, self.temperature, whole, column)
    if kept is logits and native.takes(logits):
      # At temperature 1 this is a copy.
      plain, is_whole = native.plain_laws(logits, law, self.temperature), is_law
    else:
      plain, _, is_whole = _law(logits, top, unit, None, 0)
    if self.top_p is not None:
      law = _nucleus(law, self.top_p, ids)
    if self.min_p is not None:
      law = _likely(law, self.min_p)
    if is_filtered:
      token = _draw(law, u, column)
    # What was filtered away may have been no number.
    return Step(plain, law, token, is_law if kept is logits else is_whole)

  def filters(self, size: int) -> bool:
    """Returns whether tokens of a vocabulary of `size` are filtered away."""
    has_top_k = self.top_k is not None and self.top_k < size
    is_filtered = has_top_k or self.top_p is not None or self.min_p is not None
    return is_filtered and not self.greedy


def _law(
  logits: Array,
  top: Array,
  temperature: Array,
  u: Array | None,
  column: int,
  greedy: bool = False,
) -> tuple[Array, Array | None, Array]:
  """Returns `law`, `token` and `is_law` of a `Step`, at one temperature.

  Where native code is available, one call of it computes the same numbers.
  """
  token: Array | None
  if native.takes(logits, *([] if u is None else [u])):
    return native.laws(logits, temperature, u, column=column, greedy=greedy)
  if greedy:
    token = numerics.first_argmax(logits, top)
    law = jax.nn.one_hot(token, logits.shape[-1], dtype=logits.dtype)
  else:
    temperature = temperature.astype(logits.dtype)
    # A quotient of the largest is the largest quotient.
    weights = jnp.exp(logits / temperature - top[..., None] / temperature)
    if u is None:
      token, total = None, jnp.sum(weights, axis=-1)
    else:
      uniform = u[..., column].astype(weights.dtype)
      token, total = draws.draw_and_sum(weights, uniform)
    law = weights / total[..., None]
  return law, token, jnp.isfinite(top)


def _nucleus(law: Array, top_p: Array, ids: Array | None) -> Array:
  """Returns `law` over the tokens that `top_p_mask` keeps, summing to 1."""
  if native.takes(law, top_p):
    return native.nucleus(law, top_p)
  mask = top_p_mask(law, top_p, ids)
  return numerics.normalise(jnp.where(mask, law, 0), law)


def _likely(law: Array, min_p: Array) -> Array:
  """Returns `law` over the tokens with min_p times the largest probability.

  Source: Nguyen et al., min-p sampling (arXiv 2407.01082).
  """
  least = min_p.astype(law.dtype) * jnp.max(law, axis=-1, keepdims=True)
  return numerics.normalise(jnp.where(law >= least, law, 0), law)


def _draw(law: Array, u: Array | None, column: int) -> Array | None:
  return (
    None if u is None else draws.draw(law, u[..., column].astype(law.dtype))
  )


def top_k(logits: Array, k: int) -> tuple[Array, Array]:
  """Returns the k largest logits: [..., V] bool, and [..., k] int32 their ids.

  Exactly k tokens are kept: of equal logits the lower ids are.
  """
  flat = logits.reshape(-1, logits.shape[-1])
  flat = jnp.where(flat == 0, 0, flat)  # `top_k` sorts -0.0 below 0.0
  values, ids = jax.lax.top_k(flat, k)
  # A comparison makes the mask, with the least of them and the highest id among
  # its equals: a TPU sorts where it scatters. (They are the last ones, but a
  # TPU's compiler sorts the whole vocabulary where these are sliced out.)
  least = jnp.min(values, axis=1, keepdims=True)
  last = jnp.max(jnp.where(values == least, ids, -1), axis=1, keepdims=True)
  index = jax.lax.broadcasted_iota(jnp.int32, flat.shape, 1)
  mask = (flat > least) | ((flat == least) & (index <= last))
  return mask.reshape(logits.shape), ids.reshape(*logits.shape[:-1], k)


def top_p_mask(p: Array, top_p: Array, ids: Array | None = None) -> Array:
  """Returns [..., V] bool: the smallest set of likeliest tokens holding top_p.

  The token that crosses the line is kept; of equal probabilities the lower ids
  are taken first. The threshold is found by bisection on the bit patterns of
  the probabilities (which order as the numbers do), so that it is one of them.

  XLA may take numbers below the least normal one of float32 for 0, which the
  empty set holds. A `top_p` below it means the likeliest token, as that
  number does.

  Args:
    p: [..., V] probabilities.
    top_p: scalar in (0, 1].
    ids: [..., K] int32, without repetition, the tokens that alone may have
      probability: only they are searched. None searches all.
  """
  tiny = jnp.finfo(jnp.float32).tiny
  top_p = jnp.maximum(top_p, jnp.asarray(tiny, top_p.dtype)).astype(p.dtype)
  all_bits, most = numerics.bits_of(p)
  int_type = all_bits.dtype
  all_ids = jax.lax.broadcasted_iota(int_type, p.shape, p.ndim - 1)
  if ids is None:
    searched, bits, ids = p, all_bits, all_ids
  else:
    searched, ids = jnp.take_along_axis(p, ids, -1), ids.astype(int_type)
    bits, _ = numerics.bits_of(searched)
  top_p = jnp.minimum(top_p, jnp.sum(searched, axis=-1, keepdims=True))

  def mass(keep: Array) -> Array:
    return jnp.sum(jnp.where(keep, searched, 0), axis=-1, keepdims=True)

  # The largest threshold whose tokens still hold top_p: mass(bits >= low) >=
  # top_p. For p = [.4, .3, .2, .1] and top_p = .6 it is .3: the tokens from .3
  # on hold .7, and those above .3 hold .4, which is too little.
  low = numerics.bisect(
    lambda t: mass(bits >= t) >= top_p,
    jnp.zeros_like(top_p, int_type),
    jnp.max(bits, axis=-1, keepdims=True) + 1,
    most,
  )
  above = mass(bits > low)
  # Of several tokens at the threshold only the lowest ids that suffice are
  # kept. `last` is the largest id such that the tied tokens with ids below it
  # are too few: token `last` itself is the one that crosses the line. With p =
  # [.3, .4, .3] and top_p = .6 nothing tied is below id 0, and token 0
  # suffices.
  tied = bits == low
  last = numerics.bisect(
    lambda i: above + mass(tied & (ids < i)) < top_p,
    jnp.zeros_like(low),
    jnp.full_like(low, p.shape[-1]),
    p.shape[-1],
  )
  return (all_bits > low) | ((all_bits == low) & (all_ids <= last))


def largest(logits: Array) -> Array:
  """Returns the largest logit, [...]; +inf where one is NaN."""
  # A maximum over NaN is NaN, but a maximum that XLA computes in vector lanes
  # may drop it. So NaN becomes +inf, which no maximum drops.
  logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)
  return jax.lax.stop_gradient(jnp.max(logits, axis=-1))


def is_law(logits: Array) -> Array:
  """Returns whether logits give a distribution; [...] bool.

  They do if there is no NaN and no +inf, and at least one finite number.
  """
  return jnp.isfinite(largest(logits))
