"""The lenience dictionary: every spelling gives the same acceptance."""

import itertools

import numpy as np
import pytest

from speccascade.study.papers import lenience
from tests import toy

# Accept probability of a draft with probabilities (q, p), as each paper prints
# it with its own symbol.
PRINTED = {
  "narasimhan": lambda q, p, a: np.minimum(1, p / ((1 - a) * q)),
  "leviathan": lambda q, p, l: np.minimum(1, p / (l * q)),
  "cs_drafting": lambda q, p, l: np.minimum(1, l * p / q),
  "distillspec_lin": lambda q, p, e: np.minimum(1, (p / e) / q),
  "distillspec_sq": lambda q, p, e: np.minimum(1, (p / e**2) / q),
  "tran_thien": lambda q, p, a: np.minimum(1, p / (a * q)),
}
Q, P = toy.WORKED[1]


@pytest.mark.parametrize(
  ("source", "to"), list(itertools.permutations(PRINTED, 2))
)
@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.8])
def test_conversion_keeps_the_acceptance(source, to, alpha):
  value = lenience.convert(alpha, "narasimhan", source)
  other = lenience.convert(value, source, to)
  np.testing.assert_allclose(
    PRINTED[source](Q, P, value), PRINTED[to](Q, P, other), rtol=1e-12
  )
  assert lenience.convert(other, to, source) == pytest.approx(value)


def test_every_knob_is_checked():
  assert set(PRINTED) == set(lenience.KNOBS)


def test_acceptance_rate_of_lossy_sampling():
  # accept .7 losslessly, 5/6 at alpha .4
  assert lenience.acceptance_rate(Q, P, alpha=0) == pytest.approx(0.7)
  assert lenience.acceptance_rate(Q, P, alpha=0.4) == pytest.approx(5 / 6)
  accept = PRINTED["narasimhan"](Q, P, 0.4)
  assert lenience.acceptance_rate(Q, P, alpha=0.4) == pytest.approx(Q @ accept)


@pytest.mark.parametrize(
  ("value", "source", "words"),
  [
    (0, "leviathan", r"leviathan, l in \(0, 1\]"),
    (0.5, "cs_drafting", r"cs_drafting, l in \[1, inf\)"),
    (1, "narasimhan", r"narasimhan, alpha in \[0, 1\)"),
    (float("nan"), "tran_thien", r"alpha in \(0, 1\]"),
    (0.5, "bild", "'bild' is unknown; known are narasimhan"),
  ],
)
def test_bad_values_are_refused(value, source, words):
  with pytest.raises(ValueError, match=words):
    lenience.convert(value, source, "leviathan")
