"""Padded lengths, and the rows that fill a short batch."""

import numpy as np
import pytest

from speccascade.generate.batches import padding
from speccascade.generate.batches.sources import Source


def test_buckets_are_few_and_hold_all():
  for max_len in (1, 7, 8, 24, 63, 128, 512, 1024):
    lengths = padding.buckets(max_len)
    assert lengths[-1] == max_len
    assert len(lengths) <= 6
    assert lengths == sorted(set(lengths))
  assert [padding.bucket_of(x, [8, 16]) for x in (8, 9, 16)] == [8, 16, 16]
  with pytest.raises(ValueError, match="17 tokens fits none"):
    padding.bucket_of(17, [8, 16])


def test_a_short_batch_repeats_its_last_example():
  batch = [
    Source(4, "", np.array([5, 1], np.int32)),
    Source(5, "", np.array([5, 6, 7, 8, 1], np.int32)),
  ]
  tokens, indices = padding.pad_batch(batch, 4, [3, 6])
  assert tokens.tolist() == [[5, 1, 0, 0, 0, 0], *[[5, 6, 7, 8, 1, 0]] * 3]
  assert indices.tolist() == [4, 5, 5, 5]
