"""Compares batches with seqio's own converters, and checks their order."""

import itertools

import numpy as np
import pytest

from speccascade.tasks._tf import seqio, tf
from speccascade.text.arrays import TokenArrays, mix
from speccascade.training import training_batches

pytestmark = pytest.mark.needs_tf


def examples(num, seed=0, longest=9):
  """Pairs whose first input token is 10 + the index of the pair."""
  rng = np.random.default_rng(seed)
  pairs = []
  for i in range(num):
    inputs, targets = (
      rng.integers(3, 10, rng.integers(0, longest - 1)) for _ in range(2)
    )
    pairs.append(([10 + i, *inputs, 1], [*targets, 1]))
  return pairs


def arrays_of(pairs, num_cut=None):
  columns = zip(*pairs) if pairs else ([], [])
  tokens, sizes = {}, {}
  for name, column in zip(("inputs", "targets"), columns):
    ids = itertools.chain.from_iterable(column)
    tokens[name] = np.fromiter(ids, np.int32)
    sizes[name] = [len(ids) for ids in column]
  return TokenArrays.join(tokens, sizes, num_cut)


def indices(batch):
  """The examples of an unpacked batch, padding rows left out."""
  first = batch["encoder_input_tokens"][:, 0]
  return [int(i) - 10 for i in first if i]


def seqio_batch(pairs, widths, pack):
  dataset = tf.data.Dataset.from_generator(
    lambda: ({"inputs": a, "targets": b} for a, b in pairs),
    output_signature={
      name: tf.TensorSpec([None], tf.int32) for name in ("inputs", "targets")
    },
  )
  lengths = {"inputs": widths[0], "targets": widths[1]}
  converted = seqio.EncDecFeatureConverter(pack=pack)(dataset, lengths)
  rows = list(converted.as_numpy_iterator())
  return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def assert_equal(batch, expected):
  assert sorted(batch) == sorted(expected)
  for key, value in expected.items():
    np.testing.assert_array_equal(batch[key], value, key)
    assert batch[key].dtype == np.int32


def test_features_equal_seqio():
  pairs = examples(7)
  arrays = arrays_of(pairs)
  rows = [(i,) for i in range(7)]
  batch = training_batches.model_features(arrays, rows, (12, 11))
  assert_equal(batch, seqio_batch(pairs, (12, 11), pack=False))


def test_packing_equals_seqio():
  pairs, width = examples(40), {"inputs": 24, "targets": 24}
  arrays = arrays_of(pairs)
  options = {"batch_size": 2, "lengths": width, "pack": True}
  train = training_batches.train_batches(arrays, seed=3, **options)
  (bucket,) = train.buckets
  order = list(itertools.chain.from_iterable(bucket.rows))
  assert sorted(order) == list(range(40))
  assert max(map(len, bucket.rows)) > 2
  # seqio packs by the window; one window of 24 examples is enough to compare.
  expected = seqio_batch([pairs[i] for i in order[:24]], (24, 24), pack=True)
  num = len(expected["encoder_input_tokens"]) - 1  # the last one is cut short
  packed = training_batches.model_features(
    arrays, bucket.rows[:num], (24, 24), True
  )
  assert_equal(packed, {key: value[:num] for key, value in expected.items()})
  assert train.batch(0)["encoder_segment_ids"].shape == (2, 24)


def test_an_epoch_has_every_example_once():
  arrays = arrays_of(examples(24))
  train = training_batches.train_batches(arrays, batch_size=4, seed=1)
  assert train.steps_per_epoch == 6
  epochs = [
    [indices(train.batch(e * 6 + k)) for k in range(6)] for e in range(3)
  ]
  for epoch in epochs:
    assert sorted(itertools.chain(*epoch)) == list(range(24))
  assert epochs[0] != epochs[1] != epochs[2]
  other = training_batches.train_batches(arrays, batch_size=4, seed=2)
  assert indices(other.batch(0)) != epochs[0][0]


@pytest.mark.parametrize(
  "options",
  [
    {"batch_size": 8},
    {"batch_size": 4, "buckets": [5, (9, 10)]},
    {"batch_size": 2, "lengths": {"inputs": 20, "targets": 20}, "pack": True},
  ],
)
def test_resuming_continues_bit_for_bit(options):
  def train():
    arrays = arrays_of(examples(50))
    return training_batches.train_batches(arrays, seed=5, **options)

  unbroken = list(itertools.islice(train().iterator(), 40))
  for start in (0, 7, 33):
    resumed = itertools.islice(train().iterator(start), 40 - start)
    for a, b in zip(unbroken[start:], resumed, strict=True):
      assert_equal(b, a)
  # Batches can be had in any order as well.
  again = train()
  for k in (30, 2, 31, 3):
    assert_equal(again.batch(k), unbroken[k])


def test_buckets():
  arrays = arrays_of(examples(200, longest=20))
  train = training_batches.train_batches(
    arrays, batch_size=6, seed=0, buckets=[8, 14, (20, 21)]
  )
  # About as many positions each: 6 * 21 = 126 is 15 rows of 8 and 9 of 14.
  assert [b.batch_size for b in train.buckets] == [15, 9, 6]
  seen = []
  for k in range(train.steps_per_epoch):
    batch = train.batch(k)
    rows, width = batch["encoder_input_tokens"].shape
    assert (rows, width) in [(15, 8), (9, 14), (6, 20)]
    longest = max(
      max(len(arrays.get(f, i)) for f in ("inputs", "targets"))
      for i in indices(batch)
    )
    narrower = {8: 0, 14: 8, 20: 14}[width]
    assert narrower < longest <= width + (width == 20)
    seen += indices(batch)
  assert len(seen) == len(set(seen))
  assert len(seen) > 200 - 15 - 9 - 6


def test_small_sets_still_fill_a_batch():
  arrays = arrays_of(examples(3))
  train = training_batches.train_batches(arrays, batch_size=8, seed=0)
  assert train.steps_per_epoch == 1
  assert set(indices(train.batch(0))) == {0, 1, 2}
  # Two narrow examples cannot fill a batch of theirs: they join the wide ones.
  pairs = [([10, 1], [1]), ([11, 1], [1])]
  pairs += [([12 + i, *[3] * 8, 1], [1]) for i in range(4)]
  train = training_batches.train_batches(
    arrays_of(pairs), batch_size=2, seed=0, buckets=[4, 12]
  )
  assert [b.widths for b in train.buckets] == [(12, 12)]
  assert train.steps_per_epoch == 3
  # Six fill one, which has six rows of 4 for the two of 12.
  pairs += [([16 + i, 1], [1]) for i in range(4)]
  train = training_batches.train_batches(
    arrays_of(pairs), batch_size=2, seed=0, buckets=[4, 12]
  )
  assert [b.widths for b in train.buckets] == [(4, 4), (12, 12)]
  assert train.steps_per_epoch == 1 + 2


def test_eval_batches_have_every_example_once():
  arrays = arrays_of(examples(41))
  for buckets in (None, [7, 10]):
    some = list(
      training_batches.eval_batches(arrays, batch_size=4, buckets=buckets)
    )
    assert sorted(i for b in some for i in indices(b)) == list(range(41))
    weights = sum(int(b["decoder_loss_weights"].sum()) for b in some)
    assert weights == arrays.lengths("targets").sum()
    shapes = {b["encoder_input_tokens"].shape for b in some}
    assert len(shapes) == (2 if buckets else 1)
  in_order = training_batches.eval_batches(arrays, batch_size=4)
  assert indices(next(in_order)) == [0, 1, 2, 3]


def test_a_mixture_follows_its_rates():
  # 6 examples at rate 3/4 and 10 at 1/4: for all 10 to occur the epoch has 40
  # rows, 30 of the former (5 times each) and 10 of the latter.
  parts = [arrays_of(examples(6)), arrays_of(examples(16)[6:])]
  both = mix(parts, np.array([0.75, 0.25]))
  assert len(both) == 16
  train = training_batches.train_batches(both, batch_size=4, seed=0)
  seen = [i for k in range(10) for i in indices(train.batch(k))]
  counts = np.bincount(seen, minlength=16)
  np.testing.assert_array_equal(counts, [5] * 6 + [1] * 10)
  rows = training_batches.eval_batches(both, batch_size=4)
  assert sorted(i for b in rows for i in indices(b)) == list(range(16))


def test_npz(tmp_path):
  arrays = arrays_of(examples(5), {"inputs": 2, "targets": 0})
  folder = tmp_path / "cache"
  arrays.save(folder / "a.npz")
  again = TokenArrays.load(folder / "a.npz")
  assert again.num_cut == {"inputs": 2, "targets": 0}
  both = [
    training_batches.train_batches(a, batch_size=2, seed=0)
    for a in (arrays, again)
  ]
  for step in range(3):
    assert_equal(*(train.batch(step) for train in both))
  assert [p.name for p in folder.iterdir()] == ["a.npz"]
  path = tmp_path / "b.npz"
  whole = (folder / "a.npz").read_bytes()
  for content in (b"", whole[:200], whole[:60] + b"\xff" + whole[61:]):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"b\.npz holds no tokenized examples"):
      TokenArrays.load(path)


SHORT = {"inputs": 2, "targets": 2}


@pytest.mark.parametrize(
  ("num", "options", "message"),
  [
    (5, {"batch_size": 0}, "batch_size is 0"),
    (5, {"buckets": [2, 3]}, "widest batch takes 3 and 3"),
    (5, {"buckets": [20], "pack": True}, "exclude each other"),
    (5, {"lengths": SHORT, "pack": True}, "packed row takes 2 and 2"),
    (0, {}, "no examples"),
  ],
)
def test_wrong_arguments(num, options, message):
  arrays = arrays_of(examples(num))
  with pytest.raises(ValueError, match=message):
    training_batches.train_batches(
      arrays, seed=0, **{"batch_size": 1, **options}
    )


def test_features_of_prompts():
  """Worked by hand: texts 3 4|5 1 and 6|1 in one row, and apart."""
  arrays = arrays_of([([3, 4], [5, 1]), ([6], [1])])
  [packed] = np.array(
    [*training_batches.causal_features(arrays, [(0, 1)], (6,), True).values()]
  ).swapaxes(0, 1)
  assert packed.tolist() == [
    [3, 4, 5, 6, 0, 0],
    [4, 5, 1, 1, 0, 0],
    [0, 1, 1, 1, 0, 0],
    [1, 1, 1, 2, 0, 0],
    [0, 1, 2, 0, 0, 0],
  ]
  apart = training_batches.causal_features(arrays, [(0,), (), (1,)], (3,))
  assert apart["decoder_input_tokens"].tolist() == [
    [3, 4, 5],
    [0] * 3,
    [6, 0, 0],
  ]
  assert apart["decoder_loss_weights"].tolist() == [
    [0, 1, 1],
    [0] * 3,
    [1, 0, 0],
  ]
  with pytest.raises(ValueError, match="each is one width"):
    training_batches.train_batches(
      arrays, batch_size=1, seed=0, buckets=[(4, 4)], prompted=True
    )
  with pytest.raises(ValueError, match="example 0 has 3"):
    training_batches.train_batches(
      arrays, batch_size=1, seed=0, buckets=[2], prompted=True
    )
