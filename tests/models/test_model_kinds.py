"""A kind of draft model has a row in each room's table."""

import jax
import pytest

from speccascade.decoding import AutoregressiveDrafter, Drafter
from speccascade.decoding.programs import draft_models
from speccascade.models import (
  HeadsConfig,
  T5Config,
  T5GemmaConfig,
  model_kinds,
  parameters,
)
from speccascade.models.model_kinds import KINDS
from speccascade.study.evaluation import timing
from speccascade.study.search import draft_kinds
from speccascade.tools.planning import model_bytes
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
  *(
    HeadsConfig(kind, num_heads=2, vocab_size=8, emb_dim=4)
    for kind in ("medusa", "blockwise", "lookahead")
  ),
]


def test_the_rooms_know_the_same_kinds():
  kinds = draft_models.DRAFT_MODELS.keys() - {Drafter}
  assert timing.DRAFT_LOOPS.keys() == model_bytes.BYTES.keys() == kinds
  assert draft_kinds.KINDS.keys() == kinds
  assert {model_kinds.kind_of(config) for config in CONFIGS} == kinds


@pytest.mark.parametrize(
  ("config", "most"),
  [*zip(CONFIGS, (0, 0, 2, 2, 3))],
  ids=["t5", "t5gemma", "medusa", "blockwise", "lookahead"],
)
def test_an_architecture_tells_the_kind_of_its_model(config, most):
  params = parameters.network(config).initial(jax.random.key(0))
  model = KINDS[type(config)].create(config, params)
  assert draft_models.kind_of(model) is model_kinds.kind_of(config)
  row = draft_models.row_of(model)
  assert row.drafts_alone == (most == 0)
  assert row.num_distributions(model) == most


def test_models_of_tests_and_drafters():
  small, large = toy.sources()
  alone = draft_models.row_of(small)
  assert alone is draft_models.row_of((small, large))
  assert alone.drafts_alone
  drafter = AutoregressiveDrafter(small, 2, behind=0)
  assert draft_models.kind_of(drafter) is Drafter
