"""Compares the bytes of plans with the bytes of arrays that are there."""

import dataclasses
import pathlib

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade import cli, decode, native, train
from speccascade.checkpoints import orbax_io, t5x_native
from speccascade.checkpoints.convert import config_from_gin
from speccascade.decoding import HeadsDrafter
from speccascade.generate.pair.cascades import Cascade, SideBySide
from speccascade.generate.pair.pair_checks import PairError
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.models import (
  T5LM,
  HeadsConfig,
  HeadsModel,
  LlamaConfig,
  LlamaLM,
  StateReaderConfig,
  T5Config,
  T5GemmaConfig,
  T5GemmaLM,
  architectures,
  draft_heads,
  parameters,
)
from speccascade.models.heads_model import TrainedHeads
from speccascade.models.sharding import meshes
from speccascade.models.taught_exit import ExitConfig
from speccascade.settings import fields
from speccascade.tasks.inputs import Inputs
from speccascade.tools.planning import decoding_plan, footprint, training_plan
from speccascade.training import (
  optimizers,
  states,
  training_step,
  verifier_tuning,
)
from speccascade.training.trainer import TrainingRun
from speccascade.training.training_data import TrainingData
from tests import mains
from tests.generate import tiny

LAYERS = {"num_encoder_layers": 2, "num_decoder_layers": 3}
T5 = tiny.config(vocab_size=64, num_heads=4, mlp_dim=16, **LAYERS)
LLAMA = LlamaConfig(
  vocab_size=64,
  emb_dim=8,
  num_heads=4,
  num_kv_heads=4,
  num_decoder_layers=3,
  head_dim=4,
  mlp_dim=16,
)
GEMMA = dataclasses.replace(
  LLAMA,
  norm_offset=1,
  post_norms=True,
  scaled_embedding=True,
  query_key_norm=True,
  logit_cap=30.0,
  local_rope_theta=1e4,
  window=4,
  windowed_layers=(0, 1),
)
T5GEMMA = T5GemmaConfig(
  vocab_size=64,
  emb_dim=8,
  num_heads=4,
  num_kv_heads=2,
  head_dim=4,
  mlp_dim=16,
  encoder_emb_dim=12,
  encoder_num_heads=6,
  **LAYERS,
)
T5GEMMA2 = dataclasses.replace(
  T5GEMMA,
  encoder_emb_dim=None,
  encoder_num_heads=None,
  query_key_norm=True,
  merged_attention=True,
  shared_embedding=True,
  end_of_image_id=5,
)
ONE = meshes.ONE.abstract()
KEY = jax.random.key(0)
LENGTHS = {"inputs": 32, "targets": 16}


def num_bytes(tree):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
  ("kind", "config"),
  [
    (T5LM, T5),
    (T5GemmaLM, T5GEMMA),
    (T5GemmaLM, T5GEMMA2),
    (LlamaLM, LLAMA),
    (LlamaLM, GEMMA),
  ],
)
def test_one_device_holds_all(kind, config):
  lm = jax.eval_shape(lambda rng: kind.init(config, rng), jax.random.key(0))
  weights = footprint.weights(config, ONE, "float32")
  assert weights == num_bytes(lm) == 4 * parameters.num_parameters(config)
  tokens = jnp.ones((8, 6), jnp.int32)
  state = jax.eval_shape(lambda lm: lm.prefill(tokens, capacity=9), lm)
  assert footprint.caches(kind, config, ONE, (8, 6), 9) == num_bytes(state)


def test_a_mesh_cuts_what_its_rules_say():
  layout = meshes.Mesh({"data": 2, "model": 4}).abstract()
  cut = 4 * (
    2 * 64 * 8  # the table and the head
    + 8 * (4 * 8 * 16)  # two layers' attention, and three layers' two
    + 5 * (3 * 8 * 16)  # their MLPs
    + 2 * 4 * 32  # position biases
  )
  norms = 4 * 8 * (2 * 2 + 3 * 3 + 2)
  assert footprint.weights(T5, layout, "float32") == cut / 4 + norms
  half = footprint.weights(T5, layout, "bfloat16")
  whole = 4 * 2 * 4 * 32 + 4 * 64 * 8  # biases and the head stay as they are
  assert half == (cut - whole) / 8 + norms + whole / 4
  state = footprint.training(T5, layout, optimizers.adamw().transform.init)
  assert state["optimizer"] == pytest.approx(2 * state["weights"], abs=16)


def decoding(config, shape, **settings):
  pair = PairSpec(
    verifier=config, mesh=meshes.Mesh(shape, **settings), dtype="bfloat16"
  )
  inputs = Inputs(
    input_file="-",
    vocabulary=tiny.Vocabulary(),
    task_feature_lengths={"inputs": 128},
  )
  return decoding_plan.plan(pair, inputs, Point("verifier"), Run(batch_size=32))


def test_the_smallest_mesh_that_holds_xxl():
  file = pathlib.Path(__file__).parents[3] / "configs/models/t5_1_1_xxl.gin"
  xxl = config_from_gin(str(file))
  plan = decoding(xxl, None, device_memory_gb=16)
  assert parameters.num_parameters(xxl) == 11_135_332_352
  lines = str(plan).splitlines()
  assert lines[0] == "verifier: 11,135,332,352 parameters, bfloat16"
  assert "does not fit" in lines[1]
  assert "smallest mesh that fits: mesh of data 1 x model 2" in lines[2]
  cut = decoding(xxl, {"model": 2}, device_memory_gb=16)
  assert cut.smallest().shape == {"data": 1, "model": 2}
  assert decoding(xxl, None, device_memory_gb=0.01).smallest() is None
  assert "no mesh" in str(decoding(xxl, None, device_memory_gb=0.01))


def test_a_plan_of_training():
  data = TrainingData(
    mixture_or_task_name="any", task_feature_lengths=LENGTHS, batch_size=8
  )
  mesh = meshes.Mesh({"data": 3}, device_memory_gb=1)
  plan = training_plan.plan(T5, data, run=TrainingRun(1, mesh=mesh))
  assert footprint.describe_plan(lambda: plan).startswith(
    "no plan: BATCH_SIZE is 8"
  )
  plan = training_plan.plan(T5, data)
  bytes_of = plan.bytes_on(meshes.ONE)
  assert bytes_of["weights"] == bytes_of["gradients"]
  assert bytes_of["logits"] == 2 * 4 * 8 * 16 * 64


@pytest.mark.parametrize("size", [-1, 0, 0.0, float("nan"), float("inf"), True])
def test_a_plan_wants_some_memory(size):
  make = lambda: decoding(T5, None, device_memory_gb=size)
  with pytest.raises(fields.SettingError, match=r"wanted a number above 0"):
    footprint.describe_plan(make)


@pytest.mark.parametrize(
  ("module", "file"), [(decode, "decode"), (train, "finetune")]
)
def test_a_dry_run_refuses_a_wrong_setting(module, file, capsys):
  flags = [f"--gin_file=configs/runs/{file}.gin", "--gin.DEVICE_MEMORY_GB=-1"]
  if module is decode:
    flags.append("--gin.METHOD='verifier'")
  missing, _ = mains.resolve(flags, capsys)
  flags += [f"--gin.{name}={value!r}" for name, value in missing.items()]
  argv = ["main", *flags, "--dry_run"]
  code = cli.start(module.main, "", argv, preview=module.preview)
  gin.clear_config()
  assert code == 1
  error = capsys.readouterr().err
  assert (
    error == "error: DEVICE_MEMORY_GB is -1; wanted a number above 0 or None\n"
  )


TUNING = "@verifier_tuning.VerifierTuning()"


@pytest.mark.parametrize(
  ("model", "name", "value", "message"),
  [
    ("lookahead_heads", "VERIFIER_TUNING", TUNING, "stays as it is: leave it"),
    ("t5_1_1_small", "VERIFIER_TUNING", TUNING, "MODEL is a language model"),
    ("blockwise_heads", "STUDENT_TEXT", 0.5, "set TEACHER_TEXT"),
    ("lookahead_heads", "EARLIER_DRAFTERS", ["x"], "leave it out for draft"),
  ],
)
def test_a_dry_run_refuses_what_training_refuses(
  model, name, value, message, tmp_path, capsys
):
  files = ("configs/runs/finetune.gin", f"configs/models/{model}.gin")
  argv = ["main", *(f"--gin_file={file}" for file in files)]
  argv += [f"--gin.{name}={value}", "--gin.TEACHER_CHECKPOINT='/nowhere'"]
  argv.append(f"--gin.MODEL_DIR='{tmp_path}/run'")
  missing, _ = mains.resolve(argv[1:], capsys)
  argv += [f"--gin.{each}={given!r}" for each, given in missing.items()]
  lines = []
  for flags in ((), ("--dry_run",)):
    code = cli.start(train.main, "", [*argv, *flags], preview=train.preview)
    gin.clear_config()
    lines.append(mains.refused((code, *capsys.readouterr())))
  assert lines[0] == lines[1]
  assert lines[0].startswith(f"error: {name} is for ")
  assert message in lines[0]


def test_a_plan_of_distillation_counts_the_teacher(tmp_path):
  path = tmp_path / "checkpoint_1"
  zeros = {name: np.zeros(x) for name, x in parameters.param_shapes(T5).items()}
  t5x_native.save(path, parameters.tree(zeros), step=1)
  data = TrainingData(
    mixture_or_task_name="any",
    task_feature_lengths=LENGTHS,
    batch_size=8,
    teacher_checkpoint=str(path),
  )
  plan = training_plan.plan(T5, data)
  bytes_of = plan.bytes_on(meshes.ONE)
  assert bytes_of["teacher"] == bytes_of["weights"]
  assert bytes_of["logits"] == 2 * 2 * 4 * 8 * 16 * 64
  assert "does not fit" not in str(plan)

  def text_of_plan(share=1.001, **settings):
    """Returns the plan for a share of the memory that other settings need."""
    bytes_of = plan.bytes_on(meshes.ONE, states.Objective(**settings))
    device_bytes = share * sum(bytes_of.values()) / footprint.MARGIN
    mesh = meshes.Mesh(device_memory_gb=device_bytes / 1e9)
    return str(training_plan.plan(T5, data, run=TrainingRun(1, mesh=mesh)))

  assert "it fits with MICROBATCHES = 4, REMAT = None" in text_of_plan(
    microbatches=4
  )
  least = {"microbatches": 8, "remat": "minimal"}
  assert "it fits with MICROBATCHES = 8, REMAT = 'minimal'" in text_of_plan(
    **least
  )
  assert "it fits with" not in text_of_plan(0.5, microbatches=8, remat="full")


HEADS = HeadsConfig(kind="blockwise", num_heads=3, mlp_dim=16)
AHEAD = HeadsConfig(kind="lookahead", num_heads=3)


@pytest.fixture
def saved(tmp_path):
  """Returns a function that writes a model of zeros, and returns its path."""

  def save(name, config):
    zeros = {
      path: np.zeros(x, np.float32)
      for path, x in parameters.param_shapes(config).items()
    }
    path = tmp_path / name
    orbax_io.save(path, parameters.tree(zeros), config, step=1)
    return str(path)

  return save


@pytest.mark.parametrize("verifier", [T5, LLAMA, GEMMA])
def test_a_plan_of_training_heads(verifier, saved):
  settings = {"mixture_or_task_name": "any", "task_feature_lengths": LENGTHS}
  data = TrainingData(**settings, batch_size=8)
  text = footprint.describe_plan(lambda: training_plan.plan(HEADS, data))
  assert text.startswith("no plan: draft heads need a TEACH")
  data = TrainingData(
    **settings, batch_size=8, teacher_checkpoint=saved("large", verifier)
  )
  plan = training_plan.plan(HEADS, data)
  bytes_of = plan.bytes_on(meshes.ONE)
  assert bytes_of["weights"] == 4 * 3 * 2 * 8 * 16
  assert bytes_of["teacher"] == 4 * parameters.num_parameters(verifier)
  positions = 8 * (16 if verifier is T5 else 48)
  assert bytes_of["logits"] == 3 * 2 * 4 * positions * 64
  assert bytes_of["activations"] == 4 * positions * (8 + 3 * (16 * 2 + 8))
  # The verifier's logits count where a loss reads them.
  taught = plan.bytes_on(meshes.ONE, states.Objective(loss="forward_kl"))
  assert taught["logits"] == 4 / 3 * bytes_of["logits"]
  # A verifier that learns has a state, activations and logits of its own.
  tuning = verifier_tuning.VerifierTuning()
  tuned = plan.bytes_on(meshes.ONE, states.Objective(tuning=tuning))
  for name in ("weights", "gradients"):
    assert tuned[name] == bytes_of[name] + bytes_of["teacher"]
  stored = footprint.activations(verifier, ONE, 8, LENGTHS)
  assert tuned["activations"] == bytes_of["activations"] + stored
  assert tuned["logits"] == 4 / 3 * bytes_of["logits"]
  run = TrainingRun(1, mesh=meshes.Mesh({"data": 2}))
  text = footprint.describe_plan(
    lambda: training_plan.plan(HEADS, data, run=run)
  )
  assert text == (
    "no plan: draft heads lie on one device, and a mesh is set: leave MESH out"
  )


@pytest.mark.parametrize("verifier", [T5, LLAMA, GEMMA])
def test_a_plan_of_training_lookahead_embeddings(verifier, saved):
  data = TrainingData(
    mixture_or_task_name="any",
    task_feature_lengths=LENGTHS,
    batch_size=8,
    teacher_checkpoint=saved("large", verifier),
  )
  plan = training_plan.plan(AHEAD, data)
  bytes_of = plan.bytes_on(meshes.ONE)
  assert bytes_of["weights"] == 4 * 3 * 8
  # Each row is cut at one place, and the gradient goes through the verifier.
  assert bytes_of["logits"] == 3 * 2 * 4 * 8 * 64
  stored = footprint.activations(verifier, ONE, 8, LENGTHS)
  assert bytes_of["activations"] == stored
  taught = plan.bytes_on(meshes.ONE, states.Objective(loss="forward_kl"))
  assert taught["logits"] == 2 * bytes_of["logits"]


@pytest.mark.parametrize("verifier", [T5, LLAMA, GEMMA])
def test_plans_of_state_readers(verifier, saved):
  large = saved("large", verifier)
  data = TrainingData(
    mixture_or_task_name="any",
    task_feature_lengths=LENGTHS,
    batch_size=8,
    teacher_checkpoint=large,
  )
  config = StateReaderConfig(num_steps=2)
  bytes_of = training_plan.plan(config, data).bytes_on(meshes.ONE)
  shaped = config.shaped_like(verifier)
  # One layer, its norm and the product; no table, and no head.
  whole = parameters.num_parameters(shaped.layer)
  assert 0 < bytes_of["weights"] < 4 * whole
  positions = 8 * (16 if verifier is T5 else 48)
  assert bytes_of["logits"] == 2 * 2 * 4 * positions * 64
  stored = footprint.activations(shaped.layer, ONE, 8, LENGTHS)
  assert bytes_of["activations"] == 2 * stored
  stored_at = saved("reader", shaped)
  settings = (
    Inputs(
      input_file="-",
      vocabulary=tiny.Vocabulary(),
      task_feature_lengths={"inputs": 128},
    ),
    Point("spec_decode", gamma=2),
    Run(batch_size=32),
  )
  plan = decoding_plan.plan(
    PairSpec(drafter_checkpoint=stored_at, verifier_checkpoint=large),
    *settings,
  )
  found = plan.bytes_on(meshes.ONE)
  kind = architectures.row_of(verifier).model
  sizes = ONE, (32, 128), Run().max_decode_len + 5
  caches = [
    footprint.caches(kind, each, *sizes) for each in (verifier, shaped.layer)
  ]
  held = 32 * 4 * 12 * verifier.emb_dim
  assert found["caches"] == sum(caches) + held
  assert found["drafter"] == bytes_of["weights"]
  # Its kernels may have eight bits, which the plan says.
  spec = PairSpec(
    drafter_checkpoint=stored_at,
    verifier_checkpoint=large,
    drafter_kernel_dtype="int8",
  )
  plan = decoding_plan.plan(spec, *settings)
  assert plan.bytes_on(meshes.ONE)["drafter"] < 0.5 * found["drafter"]
  first, second, *_ = str(plan).splitlines()
  assert first.endswith("parameters, float32, int8 kernels")
  assert second.endswith("parameters, float32")


def test_a_plan_of_decoding_with_lookahead_embeddings(saved):
  ahead = dataclasses.replace(AHEAD, vocab_size=64, emb_dim=8)
  plan = decoding_plan.plan(
    PairSpec(
      drafter_checkpoint=saved("ahead", ahead),
      verifier_checkpoint=saved("large", T5),
    ),
    Inputs(
      input_file="-",
      vocabulary=tiny.Vocabulary(),
      task_feature_lengths={"inputs": 128},
    ),
    Point("spec_decode", gamma=2),
    Run(batch_size=32),
  )
  bytes_of = plan.bytes_on(meshes.ONE)
  alone = footprint.caches(T5LM, T5, ONE, (32, 128), Run().max_decode_len + 5)
  assert bytes_of["caches"] == 2 * alone
  assert bytes_of["drafter"] == 4 * 3 * 8


def test_a_plan_of_decoding_with_heads(saved):
  heads = dataclasses.replace(HEADS, vocab_size=64, emb_dim=8)
  paths = {
    "drafter_checkpoint": saved("heads", heads),
    "verifier_checkpoint": saved("large", T5),
  }

  def plan(shape=None, **changes):
    mesh = meshes.Mesh(shape)
    return decoding_plan.plan(
      PairSpec(mesh=mesh, kernel_dtype="bfloat16", **paths | changes),
      Inputs(
        input_file="-",
        vocabulary=tiny.Vocabulary(),
        task_feature_lengths={"inputs": 128},
      ),
      Point("spec_decode", gamma=2),
      Run(batch_size=32),
    )

  bytes_of = plan().bytes_on(meshes.ONE)
  assert bytes_of["drafter"] == 4 * 3 * 2 * 8 * 16  # whatever kernels are
  alone = footprint.caches(T5LM, T5, ONE, (32, 128), Run().max_decode_len + 5)
  lm = HeadsModel.create(heads, parameters.network(heads).initial(KEY))
  state = HeadsDrafter(lm, None, 2).prefill(jnp.ones((32, 9)), capacity=9)
  assert bytes_of["caches"] == alone + num_bytes(state)
  assert bytes_of["distributions"] == 2 * 2 * 4 * 32 * 3 * 64
  with pytest.raises(ValueError, match="lie on one device"):
    str(plan({"model": 2}))
  with pytest.raises(ValueError, match="must be a language model"):
    plan(verifier_checkpoint=saved("other", heads))


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_plan_of_decoding_with_a_draft_vocabulary(saved, is_tied, tmp_path):
  config = dataclasses.replace(T5, logits_via_embedding=is_tied)
  ids = tmp_path / "ids.json"
  ids.write_text("[1, 3, 5]")
  paths = {
    "drafter_checkpoint": saved("small", config),
    "verifier_checkpoint": saved("large", T5),
  }
  lm = T5LM.init(config, KEY).cut_to([1, 3, 5])
  for setting in (ids, (1, 3, 5), 3):
    plan = decoding_plan.plan(
      PairSpec(draft_vocabulary=setting, **paths),
      Inputs(
        input_file="-",
        vocabulary=tiny.Vocabulary(),
        task_feature_lengths={"inputs": 128},
      ),
      Point("spec_decode", gamma=2),
      Run(batch_size=32),
    )
    assert plan.bytes_on(meshes.ONE)["drafter"] == num_bytes(lm)
  # On a mesh that divides the kept tokens each device has a part of them.
  layout = meshes.Mesh({"model": 2}).abstract()
  more = lambda num: footprint.cut_head(config, "float32", num, layout)
  width = 4 * T5.emb_dim
  gone = 0 if is_tied else T5.vocab_size // 2
  assert more(4) == width * (2 - gone) + 16
  assert more(3) == width * (3 - gone) + 12


@pytest.mark.parametrize("kind", ["medusa", "blockwise", "lookahead"])
def test_a_plan_of_draft_heads_with_a_draft_vocabulary(kind):
  lm = T5LM.init(T5, KEY)
  heads = HeadsConfig(kind=kind, num_heads=2).of_verifier(T5, lm.params)
  params = draft_heads.initial_params(heads, lm.module, lm.params)
  whole = TrainedHeads.create(heads, params)
  cut = whole.cut_to([1, 3, 5], lm)
  more = footprint.cut_head(heads, "float32", 3, meshes.ONE.abstract(), T5)
  assert num_bytes(cut) - num_bytes(whole) == more


def test_a_plan_of_decoding_with_an_early_exit(saved, tmp_path):
  """Arrays are counted once, and caches twice."""
  ids = tmp_path / "ids.json"
  ids.write_text("[1, 3, 5]")
  large = dataclasses.replace(T5, num_decoder_layers=3)
  lm = T5LM.init(large, KEY)
  held = {id(leaf) for leaf in jax.tree.leaves(lm)}
  path = saved("large", large)
  cut = lm.first_layers(1).cut_to([1, 3, 5])
  own = [leaf for leaf in jax.tree.leaves(cut) if id(leaf) not in held]

  def bytes_of(method="spec_decode", setting="early-exit:1", **changes):
    pair = PairSpec(
      drafter_checkpoint=setting,
      verifier_checkpoint=path,
      **changes,
    )
    inputs = Inputs(
      input_file="-",
      vocabulary=tiny.Vocabulary(),
      task_feature_lengths={"inputs": 128},
    )
    point = Point(method, gamma=2)
    return decoding_plan.plan(pair, inputs, point, Run(batch_size=32)).bytes_on(
      meshes.ONE
    )

  shared = bytes_of()
  assert shared["drafter"] == 0
  assert shared["verifier"] == num_bytes(lm)
  assert bytes_of(draft_vocabulary=ids)["drafter"] == num_bytes(own)
  assert bytes_of("verifier")["verifier"] == num_bytes(lm)
  other = bytes_of(
    setting=saved("one", dataclasses.replace(T5, num_decoder_layers=1))
  )
  assert shared["caches"] == other["caches"]
  assert bytes_of("drafter")["drafter"] == num_bytes(lm.first_layers(1))
  with pytest.raises(PairError, match=r"after 4 layers; .* from 1 to 3"):
    bytes_of(setting="early-exit:4")
  with pytest.raises(PairError, match="DRAFTER_KERNEL_DTYPE is 'int8'"):
    bytes_of(drafter_kernel_dtype="int8")
  with pytest.raises(PairError, match="DRAFTER is given for early-exit:1"):
    bytes_of(drafter=large)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_plan_of_decoding_with_a_drafter_in_int8(saved, is_tied, monkeypatch):
  """Its own checkpoint, or the verifier's; each output's scale is counted."""
  config = dataclasses.replace(T5, logits_via_embedding=is_tied)
  other = dataclasses.replace(config, num_decoder_layers=1)
  paths = {"small": saved("small", other), "large": saved("large", config)}

  def bytes_of(mesh=None, **changes):
    mesh = meshes.Mesh(mesh)
    plan = decoding_plan.plan(
      PairSpec(verifier_checkpoint=paths["large"], mesh=mesh, **changes),
      Inputs(
        input_file="-",
        vocabulary=tiny.Vocabulary(),
        task_feature_lengths={"inputs": 128},
      ),
      Point("spec_decode", gamma=2),
      Run(batch_size=32),
    )
    return plan.bytes_on(mesh)

  # Panels are padded to whole ones.
  monkeypatch.setattr(native, "is_available", lambda: False)
  for path, own in ((paths["small"], other), ("self-int8", config)):
    settings = {"drafter_checkpoint": path, "drafter_kernel_dtype": "int8"}
    if path == "self-int8":
      del settings["drafter_kernel_dtype"]
    params = T5LM.init(own, KEY).params
    lm = T5LM.create(own, params, kernel_dtype="int8")
    found = bytes_of(**settings)
    assert found["drafter"] == num_bytes(lm)
    assert found["verifier"] == 4 * parameters.num_parameters(config)
    ids = (1, 3, 5)
    found = bytes_of(**settings, draft_vocabulary=ids)
    assert found["drafter"] == num_bytes(lm.cut_to(ids))
    with pytest.raises(ValueError, match="int8 lie on one device"):
      bytes_of({"data": 2}, **settings)


def test_plans_of_an_early_exit_that_is_taught(saved):
  """What it has of its own is counted, and the rest with the verifier."""
  large = dataclasses.replace(T5, num_decoder_layers=3)
  path, config = saved("large", large), ExitConfig(num_layers=1)
  taught = config.shaped_like(large)
  own = parameters.num_parameters(taught)
  one, two = (dataclasses.replace(T5, num_decoder_layers=n) for n in (1, 2))
  layer, other = map(parameters.num_parameters, (one, two))
  assert own == other - layer + T5.emb_dim  # a layer, and the norm
  data = TrainingData(
    mixture_or_task_name="any",
    task_feature_lengths=LENGTHS,
    batch_size=8,
    teacher_checkpoint=path,
  )
  bytes_of = training_plan.plan(config, data).bytes_on(meshes.ONE)
  assert bytes_of["weights"] == 4 * own
  assert bytes_of["activations"] == footprint.activations(one, ONE, 8, LENGTHS)
  inputs = Inputs(
    input_file="-",
    vocabulary=tiny.Vocabulary(),
    task_feature_lengths={"inputs": 128},
  )
  point, caches = Point("spec_decode", gamma=2), []
  for checkpoint in (saved("exit", taught), saved("two", two)):
    pair = PairSpec(
      drafter_checkpoint=checkpoint,
      verifier_checkpoint=path,
      kernel_dtype="bfloat16",
    )
    plan = decoding_plan.plan(pair, inputs, point, Run(batch_size=32))
    caches.append(plan.bytes_on(meshes.ONE)["caches"])
    if checkpoint.endswith("exit"):
      norms = 4 * T5.emb_dim  # of the layer, and the last one
      wanted = 2 * (own - norms) + 4 * norms
      assert plan.bytes_on(meshes.ONE)["drafter"] == wanted
  assert caches[0] == caches[1]


def test_a_plan_of_decoding_trees(saved):
  paths = [saved(name, T5) for name in ("one", "two", "large")]
  inputs = Inputs(
    input_file="-",
    vocabulary=tiny.Vocabulary(),
    task_feature_lengths={"inputs": 128},
  )
  cascade = Cascade(k=[[1, 3], [0, 1]], first_children=8)
  for num_drafters, num_drafts, composed, shape in (
    (1, 6, None, {"gamma": 2, "tree": (3, 1)}),
    (1, 8, None, {"gamma": 4, "drafts": 2}),
    # Whatever gamma is, the drafter says how many tokens it drafts.
    (2, 6, SideBySide(3), {"gamma": 2}),
    (1, 1 + 3 + 7, cascade, {"gamma": 2}),
  ):
    pair = PairSpec(
      drafter_checkpoint=paths[:num_drafters],
      verifier_checkpoint=paths[2],
      cascade=composed,
    )
    point = Point("spec_decode", **shape)
    plan = decoding_plan.plan(pair, inputs, point, Run(batch_size=32))
    bytes_of = plan.bytes_on(meshes.ONE)
    capacity = Run().max_decode_len + 3 + num_drafts
    caches = footprint.caches(T5LM, T5, ONE, (32, 128), capacity)
    assert bytes_of["caches"] == (num_drafters + 1) * caches
    laws = 2 * 4 * 32 * (num_drafts + 1) * 64
    assert bytes_of["distributions"] == (num_drafters + 1) * laws


LONG = {"inputs": 128, "targets": 128}
BATCH = dict.fromkeys(states.INPUTS, jax.ShapeDtypeStruct((16, 128), jnp.int32))


def wide(*layers):
  """Returns a T5 whose activations need far more memory than its weights."""
  sizes = dict(emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512)
  sizes |= dict(zip(("num_encoder_layers", "num_decoder_layers"), layers))
  return T5Config(**sizes, vocab_size=64, dropout_rate=0.0)


@pytest.mark.parametrize(
  ("remat", "encoder", "decoder"),
  [(None, 24, 36), ("minimal", 9, 13), ("full", 1, 1)],
)
def test_what_a_step_keeps_for_its_gradient(remat, encoder, decoder):
  """One unit is an array [rows, length, emb_dim]; an MLP is two units wide."""

  def count(num_encoder_layers, num_decoder_layers):
    """Returns the plan's bytes, and the bytes that JAX's gradient stores."""
    config = wide(num_encoder_layers, num_decoder_layers)
    counted = footprint.activations(config, ONE, 16, LONG, remat)
    module = parameters.network(config).clone(remat=remat)
    shapes = parameters.tree(
      {
        name: jax.ShapeDtypeStruct(shape, jnp.float32)
        for name, shape in parameters.param_shapes(config).items()
      }
    )
    forward = lambda tree, batch: states.forward(module, tree, batch)
    saved = jax.eval_shape(
      lambda tree, batch: jax.vjp(lambda tree: forward(tree, batch), tree)[1],
      shapes,
      BATCH,
    )
    return np.array([counted, num_bytes(saved) - num_bytes(shapes)])

  array, shallow = 4 * 16 * 128 * 256, count(1, 1)
  for deeper, wanted in ((count(2, 1), encoder), (count(1, 2), decoder)):
    counted, saved = (deeper - shallow) / array
    assert counted == wanted
    # If nothing is computed again, XLA fuses operations, and stores less than
    # JAX's gradient asks for.
    assert saved == wanted if remat else 1.2 * wanted < saved < 1.5 * wanted


def test_an_encoder_of_its_own_size_keeps_more():
  """Its layers are counted by its own widths."""
  narrow = dataclasses.replace(T5GEMMA, encoder_emb_dim=None)
  more = 4 * 8 * 32 * 2 * (4 * (12 - 8))
  stored = [
    footprint.activations(x, ONE, 8, LENGTHS) for x in (T5GEMMA, narrow)
  ]
  assert stored[0] - stored[1] == more


def test_merged_attention_keeps_less():
  """There are the queries, the context and the input of one attention."""
  apart = dataclasses.replace(T5GEMMA2, merged_attention=False)
  counted = [
    footprint.activations(x, ONE, 8, LENGTHS) for x in (apart, T5GEMMA2)
  ]
  queries, inputs = 2 * 4 * 4, 2 * 8
  layers = T5GEMMA2.num_decoder_layers
  assert counted[0] - counted[1] == 4 * 8 * 16 * layers * (queries + inputs)


@pytest.mark.slow
def test_xla_keeps_what_is_counted():
  optimizer = optimizers.adafactor()

  def count(num_layers):
    """Returns the bytes of a step besides its state and its gradients."""
    config = wide(num_layers, num_layers)
    module = parameters.network(config)
    init = lambda: states.TrainState.create(
      module.initial(jax.random.key(0)), optimizer
    )
    state = jax.eval_shape(init)
    step = training_step.make_step(module, optimizer, states.Objective())
    memory = step.lower(state, BATCH).compile().memory_analysis()
    counted = footprint.activations(config, ONE, 16, LONG)
    allocated = memory.temp_size_in_bytes - num_bytes(state.params)
    return np.array([counted, allocated])

  counted, allocated = count(3) - count(1)
  assert counted == pytest.approx(allocated, rel=0.15)
