"""Sets attributes of modules while judged code runs, and sets them back."""

from collections.abc import Callable
from typing import Any

from speccascade.judge.scripted import NotCoveredError, RandomSource


def _switched(source: RandomSource, new: Callable, old: Callable) -> Callable:
  """Returns a function that is `new` during runs, and `old` else."""

  def function(*args, **kwargs):
    return (new if source.active else old)(*args, **kwargs)

  return function


class Replacements:
  """Sets attributes, and sets them back."""

  def __init__(self, source: RandomSource):
    self._source = source
    self._before: list[tuple[Any, str, bool, Any]] = []

  def set(self, owner, name: str, value, switches: bool = True):
    """Sets an attribute of a module or a class.

    Args:
      owner: the module or class.
      name: of the attribute.
      value: a function.
      switches: whether it is the old one while no run is in progress.
    """
    own, old = name in vars(owner), getattr(owner, name)
    self._before.append((owner, name, own, old))
    if switches:
      value = _switched(self._source, value, old)
    setattr(owner, name, value)

  def refuse(self, owner, names: str, where: str):
    """Has functions raise that cannot be enumerated."""
    for name in names.split():
      if hasattr(owner, name):
        self.set(owner, name, refusal(f"{where}.{name}"))

  def undo(self):
    """Sets all attributes back."""
    for owner, name, own, value in reversed(self._before):
      if own:
        setattr(owner, name, value)
      else:
        delattr(owner, name)


def refusal(name: str) -> Callable:
  """Returns a function that raises."""

  def refuse(*args, **kwargs):
    raise NotCoveredError(f"{name} is not enumerated; sample the code instead")

  return refuse
