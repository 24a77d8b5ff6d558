"""Fields of settings: checks that say what is wrong, and lists made tuples.

A check takes settings by the name that its message gives them.
"""

from collections.abc import Callable, Collection
import numbers


def at_least(least: int, *, or_none: bool = False, **values):
  """Raises ValueError where a setting is no whole number, or below `least`.

  Args:
    least: the smallest that is right.
    or_none: whether None is right too.
    **values: the settings.
  """
  for name, value in values.items():
    if or_none and value is None:
      continue
    is_whole = isinstance(value, numbers.Integral)
    if not is_whole or isinstance(value, bool) or value < least:
      kind = "" if is_whole else "a whole number, "
      raise ValueError(f"{name} is {value!r}; wanted {kind}{least} or more")


def one_of(known: Collection, *, error: type = ValueError, **values):
  """Raises an error where a setting is not among the `known`.

  Args:
    known: what is right.
    error: what is raised.
    **values: the settings.
  """
  for name, value in values.items():
    if value not in known:
      wanted = ", ".join(map(str, known))
      raise error(f"{name} is {value!r}; wanted one of {wanted}")


def names_of(look_up: Callable[[str], object], **values):
  """Raises ValueError where a list of names is none, or has an unknown one.

  Args:
    look_up: raises ValueError on an unknown name.
    **values: the settings, lists or None.
  """
  for label, names in values.items():
    if isinstance(names, str):
      raise ValueError(f"{label} is {names!r}; wanted a list, as [{names!r}]")
    for name in names or ():
      look_up(name)


def freeze(instance):
  """Makes tuples of the lists that a frozen dataclass got, say from JSON."""
  for name, value in vars(instance).items():
    if isinstance(value, list):
      object.__setattr__(instance, name, tuple(value))
