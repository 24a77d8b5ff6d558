"""The n-gram model: its distribution against a slow twin, and its files."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.models.ngram_lm import NgramLM
from speccascade.training import ngram_counts
from tests import toy

V = 7


@functools.cache
def text():
  """Sentences over 2..6 with a taste for repetition; 0 and 1 frame them."""
  rng = np.random.default_rng(0)
  rows = []
  for _ in range(60):
    row = list(rng.integers(2, V, 3))
    for _ in range(rng.integers(0, 12)):
      row.append(int((row[-2] + rng.integers(0, 2)) % (V - 2) + 2))
    rows.append([int(x) for x in row])
  return rows


@functools.cache
def model(order=3, successors=4, min_count=2):
  counts = ngram_counts.count(text(), vocab_size=V, order=order)
  return ngram_counts.smooth(
    counts, vocab_size=V, successors=successors, min_count=min_count
  )


def twin(context, order, successors, min_count):
  """The next token after a context, from the sentences; float64."""
  rows = [[0] * (order - 1) + row + [1] for row in text()]
  unigram = np.zeros(V)
  for row in rows:
    for token in row[order - 1 :]:
      unigram[token] += 1
  different = (unigram > 0).sum()
  law = (unigram + different / V) / (unigram.sum() + different)
  for size in range(1, order):
    tail = list(context[len(context) - size :])
    number = np.zeros(V)
    for row in rows:
      for end in range(order - 1, len(row)):
        if row[end - size : end] == tail:
          number[row[end]] += 1
    total, different = number.sum(), (number > 0).sum()
    if total == 0 or (size > 1 and total < min_count):
      break
    likeliest = sorted(range(V), key=lambda v: (-number[v], v))[:successors]
    share = np.zeros(V)
    share[likeliest] = number[likeliest] / (total + different)
    law = share + (1 - share.sum()) * law
  return law


@pytest.mark.parametrize(
  ("order", "successors", "min_count"), [(2, 2, 1), (3, 4, 2), (4, 7, 1)]
)
def test_law_equals_the_twin(order, successors, min_count):
  lm = model(order, successors, min_count)
  assert lm.order == order - 1
  grid = np.array(list(np.ndindex(*(V,) * (order - 1))))
  context = [jnp.asarray(column, jnp.int32)[:, None] for column in grid.T]
  source = jnp.zeros((len(grid),), jnp.int32)
  logits = jax.jit(lambda lm, c: lm.look_up(source, c))(lm, context)
  law = np.exp(np.asarray(logits[:, 0], np.float64))
  np.testing.assert_allclose(law.sum(-1), 1, atol=1e-6)
  for i in range(0, len(grid), 1 if order < 4 else 7):
    expected = twin(grid[i], order, successors, min_count)
    np.testing.assert_allclose(law[i], expected, atol=1e-6)


def test_counts_do_not_depend_on_the_chunks(monkeypatch):
  count = lambda: ngram_counts.count(text(), vocab_size=V, order=3)
  whole = count()
  monkeypatch.setattr(ngram_counts, "_CHUNK", 20)
  jax.tree.map(np.testing.assert_array_equal, whole, count())


def test_greedy_bigrams():
  counts = ngram_counts.count([[2, 3, 2, 3, 2, 4]], vocab_size=6, order=2)
  lm = ngram_counts.smooth(counts, vocab_size=6)
  # 0 (start) -> 2, 2 -> 3 (twice; 4 once), 3 -> 2, 4 -> 1 (the end).
  assert lm.greedy_bigrams().tolist() == [2, 0, 3, 2, 1, 0]


def test_a_bigram_model_drafts_for_a_larger_one():
  bigrams, lm = model(2, 2, 1), model(4, 7, 1)
  inputs = jnp.ones((400, 3), jnp.int32)
  out, expected = (
    toy.decode(name, (bigrams, lm), inputs=inputs)
    for name in ("spec_decode", "verifier")
  )
  np.testing.assert_array_equal(out.tokens, expected.tokens)
  assert int(out.stats.accepted.sum()) > 0


def test_save_and_load(tmp_path):
  lm = model().replace(vocabulary="abc")
  path = tmp_path / "counts.npz"
  lm.save(path)
  read = NgramLM.load(path)
  assert read.vocabulary == "abc"
  assert jax.tree.structure(read) == jax.tree.structure(lm)
  jax.tree.map(np.testing.assert_array_equal, read, lm)


def test_further_tokens_have_no_probability():
  lm = model()
  wide = lm.padded(V + 2)
  assert wide.vocab_size == V + 2

  def law(lm, *context):
    tokens = [jnp.full((1, 1), token, jnp.int32) for token in context]
    return np.exp(lm.look_up(jnp.zeros((1,), jnp.int32), tokens)[0, 0])

  unigram = np.pad(lm.unigram, (0, 2))
  # After a token that no text has, the distribution is that of the shorter
  # context.
  for context, want in (
    ((3, 2), np.pad(law(lm, 3, 2), (0, 2))),
    ((V, 2), np.pad(law(lm.replace(levels=lm.levels[:1]), 2), (0, 2))),
    ((3, V + 1), unigram),
    ((V + 1, V), unigram),
  ):
    actual = law(wide, *context)
    np.testing.assert_allclose(actual, want, atol=1e-6)
    np.testing.assert_allclose(actual.sum(), 1, atol=1e-6)
  with pytest.raises(ValueError, match="has 7 tokens, the pair 6"):
    lm.padded(V - 1)


def test_bad_files_are_named(tmp_path):
  with pytest.raises(FileNotFoundError, match="no n-gram model at"):
    NgramLM.load(tmp_path / "none.npz")
  path = tmp_path / "counts.npz"
  model().save(path)
  path.write_bytes(path.read_bytes()[:200])
  with pytest.raises(ValueError, match="or not whole"):
    NgramLM.load(path)
  np.savez(path, unigram=np.ones(3))
  with pytest.raises(ValueError, match="is not an n-gram model"):
    NgramLM.load(path)
  path.write_bytes(b"")
  with pytest.raises(
    ValueError, match=r"counts.npz is not .* is empty, or dam"
  ):
    NgramLM.load(path)


def test_arrays_that_do_not_fit_are_refused(tmp_path):
  path = tmp_path / "counts.npz"
  model().save(path)
  with np.load(path) as file:
    arrays = dict(file)
  meta = json.loads(arrays["meta"].tobytes())
  as_bytes = lambda **more: np.frombuffer(
    json.dumps(meta | more).encode(), np.uint8
  )
  for name, value, message in (
    ("meta", as_bytes(levels=0), "it has 0 levels"),
    ("meta", as_bytes(levels=10**9), "missing"),
    ("meta", as_bytes(vocabulary=[]), r"its vocabulary is \[\], no text"),
    ("unigram", np.ones((2, 2)), r"over \(2, 2\) tokens"),
    ("0/probs", arrays["0/probs"][:-1], r"array 0/probs has shape"),
    ("0/probs", arrays["0/successors"], r"array 0/probs has dtype int32"),
    ("0/successors", arrays["0/successors"] + V, "array 0/successors has"),
    ("0/first_child", arrays["0/first_child"] - 1, "first_child has -1"),
  ):
    np.savez(path, **arrays | {name: value})
    with pytest.raises(ValueError, match=message) as error:
      NgramLM.load(path)
    assert "counts.npz is not an n-gram model" in str(error.value)


@pytest.mark.parametrize(
  ("sequences", "options", "message"),
  [
    ([], {}, "the text is empty"),
    ([[2, 9]], {}, "token 9; .*ids 0 to 6"),
    ([[2, -1]], {}, "the text has token -1"),
    ([[2]], {"order": 1}, "the order is 1"),
    ([[2]], {"order": 5, "vocab_size": 32128}, "lower the order"),
  ],
)
def test_wrong_texts_are_refused(sequences, options, message):
  with pytest.raises(ValueError, match=message):
    ngram_counts.count(sequences, **({"vocab_size": V, "order": 2} | options))


def test_a_real_vocabulary_fits():
  """32,128 tokens and 100,000 of text: built, and asked in one program."""
  size = 32128
  rng = np.random.default_rng(0)
  words = rng.zipf(1.3, 100_000) % (size - 2) + 2
  rows = np.split(words, 1000)
  lm = ngram_counts.smooth(
    ngram_counts.count(rows, vocab_size=size, order=3), vocab_size=size
  )
  context = [jnp.asarray(row[:2], jnp.int32)[None] for row in rows[:2]]
  logits = lm.look_up(jnp.zeros((1,), jnp.int32), context)
  assert logits.shape == (1, 2, size)
  np.testing.assert_allclose(np.exp(logits).sum(-1), 1, atol=1e-4)
