"""Every wrong input ends in one line; and any other end is noticed."""

import pytest

from tests.audit.fuzz import families, row_files, runner, tables
from tests.audit.fuzz.case import Case


def test_every_family_has_cases_of_its_own():
  names = {case.name for case in tables.cases()}
  for title, family in families.FAMILIES.items():
    found = [case.name for case in family()]
    assert len(set(found)) == len(found) >= 5, title
    assert names.issuperset(found)


@pytest.mark.slow
@pytest.mark.needs_tf
def test_every_wrong_input_is_one_line_and_leaves_nothing():
  # A right command does not fail and leaves files; a wrong one says else.
  rows = {"rows.jsonl": row_files.right()}
  flags = ["--results_dir=@work"]
  right = Case("report", "", flags=flags, files=rows)
  other = Case("report", "nothing of that", flags=[*flags, "--cost_ratio=-1"])
  *outcomes, first, second = runner.run([*tables.cases(), right, other])
  wrong = {x.case.name: (x.faults, x.line) for x in outcomes if x.faults}
  assert not wrong
  assert len(outcomes) >= 300
  assert "exit code 0, not 1" in first.faults
  assert any(fault.startswith("left work") for fault in first.faults)
  assert second.faults == ["does not say 'nothing of that'"]
