"""The command, and the page that says how to use it."""

import pathlib
import re
import subprocess
import sys

import pytest

from speccascade import judge
from speccascade.judge import __main__ as command

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/judge.md").read_text(encoding="utf-8")
SOURCE = """
import random

def step(tokens, q, p):
  return [random.choices(range(len(p[0])), p[0])[0]]

def wrong(tokens, q, p):
  return [random.choices(range(len(q[0])), q[0])[0]]

def verify(tokens, q, p, u_accept, u_draw):
  total = 0
  for token, chance in enumerate(p[0]):
    total += chance
    if total > u_draw:
      return 0, token

def sampler(problem, seed):
  rng, text = random.Random(seed), list(problem.prompt)
  for _ in range(problem.num_tokens):
    weights = problem.tables[1][text[-1]]
    text += rng.choices(range(len(weights)), weights)
  return text[len(problem.prompt):]
"""
ONLY = "--only=V = 2, gamma 1"


@pytest.fixture
def module(tmp_path, monkeypatch):
  (tmp_path / "judged_here.py").write_text(SOURCE)
  monkeypatch.syspath_prepend(tmp_path)
  return tmp_path / "judged_here.py"


@pytest.mark.parametrize(
  ("words", "code", "shown"),
  [
    (["step", "--kind=step", ONLY], 0, "step: right in all 2 problems"),
    (["wrong", "--kind=step", ONLY], 1, "wrong: WRONG in 2 of 2 problems"),
    (["verify", "--kind=verify", "--one_row", ONLY], 0, "right in all 1"),
    (
      ["sampler", "--kind=sampler", "--only=q = p, one", "--resolution=0.2"],
      0,
      "sampler: right in all 1 problems",
    ),
    (
      [
        *("sampler", "--kind=sampler", "--only=top-k 2", "--exact"),
        "--settings=top_k,top_p",
      ],
      0,
      "right  0.000000 (2e-06)  all paths  top-k 2, top-p 0.6",
    ),
  ],
)
def test_a_function_is_judged(module, words, code, shown, capsys):
  assert command.main([f"judged_here:{words[0]}", *words[1:]]) == code
  assert shown in capsys.readouterr().out
  if code == 0 and words[1] == "--kind=step":
    assert command.main([f"{module}:{words[0]}", *words[1:]]) == 0


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["judged_here", "--kind=step"], "names no function; give MODULE:FUNCTION"),
    (["judged_here:nothing", "--kind=step"], "has no function nothing"),
    (["nowhere_at_all:step", "--kind=step"], "cannot import nowhere_at_all"),
    (["nowhere.py:step", "--kind=step"], "there is no file nowhere.py"),
    (["judged_here:step", "--kind=step", "--exact"], "is for --kind=sampler"),
    (["judged_here:step", "--kind=step", "--seed=1"], "is for --kind=sampler"),
    (["judged_here:step", "--kind=step", "--one_row"], "is for --kind=verify"),
    (
      ["judged_here:sampler", "--kind=sampler", "--exact", "--batch=4"],
      "--exact draws no samples",
    ),
    (
      ["judged_here:sampler", "--kind=sampler", "--settings=heat"],
      "settings has heat",
    ),
    (["judged_here:step", "--kind=step", "--only=V = 9"], "no problem has"),
  ],
)
@pytest.mark.usefixtures("module")
def test_what_is_asked_wrongly_is_one_line(words, message, capsys):
  assert command.main(words) == 2
  _, err = capsys.readouterr()
  assert err.startswith("error: ")
  assert err.count("\n") == 1
  assert message in err


def test_it_needs_numpy_alone():
  code = (
    "import sys\nfrom speccascade.judge import __main__\n"
    "heavy = {'jax', 'torch', 'scipy', 'gin', 'absl', 'tensorflow'}\n"
    "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
  )
  assert done.returncode == 0, done.stderr


def test_the_page_runs_as_it_is_written(capsys):
  names = {}
  for snippet in re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M):
    exec(compile(snippet, "docs/judge.md", "exec"), names)
  out = capsys.readouterr().out
  assert out.count("step: right in all 2 problems") == 1
  assert out.count("sampler: right in all 2 problems") == 2


def test_the_page_names_every_known_error():
  rows = re.findall(r"^\| (.+?) \| `(\w+)`", PAGE, re.M)
  named = {example: name.replace("\\|", "|") for name, example in rows}
  for error in judge.KNOWN_ERRORS:
    assert named[error.__name__] == error.name
