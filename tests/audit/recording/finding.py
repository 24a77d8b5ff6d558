"""Finds what has no public name, in whatever module of the package it is."""

import functools
import importlib
import pathlib
import re
from typing import Any

import speccascade


@functools.cache
def named(name: str) -> Any:
  """Returns the class or function that one module of the package defines.

  Raises:
    LookupError: no module defines it, or several do.
  """
  root = pathlib.Path(speccascade.__file__).parent
  pattern = re.compile(rf"^(class|def) {name}\b", re.MULTILINE)
  found = [
    path
    for path in sorted(root.rglob("*.py"))
    if pattern.search(path.read_text(encoding="utf-8"))
  ]
  if len(found) != 1:
    raise LookupError(f"{name} is defined in {found}; wanted one module")
  parts = found[0].relative_to(root.parent).with_suffix("").parts
  module = ".".join(parts).removesuffix(".__init__")
  return getattr(importlib.import_module(module), name)
