"""Drafters with kernels of a dtype of their own, and self-drafting in int8."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speccascade as sc
from speccascade import built_in, native
from speccascade.generate.pair.drafter_kernels import SELF, check_quantised
from speccascade.generate.pair.pair_checks import PairError
from speccascade.generate.pair.pairs import PairSpec
from speccascade.models import cut_head
from speccascade.models.draft_heads import HeadsConfig
from speccascade.models.parameters import param_shapes
from speccascade.settings import fields
from tests.generate import decodes, llamas

TEXTS = ["A clever witch sells the new car.", "The old man reads a book."]
GREEDY = {"temperature": 0, "max_decode_len": 24, "trace": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Tiny Llamas."""
  folder = tmp_path_factory.mktemp("int8")
  for name, seed in (("small", 0), ("large", 1)):
    llamas.save(folder / name, seed)
  return folder


def dtypes(lm):
  """Returns the dtypes of a model's kernels."""
  kinds = native.Panels | native.Quantised
  leaves = jax.tree.leaves(lm.params, is_leaf=lambda x: isinstance(x, kinds))
  found = [x for x in leaves if isinstance(x, kinds)]
  return {
    str((x.array if isinstance(x, native.Panels) else x.weights).dtype)
    for x in found
  }


@pytest.mark.parametrize("own", [False, True])
def test_texts_are_the_verifiers(own):
  """With the small model in int8, and with the verifier itself in int8."""
  settings = {"drafter_kernel_dtype": "int8"}
  pair = sc.built_in_pair(**settings)
  if own:
    verifier = built_in.verifier()
    pair = sc.load_pair(drafter=SELF, verifier=verifier)
    assert pair.models.drafter_name == f"{pair.models.verifier_name} in int8"
  models = pair.models
  assert dtypes(models.drafter_lm) == {"int8"}
  assert "int8" not in dtypes(models.verifier_lm)
  assert models.dtype == "float32, drafter in int8"
  wanted = pair.generate(TEXTS, "verifier", **GREEDY).texts
  out = pair.generate(TEXTS, "spec_decode", **GREEDY)
  assert out.texts == wanted
  if own:
    [size] = {*models.num_parameters.values()}
    assert size == sum(map(np.prod, shapes_of(models.verifier_lm)))
    assert out.stats["acceptance_rate"] > 0.9


def shapes_of(lm):
  return param_shapes(lm.module.config).values()


def test_a_cut_head_of_a_drafter_in_int8():
  """The table of tokens stays whole; the kept rows are those of the head."""
  pair = sc.built_in_pair(
    drafter_kernel_dtype="int8", draft_vocabulary=np.arange(0, 768, 2)
  )
  lm = pair.models.drafter_lm
  head = lm.params[cut_head.NAME]
  whole = lm.params["token_embedder"]["embedding"]
  assert dtypes(lm) == {"int8"}
  assert len(head["ids"]) == 385
  if lm.module.config.logits_via_embedding:
    every = jnp.arange(385)
    kept = whole.columns(head["ids"])
    np.testing.assert_array_equal(head["kernel"].columns(every), kept)


def test_a_list_of_drafters_may_hold_the_verifier(folder):
  spec = PairSpec(
    drafter_checkpoint=[pathlib.Path(SELF), str(folder / "small")],
    verifier_checkpoint=str(folder / "large"),
    kernel_dtype="bfloat16",
  )
  own, small = spec.drafters()
  assert (own.path, own.kernel_dtype, own.is_self) == (
    str(folder / "large"),
    "int8",
    True,
  )
  assert (small.kernel_dtype, small.is_self) == ("bfloat16", False)
  pair = sc.load_pair(
    drafter=[SELF, folder / "small"],
    verifier=folder / "large",
    kernel_dtype="bfloat16",
  )
  names = [model.name for model in pair.models.models]
  assert names == ["large in int8", "small", "large"]
  assert [dtypes(model.lm) for model in pair.models.models] == [
    {"int8"},
    {"bfloat16"},
    {"bfloat16"},
  ]
  described = "float32, bfloat16 kernels, drafter in int8 and bfloat16"
  assert pair.models.dtype == described


def test_models_in_memory_say_how_they_store_their_kernels(folder):
  read = sc.load_pair(
    drafter=folder / "small",
    verifier=folder / "large",
    kernel_dtype="bfloat16",
    drafter_kernel_dtype="int8",
  )
  described = "float32, bfloat16 kernels, drafter in int8"
  assert read.models.dtype == described
  small, large = read.models.drafter_lm, read.models.verifier_lm
  rest = {"verifier": large, "vocabulary": read.vocabulary}
  assert sc.load_pair(drafter=small, **rest).models.dtype == described
  alike = sc.load_pair(drafter=large, **rest)
  assert alike.models.dtype == "float32, bfloat16 kernels"


@pytest.mark.needs_tf
def test_a_run_records_the_drafters_kernels(folder, tmp_path):
  path = tmp_path / "in.txt"
  path.write_text("the cat\nthe dog sat on\n")
  settings = {
    "temperature": 0.0,
    "task_feature_lengths": {"inputs": 64},
    "num_lengths": 1,
    "input_file": str(path),
  }
  texts = []
  cases = [
    ({}, "small", "float32"),
    ({"drafter_kernel_dtype": "int8"}, "small", "float32, drafter in int8"),
    ({"drafter_checkpoint": SELF}, "large in int8", "float32, drafter in int8"),
  ]
  for number, (changes, name, dtype) in enumerate(cases):
    out = tmp_path / str(number)
    row = decodes.decode(folder, out, **settings, **changes)
    assert (row.settings.drafter, row.settings.dtype) == (name, dtype)
    lines = (out / "predictions.jsonl").read_text().splitlines()
    texts.append([json.loads(line)["prediction"] for line in lines])
  assert texts[0] == texts[1] == texts[2]


def test_a_verifier_in_int8_is_refused(folder):
  message = "a verifier in int8 is another model, whose texts"
  with pytest.raises(PairError, match=message):
    sc.built_in_pair(kernel_dtype="int8")
  with pytest.raises(fields.SettingError, match=message):
    PairSpec(kernel_dtype="int8")
  for wrong in ("float99", "int4"):
    with pytest.raises(PairError, match=f"{wrong}'; wanted one of 'float32'"):
      sc.built_in_pair(kernel_dtype=wrong)
    with pytest.raises(PairError, match=r"drafter_kernel_dtype is .*one of"):
      sc.built_in_pair(drafter_kernel_dtype=wrong)
    with pytest.raises(fields.SettingError, match=r"kernel_dtype.*wanted"):
      PairSpec(drafter_kernel_dtype=wrong)


def test_what_cannot_draft_for_itself_is_refused(folder):
  with pytest.raises(PairError, match="and there is none; give the verifier's"):
    sc.load_pair(drafter=SELF)
  lm = sc.load_pair(verifier=folder / "large").models.verifier_lm
  with pytest.raises(PairError, match="the verifier is in memory; give"):
    sc.load_pair(drafter=SELF, verifier=lm, vocabulary="bytes")
  spec = PairSpec(drafter_checkpoint=SELF)
  with pytest.raises(PairError, match="set VERIFIER_CHECKPOINT"):
    spec.load(None, needs_verifier=False)
  config = dataclasses.replace(lm.module.config)
  spec = PairSpec(drafter=config, drafter_checkpoint=SELF)
  with pytest.raises(PairError, match="set DRAFTER = None"):
    spec.drafters()


def test_kernels_that_no_drafter_has(folder):
  verifier, given = folder / "large", {"drafter_kernel_dtype": "int8"}
  small = sc.load_pair(drafter=folder / "small", verifier=verifier)
  in_memory = {
    "drafter": small.models.drafter_lm,
    "vocabulary": small.vocabulary,
  }
  message = "is '{}', and no drafter is read from a checkpoint of its own"
  for drafter in ({"drafter": sc.PromptLookup()}, {}, in_memory):
    with pytest.raises(PairError, match=message.format("int8")):
      sc.load_pair(verifier=verifier, **drafter, **given)
  bfloat16 = {"drafter_kernel_dtype": "bfloat16"}
  with pytest.raises(PairError, match=message.format("bfloat16")):
    sc.load_pair(drafter=SELF, verifier=verifier, **bfloat16)
  spec = PairSpec(
    drafter_checkpoint=(),
    verifier_checkpoint=str(verifier),
    cascade=sc.PromptLookup(),
    **given,
  )
  with pytest.raises(PairError, match=message.format("int8")):
    spec.load(small.vocabulary)
  # What says nothing new is accepted, and a list may hold both.
  sc.load_pair(drafter=SELF, verifier=verifier, **given)
  several = [in_memory["drafter"], folder / "small"]
  pair = sc.load_pair(drafter=several, verifier=verifier, **given)
  assert pair.models.dtype == "float32, drafter in float32 and int8"


def test_an_architecture_next_to_a_verifier_in_int8(folder):
  verifier = folder / "large"
  config = sc.load_pair(verifier=verifier).models.verifier_lm.module.config
  with pytest.raises(PairError, match="for the drafter 'self-int8', which has"):
    sc.load_pair(drafter=(SELF, config), verifier=verifier)


def test_draft_heads_and_a_mesh_are_refused():
  heads = HeadsConfig(vocab_size=64, emb_dim=8, num_heads=2)
  with pytest.raises(PairError, match="and out/heads has draft heads; leave"):
    check_quantised("int8", heads, "out/heads", None)
  config = built_in_config()
  with pytest.raises(PairError, match="out/small is on a mesh; set MESH"):
    check_quantised("int8", config, "out/small", object())
  for kernel_dtype in (None, "bfloat16"):
    check_quantised(kernel_dtype, heads, "out/heads", object())
  check_quantised("int8", config, "out/small", None)


def built_in_config():
  return sc.built_in_pair().models.drafter_lm.module.config
