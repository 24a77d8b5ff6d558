"""Tables over tokens against a walk through an automaton, byte by byte."""

import numpy as np
import pytest

from speccascade.constraints import automaton_tables, stops, token_walks
from speccascade.constraints.token_bytes import TokenBytes
from speccascade.constraints.token_walks import ByteAutomaton
from speccascade.decoding.records.automaton import START
from tests.constraints.test_stops import end_of

LETTERS = "abc "


def vocabulary(rng, num=120) -> TokenBytes:
  """Returns tokens of a few letters each, whose first blank may be dropped."""
  words = [
    "".join(rng.choice(list(LETTERS), rng.integers(1, 6))) for _ in range(num)
  ]
  tokens = [b"", *(word.encode() for word in words)]
  return TokenBytes(tokens, [token.removeprefix(b" ") for token in tokens])


def text_of(known, tokens) -> str:
  parts = [known.tokens[token] for token in tokens]
  if tokens:
    # What is empty keeps the beginning.
    first = next((i for i, each in enumerate(parts) if each), 0)
    parts[first] = known.first[tokens[first]]
  return b"".join(parts).decode()


@pytest.fixture(params=["joint", "split"])
def form(request, monkeypatch):
  if request.param == "split":
    monkeypatch.setattr(automaton_tables, "FEW_BYTES", 0)
  return request.param


def test_walks_are_those_of_each_token(monkeypatch):
  monkeypatch.setattr(token_walks, "_AT_A_TIME", 50)
  rng = np.random.default_rng(0)
  for case in range(20):
    num, halt = 12, 11
    step = rng.integers(0, num, (num, 5)).astype(np.int32)
    # Most ways lead where those of the usual state lead.
    step = np.where(rng.random((num, 5)) < 0.5, step[:1], step)
    step[halt] = halt
    columns = rng.integers(0, 5, token_walks.NUM_SYMBOLS).astype(np.int32)
    has_halt = case % 2 == 0
    automaton = ByteAutomaton(step, columns, 0, halt if has_halt else None)
    spelling = vocabulary(rng).spelling
    ways = token_walks.walk(automaton, spelling)
    for token, (start, size) in enumerate(
      zip(spelling.starts, spelling.lengths)
    ):
      after = np.arange(num)
      for symbol in spelling.symbols[start : start + size]:
        after = step[after, columns[symbol]]
      kind = ways.kinds[token]
      got = np.full(num, ways.usual[kind])
      mine = ways.kind == kind
      got[ways.states[mine]] = ways.after[mine]
      halts = ways.halts[ways.halting[token]]
      if has_halt:
        # From the usual state a halt is one from everywhere.
        want = (after == halt) | (after[0] == halt)
        assert halts[:halt].tolist() == want[:halt].tolist()
        after[halts], got[halts] = 0, 0
      live = slice(0, halt if has_halt else num)
      assert got[live].tolist() == after[live].tolist()


def test_searches_are_those_of_texts(form):
  rng = np.random.default_rng(1)
  for _ in range(12):
    known = vocabulary(rng)
    strings = [
      "".join(rng.choice(list(LETTERS), rng.integers(3, 6))) for _ in range(4)
    ]
    ids = [int(rng.integers(1, 120))]
    tables = stops.automaton([*strings, *ids], known)
    banned = stops.without([*strings, *ids], known)
    assert (tables.kinds is not None) == (form == "split")
    device = tables.to_device(), banned.to_device()
    for _ in range(30):
      tokens = rng.integers(0, 121, 6).tolist()
      want = None
      for num in range(1, len(tokens) + 1):
        text = text_of(known, tokens[:num])
        if any(x in text for x in strings) or tokens[num - 1] in ids:
          want = num
          break
      got = end_of(tables.joint("it"), tokens)
      assert got == want
      state, state_of_ban = START, START
      for num, token in enumerate(tokens, 1):
        state = int(device[0].step(state, token))
        is_end = bool(device[0].ends[state])
        may = bool(device[1].mask(state_of_ban)[token])
        assert is_end == (num == want) == (not may)
        if is_end:
          break
        state_of_ban = int(device[1].step(state_of_ban, token))


def test_unions_and_products_of_split_tables_are_those_of_joint_ones(form):
  rng = np.random.default_rng(2)
  known = vocabulary(rng)
  sets = (["abc", "cc a"], [], ["b b", 7], ["aaa"])
  parts = [stops.automaton(strings, known) for strings in sets]
  joined, begins = automaton_tables.side_by_side(parts, "it")
  masks = [stops.without(strings, known) for strings in sets]
  whole = masks[0]
  for mask in masks[1:]:
    whole = automaton_tables.both(whole, mask, "it")
  every = stops.without([x for strings in sets for x in strings], known)
  every = every.joint("it")
  for _ in range(60):
    tokens = rng.integers(0, 121, 8).tolist()
    for part, begin in zip(parts, begins):
      want = end_of(part.joint("it"), tokens)
      assert end_of(joined.joint("it"), tokens, begin) == want
    one = two = START
    for token in tokens:
      column = whole.classes[token], every.classes[token]
      may = whole.allowed[one, column[0]]
      assert may == every.allowed[two, column[1]]
      if not may:
        break
      one = whole.moves[one, column[0]]
      two = every.moves[two, column[1]]


def test_a_table_is_padded_as_it_is():
  rng = np.random.default_rng(3)
  for shape in ((8, 8), (5, 8), (8, 5)):
    table = rng.integers(0, 9, shape)
    for each in (table, table[:, rng.permutation(shape[1])]):
      got = np.asarray(automaton_tables._padded(each, (8, 8), 0))
      assert got[: shape[0], : shape[1]].tolist() == each.tolist()
