"""Puts a `RandomSource` in the place of torch's functions; see `replaced`."""

from collections.abc import Callable

import numpy as np

from speccascade.judge.replacements import Replacements
from speccascade.judge.scripted import RandomSource, equal_weights

_LIKE = ("dtype", "device", "layout", "requires_grad")


def replace(
  source: RandomSource, replacements: Replacements, stack
) -> Callable:
  """Replaces torch's random functions; returns a function that seeds it."""
  import torch  # The package does not need it: the judged code has it.

  stack.callback(torch.set_rng_state, torch.get_rng_state())
  draw, seed = torch.rand, torch.manual_seed

  def state(generator):
    """Returns what determines a generator's next numbers, and advances it."""
    of = torch.default_generator if generator is None else generator
    known = of.get_state().numpy().tobytes()
    draw(1, generator=of)
    return "torch", known

  def tensor(values, like):
    """Returns a tensor; uniforms stay below 1 in its dtype."""
    return torch.as_tensor(np.asarray(values)).to(like.dtype).to(like.device)

  def below_one(values, dtype):
    return np.minimum(values, 1 - torch.finfo(dtype).eps / 2)

  def filled(out, generator=None, noise=False):
    if noise:
      values = source.exponentials(state(generator), out.shape)
    else:
      values = source.uniforms(state(generator), out.shape)
      values = below_one(values, out.dtype)
    with torch.no_grad():
      return out.copy_(tensor(values, out).reshape(out.shape))

  def rand(*size, generator=None, out=None, **kwargs):
    if len(size) == 1 and not isinstance(size[0], int):
      size = tuple(size[0])
    size = kwargs.get("size", size)
    kwargs = {k: v for k, v in kwargs.items() if k in _LIKE}
    return filled(
      torch.empty(*size, **kwargs) if out is None else out, generator
    )

  def rand_like(like, generator=None, **kwargs):
    kwargs = {k: v for k, v in kwargs.items() if k in _LIKE}
    return filled(torch.empty_like(like, **kwargs), generator)

  def multinomial(
    weights, num_samples, replacement=False, *, generator=None, out=None
  ):
    rows = weights.detach().cpu().double().numpy()
    if not np.all(np.isfinite(rows)) or np.any(rows < 0):
      raise RuntimeError(
        "probability tensor contains either `inf`, `nan` or element < 0"
      )
    if np.any(rows.sum(-1) <= 0):
      raise RuntimeError("invalid multinomial distribution (sum of weights 0)")
    drawn = source.choices(state(generator), rows, num_samples, replacement)
    return torch.as_tensor(drawn, dtype=torch.long, device=weights.device)

  def bernoulli(probs, p=None, *, generator=None, out=None):
    probs = probs if p is None else torch.full_like(probs, p)
    return (rand_like(probs, generator) < probs).to(probs.dtype)

  def randint(low, high=None, size=None, *, generator=None, **kwargs):
    if size is None:
      low, high, size = 0, low, high
    num = int(np.prod(size))
    drawn = source.choices(state(generator), equal_weights(high - low), num)
    drawn = torch.as_tensor(low + drawn.reshape(tuple(size)))
    return drawn.to(kwargs.get("dtype") or torch.long)

  def uniform_(self, low=0.0, high=1.0, *, generator=None):
    return filled(self, generator).mul_(high - low).add_(low)

  def exponential_(self, lambd=1.0, *, generator=None):
    return filled(self, generator, noise=True).div_(lambd)

  functions = {
    "rand": rand,
    "rand_like": rand_like,
    "multinomial": multinomial,
    "bernoulli": bernoulli,
    "randint": randint,
  }
  for name, function in functions.items():
    replacements.set(torch, name, function)
  methods = {
    "uniform_": uniform_,
    "exponential_": exponential_,
    "multinomial": multinomial,
    "bernoulli": bernoulli,
  }
  for name, function in methods.items():
    replacements.set(torch.Tensor, name, function)
  others = "randn randn_like normal randperm poisson"
  replacements.refuse(torch, others, "torch")
  others = "normal_ geometric_ cauchy_ log_normal_ random_ bernoulli_"
  replacements.refuse(torch.Tensor, others, "torch.Tensor")
  return seed
