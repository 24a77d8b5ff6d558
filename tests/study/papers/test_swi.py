"""SWI: worked counts, the named tables, and what is refused."""

import pytest

from speccascade.study.papers import swi


def test_worked_counts():
  # 40 tokens; 10 + 60 * .04 + 30 * .02 = 13 verifier calls' worth
  calls = {"xxl": 10, "base": 60, "small": 30, "max_gram": 500}
  value = swi.swi(40, calls, swi.cost_table("leviathan"))
  assert value == pytest.approx(40 / 13)
  # At measured costs, and of plain decoding.
  costs = {"large": 1, "small": 0.1}
  assert swi.swi(30, {"large": 10, "small": 50}, costs) == 2
  assert swi.swi(7, {"verifier": 7}, {"verifier": 1.0}) == 1


def test_parameter_ratios():
  costs = swi.cost_table("params_v11")
  assert costs["small"] == pytest.approx(0.00681, abs=5e-6)
  assert costs["base"] == pytest.approx(0.02195, abs=5e-6)
  xl = swi.cost_table("params_v11", verifier="xl")
  assert xl["xl"] == 1
  assert xl["base"] == pytest.approx(248 / 2850)


def test_the_code_of_chen_et_al_takes_7b_for_70b():
  costs = swi.cost_table("cs_code_params", verifier="7b")
  assert costs["llama-160m"] == pytest.approx(0.0023, abs=5e-5)
  assert 10 * costs["llama-160m"] == pytest.approx(0.0229, abs=5e-5)


@pytest.mark.parametrize(
  ("call", "words"),
  [
    (lambda: swi.cost_table("mine"), "'mine' is unknown; known are leviathan"),
    (lambda: swi.cost_table("leviathan", "xl"), "no model 'xl'; it has xxl"),
    (lambda: swi.swi(3, {"tiny": 2}, {"xxl": 1}), "no cost for 'tiny'"),
    (lambda: swi.swi(3, {"small": 2}, {"small": 0.1, "xxl": 1}), "has cost 1"),
    (lambda: swi.swi(3, {"xxl": 0}, {"xxl": 1}), "all calls are 0"),
    (lambda: swi.swi(3, {"xxl": -1}, {"xxl": 1}), "calls of xxl is -1"),
    (lambda: swi.swi(3, {"b": 1}, {"b": -1}), "cost of b is -1"),
  ],
)
def test_bad_arguments_are_named(call, words):
  with pytest.raises(ValueError, match=words):
    call()
