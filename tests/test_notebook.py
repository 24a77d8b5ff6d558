"""The notebooks: valid, with what they show, and they run as they stand."""

import ast
import pathlib
import re

import nbclient
import nbformat
import pytest

from tests import hub_server
from tests.generate import llamas

FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"
EXPLORE, GEMMA = FOLDER / "explore.ipynb", FOLDER / "gemma.ipynb"
LIMIT_S = 1800  # a stuck cell; it takes minutes
MAX_BYTES = 1 << 20
RULE = "spec_cascade_token_v3"
# What a short run has less of: the text in a cell, and what is in its place.
SHORT = {
  EXPLORE: {
    "built_in_examples(32)": "built_in_examples(2)",
    "[0.1, 0.3, 0.5, 0.7]": "[0.3]",
    "max_decode_len=64": "max_decode_len=8",
    '"max_decode_len": 48': '"max_decode_len": 8',
    'drafter_name = ""': 'drafter_name = "google/gemma-3-270m-it"',
    'verifier_name = ""': 'verifier_name = "google/gemma-3-1b-it"',
  },
  GEMMA: {
    "for thing, answer in answers.items()": (
      "for thing, answer in [*answers.items()][:2]"
    ),
    "[0.1, 0.3, 0.5, 0.7]": "[0.3]",
    "max_decode_len=64": "max_decode_len=8",
    "max_decode_len=32": "max_decode_len=4",
    "max_decode_len=16": "max_decode_len=4",
  },
}
# A Gemma 3, but for its sizes.
GEMMA_3 = {
  "mlp_activations": ("gelu", "linear"),
  "local_rope_theta": 10000.0,
  "norm_offset": 1,
  "post_norms": True,
  "scaled_embedding": True,
  "query_key_norm": True,
  "query_pre_attn_scalar": 8,
  "window": 64,
  "windowed_layers": (0,),
  "num_decoder_layers": 2,
  "max_positions": 1024,
}


def read(path):
  return nbformat.read(path, as_version=4)


def code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_they_show_what_they_give():
  explore = read(EXPLORE)
  install, *cells, chat = code_cells(explore)
  assert install.outputs == []
  assert all(cell.outputs for cell in cells)
  assert chat.outputs == []  # without models it does nothing
  # Its models are not on the machine that it was written on.
  assert not any(cell.outputs for cell in code_cells(read(GEMMA)))


@pytest.mark.parametrize("path", SHORT, ids=lambda path: path.stem)
def test_code_is_python_and_has_no_placeholder(path):
  notebook = read(path)
  nbformat.validate(notebook)
  assert path.stat().st_size < MAX_BYTES
  text = path.read_text("utf-8")
  # Who looks at it does not learn whose machine it ran on.
  assert not re.search(r"/(?:home|root|tmp|work)/", text)
  assert "REPOSITORY" not in text
  assert "Open in Colab" in text
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
  forms = "".join(cell.source for cell in code_cells(notebook))
  for field in ("repository", "method", "alpha", "gamma", "temperature"):
    assert f"\n{field} = " in forms
  assert forms.count("# @param") >= 4
  # Both install the same, without TensorFlow.
  assert code_cells(notebook)[0].source == code_cells(read(EXPLORE))[0].source
  assert ".[notebook]" in code_cells(notebook)[0].source


@pytest.fixture
def hub(tmp_path, monkeypatch, served):
  """A hub of the two Gemmas that notebooks name, tiny and random."""
  for seed, name in enumerate(("gemma-3-270m-it", "gemma-3-1b-it")):
    folder = llamas.save(tmp_path / name, seed, **GEMMA_3)
    served.add(f"google/{name}", folder, gated=True)
  monkeypatch.setenv("HF_ENDPOINT", served.url)
  monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
  monkeypatch.setenv("HF_HUB_OFFLINE", "0")
  monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
  return served


def run(notebook, tmp_path):
  """Runs a notebook; returns {kind: outputs of cells}, and what is printed."""
  client = nbclient.NotebookClient(
    notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(tmp_path)}}
  )
  client.execute()  # raises where a cell does
  data, text = {}, ""
  for cell in code_cells(notebook):
    for output in cell.outputs:
      if output.get("name") != "stderr":  # bars of downloads
        text += output.get("text", "")
      for kind, value in output.get("data", {}).items():
        data.setdefault(kind, []).append(value)
  return data, text


def views(data):
  return [html for html in data["text/html"] if 'class="sc-record"' in html]


@pytest.mark.parametrize("path", SHORT, ids=lambda path: path.stem)
def test_a_short_run(path, hub, tmp_path):
  notebook = read(path)
  for old, new in SHORT[path].items():
    cells = [cell for cell in code_cells(notebook) if old in cell.source]
    assert cells
    for cell in cells:
      cell.source = cell.source.replace(old, new)
  data, text = run(notebook, tmp_path)
  assert len(views(data)) == {EXPLORE: 2, GEMMA: 1}[path]
  assert any("relative latency" in html for html in data["text/html"])
  assert len(data["image/png"]) == 1
  assert (tmp_path / "trade_off.png").exists()
  assert hub.got("model.safetensors")
  if path == GEMMA:
    assert "LlamaConfig" in text
    rules = [html for html in data["text/html"] if "spec_cascade_opt" in html]
    assert all(rules[0].count(x) for x in (RULE, "mentored", "bild_star_js"))


@pytest.mark.slow
def test_it_runs_from_start_to_end(tmp_path):
  notebook = read(EXPLORE)
  chat = notebook.cells[-1]
  for seed, name in enumerate(("drafter", "verifier")):
    folder = llamas.save(tmp_path / name, seed, max_positions=1024)
    empty = f'{name}_name = ""'
    assert empty in chat.source
    chat.source = chat.source.replace(empty, f"{name}_name = {str(folder)!r}")
  data, text = run(notebook, tmp_path)
  assert len(views(data)) == 2
  assert all(view.count("sc-card") > 5 for view in views(data))
  assert any("relative latency" in html for html in data["text/html"])
  assert len(data["image/png"]) == 1
  rows = f'<th scope="row">{RULE}</th>'
  assert any(html.count(rows) == 4 for html in data["text/html"])
  assert "sweep: " in text
  assert "\r" not in text  # lines, not a stack of bars
  assert (tmp_path / "trade_off.png").exists()
