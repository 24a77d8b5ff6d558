"""How mutants are written down: as patches, grouped by file.

  === decoding/laws/rules.py          the file, below speccascade/
  a tie defers <- test_ties           the name, and what must fail
  @ defers                            the function, class or constant
  - left < right                      its code, which is there once
  + left <= right                     what replaces it

The code is an expression, arguments of a call or whole statements, and is found
by its syntax tree: see `expressions`. Without a line of @ it is text, of any
language, which is in the file once. It may begin and end inside a line.

A file's usual tests are those that its place gives; after the file, or in the
line below it, others may be named. The second part may be empty. After the
arrow are a test or a case of the usual ones, or a test with its file beside
theirs, several with bars between; without an arrow it is all usual ones. At
least one has to fail. Of a test's name the beginning is enough, where no other
test of its file has it.
"""

import pathlib
import posixpath
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]


def records(text: str) -> list[dict]:
  """Returns a record for each mutant: name, file, scope, old, new, tests."""
  mutants, usual, file = [], "", ""
  for line in text.strip("\n").split("\n"):
    mark, rest = line[:2], line[2:]
    if line.startswith("=== "):
      path, _, usual = line[4:].partition(" ")
      place, name = posixpath.split(path)
      usual = usual or f"{place}/test_{name.partition('.')[0]}.py"
      file = f"speccascade/{path}"
    elif line.startswith("    "):
      usual = line.strip()
    elif mark.strip() in ("-", "+") and mark:
      side = "old" if mark[0] == "-" else "new"
      mutants[-1][side].append(rest)
    elif mark == "@ ":
      mutants[-1]["scope"] = rest
    elif mark == "  ":
      mutants[-1]["tests"] += f" {line.strip()}"
    elif line:
      name, _, tests = line.partition(" <-")
      mutants.append(
        {"name": name, "file": file, "usual": usual, "tests": tests}
        | {"scope": "", "old": [], "new": []}
      )
  for mutant in mutants:
    usual, tests = mutant.pop("usual"), mutant["tests"].split(" | ")
    mutant["tests"] = [_test(usual, test.strip()) for test in tests]
    for side in ("old", "new"):
      mutant[side] = "\n".join(mutant[side])
  return mutants


def _test(usual: str, test: str) -> str:
  """Returns the node id of a test that a record names."""
  if ".py" in test:
    node = posixpath.normpath(f"tests/{posixpath.dirname(usual)}/{test}")
  else:
    node = f"tests/{usual}{'::' * (test[:1] not in ('', '['))}{test}"
  path, separator, name = node.partition("::")
  name, bracket, case = name.partition("[")
  if name:
    text = (ROOT / path).read_text()
    names = re.findall(rf"^def ({name}\w*)\(", text, re.M)
    if name not in names:
      if len(names) != 1:
        raise ValueError(
          f"{path} has {len(names)} tests that begin with {name!r} ({names}); "
          "a mutant names one of them"
        )
      [name] = names
  return path + separator + name + bracket + case
