"""Every snippet of docs/api.md runs, in order and in one namespace."""

import ast
import inspect
import pathlib
import re

import pytest

from speccascade import api
from speccascade.checkpoints import orbax_io
from speccascade.data.generated import vocabulary
from tests.inference import tiny

pytestmark = pytest.mark.needs_tf

TEXT = (pathlib.Path(__file__).parents[1] / "docs" / "api.md").read_text(
  encoding="utf-8"
)
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiles")
def test_snippets(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  identity = orbax_io.vocabulary_identity(vocabulary.model_path())
  for seed, name in enumerate(("small", "large")):
    folder = tmp_path / "out" / "quickstart" / name / "checkpoint_1"
    tiny.save(folder, seed, vocab_size=vocabulary.SIZE, vocabulary=identity)
  names = {}
  for snippet in SNIPPETS:
    exec(compile(snippet, "docs/api.md", "exec"), names)
  assert len(names["out"].texts) == 2
  assert names["greedy"].trace is None
  assert len(names["three"].models.drafters) == 2
  assert names["page"].count('class="sc-record"') == 2


def test_snippets_call_what_there_is():
  known = {
    "load_pair": api.load_pair,
    "generate": api.Pair.generate,
    "compare": api.Pair.compare,
  }
  called = set()
  for snippet in SNIPPETS:
    for node in ast.walk(ast.parse(snippet)):
      if not isinstance(node, ast.Call):
        continue
      name = getattr(node.func, "attr", None)
      if name in known:
        given = {keyword.arg for keyword in node.keywords}
        assert given <= set(inspect.signature(known[name]).parameters)
        called.add(name)
  assert called == set(known)


def test_the_table_names_every_field():
  from speccascade.generation import Generation

  cells = re.findall(r"^\| (`[^|]*`) \|", TEXT, re.MULTILINE)
  named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
  assert named <= {*Generation.__dataclass_fields__, "stats"}
  assert named >= {"texts", "tokens", "lengths", "stats", "trace", "counts"}
