"""notebooks/explore.ipynb: valid, with its outputs, and runs as it stands."""

import ast
import pathlib
import re

import nbclient
import nbformat
import pytest

from tests.generate import llamas

PATH = pathlib.Path(__file__).parents[1] / "notebooks" / "explore.ipynb"
LIMIT_S = 1800  # a stuck cell; it takes minutes
MAX_BYTES = 1 << 20


@pytest.fixture
def notebook():
  return nbformat.read(PATH, as_version=4)


def code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_valid_and_shows_what_it_gives(notebook):
  nbformat.validate(notebook)
  assert PATH.stat().st_size < MAX_BYTES
  install, *cells, chat = code_cells(notebook)
  assert install.outputs == []
  assert all(cell.outputs for cell in cells)
  assert chat.outputs == []  # without models it does nothing
  # Who looks at it does not learn whose machine it ran on.
  assert not re.search(r"/(?:home|root|tmp|work)/", PATH.read_text("utf-8"))


def test_its_code_is_python_and_has_no_placeholder(notebook):
  for cell in code_cells(notebook):
    lines = cell.source.splitlines()
    ast.parse(
      "\n".join(
        line.replace(line.lstrip(), "pass")
        if line.lstrip().startswith(("!", "%"))
        else line
        for line in lines
      )
    )
  assert "REPOSITORY" not in PATH.read_text()
  forms = "".join(cell.source for cell in code_cells(notebook))
  for field in ("repository", "method", "alpha", "gamma", "temperature"):
    assert f"\n{field} = " in forms
  assert forms.count("# @param") >= 4


@pytest.mark.slow
def test_it_runs_from_start_to_end(notebook, tmp_path):
  chat = notebook.cells[-1]
  for seed, name in enumerate(("drafter", "verifier")):
    folder = llamas.save(tmp_path / name, seed, max_positions=1024)
    empty = f'{name}_folder = ""'
    assert empty in chat.source
    chat.source = chat.source.replace(empty, f"{name}_folder = {str(folder)!r}")
  client = nbclient.NotebookClient(
    notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(tmp_path)}}
  )
  client.execute()  # raises where a cell does
  data = {}
  text = ""
  for cell in code_cells(notebook):
    for output in cell.outputs:
      text += output.get("text", "")
      for kind, value in output.get("data", {}).items():
        data.setdefault(kind, []).append(value)
  views = [html for html in data["text/html"] if 'class="sc-record"' in html]
  assert len(views) == 2
  assert all(view.count("sc-card") > 5 for view in views)
  assert any("relative latency" in html for html in data["text/html"])
  assert len(data["image/png"]) == 1
  rows = '<th scope="row">spec_cascade_token_v3</th>'
  assert any(html.count(rows) == 4 for html in data["text/html"])
  assert "sweep: " in text
  assert "\r" not in text  # lines, not a stack of bars
  assert (tmp_path / "trade_off.png").exists()
