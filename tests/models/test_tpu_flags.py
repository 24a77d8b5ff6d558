"""No round of a decode has what TPUs are slow at, by their compiler."""

import pytest

from tests import tpu_compiler, tpu_flags

pytestmark = [pytest.mark.slow, tpu_compiler.NEEDED]


@pytest.mark.parametrize("case", tpu_flags.CASES)
def test_no_flag(case):
  """No loop over rows, and no search of a vocabulary in order.

  Keys are tested before they are turned. One row goes to the matrix unit: in a
  batch of several, attention to one token of each row does not.
  """
  [found] = tpu_compiler.said("tpu_flags", case)
  if case != "one row":
    del found["sums"]
  assert not any(found.values()), found
