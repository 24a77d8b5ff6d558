"""What a point is refused for, beyond the range of each setting.

A point checks itself when it is made: `check_adaptive`, `check_parameters`. The
other checks are of a caller that knows more than one point does.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from speccascade.decoding.programs import methods
from speccascade.decoding.records.decode_settings import FIXED
from speccascade.settings import fields

if TYPE_CHECKING:
  from speccascade.generate.points.point import Point

ADAPTIVE = "adaptive"


def check_adaptive(point: "Point"):
  """Raises SettingError where a row cannot choose its gammas."""
  kind = ""
  if point.spec.compose is not None:
    kind = f"{point.spec.label} drafts in a way of its own"
  elif point.is_tree:
    kind = "a tree has one shape"
  elif point.policy.policy != FIXED:
    kind = f"draft_length {point.policy.policy!r} ends blocks by itself"
  elif point.spec.uses_bonus and point.bonus == "verifier":
    kind = (
      "bonus 'verifier' draws the token after a whole block from another"
      " distribution, so that the output would depend on the gammas"
    )
  elif point.draft_costs is not None:
    sizes = point.draft_costs.sizes
    if point.spec.is_lossless and 0 not in sizes:
      kind = "draft_costs lack the size 0, which a lossless method uses"
  if kind:
    fault = f" is {ADAPTIVE!r}, and {kind}: set a number, or change that"
    raise fields.SettingError("gamma", fault, type(point))


def check_phases(point: "Point"):
  """Raises SettingError where alpha is by phase, and is not one of a token."""
  if point.marker is None or point.spec.is_lossless:
    return
  try:
    point.spec.check_takes_phases()
  except ValueError as error:
    raise fields.SettingError("marker", f": {error}", type(point)) from error


def check_parameters(point: "Point"):
  """Raises SettingError where the parameters of the rule are missing."""
  kind, fault = point.spec.target.kind.name, None
  if point.rule_parameters is None:
    fault = f" is None, and method {point.method!r} has parameters"
  elif kind not in point.rule_file.parameters:
    fault = f" names a file without {kind}, which method {point.method!r} has"
  if fault:
    fault += ": name the file that python -m speccascade.learned_rule writes"
    raise fields.SettingError("rule_parameters", fault, type(point))


def check_shared(point: "Point", names: Iterable[str]):
  """Raises SettingError where none of several methods uses a setting.

  Args:
    point: the settings that the methods share.
    names: names of the methods that share them.
  """
  several = [methods.find(name) for name in dict.fromkeys(names)]
  for name, value in point.optional_settings.items():
    if not any(value in method.settings[name] for method in several):
      labels = ", ".join(method.label for method in several)
      fault = f" is {value!r}; none of {labels} uses it: leave it out"
      raise fields.SettingError(name, fault, type(point))
  if point.is_tree and not any(method.takes_trees for method in several):
    labels = ", ".join(method.label for method in several)
    fault = f" is given; none of {labels} drafts trees: leave it out"
    raise fields.SettingError("tree", fault, type(point))
  if point.marker is not None and not any(x.takes_phases for x in several):
    labels = ", ".join(method.label for method in several)
    fault = f" is given; none of {labels} has an alpha of tokens: leave it out"
    raise fields.SettingError("marker", fault, type(point))


def check_alpha_is_used(point: "Point"):
  """Raises SettingError where the method does not use alpha."""
  if not point.spec.uses_alpha:
    fault = f" is {point.alpha:g}; {point.spec.label} takes none: leave it out"
    raise fields.SettingError("alpha", fault, type(point))


def check_marker_is_used(point: "Point"):
  """Raises SettingError where a marker is given, and there is no alpha."""
  if point.marker is not None and not point.has_phases:
    fault = (
      f" is {point.marker!r}; {point.spec.label} takes no alpha: leave it out"
    )
    raise fields.SettingError("marker", fault, type(point))


def check_draft_costs_are_used(point: "Point"):
  """Raises SettingError where costs are given that choose no gamma."""
  if point.draft_costs is not None and point.gamma != ADAPTIVE:
    fault = f" are given, and gamma is {point.gamma!r}: set it to {ADAPTIVE!r},"
    raise fields.SettingError(
      "draft_costs", f"{fault} or leave them out", type(point)
    )
