"""What meshes of eight forced devices compute: python -m ... FOLDER CASE...

Each case is JSON; a line of JSON is printed for each.
"""

import contextlib
import dataclasses
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import speccascade as sc
from speccascade import native
from speccascade.checkpoints import (
  CheckpointError,
  chunks,
  hugging_face,
  orbax_io,
  t5x_native,
)
from speccascade.decoding import row_keys
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.programs import decoders, methods
from speccascade.generate.pair.cascades import Cascade
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.models import (
  LlamaConfig,
  T5Config,
  T5GemmaConfig,
  cut_head,
)
from speccascade.models.parameters import network
from speccascade.models.sharding import meshes, partitioning
from speccascade.runtime import memory
from speccascade.study.measuring.study import Measuring
from speccascade.study.search import halving, sweeps
from speccascade.study.search.cascade_space import Candidates
from speccascade.study.search.plans import Plan
from speccascade.study.search.shown import Shown
from speccascade.tasks.inputs import Inputs
from speccascade.tools.planning import hlo
from speccascade.training import evaluate, optimizers, states, trainer
from speccascade.training.checkpointing import Checkpoints
from tests.generate import tiny

ROWS, SOURCE_LEN = 8, 6
OPTIMIZERS = {
  "adafactor": optimizers.adafactor(1e-2, min_dim_size_to_factor=16),
  "adamw": optimizers.adamw(1e-2),
}


def config(kind: str, emb_dim: int):
  """Returns an architecture that 8 devices divide."""
  sizes = {"vocab_size": 16, "emb_dim": emb_dim, "num_heads": 8}
  sizes |= {"num_decoder_layers": 1, "head_dim": 4, "mlp_dim": 16}
  if kind == "llama":
    return LlamaConfig(**sizes, num_kv_heads=8, max_positions=64)
  if kind == "gemma":
    # All that one of them has; a text is longer than the window.
    sizes |= {"num_decoder_layers": 2, "max_positions": 64}
    return LlamaConfig(
      **sizes,
      num_kv_heads=8,
      mlp_activations=("gelu", "linear"),
      norm_offset=1,
      post_norms=True,
      scaled_embedding=True,
      query_key_norm=True,
      query_pre_attn_scalar=9.0,
      attention_cap=1.5,
      logit_cap=3.0,
      local_rope_theta=50.0,
      window=4,
      windowed_layers=(0,),
    )
  if kind.startswith("t5gemma"):
    sizes |= {"window": 3, "windowed_layers": (0,), "num_kv_heads": 8}
    own = {"encoder_emb_dim": 2 * emb_dim}
    if kind == "t5gemma2":
      own = {"merged_attention": True, "shared_embedding": True}
      own |= {"split_window": True, "end_of_image_id": 4}
      own |= {"query_key_norm": True, "attention_cap": None}
    return T5GemmaConfig(**sizes, **own, num_encoder_layers=1)
  return T5Config(**sizes, num_encoder_layers=1)


def drawn(kind: str, emb_dim: int) -> dict:
  """Returns random parameters whose distributions are neither flat nor sure."""
  shapes = jax.eval_shape(
    network(config(kind, emb_dim)).initial, jax.random.key(0)
  )
  rng = np.random.default_rng(emb_dim)
  return jax.tree.map(
    lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) * 0.4, shapes
  )


def checkpoint(folder, kind: str, emb_dim: int, layout: str) -> str:
  """Returns where a random model was written."""
  path = folder / f"{kind}-{emb_dim}-{layout}"
  params, model = drawn(kind, emb_dim), config(kind, emb_dim)
  if layout == "hugging_face":
    hugging_face.save(path, params, model)
  elif layout == "t5x_native":
    t5x_native.save(path / "checkpoint_7", params, step=7)
  else:
    orbax_io.save(path, params, model, step=7)
  return str(path)


def decode(folder, *, mesh, kind="t5", method="spec_cascade_opt", **options):
  """Returns the tokens of some rows, what was sent for them, and how the
  verifier lies; where it `feeds`, its first logits too."""
  settings = {"temperature": 1.0, "layout": "speccascade", "drafter": "whole"}
  settings |= {"feeds": True, "shape": {}, "kept": None} | options
  of = lambda width: f"{folder}/{kind}-{width}-{settings['layout']}"
  says = settings["layout"] != "t5x_native"
  pair = PairSpec(
    drafter=None if says else config(kind, 8),
    verifier=None if says else config(kind, 16),
    drafter_checkpoint=of(8),
    verifier_checkpoint=of(16),
    draft_vocabulary=settings["kept"],
    mesh=meshes.Mesh(mesh, drafter=settings["drafter"]),
  ).load(tiny.Vocabulary())
  for leaf in jax.tree.leaves(pair.verifier.lm, is_leaf=is_packed):
    assert not is_packed(leaf)
  needs = methods.find(method).execution
  rng = np.random.default_rng(0)
  rows = rng.integers(2, 16, (ROWS, SOURCE_LEN)).astype(np.int32)
  rows = (rows, row_keys(0, 0, np.arange(ROWS)))
  if pair.layout is not None:
    rows = pair.layout.rows(rows)
  shape = {"gamma": 3} | settings["shape"]
  decoder = decoders.decoder(method, **shape, max_decode_len=10, eos_id=1)
  arguments = (
    pair.drafter_lm if needs.needs_drafter else None,
    pair.verifier_lm if needs.needs_verifier else None,
    *rows,
    0.2,
    Sampling.create(settings["temperature"]),
  )
  program = decoder.lower(*arguments).compile()
  _, program_arguments = decoder.call(*arguments)
  decoded = program(*program_arguments)
  sent = hlo.Program(program.as_text()).sent
  kernel = pair.verifier_lm.params["decoder"]["layers_0"]["mlp"]["wo"]["kernel"]
  results = {
    "tokens": decoded.tokens.tolist(),
    "kernel": share(kernel),
    "sent": {
      when: {f"{x.kind} {x.arrays} {x.num_devices}": n for x, n in each.items()}
      for when, each in sent.items()
    },
  }
  if settings["kept"]:
    head = pair.drafter_lm.params[cut_head.NAME]["kernel"]
    results["head"] = share(head)
  if settings["feeds"]:
    state, out = fed(pair.verifier_lm, rows[0])
    results["logits"] = out.logits.tolist()
    results["cache"] = share(state.caches[0][0])
  return results


def generate(folder, *, mesh, streams=False):
  """Returns what `load_pair` gives: texts' tokens, or a stream's pieces."""
  pair = sc.load_pair(
    drafter=f"{folder}/t5-8-speccascade",
    verifier=f"{folder}/t5-16-speccascade",
    vocabulary=tiny.Vocabulary(),
    mesh=mesh,
  )
  some = {"gamma": 3, "max_decode_len": 6, "max_input_len": 8}
  if streams:
    return list(pair.stream(tiny.WORDS[2], **some))
  with contextlib.redirect_stdout(None):
    out = pair.generate(tiny.WORDS[2:5], trace=False, batch_size=4, **some)
  return out.tokens.tolist()


def share(array) -> float:
  """Returns how much of an array one device holds."""
  return array.addressable_shards[0].data.size / array.size


@jax.jit
def fed(model, inputs):
  """Returns a model's state and output after it was fed inputs [B, S]."""
  state = model.prefill(inputs, capacity=SOURCE_LEN)
  return model.extend(state, inputs, jnp.full(ROWS, SOURCE_LEN, jnp.int32))


def is_packed(leaf) -> bool:
  return isinstance(leaf, native.Panels)


def measure(folder, *, mesh):
  """Returns what the rows of a sweep and of a search say, time left out."""
  size = "x".join(str(num) for num in mesh.values())
  texts = pathlib.Path(folder, "in.jsonl")
  words = [
    {"inputs": " ".join(tiny.WORDS[i:]), "targets": "one"} for i in (5, 7)
  ]
  texts.write_text("".join(f"{json.dumps(each)}\n" for each in words * 4))
  common = tiny.objects(
    {
      "drafter_checkpoint": f"{folder}/t5-8-speccascade",
      "verifier_checkpoint": f"{folder}/t5-16-speccascade",
      **{"mesh": meshes.Mesh(mesh), "vocabulary": tiny.Vocabulary()},
      **{"input_file": str(texts), "task_feature_lengths": {"inputs": 8}},
    },
    **{"pair": PairSpec, "inputs": Inputs},
  )
  run = {"max_decode_len": 6, "batch_size": ROWS, "progress": False}
  swept = sweeps.sweep(
    **common,
    plan=Plan(["spec_cascade_opt"], "one", gammas=[2], temperatures=[1.0]),
    common=Point("verifier"),
    run=Run(f"{folder}/sweep-{size}", **run),
    measuring=Measuring(),
    shown=Shown(num_shown=0),
  )
  found = halving.search(
    **common,
    point=Point("cascade_drafting", temperature=0.0),
    run=Run(f"{folder}/search-{size}", **run),
    candidates=Candidates([Cascade(k=((2, 3), (0, 2)))]),
  )
  rows = [*swept.rows, *(each.row for each in found)]
  return [[x.label, x.efficiency, x.quality, x.agreement] for x in rows]


def train(folder, *, mesh, optimizer="adafactor", dims=1, kind="t5", steps=20):
  """Returns the losses of some steps, and an evaluation after them."""
  model, batches = config(kind, 16), texts(kind)
  layout = meshes.Mesh(mesh, dims).layout_for(model, ROWS)
  params = states.init_params(network(model), 0, layout)
  state = states.TrainState.create(params, OPTIMIZERS[optimizer])
  losses, state = fit(model, batches, optimizer, steps, state)
  results = evaluate.teacher_forced(model, state.params, batches)
  results["losses"] = losses
  if "encoder_input_tokens" in batches[0] and optimizer == "adafactor":
    sources = list(batches[0]["encoder_input_tokens"])
    some = {"max_decode_len": 4, "batch_size": ROWS}
    outputs = evaluate.greedy(model, state.params, sources, **some)
    results["outputs"] = [output.tolist() for output in outputs]
  return results


def resume(folder, *, mesh, then, optimizer="adamw"):
  """Returns the losses of a run that was killed on a mesh and continued on
  others, those of the unbroken one, whether all was restored there, and what is
  said where a file of it is missing."""
  model, batches = config("t5", 16), texts("t5")
  transform = OPTIMIZERS[optimizer]

  def start(mesh):
    layout = meshes.Mesh(mesh).layout()
    kept = Checkpoints(f"{folder}/{optimizer}-run", model, layout=layout)
    return kept, kept.start(transform)[0]

  kept, state = start(mesh)
  _, state = fit(model, batches, optimizer, 5, state)
  kept.save(state)
  kept.close()
  saved = jax.device_get(state)
  results = {"then": []}
  results["unbroken"], _ = fit(model, batches, optimizer, 25, state)
  for mesh in then:
    _, state = start(mesh)
    same = jax.tree.map(np.array_equal, saved, jax.device_get(state))
    same = all(jax.tree.leaves((same.params, same.opt_state, same.step)))
    losses, _ = fit(model, batches, optimizer, 25, state)
    results["then"].append({"same": same, "losses": losses})
  path = pathlib.Path(kept.path(5), "opt_state")
  for file in path.glob("**/d/*"):
    file.unlink()
  try:
    start(then[0])
  except CheckpointError as error:
    results["missing"] = str(error)
  return results


def held(folder, *, mesh):
  """Returns the bytes of a state, and by how many this process grew besides its
  shards while it was read onto a mesh."""
  chunks.CHUNK_BYTES = 2**21
  layout = meshes.Mesh(mesh).layout()

  def kept(vocab_size, name):
    model = dataclasses.replace(config("t5", 256), vocab_size=vocab_size)
    return Checkpoints(f"{folder}/{name}", model, layout=layout)

  def start(*of):
    return kept(*of).start(OPTIMIZERS["adamw"])[0]

  def save(state, *of):
    checkpoints = kept(*of)
    checkpoints.save(state)
    checkpoints.close()

  large, small = (2**14, "large"), (64, "small")
  if not pathlib.Path(folder, "large").exists():
    save(start(*large), *large)
    return None
  save(start(*small), *small)  # what reading and saving imports
  start(*small)
  before = memory.held()
  state = start(*large)
  jax.block_until_ready(state)
  size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
  shards = sum(
    shard.data.nbytes
    for leaf in jax.tree.leaves(state)
    for shard in leaf.addressable_shards
  )
  return {"size": size, "read": memory.most_held() - before - shards}


def texts(kind: str) -> list[dict]:
  """Returns a few batches."""
  rng = np.random.default_rng(1)
  tokens = lambda num: rng.integers(2, 16, (ROWS, num)).astype(np.int32)
  names = {"decoder_target_tokens": 8, "encoder_input_tokens": SOURCE_LEN}
  is_prompted = kind in ("llama", "gemma")
  if is_prompted:
    names = {"decoder_target_tokens": 8, "decoder_input_tokens": 8}
  batches = [{name: tokens(n) for name, n in names.items()} for _ in range(3)]
  if is_prompted:
    for batch in batches:
      batch["decoder_loss_weights"] = np.ones((ROWS, 8), np.float32)
  return batches


def fit(model, batches, optimizer, steps, state):
  """Returns the losses of each step up to `steps`, and the state."""
  losses = []
  state = trainer.fit(
    model,
    batches,
    steps=steps,
    optimizer=OPTIMIZERS[optimizer],
    objective=states.Objective(microbatches=2),
    log_every=1,
    on_log=lambda step, metrics: losses.append(metrics["loss"]),
    progress=False,
    state=state,
  )
  return losses, state


if __name__ == "__main__":
  folder, *cases = sys.argv[1:]
  jax.config.update("jax_disable_most_optimizations", True)
  partitioning.MOST_READ = 0  # arrays are small here, and read in parts still
  for case in map(json.loads, cases):
    print(json.dumps(globals()[case.pop("call")](folder, **case)), flush=True)
