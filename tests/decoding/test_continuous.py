"""Rows that take the places of others: the tokens of each are its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Decoder,
  Sampling,
  continuous,
  decode_continuously,
  row_keys,
)
from tests import toy
from tests.decoding import test_sampled_laws
from tests.decoding.test_streaming import assert_same, llamas

pytestmark = pytest.mark.usefixtures("quick_compiles")

NUM, LENGTH = 23, 12


def t5s():
  return test_sampled_laws.tiny_t5(1), test_sampled_laws.tiny_t5(2)


def sources():
  return toy.sources(NUM)


CASES = [
  ("spec_cascade_opt", toy.whole),
  *(
    pytest.param(name, make, marks=pytest.mark.slow)
    for name, make in (
      ("cascade_drafting", llamas),
      ("spec_decode", t5s),
      ("verifier", sources),
      ("bild", sources),
      ("oracle_cascade_diff", toy.whole),
      ("spec_cascade_opt_three", sources),
      ("token_cascade_chow", t5s),
    )
  ),
]


def prompts_of(models):
  if models[1].prompted:
    return toy.padded([toy.PROMPTS[i % 5] for i in range(NUM)])
  return np.arange(NUM, dtype=np.int32)[:, None] % 7 + 1


@pytest.mark.parametrize(("name", "make"), CASES)
def test_rows_are_those_of_whole_batches(name, make):
  row, models = METHODS[name], make()
  inputs = prompts_of(models)
  if row.num_drafters == 2:
    models = models, models[1]
  how = {"gamma": 3, "max_decode_len": LENGTH, "eos_id": toy.EOS}
  decoder = Decoder(row, log_probs=True, **how)
  sampling = toy.GREEDY if row.greedy_only else Sampling.create(1.0)
  more = row.default_alpha, sampling
  rngs = row_keys(0, 0, jnp.arange(NUM))
  want = jax.device_get(decoder(*models, inputs, rngs, *more))
  programs = [continuous._fill, continuous._advance]
  before = [program._cache_size() for program in programs]
  parts = list(
    decode_continuously(decoder, *models, inputs, rngs, *more, rows=5, refill=2)
  )
  places = np.concatenate([part[0] for part in parts])
  assert sorted(places.tolist()) == list(range(NUM))
  assert len(parts) > NUM // 5 + 1
  for places, got in parts:
    assert_same(got, jax.tree.map(lambda x, at=places: x[at], want))
  # Compiled once, however many fills.
  after = [program._cache_size() for program in programs]
  assert np.subtract(after, before).tolist() == [1, 1]
  assert len(set(want.lengths.tolist())) > 1


def test_a_long_row_holds_nobody():
  """Rounds are those of the busiest place, not of each batch's longest row."""
  moves = {0: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 2}
  lm = toy.moving(moves, 7, rest=0.0)
  ends = toy.moving({**moves, 0: toy.EOS}, 7, rest=0.0)
  # Source 0 goes on to the limit, source 1 ends at once.
  lm = type(lm)(jnp.concatenate([lm.table, ends.table]))
  inputs = np.array([0, *[1] * 7, 0, *[1] * 7], np.int32)[:, None]
  decoder = Decoder(
    METHODS["verifier"], gamma=1, max_decode_len=20, eos_id=toy.EOS
  )
  rngs = row_keys(0, 0, jnp.arange(16))
  parts = list(
    decode_continuously(
      *(decoder, None, lm, inputs, rngs, 0.0, toy.GREEDY), rows=4
    )
  )
  *_, (places, decoded) = parts
  # Three places took the short ones, one by one, beside the two long ones.
  assert len(places) <= 4
  assert decoded.lengths[np.isin(places, (0, 8))].tolist() == [20] * 2


def test_what_has_no_rounds():
  models, inputs = toy.whole(), toy.padded(toy.PROMPTS)
  decoder = Decoder(
    METHODS["seq_cascade_chow"], gamma=1, max_decode_len=4, eos_id=toy.EOS
  )
  rngs = row_keys(0, 0, jnp.arange(len(inputs)))
  more = inputs, rngs, 0.5, Sampling.create(1.0)
  with pytest.raises(ValueError, match=r"SeqCascade \[Chow\] may write"):
    next(decode_continuously(decoder, *models, *more, rows=2))
