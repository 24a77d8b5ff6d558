"""Max-Gram equals a brute-force reference, row by row."""

import numpy as np
import pytest

from speccascade.decoding import MaxGramDrafter, Sampling
from tests import toy
from tests.decoding.drafting import models
from tests.decoding.records.test_prompts import SIDES


def drafts(drafter, sources, written):
  """Returns the proposals after many texts of their lengths, [N, width].

  Of a drafter on prompts these are the sources; what was written continues
  their last tokens.
  """
  if drafter.prompted:
    written = [[*s[-1:], *text] for s, text in zip(sources, written)]
  width = max(map(len, sources)) + 2
  inputs = np.full((len(sources), width), -drafter.prompted, np.int32)
  tokens = np.full((len(sources), max(map(len, written)) + 3), 9, np.int32)
  for i, (source, text) in enumerate(zip(sources, written)):
    inputs[i, : len(source)] = source
    tokens[i, : len(text)] = text
  return models.propose(
    drafter,
    inputs,
    Sampling.create(1.0),
    tokens=tokens,
    length=np.array([len(text) for text in written], np.int32),
  )


def longest_suffix(text, generated, n):
  """Up to n tokens after the leftmost place of the longest suffix in text."""
  for size in range(len(generated), 0, -1):
    suffix = generated[-size:]
    for start in range(len(text) - size + 1):
      if text[start : start + size] == suffix:
        return text[start + size :][:n]
  return []


def reference(source, generated, n, table):
  """The n tokens after it: copied, copied once more, then a chain if any."""
  source = [token for token in source if token]
  chunk = longest_suffix(source + generated[:-1], generated, n)
  if len(chunk) < n:
    longer = generated + chunk
    chunk = chunk + longest_suffix(longer[:-1], longer, n)
  chunk = chunk[:n]
  while table is not None and len(chunk) < n:
    chunk.append(int(table[(generated + chunk)[-1]]))
  return chunk


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
  ("source", "generated", "n", "expected"),
  [
    ([1, 2, 5, 1, 2, 7, 9, 9], [9, 1, 2], 3, [5, 1, 2]),
    ([5, 6, 7, 8], [0, 6], 6, [7, 8, 0, 6, 7, 8]),
    ([7, 8, 9], [0, 33], 4, [34, 35, 36, 37]),
    # T5: the source's EOS, and then the start token, can be drafted.
    ([4, 5, 1], [0, 4], 4, [5, 1, 0, 4]),
    # Nothing but the start token, which does not occur elsewhere.
    ([4, 5, 1], [0], 2, [1, 2]),
  ],
)
def test_worked_cases(source, generated, n, expected):
  table = (np.arange(50) + 1) % 50
  drafter = MaxGramDrafter.create(table, width=n, vocab_size=50)
  assert reference(source, generated, n, table) == expected
  proposal = drafts(drafter, [source], [generated])
  assert proposal.tokens.tolist() == [expected]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
  ("vocab_size", "n", "prompted"),
  [(4, 3, False), (3, 7, False), (12, 4, False), (4, 3, True)],
)
def test_equals_brute_force(vocab_size, n, prompted):
  rng = np.random.default_rng(vocab_size)
  num = 2000
  sources, generated = (
    [list(map(int, rng.integers(low, vocab_size, size))) for size in sizes]
    for low, sizes in (
      (1, rng.integers(0, 13, num)),
      (0, rng.integers(1, 14, num)),
    )
  )
  for row in generated:
    row[0] = 0  # the start token, or any
  if prompted:
    sources = [row or [0] for row in sources]
  table = rng.integers(0, vocab_size, vocab_size)
  drafter = MaxGramDrafter.create(
    table, width=n, vocab_size=vocab_size, prompted=prompted
  )
  proposal = drafts(drafter, sources, generated)
  texts = (sources, generated)
  if prompted:  # one text
    generated = [s + text for s, text in zip(sources, generated)]
    sources = [[]] * num
  expected = [
    reference(source, written, n, table)
    for source, written in zip(sources, generated)
  ]
  np.testing.assert_array_equal(proposal.tokens, expected)
  # A copy is certain: its distribution is one-hot at what was copied.
  one_hot = np.eye(vocab_size, dtype=np.float32)[np.asarray(expected)]
  np.testing.assert_array_equal(proposal.q[:, :n], one_hot)
  assert np.all(np.asarray(proposal.count) == n)
  assert np.all(proposal.copied)
  # Without a table it drafts what can be copied, and no more.
  drafter = MaxGramDrafter.create(
    None, width=n, vocab_size=vocab_size, prompted=prompted
  )
  lone = [
    reference(source, written, n, None)
    for source, written in zip(sources, generated)
  ]
  proposal = drafts(drafter, *texts)
  assert proposal.count.tolist() == [len(copied) for copied in lone]
  assert min(map(len, lone)) == 0 or prompted
  for tokens, copied in zip(proposal.tokens.tolist(), lone):
    assert tokens[: len(copied)] == copied


@pytest.mark.usefixtures("either_way")
def test_prompts_are_copied_from_wherever_they_are():
  """5 6 7 8 5 6 | 7: what followed the first 5 6 7, and that once more."""
  text, width = (5, 6, 7, 8, 5, 6), 4
  inputs = np.concatenate([toy.padded([text], side) for side in SIDES])
  drafter = MaxGramDrafter.create(None, width=width, vocab_size=9)
  proposal = models.propose(
    drafter.replace(prompted=True),
    inputs,
    Sampling.create(1.0),
    tokens=np.array([[6, 7, 0, 0, 0, 0]] * len(SIDES), np.int32),
    length=np.full(len(SIDES), 2, np.int32),
  )
  assert proposal.tokens.tolist() == [[8, 5, 6, 7]] * len(SIDES)
  assert proposal.count.tolist() == [width] * len(SIDES)


def test_each_way_has_programs_of_its_own(either_way):
  """The tests above run native code where they say so."""
  drafter = MaxGramDrafter.create([1, 0], width=2, vocab_size=2)
  ones = np.ones((1, 3), np.int32)
  program = models.propose.trace(drafter, ones, Sampling.create(1.0))
  assert ("Copies" in str(program.jaxpr)) == (either_way == "native")


def test_a_shorter_table_is_padded():
  drafter = MaxGramDrafter.create([3, 2], width=1, vocab_size=4)
  assert drafter.next_token.tolist() == [3, 2, 0, 0]


@pytest.mark.parametrize(
  ("table", "message"),
  [
    ([0] * 5, "5 entries, the vocabulary 4 rows"),
    ([0, 4], "names token 4; .*0 to 3"),
    ([0, -1], "names token -1"),
  ],
)
def test_a_wrong_table_is_refused(table, message):
  with pytest.raises(ValueError, match=message):
    MaxGramDrafter.create(table, width=1, vocab_size=4)
