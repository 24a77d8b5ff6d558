"""Models and data sets by their names on a hub, from the loopback address."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import traceback

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import speccascade as sc
from speccascade.checkpoints import (
  CheckpointError,
  CheckpointNotFoundError,
  hub,
  hub_headers,
  hub_names,
  inspect,
  load,
)
from speccascade.text import text_files, vocabularies
from tests import hub_server
from tests.generate import llamas

ROOT = pathlib.Path(__file__).parents[2]
LIMIT_S = 300  # seconds, on a busy machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A tiny Llama with its tokenizer, and files that are not read."""
  folder = tmp_path_factory.mktemp("models") / "tiny"
  llamas.save(folder, 0)
  (folder / "pytorch_model.bin").write_bytes(b"pickled")
  (folder / "consolidated.safetensors").write_bytes(b"a copy")
  (folder / "README.md").write_bytes(b"card")
  return folder


def in_shards(folder, tmp_path):
  """Returns the files of a model with its weights in two shards."""
  files = hub_server.files_of(folder)
  arrays = load_file(folder / "model.safetensors")
  names, shard_of = sorted(arrays), {}
  halves = names[: len(names) // 2], names[len(names) // 2 :]
  del files["model.safetensors"]
  for i, half in enumerate(halves, 1):
    name = f"model-0000{i}-of-00002.safetensors"
    save_file({x: arrays[x] for x in half}, tmp_path / name)
    files[name] = (tmp_path / name).read_bytes()
    shard_of |= dict.fromkeys(half, name)
  index = json.dumps({"weight_map": shard_of})
  return files | {"model.safetensors.index.json": index.encode()}


def embedding(checkpoint):
  return checkpoint.params["token_embedder"]["embedding"]


@pytest.mark.parametrize(
  ("path", "name"),
  [
    ("org/tiny", ("org/tiny", "")),
    ("org/tiny@v1", ("org/tiny", "v1")),
    ("org/t-5_v1.1@refs/pr/2", ("org/t-5_v1.1", "refs/pr/2")),
    ("hf://org/tiny", ("org/tiny", "")),
    (pathlib.Path("hf://org/tiny@v1"), ("org/tiny", "v1")),
    *(
      (path, None) for path in ("tiny", "a/b/c", "./tiny", "../tiny", "~/tiny")
    ),
    *((path, None) for path in ("", "/org/tiny", "gs://org/tiny", "org/")),
    *((path, None) for path in ("out/pieces.model", "org/tiny.gguf", "a/..")),
    *((path, None) for path in ("small/checkpoint_100", None, 5, "a b/c")),
  ],
)
def test_what_is_a_name(path, name):
  found = hub_names.parse(path)
  assert (found and (found.repo, found.revision)) == name


def test_a_model_is_read_by_its_name(served, client, folder, tmp_path):
  commit = served.add("org/tiny", folder)
  read = load("org/tiny")
  np.testing.assert_array_equal(embedding(read), embedding(load(folder)))
  assert hub_names.name_of(read.path) == f"org/tiny@{commit}"
  # What is read, and nothing else.
  asked = {path for _, path, _ in served.requests if "/resolve/" in path}
  names = {path.rpartition("/")[2] for path in asked}
  assert "model.safetensors" in names
  assert "tokenizer.json" in names
  assert not {"pytorch_model.bin", "README.md"} & names
  assert "consolidated.safetensors" not in names
  # The second time nothing is downloaded, in a later process too.
  hub.forget()
  before = served.got("model.safetensors")
  load("org/tiny")
  assert served.got("model.safetensors") == before


def test_a_local_folder_of_the_name_is_first(served, client, folder, tmp_path):
  served.add("org/tiny", {"config.json": b"{}"})
  (tmp_path / "org").mkdir()
  (tmp_path / "org" / "tiny").symlink_to(folder)
  assert load("org/tiny").path == str(tmp_path / "org" / "tiny")
  assert not served.requests


def test_a_vocabulary_downloads_no_weights(served, client, folder):
  served.add("org/tiny", folder)
  vocabulary = vocabularies.load("org/tiny")
  assert vocabulary == vocabularies.load(str(folder))
  assert not served.got("model.safetensors")


def test_a_pair_by_two_names(served, client, folder, tmp_path):
  commit = served.add("org/tiny", folder)
  large = tmp_path / "large"
  llamas.save(large, 1, num_decoder_layers=2)
  served.add("org/large", large)
  pair = sc.load_pair(drafter="org/tiny@main", verifier="org/large")
  assert pair.generate("ab", method="spec_decode", max_decode_len=4).texts
  drafter = pair.models.drafters[0]
  assert drafter.name == f"tiny@{commit[:7]}"
  assert drafter.source == f"org/tiny@{commit}"
  assert pair.models.revisions["drafter"] == f"org/tiny@{commit}"
  # A name that is read again is the newest one.
  moved = served.add("org/tiny", hub_server.files_of(folder))
  again = sc.load_pair(drafter="org/tiny", verifier="org/large")
  assert again.models.revisions["drafter"] == f"org/tiny@{moved}"


def test_settings_after_weights_ask_nothing(served, client, folder):
  served.add("org/tiny", folder)
  whole = hub.local("org/tiny")
  num = len(served.requests)
  assert hub.local("org/tiny", weights=False) == whole
  assert len(served.requests) == num


def test_shards_and_redirects(served, client, folder, tmp_path):
  files = in_shards(folder, tmp_path)
  files["model-00001-of-00003.safetensors"] = b"of former weights"
  served.add("new/tiny", files)
  served.repos["models/old/tiny"] = hub_server.Repo(moved_to="new/tiny")
  read = load("old/tiny")  # a repository that was renamed
  np.testing.assert_array_equal(embedding(read), embedding(load(folder)))
  assert any(path.startswith("/stored/") for _, path, _ in served.requests)
  assert not served.got("model-00001-of-00003.safetensors")


def test_a_revision_that_moved(served, client, folder):
  first = served.add("org/tiny", folder)
  served.repos["models/org/tiny"].names["v1"] = first
  assert load("org/tiny").path.endswith(first)
  second = served.add("org/tiny", hub_server.files_of(folder) | {"x": b""})
  # Until it is asked again, all that is read is of one revision.
  assert load("org/tiny").path.endswith(first)
  hub.forget()
  assert load("org/tiny").path.endswith(second)
  assert load("org/tiny@v1").path.endswith(first)
  assert load(f"org/tiny@{first}").path.endswith(first)
  with pytest.raises(
    CheckpointNotFoundError, match=r"no revision 'v9'.*commit"
  ):
    load("org/tiny@v9")


def test_offline_and_a_hub_that_does_not_answer(
  served, client, folder, monkeypatch, caplog
):
  commit = served.add("org/tiny", folder)
  with monkeypatch.context() as patch:
    patch.setattr(client, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointNotFoundError, match="HF_HUB_OFFLINE is set"):
      load("org/tiny")
  vocabularies.load("org/tiny")  # the cache has all but the weights
  hub.forget()
  with monkeypatch.context() as patch:
    patch.setattr(client, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointNotFoundError, match="not whole in the cache"):
      load("org/tiny")
  load("org/tiny")
  hub.forget()
  with monkeypatch.context() as patch:
    patch.setattr(client, "HF_HUB_OFFLINE", True)
    num = len(served.requests)
    assert load("org/tiny").path.endswith(commit)
    assert len(served.requests) == num
  hub_server.point_at(monkeypatch, "http://127.0.0.1:9", client.HF_HUB_CACHE)
  assert load("org/tiny").path.endswith(commit)
  [said] = [x.message for x in caplog.records if "of the cache" in x.message]
  assert f"taking revision {commit}" in said
  with pytest.raises(CheckpointError, match=r"cannot be read .*hf download"):
    load("org/other")


def test_gated_private_and_missing(served, client, folder, monkeypatch):
  served.add("org/gated", folder, gated=True)
  served.add("org/private", folder, private=True)
  with pytest.raises(
    CheckpointError, match=r"^org/gated is gated: accept its .*hf auth login"
  ) as error:
    load("org/gated")
  shown = "".join(traceback.format_exception(error.value))
  assert "Client Error" not in shown  # of the package that downloads
  for name in ("org/private", "org/tinny"):
    with pytest.raises(CheckpointNotFoundError, match="HF_TOKEN") as error:
      load(name)
    assert "\n" not in str(error.value)
    assert f"no model {name} at" in str(error.value)
  monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
  with pytest.raises(CheckpointError, match="does not know the token"):
    load("org/private")
  monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
  for name in ("org/gated", "org/private"):
    hub.forget()
    assert load(name).path


def test_near_names_of_folders_are_said(served, client, tmp_path):
  (tmp_path / "out" / "small").mkdir(parents=True)
  with pytest.raises(CheckpointNotFoundError, match="out has small"):
    load("out/smal")


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"model.safetensors": None}, "PyTorch weights, which are not read"),
    (
      {"model.safetensors": None, "pytorch_model.bin": None},
      "wanted config.json with model.safetensors",
    ),
    ({"config.json": None}, "PyTorch weights"),
    (
      {
        "model.safetensors": None,
        "model.safetensors.index.json": b'{"weight_map": {"a": "b"}}',
      },
      "has no 'b', which its",
    ),
    (
      {"model.safetensors": None, "model.safetensors.index.json": b"[]"},
      "cannot be parsed",
    ),
    ({"model.safetensors": b"cut"}, "truncated or damaged"),
  ],
)
def test_missing_and_damaged_files(served, client, folder, changes, said):
  files = hub_server.files_of(folder) | changes
  served.add("org/bad", {k: v for k, v in files.items() if v is not None})
  with pytest.raises(CheckpointError, match=re.escape(said)) as error:
    load("org/bad")
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("settings", "said"),
  [
    ({"model_type": "t5"}, "T5ForConditionalGeneration.from_pretrained"),
    ({"model_type": "llama"}, "AutoModelForCausalLM.from_pretrained"),
    ({"model_type": ["t5"]}, "AutoModelForCausalLM.from_pretrained"),
    (
      {"model_type": "llama", "num_hidden_layers": 1},
      "drafter of EAGLE, save them as safetensors with safetensors.torch."
      "save_file(torch.load('pytorch_model.bin', weights_only=True),"
      " 'model.safetensors') in the FOLDER of hf download org/old --local-dir",
    ),
    ({"draft_vocab_size": 5}, "if they are a drafter of EAGLE"),
    (None, "AutoModelForCausalLM.from_pretrained"),
  ],
)
def test_pytorch_weights_say_how_to_save_them(served, client, settings, said):
  text = b"{" if settings is None else json.dumps(settings).encode()
  served.add("org/old", {"config.json": text, "pytorch_model.bin": b"pickled"})
  num = served.got("config.json")
  for read in (load, lambda name: inspect.describe(name)):
    with pytest.raises(CheckpointError, match=re.escape(said)) as error:
      read("org/old@main")
    assert "\n" not in str(error.value)
  assert served.got("config.json") == num + 1
  assert not served.got("pytorch_model.bin")


def test_without_the_package(client, monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(CheckpointNotFoundError, match=r"pip install.*\[hub\]"):
    load("org/tiny")


def test_a_connection_that_breaks_is_tried_again(served, client, folder):
  served.add("org/tiny", folder)
  served.cut["model.safetensors"] = 700
  np.testing.assert_array_equal(
    embedding(load("org/tiny")), embedding(load(folder))
  )
  stored = [path for _, path, _ in served.requests if "/stored/" in path]
  assert len(stored) > 1


def start(served, tmp_path):
  """Starts a process that reads a model by its name."""
  code = "from speccascade.checkpoints import load; load('org/tiny')"
  environment = {
    "HF_ENDPOINT": served.url,
    "HF_HOME": str(tmp_path / "home"),
    "HF_HUB_OFFLINE": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONPATH": str(ROOT),
  }
  return subprocess.Popen(
    [sys.executable, "-c", code],
    cwd=tmp_path,
    env=os.environ | environment,
    stderr=subprocess.PIPE,
    text=True,
  )


def finish(process):
  _, errors = process.communicate(timeout=LIMIT_S)
  assert process.returncode == 0, errors


def test_a_killed_download_goes_on(served, folder, tmp_path):
  files = in_shards(folder, tmp_path)
  served.add("org/tiny", files)
  first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
  served.held[second] = 100
  process = start(served, tmp_path)
  assert served.waiting.wait(LIMIT_S)
  cache = tmp_path / "home" / "hub" / "models--org--tiny"
  limit = time.monotonic() + LIMIT_S
  while not list(cache.glob(f"snapshots/*/{first}")):
    assert time.monotonic() < limit
    time.sleep(0.05)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  served.held.clear()
  served.release.set()
  assert not list(cache.glob(f"snapshots/*/{second}"))
  before = {name: served.got(name) for name in files}
  finish(start(served, tmp_path))
  # What was downloaded whole is not downloaded again.
  again = [name for name in files if served.got(name) > before[name]]
  assert again == [second]


def test_two_processes_at_once(served, folder, tmp_path):
  served.add("org/tiny", folder)
  for process in [start(served, tmp_path) for _ in range(2)]:
    finish(process)


@pytest.mark.parametrize("shards", [False, True])
def test_inspecting_downloads_headers_alone(
  served, client, folder, tmp_path, shards, capsys
):
  files = in_shards(folder, tmp_path) if shards else folder
  commit = served.add("org/tiny", files)
  assert inspect.main(["org/tiny"]) == 0
  out = capsys.readouterr().out
  assert re.search(rf"path +org/tiny@{commit}\n", out)
  here = inspect.describe(str(folder))
  for line in ("parameters", "architecture", "  emb_dim"):
    found = [x for x in out.splitlines() if x.startswith(line)]
    assert found
    assert found == [x for x in here.splitlines() if x.startswith(line)]
  for method, path, span in served.requests:
    if "/stored/" in path and path.endswith(".safetensors"):
      assert method == "GET"
      assert span.startswith(("bytes=0-", "bytes=8-"))
  cache = pathlib.Path(client.HF_HUB_CACHE)
  assert not list(cache.rglob("*.safetensors"))
  # After a download the cache serves.
  load("org/tiny")
  with hub_headers.outline("org/tiny") as place:
    assert place == load("org/tiny").path


def test_inspect_wants_one_source(capsys):
  assert inspect.main([]) == 1
  assert "give one source" in capsys.readouterr().err


def test_files_of_a_data_set(served, client, tmp_path):
  lines = [{"inputs": "a", "targets": "b"}, {"inputs": "c", "targets": "d"}]
  text = "".join(json.dumps(x) + "\n" for x in lines).encode()
  parquet = pytest.importorskip("pyarrow.parquet")
  pyarrow = pytest.importorskip("pyarrow")
  table = tmp_path / "table.parquet"
  parquet.write_table(pyarrow.Table.from_pylist(lines), table)
  served.add(
    "org/set",
    {"data/test.jsonl": text, "t.parquet": table.read_bytes()},
    kind="datasets",
  )
  for file in ("data/test.jsonl", "t.parquet"):
    name = f"hf://datasets/org/set/{file}"
    read = text_files.read(name)
    assert [x.inputs for x in read] == ["a", "c"]
    assert [x.references for x in read] == [("b",), ("d",)]
    assert text_files.stamp(name)
    # A path has one slash less.
    assert text_files.read(pathlib.Path(name)) == read
    assert text_files.stamp(pathlib.Path(name))
    assert text_files.read_texts(name.replace("set/", "set@main/"))
  with pytest.raises(
    CheckpointNotFoundError, match=r"does not have the file x\.json"
  ):
    text_files.read("hf://datasets/org/set/x.jsonl")
  with pytest.raises(CheckpointNotFoundError, match="no data set org/no"):
    text_files.read("hf://datasets/org/no/x.jsonl")
  with pytest.raises(CheckpointError, match="want hf://datasets/ORG/NAME/FILE"):
    text_files.read("hf://org/set/x.jsonl")
