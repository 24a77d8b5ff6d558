"""The cascade that a matrix K describes: its forms, its errors, its calls."""

import pytest

from speccascade.decoding import cascade_drafter
from speccascade.decoding.nested.cascade import increments
from speccascade.decoding.verification import steps
from tests import toy
from tests.decoding.drafting import models

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
  settings = {"lenience": 3.0, "verify": steps.block_verify}
  with pytest.raises(ValueError, match="row 1 of K has several drafters"):
    cascade_drafter(
      (MEDIUM, SMALL), COPIER, [[3, 2, 3], [0, 2, 2], [0, 0, 2]], **settings
    )
  plain = cascade_drafter((MEDIUM, SMALL), None, [[2, 1], [0, 2]], **settings)
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
    (None, [[2]], float("nan"), "lenience is nan; wanted 1"),
    (None, [[2]], float("inf"), "lenience is inf; wanted 1"),
    (None, [[2]], 1e9, r"lenience is 1e\+09; wanted 1"),  # 1 / l is lost
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


def test_each_model_reads_what_others_wrote_in_its_next_pass():
  """All agree: a review and its draft, three more drafts, and a bonus.

  So the reviewer lacks four tokens whenever it is asked again, the drafter
  below it the same, and the last one three.
  """
  lm = toy.moving({0: 2, 2: 3, 3: 4, 4: 2}, V)
  drafter = cascade_drafter((lm, lm), None, [[2, 3], [0, 1]])
  how = {"inputs": 2, "max_decode_len": 18}
  got = toy.decode("spec_decode", (drafter, lm), **how)
  assert got.stats.num_blocks.tolist() == [3, 3]
  assert got.stats.calls_by_model.tolist() == [[3, 3, 9]] * 2
