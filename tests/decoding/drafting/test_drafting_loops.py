"""Nested drafters in the loop: greedy, to the limit, rows apart, caches."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import (
  AutoregressiveDrafter,
  HorizontalDrafter,
  Sampling,
  VerticalDrafter,
  cascade_drafter,
)
from tests import toy
from tests.decoding.drafting import models

V, SOURCES = 6, 48
PLAIN = Sampling.create(1.0)
COPIER = models.copier(V)
THREE = [[2, 2, 2], [0, 1, 2], [0, 0, 2]]
audited = functools.partial(models.audited, vocab_size=V, sources=SOURCES)


def stats_of(drafter, verifier):
  """Returns the counters of 20 sampled tokens of each source."""
  decoded = toy.decode(
    "spec_decode",
    (drafter, verifier),
    sampling=PLAIN,
    inputs=models.sources(SOURCES),
    max_decode_len=20,
  )
  assert np.all(decoded.bad_step == -1)
  return decoded.stats


@pytest.mark.parametrize(
  ("matrix", "neural", "lenience", "max_decode_len"),
  [(THREE, 2, 5.0, 11), ([[3, 4], [0, 3]], 1, 1.0, 3), ([[1]], 1, 1.0, 1)],
)
@pytest.mark.parametrize("eos", [False, True])
def test_greedy_is_the_verifiers_up_to_the_last_slot(
  matrix, neural, lenience, max_decode_len, eos
):
  verifier, *drafters = (
    audited(seed, eos=eos, likeness=0.8) for seed in range(neural + 1)
  )
  bottom = COPIER if len(matrix) > neural else None
  drafter = cascade_drafter(drafters, bottom, matrix, lenience=lenience)
  how = {"inputs": models.sources(SOURCES), "max_decode_len": max_decode_len}
  decoded = toy.greedily("cascade_drafting", (drafter, verifier), **how)
  assert eos or np.all(decoded.lengths == max_decode_len)
  if max_decode_len > 10:
    # Blocks end everywhere: at each number of accepted drafts.
    assert np.all(decoded.stats.accepted_at.sum(0) > 0)


def test_what_the_verifier_itself_reviewed_is_always_accepted():
  """So it is only if every cache holds the prefix, and every distribution its
  place.

  The block is: two tokens reviewed by the verifier's twin, one of another
  drafter, two more of the twin, drafted again.
  """
  verifier, small = (audited(x, eos=False, likeness=0.7) for x in (0, 1))

  def twin(width):
    inner = AutoregressiveDrafter(small, 3)
    return VerticalDrafter(inner, verifier, jnp.float32(0), width)

  drafter = HorizontalDrafter(
    (twin(2), AutoregressiveDrafter(small, 1), twin(1), COPIER)
  )
  stats = stats_of(drafter, verifier)
  examined = stats.examined_by_position.sum(0)
  accepted = stats.accepted_by_position.sum(0)
  assert np.all(accepted[[0, 1, 3]] == examined[[0, 1, 3]])
  assert np.all(accepted[[2, 4]] < examined[[2, 4]])
  assert accepted[4] > 0


def test_drafts_of_the_reviewers_twin_are_never_cut():
  """The inner drafter's cache, too: a round writes its block and one more.

  Between proposals another verifier takes and rewrites what it likes.
  """
  verifier, medium = (audited(x, eos=False, likeness=0.7) for x in (0, 1))
  inner = AutoregressiveDrafter(medium, 2)
  drafter = VerticalDrafter(inner, medium, jnp.float32(0), 5)
  stats = stats_of(drafter, verifier)
  # 5 tokens are two rounds of 2 + 1; each is a review and two drafted tokens,
  # of which the first pass also reads what is new.
  np.testing.assert_array_equal(
    stats.calls_by_model, stats.num_blocks[:, None] * [2, 4]
  )
  assert 0 < stats.accepted.sum() < stats.examined.sum()


def test_settings_are_traced_and_finished_rows_are_idle():
  medium, calls = audited(1, sources=3), []
  models.propose.clear_cache()  # other tests of this process compile, too
  for lenience, temperature in ((3.0, 1.0), (5.0, 0.7)):
    drafter = cascade_drafter(
      (medium,), COPIER, [[2, 2], [0, 2]], lenience=lenience
    )
    proposal = models.propose(
      drafter,
      models.sources(3),
      Sampling.create(temperature),
      active=jnp.asarray([True, False, True]),
    )
    calls.append(np.asarray(proposal.calls)[:, 0])
  assert np.all(np.stack(calls)[:, 1] == 0)
  assert np.all(np.stack(calls)[:, [0, 2]] >= 1)
  assert models.propose._cache_size() == 1
