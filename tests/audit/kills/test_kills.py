"""Train, decode and sweep: killed at random points, or started twice."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.needs_tf]


@pytest.mark.parametrize("job", ["train", "decode", "sweep"])
def test_killed_runs_end_as_unbroken_ones(tmp_path, job):
  from tests.audit.kills import killing

  killed = killing.Killing(job, tmp_path)
  assert killed.kill(4) >= 1
  killed.start_two()
