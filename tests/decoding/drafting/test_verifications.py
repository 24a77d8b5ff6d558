"""Which verification is exact for which drafter: every pair of them.

A verification demands something of how drafts were drawn. Each pair is either
refused in one line, or what is written has the verifier's distribution.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  METHODS,
  AutoregressiveDrafter,
  BranchedDrafter,
  Decoder,
  DraftTree,
  HeadsDrafter,
  HorizontalDrafter,
  LookaheadDrafter,
  MaxGramDrafter,
  Sampling,
  SeveralDrafters,
  VerticalDrafter,
  row_keys,
)
from speccascade.decoding.drafting import children
from speccascade.decoding.drafting.autoregressive import StopPolicy
from speccascade.decoding.drafting.tree_drafter import TreeDrafter
from speccascade.decoding.laws import draws, lossy_targets, targets
from speccascade.decoding.records import draft_tree
from speccascade.decoding.verification import review
from speccascade.decoding.verification.review_records import BlockSettings
from speccascade.judge import goodness
from tests import method_laws, toy, toy_chains
from tests.decoding.drafting import models, toy_heads, toy_lookahead

V, LENGTH, ROWS = 4, 4, 20_000
PAIR = toy.pair(V, 1)
SMALL, LARGE = PAIR.models()
OTHER = SMALL.replace(table=jnp.flip(SMALL.table, axis=-1) * 0.5)
AHEAD = np.random.default_rng(4).dirichlet(np.full(V, 0.6), (3, V))
TREE = DraftTree((-1, -1, -1, 1, 1))
SAMPLING = Sampling.create(1.0)


def small(width=2, model=SMALL, **options):
  return AutoregressiveDrafter(model, width, behind=6, **options)


def stopping(before_draw, width=2):
  stop = StopPolicy(jnp.float32(0.425), before_draw=before_draw)
  return small(width, stop=stop)


def copier(width=2):
  # It ends its blocks where nothing is left to copy.
  return MaxGramDrafter.create(None, width=width, vocab_size=V)


def in_a_row():
  # Where nothing is copied, the block has one draft.
  return HorizontalDrafter((copier(1), small(1)))


def reviewed():
  return VerticalDrafter(
    stopping(True),
    OTHER,
    jnp.float32(0.5),
    2,
    target=lossy_targets.lossy,
    bonus="verifier",
  )


def heads(*tree):
  return HeadsDrafter(toy_heads.of_laws(AHEAD), LARGE, 2, *tree)


def embeddings(*tree):
  ahead = toy_lookahead.of_laws(AHEAD)
  return LookaheadDrafter(ahead.language_model(LARGE), 3, 2, *tree)


CHAINS = {
  "model": small,
  "stops before a draw": lambda: stopping(True),
  "stops after a draw": lambda: stopping(False),
  "copies": copier,
  "row": in_a_row,
  "reviewed": reviewed,
  "heads": heads,
  "embeddings": embeddings,
}
TREES = {
  "tree": lambda drawing: TreeDrafter(SMALL, TREE, drawing),
  "heads": lambda drawing: heads(TREE, drawing),
  "embeddings": lambda drawing: embeddings(TREE, drawing),
  "siblings": lambda chain: BranchedDrafter(CHAINS[chain](), 3),
  "beside": lambda chain: SeveralDrafters(
    (small(model=OTHER), CHAINS[chain]())
  ),
}
KINDS = [
  (kind, how)
  for kind in TREES
  for how in (CHAINS if kind in ("siblings", "beside") else draft_tree.DRAWINGS)
]
VERIFICATIONS = ("token", "block", "traversal", "k_seq")


def refusal(kind: str, how: str, verification: str) -> str | None:
  """Returns what a pair is refused with; None where it has the distribution."""
  if kind == "beside" and verification != "token":
    return "come from several drafters"
  if verification == "block":
    return "weighs a chain"
  if verification == "k_seq" and how != draft_tree.IID:
    return "exact for the drawing 'iid' alone, and the drafter given, a "
  return None


PAIRS = [(*kind, x) for kind in KINDS for x in VERIFICATIONS]
REFUSED = [pair for pair in PAIRS if refusal(*pair)]
# Trees of models, of heads and of embeddings are sampled beside their drafters'
# other tests.
EXACT = [
  pair
  for pair in PAIRS
  if not refusal(*pair) and pair[0] in ("siblings", "beside")
]


QUICK = [
  ("beside", "stops after a draw", "token"),
  ("siblings", "stops after a draw", "traversal"),
]


@functools.cache
def law():
  return method_laws.text_law(PAIR, METHODS["spec_decode"], SAMPLING, LENGTH)


def sample(name, drafter, alpha, **how):
  """Returns how often each text of LARGE and a drafter was written."""
  how |= {"inputs": PAIR.inputs, "num": ROWS, "seed": 3}
  models = drafter, LARGE
  return toy.sample(name, models, alpha, SAMPLING, max_decode_len=LENGTH, **how)


@functools.cache
def decode(kind, how, verification, rows):
  return toy.decode(
    "spec_decode",
    (TREES[kind](how), LARGE),
    sampling=SAMPLING,
    inputs=PAIR.inputs(rows),
    keys=row_keys(3, 0, jnp.arange(rows)),
    max_decode_len=LENGTH,
    gamma=2,
    verification=verification,
  )


@pytest.mark.parametrize(("kind", "how", "verification"), REFUSED)
def test_a_verification_that_is_not_exact_is_refused(kind, how, verification):
  message = refusal(kind, how, verification)
  with pytest.raises(ValueError, match=message) as error:
    decode(kind, how, verification, 1)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("kind", "how", "verification"),
  toy.nightly(EXACT, QUICK),
)
def test_every_other_verification_is_exact(kind, how, verification):
  decoded = decode(kind, how, verification, ROWS)
  assert decoded.stats.accepted.sum() > 0 or how == "heads"
  counts = toy.counts(decoded, V, LENGTH)
  assert goodness.p_value(counts, law()) > toy.LEVEL


def test_a_path_ends_where_its_drafter_stopped():
  parts, rows = (stopping(False, 3), small(3, OTHER)), 400
  inputs, keys = PAIR.inputs(rows), row_keys(3, 0, jnp.arange(rows))
  got = models.propose(SeveralDrafters(parts), inputs, SAMPLING, keys=keys)
  alone = models.propose(
    parts[0], inputs, SAMPLING, keys=draws.fold_in(keys, 0)
  )
  count = np.asarray(alone.count)
  assert set(count.tolist()) == {1, 2, 3}
  parents, tokens = np.asarray(got.branches.parents), np.asarray(got.tokens)
  # Drafts 0, 2 and 4 are the first path, and 1, 3 and 5 the second one.
  assert np.all(parents[:, :2] == 0)
  assert np.array_equal(parents[:, 2] < 0, count < 2)
  assert np.array_equal(parents[:, 4] < 0, count < 3)
  # The second path follows the first one where they agree, and not beyond it.
  is_same = tokens[:, 0] == tokens[:, 1]
  assert np.array_equal(parents[:, 3], np.where(is_same, 1, 2))
  is_same &= tokens[:, 2] == tokens[:, 3]
  assert np.any(is_same & (count < 2))
  is_same &= count >= 2
  assert np.array_equal(parents[:, 5], np.where(is_same, 3, 4))
  # A node records what its first draft was drawn from.
  for node in range(7):
    follows = parents == node
    here = np.flatnonzero(follows.any(1))
    law = np.asarray(got.branches.laws)[here, follows[here].argmax(1)]
    np.testing.assert_array_equal(np.asarray(got.q)[here, node], law)
  # Only drafts are counted as drafted.
  stats = decode("beside", "stops after a draw", "token", ROWS).stats
  assert 2 * stats.num_blocks.sum() < stats.drafted.sum()
  assert stats.drafted.sum() < 4 * stats.num_blocks.sum()


@pytest.mark.parametrize("drawing", draft_tree.DRAWINGS[1:])
def test_the_review_itself_refuses_a_tree(drawing):
  # What a call is refused for before it is traced, the review asserts.
  drafter, keys = (
    TreeDrafter(SMALL, TREE, drawing),
    row_keys(0, 0, jnp.arange(2)),
  )
  proposal = models.propose(drafter, PAIR.inputs(2), SAMPLING)
  settings = BlockSettings(
    sampling=SAMPLING, target=targets.lossless, verification="k_seq"
  )
  logits = jnp.zeros(proposal.q.shape)
  with pytest.raises(AssertionError, match=f"('k_seq', '{drawing}')"):
    review.verify(proposal, logits, keys, settings)


MORE = DraftTree((-1,) * (V + 1))
OUTNUMBERING = {
  "tree": (SMALL, {"tree": (V + 1,), "drawing": "without_replacement"}),
  "heads": (
    toy_heads.of_laws(AHEAD),
    {"tree": (V + 1,), "drawing": "without_replacement"},
  ),
  "drafter": (TreeDrafter(SMALL, MORE, draft_tree.WITHOUT_REPLACEMENT), {}),
  "siblings": (BranchedDrafter(small(1), V + 1), {}),
}


@pytest.mark.parametrize("name", OUTNUMBERING)
def test_more_children_than_tokens_are_refused(name):
  drafter, settings = OUTNUMBERING[name]
  options = {"gamma": 1, "max_decode_len": 4, "eos_id": 1} | settings
  decoder = Decoder(METHODS["spec_decode"], **options)
  with pytest.raises(ValueError, match="5 drafts follow one token") as error:
    decoder.check(drafter, LARGE, 0.0, SAMPLING)
  assert "\n" not in str(error.value)
  if not settings:
    # The drafter itself refuses it, too.
    with pytest.raises(ValueError, match="5 drafts follow one token"):
      models.propose(drafter, PAIR.inputs(1), SAMPLING)
  law = jnp.full((1, 1, V), 0.25)
  with pytest.raises(ValueError, match="the vocabulary has 4 tokens"):
    children.draw_children(
      law, law, jnp.zeros((1, 1, 5)), "without_replacement", greedy=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("drawing", ["iid", "greedy_and_random", "top_k"])
def test_other_children_may_outnumber_the_tokens(drawing):
  drafter = TreeDrafter(SMALL, MORE, drawing)
  counts = sample("spec_decode", drafter, None, gamma=1)
  assert goodness.p_value(counts, law()) > toy.LEVEL


def law_of_printed_bonus() -> np.ndarray:
  """Returns the distribution of blocks of certain drafts, in `chain_law`'s
  order.

  The root has two drafts, of which the second one has a draft of its own. A
  token is drawn at each node: from the target where a draft follows, and else
  from the verifier, which ends the block.
  """
  p = np.asarray(jax.nn.softmax(jnp.asarray(PAIR.flat()[1])), float)
  found: dict[tuple[int, ...], float] = {}

  def go(text, chance, node, start):
    last = text[-1] if text else 0
    if text and (last == toy_chains.EOS or len(text) == LENGTH):
      found[text] = found.get(text, 0.0) + chance
      return
    # The embedding after the text says what follows the second draft.
    laws = {"root": p[start], "second": 0.5 * (p[last] + AHEAD[0, start])}
    drafts = {
      "root": dict(
        zip(np.argsort(-p[start], kind="stable")[:2], ("", "second"))
      ),
      "second": {np.argmax(AHEAD[0, start]): ""},
    }
    for token, share in enumerate(laws.get(node, p[last])):
      child = drafts.get(node, {}).get(token, "root")
      begin = token if child == "root" else start
      if share > 0:
        go((*text, token), chance * share, child, begin)

  go((), 1.0, "root", 0)
  return np.array([found.get(x, 0.0) for x in toy_chains.sequences(V, LENGTH)])


def test_the_printed_bonus_is_the_verifiers_wherever_no_draft_follows():
  counts = sample(
    "ensemble",
    toy_lookahead.of_laws(AHEAD),
    0.5,
    gamma=2,
    tree=(-1, -1, 1),
    drawing="top_k",
    bonus="verifier",
  )
  assert goodness.p_value(counts, law_of_printed_bonus()) > toy.LEVEL
