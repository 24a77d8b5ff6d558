"""The one-screen command."""

from speccascade.analysis import main


def test_prints_the_best_gamma_and_table_1(capsys):
  # Leviathan et al., EnDe small at T = 0: optimal gamma 9.
  assert main(["--acceptance_rate", "0.75", "--c", "0.02"]) == 0
  out = capsys.readouterr().out
  assert "best gamma 9, speed-up 3.199" in out
  assert "3.93     3.929" in out
  assert len(out.splitlines()) < 24
  args = ["--acceptance_rate", "0.3", "--c", "0.05", "--v", "1.5"]
  assert main(args) == 0
  assert "no block size beats the verifier" in capsys.readouterr().out
