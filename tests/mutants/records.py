"""How mutants are written down: as patches, grouped by file.

  === decoding/deferral.py            the file, below speccascade/
      decoding/test_deferral.py       its usual tests, below tests/
  a tie defers <- test_ties           the name, and what must fail of them
  - return left < right               the text, which is there once
  + return left <= right              what stands there instead

Both texts may begin and end inside a line; nothing may stand for the second.
After the arrow stand a test or a case of the usual ones, or a test with its
file beside theirs, several with bars between; without an arrow it is all usual
ones. At least one has to fail.
"""

import posixpath


def records(text: str) -> list[dict]:
  """Returns a record for each mutant: name, file, old, new, tests."""
  mutants, usual, file = [], "", ""
  for line in text.strip("\n").split("\n"):
    mark, rest = line[:2], line[2:]
    if line.startswith("=== "):
      file, usual = f"speccascade/{line[4:]}", ""
    elif not usual:
      usual = line.strip()
    elif mark.strip() in ("-", "+") and mark:
      side = "old" if mark[0] == "-" else "new"
      mutants[-1][side].append(rest)
    elif mark == "  ":
      mutants[-1]["tests"] += f" {line.strip()}"
    elif line:
      name, _, tests = line.partition(" <-")
      mutants.append(
        {"name": name, "file": file, "usual": usual, "tests": tests}
        | {"old": [], "new": []}
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
    return posixpath.normpath(f"tests/{posixpath.dirname(usual)}/{test}")
  if test and not test.startswith("["):
    return f"tests/{usual}::{test}"
  return f"tests/{usual}{test}"
