"""Standardized walltime improvement (SWI): calls weighed by named costs.

SWI = tokens / (verifier calls + sum over drafters of calls x cost). Nothing is
timed: it is the speed-up if every call of a model cost the same, whatever its
block length, and everything else were free. Encoder passes are not counted, and
statistical drafters (Max-Gram, n-grams) cost 0, as in Chen et al.,
arXiv:2312.11462.

A reading aid for that paper: its "81%", "44%", "70%" and "32%" gains are
differences of SWI, in units of the speed of plain decoding (4.32 - 3.51 = .81);
relative to the baseline they are 23%, 15%, 20% and 9%. Its code prints the mean
cost per example, the denominator alone.
"""

from collections.abc import Mapping

from speccascade.analysis import checks

# Millions of parameters. T5 v1.1 (77M, 248M, 783M, 2.85B, 11.3B), and what
# Chen et al.'s code uses under its `model_parameters`: T5 v1.0's small and
# base, and "7b" ten times too large, which makes 160M/7B .0023 for .0229 and
# flatters the LLaMA rows of their version 2, Table 3.
_SIZES = ("xxl", "xl", "large", "base", "small")
_PARAMETERS = {
  "params_v11": dict(zip(_SIZES, (11300, 2850, 783, 248, 77))),
  "cs_code_params": {
    **dict(zip(_SIZES, (11300, 3000, 770, 220, 60))),
    **{"7b": 70000, "llama-160m": 160, "llama-68m": 68},
  },
}
# Leviathan et al., A.3: step times against T5 XXL, from profiler traces; "PW"
# (previous work) in Chen et al.
_LEVIATHAN = {"xxl": 1.0, "large": 0.11, "base": 0.04, "small": 0.02}
_STATISTICAL = {"max_gram": 0.0, "bigram": 0.0, "ngram": 0.0}


def cost_table(name: str, verifier: str = "xxl") -> dict[str, float]:
  """Returns model -> cost of one call, the verifier's being 1.

  Args:
    name: "leviathan" (his measured c), "params_v11" (ratios of T5 v1.1
      parameters) or "cs_code_params" (those in Chen et al.'s code, slips
      included).
    verifier: the model that costs 1.

  Raises:
    ValueError: unknown table or model.

  >>> cost_table("leviathan")["base"]
  0.04
  """
  tables = {"leviathan": _LEVIATHAN, **_PARAMETERS}
  if name not in tables:
    raise ValueError(
      f"cost table {name!r} is unknown; known are {', '.join(tables)}; for"
      " measured costs give a mapping"
    )
  units = tables[name]
  if verifier not in units:
    raise ValueError(
      f"cost table {name} has no model {verifier!r}; it has {', '.join(units)}"
    )
  relative = {model: unit / units[verifier] for model, unit in units.items()}
  return {**relative, **_STATISTICAL}


def swi(
  num_tokens: int, calls: Mapping[str, int], costs: Mapping[str, float]
) -> float:
  """Returns the standardized walltime improvement.

  Args:
    num_tokens: tokens emitted, summed over the examples.
    calls: model -> calls (of any block length), the verifier included.
    costs: model -> cost of one call, the verifier's 1: from `cost_table`, or
      measured.

  Raises:
    ValueError: a model without a cost, no cost of 1, or no cost at all.

  Source: Chen et al., section 5.1.

  >>> swi(40, {"xxl": 10, "base": 60}, cost_table("leviathan"))
  3.225806451612903
  """
  num_tokens = checks.count("num_tokens", num_tokens, 0)
  missing = [model for model in calls if model not in costs]
  if missing:
    raise ValueError(
      f"no cost for {', '.join(map(repr, missing))}; the table has"
      f" {', '.join(costs)}"
    )
  used = {m: float(checks.nonnegative(f"cost of {m}", costs[m])) for m in calls}
  if 1.0 not in used.values():
    raise ValueError(
      f"no model called has cost 1 (costs are {used}); costs are relative to"
      " the verifier's, whose calls must be given"
    )
  nums = (checks.count(f"calls of {m}", n, 0) for m, n in calls.items())
  total = sum(cost * num for cost, num in zip(used.values(), nums))
  if not total > 0:
    raise ValueError("all calls are 0; SWI needs at least one verifier call")
  return num_tokens / total
