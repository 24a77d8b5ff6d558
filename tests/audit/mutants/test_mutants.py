"""Every mutant dies: its own tests notice it."""

import ast

import pytest

from tests.audit.mutants import expressions, run

MUTANTS = run.mutants()


def test_mutants_fit_the_code():
  # Each changes code that is there, once, and names tests that are there.
  assert len({m["name"] for m in MUTANTS}) == len(MUTANTS)
  for mutant in MUTANTS:
    text = run.changed(mutant)
    assert text != (run.ROOT / mutant["file"]).read_text(), mutant["name"]
    if mutant["file"].endswith(".py"):
      ast.parse(text)
    for test in mutant["tests"]:
      path, _, name = test.partition("::")
      source = (run.ROOT / path).read_text()
      function = name.partition("[")[0]
      assert not function or f"def {function}(" in source, mutant["name"]


# Two that take seconds, so that the runner itself is tried every day.
QUICK = ("p for pi", "an EOS inside a block does not end it")


@pytest.mark.parametrize("scope", ["", "module"])
def test_a_mutant_that_no_longer_fits_is_reported(scope):
  gone = MUTANTS[0] | {"old": "nowhere_at_all", "scope": scope}
  verdict, detail = run.run(gone)
  assert verdict == run.BROKEN
  assert "0 times" in detail
  assert "wanted once: 'nowhere_at_all'; bring the mutant up to date" in detail


CODE = """
class Rule:
  # Ties do not defer.
  def defers(self, left, right):
    if left is None: return False
    return (left <
            right)  # é

  def other(self, left, right):
    return f(left < right, x=1, y=2, z=3)
"""


@pytest.mark.parametrize(
  ("scope", "old", "new", "line"),
  [
    (
      "Rule.defers",
      "left<right",
      "left <= right",
      "    return (left <= right)  # é",
    ),
    ("Rule.other", "left < right", "True", "    return f(True, x=1, y=2, z=3)"),
    ("Rule", "y=2, z=3", "y=4", "    return f(left < right, x=1, y=4)"),
    ("module", "x=1", "x=0", "    return f(left < right, x=0, y=2, z=3)"),
    ("Rule.defers", "return False", "", "    if left is None: pass"),
    ("Rule.defers", "return left < right", "x = 1\nreturn x", "    x = 1"),
  ],
)
def test_code_is_found_by_its_function_and_its_syntax(scope, old, new, line):
  text = expressions.replaced(CODE, scope, old, new)
  assert line in text.split("\n")


@pytest.mark.parametrize(
  ("scope", "old", "message"),
  [
    ("Rule", "left < right", "has 2 times in Rule, wanted once"),
    ("Rule.defers", "left > right", "has 0 times"),
    ("Rule.gone", "left < right", "has 0 of the name Rule.gone, wanted one"),
  ],
)
def test_code_that_is_not_there_once_is_named(scope, old, message):
  with pytest.raises(ValueError, match=message):
    expressions.replaced(CODE, scope, old, "True")


@pytest.mark.parametrize(
  "mutant",
  [
    pytest.param(
      m, id=m["name"], marks=[] if m["name"] in QUICK else pytest.mark.slow
    )
    for m in MUTANTS
  ],
)
def test_mutant_is_killed(mutant):
  verdict, detail = run.run(mutant)
  assert verdict == run.KILLED, detail
