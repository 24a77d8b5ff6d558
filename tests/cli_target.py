"""Functions that the configs of the tests of `cli/` configure."""

from speccascade.settings import fields

CALLS = []


def work(model_dir, steps=3, rate=0.1):
  CALLS.append((model_dir, steps, rate))
  if steps < 0:
    raise ValueError(f"steps is {steps}, want 0 or more")
  if rate is None:
    raise KeyError("a bug")


def outer(make):
  make()


def unbound(folder):
  CALLS.append(folder)


@fields.checked
def typed(size: fields.Positive = 1, rate: float = 0.5):
  CALLS.append((size, rate))
