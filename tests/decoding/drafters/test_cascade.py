"""The cascade that a matrix K describes: its forms, its errors, its calls."""

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  AutoregressiveDrafter,
  HorizontalDrafter,
  MaxGramDrafter,
  Sampling,
  VerticalDrafter,
  cascade_drafter,
  decoder,
  row_keys,
)
from speccascade.decoding.drafters.cascade import increments
from speccascade.models.markov_lm import MarkovLM
from tests.decoding.drafters import models

GREEDY = Sampling.create(0.0)


def copier(vocab_size, width=3):
  table = np.zeros(vocab_size, np.int32)
  return MaxGramDrafter.create(table, width=width, vocab_size=vocab_size)


def chain(vocab_size, seed=0, **how):
  return MarkovLM(models.tables(seed, 1, vocab_size, **how))


def test_both_published_forms_of_k():
  """MMLU: the code's row (5, 14) is printed as 5, 19 in the paper's table."""
  code = [[5, 14, 10], [0, 1, 10], [0, 0, 10]]
  paper = [[5, 19, 29], [0, 1, 11], [0, 0, 10]]
  assert increments(code, meaning="increments") == code
  assert increments(paper, meaning="cumulative") == code
  size = 5
  small, large = chain(size), chain(size, 1)
  a, b = (
    cascade_drafter((large, small), copier(size), matrix, meaning=meaning)
    for matrix, meaning in ((code, "increments"), (paper, "cumulative"))
  )
  assert [d.width for d in a.drafters] == [d.width for d in b.drafters]
  assert [d.width for d in a.drafters] == [5, 14, 10]


def test_levels_nest_drafters():
  size = 5
  medium, small = chain(size), chain(size, 1)
  drafter = cascade_drafter(
    (medium, small),
    copier(size),
    [[2, 3, 4], [0, 1, 5], [0, 0, 6]],
    lenience=4.0,
  )
  outer, inner, tail = drafter.drafters
  assert (outer.width, inner.width, tail.width) == (2, 3, 4)
  assert outer.reviewer is medium
  assert inner.reviewer is small
  assert isinstance(tail, MaxGramDrafter)
  # Below the first drafter: the small one reviewed, then copies.
  assert isinstance(outer.drafter, HorizontalDrafter)
  assert [part.width for part in outer.drafter.drafters] == [1, 5]
  assert isinstance(outer.drafter.drafters[0], VerticalDrafter)
  assert outer.drafter.drafters[0].drafter.width == 6
  assert inner.drafter.width == 6
  assert float(outer.alpha) == 0.75
  # The medium one, the small one under it, and the small one in the row.
  assert len(drafter.models) == 3
  assert not drafter.has_confidence
  assert cascade_drafter((small,), None, [[4]]).width == 4
  assert isinstance(
    cascade_drafter((small,), None, [[4]]), AutoregressiveDrafter
  )


@pytest.mark.parametrize(
  ("matrix", "meaning", "message"),
  [
    ([[1, 2]], "increments", "wanted a square matrix"),
    ([], "increments", "wanted a square matrix"),
    ([[1, 2], [1, 2]], "increments", r"row 1 of K is \[1, 2\]"),
    ([[1, -2], [0, 2]], "increments", "0 or more"),
    ([[3, 2], [0, 2]], "cumulative", "not falling"),
    ([[1, 2], [0, 2]], "sums", "wanted 'increments'"),
  ],
)
def test_a_wrong_k_is_refused(matrix, meaning, message):
  with pytest.raises(ValueError, match=message):
    increments(matrix, meaning=meaning)


def test_wrong_cascades_are_refused():
  small = chain(5)
  with pytest.raises(ValueError, match=r"lenience is 0\.5; wanted 1"):
    cascade_drafter((small,), None, [[2]], lenience=0.5)
  with pytest.raises(ValueError, match="K has 2 rows for 1 drafters"):
    cascade_drafter((small,), None, [[2, 1], [0, 1]])
  with pytest.raises(ValueError, match="the cascade drafts nothing"):
    cascade_drafter((small,), copier(5), [[0, 0], [0, 4]])


@pytest.mark.parametrize(
  "name", ["spec_cascade_chow", "spec_cascade_diff", "spec_cascade_opt"]
)
def test_a_rule_that_reads_confidence_refuses_copies(name):
  size = 5
  small, large = chain(size), chain(size, 1)
  drafter = cascade_drafter((small,), copier(size), [[2, 3], [0, 3]])
  decode = decoder(name, gamma=1, max_decode_len=4, eos_id=1)
  keys, inputs = row_keys(0, 0, jnp.arange(1)), models.sources(1)
  with pytest.raises(ValueError, match="HorizontalDrafter has none"):
    decode(drafter, large, inputs, keys, 0.1, GREEDY)


def test_calls_of_a_case_worked_by_hand():
  """The verifier counts 2 3 4 ... 9 2 3; the drafter errs at 5 -> 2.

  K = [[2, 3], [0, 2]], a bigram table that counts too but errs at 8 -> 2.
  Nothing repeats and the source holds none of it: only bigrams are copied.

  block 1 (after start): inner round 1 copies bigram[0] = 2, 3: both right, with
    the bonus 4 that makes three, one is cut. Drafts 2 3, then copies 4 5 6.
    Verifier: 2..6 and bonus 7.                1 review; 6 tokens.
  block 2 (after 7): copies 8 2; the reviewer takes 8, writes 9: two tokens.
    Drafts 8 9, then copies 2 3 4 (the longest suffix, 9, is new; bigram of 9).
    Verifier: 8 9 2 3 4 and 5.                 1 review; 12 tokens.
  block 3 (after 5): copies of what followed 5 in the text: 6 7. The reviewer
    errs: it wants 2 at once. One token. Then, after 5 2, the text has 3 4
    behind 2: taken, with 5 behind: cut. Drafts 2 3. Copies behind them: 4 5 6.
    The verifier takes none, writes 6.         2 reviews; 13 tokens.
  block 4 (after 6): copies 7 8 (from the text), 9 is cut. Drafts 7 8, copies
    9 2 3; all right, bonus 4 behind.          1 review; 16 tokens of 19: cut.
  """
  size = 10

  def counting(errs, wrong):
    nxt = [2, 2, 3, 4, 5, 6, 7, 8, 9, 2]
    nxt[errs] = wrong
    return nxt

  def model(nxt):
    return MarkovLM(jnp.log(jnp.eye(size)[jnp.asarray(nxt)] + 1e-9)[None])

  drafter = cascade_drafter(
    (model(counting(5, 2)),),
    MaxGramDrafter.create(counting(8, 2), width=1, vocab_size=size),
    [[2, 3], [0, 2]],
  )
  decode = decoder("cascade_drafting", gamma=1, max_decode_len=16, eos_id=1)
  inputs = jnp.zeros((1, 2), jnp.int32)
  out = decode(
    drafter,
    model(counting(0, 2)),
    inputs,
    row_keys(0, 0, jnp.arange(1)),
    0.0,
    GREEDY,
  )
  assert out.tokens.tolist() == [[2, 3, 4, 5, 6, 7, 8, 9] * 2]
  stats = out.stats
  assert stats.num_blocks.tolist() == [4]
  assert stats.calls_by_model.tolist() == [[5]]
  assert stats.drafter_calls.tolist() == [5]
  assert stats.accepted_at.tolist() == [[1, 0, 0, 1, 0, 2]]
  assert stats.accepted.tolist() == [5 + 5 + 0 + 3]
