"""T5X's own tools run our methods; needs T5X, see docs/t5x.md."""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from speccascade import checkpoints
from speccascade.checkpoints import architecture, convert, orbax_io
from speccascade.generate.points.point import Point
from speccascade.models.t5_lm import T5LM

pytestmark = pytest.mark.needs_tf
pytest.importorskip("t5x", reason="T5X is not installed")
t5x_models = importlib.import_module(
  "speccascade.tools.integrations.t5x_models"
)

ROOT = pathlib.Path(__file__).parents[3]
LENGTH, ROWS = 24, 4  # of outputs, of a batch
INPUTS = ("task", "random")  # of the golden files

TASK = """
import json, os
import seqio, tensorflow as tf
from speccascade.tools.integrations import t5x_models

ROWS = json.loads(os.environ["GOLDEN_ROWS"])

def data(split, shuffle_files=False, seed=None):
  targets = [[5, 7, 1]] * len(ROWS)
  columns = {"inputs": ROWS, "targets": targets}
  return tf.data.Dataset.from_tensor_slices(columns)

@seqio.map_over_dataset
def cut(row):
  inputs = tf.boolean_mask(row["inputs"], row["inputs"] > 0)
  return {"inputs": inputs, "targets": row["targets"]}

feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=False)
seqio.TaskRegistry.add(
  "golden",
  seqio.FunctionDataSource(data, splits=("test", "train", "validation")),
  preprocessors=[cut],
  output_features={"inputs": feature, "targets": feature},
  metric_fns=[t5x_models.decoding_metrics],
)
"""
# Of the golden model.
SIZES = """  vocab_size = 512
  emb_dim = 32
  num_heads = 4
  head_dim = 8
  mlp_dim = 64
  num_encoder_layers = 2
  num_decoder_layers = 2
"""
# The verifier's architecture is T5X's own, the drafter's ours.
PAIR = """
from __gin__ import dynamic_registration
import golden_task
import seqio
from speccascade.models.t5 import config
from t5x import utils
from t5x.examples.t5 import network

tiny/config.T5Config:
SIZES
network.T5Config:
SIZES
  mlp_activations = ("gelu", "linear")
DRAFTER = @tiny/config.T5Config()
VERIFIER = @network.T5Config()
VOCABULARY = @seqio.ByteVocabulary()
MIXTURE_OR_TASK_NAME = "golden"
TASK_FEATURE_LENGTHS = {"inputs": 14, "targets": 24}
utils.DatasetConfig.batch_size = 4
DTYPE = "float32"
METHOD = "spec_cascade_opt"
ALPHA = 0.3
""".replace("SIZES\n", SIZES)
TRAIN = """
from __gin__ import dynamic_registration
import golden_task
import seqio
from t5x import adafactor
from t5x import models
from t5x import utils
from t5x.examples.t5 import network
include "t5x/configs/runs/finetune.gin"

MODEL = @models.EncoderDecoderModel()
models.EncoderDecoderModel:
  module = @network.Transformer()
  input_vocabulary = @seqio.ByteVocabulary()
  output_vocabulary = @seqio.ByteVocabulary()
  optimizer_def = @adafactor.Adafactor()
adafactor.Adafactor.min_dim_size_to_factor = 16
network.Transformer.config = @network.T5Config()
network.T5Config:
SIZES
  mlp_activations = ("gelu", "linear")
MIXTURE_OR_TASK_NAME = "golden"
TASK_FEATURE_LENGTHS = {"inputs": 14, "targets": 24}
USE_CACHED_TASKS = False
BATCH_SIZE = 2
DROPOUT_RATE = 0.0
RANDOM_SEED = 0
EVAL_PERIOD = 2
train/utils.DatasetConfig.pack = False
""".replace("SIZES\n", SIZES)


@pytest.fixture(scope="module")
def rows(golden_arrays):
  """Six sources of the golden model, [6, 14]."""
  parts = [golden_arrays[f"greedy/{x}/encoder_input_tokens"] for x in INPUTS]
  return np.concatenate(
    [np.pad(x, ((0, 0), (0, 14 - x.shape[1]))) for x in parts]
  )


@pytest.fixture(scope="module")
def folder(golden, golden_config, golden_params, tmp_path_factory):
  """The golden checkpoint, and a drafter like it, as this package writes."""
  folder = tmp_path_factory.mktemp("t5x")
  rng = np.random.default_rng(0)
  noisy = jax.tree.map(
    lambda x: (x + 0.06 * x.std() * rng.normal(size=x.shape)).astype("f"),
    golden_params,
  )
  for name, params in (("drafter", noisy), ("ours", golden_params)):
    state = {"mu": params}  # of optax, beside what T5X restores
    orbax_io.save(
      *(folder / name / "checkpoint_7", params, golden_config),
      step=7,
      opt_state=state,
    )
  (folder / "verifier").symlink_to(golden / "t5x_orbax")
  (folder / "golden_task.py").write_text(TASK)
  (folder / "pair.gin").write_text(PAIR)
  (folder / "train.gin").write_text(TRAIN)
  return folder


@pytest.fixture(scope="module")
def t5x(rows, folder):
  """Returns a function that runs a main of T5X, and gives what it said."""

  def run(main, *files, devices=1, **macros):
    flags = [f"--gin_file={file}" for file in files]
    flags += [f"--gin.{name}={value!r}" for name, value in macros.items()]
    paths = [str(ROOT), str(folder), *filter(None, sys.path)]
    forced = f"--xla_force_host_platform_device_count={devices}"
    settings = {
      "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {forced}",
      "GOLDEN_ROWS": json.dumps(rows.tolist()),
      "PYTHONPATH": os.pathsep.join(paths),
    }
    done = subprocess.run(
      [sys.executable, "-m", f"t5x.{main}", *flags],
      env=os.environ | settings,
      cwd=ROOT,
      capture_output=True,
      text=True,
    )
    return done.returncode, done.stderr

  return run


def paths(folder, verifier="verifier/checkpoint_3000"):
  # Orbax takes absolute ones alone; what is given here may be relative.
  return {
    "CHECKPOINT_PATH": os.path.relpath(folder / verifier, ROOT),
    "DRAFTER_CHECKPOINT_PATH": os.path.relpath(
      folder / "drafter/checkpoint_7", ROOT
    ),
  }


def ours(folder, rows, point, keys):
  """Returns what this package decodes of a batch."""
  lms = {}
  for name in ("drafter", "verifier"):
    read = checkpoints.load(folder / name)
    lms[name] = T5LM.create(read.require_config(), read.params)
  decoder = point.decoder(max_decode_len=LENGTH, eos_id=1, trace=True)
  return decoder(
    *(lms["drafter"], lms["verifier"], rows, keys, point.alpha, point.sampling)
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("temperature", "devices", "verifier"),
  [(0.0, 1, "ours/checkpoint_7"), (1.0, 4, "verifier/checkpoint_3000")],
)
def test_infer_writes_what_we_decode(
  t5x, folder, rows, tmp_path, temperature, devices, verifier
):
  files = [f"configs/t5x/{name}.gin" for name in ("infer", "quickstart")]
  out = {"INFER_OUTPUT_DIR": str(tmp_path), "TEMPERATURE": temperature}
  how = paths(folder, verifier) | out | {"TRACE": True, "devices": devices}
  code, said = t5x("infer", *files, folder / "pair.gin", **how)
  assert code == 0, said[-3000:]
  [path] = tmp_path.glob("golden-predict_with_aux.jsonl-00000-of-00001")
  aux = [json.loads(line)["aux"] for line in path.read_text().splitlines()]
  assert len(aux) == len(rows)
  # T5X's keys: of the first chunk of 100 batches, then of each batch.
  rng = jax.random.fold_in(jax.random.PRNGKey(0), 0)
  point = Point("spec_cascade_opt", alpha=0.3, temperature=temperature)
  for start in range(0, len(rows), ROWS):
    step_rng, rng = jax.random.split(rng)
    keys = t5x_models._row_keys(step_rng, 0, ROWS)
    batch = rows[start : start + ROWS]
    want = ours(folder, batch, point, keys[: len(batch)])
    for row, got in enumerate(aux[start : start + ROWS]):
      length = int(want.lengths[row])
      assert got["tokens"] == want.tokens[row].tolist()
      assert got["counts/num_tokens"] == length
      for name in ("num_blocks", "accepted", "accepted_at", "verifier_calls"):
        value = np.asarray(getattr(want.stats, name))[row]
        assert got[f"counts/{name}"] == value.tolist()
      source = want.trace.source[row, :length]
      assert got["trace/source"][:length] == source.tolist()
  assert sum(x["counts/accepted"] for x in aux) > 0


@pytest.mark.slow
def test_eval_says_what_decoding_cost(t5x, folder, tmp_path, golden_arrays):
  files = ("configs/t5x/eval.gin", folder / "pair.gin")
  out = {"EVAL_OUTPUT_DIR": str(tmp_path), "TEMPERATURE": 0.0}
  out |= paths(folder) | {"METHOD": "spec_decode"}
  code, said = t5x("eval", *files, **out)
  assert code == 0, said[-3000:]
  metrics = tmp_path / "inference_eval" / "golden-metrics.jsonl"
  metrics = json.loads(metrics.read_text())
  assert metrics["step"] == 3000
  assert (
    metrics["verifier_extends_per_token"]
    < 1
    < metrics["mean_acceptance_length"]
  )
  # The method is lossless: as many tokens as T5X's own greedy decoding.
  greedy = [golden_arrays[f"greedy/{name}/tokens"] for name in INPUTS]
  lengths = [np.count_nonzero(row) for part in greedy for row in part]
  assert metrics["tokens_per_example"] == pytest.approx(np.mean(lengths))


NEW_SLOTS = {
  "utils.RestoreCheckpointConfig.fallback_to_scratch": True,
  "utils.RestoreCheckpointConfig.assignment_map": (),
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("format", "parameters_only", "settings"),
  [
    ("speccascade", False, {}),
    ("speccascade", True, NEW_SLOTS),
    ("t5x", False, {"train.use_orbax": False}),
  ],
)
def test_t5x_trains_on_from_ours(
  t5x, folder, golden, tmp_path, format, parameters_only, settings
):
  start, run = tmp_path / "ours", tmp_path / "run"
  how = {"format": format, "parameters_only": parameters_only}
  step = convert.convert(golden / "t5x_native", start, **how)
  macros = {"MODEL_DIR": str(run), "TRAIN_STEPS": 3002, **settings}
  macros["INITIAL_CHECKPOINT_PATH"] = step
  code, said = t5x("train", folder / "train.gin", **macros)
  assert code == 0, said[-3000:]
  before = checkpoints.load(golden / "t5x_native", optimizer=True)
  after = checkpoints.load(run, optimizer=True)
  assert after.step == 3002
  flat = architecture.flatten
  trained, slots = flat(after.params), flat(after.optimizer)
  # Two steps, each of up to a thousandth of an array's size.
  for name, array in flat(before.params).items():
    size = np.sqrt(np.mean(array**2))
    moved = np.sqrt(np.mean((trained[name] - array) ** 2))
    assert 0 < moved < 5e-3 * max(size, 1e-3), name
  for name, slot in flat(before.optimizer).items():
    assert slots[name].shape == slot.shape


def model(drafters=1, ids=512, **settings):
  """Returns a `PairModel` of toy architectures."""
  import seqio

  tiny = t5x_models.T5Config(vocab_size=512)
  vocabulary = seqio.PassThroughVocabulary(ids, eos_id=1)
  drafter = [tiny] * drafters if drafters else None
  more = {"drafter_layout": settings.pop("drafter_layout", "whole")}
  point = Point(**{"method": "spec_cascade_opt", **settings})
  return t5x_models.PairModel(tiny, drafter, vocabulary, point, **more)


@pytest.mark.parametrize(
  ("settings", "said"),
  [
    ({"method": "spec_cascade_opt_three"}, "takes 2 drafters"),
    ({"drafters": 0}, "needs a drafter; none was given"),
    ({"drafters": 2}, "takes one drafter; 2 were given"),
    ({"gamma": "auto"}, "T5X wants a number"),
    ({"method": "spec_decode_lossy", "alpha": 2.0}, "alpha is 2"),
    ({"ids": 600}, "600 ids, the verifier 512"),
    ({"drafter_layout": "half"}, "wanted one of whole, cut"),
  ],
)
def test_what_cannot_be_decoded_is_refused_at_start(settings, said):
  with pytest.raises(ValueError, match=said):
    model(**settings)


def test_methods_of_one_or_two_models():
  assert model(method="verifier", drafters=0).module.drafters == ()
  model(method="spec_cascade_opt_three", drafters=2)


def test_zarr3_is_said_before_it_is_read(golden_params, tmp_path):
  import orbax.checkpoint as ocp

  path = tmp_path / "checkpoint_3"
  handler = ocp.PyTreeCheckpointHandler(use_zarr3=True)
  with ocp.Checkpointer(handler) as saver:
    tree = {"target": golden_params, "state": {"step": np.int32(3)}}
    saver.save(path / "state", tree)
  with pytest.raises(ValueError, match=r"zarr3.*convert --format=speccascade"):
    t5x_models._check("DRAFTER_CHECKPOINT_PATH", str(path), golden_params)


def test_another_architecture_is_said_before_it_is_read(golden):
  from speccascade.models.parameters import tree

  name = "decoder/decoder_norm/scale"
  wanted = tree({name: jax.ShapeDtypeStruct((33,), np.float32)})
  step = golden / "t5x_native" / "checkpoint_3000"
  message = r"unexpected .* has shape \[32\], \[33\]"
  with pytest.raises(ValueError, match=message):
    t5x_models._check("CHECKPOINT_PATH", str(step), wanted)
  with pytest.raises(ValueError, match="name its step"):
    t5x_models._check("CHECKPOINT_PATH", str(step.parent), wanted)
  with pytest.raises(FileNotFoundError, match="checkpoint_9"):
    t5x_models._check("CHECKPOINT_PATH", str(step.parent / "checkpoint_9"), {})
