"""A kind of draft model is a row, and what other modules register for it."""

import dataclasses

import jax
import pytest

from speccascade.decoding import AutoregressiveDrafter, Drafter
from speccascade.decoding.programs import draft_models
from speccascade.decoding.records.drafter import Heads
from speccascade.generate.pair.model_loading import Model
from speccascade.models import (
  HeadsConfig,
  LlamaConfig,
  StateReaderConfig,
  T5Config,
  T5GemmaConfig,
  architectures,
  parameters,
)
from speccascade.models.architectures import ARCHITECTURES
from speccascade.models.taught_exit import ExitConfig
from speccascade.study.evaluation import timing
from speccascade.study.report import card
from speccascade.study.search import draft_kinds
from speccascade.tools.planning import model_bytes
from speccascade.training import kinds
from tests import toy

CONFIGS = [
  T5Config(
    vocab_size=8,
    emb_dim=4,
    num_heads=1,
    head_dim=4,
    mlp_dim=4,
    num_encoder_layers=1,
    num_decoder_layers=1,
  ),
  T5GemmaConfig(
    vocab_size=8,
    emb_dim=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    mlp_dim=4,
    num_encoder_layers=1,
    num_decoder_layers=1,
  ),
  LlamaConfig(
    vocab_size=8,
    emb_dim=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    mlp_dim=4,
    num_decoder_layers=1,
    max_positions=8,
  ),
  *(
    HeadsConfig(kind, num_heads=2, vocab_size=8, emb_dim=4)
    for kind in ("medusa", "blockwise", "lookahead")
  ),
]
CONFIGS.append(ExitConfig(num_layers=1).shaped_like(CONFIGS[0]))
CONFIGS.append(StateReaderConfig().shaped_like(CONFIGS[2]))


NAMES = [
  *["language model"] * 3,
  *["draft heads"] * 2,
  *("look-ahead embeddings", "early exit", "state reader"),
]
KINDS = draft_models.DRAFT_MODELS.keys() - {Drafter}
PER_KIND = [
  timing.DRAFT_LOOPS,
  model_bytes.BYTES,
  draft_kinds.KINDS,
  kinds.KINDS,
]


def test_each_architecture_is_of_a_kind():
  assert {type(config) for config in CONFIGS} == ARCHITECTURES.keys()
  assert {architectures.kind_of(config) for config in CONFIGS} == KINDS


def test_all_that_is_asked_per_kind_is_known_here():
  assert set(PER_KIND) == set(draft_models.PER_KIND)


@pytest.mark.parametrize("asked", PER_KIND, ids=lambda asked: asked.place)
def test_each_kind_has_registered(asked):
  assert asked.rows.keys() == KINDS


@pytest.mark.parametrize("asked", PER_KIND, ids=lambda asked: asked.place)
def test_a_new_kind_says_what_to_register(asked, monkeypatch):
  class Copier:
    """A draft model that no other row takes."""

  row = dataclasses.replace(
    draft_models.DRAFT_MODELS[Heads],
    takes=lambda model: isinstance(model, Copier),
  )
  monkeypatch.setitem(draft_models.DRAFT_MODELS, Copier, row)
  kind = draft_models.kind_of(Copier())
  assert kind is Copier
  module, _, name = asked.place.rpartition(".")
  wanted = rf"{module}.*{asked.what}.*{name}\.register\(Copier, "
  with pytest.raises(NotImplementedError, match=wanted):
    asked[kind]
  monkeypatch.setattr(asked, "rows", dict(asked.rows))
  asked.register(Copier, asked[Heads])
  assert asked[kind] is asked[Heads]


@pytest.mark.parametrize(
  ("config", "most"),
  [*zip(CONFIGS, (0, 0, 0, 2, 2, 3, 0, 0))],
  ids=[
    *("t5", "t5gemma", "llama", "medusa", "blockwise", "lookahead"),
    *("exit", "reader"),
  ],
)
def test_an_architecture_tells_the_kind_of_its_model(config, most):
  params = parameters.network(config).initial(jax.random.key(0))
  model = architectures.row_of(config).model.create(config, params)
  assert draft_models.kind_of(model) is architectures.kind_of(config)
  row = draft_models.row_of(model)
  assert row.drafts_alone == (CONFIGS.index(config) < 3)
  assert architectures.drafts_alone(config) == row.drafts_alone
  assert row.num_distributions(model) == most
  # What rows and cards say of it.
  name = Model(model, "a", "").kind
  assert name == dict(zip(CONFIGS, NAMES))[config]
  assert card.kind_of(config).startswith(name)


def test_models_of_tests_and_drafters():
  small, large = toy.sources()
  alone = draft_models.row_of(small)
  assert alone is draft_models.row_of((small, large))
  assert alone.drafts_alone
  drafter = AutoregressiveDrafter(small, 2, behind=0)
  assert draft_models.kind_of(drafter) is Drafter
