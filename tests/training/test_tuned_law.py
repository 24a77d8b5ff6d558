"""A verifier that learned with its heads: outputs follow the tuned one."""

import jax
import pytest

from speccascade.checkpoints import load
from speccascade.models import HeadsConfig, HeadsModel
from speccascade.training import optimizers, states
from speccascade.training.batch_checks import check_batch
from speccascade.training.verifier_tuning import VerifierTuning
from tests import toy
from tests.decoding.test_sampled_laws import T5_SOURCES, T5_VOCAB, tiny_t5
from tests.models import head_samples
from tests.training.conftest import random_batch, train_drafts


def tuned_pair(folder, kind: str):
  """Returns (heads, tuned verifier, verifier before) after a short run."""
  before = tiny_t5(2)
  verifier = states.Teacher(before.params, before.module)
  config = HeadsConfig(kind=kind, num_heads=2, mlp_dim=8)
  config = config.of_verifier(before.module.config, before.params)
  batch = random_batch(4, rows=16, vocab_size=T5_VOCAB)
  batch = check_batch(batch, before.module.config, 0)
  train_drafts(
    *(folder, config, verifier, batch, optimizers.adamw(0.02)),
    steps=30,
    tuning=VerifierTuning(heads_weight=0.5, rate=0.5),
  )
  heads, tuned = load(folder), load(folder / "verifier")
  params = jax.tree.map(jax.numpy.asarray, tuned.params)
  return (
    HeadsModel.create(heads.config, heads.params),
    before.replace(params=params),
    before,
  )


CASES = [
  (kind, way) for kind in ("medusa", "blockwise") for way in head_samples.WAYS
]


@pytest.mark.parametrize(
  ("kind", "way"), toy.nightly(CASES, [("medusa", "chain")])
)
def test_samples_have_the_tuned_verifiers_law(kind, way, tmp_path):
  heads, tuned, before = tuned_pair(tmp_path, kind)
  decoded = head_samples.decode_pair(
    heads, tuned, T5_SOURCES, **head_samples.WAYS[way]
  )
  assert decoded.stats.accepted.sum() > 0.05 * head_samples.ROWS
  fits = head_samples.p_values(decoded, tuned, T5_SOURCES)
  assert min(fits) > toy.LEVEL
  # The distribution of the verifier before training is another one.
  assert max(head_samples.p_values(decoded, before, T5_SOURCES)) < toy.LEVEL
