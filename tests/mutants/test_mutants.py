"""Every mutant dies: its own tests notice it."""

import pytest

from tests.mutants import run

MUTANTS = run.mutants()


def test_mutants_fit_the_code():
  # Each changes text that is there, once, and names tests that are there.
  assert len({m["name"] for m in MUTANTS}) == len(MUTANTS)
  for mutant in MUTANTS:
    text = (run.ROOT / mutant["file"]).read_text()
    assert text.count(mutant["old"]) == 1, mutant["name"]
    assert mutant["new"] != mutant["old"]
    for test in mutant["tests"]:
      path, _, name = test.partition("::")
      source = (run.ROOT / path).read_text()
      function = name.partition("[")[0]
      assert not function or f"def {function}(" in source, mutant["name"]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m["name"])
def test_mutant_is_killed(mutant):
  verdict, detail = run.run(mutant)
  assert verdict == run.KILLED, detail
