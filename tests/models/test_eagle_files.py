"""EAGLE's public drafters: the same logits and drafts as their own code's.

tests/golden/make_eagle.py made the files, with EAGLE's code and speculators.
"""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import speccascade as sc
from speccascade import checkpoints
from speccascade.checkpoints import CheckpointError, eagle_files
from speccascade.checkpoints.convert import convert
from speccascade.decoding import Sampling, StateDrafter, row_keys
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.generate.pair.pairs import PairError
from speccascade.models import LlamaConfig, LlamaLM, StateReader
from tests import toy
from tests.generate import tiny

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "eagle"
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))
SIZES = {
  "vocab_size": 40,
  "emb_dim": 16,
  "num_heads": 2,
  "num_kv_heads": 2,
  "num_decoder_layers": 6,
  "head_dim": 8,
  "mlp_dim": 24,
  "logits_via_embedding": False,
}


def reader_of(name):
  stored = checkpoints.load(FOLDER / name)
  return StateReader.create(stored.config, stored.params)


def verifier_of(golden):
  """Returns a verifier whose table and head are those of a golden file."""
  verifier = LlamaLM.init(LlamaConfig(**SIZES), jax.random.key(0))
  params = dict(verifier.params)
  if "table" in golden:
    params["token_embedder"] = {"embedding": jnp.asarray(golden["table"])}
  if "head" in golden:
    head = {"kernel": jnp.asarray(golden["head"].T)}
    params["decoder"] = {**params["decoder"], "logits_dense": head}
  return verifier.replace(params=params)


@jax.jit
def _drafts(reader, verifier, tokens, states):
  """Returns the greedy drafts after a text, and its laws' logits."""
  model = reader.reading_model(verifier)
  drafter = StateDrafter.of(model, 4)
  # The last token of the prompt is the first that is fed.
  held = drafter._follower.begin(tokens[None], states[None], capacity=16)
  zeros = jnp.zeros((1, 8), jnp.int32)
  buffer = jnp.concatenate([tokens[-1:][None], zeros], axis=1)
  one = jnp.ones(1, jnp.int32)
  _, proposal = drafter.propose(
    ((held,),),
    Prefix(buffer, one, one > 0),
    row_keys(0, 0, jnp.arange(1)),
    Sampling.create(0),
    needs_bonus_law=False,
  )
  _, out = model.extend(
    model.prefill(tokens[None], states[None], capacity=16)[0],
    tokens[-1:][None],
    one,
    states=model.states_of(states[None, -1:]),
  )
  return proposal.tokens[0], out.logits[0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_drafts_are_those_of_the_own_code(name):
  golden = np.load(FOLDER / f"{name}.npz")
  reader, verifier = reader_of(name), verifier_of(golden)
  tokens, states = (jnp.asarray(golden[x]) for x in ("tokens", "states"))
  drafts, logits = _drafts(reader, verifier, tokens, states)
  assert drafts.tolist() == golden["drafts"].tolist()
  kept = np.isfinite(logits)
  assert kept.sum() == golden["logits"].shape[1]
  np.testing.assert_allclose(logits[kept], golden["logits"][0], atol=2e-5)
  # Read as training reads: a text, and the drafts after it.
  config, module = reader.config, reader.module
  text = jnp.concatenate([tokens, drafts])[None]
  owner = reader if config.own_table else verifier
  table = owner.params["token_embedder"]["embedding"]
  padded = jnp.pad(states, ((0, text.shape[1] - len(states)), (0, 0)))
  outputs = module.apply(
    {"params": reader.params}, table[text], padded[None], num_steps=4
  )
  lm = reader.reading_model(verifier).lm
  last = len(tokens) - 1
  first = np.asarray(lm.project(outputs[0]))[0, 1 : last + 1][:, kept]
  np.testing.assert_allclose(first, golden["read"], atol=2e-5)
  for step, want in enumerate(golden["logits"]):
    got = np.asarray(lm.project(outputs[step]))[0, last + step][kept]
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_is_written(name, tmp_path):
  stored = checkpoints.load(FOLDER / name)
  format = "speculators" if name.startswith("speculators") else "eagle"
  convert(FOLDER / name, tmp_path / "again", format=format)
  again = checkpoints.load(tmp_path / "again")
  assert again.config == stored.config
  jax.tree.map(np.testing.assert_array_equal, again.params, stored.params)
  was, now = (
    load_file(folder / "model.safetensors")
    for folder in (FOLDER / name, tmp_path / "again")
  )
  # EAGLE-1's copy of the verifier's table is left out.
  assert was.keys() - now.keys() <= {"embed_tokens.weight"}
  assert not now.keys() - was.keys()
  for key, value in now.items():
    assert value.dtype == was[key].dtype
    assert np.array_equal(value, was[key])
  convert(FOLDER / name, tmp_path / "ours", format="speccascade")
  ours = checkpoints.load(tmp_path / "ours")
  assert ours.config == stored.config
  jax.tree.map(np.testing.assert_array_equal, ours.params, stored.params)


@pytest.mark.parametrize("name", toy.nightly(NAMES, ["eagle", "eagle3"]))
def test_a_public_drafter_writes_the_verifiers_texts(name):
  reader = reader_of(name)
  verifier = verifier_of(np.load(FOLDER / f"{name}.npz"))
  toy.greedily(
    "spec_decode",
    (reader, verifier),
    inputs=toy.padded([(3,), (5, 7), (5, 4, 1, 1, 7, 2, 2)]),
    max_decode_len=9,
  )


def changed(tmp_path, name="eagle3", settings=None, arrays=None):
  """Returns a copy of a golden folder with other settings and arrays."""
  folder = tmp_path / "changed"
  shutil.copytree(FOLDER / name, folder)
  path = folder / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | (settings or {})))
  weights = folder / "model.safetensors"
  found = load_file(weights) | (arrays or {})
  save_file({k: v for k, v in found.items() if v is not None}, weights)
  return folder


def test_a_draft_vocabulary_may_stand_in_any_order(tmp_path):
  was = load_file(FOLDER / "eagle3" / "model.safetensors")
  ids = was["d2t"] + np.arange(20)
  arrays = {
    "d2t": ids[::-1] - np.arange(20),
    "lm_head.weight": was["lm_head.weight"][::-1].copy(),
  }
  stored = checkpoints.load(changed(tmp_path, arrays=arrays))
  wanted = checkpoints.load(FOLDER / "eagle3")
  jax.tree.map(np.testing.assert_array_equal, stored.params, wanted.params)


REFUSED = {
  "two layers": ({"num_hidden_layers": 2}, {}, "num_hidden_layers is 2"),
  "width": ({"target_hidden_size": 32}, {}, "target_hidden_size is 32"),
  "no ids": ({}, {"d2t": None}, "no d2t of 20 numbers"),
  "wrong ids": ({}, {"d2t": np.zeros(20, np.int64)}, "t2d of other tokens"),
  "no array": ({}, {"fc.weight": None}, "missing: fc.weight"),
  "other layer": ({"model_type": "llava"}, {}, "of texts alone"),
}
OTHERS = {
  "no list": ({"speculators_config": {"proposal_methods": 3}}, "list"),
  "no dict": ({"speculators_config": 3}, "speculators_config is 3"),
  "mlp": ({"speculators_model_type": "mlp_speculator"}, "mlp_speculator"),
  "hass": ({"layernorms": True}, "layernorms is true"),
  "tree": (
    {"speculators_config": {"proposal_methods": [{"proposal_type": "tree"}]}},
    "proposal_type is 'tree'",
  ),
}


@pytest.mark.parametrize("case", [*REFUSED, *OTHERS])
def test_what_is_not_read_is_refused_in_a_line(case, tmp_path):
  if case in REFUSED:
    settings, arrays, words = REFUSED[case]
    folder = changed(tmp_path, "eagle3", settings, arrays)
  else:
    settings, words = OTHERS[case]
    folder = changed(tmp_path, "speculators_eagle", settings)
  with pytest.raises(CheckpointError, match=words) as found:
    checkpoints.load(folder)
  assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_weights_of_pytorch_are_to_be_converted(name, tmp_path):
  (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
  shutil.copy(FOLDER / name / "config.json", tmp_path)
  with pytest.raises(CheckpointError, match=r"safetensors\.torch\.save_file"):
    checkpoints.load(tmp_path)


def test_a_reader_of_another_layer_is_not_written(tmp_path):
  verifier = LlamaLM.init(LlamaConfig(**SIZES), jax.random.key(0))
  reader = StateReader.untrained(verifier)
  for format in eagle_files.FORMATS:
    with pytest.raises(CheckpointError, match="READER_LAYOUT"):
      eagle_files.save(
        tmp_path / "reader", reader.params, reader.config, format=format
      )
  with pytest.raises(CheckpointError, match="--format=speculators"):
    convert(FOLDER / "speculators_qwen3", tmp_path / "other", format="eagle")
  with pytest.raises(CheckpointError, match="is for state readers"):
    convert(
      FOLDER.parent / "llama" / "llama", tmp_path / "other", format="eagle"
    )
  with pytest.raises(CheckpointError, match="not a model that transformers"):
    convert(FOLDER / "eagle3", tmp_path / "other", format="hugging_face")


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_a_reader_made_here_is_written(layout, tmp_path):
  verifier = LlamaLM.init(LlamaConfig(**SIZES), jax.random.key(0))
  is_third = layout == "eagle3"
  reader = StateReader.untrained(
    verifier, layout=layout, fused=is_third, own_head=is_third
  )
  for format in eagle_files.FORMATS:
    path = tmp_path / format
    eagle_files.save(path, reader.params, reader.config, format=format)
    stored = checkpoints.load(path)
    assert stored.config.layout == layout
    jax.tree.map(np.testing.assert_array_equal, stored.params, reader.params)


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_a_reader_without_a_product_is_cut(layout):
  verifier = LlamaLM.init(LlamaConfig(**SIZES), jax.random.key(0))
  is_third = layout == "eagle3"
  reader = StateReader.untrained(
    verifier, layout=layout, fused=is_third, own_head=is_third
  )
  cut = reader.cut_to([1, 2, 4], verifier).reading_model(verifier).lm
  assert cut.kept_ids.tolist() == [1, 2, 4]


def test_a_pair_takes_the_folder_of_a_drafter():
  verifier = LlamaLM.init(LlamaConfig(**SIZES), jax.random.key(0))
  pair = sc.load_pair(
    drafter=FOLDER / "speculators_llama",
    verifier=verifier,
    vocabulary=tiny.Vocabulary(),
  )
  options = {"temperature": 0, "max_decode_len": 6, "max_input_len": 8}
  texts = ["one two", "three four five six"]
  alone = pair.generate(texts, method="verifier", **options)
  both = pair.generate(texts, method="spec_decode", gamma=2, **options)
  assert both.texts == alone.texts
  with pytest.raises(PairError, match="the head is cut already"):
    sc.load_pair(
      drafter=FOLDER / "speculators_llama",
      verifier=verifier,
      vocabulary=tiny.Vocabulary(),
      draft_vocabulary=[1, 2, 3],
    )
