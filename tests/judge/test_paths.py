"""Enumerations of small programs whose distributions are known by hand."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.judge import enumeration, paths, scripted
from speccascade.judge.scripted import NotCoveredError

WEIGHTS = np.array([0.5, 0.2, 0.0, 0.3])


def law_of(program, **how):
  """Returns the `EnumeratedLaw` of a program without arguments."""
  return enumeration.enumerated_law(lambda script: program(), **how)


def assert_law(program, expected, tolerance=1e-9, **how):
  law = law_of(program, **how)
  for outcome in law.probs.keys() | expected.keys():
    actual = law.probs.get(outcome, 0.0)
    assert actual == pytest.approx(expected.get(outcome, 0.0), abs=tolerance)
  return law


def inverse_sum():
  return int(np.searchsorted(np.cumsum(WEIGHTS), random.random(), "right"))


def of_a_state():
  rng = np.random.RandomState(3)
  return int(rng.choice(4, p=WEIGHTS)), int(rng.randint(2))


def two_decisions():
  # The second threshold depends on what was decided before.
  first = np.random.random() < 0.25
  return first, np.random.random() < (0.6 if first else 0.1)


def exponential_race():
  return int(np.argmax(WEIGHTS / np.random.exponential(size=4)))


def gumbel_race(weights=WEIGHTS):
  with np.errstate(divide="ignore"):
    logits = np.log(weights)
  return int(np.argmax(logits + np.random.default_rng().gumbel(size=4)))


def gumbel_of_uniforms():
  noise = -np.log(-np.log(np.random.random(4)))
  with np.errstate(divide="ignore"):
    return int(np.argmax(np.log(WEIGHTS) + noise))


def of_jax():
  key, other = jax.random.split(jax.random.key(0))
  weights = jnp.asarray(WEIGHTS, jnp.float32)
  token = jax.random.categorical(key, jnp.log(weights))
  return int(token), bool(jax.random.uniform(other) < 0.25)


FOUR = {0: 0.5, 1: 0.2, 3: 0.3}
KNOWN = {
  "random": (inverse_sum, FOUR),
  "choices": (lambda: random.choices(range(4), WEIGHTS)[0], FOUR),
  "randrange": (lambda: random.randrange(2), {0: 0.5, 1: 0.5}),
  "numpy": (two_decisions, None),
  "RandomState": (
    of_a_state,
    {(x, y): w / 2 for x, w in FOUR.items() for y in (0, 1)},
  ),
  "exponential": (exponential_race, FOUR),
  "gumbel": (gumbel_race, FOUR),
  "gumbel, the first token is never drawn": (
    lambda: gumbel_race(np.array([0, 0.2, 0.5, 0.3])),
    {1: 0.2, 2: 0.5, 3: 0.3},
  ),
  "multinomial": (
    lambda: int(np.random.multinomial(1, WEIGHTS).argmax()),
    FOUR,
  ),
  "jax": (
    of_jax,
    {
      (x, y): w * (0.25 if y else 0.75)
      for x, w in FOUR.items()
      for y in (True, False)
    },
  ),
}
KNOWN["numpy"] = (
  two_decisions,
  {
    (True, True): 0.15,
    (True, False): 0.1,
    (False, True): 0.075,
    (False, False): 0.675,
  },
)


@pytest.mark.parametrize("case", KNOWN)
def test_the_law_is_known(case):
  program, expected = KNOWN[case]
  tolerance = 1e-7 if case == "jax" else 1e-8
  law = assert_law(program, expected, tolerance)
  assert not law.repeated


@pytest.mark.parametrize(
  "draw",
  [
    lambda: int(np.random.randint(2**31)),
    lambda: int(np.random.default_rng().integers(2**40)),
    lambda: int(np.random.choice(2**31)),
    lambda: random.randrange(2**31),
    lambda: int(jax.random.randint(jax.random.key(0), (), 0, 2**30)),
  ],
)
def test_a_draw_of_too_many_outcomes_is_named(draw):
  with pytest.raises(NotCoveredError, match=r"a draw has [0-9,]+ outcomes"):
    law_of(draw)


def test_uniforms_as_the_noise_of_a_race():
  with pytest.raises(NotCoveredError, match="with each other"):
    law_of(gumbel_of_uniforms)
  assert_law(gumbel_of_uniforms, FOUR, 1e-7, race_width=4)


def test_a_seed_that_is_used_again_repeats_its_numbers():
  def program():
    draws = []
    for _ in range(2):
      rng = np.random.default_rng(7)
      draws.append(int(rng.choice(2, p=[0.3, 0.7])))
    np.random.seed(1)
    first = np.random.random()
    np.random.seed(1)
    return (*draws, np.random.random() == first)

  assert assert_law(program, {(0, 0, True): 0.3, (1, 1, True): 0.7}).repeated

  def two_weights():
    rng = [np.random.default_rng(7) for _ in range(2)]
    return rng[0].random() < 0.3, int(rng[1].choice(2, p=[0.8, 0.2]))

  expected = {(True, 0): 0.3, (False, 0): 0.5, (False, 1): 0.2}
  assert_law(two_weights, expected)


def test_a_uniform_of_zero_is_seen():
  law = assert_law(lambda: random.random() <= 0, {False: 1.0})
  assert law.at_zero == {True}
  assert not law_of(lambda: random.random() < 0).at_zero


def test_an_error_is_an_outcome():
  def program():
    if random.random() < 0.25:
      raise RuntimeError("an empty residual")
    return 0

  message = (enumeration.RAISED, "RuntimeError: an empty residual")
  assert_law(program, {0: 0.75, message: 0.25})


HELD = np.random.default_rng(0)


@pytest.mark.parametrize(
  ("program", "message"),
  [
    (lambda: HELD.random() < 0.5, "that it held before the judge began"),
    (lambda: np.random.normal() < 0, "numpy.random.normal is not enumerated"),
    (lambda: random.random() + random.random() < 1, "with each other"),
    (lambda: int(1000 * random.random()), "more than 64 times"),
  ],
)
def test_what_is_not_covered(program, message):
  with pytest.raises(NotCoveredError, match=message):
    law_of(program)


def test_all_functions_are_set_back():
  law_of(inverse_sum)
  for module in (random, np.random, jax.random):
    for name, function in vars(module).items():
      where = getattr(function, "__module__", "") or ""
      assert not where.startswith("speccascade"), name
  state = random.getstate(), np.random.get_state()[1].tolist()
  law_of(two_decisions)
  assert (random.getstate(), np.random.get_state()[1].tolist()) == state


def test_the_number_of_runs_is_bounded():
  run = lambda script: tuple(script.units("state", 40))
  with pytest.raises(NotCoveredError, match="more than 50 runs"):
    paths.enumerate_law(run, max_runs=50)


def test_a_draw_is_the_first_sum_above():
  assert [scripted.index_of(u, [0, 0.2, 0.8], 1.0) for u in (0, 0.2)] == [1, 2]
  assert scripted.index_of(1 - 1e-17, [0.1, 0.2, 0], 0.3) == 1
