"""Every mutant dies: its own tests notice it."""

import pytest

from tests.audit.mutants import run

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


# Two that take seconds, so that the runner itself is tried every day.
QUICK = ("p for pi", "an EOS inside a block does not end it")


def test_a_mutant_that_no_longer_fits_is_reported():
  gone = MUTANTS[0] | {"old": "this text is nowhere"}
  verdict, detail = run.run(gone)
  assert verdict == run.BROKEN
  assert "holds the text 0 times, wanted once" in detail


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
