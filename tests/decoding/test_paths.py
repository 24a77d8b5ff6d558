"""Every path of a whole decode through the compiled loops.

What a path writes and what is counted on the way is known beforehand; the
weights of the paths add up to the law.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, DraftLength, Sampling, decoders
from speccascade.decoding.types import (
  BONUS,
  DRAFT,
  RESIDUAL,
  SEQUENTIAL_P,
  SEQUENTIAL_Q,
)
from tests import toy
from tests.decoding import driving, enumeration
from tests.decoding.test_laws import telling_alpha

# name, gamma, length, settings, temperature
SPECULATIVE = {
  "token": ("spec_cascade_opt", 2, 5, {}, 1.0),
  "one draft": ("spec_cascade_diff", 1, 6, {}, 0.7),
  "block": ("spec_cascade_token_v3", 2, 4, {"verification": "block"}, 1.0),
  "printed bonus": ("spec_cascade_opt", 2, 5, {"bonus": "verifier"}, 1.0),
  "printed bonus, stop": (
    "ensemble",
    2,
    4,
    {"bonus": "verifier", "draft_length": DraftLength("max_prob", 0.7)},
    1.0,
  ),
  "lossless": ("spec_decode", 2, 4, {}, 1.7),
  "token rule": ("spec_cascade_token_v1", 2, 4, {}, 1.0),
  "wide": ("ensemble", 3, 3, {}, 1.0),
  "stop before": (
    "spec_cascade_chow",
    3,
    5,
    {"draft_length": DraftLength("max_prob", 0.55)},
    1.0,
  ),
  "stop behind": (
    "spec_decode_lossy",
    3,
    5,
    {"draft_length": DraftLength("token_prob", 0.5)},
    1.0,
  ),
}
NIGHTLY = [
  pytest.param((name, 2, 4, {"verification": way}, 0.8), marks=pytest.mark.slow)
  for name, row in METHODS.items()
  if row.has_blocks and row.compose is None and not row.greedy_only
  for way in ("token", "block")
]


def exact(name, gamma, settings, temperature):
  """Returns (alpha, laws, paths of one block), worked out in float64."""
  with jax.enable_x64(True):
    alpha = telling_alpha(name, 3, 2)
    pair, row = toy.pair(3, 2), METHODS[name]
    law = enumeration.laws(
      pair, row.target, alpha, Sampling.create(temperature)
    )
    block = enumeration.block(
      pair,
      law,
      gamma,
      verification=settings.get("verification", "token"),
      bonus=settings.get("bonus", "target"),
      policy=settings.get("draft_length", DraftLength()),
    )
    return alpha, law, block


def padded(rows, length):
  return np.array([(*row, *[0] * (length - len(row))) for row in rows])


@pytest.mark.parametrize(
  "case",
  [*(pytest.param(v, id=k) for k, v in SPECULATIVE.items()), *NIGHTLY],
)
def test_every_path_of_the_speculative_loop(case, monkeypatch):
  name, gamma, length, settings, temperature = case
  pair = toy.pair(3, 2)
  alpha, law, block = exact(name, gamma, settings, temperature)
  verification = settings.get("verification", "token")
  ways = driving.cells(pair, law, block, verification)
  made = driving.paths(pair, ways, length)
  assert abs(sum(path.weight for path in made) - 1) < 1e-3

  decoder = decoders.decoder(
    name,
    gamma=gamma,
    max_decode_len=length,
    eos_id=toy.EOS,
    trace=True,
    **settings,
  )
  results = driving.run(
    decoder,
    pair.models(),
    driving.tables(made, gamma),
    alpha,
    Sampling.create(temperature),
    monkeypatch,
  )
  book = Book(pair, law, block, decoder, alpha)
  stats, records = zip(*(book.keep(path) for path in made))
  for got in results:
    assert_tokens(got, [path.tokens for path in made], length)
    for field in stats[0]:
      np.testing.assert_allclose(
        getattr(got.stats, field),
        [row[field] for row in stats],
        atol=1e-4,
        err_msg=field,
      )
    inside = np.arange(length) < got.lengths[:, None]
    columns = {
      field: padded([row[field] for row in records], length)[inside]
      for field in records[0]
    }
    for model, table, known in (
      ("q", law.q1, columns.pop("known_q")),
      ("p", law.p1, True),
    ):
      likeliest = np.argsort(-table, axis=-1)[columns["context"]]
      probs = np.sort(table, axis=-1)[:, ::-1][columns["context"]]
      known = np.broadcast_to(known, len(probs))
      top = getattr(got.trace, f"{model}_top")[inside]
      np.testing.assert_array_equal(top[known], likeliest[known])
      np.testing.assert_allclose(
        getattr(got.trace, f"{model}_prob")[inside],
        np.where(known[:, None], probs, np.nan),
        atol=1e-5,
      )
    del columns["context"]
    for field, want in columns.items():
      np.testing.assert_allclose(
        getattr(got.trace, field)[inside], want, atol=1e-5, err_msg=field
      )


def assert_tokens(got, wanted, length):
  np.testing.assert_array_equal(got.lengths, [len(x) for x in wanted])
  np.testing.assert_array_equal(got.tokens, padded(wanted, length))
  assert np.all(got.bad_step == -1)


class Book:
  """What a path should leave in the counters and the trace."""

  def __init__(self, pair, law, block, decoder, alpha):
    self.follow, self.block = pair.next_context(), block
    self.policy = decoder.draft_length.policy
    target = decoder.method.target
    self.rule = target.rule
    self.bonus_law = decoder.bonus == "target" and target.uses_q
    self.overlap = np.minimum(block.q, block.pi).sum(-1)
    self.tv = np.maximum(law.p - law.q, 0).sum(-1)
    if self.rule is not None:
      with jax.enable_x64(True):
        sampled = tuple(jnp.asarray(x) for x in (law.q, law.p))
        q1, p1 = jnp.asarray(law.q1), jnp.asarray(law.p1)
        sides = self.rule(q1, p1, alpha=jnp.asarray(alpha), sampled=sampled)
        self.left, self.right = (np.asarray(x) for x in sides)

  def keep(self, path) -> tuple[dict, dict]:
    """Returns (counters, trace) of one row."""
    gamma = self.block.drafts.shape[1]
    stats = {
      "drafted": 0,
      "examined": 0,
      "accepted": 0,
      "deferred": 0,
      "drafter_calls": 0,
      "expected_acceptance": 0.0,
      "accepted_at": np.zeros(gamma + 1, int),
      "examined_by_position": np.zeros(gamma, int),
      "accepted_by_position": np.zeros(gamma, int),
    }
    for field in ("num_blocks", "verifier_calls", "verifier_extends"):
      stats[field] = len(path.rounds)
    fields = ("source", "block", "tv", "left", "right", "deferred")
    fields += ("context", "known_q")
    records = {field: [] for field in fields}
    for number, (cell, new) in enumerate(path.rounds):
      # Behind a cut nothing is examined, accepted or emitted.
      accepted = min(cell.accepted, len(new))
      examined = min(cell.accepted + 1, cell.count, len(new))
      stats["drafted"] += cell.count
      stats["accepted"] += accepted
      stats["examined"] += examined
      stats["accepted_at"][accepted] += 1
      stats["accepted_by_position"][:accepted] += 1
      stats["examined_by_position"][:examined] += 1
      overlap = self.overlap[cell.context, cell.draft, :examined]
      stats["expected_acceptance"] += overlap.sum()
      # One pass reads what is new, and one more each draft; the last draft is
      # fed only where the law behind it is needed.
      is_fixed = self.policy == "fixed"
      stats["drafter_calls"] += cell.count + (not is_fixed or self.bonus_law)
      self._round(cell, new, number, records)
    stats["deferred"] = sum(records["deferred"])
    return stats, records

  def _round(self, cell, new, number, records):
    last = BONUS if cell.accepted == cell.count else RESIDUAL
    here = cell.context
    for i, token in enumerate(new):
      is_draft = i < cell.count
      known = bool(is_draft or self.bonus_law)
      left = right = np.nan
      if self.rule is not None and self.rule.per_token and is_draft:
        # A token rule is read at the draft.
        at = here, self.block.drafts[cell.draft, i]
        left, right = self.left[at], self.right[at]
      elif self.rule is not None and not self.rule.per_token and known:
        left, right = self.left[here], self.right[here]
      records["source"].append(DRAFT if i < cell.accepted else last)
      records["context"].append(here)
      records["known_q"].append(known)
      records["block"].append(number)
      records["tv"].append(self.tv[here] if known else np.nan)
      records["left"].append(left)
      records["right"].append(right)
      records["deferred"].append(bool(left < right))
      here = self.follow[here, token]


# One token at a time: a path is a sequence.


def sequence_tables(pair, laws, wanted, length) -> list[np.ndarray]:
  """Returns the tables that lead along sequences; laws is one of each stage.

  Args:
    pair: gives the contexts.
    laws: [S, V] of each stage.
    wanted: for each stage, the sequences.
    length: most tokens.
  """
  follow = pair.next_context()
  shape = (2, len(wanted[0]), length, 3, 1)
  tables = [np.full(shape, 0.5, np.float32) for _ in range(2)]
  for stage, (law, rows) in enumerate(zip(laws, wanted)):
    edges = driving.cell_of(law)
    for row, tokens in enumerate(rows):
      here = 0
      for step, token in enumerate(tokens):
        for table, edge in zip(tables, edges):
          table[stage, row, step, driving.DRAW, 0] = edge[here, token]
        here = follow[here, token]
  return tables


def likely_sequences(pair, table, length):
  """Returns [(sequence, probability)] of those with mass."""
  law = toy.chain_law(pair, table, length)
  rows = zip(toy.sequences(pair.vocab_size, length), law)
  return [(tokens, prob) for tokens, prob in rows if prob > 1e-6]


STEPWISE = {
  "drafter": "q",
  "verifier": "p",
  "token_cascade_chow": "pi",
  "token_cascade_chow_log": "pi",
  "oracle_cascade_chow": "pi",
  "oracle_cascade_diff": "pi",
  "oracle_cascade_opt": "pi",
  "oracle_cascade_diff_log": "pi",
  "oracle_cascade_opt_log": "pi",
}
QUICK = ("verifier", "token_cascade_chow", "oracle_cascade_diff")
LENGTH = 4


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow)
    for n in STEPWISE
  ],
)
def test_every_path_of_the_stepwise_loop(name, monkeypatch):
  pair, row = toy.pair(3, 2), METHODS[name]
  with jax.enable_x64(True):
    alpha = telling_alpha(name, 3, 2)
    law = enumeration.laws(pair, row.target, alpha, Sampling.create(0.8))
  table = getattr(law, STEPWISE[name])
  rows, probs = zip(*likely_sequences(pair, table, LENGTH))
  assert abs(sum(probs) - 1) < 1e-3
  decoder = decoders.decoder(
    name, gamma=1, max_decode_len=LENGTH, eos_id=toy.EOS, trace=True
  )
  results = driving.run(
    decoder,
    pair.models(),
    sequence_tables(pair, [table], [rows], LENGTH),
    alpha,
    Sampling.create(0.8),
    monkeypatch,
  )
  contexts = [context_path(pair, tokens) for tokens in rows]
  if STEPWISE[name] == "pi":
    defers = np.any(law.pi != law.q, axis=-1)
    deferred = [[bool(defers[c]) for c in path] for path in contexts]
  else:
    deferred = [[False] * len(path) for path in contexts]
  by_p = [[name == "verifier" or d for d in path] for path in deferred]
  source = [[SEQUENTIAL_P if x else SEQUENTIAL_Q for x in row] for row in by_p]
  records = stepwise_records(name, law, alpha, contexts, by_p)
  for got in results:
    assert_tokens(got, rows, LENGTH)
    inside = np.arange(LENGTH) < got.lengths[:, None]
    for field, want in records.items():
      np.testing.assert_allclose(
        getattr(got.trace, field)[inside], want, atol=1e-5, err_msg=field
      )
    for field, want in (("deferred", deferred), ("source", source)):
      want = padded(want, LENGTH)[inside]
      np.testing.assert_array_equal(getattr(got.trace, field)[inside], want)
    counts = [sum(x) for x in deferred]
    np.testing.assert_array_equal(got.stats.deferred, counts)
    calls = counts if STEPWISE[name] == "pi" else got.lengths
    if name != "drafter":
      np.testing.assert_array_equal(got.stats.verifier_calls, calls)
    if name != "verifier":
      np.testing.assert_array_equal(got.stats.drafter_calls, got.lengths)


def stepwise_records(name, law, alpha, contexts, by_p):
  """Returns the numbers that `Trace` should hold for each token of all rows.

  Args:
    name: of the method.
    law: the `enumeration.Laws`.
    alpha: as a user gives it.
    contexts: the context before each token, of each row.
    by_p: whether the verifier wrote it, likewise.
  """
  here = np.concatenate(contexts)
  knows_q = np.full(len(here), name != "verifier")
  # An oracle has both laws everywhere, a cascade p where it asked for it.
  knows_p = np.concatenate(by_p) | name.startswith("oracle")
  nothing = np.full(len(here), np.nan)
  tv = np.maximum(law.p - law.q, 0).sum(-1)[here]
  records = {"left": nothing, "right": nothing}
  if METHODS[name].target.rule is not None:
    with jax.enable_x64(True):
      q1, p1, q, p = (
        jnp.asarray(x[here]) for x in (law.q1, law.p1, law.q, law.p)
      )
      sides = METHODS[name].target.rule(
        q1, p1, alpha=jnp.asarray(alpha), sampled=(q, p)
      )
    records = dict(zip(records, (np.asarray(side) for side in sides)))
  records["tv"] = np.where(knows_q & knows_p, tv, np.nan)
  for field, table, known in (
    ("q_prob", law.q1, knows_q),
    ("p_prob", law.p1, knows_p),
  ):
    probs = np.sort(table, axis=-1)[:, ::-1][here]
    records[field] = np.where(known[:, None], probs, np.nan)
  return records


def context_path(pair, tokens):
  """Returns the context before each token."""
  made, follow = [0], pair.next_context()
  for token in tokens[:-1]:
    made.append(follow[made[-1], token])
  return made


@pytest.mark.parametrize("name", ["seq_cascade_chow", "seq_cascade_chow_norm"])
def test_every_path_of_the_sequence_cascade(name, monkeypatch):
  # Draft and rewrite are two sequences; the rewrite has its own randomness.
  pair = toy.pair(3, 2)
  with jax.enable_x64(True):
    row = METHODS["spec_decode"]
    law = enumeration.laws(pair, row.target, 0.0, Sampling.create(0.8))
  drafts, rewrites = (
    likely_sequences(pair, table, 3) for table in (law.q, law.p)
  )
  alpha = 0.93 if name == "seq_cascade_chow" else 0.6
  pairs = [(d, r) for d in drafts for r in rewrites]
  rows = [d[0] for d, _ in pairs], [r[0] for _, r in pairs]
  weights = np.array([d[1] * r[1] for d, r in pairs])
  score = np.array([score_of(pair, law.q1, tokens) for tokens in rows[0]])
  if name == "seq_cascade_chow_norm":
    score /= [len(tokens) for tokens in rows[0]]
  keeps = score >= np.log1p(-alpha)
  assert np.abs(score - np.log1p(-alpha)).min() > 1e-4
  assert 0.1 < weights[keeps].sum() < 0.9

  decoder = decoders.decoder(
    name, gamma=1, max_decode_len=3, eos_id=toy.EOS, trace=True
  )
  results = driving.run(
    decoder,
    pair.models(),
    sequence_tables(pair, [law.q, law.p], rows, 3),
    alpha,
    Sampling.create(0.8),
    monkeypatch,
  )
  wanted = [d if k else r for d, r, k in zip(*rows, keeps)]
  for got in results:
    assert_tokens(got, wanted, 3)
    np.testing.assert_array_equal(
      got.stats.deferred, np.where(keeps, 0, got.lengths)
    )
    np.testing.assert_array_equal(
      got.stats.drafter_calls, [len(x) for x in rows[0]]
    )
    np.testing.assert_array_equal(
      got.stats.verifier_calls, np.where(keeps, 0, [len(x) for x in rows[1]])
    )
    np.testing.assert_allclose(got.trace.left[:, 0], score, atol=1e-5)


def score_of(pair, q1, tokens):
  """Returns the sum of log q at temperature 1, the EOS included."""
  contexts = context_path(pair, tokens)
  return sum(np.log(q1[c, t]) for c, t in zip(contexts, tokens))
