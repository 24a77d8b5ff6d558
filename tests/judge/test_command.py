"""The command, and the page that says how to use it."""

import pathlib
import re
import subprocess
import sys

import numpy as np
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

def both(tokens, q, p):
  if len(tokens) > 1:
    raise KeyError("x")
  return wrong(tokens, q, p)

def verify(tokens, q, p, u_accept, u_draw):
  total = 0
  for token, chance in enumerate(p[0]):
    total += chance
    if total > u_draw:
      return 0, token

def sampler(problem, seed):
  rng, text = random.Random(seed), list(problem.prompt)
  for _ in range(problem.num_tokens):
    weights = problem.rows(text)[1]
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


MISTAKES = """
import random, sys
number = 3
class Box:
  pass
def none(tokens, q, p): pass
def two(tokens, q): return [0]
def text(tokens, q, p): return "0"
def floats(tokens, q, p): return [0.0]
def generator(tokens, q, p): yield 0
async def later(tokens, q, p): return [0]
def negative(tokens, q, p): return [-1]
def large(tokens, q, p): return [99]
def ragged(tokens, q, p): return [[0], [0, 1]]
def exits(tokens, q, p): sys.exit(0)
def forever(tokens, q, p):
  while True: pass
def stubborn(tokens, q, p):
  while True:
    try:
      while True: pass
    except Exception: pass
def v_none(tokens, q, p, u_accept, u_draw): pass
def v_one(tokens, q, p, u_accept, u_draw): return 0, 0
def v_floats(tokens, q, p, u_accept, u_draw): return 1.0 * u_draw, 1.0 * u_draw
def v_negative(tokens, q, p, u_accept, u_draw):
  return 0 * tokens[:, 0], -1 + 0 * tokens[:, 0]
def v_many(tokens, q, p, u_accept, u_draw):
  return 9 + 0 * tokens[:, 0], 0 * tokens[:, 0]
def v_raises(tokens, q, p, u_accept, u_draw): raise KeyError("x")
def v_exits(tokens, q, p, u_accept, u_draw): sys.exit(0)
def s_none(problem, seed): pass
def s_one(problem): return [0, 0]
def s_short(problem, seed): return [0]
def s_negative(problem, seed): return [-1] * 9
def s_large(problem, seed): return [77] * 9
def s_row(problem, seed): return [0] * len(problem.prompts)
def s_exits(problem, seed): sys.exit(0)
def s_forever(problem, seed):
  while True: pass
def s_no_attribute(problem, seed): return problem.length
"""
FAILS = {
  "none": "it returned None; return a list or an array of integers",
  "two": "TypeError: two() takes 2 positional arguments but 3 were given",
  "text": "it returned str; return a list",
  "floats": "tokens are of type float64; return a list",
  "generator": "it returned generator",
  "later": "it returned coroutine",
  "negative": "token -1 is outside the vocabulary, which is 0 to 1",
  "large": "token 99 is outside the vocabulary",
  "ragged": "it returned a ragged list",
  "exits": "SystemExit: 0",
  "forever": "a call did not end in 0.2 s",
  "stubborn": "a call did not end in 0.2 s",
  "Box": "TypeError: Box() takes no arguments",
  "v_none": "it returned NoneType; return (num_accepted [B], token [B])",
  "v_one": "num_accepted is int64 of shape ()",
  "v_floats": "num_accepted is float64 of shape (156,)",
  "v_negative": "token is -1, wanted 0 to 1",
  "v_many": "num_accepted is 9, wanted 0 to 1",
  "v_raises": "it raises KeyError: 'x'",
  "v_exits": "it raises SystemExit: 0",
  "s_none": "it returned None",
  "s_one": "TypeError: s_one() takes 1 positional argument but 2",
  "s_short": "the sampler wrote 1 tokens of 2",
  "s_negative": "token -1 is outside the vocabulary",
  "s_large": "token 77 is outside the vocabulary",
  "s_row": "it returned one row for 16 prompts",
  "s_exits": "it raises SystemExit: 0",
  "s_forever": "a call did not end in 0.2 s",
  "s_no_attribute": "'Problem' object has no attribute 'length'",
}
KINDS = {"v": "verify", "s": "sampler"}


@pytest.mark.parametrize("name", FAILS)
@pytest.mark.filterwarnings("error")
def test_code_that_fails_is_one_line_and_exits_with_2(name, tmp_path, capsys):
  (tmp_path / "mistakes.py").write_text(MISTAKES)
  mark, underscore, _ = name.partition("_")
  kind = KINDS[mark] if underscore else "step"
  words = [f"{tmp_path}/mistakes.py:{name}", f"--kind={kind}", "--only=V = 2"]
  words += ["--batch=16"] * (name == "s_row")
  assert command.main([*words, "--time_limit_s=0.2"]) == 2
  out, err = capsys.readouterr()
  assert not out
  # The time limit says how many problems there are.
  assert re.match(rf"error: {name}: fails in (\d+) of \1 problems: ", err)
  assert err.count("\n") == 1
  assert FAILS[name] in err
  assert f"It is called as {kind}(" in err
  # By Python.
  ask = {"step": judge.judge_step, "verify": judge.judge_verify}
  ask = ask.get(kind, judge.judge_sampler)
  how = {"batch": 16} if name == "s_row" else {}
  judgement = ask(command.load(words[0]), only="V = 2", time_limit_s=0.2, **how)
  assert judgement.exit_code == 2
  assert FAILS[name] in judgement.verdict


@pytest.mark.parametrize(
  ("source", "message"),
  [
    ("def step(:", "raises SyntaxError: invalid syntax"),
    ("1 / 0", "raises ZeroDivisionError: division by zero"),
    ("import sys; sys.exit(0)", "raises SystemExit: 0"),
    ("import no_such_module", "No module named 'no_such_module'"),
    ("step = [0]", "step of FILE is not a function but list"),
    ("def others(): pass", "FILE has no function step; it has others"),
    (None, "there is no file FILE"),
  ],
)
def test_a_file_that_cannot_be_judged(source, message, tmp_path, capsys):
  file = tmp_path / "mine.py"
  if source is None:
    file.mkdir()
  else:
    file.write_text(source)
  assert command.main([f"{file}:step", "--kind=step"]) == 2
  _, err = capsys.readouterr()
  assert err.count("\n") == 1
  assert message.replace("FILE", str(file)) in err


def test_a_file_may_be_named_like_a_module_and_has_its_neighbours(tmp_path):
  (tmp_path / "random.py").write_text("from beside_it import step")
  (tmp_path / "beside_it.py").write_text(SOURCE)
  place, before = f"{tmp_path / 'random.py'}:step", list(sys.path)
  try:
    assert command.main([place, "--kind=step", ONLY]) == 0
  finally:
    sys.path[:] = before
  assert sys.modules["random"].__file__ != str(tmp_path / "random.py")


def test_exit_codes():
  def line(passed, tv, raised=False):
    return judge.JudgedProblem("", 2, tv, 0, None, passed, "", raised)

  right, wrong = line(True, 0.0), line(False, 0.2)
  fails, is_open = line(False, 0.5, True), line(False, None)
  for lines, code in (
    ([right, right], 0),
    ([right, wrong, fails, is_open], 1),
    ([right, is_open, fails], 2),
    ([right, is_open], 3),
  ):
    judgement = judge.Judgement("step", tuple(lines))
    assert judgement.exit_code == code
    assert judgement.passed is (code == 0)
  assert "fails in 1 of 2" in judge.Judgement("", (right, fails)).verdict
  assert "not judged in 1" in judge.Judgement("", (right, is_open)).verdict
  assert "WRONG in 1 of 2" in judge.Judgement("", (fails, wrong)).verdict


def test_what_is_not_judged_exits_with_3(module, capsys):
  with module.open("a") as file:
    file.write("""
import numpy
def normal(tokens, q, p):
  return [int(numpy.random.normal() > 0)]
def waits(tokens, q, p):
  while random.random() < 2: pass
""")
  for name, reason in (
    ("normal", "numpy.random.normal is not enumerated"),
    ("waits", "more than 10,000 random numbers: it may loop until"),
  ):
    assert command.main([f"{module}:{name}", "--kind=step", ONLY]) == 3
    assert "not judged in 2 of 2 problems: " in capsys.readouterr().out
    assert command.main([f"{module}:{name}", "--kind=step", ONLY]) == 3
    assert reason in capsys.readouterr().out


HELD = """
import numpy as np
import random
from numpy.random import default_rng, random as of_numpy
from random import random as of_python

NEW = default_rng(0)
OLD = np.random.RandomState(0)
BITS = np.random.Generator(np.random.PCG64(0))
AT_IMPORT = NEW.random(), OLD.rand(), BITS.random(), of_numpy(), of_python()

def made(uniform):
  def step(tokens, q, p):
    return [int(np.searchsorted(np.cumsum(p[0]), uniform(), "right"))]
  return step

new, old = made(lambda: NEW.random()), made(lambda: OLD.random_sample())
bits, numpys = made(lambda: BITS.random()), made(of_numpy)
pythons = made(of_python)
"""


@pytest.mark.parametrize("name", ["new", "old", "bits", "numpys", "pythons"])
def test_what_a_module_holds_is_replaced_before_it_is_imported(
  name, tmp_path, capsys
):
  file = tmp_path / "holds.py"
  file.write_text(HELD)
  words = [f"{file}:{name}", "--kind=step", "--only=V = 3, gamma 1"]
  assert command.main(words) == 0
  assert "right in all 1 problems" in capsys.readouterr().out
  # By Python it was imported before: that is said, and it is not called wrong.
  step = command.load(words[0])
  judgement = judge.judge_step(step, only="V = 3, gamma 1")
  assert judgement.exit_code == 3
  assert "that it held before the judge began" in judgement.verdict
  # While nothing is enumerated, what is held draws as it did.
  place = sys.modules["named_holds"]
  assert np.random.default_rng(0).random() == place.AT_IMPORT[0]
  replaced_step = command.load(words[0], replaces=True)
  assert sys.modules["named_holds"].AT_IMPORT[:3] == place.AT_IMPORT[:3]
  ones = {replaced_step([0], None, [[0.2, 0.3, 0.5]])[0] for _ in range(60)}
  assert ones == {0, 1, 2}


def test_the_page_and_the_help_name_the_exit_codes(capsys):
  with pytest.raises(SystemExit):
    command.main(["--help"])
  shown = capsys.readouterr().out
  for code in range(4):
    assert re.search(rf"^  {code}  \w", shown, re.M)
    assert re.search(rf"^\| {code} \| \w", PAGE, re.M)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (
      ["judged_here", "--kind=step"],
      "does not name a function; give MODULE:FUNCTION",
    ),
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
    (
      ["judged_here:step", "--kind=step", "--time_limit_s=0"],
      "time_limit_s is",
    ),
    (["plain/folder:step", "--kind=step"], "neither a module nor a file"),
    ([".judged_here:step", "--kind=step"], "importing .judged_here raises"),
    *(
      (["judged_here:sampler", "--kind=sampler", *words], message)
      for *words, message in (
        ("--resolution=-1", "resolution is -1.0; wanted a number above 0"),
        ("--resolution=nan", "resolution is nan; wanted"),
        ("--resolution=1", "resolution is 1.0; wanted"),
        ("--false_alarm=0", "false_alarm is 0.0; wanted"),
        ("--false_alarm=2", "false_alarm is 2.0; wanted"),
        ("--batch=0", "batch is 0; wanted an integer above 0"),
        ("--num_rows=0", "num_rows is 0; wanted 1 or 2"),
        ("--num_rows=-3", "num_rows is -3; wanted"),
        ("--seed=-1", "seed is -1; wanted"),
        ("--num_rows=2", "--batch=1", "batch must be num_rows or more"),
      )
    ),
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


def test_a_function_that_fails_here_and_is_wrong_there_is_wrong(module, capsys):
  words = ["judged_here:both", "--kind=step", "--only=V = 2, gamma"]
  assert command.main(words) == 1
  said = capsys.readouterr()
  assert re.search(r"^WRONG .* V = 2, gamma 1", said.out, re.MULTILINE)
  assert re.search(r"^FAILS .* V = 2, gamma 2.*KeyError", said.out, re.M)
  assert not said.err
