"""Puts a `RandomSource` in the place of the random functions of libraries.

`replaced` covers the modules `random` and `numpy.random`, and torch and JAX
where the code has imported them. The functions are replaced as attributes of
their modules: code that holds a function or a generator from before is not
covered, and the enumeration notices it. Code that is imported meanwhile may
hold them: they draw from the real generators until a run makes the source
active. Real generators keep running underneath: from their states the source
knows which numbers a second seeding repeats.
"""

from collections.abc import Callable, Iterator
import contextlib
import random
import sys

import numpy as np

from speccascade.judge.replacements import Replacements, refusal
from speccascade.judge.scripted import RandomSource, equal_weights

# Functions of numpy.random.
_SCRIPTED = (
  *("random", "random_sample", "ranf", "sample", "rand", "uniform", "choice"),
  *("multinomial", "randint", "exponential", "standard_exponential", "gumbel"),
)
_REFUSED = (
  *("normal", "randn", "standard_normal", "permutation", "shuffle", "beta"),
  *("gamma", "dirichlet", "binomial", "poisson", "geometric", "laplace"),
  *("logistic", "bytes"),
)


# The one source, which generators made at import keep asking.
SOURCE = RandomSource()
_GENERATOR = np.random.Generator


@contextlib.contextmanager
def replaced(source: RandomSource) -> Iterator[Callable[[int], None]]:
  """Replaces the random functions; yields a function that begins a run.

  It takes a seed for the real generators underneath: another one each run, so
  that runs differ that draw from them.

  Args:
    source: answers instead of the generators, while it is active.
  """
  replacements = Replacements(source)
  with contextlib.ExitStack() as stack:
    stack.callback(replacements.undo)
    begins = [_python(source, replacements, stack)]
    begins.append(_numpy(source, replacements, stack))
    if "torch" in sys.modules:
      from speccascade.judge import replaced_torch

      begins.append(replaced_torch.replace(source, replacements, stack))
    if "jax" in sys.modules:
      from speccascade.judge import replaced_jax

      replaced_jax.replace(source, replacements, stack)

    def begin(seed: int):
      for each in begins:
        each(seed)

    yield begin


def _python(
  source: RandomSource, replacements: Replacements, stack
) -> Callable:
  """Replaces the module `random`; returns a function that seeds it."""
  stack.callback(random.setstate, random.getstate())
  kind = random.Random
  draw, bits = kind.random, kind.getrandbits

  def uniform(self):
    state = ("random", hash(self.getstate()))
    draw(self)
    return float(source.uniforms(state, (1,))[0])

  def below(self, n):
    state = ("random", hash(self.getstate()))
    bits(self, 32)
    return int(source.choices(state, equal_weights(n))[0])

  replacements.set(kind, "random", uniform)
  replacements.set(kind, "_randbelow", below)
  replacements.set(kind, "getrandbits", refusal("random.getrandbits"))
  instance = random.choices.__self__
  replacements.set(random, "random", lambda: uniform(instance))
  replacements.set(random, "getrandbits", refusal("random.getrandbits"))
  return instance.seed


class ScriptedGenerator:
  """What numpy.random.default_rng and RandomState return while code runs."""

  def __init__(self, source: RandomSource, real, draw: Callable):
    """Takes the real generator, and a function that draws a number from it."""
    self._source, self._real, self._draw = source, real, draw

  def __getattr__(self, name: str):
    if name.startswith("_"):
      raise AttributeError(name)
    if not self._source.active:
      return getattr(self._real, name)
    return refusal(f"numpy.random's {name}")

  def _state(self):
    if isinstance(self._real, _GENERATOR):
      state = repr(self._real.bit_generator.state)
    else:
      _, keys, *rest = self._real.get_state()
      state = keys.tobytes(), *rest[:1]
    self._draw()
    return "numpy", hash(state)

  def random(self, size=None, dtype=np.float64, out=None):
    """Uniforms in [0, 1)."""
    return _shaped(
      self._source.uniforms(self._state(), _shape(size)).astype(dtype), size
    )

  random_sample = ranf = sample = random

  def rand(self, *shape):
    """Uniforms in [0, 1)."""
    return self.random(shape or None)

  def uniform(self, low=0.0, high=1.0, size=None):
    """Uniforms between two numbers."""
    return low + (high - low) * self.random(size)

  def choice(self, a, size=None, replace=True, p=None, axis=0, shuffle=True):
    """Draws from a range or an array."""
    num_options = int(a) if np.ndim(a) == 0 else len(a)
    if p is None:
      weights = equal_weights(num_options)
    else:
      weights = np.asarray(p, np.float64)
    options = np.arange(num_options) if np.ndim(a) == 0 else np.asarray(a)
    if p is not None and not abs(weights.sum() - 1) < 1e-6:
      raise ValueError("probabilities do not sum to 1")
    num = int(np.prod(_shape(size)))
    index = self._source.choices(self._state(), weights, num, replace)
    return _shaped(options[index.reshape(_shape(size))], size)

  def multinomial(self, n, pvals, size=None):
    """Counts of one draw or more."""
    pvals = np.asarray(pvals, np.float64)
    num = int(np.prod(_shape(size)))
    drawn = self._source.choices(self._state(), pvals, int(n) * num)
    drawn = drawn.reshape(num, int(n))
    counts = np.stack([np.bincount(x, minlength=len(pvals)) for x in drawn])
    return counts.reshape(*_shape(size), len(pvals))

  def integers(self, low, high=None, size=None, dtype=np.int64, endpoint=False):
    """Integers of a range."""
    low, high = (0, low) if high is None else (low, high)
    num = int(np.prod(_shape(size)))
    weights = equal_weights(int(high) - int(low) + endpoint)
    index = self._source.choices(self._state(), weights, num)
    return _shaped(low + index.reshape(_shape(size)), size)

  randint = integers

  def exponential(self, scale=1.0, size=None):
    """Exponential noise; a race for each row."""
    noise = self._source.exponentials(self._state(), _shape(size))
    return _shaped(scale * noise, size)

  def standard_exponential(self, size=None, dtype=np.float64, method="zig"):
    """Exponential noise; a race for each row."""
    return self.exponential(1.0, size)

  def gumbel(self, loc=0.0, scale=1.0, size=None):
    """Gumbel noise, which is minus the logarithm of exponential noise."""
    return loc - scale * np.log(self.exponential(1.0, size))


def _switch_methods():
  """Has scripted generators draw from the real ones outside of runs."""
  for name, method in list(vars(ScriptedGenerator).items()):
    if not name.startswith("_"):

      def call(self, *args, method=method, name=name, **kwargs):
        if self._source.active:
          return method(self, *args, **kwargs)
        return getattr(self._real, name)(*args, **kwargs)

      setattr(ScriptedGenerator, name, call)


_switch_methods()


class _IsGenerator(type):
  """The type of what stands for numpy.random.Generator: a real one is one."""

  def __instancecheck__(cls, instance):
    return isinstance(instance, ScriptedGenerator | _GENERATOR)


def _shape(size) -> tuple[int, ...]:
  """Returns the shape that a `size` of NumPy means."""
  if size is None:
    return ()
  return (int(size),) if np.ndim(size) == 0 else tuple(size)


def _shaped(values, size):
  """Returns a scalar where NumPy does."""
  return values[()] if size is None else values


def _numpy(source: RandomSource, replacements: Replacements, stack) -> Callable:
  """Replaces numpy.random; returns a function that seeds it."""
  module = np.random
  stack.callback(module.set_state, module.get_state())
  draw, new, old = module.random_sample, module.default_rng, module.RandomState
  whole = ScriptedGenerator(source, module.mtrand._rand, draw)

  def default_rng(seed=None):
    if isinstance(seed, ScriptedGenerator):
      return seed
    real = new(seed)
    return ScriptedGenerator(source, real, real.random)

  def generator(cls, bit_generator):
    real = _GENERATOR(bit_generator)
    return ScriptedGenerator(source, real, real.random)

  def begin_state(self, *args, **kwargs):
    old.__init__(self, *args, **kwargs)
    self.scripted = ScriptedGenerator(
      source, self, lambda: old.random_sample(self)
    )

  def of_state(name):
    def call(self, *args, **kwargs):
      if source.active:
        return getattr(self.scripted, name)(*args, **kwargs)
      return getattr(old, name)(self, *args, **kwargs)

    return call

  # A class, because NumPy asks whether a seed is one of its instances.
  methods = {name: of_state(name) for name in (*_SCRIPTED, *_REFUSED)}
  random_state = type(
    "RandomState", (old,), {"__init__": begin_state, **methods}
  )

  of_bits = _IsGenerator("Generator", (), {"__new__": generator})
  replacements.set(module, "default_rng", default_rng, switches=False)
  replacements.set(module, "RandomState", random_state, switches=False)
  replacements.set(module, "Generator", of_bits, switches=False)
  for name in _SCRIPTED:
    replacements.set(module, name, getattr(whole, name))
  replacements.refuse(module, " ".join(_REFUSED), "numpy.random")
  return module.seed
