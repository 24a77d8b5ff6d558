"""Commands and snippets of pages run in their order, as they are written there.

Each command gets a few flags more, so that models learn nothing and seconds do.
"""

import importlib
import importlib.util
import inspect
import pathlib
import random
import re
import shlex
import subprocess

import gin
import pytest

from speccascade import cli
from speccascade.generate.api import foreign_names
from speccascade.generate.api.generation import Generation
from speccascade.study.rows import results
from speccascade.tools.examples import quickstart
from tests import mains
from tests.generate import llamas

pytestmark = pytest.mark.needs_tf
ROOT = pathlib.Path(__file__).parents[1]
FAST = {
  "train": {
    "TRAIN_STEPS": 3,
    "NUM_EVAL_EXAMPLES": 4,
    "NUM_DECODED_EXAMPLES": 2,
  },
  "decode": {"NUM_EXAMPLES": 3, "MAX_DECODE_LEN": 8},
  "sweep": {
    **{"NUM_EXAMPLES": 3, "NUM_TIMED": 2, "REPEATS": 1, "NUM_SHOWN": 1},
    **{"ALPHAS": "one", "BATCH_SIZE": 2, "MAX_DECODE_LEN": 8},
  },
}


def blocks(page: str, language: str, section: str = "") -> list[str]:
  """Returns the fenced blocks of a page, or a section, in one language."""
  text = (ROOT / page).read_text(encoding="utf-8")
  if section:
    text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
  return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.M)


def commands(page: str, section: str = "") -> list[str]:
  """Returns the commands of a page; a here-document belongs to its own."""
  found = []
  for block in blocks(page, "bash", section):
    joined = block.replace("\\\n", " ")
    found += [block] if "<<" in block else filter(str.strip, joined.split("\n"))
  return found


def run(command: str, **changes):
  """Runs one command: of ours in this process, another one by the shell."""
  words = shlex.split(command)
  if words[:2] != ["python", "-m"]:
    subprocess.run(["bash", "-euc", command], check=True)
    return
  name = words[2].removeprefix("speccascade.")
  module = f"speccascade.{name}"
  if importlib.util.find_spec(module).submodule_search_locations:
    module += ".__main__"
  main = importlib.import_module(module)
  if "--gin" not in command:
    assert main.main(words[3:]) == 0
    return
  macros = FAST[name] | changes.get(name, {})
  argv = [*words[2:], *(f"--gin.{k}={v!r}" for k, v in macros.items())]
  preview = getattr(main, "preview", None)
  assert cli.start(main.main, main.__doc__, argv, preview=preview) == 0


def executed(page: str, section: str = "") -> dict:
  """Runs the snippets of a page in one namespace; returns it."""
  names = {}
  for snippet in blocks(page, "python", section):
    exec(compile(snippet, page, "exec"), names)
  return names


def write_corpus(folder: pathlib.Path):
  """Writes sentences of made-up words, of which 4,000 pieces can be made."""
  rng = random.Random(0)
  letters = "abcdefghijklmnoprstuvz"
  lengths = [rng.randint(3, 9) for _ in range(3000)]
  words = ["".join(rng.choices(letters, k=length)) for length in lengths]
  folder.mkdir()
  for split, num in (("train", 1500), ("dev", 8), ("test", 6)):
    lines = [rng.choices(words, k=rng.randint(3, 6)) for _ in range(num)]
    for language, step in (("en", 1), ("de", -1)):
      texts = [" ".join(word[::step] for word in line) for line in lines]
      (folder / f"{split}.{language}").write_text("\n".join(texts) + "\n")


@pytest.fixture
def clone(tmp_path, monkeypatch):
  """The working directory of a clone, with nothing in it but configs."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "configs").symlink_to(ROOT / "configs")
  with mains.own_tasks():
    yield tmp_path
  gin.clear_config()


@pytest.mark.slow
def test_own_text(clone, capsys):
  write_corpus(clone / "data")
  page = "docs/your_own_text.md"
  layers = ("num_encoder_layers", "num_decoder_layers")
  shape = {f"own_text_large/config.T5Config.{name}": 1 for name in layers}
  for command in commands(page):
    run(command, train={**shape, "BUCKETS": [64]})
  out = capsys.readouterr().out
  assert "4000 pieces in data/pieces.model" in out
  assert out.count("finished at step 3") == 2
  assert "out/own_text/decode" in out
  assert re.search(r"^# \d+ points", out, re.M)
  assert "finished: 6 points in out/own_text/sweep/rows.jsonl" in out
  rows = results.read_rows(clone / "out" / "own_text" / "sweep" / "rows.jsonl")
  assert {row.settings.task for row in rows} == {"own_text"}
  assert (clone / "out/own_text/sweep/report/index.html").is_file()
  names = executed(page)
  assert len(names["out"].texts) == 1


@pytest.mark.slow
def test_decoder_only(clone, capsys):
  (clone / "models").mkdir()
  for seed, name in enumerate(("small", "large")):
    llamas.save(clone / "models" / name, seed, max_positions=1024)
  how = {"kind": "fallback", "vocab_size": 580, "max_positions": 1024}
  llamas.save(clone / "models" / "other", 2, **how)
  page = "docs/decoder_only.md"
  for command in commands(page):
    run(command)
  out = capsys.readouterr().out
  assert re.search(r"SpecCascade \[OPT\] \(.*\) on prompts\.jsonl", out)
  assert "are the drafter's too" in out
  names = executed(page)
  assert len(names["out"].texts) == 1
  assert len(names["chat"].messages) == 5


@pytest.mark.slow
def test_a_drafter_of_a_decoder_only_model(clone, capsys):
  (clone / "models").mkdir()
  llamas.save(clone / "models" / "large", 0, max_positions=1024)
  for name in ("prompts", "held_out"):
    (clone / f"{name}.jsonl").write_text('{"inputs": "the cat"}\n' * 3)
  shape = {
    "smollm2_drafter/config.LlamaConfig.vocab_size": llamas.ROWS,
    "smollm2_drafter/config.LlamaConfig.emb_dim": 16,
    "TASK_FEATURE_LENGTHS": {"inputs": 64, "targets": 64},
  }
  section = "A drafter of a decoder-only model"
  for command in commands("docs/training.md", section):
    run(command, train=shape)
  out = capsys.readouterr().out
  assert "finished at step 3; eval/loss " in out
  assert "eval/acceptance " in out
  assert "SpecDecode" in out


@pytest.mark.slow
def test_quick_start(clone, capsys):
  page = "docs/quickstart.md"
  for command in commands(page, "Use"):
    run(command, train=quickstart.FAST_TRAINING)
  out = capsys.readouterr().out
  assert out.count("finished at step 3") == 2
  assert "out/opt" in out
  assert "finished: 8 points in out/sweep/rows.jsonl" in out
  assert (clone / "out/sweep/report/index.html").is_file()
  assert executed(page, "Use")["out"].texts


def test_readme(clone, capsys):
  out = executed("README.md", "Start")["out"]
  assert len(out.texts) == 1
  decode, *others = commands("README.md", "Start")
  run(decode)
  said = capsys.readouterr().out
  assert out.texts[0] in said
  assert "SpecCascade [OPT] (alpha 0.3, " in said
  assert " on speccascade_en_de test" in said
  assert [command.split()[2] for command in others] == [
    "speccascade.sweep",
    "speccascade.report",
  ]


@pytest.mark.slow
def test_readme_curve(clone, capsys):
  for command in commands("README.md", "Start")[1:]:
    run(command)
  assert "finished: 6 points in out/curve/rows.jsonl" in capsys.readouterr().out
  assert (clone / "out/curve/report/index.html").is_file()


@pytest.mark.slow
def test_api(clone):
  names = executed("docs/api.md")
  assert len(names["out"].texts) == 2
  # The sentence whose texts are weighed has several renderings.
  assert len(set(names["lossy"].texts)) > 10
  assert names["greedy"].trace is None
  assert len(names["three"].models.drafters) == 2
  assert names["page"].count('class="sc-record"') == 2


def test_from_transformers():
  names = executed("docs/from_transformers.md")
  assert names["out"].texts == names["same"].texts
  # Every name of the left column is translated, refused with what to do, or
  # the same here.
  page = (ROOT / "docs/from_transformers.md").read_text(encoding="utf-8")
  own = inspect.signature(names["pair"].generate).parameters
  foreign = {*foreign_names._SAME, *foreign_names._ABSENT, *own}
  foreign |= {"do_sample", "min_new_tokens", "ids", "text"}
  for row in re.findall(r"^\| (`.*?) \|", page, re.M):
    named = set(re.findall(r"(\w+)=", row)) | set(
      re.findall(r"`(\w+_id\w*)`", row)
    )
    assert named <= foreign, row


def test_the_table_of_the_api_names_every_field():
  text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
  cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
  named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
  assert named <= {*Generation.__dataclass_fields__, "stats"}
  assert named >= {"texts", "tokens", "lengths", "stats", "trace", "counts"}
