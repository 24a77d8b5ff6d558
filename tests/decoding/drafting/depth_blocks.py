"""What the tests of draft heads and of look-ahead embeddings share.

Both draft blocks whose drafts at one depth have one law. Here they are tables
of laws over a chain of order 1, which is their verifier.
"""

from collections.abc import Iterator
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  Decoder,
  DraftLength,
  Sampling,
  Stream,
  decode_continuously,
  row_keys,
)
from tests import toy
from tests.decoding.drafting import exact

DRAFT, ACCEPT, DRAW = range(3)  # tags of a round
NEVER = 99  # an EOS that no chain writes

# What is written: a chain that is all but certain, and drafts that know it.

CYCLE = np.eye(6)[[2, 0, 3, 5, 0, 4]]
SURE = toy.markov(0.999 * CYCLE + 0.001 / 6)
SHAPES = {
  "chain": {"gamma": 3},
  "tree": {"tree": (2, 1, 1), "gamma": 3},
  "paths": {"drafts": 2, "gamma": 3},
}
EACH_SHAPE = pytest.mark.parametrize(
  ("shape", "prompted"),
  toy.nightly(
    itertools.product(SHAPES, (False, True)),
    quick=[("chain", True), ("tree", False)],
  ),
)


def decode_sure(drafter, shape: str, prompted: bool, length: int):
  """Returns what is decoded of `SURE`, which is what it writes alone.

  Args:
    drafter: heads or embeddings that know `CYCLE`.
    shape: a name of `SHAPES`.
    prompted: whether the verifier goes on from prompts.
    length: tokens of each of the three rows.
  """
  verifier = SURE.replace(prompted=prompted)
  inputs = toy.padded([(3,), (0, 2), (5, 4)]) if prompted else [[0], [0], [0]]
  options = {"inputs": jnp.asarray(inputs, jnp.int32), "eos_id": NEVER}
  options["max_decode_len"] = length
  got = toy.decode(
    "spec_decode", (drafter, verifier), **SHAPES[shape], **options
  )
  alone = toy.decode("verifier", (None, verifier), **options)
  assert np.all(got.bad_step == -1)
  assert np.array_equal(got.tokens, alone.tokens)
  return got


def _decoder(gamma: int, length: int) -> Decoder:
  return Decoder(
    METHODS["spec_decode"], gamma=gamma, max_decode_len=length, eos_id=NEVER
  )


def continuous_parts(drafter, length: int) -> Iterator:
  """Yields the parts of a continuous batch of `SURE`: five rows, two at a time.

  Each row is the same as where all rows are decoded at once.
  """
  verifier, decoder = SURE.replace(prompted=True), _decoder(3, length)
  inputs, keys = np.arange(5, dtype=np.int32)[:, None], jnp.arange(5)
  call = drafter, verifier, inputs, row_keys(0, 0, keys), 0.0, toy.GREEDY
  whole = decoder(*call)
  seen = []
  for index, part in decode_continuously(decoder, *call, rows=2, refill=1):
    seen += index.tolist()
    assert np.array_equal(part.tokens, np.asarray(whole.tokens)[index])
    yield part
  assert sorted(seen) == list(range(5))


def two_turns(drafter, length: int) -> Iterator:
  """Yields what two turns of `SURE` write; the second follows its own prompt.

  Token 1 goes to 0, and so does token 4, which ended the first turn.
  """
  keys = row_keys(0, 0, jnp.arange(2))
  stream = Stream(
    _decoder(3, length),
    drafter,
    SURE.replace(prompted=True),
    np.array([[3], [2]], np.int32),
    keys,
    0.0,
    toy.GREEDY,
    room=40,
  )
  yield stream.advance(length)
  stream.turn(np.array([[5, 2], [1, -1]], np.int32), keys)
  got = stream.advance(length)
  follow = np.argmax(CYCLE, axis=1)
  for row, last in zip(np.asarray(got.tokens), (2, 1)):
    for token in row:
      assert token == follow[last]
      last = token
  yield got


# What is proposed.


def assert_is_chain(proposal, laws: np.ndarray):
  """Asserts that 16 rows draft two tokens, all pairs of both laws.

  Args:
    proposal: the proposal, with a law after the drafts.
    laws: [3, V], of both drafts and of the place after them.
  """
  assert np.all(proposal.count == 2)
  assert not proposal.bad.any()
  want = np.broadcast_to(laws, (16, 3, 3))
  np.testing.assert_allclose(proposal.q, want, atol=1e-6)
  np.testing.assert_allclose(proposal.q1, want, atol=1e-6)
  assert np.all(proposal.has_bonus_law)
  exact.assert_drawn_from(proposal.tokens, proposal.q)
  # Every draft is drawn for itself: all pairs of tokens of either law come.
  pairs = {tuple(row) for row in np.asarray(proposal.tokens).tolist()}
  first, second = (np.flatnonzero(law) for law in laws[:2])
  assert pairs == set(itertools.product(first.tolist(), second.tolist()))


def assert_is_tree(proposal, laws: np.ndarray):
  """Asserts that 256 rows draft trees (2, 1) without replacement.

  Args:
    proposal: the proposal, without a law after the drafts.
    laws: [2, V], of both depths.
  """
  tokens = np.asarray(proposal.tokens)
  want = np.broadcast_to(laws[[0, 1, 1]], (256, 3, 3))
  np.testing.assert_allclose(proposal.q[:, :3], want, atol=1e-6)
  assert not np.any(proposal.has_bonus_law)
  assert np.all(tokens[:, 0] != tokens[:, 1])
  # Each child has a uniform of its own, and the law of its depth.
  for draft, law in ((0, laws[0]), (2, laws[1]), (3, laws[1])):
    share = np.bincount(tokens[:, draft], minlength=3) / len(tokens)
    np.testing.assert_allclose(share, law, atol=1e-6)
  joint = np.zeros((3, 3))
  np.add.at(joint, (tokens[:, 2], tokens[:, 3]), 1 / len(tokens))
  np.testing.assert_allclose(joint, np.outer(laws[1], laws[1]), atol=1e-6)


# The law of whole decodes.


def decode_every_path(drafter, cells: dict, monkeypatch):
  """Returns three tokens of each path, which have the verifier's law.

  All uniforms of the rounds go through the compiled loop, in equal cells.

  Args:
    drafter: heads or embeddings over two tokens.
    cells: see `exact.Digits`.
    monkeypatch: pytest's.
  """
  p = np.array([[1 / 2, 1 / 2], [1 / 4, 3 / 4]])
  digits = exact.Digits(cells)
  keys = digits.choose(monkeypatch)
  program, arguments = _decoder(2, 3).call(
    drafter,
    toy.markov(p),
    jnp.zeros((digits.num_rows, 1), jnp.int32),
    keys,
    0.0,
    Sampling.create(1.0),
  )
  decoded = jax.jit(program.run)(*arguments)
  tokens = np.asarray(decoded.tokens)
  shares = np.zeros((2, 2, 2))
  np.add.at(shares, tuple(tokens.T), 1 / len(tokens))
  want = p[0][:, None, None] * p[:, :, None] * p[None]
  np.testing.assert_allclose(shares, want, atol=1e-6)
  return decoded


# What both refuse: (method, options, message).
REFUSED = [
  ("cascade_drafting", {}, "wants a language model as its drafter"),
  ("token_cascade_chow", {}, "wants a language model as its drafter"),
  ("spec_cascade_opt", {"verification": "block"}, "no stated distribution"),
  (
    "spec_decode",
    {"draft_length": DraftLength("max_prob", 0.5)},
    "draft whole blocks",
  ),
]
