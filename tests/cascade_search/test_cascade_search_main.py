"""The cascade_search main, and the configs that it takes."""

import ast
import pathlib
import re

import pytest

from speccascade import cascade_search, cli
from speccascade.inference.cascades import Cascade

pytestmark = pytest.mark.needs_tf

ROOT = pathlib.Path(__file__).parents[2]
ABLATION = "configs/experiments/cascade_drafting/ablation.gin"
GIVEN = {
  "DRAFTER_CHECKPOINT": ("medium", "small"),
  "VERIFIER_CHECKPOINT": "large",
  "BIGRAMS": "bigrams.npz",
  "OUTPUT_DIR": "out",
}


@pytest.mark.parametrize(
  ("more", "given"),
  [
    ([], {"MIXTURE_OR_TASK_NAME": "speccascade_en_de"}),
    (
      ["configs/experiments/gsm8k/files.gin"],
      {"TEST_FILES": "test.jsonl", "VOCABULARY": "gsm8k.model"},
    ),
  ],
)
def test_the_ablation_says_all_but_what_the_user_must(more, given, capsys):
  argv = ["cascade_search", "--dry_run"]
  argv += [f"--gin_file={ROOT / path}" for path in (ABLATION, *more)]
  argv += [f"--gin.{k}={v!r}" for k, v in (GIVEN | given).items()]
  assert cli._run(cascade_search.main, cascade_search.__doc__, argv) == 0
  out = capsys.readouterr().out
  assert "OBJECTIVE = 'walltime'" in out
  made = re.findall(r"(\w+)/drafters\.Cascade\.k = (.*)", out)
  listed = re.search(r"CASCADES = \\?\s*(\[[^\]]*\])", out)[1]
  assert len(made) == 11
  for name, k in made:
    assert f"@{name}/drafters.Cascade()" in listed
    cascade = Cascade(k=ast.literal_eval(k))  # checks K
    assert len(cascade.k) == (2 if name == "no_max_gram" else 3)
