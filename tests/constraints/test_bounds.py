"""Limits of any size take little memory, or are refused in a line."""

import json
import resource
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.constraints import limits
from speccascade.constraints.limits import TextLimits

GEMMA, T5 = 256_000, 32_128
EXPRESSION = r'\{"name":"([^"\\]|\\["\\n]){0,40}","age":[0-9]{1,3}\}'


class Vocabulary:
  """Pieces as a large vocabulary has them: words with their beginnings."""

  eos_id = 1

  def __init__(self, vocab_size: int):
    self.vocab_size = vocab_size
    rng = np.random.default_rng(0)
    letters = np.array(list("eeetaoinshrdlucmfwypvbgkjqxz"))
    sizes = rng.integers(2, 12, vocab_size)
    text = "".join(letters[rng.integers(0, len(letters), sizes.sum())])
    ends = np.cumsum(sizes)
    words = [text[end - size : end] for end, size in zip(ends, sizes)]
    pieces = [f"<0x{code:02X}>" for code in range(256)]
    pieces += [
      f"\u2581{word}" if i % 2 else word for i, word in enumerate(words)
    ]
    self.pieces = ["<pad>", "</s>", *dict.fromkeys(pieces)][:vocab_size]
    self.vocab_size = len(self.pieces)
    self.words = [word for word in words if 4 < len(word) < 10]

  def is_control(self, token):
    return token < 2

  def piece(self, token):
    return self.pieces[token]

  def text(self, ids):
    pieces = [self.pieces[token] for token in ids if token > 1]
    return "".join(pieces).replace("\u2581", " ")


def measure():
  """Prints the extra memory after each case, in MB, and what was refused."""
  vocab_size, cases = json.load(sys.stdin)
  vocabulary = Vocabulary(vocab_size)
  jnp.zeros(3).block_until_ready()
  peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
  first = peak()
  for given in cases:
    if isinstance(given.get("banned"), int):
      given["banned"] = vocabulary.words[: given["banned"]]
    try:
      limits.constraints(
        TextLimits(**given),
        vocabulary,
        vocabulary.text,
        eos_ids=[1],
        vocab_size=vocabulary.vocab_size,
      )
      fault = None
    except ValueError as error:
      fault = str(error)
    print(json.dumps((peak() - first, fault)), flush=True)


@pytest.mark.parametrize(
  ("size", "cases", "most_mb", "refused"),
  [
    (GEMMA, [{"banned": 100}, {"banned": 1000}], 300, (False, False)),
    (GEMMA, [{"stop": ["ab" * 300]}, {"grammar": EXPRESSION}], 256, (0, 0)),
    (T5, [{"stop": ["ab" * 10_000]}], 256, (False,)),
    (T5, [{"banned": ["ab" * 10_000]}], 256, (False,)),
    (
      T5,
      [
        {"stop": ["x" * 1_000_000]},
        {"grammar": "a{1,1000000000}"},
        {"grammar": "(a|e)*a(a|e){20}"},
        {"banned": 1000, "min_decode_len": 500},
        {"min_decode_len": 60_000_000},
      ],
      256,
      (True,) * 5,
    ),
  ],
)
def test_memory_is_bounded(size, cases, most_mb, refused):
  if any("grammar" in case for case in cases):
    pytest.importorskip("outlines_core")
  code = "from tests.constraints import test_bounds as t; t.measure()"
  done = subprocess.run(
    [sys.executable, "-c", code],
    input=json.dumps((size, cases)),
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  rows = [json.loads(line) for line in done.stdout.splitlines()]
  for (peak_mb, fault), is_refused in zip(rows, refused, strict=True):
    assert peak_mb < most_mb, (rows, cases)
    assert (fault is not None) == bool(is_refused), fault
    assert fault is None or ("\n" not in fault and len(fault) < 400)
