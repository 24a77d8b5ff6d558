"""Every path of a whole decode through the compiled loops.

What a path writes and what is counted on the way is known beforehand; the
weights of the paths add up to the distribution.
"""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, DraftLength, Sampling
from speccascade.decoding.loops.oracle_cascade import oracle_cascade
from speccascade.decoding.loops.sequential_cascade import sequential_cascade
from speccascade.decoding.programs import decoders
from speccascade.decoding.records.block_records import (
  BONUS,
  DRAFT,
  RESIDUAL,
  SEQUENTIAL_P,
  SEQUENTIAL_Q,
)
from tests import method_laws, toy, toy_chains
from tests.decoding import driving, enumeration
from tests.decoding.test_exact_laws import telling_alpha

PAIR = toy.pair(3, 2)
# The same of decoder-only models: ragged prompts that end alike.
PROMPTED = dataclasses.replace(PAIR, prompt=(1, 2))
STOP_BEFORE, STOP_AFTER = (
  {"draft_length": DraftLength(*x)}
  for x in (("max_prob", 0.55), ("token_prob", 0.5))
)
PRINTED, BLOCK = {"bonus": "verifier"}, {"verification": "block"}
PRINTED_STOP = PRINTED | {"draft_length": DraftLength("max_prob", 0.7)}
# name, gamma, length, settings, temperature
SPECULATIVE = {
  "token": ("spec_cascade_opt", 2, 5, {}, 1.0),
  "one draft": ("spec_cascade_diff", 1, 6, {}, 0.7),
  "block": ("spec_cascade_token_v3", 2, 4, BLOCK, 1.0),
  "printed bonus": ("spec_cascade_opt", 2, 5, PRINTED, 1.0),
  "printed bonus, stop": ("ensemble", 2, 4, PRINTED_STOP, 1.0),
  "lossless": ("spec_decode", 2, 4, {}, 1.7),
  "one token": ("spec_decode", 3, 1, {}, 1.0),
  "token rule": ("spec_cascade_token_v1", 2, 4, {}, 1.0),
  "wide": ("ensemble", 3, 3, {}, 1.0),
  "stop before": ("spec_cascade_chow", 3, 5, STOP_BEFORE, 1.0),
  "stop after": ("spec_decode_lossy", 3, 5, STOP_AFTER, 1.0),
}
ON_PROMPTS = ("token", "block", "stop before", "printed bonus, stop")
QUICK = ("token", "printed bonus, stop", "token rule", "stop after")
NIGHTLY = [
  ((name, 2, 4, {"verification": way}, 0.8), pair)
  for name, row in METHODS.items()
  if row.has_blocks and row.compose is None and not row.greedy_only
  for way, pair in (("token", PROMPTED), ("block", PAIR))
]


def exact(name, temperature):
  """Returns (alpha, distributions), worked out in float64."""
  alpha, sampling = telling_alpha(name, 3, 2), Sampling.create(temperature)
  return alpha, method_laws.laws(PAIR, METHODS[name].target, alpha, sampling)


@method_laws.in_float64
def sides_of(rule, alpha, law) -> list[np.ndarray]:
  """Returns the two sides of a rule in every context; NaN without a rule."""
  if rule is None:
    return [np.full(len(law.q), np.nan)] * 2
  q1, p1, q, p = (jnp.asarray(x) for x in (law.q1, law.p1, law.q, law.p))
  sides = rule(q1, p1, alpha=jnp.asarray(alpha), sampled=(q, p))
  return [np.asarray(side) for side in sides]


def drive(name, pair, tables, alpha, temperature, monkeypatch, **settings):
  """Returns (decoder, results); see `driving.run`."""
  records = {"trace": True, "log_probs": True}
  decoder = decoders.decoder(name, eos_id=toy_chains.EOS, **records, **settings)
  sampling = Sampling.create(temperature)
  return decoder, driving.run(
    decoder, pair, tables, alpha, sampling, monkeypatch
  )


def assert_trace(decoded, law, contexts, known, columns, pi):
  """Asserts what is recorded of every token.

  Args:
    decoded: `Decoded`.
    law: the `method_laws.MethodLaws`.
    contexts: [N] of all tokens of all rows.
    known: pair of [N] bool, whether q and p are known there.
    columns: [N] of each field.
    pi: [N, V], what each token was drawn from.
  """
  inside = np.arange(decoded.tokens.shape[1]) < decoded.lengths[:, None]
  both = np.logical_and(*known)
  columns = dict(columns)
  tv = np.maximum(law.p - law.q, 0).sum(-1)
  columns["tv"] = np.where(both, tv[contexts], np.nan)
  for model, table, is_known in zip("qp", (law.q1, law.p1), known):
    probs = np.sort(table, axis=-1)[:, ::-1][contexts]
    columns[f"{model}_prob"] = np.where(is_known[:, None], probs, np.nan)
    likeliest = np.argsort(-table, axis=-1)[contexts]
    top = getattr(decoded.trace, f"{model}_top")[inside]
    np.testing.assert_array_equal(top[is_known], likeliest[is_known])
  for field, expected in columns.items():
    np.testing.assert_allclose(
      getattr(decoded.trace, field)[inside], expected, atol=1e-5, err_msg=field
    )
  # How likely each distribution found the token.
  known_q, known_p = known
  for field, table, is_known in (
    ("pi", pi, True),
    ("q", law.q[contexts], known_q),
    ("q1", law.q1[contexts], known_q),
    ("p", law.p[contexts], known_p),
    ("p1", law.p1[contexts], known_p),
  ):
    with np.errstate(divide="ignore"):
      expected = np.log(table[np.arange(len(contexts)), decoded.tokens[inside]])
    values = getattr(decoded.log_probs, field)
    np.testing.assert_allclose(
      values[inside],
      np.where(is_known, expected, np.nan),
      atol=1e-4,
      err_msg=field,
    )
    assert np.all(np.isnan(values[~inside]))


def assert_weights(decoded, paths):
  """Asserts that outputs weighed by 1 over their recorded distribution are
  even.

  So sum over them of f(x) times p(x) / exp(sum log pi) is the verifier's own
  mean of f, also where the distribution of a token depends on its place in a
  block.
  """
  inside = np.arange(decoded.tokens.shape[1]) < decoded.lengths[:, None]
  sums = np.where(inside, decoded.log_probs.pi, 0).sum(axis=1)
  weighed, likely = {}, {}
  for path, log_prob in zip(paths, sums):
    more = path.weight / np.exp(log_prob)
    weighed[path.tokens] = weighed.get(path.tokens, 0) + more
    likely[path.tokens] = likely.get(path.tokens, 0) + path.weight
  likely = [tokens for tokens, weight in likely.items() if weight > 0.01]
  assert len(likely) > 2
  for tokens in likely:
    assert abs(weighed[tokens] - 1) < 1e-3


def padded(rows, length):
  return np.array([(*row, *[0] * (length - len(row))) for row in rows])


@pytest.mark.parametrize(
  ("case", "pair"),
  [
    *(
      pytest.param(
        case,
        PROMPTED if key in ON_PROMPTS else PAIR,
        id=key,
        marks=[] if key in QUICK else pytest.mark.slow,
      )
      for key, case in SPECULATIVE.items()
    ),
    *toy.nightly(NIGHTLY),
  ],
)
def test_speculative_paths(case, pair, monkeypatch):
  name, *_, temperature = case
  alpha, law = exact(name, temperature)
  sides = sides_of(METHODS[name].target.rule, alpha, law)
  assert_speculative_paths(case, pair, alpha, law, sides, monkeypatch)


def assert_speculative_paths(case, pair, alpha, law, sides, monkeypatch):
  """Drives a method along all paths; asserts tokens, counters and records.

  Args:
    case: name, gamma, length, settings, temperature.
    pair: the chains that are decoded.
    alpha: as a user gives it.
    law: the `method_laws.MethodLaws` of the pair.
    sides: the two sides of the rule in each context.
    monkeypatch: pytest's.

  Returns:
    The results, and the context of each token of all rows, [N].
  """
  name, gamma, length, settings, temperature = case
  options = {"draft_length": DraftLength(), "verification": "token"} | settings
  verification, policy = options["verification"], options["draft_length"]
  options = {"verification": verification, "policy": policy}
  options["bonus"] = settings.get("bonus", "target")
  block = enumeration.block(pair, law, gamma, **options)
  ways = driving.cells(pair, law, block, verification)
  paths = driving.paths(pair, lambda _: ways, length)
  assert abs(sum(path.weight for path in paths) - 1) < 1e-3

  point = driving.tables(paths, gamma), alpha, temperature, monkeypatch
  options = {"gamma": gamma, "max_decode_len": length, **settings}
  decoder, results = drive(name, pair, *point, **options)
  book = Book(pair, block, decoder, sides)
  stats, records = zip(*(book.keep(path) for path in paths))
  columns = {
    field: np.concatenate([row[field] for row in records])
    for field in records[0]
  }
  contexts, known_q = columns.pop("context"), columns.pop("known_q")
  pi = law.pi[contexts]
  if decoder.bonus == "verifier":
    is_bonus = columns["source"] == BONUS
    pi = np.where(is_bonus[:, None], law.p[contexts], pi)
  for decoded in results:
    assert_tokens(decoded, [path.tokens for path in paths], length)
    for field in stats[0]:
      counted = getattr(decoded.stats, field)
      expected = [row[field] for row in stats]
      np.testing.assert_allclose(counted, expected, atol=1e-4, err_msg=field)
    known = known_q, np.full(len(known_q), True)
    assert_trace(decoded, law, contexts, known, columns, pi)
    assert_weights(decoded, paths)
  return results, contexts


def assert_tokens(decoded, sequences, length):
  np.testing.assert_array_equal(decoded.lengths, [len(x) for x in sequences])
  np.testing.assert_array_equal(decoded.tokens, padded(sequences, length))
  assert np.all(decoded.bad_step == -1)


RECORDED = "context", "known_q", "source", "block", "left", "right", "deferred"


class Book:
  """What a path should leave in the counters and the trace."""

  def __init__(self, pair, block, decoder, sides):
    self.follow, self.block, self.sides = pair.next_context(), block, sides
    self.target, policy = decoder.method.target, decoder.draft_length.policy
    self.bonus_law = decoder.bonus == "target" and self.target.uses_q
    # One pass reads what is new, and one more each draft; the last draft is fed
    # only where the distribution after it is needed.
    self.feeds_last = policy != "fixed" or self.bonus_law
    self.overlap = np.minimum(block.q, block.pi).sum(-1)

  def keep(self, path) -> tuple[dict, dict]:
    """Returns (counters, trace) of one row."""
    gamma = self.block.drafts.shape[1]
    cells, written = zip(*path.rounds)
    # After a cut nothing is examined, accepted or emitted.
    room = np.array([len(tokens) for tokens in written])
    drafted, accepted = np.array([(x.count, x.accepted) for x in cells]).T
    examined = np.minimum(np.minimum(accepted + 1, drafted), room)
    accepted, num = np.minimum(accepted, room), len(cells)
    overlap = self.overlap[[x.context for x in cells], [x.draft for x in cells]]
    is_examined, is_accepted = (
      np.arange(gamma) < x[:, None] for x in (examined, accepted)
    )
    records = {field: [] for field in RECORDED}
    for number, (cell, new) in enumerate(path.rounds):
      self._round(cell, new, number, records)
    stats = {
      "num_blocks": num,
      "verifier_calls": num,
      "verifier_extends": num,
      "drafted": drafted.sum(),
      "examined": examined.sum(),
      "accepted": accepted.sum(),
      "deferred": sum(records["deferred"]),
      "drafter_calls": drafted.sum() + num * self.feeds_last,
      "expected_acceptance": overlap[:, :gamma][is_examined].sum(),
      "accepted_at": np.bincount(accepted, minlength=gamma + 1),
      "examined_by_position": is_examined.sum(0),
      "accepted_by_position": is_accepted.sum(0),
    }
    return stats, records

  def _round(self, cell, new, number, records):
    last = BONUS if cell.accepted == cell.count else RESIDUAL
    here = cell.context
    for i, token in enumerate(new):
      is_draft = i < cell.count
      known, at = bool(is_draft or self.bonus_law), here
      if self.target.reads_tokens:
        # A token rule is read at the draft.
        known_sides = is_draft
        at = here, self.block.drafts[cell.draft, i] if is_draft else 0
      else:
        known_sides = known
      left, right = (x[at] if known_sides else np.nan for x in self.sides)
      source = DRAFT if i < cell.accepted else last
      record = here, known, source, number, left, right, bool(left < right)
      for field, value in zip(RECORDED, record):
        records[field].append(value)
      here = self.follow[here, token]


# One token at a time: a path is a sequence.


def sequence_tables(pair, laws, sequences, length) -> list[np.ndarray]:
  """Returns the tables that lead along sequences.

  Args:
    pair: says where they start.
    laws: [S, V] of each stage.
    sequences: for each stage, the sequences of all rows.
    length: most tokens.
  """
  shape = (2, len(sequences[0]), length, 3, 1)
  tables = [np.full(shape, 0.5, np.float32) for _ in range(2)]
  for stage, (law, rows) in enumerate(zip(laws, sequences)):
    edges = driving.cell_of(law)
    for row, tokens in enumerate(rows):
      for step, at in enumerate(zip(context_path(pair, tokens), tokens)):
        for table, edge in zip(tables, edges):
          table[stage, row, step, driving.DRAW, 0] = edge[at]
  return tables


def likely_sequences(pair, table, length):
  """Returns [(sequence, probability)] of those with mass."""
  rows = zip(
    toy_chains.sequences(3, length), toy_chains.chain_law(pair, table, length)
  )
  return [(tokens, prob) for tokens, prob in rows if prob > 1e-6]


def context_path(pair, tokens) -> list[int]:
  """Returns the context before each token."""
  contexts, follow = [pair.start], pair.next_context()
  for token in tokens[:-1]:
    contexts.append(follow[contexts[-1], token])
  return contexts


STEPWISE = {"drafter": "q", "verifier": "p"} | {
  name: "pi"
  for name, row in METHODS.items()
  if row.execution in (sequential_cascade, oracle_cascade)
}
QUICK = ("verifier", "token_cascade_chow", "oracle_cascade_diff")
LENGTH = 4


@pytest.mark.parametrize("name", toy.nightly(STEPWISE, QUICK))
def test_stepwise_paths(name, monkeypatch):
  alpha, law = exact(name, 0.8)
  pair = PROMPTED if name.startswith("token_cascade") else PAIR
  sides = sides_of(METHODS[name].target.rule, alpha, law)
  defers = np.any(law.pi != law.q, axis=-1) & (STEPWISE[name] == "pi")
  assert_stepwise_paths(name, pair, alpha, law, sides, defers, monkeypatch)


def assert_stepwise_paths(name, pair, alpha, law, sides, defers, monkeypatch):
  """Drives a method along all texts; arguments as for speculative paths.

  Args:
    defers: [S] bool, whether the rule defers in each context.
  """
  table, is_cascade = getattr(law, STEPWISE[name]), STEPWISE[name] == "pi"
  rows, probs = zip(*likely_sequences(pair, table, LENGTH))
  assert abs(sum(probs) - 1) < 1e-3
  tables = sequence_tables(pair, [table], [rows], LENGTH)
  options = {"gamma": 1, "max_decode_len": LENGTH}
  _, results = drive(name, pair, tables, alpha, 0.8, monkeypatch, **options)
  paths = [np.array(context_path(pair, tokens)) for tokens in rows]
  contexts = np.concatenate(paths)
  by_p = defers[contexts] | (name == "verifier")
  left, right = sides
  columns = {
    "left": left[contexts],
    "right": right[contexts],
    "deferred": defers[contexts],
    "source": np.where(by_p, SEQUENTIAL_P, SEQUENTIAL_Q),
  }
  # An oracle has both distributions everywhere, a cascade p where it asked for
  # it.
  known_q = np.full(len(contexts), name != "verifier")
  known = known_q, by_p | name.startswith("oracle")
  for decoded in results:
    assert_tokens(decoded, rows, LENGTH)
    assert_trace(decoded, law, contexts, known, columns, table[contexts])
    deferred = [defers[path].sum() for path in paths]
    np.testing.assert_array_equal(decoded.stats.deferred, deferred)
    if name != "drafter":
      calls = deferred if is_cascade else decoded.lengths
      np.testing.assert_array_equal(decoded.stats.verifier_calls, calls)
    if name != "verifier":
      np.testing.assert_array_equal(
        decoded.stats.drafter_calls, decoded.lengths
      )
  return results, contexts


@pytest.mark.parametrize(
  ("name", "alpha"),
  [("seq_cascade_chow", 0.93), ("seq_cascade_chow_norm", 0.6)],
)
def test_sequence_paths(name, alpha, monkeypatch):
  # Draft and rewrite are two sequences; the rewrite has its own randomness.
  _, law = exact("spec_decode", 0.8)
  pair = PROMPTED
  drafts, rewrites = (likely_sequences(pair, x, 3) for x in (law.q, law.p))
  pairs = list(itertools.product(drafts, rewrites))
  rows = [d[0] for d, _ in pairs], [r[0] for _, r in pairs]
  weights = np.array([d[1] * r[1] for d, r in pairs])
  sizes = [np.array([len(tokens) for tokens in side]) for side in rows]
  # The sum of log q at temperature 1, the EOS included.
  score = np.array(
    [np.log(law.q1[context_path(pair, row), row]).sum() for row in rows[0]]
  )
  if name == "seq_cascade_chow_norm":
    score /= sizes[0]
  keeps = score >= np.log1p(-alpha)
  assert np.abs(score - np.log1p(-alpha)).min() > 1e-4
  assert 0.1 < weights[keeps].sum() < 0.9

  tables = sequence_tables(pair, [law.q, law.p], rows, 3)
  options = {"gamma": 1, "max_decode_len": 3}
  _, results = drive(name, pair, tables, alpha, 0.8, monkeypatch, **options)
  sequences = [d if k else r for d, r, k in zip(*rows, keeps)]
  for decoded in results:
    assert_tokens(decoded, sequences, 3)
    for counted, expected in (
      (decoded.stats.deferred, np.where(keeps, 0, decoded.lengths)),
      (decoded.stats.drafter_calls, sizes[0]),
      (decoded.stats.verifier_calls, np.where(keeps, 0, sizes[1])),
    ):
      np.testing.assert_array_equal(counted, expected)
    np.testing.assert_allclose(decoded.trace.left[:, 0], score, atol=1e-5)
    # No chain of targets has its distribution; that of a discarded draft is not
    # known.
    assert np.all(np.isnan(decoded.log_probs.pi))
    inside = np.arange(3) < decoded.lengths[:, None]
    for field, known in zip(
      ("q", "q1", "p", "p1"), (keeps, keeps, ~keeps, ~keeps)
    ):
      table = getattr(law, field)
      probs = [table[context_path(pair, row), row].prod() for row in sequences]
      np.testing.assert_allclose(
        np.where(inside, getattr(decoded.log_probs, field), 0).sum(axis=1),
        np.log(np.where(known, probs, np.nan)),
        atol=1e-4,
      )
