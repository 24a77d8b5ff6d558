"""The cascade that a matrix K describes: its forms, its errors, its calls."""

import jax.numpy as jnp
import pytest

from speccascade.decoding import MaxGramDrafter, cascade_drafter, verification
from speccascade.decoding.drafters.cascade import increments
from tests import toy
from tests.decoding.drafters import models

V = 5
MEDIUM, SMALL = (models.audited(seed, 1, V) for seed in (0, 1))
COPIER = models.copier(V)


def test_both_published_forms_of_k():
  """MMLU: the code's row (5, 14) is printed as 5, 19 in the paper's table."""
  code = [[5, 14, 10], [0, 1, 10], [0, 0, 10]]
  paper = [[5, 19, 29], [0, 1, 11], [0, 0, 10]]
  for matrix, meaning in ((code, "increments"), (paper, "cumulative")):
    assert increments(matrix, meaning=meaning) == code
    drafter = cascade_drafter((MEDIUM, SMALL), COPIER, matrix, meaning=meaning)
    assert [part.width for part in drafter.drafters] == [5, 14, 10]


def test_a_stated_law_or_none():
  """Lenient blocks verified as a whole, written by several, have none."""
  how = {"lenience": 3.0, "verify": verification.block_verify}
  with pytest.raises(ValueError, match="row 1 of K has several drafters"):
    cascade_drafter(
      (MEDIUM, SMALL), COPIER, [[3, 2, 3], [0, 2, 2], [0, 0, 2]], **how
    )
  plain = cascade_drafter((MEDIUM, SMALL), None, [[2, 1], [0, 2]], **how)
  assert plain.drafters[0].bonus == "target"
  by_token = cascade_drafter((MEDIUM,), COPIER, [[2, 1], [0, 2]], lenience=3.0)
  assert by_token.drafters[0].bonus == "verifier"


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


@pytest.mark.parametrize(
  ("bottom", "matrix", "lenience", "message"),
  [
    (None, [[2]], 0.5, r"lenience is 0\.5; wanted 1"),
    (None, [[2]], 1e9, r"lenience is .*; wanted 1"),
    (None, [[2]], float("nan"), "lenience is nan; wanted 1"),
    (None, [[2]], float("inf"), "lenience is inf; wanted 1"),
    (None, [[2, 1], [0, 1]], 1.0, "K has 2 rows for 1 drafters"),
    (COPIER, [[0, 0], [0, 4]], 1.0, "the cascade drafts nothing"),
  ],
)
def test_wrong_cascades_are_refused(bottom, matrix, lenience, message):
  with pytest.raises(ValueError, match=message):
    cascade_drafter((SMALL,), bottom, matrix, lenience=lenience)


@pytest.mark.parametrize("rule", ["chow", "diff", "opt"])
def test_a_rule_that_reads_confidence_refuses_copies(rule):
  drafter = cascade_drafter((SMALL,), COPIER, [[2, 3], [0, 3]])
  with pytest.raises(ValueError, match="HorizontalDrafter has none"):
    toy.decode(f"spec_cascade_{rule}", (drafter, MEDIUM), 0.1)


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
    after 2: taken, with 5 after that: cut. Drafts 2 3, and copies 4 5 6.
    The verifier takes none, writes 6.         2 reviews; 13 tokens.
  block 4 (after 6): copies 7 8 (from the text), 9 is cut. Drafts 7 8, copies
    9 2 3; all right, then the bonus 4.        1 review; 16 tokens of 19: cut.
  """
  size = 10
  counting = {0: 2, 1: 2, 9: 2} | {x: x + 1 for x in range(2, 9)}
  errs, right = (
    toy.moving(counting | wrong, size, 1e-9) for wrong in ({5: 2}, {})
  )
  bigrams = [(counting | {8: 2})[x] for x in range(size)]
  drafter = cascade_drafter(
    (errs,),
    MaxGramDrafter.create(bigrams, width=1, vocab_size=size),
    [[2, 3], [0, 2]],
  )
  decoded = toy.decode(
    "cascade_drafting",
    (drafter, right),
    inputs=jnp.zeros((1, 2), jnp.int32),
    max_decode_len=16,
  )
  assert decoded.tokens.tolist() == [[2, 3, 4, 5, 6, 7, 8, 9] * 2]
  stats = decoded.stats
  assert stats.num_blocks.tolist() == [4]
  assert stats.calls_by_model.tolist() == [[5]]
  assert stats.drafter_calls.tolist() == [5]
  assert stats.accepted_at.tolist() == [[1, 0, 0, 1, 0, 2]]
  assert stats.accepted.tolist() == [5 + 5 + 0 + 3]
