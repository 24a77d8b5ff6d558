"""Verdicts on other projects: the page shows the rows; adapters need a project.

The projects are not installed here, so small modules take their places.
"""

import json
import pathlib
import sys
import types

import numpy as np
import pytest

from benchmarks import judge_peers, verdicts_page
from benchmarks.peers import registry
from speccascade import judge

ROOT = pathlib.Path(__file__).parents[1]


def test_the_page_shows_the_rows():
  page = ROOT / verdicts_page.PAGE
  text = page.read_text(encoding="utf-8")
  rows = verdicts_page.rows(ROOT / verdicts_page.ROWS)
  assert len(rows) >= 8
  assert verdicts_page.with_table(text, rows) == text


def test_rows_are_of_the_registry():
  for row in verdicts_page.rows(ROOT / verdicts_page.ROWS):
    peer = registry.PEERS[row["peer"]]
    assert (row["judged"], row["claim"]) == (peer.title, peer.claim)
    assert {*peer.packages, "Python"} == {*row["versions"]}
    wrong = [x for x in row["problems"] if not x["passed"]]
    assert bool(wrong) == (row["verdict"] != "right")
    assert (row["smallest"] is None) == (not wrong)


def test_what_is_wrong_is_named_on_the_page():
  text = (ROOT / verdicts_page.PAGE).read_text(encoding="utf-8")
  section = text.partition("## What is sampled instead")[2]
  for row in verdicts_page.rows(ROOT / verdicts_page.ROWS):
    if row["verdict"] != "right":
      assert f"**{row['judged'].partition(':')[0]}" in section, row["peer"]


@pytest.mark.parametrize("name", registry.PEERS)
def test_a_project_that_is_missing_is_one_line(name, capsys, monkeypatch):
  for module in (
    *("torch", "transformers", "vllm", "sglang", "sgl_jax", "mlx", "mtplx"),
    *("tpu_inference", "keras_hub", "generate", "keras"),
  ):
    monkeypatch.setitem(sys.modules, module, None)
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  assert judge_peers.main([f"--peers={name}"]) == 2
  out = capsys.readouterr()
  assert not out.out
  assert registry.PEERS[name].install in out.err
  assert out.err.startswith("error: ")
  assert out.err.count("\n") == 1


def test_a_wrong_name_is_one_line(capsys):
  assert judge_peers.main(["--peers=nobody"]) == 2
  assert (
    "--peers has 'nobody'; it takes transformers" in capsys.readouterr().err
  )


def verify_one_token(p, q, token, rng, replace_from_p=False):
  """Verifies one draft by the rule; or replaces it from p."""
  if rng.random() * q[token] < p[token]:
    return types.SimpleNamespace(accepted=True, token_id=token)
  left = p if replace_from_p else np.maximum(p - q, 0)
  token = rng.choice(len(p), p=left / left.sum())
  return types.SimpleNamespace(accepted=False, token_id=int(token))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_row_is_kept_and_shown(wrong, tmp_path, monkeypatch, capsys):
  speculative = types.SimpleNamespace(
    verify_one_token=lambda *args: verify_one_token(*args, wrong),
    sample_from_distribution=lambda p, rng: int(rng.choice(len(p), p=p)),
  )
  fake = types.ModuleType("mtplx")
  fake.speculative = speculative
  monkeypatch.setitem(sys.modules, "mtplx", fake)
  argv = ["--peers=mtplx", "--only=V = 2, gamma 1", f"--out={tmp_path}"]
  assert judge_peers.main([*argv, "--versions=mtplx=1.2"]) == 0
  assert "mtplx 1.2" in capsys.readouterr().out
  row = json.loads((tmp_path / "mtplx.json").read_text())
  assert row["command"].endswith("--peers=mtplx --only='V = 2, gamma 1'")
  assert row["verdict"] == ("wrong" if wrong else "right")
  table = verdicts_page.table(verdicts_page.rows(tmp_path))
  assert table.count("\n") == 3
  shown = "replaced from p" if wrong else "right: 2 of 2 problems | none |"
  assert shown in table


def test_judgements_of_several_problems_are_joined(monkeypatch):
  lines = [judge.JudgedProblem(x, 2, 0.0, 1.0, None, True) for x in "ab"]
  asked = []

  def ask(only):
    asked.append(only)
    return judge.Judgement("outer.<locals>.inner", (lines[len(asked) - 1],))

  peer = registry.Peer("title", "claim", "peers.ask", (), "", ("a", "b"))
  monkeypatch.setitem(sys.modules, "peers", types.SimpleNamespace(ask=ask))
  judgement = peer.judge()
  assert asked == ["a", "b"]
  assert judgement.problems == tuple(lines)
  assert judgement.name == "inner"
