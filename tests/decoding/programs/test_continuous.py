"""Rows that take the places of others: the tokens of each are its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, Decoder, decode_continuously, row_keys
from speccascade.decoding.programs import continuous
from tests import toy, toy_chains
from tests.decoding import test_sampled_laws
from tests.decoding.programs.test_streaming import (
  assert_same,
  beside,
  branched,
  llamas,
  prepared,
)

NUM, LENGTH = 23, 12


def t5s():
  return test_sampled_laws.tiny_t5(1), test_sampled_laws.tiny_t5(2)


def sources():
  return toy.sources(NUM)


CASES = [
  *(("spec_cascade_opt", toy.whole), ("cascade_drafting", llamas)),
  *(("spec_decode", t5s), ("verifier", sources), ("bild", sources)),
  *(("oracle_cascade_diff", toy.whole), ("spec_cascade_opt_three", sources)),
  *(("token_cascade_chow", t5s), ("tree", t5s), ("paths", toy.whole)),
  *(("spec_decode", beside), ("cascade_drafting", branched)),
]


def prompts_of(models):
  if models[1].prompted:
    return toy.padded([toy.PROMPTS[i % 5] for i in range(NUM)])
  return np.arange(NUM, dtype=np.int32)[:, None] % 7 + 1


@pytest.mark.parametrize(("name", "make"), toy.nightly(CASES, CASES[:1]))
def test_rows_are_those_of_whole_batches(name, make):
  models = make()
  inputs = prompts_of(models)
  decoder, models, *more = prepared(name, models, LENGTH)
  rngs = row_keys(0, 0, jnp.arange(NUM))
  want = jax.device_get(decoder(*models, inputs, rngs, *more))
  programs = [continuous._fill, continuous._advance]
  for program in programs:  # other tests of this process compile, too
    program.clear_cache()
  call = *models, inputs, rngs, *more
  parts = list(toy.refilled(decoder, *call, rows=5, refill=2))
  assert len(parts) > NUM // 5 + 1
  # Rounds continue until as many rows ended as are read at a time.
  assert min(len(places) for places, _ in parts) == 2
  for places, got in parts:
    assert_same(got, jax.tree.map(lambda x, at=places: x[at], want))
  # Compiled once, however many fills.
  assert [program._cache_size() for program in programs] == [1, 1]
  assert len(set(want.lengths.tolist())) > 1


def test_a_long_row_delays_no_other():
  """Rounds are those of the busiest place, not of each batch's longest row."""
  moves = {0: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 2}
  lm = toy.moving(moves, 7, rest=0.0)
  ends = toy.moving({**moves, 0: toy_chains.EOS}, 7, rest=0.0)
  # Source 0 continues to the limit, source 1 ends at once.
  lm = type(lm)(jnp.concatenate([lm.table, ends.table]))
  inputs = np.array([0, *[1] * 7, 0, *[1] * 7], np.int32)[:, None]
  how = {"gamma": 1, "max_decode_len": 20, "eos_id": toy_chains.EOS}
  decoder = Decoder(METHODS["verifier"], **how)
  point = row_keys(0, 0, jnp.arange(16)), 0.0, toy.GREEDY
  parts = list(decode_continuously(decoder, None, lm, inputs, *point, rows=4))
  *_, (places, decoded) = parts
  # Three places took the short ones, one by one, beside the two long ones.
  assert len(places) <= 4
  assert decoded.lengths[np.isin(places, (0, 8))].tolist() == [20] * 2


def test_what_has_no_rounds():
  models, inputs = toy.whole(), toy.padded(toy.PROMPTS)
  decoder, models, *point = prepared("seq_cascade_chow", models)
  rngs = row_keys(0, 0, jnp.arange(len(inputs)))
  with pytest.raises(ValueError, match=r"SeqCascade \[Chow\] may write"):
    next(decode_continuously(decoder, *models, inputs, rngs, *point, rows=2))
