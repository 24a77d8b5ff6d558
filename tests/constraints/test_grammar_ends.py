"""Grammars hold texts to those that end, in any syntax, and are bounded."""

import importlib.util
import itertools
import random
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from speccascade.constraints import (
  automaton_tables,
  expression_compiler,
  expression_sandbox,
  grammars,
  limits,
)
from speccascade.constraints.automaton_tables import ConstraintError
from speccascade.constraints.limits import TextLimits
from speccascade.constraints.token_bytes import TokenBytes
from speccascade.generate.records import text_of
from speccascade.text import vocabularies
from tests.constraints.conftest import Words

pytest.importorskip("outlines_core")

KNOWN = TokenBytes(
  *[[b"", b"", *(bytes([x]) for x in b"abcd"), b"ab", b"cd"]] * 2
)


def mask_of(vocabulary, eos_ids=(1,), **given):
  made, _ = limits.constraints(
    TextLimits(**given),
    vocabulary,
    lambda ids: text_of(vocabulary, ids),
    eos_ids=eos_ids,
    vocab_size=vocabulary.vocab_size,
  )
  return made.mask


def assert_ends_are_reached(mask, eos_ids):
  """Asserts that each state that is reached leads to one that may end."""
  allowed = np.asarray(mask.allowed)[:, np.asarray(mask.classes)]
  moves = np.asarray(mask.moves)[:, np.asarray(mask.classes)]
  reached, waiting, edges = {0}, [0], set()
  for state in waiting:
    for token in np.flatnonzero(allowed[state]):
      after = int(moves[state, token])
      if token not in eos_ids:
        edges.add((state, after))
        if after not in reached:
          reached.add(after)
          waiting.append(after)
  ends = {s for s in reached if allowed[s, list(eos_ids)].any()}
  while True:
    more = {a for a, b in edges if b in ends} - ends
    if not more:
      break
    ends |= more
  assert ends == reached


@pytest.mark.parametrize(
  ("given", "words"),
  [
    ({"grammar": r"(ab)+c", "banned": ("c",)}, "BANNED and GRAMMAR allows no"),
    ({"grammar": r"(ab)+c", "banned": (1,)}, "no text at all that ends"),
    ({"grammar": r"[a-z]+b", "banned": ("b",)}, "no text at all that ends"),
    ({"grammar": r"a{3}", "min_decode_len": 9}, "no text at all that ends"),
    ({"grammar": r"a{3}", "banned": ("aa",)}, "no text at all that ends"),
  ],
)
def test_a_grammar_that_cannot_end_is_refused(given, words):
  with pytest.raises(ConstraintError, match=words):
    mask_of(vocabularies.load("bytes"), **given)


def test_a_letter_without_a_token_at_an_end_is_named():
  with pytest.raises(ConstraintError, match=r"ends.*no token for '\{'"):
    grammars.automaton(r"[a-d]+\{", KNOWN, [1])


def test_a_branch_that_cannot_end_is_masked():
  vocabulary = vocabularies.load("bytes")
  for given in (
    {"grammar": "(ab)+c|(ba)+d", "banned": ("c",)},
    {"grammar": "a+b|c+", "banned": ("b",), "min_decode_len": 5},
    {"grammar": "(a|bc)*", "banned": ("bc",)},
    {"grammar": "[ab]{2,9}c?", "min_decode_len": 7, "banned": ("aaa", "b")},
  ):
    if "aaa" in given["banned"]:
      with pytest.raises(ConstraintError, match="that ends"):
        mask_of(vocabulary, **given)
      continue
    assert_ends_are_reached(mask_of(vocabulary, **given), [1])
  mask = mask_of(vocabulary, grammar="(ab)+c|(ba)+d", banned=("c",))
  first = np.flatnonzero(np.asarray(mask.mask(0)))
  assert bytes((first - 3).tolist()) == b"b"


def test_a_grammar_ends_by_any_eos():
  vocabulary = vocabularies.load("bytes")
  mask = mask_of(vocabulary, (1, 2), grammar="ab?")
  state = int(mask.step(0, ord("a") + 3))
  may = np.flatnonzero(np.asarray(mask.mask(state))).tolist()
  assert may == [1, 2, ord("b") + 3]
  for other in (1, 2):
    mask = mask_of(vocabulary, (1, 2), grammar="ab?", banned=(other,))
    state = int(mask.step(0, ord("a") + 3))
    may = np.flatnonzero(np.asarray(mask.mask(state))).tolist()
    assert may == [3 - other, ord("b") + 3]
  with pytest.raises(ConstraintError, match="that ends"):
    mask_of(vocabulary, (1, 2), grammar="ab?", banned=(1, 2))


def test_the_least_length_counts_from_two():
  vocabulary = vocabularies.load("bytes")
  for least in (2, 3):
    mask, state = mask_of(vocabulary, (1, 2), min_decode_len=least), 0
    for num in range(1, 5):
      # The token with this number may be an EOS from the least length on.
      may = np.asarray(mask.mask(state))
      assert may[1] == may[2] == (num >= least)
      assert may[7]
      state = int(mask.step(state, 7))


def matches(pattern):
  automaton, is_final = expression_compiler.compiled(pattern)

  def match(text: str) -> bool:
    state = 0
    for byte in text.encode():
      state = automaton.step[state, automaton.columns[byte]]
    return state < len(is_final) and bool(is_final[state])

  return match


def expression(rng, depth) -> str:
  kind = rng.random()
  if depth == 0 or kind < 0.3:
    return rng.choice(["a", "b", "é", "[ab]", "[^a]", ".", "ab", r"\{", "x"])
  one, two = expression(rng, depth - 1), expression(rng, depth - 1)
  if kind < 0.5:
    return f"({one}|{two})"
  if kind < 0.7:
    repeat = rng.choice(["*", "+", "?", "{1,2}", "*?", "+?", "??"])
    return f"(?:{one}){repeat}"
  return one + two


def test_expressions_are_those_of_python():
  rng = random.Random(0)
  texts = [
    "".join(x) for n in range(5) for x in itertools.product("abé{", repeat=n)
  ]
  # No code point is a mark of the compiler's own.
  texts += ["\U0010fffe", "a\U0001f642", "x", "\U0010ffff", "a\U0010ffffb"]
  texts += ["\0", "\0\0", "\0\0ab", "ab\0\0ab", "a\0"]
  for _ in range(60):
    pattern = expression(rng, 3)
    match = matches(pattern)
    for text in texts:
      assert match(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@pytest.mark.parametrize(
  "pattern",
  [
    r'"([^"\\]|\\["\\bfnrt]){0,2000}"',
    r'"(?:[^"\\]|\\.){0,200}"',
    r".{0,200}",
    r"(?s).{0,200}",
    r"(?s:\x00.|..){0,200}",
    r"(?:0|[1-9]{2}){0,400}",
  ],
)
def test_repeats_take_time_by_their_number(pattern):
  # Where matches that begin later are followed too, some take 2**n states.
  expression_compiler.compiled.cache_clear()
  expression_compiler.compiled("a")  # the process has begun
  began = time.monotonic()
  expression_compiler.compiled(pattern)
  assert time.monotonic() - began < 3


@pytest.mark.parametrize("mark", ["\0", "\0\0", "\U0010ffff"])
def test_a_text_may_have_every_code_point(mark):
  for pattern in (f"a{mark}b", f"a({mark}b)?{mark}?", "(?s)a.{1,3}?"):
    match = matches(pattern)
    for text in (f"a{mark}b", f"a{mark}", "a", mark, "", f"a{mark}b{mark}"):
      assert match(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


def test_a_text_continues_after_a_match_in_every_spelling():
  # "a|ab" by the first match alone is "a", and "(abcd)+" once.
  tables = grammars.automaton("(abcd)+|a", KNOWN, [1])
  for tokens in ([2, 3, 4, 5] * 2, [6, 7, 2, 3, 7], [2]):
    state = 0
    for token in (*tokens, 1):
      column = tables.classes[token]
      assert tables.allowed[state, column], tokens
      state = tables.moves[state, column]


@pytest.mark.parametrize(
  ("pattern", "words"),
  [
    ("^ab", r"'\^' at 0 is an anchor"),
    ("(a|b$)", r"'\$' at 4 is an anchor"),
    (r"\Aab", "is an anchor"),
    ("(?=a)b", r"'\(\?=' at 0 looks around"),
    ("a(?<!b)c", "looks around"),
    (r"\bab", "looks for a word's border"),
    (r"(a)\1", "refers back to a group"),
    ("a)(b", r"'\)' at 1 has no"),
    (r"ab|b[^\s\S]", "a part that no text matches"),
    ("[" * 3000, "cannot be compiled"),
    ("(" * 3000 + ")" * 3000, "cannot be compiled"),
    ("a{1,1000000000}", "too many states to compile"),
  ],
)
def test_what_no_automaton_holds_is_named_in_a_line(pattern, words):
  with pytest.raises(ConstraintError, match=words) as error:
    grammars.automaton(pattern, KNOWN, [1])
  assert "\n" not in str(error.value)
  assert len(str(error.value)) < 400


def test_signs_in_classes_and_escapes_are_letters():
  assert matches(r"[$^]+\$\^")("^$$^")
  assert matches("(?x) a b # of (two")("ab")


def test_an_expression_that_takes_too_long_is_ended(monkeypatch):
  monkeypatch.setattr(expression_compiler, "_running", None)
  monkeypatch.setattr(expression_sandbox, "MOST_S", 0.3)
  with pytest.raises(ConstraintError, match=r"within 0.3 s and 256 MB \(takes"):
    grammars.automaton("(a|e)*a(a|e){19}", KNOWN, [1])
  assert matches("ab")("ab")  # another process has begun
  expression_compiler._running._process.kill()
  expression_compiler._running._process.wait()
  assert matches("ab?c")("ac")


def test_ctrl_c_is_heard_while_an_expression_is_compiled():
  code = (
    "from speccascade.constraints import expression_compiler as e\n"
    "e.compiled('a'); print('ready', flush=True)\n"
    "e.compiled('(a|e)*a(a|e){20}')"
  )
  with subprocess.Popen(
    [sys.executable, "-c", code],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
  assert process.returncode


def test_an_expression_is_compiled_once():
  expression_compiler.compiled.cache_clear()
  for _ in range(2):
    threads = [
      threading.Thread(target=grammars.automaton, args=("ab*", KNOWN, [1]))
      for _ in range(2)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert expression_compiler.compiled.cache_info().hits >= 2


def test_the_process_that_compiles_holds_little():
  matches("a")
  pid = expression_compiler._running._process.pid
  with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
    names = file.read()
  assert "outlines_core" in names
  assert not any(name in names for name in ("jaxlib", "tensorflow", "numpy"))


def test_a_missing_package_is_named_with_its_install(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  install = re.escape("pip install -c constraints.txt -e '.[grammar]'")
  with pytest.raises(ConstraintError, match=f"a grammar needs .*{install}"):
    expression_compiler.compiled("not [0-9]+ compiled before")


def test_dead_ends_are_dropped_and_loops_stay():
  # 0 -> 1 -> 2 -> 2, 0 -> 3, and nothing after 3.
  moves = np.array([[1, 3], [2, 2], [2, 2], [3, 3]])
  allowed = np.array([[1, 1], [1, 0], [1, 0], [0, 0]], bool)
  tables = automaton_tables.Tables(
    np.arange(2, dtype=np.int32), moves, allowed, np.zeros(4, bool)
  )
  kept = automaton_tables.without_dead_ends(tables, "it")
  assert kept.allowed[:3].tolist() == [[True, False]] * 3
  # Token 1 ends a text, but in no state that is reached by token 0.
  allowed[0, 1] = False
  with pytest.raises(ConstraintError, match=r"allows no text .* ends"):
    automaton_tables.without_dead_ends(tables, "it", [1])


def test_words_of_a_vocabulary_without_pieces():
  mask = mask_of(Words(), grammar="(the |a)?cats?( sat)*", banned=("cats",))
  assert_ends_are_reached(mask, [1])
