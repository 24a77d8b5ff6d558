"""Every gin file under configs/ resolves, and binds what is there to bind."""

import inspect
import itertools
import pathlib
import re

import gin
import pytest

from speccascade.cli import gin_internals, macros
from tests import mains

pytestmark = pytest.mark.needs_tf

ROOT = pathlib.Path(__file__).parents[1]
PAPERS = ("cnndm", "wmt_ende", "xsum")
FEW_SHOT = sorted(
  path.relative_to(ROOT).as_posix()
  for path in (ROOT / "configs" / "experiments").glob("*_fewshot.gin")
)
CONFIGS = sorted(
  path.relative_to(ROOT).as_posix()
  for path in (ROOT / "configs").glob("**/*.gin")
  if path.parent.name != "t5x"  # tests/tools/integrations/test_t5x_models.py
)
# What a file is given with, where it is not a run by itself.
PARTS = (
  *(
    "advise",
    "advise_trees",
    "cascade",
    "inputs",
    "measuring",
    "method",
    "learned_rule",
    "lossy_rules",
    "prompt_lookup",
    "side_by_side",
    "pair",
    "point",
  ),
)
BASES = {
  *(f"configs/runs/{name}.gin" for name in PARTS),
  *("configs/data/text_files.gin", "configs/experiments/gsm8k/files.gin"),
  *("configs/data/few_shot.gin", *FEW_SHOT),
  "configs/own_text/pair.gin",
}
# What a run by itself leaves to the user, at most.
USERS = {
  *("BIGRAMS", "DRAFTER_CHECKPOINT", "INPUT_FILE", "METHOD", "MODEL_DIR"),
  "INITIAL_CHECKPOINT_PATH",
  "OUTPUT_DIR",
  "RULE_PARAMETERS",
  *(
    "TEACHER_CHECKPOINT",
    "TEST_FILES",
    "TRAIN_FILES",
    "VALIDATION_FILES",
    "VERIFIER_CHECKPOINT",
  ),
  "VOCABULARY",
}
IS_RUN = re.compile(r"experiments|quickstart/|built_in/|own_text")
# Included by others there.
SHARED = {
  *(f"configs/experiments/{name}/sweep.gin" for name in PAPERS),
  *(f"configs/experiments/{name}/finetune.gin" for name in PAPERS),
  *(f"configs/experiments/{name}/train.gin" for name in ("gsm8k", "multi30k")),
  *("configs/experiments/gsm8k/files.gin", "configs/experiments/fewshot.gin"),
  *("configs/own_text/train.gin", "configs/own_text/pair.gin"),
}
COMMANDS = ("train", "decode", "sweep", "cascade_search", "learned_rule")


@pytest.mark.parametrize(
  "path", [path for path in CONFIGS if IS_RUN.search(path)]
)
def test_it_says_what_it_reproduces(path):
  header = (ROOT / path).read_text().split("\n\n")[0]
  said = " ".join(header.replace("#", " ").split())
  if path in SHARED:
    assert len(said) > 80
    return
  for words in ("Reproduces:", "Cost:", path):
    assert words in said
  assert any(f"python -m speccascade.{name}" in said for name in COMMANDS)


@pytest.mark.parametrize("path", CONFIGS)
def test_it_resolves(path, monkeypatch, capsys):
  monkeypatch.chdir(ROOT)
  files = ["configs/runs/decode.gin"] * (path in BASES) + [path]
  missing, out = mains.resolve([f"--gin_file={file}" for file in files], capsys)
  assert all(f"{name} = " in out for name in missing)
  # What --help lists is what there is.
  listed = [name for file in files for name in macros.macros(file)]
  assert set(listed) == set(gin_internals.macros())
  if path.startswith("configs/runs/"):
    settings = (macros.macros(file).items() for file in files)
    settings = dict(itertools.chain.from_iterable(settings))
    assert not [name for name, x in settings.items() if not x.comment]
  if IS_RUN.search(path) and path not in SHARED:
    assert set(missing) - {"MIXTURE_OR_TASK_NAME"} <= USERS
  # No function that gin binds takes more than eight parameters.
  for function, _ in gin_internals.bindings():
    if inspect.isfunction(function):
      parameters = inspect.signature(function).parameters
      if function.__module__.startswith("speccascade"):
        assert len(parameters) <= 8


@pytest.fixture(autouse=True)
def _cleared():
  yield
  gin.clear_config()
