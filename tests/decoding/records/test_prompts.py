"""Rows that continue their own prompts, ragged, padded at either end."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, MaxGramDrafter, Sampling, row_keys
from speccascade.decoding.nested.cascade import cascade_drafter
from speccascade.decoding.records import prompts
from tests import toy, toy_chains

SIDES = ("right", "left", "both")
NUM = len(toy.PROMPTS)
BATCH = np.concatenate([toy.padded(toy.PROMPTS, side) for side in SIDES])
KEYS = row_keys(0, 0, jnp.tile(jnp.arange(NUM), len(SIDES)))


def test_prompts_are_read_wherever_they_are():
  texts = toy.PROMPTS * len(SIDES)
  expected = toy.padded(texts)
  np.testing.assert_array_equal(prompts.align(BATCH), expected)
  assert prompts.lengths(BATCH).tolist() == [len(x) for x in texts]
  assert prompts.last(BATCH).tolist() == [x[-1] for x in texts]
  tokens, count = prompts.prefill_tokens(BATCH)
  for row, text in enumerate(texts):
    assert tokens[row, : count[row]].tolist() == list(text[:-1])
  assert np.all(np.asarray(tokens) >= 0)


@pytest.mark.parametrize(
  ("inputs", "message"),
  [
    ([[-1, -1]], "prompt 0 is empty"),
    ([[2, -1], [3, -1], [2, 7]], "prompt 2 has token 7"),
    ([[-2, 1]], "prompt 0 has token -2"),
    ([[-1, 2, -1, 2, -1]], "prompt 0 has -1 .padding. inside"),
    ([2, 3], r"prompts have shape \[2\]"),
  ],
)
def test_what_is_not_a_prompt_is_refused(inputs, message):
  with pytest.raises(ValueError, match=message):
    toy.decode("verifier", toy.whole(7), inputs=np.array(inputs))


def test_a_pair_is_of_one_kind():
  (drafter, verifier), (source, _) = toy.whole(), toy.whole(prompted=False)
  copier = MaxGramDrafter.create([0], width=2, vocab_size=8)
  message = "WholeLM continues prompts .decoder-only., a (WholeLM|MaxGram)"
  for other in (source, copier):
    with pytest.raises(ValueError, match=message):
      toy.decode("spec_decode", (other, verifier), inputs=BATCH)
  # In a cascade it learns from the models what they are.
  cascade = cascade_drafter((drafter,), copier, [[1, 1], [0, 1]])
  reviewed, last = cascade.drafters
  assert reviewed.drafter.prompted
  assert last.prompted


@pytest.mark.parametrize("name", toy.nightly(METHODS, ["verifier"]))
def test_a_row_is_the_same_wherever_its_prompt_is(name):
  row = METHODS[name]
  models = toy.whole()
  if row.num_drafters == 2:
    models = models, models[1]
  call = functools.partial(
    toy.decode,
    row,
    models,
    sampling=toy.GREEDY if row.greedy_only else Sampling.create(1.0),
    eos_id=(toy_chains.EOS, 5),
    shared=True,
  )
  batch = call(inputs=BATCH, keys=KEYS)
  for part in (slice(NUM, 2 * NUM), slice(2 * NUM, 3 * NUM)):
    for leaf in jax.tree.leaves(batch):
      np.testing.assert_array_equal(leaf[part], leaf[:NUM])
  alone = call(inputs=np.array(toy.PROMPTS[2:3]), keys=KEYS[2:3])
  np.testing.assert_array_equal(alone.tokens, batch.tokens[2:3])
  np.testing.assert_array_equal(alone.lengths, batch.lengths[2:3])
  # They end at both ids, and differ.
  last = batch.tokens[np.arange(NUM), batch.lengths[:NUM] - 1]
  assert {toy_chains.EOS, 5} & set(last[batch.lengths[:NUM] < 10].tolist())
  assert len({tuple(x) for x in batch.tokens[:NUM].tolist()}) > 2


def test_greedy_tokens_follow_from_the_whole_text():
  # Copies of prompt and text, reviewed by the small model, then by the large.
  models = toy.whole()
  decoded = toy.decode("cascade_drafting", models, inputs=BATCH, keys=KEYS)
  table = np.asarray(models[1].table)
  for row, text in enumerate(toy.PROMPTS * len(SIDES)):
    expected, place = list(text), np.arange(64)[None]
    while len(expected) < len(text) + 10 and expected[len(text) :][-1:] != [
      toy_chains.EOS
    ]:
      number = models[1].numbers(
        np.array([expected]), place[:, : len(expected)]
      )
      expected.append(int(table[number[0, -1]].argmax()))
    assert (
      decoded.tokens[row, : decoded.lengths[row]].tolist()
      == expected[len(text) :]
    )
