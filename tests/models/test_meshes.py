"""Several devices compute what one does; eight are forced, in a process."""

import itertools
import json
import re

import jax
import numpy as np
import pytest

from speccascade.models import LlamaConfig, T5Config, T5GemmaConfig
from speccascade.models.sharding import meshes
from speccascade.tools.planning import slices
from tests import eight_devices, jobs, toy

ONE = {"data": 1, "model": 1}
MESHES = [{"data": x, "model": 8 // x} for x in (2, 1, 8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Where the models are that `run` reads."""
  folder = tmp_path_factory.mktemp("models")
  for kind, width in itertools.product(("t5", "t5gemma", "llama"), (8, 16)):
    for layout in ("speccascade", "hugging_face", "t5x_native"):
      eight_devices.checkpoint(folder, kind, width, layout)
  for kind, width in itertools.product(("gemma", "t5gemma2"), (8, 16)):
    eight_devices.checkpoint(folder, kind, width, "speccascade")
  return folder


@pytest.fixture(scope="module")
def run(folder):
  """Runs some cases in a process of eight devices; returns what each gave."""

  def call(*cases, folder=folder):
    words = str(folder), *map(json.dumps, cases)
    job = jobs.started(1, "tests.eight_devices", *words, devices=8)
    [[code, out, err]] = jobs.ended(job, timeout_s=900)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]

  return call


def test_a_mesh_decodes_what_one_device_does(run):
  case = {"call": "decode", "feeds": False}
  api = {"call": "generate"}  # by `load_pair`
  single, cut, *texts = run(
    *(job | {"mesh": x} for job in (case, api) for x in (ONE, MESHES[0]))
  )
  assert cut["tokens"] == single["tokens"]
  assert texts[1] == texts[0]
  assert (single["kernel"], cut["kernel"]) == (1, 1 / 4)
  # A round sends what each sublayer and the embedding adds up, all logits, and
  # how many rows continue; the drafter, whole, sends nothing.
  assert cut["sent"]["round"] == {
    "all-reduce f32[4,4,16] 4": 4,
    "all-gather f32[4,4,16] 4": 1,
    "all-reduce s32[] 2": 1,
  }
  assert not any(single["sent"].values())
  paper = slices.pass_of(
    eight_devices.config("t5", 16),
    meshes.Mesh(MESHES[0]).abstract(),
    *((eight_devices.ROWS, eight_devices.SOURCE_LEN), 16, 4),
  )
  assert [(x.kind, x.num_bytes, n) for x, n in paper.sent.items()] == [
    ("all-reduce", 4 * 4 * 16 * 4, 4),
    ("all-gather", 4 * 4 * 16 * 4, 1),
  ]


@pytest.mark.parametrize(
  "kind", toy.nightly(["t5", "t5gemma", "llama", "gemma"], quick=["llama"])
)
def test_a_mesh_drafts_kept_tokens(run, kind):
  """Each device has a part of a cut head, or, of an odd number, all of it."""
  case = {"call": "decode", "kind": kind, "feeds": False, "drafter": "cut"}
  ways = [[2, 5, 6, 9, 11, 12, 14], [2, 6, 9, 14]]  # and EOS
  cases = [
    case | {"kept": kept, "mesh": mesh}
    for kept in ways
    for mesh in (ONE, MESHES[0])
  ]
  single, cut, other, uneven = run(*cases)
  assert cut["tokens"] == single["tokens"]
  assert uneven["tokens"] == other["tokens"]
  heads = [each["head"] for each in (single, cut, uneven)]
  assert heads == [1, 1 / 4, 1]


@pytest.mark.slow
def test_a_mesh_streams_what_one_device_does(run):
  cases = ({"call": "generate", "mesh": x} for x in (None, MESHES[0]))
  single, cut = run(*(case | {"streams": True} for case in cases))
  assert cut == single


@pytest.mark.slow
@pytest.mark.parametrize(
  "case",
  [
    {"temperature": 0.0, "layout": "hugging_face", "drafter": "cut"},
    {"method": "token_cascade_chow", "layout": "t5x_native"},
    {"kind": "t5gemma", "layout": "hugging_face"},
    {"kind": "t5gemma", "shape": {"tree": [2, 2, 1]}},
    {"kind": "t5gemma2", "shape": {"tree": [2, 2, 1]}},
    {"kind": "llama", "layout": "hugging_face"},
    {"kind": "llama", "method": "verifier", "temperature": 0.0},
    {"kind": "llama", "shape": {"tree": [2, 2, 1]}},
    {"kind": "gemma"},
    {"kind": "gemma", "shape": {"tree": [2, 2, 1]}},
  ],
)
def test_all_meshes_decode_alike(run, case):
  case = {"call": "decode", **case}
  single, *cuts = run(*(case | {"mesh": mesh} for mesh in [ONE, *MESHES]))
  for cut, mesh in zip(cuts, MESHES):
    np.testing.assert_allclose(cut["logits"], single["logits"], atol=1e-4)
    assert cut["tokens"] == single["tokens"]
    assert cut["kernel"] == 1 / mesh["model"]
    assert cut["cache"] == 1 / 8


@pytest.mark.slow
def test_a_mesh_sweeps_and_searches_alike(run):
  case = {"call": "measure"}
  single, cut = run(case | {"mesh": ONE}, case | {"mesh": MESHES[0]})
  assert len(single) == 4
  alike = jax.tree.map(
    lambda x, y: x == pytest.approx(y, abs=1e-4), single, cut
  )
  assert all(jax.tree.leaves(alike)), (single, cut)


@pytest.mark.slow
@pytest.mark.parametrize(
  "case",
  [
    {},
    {"optimizer": "adamw", "dims": 2},
    {"kind": "gemma"},
    {"kind": "t5gemma"},
    {"kind": "t5gemma2"},
    {"kind": "llama"},
  ],
)
def test_all_meshes_train_alike(run, case):
  case = {"call": "train", **case}
  single, *cuts = run(*(case | {"mesh": mesh} for mesh in [ONE, *MESHES]))
  for cut in cuts:
    np.testing.assert_allclose(cut["losses"], single["losses"], atol=1e-5)
    np.testing.assert_allclose(cut["loss"], single["loss"], atol=1e-5)
    assert cut.get("outputs") == single.get("outputs")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adafactor", "adamw"])
def test_a_run_continues_on_other_meshes(run, tmp_path, optimizer):
  case = {"call": "resume", "optimizer": optimizer}
  case["mesh"] = {"data": 2, "model": 2}
  case["then"] = [{"data": 2, "model": 1}, {"model": 8}, {"data": 4}]
  [run] = run(case, folder=tmp_path)
  for then in run["then"]:
    assert then["same"]
    assert len(then["losses"]) == 20
    np.testing.assert_allclose(then["losses"], run["unbroken"], atol=1e-5)
  message = (
    r"cannot read array \S+ of .*/opt_state: .*/opt_state/d/.*copy it again"
  )
  assert re.fullmatch(message, run["missing"])


@pytest.mark.slow
def test_what_is_resumed_is_never_whole_on_the_host(run, tmp_path):
  case = {"call": "held", "mesh": {"data": 2, "model": 4}}
  run(case, folder=tmp_path)
  [sizes] = run(case, folder=tmp_path)
  assert sizes["size"] > 100e6
  # Whole on the host first, it would be as large again.
  assert sizes["read"] < 0.75 * sizes["size"]


@pytest.mark.parametrize(
  ("shape", "message"),
  [
    ({"data": 4, "model": 4}, "4 x 4"),
    ({"model": 3}, "2 x 3"),
    ({"model": 16}, "1 x 16"),
  ],
)
def test_more_devices_than_there_are(shape, message):
  with pytest.raises(ValueError, match=f"wants {message} devices, there are 8"):
    meshes.Mesh(shape).sizes(8)


def test_t5x_counts_what_is_left_as_data():
  assert meshes.Mesh({"model": 2}).sizes(8) == {"data": 4, "model": 2}


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (T5Config(), "num_heads 6; 3 does"),
    (T5Config(num_heads=8, mlp_dim=6), "mlp_dim 6; 3 does"),
    (T5Config(num_heads=8, vocab_size=30), "vocab_size 30; 3 does"),
    (LlamaConfig(num_heads=4, num_kv_heads=2), "num_kv_heads 2; 2 does"),
    (T5GemmaConfig(encoder_mlp_dim=6), "encoder_mlp_dim 6; 3 does"),
  ],
)
def test_a_mesh_that_does_not_divide_a_model(config, message):
  layout = meshes.Mesh({"data": 2, "model": 4}).abstract()
  with pytest.raises(
    ValueError, match=rf"MESH splits MODEL into 4.* {message}"
  ):
    layout.check(config, "MODEL")
  layout.whole().check(config, "MODEL")


def test_a_mesh_that_does_not_divide_a_batch():
  layout = meshes.Mesh({"data": 2, "model": 4}).abstract()
  layout.check_rows(BATCH_SIZE=4)
  with pytest.raises(ValueError, match=r"BATCH_SIZE is 3.* multiple of 2"):
    layout.check_rows(BATCH_SIZE=3)
