"""Standardized walltime improvement (SWI): calls weighted by fixed costs.

SWI = tokens / (verifier calls + sum over drafters of calls x cost). Nothing is
timed: SWI would be the speed-up if every call of a model had one cost, whatever
its block length, and if everything else were free. Encoder passes are not
counted. Statistical drafters (Max-Gram, n-grams) cost 0, as in Chen et al.,
arXiv:2312.11462.

To read that paper: its gains of "81%", "44%", "70%" and "32%" are differences
of SWI, in units of the speed of plain decoding (4.32 - 3.51 = .81). Relative to
the baseline the gains are 23%, 15%, 20% and 9%. The paper's code prints the
mean cost per example, which is the denominator alone.
"""

from collections.abc import Mapping

from speccascade.study.papers import checks

# Millions of parameters of T5 v1.1.
_PARAMS_V11 = {
  "xxl": 11300,
  "xl": 2850,
  "large": 783,
  "base": 248,
  "small": 77,
}
# Millions of parameters in the code of Chen et al., its `model_parameters`.
# "small" and "base" are T5 v1.0's. "7b" is ten times too large: 160M/7B becomes
# .0023 in place of .0229, which flatters the LLaMA rows of the paper's version
# 2, Table 3.
_CS_CODE_PARAMS = {
  "xxl": 11300,
  "xl": 3000,
  "large": 770,
  "base": 220,
  "small": 60,
  "7b": 70000,
  "llama-160m": 160,
  "llama-68m": 68,
}
# Leviathan et al., A.3: the times of a step relative to T5 XXL, from profiler
# traces. Chen et al. call them "PW" (previous work).
_LEVIATHAN = {"xxl": 1.0, "large": 0.11, "base": 0.04, "small": 0.02}
_TABLES = {
  "leviathan": _LEVIATHAN,
  "params_v11": _PARAMS_V11,
  "cs_code_params": _CS_CODE_PARAMS,
}
_STATISTICAL = {"max_gram": 0.0, "bigram": 0.0, "ngram": 0.0}


def cost_table(name: str, verifier: str = "xxl") -> dict[str, float]:
  """Returns model -> cost of one call, relative to the verifier's cost.

  Args:
    name: "leviathan" (the c that Leviathan et al. measured), "params_v11"
      (ratios of T5 v1.1's parameters) or "cs_code_params" (ratios of the
      numbers in Chen et al.'s code, mistakes included).
    verifier: the model that costs 1.

  Raises:
    ValueError: the table or the model is unknown.

  >>> cost_table("leviathan")["base"]
  0.04
  """
  if name not in _TABLES:
    raise ValueError(
      f"cost table {name!r} is unknown; known are {', '.join(_TABLES)}; for"
      " measured costs give a mapping"
    )
  units = _TABLES[name]
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
    calls: model -> number of calls, of any block length; the verifier must be
      among the models.
    costs: model -> cost of one call, the verifier's being 1; from `cost_table`,
      or measured.

  Raises:
    ValueError: a model has no cost, no model has the cost 1, or there are no
      calls.

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
  used = {
    model: float(checks.nonnegative(f"cost of {model}", costs[model]))
    for model in calls
  }
  if 1.0 not in used.values():
    raise ValueError(
      f"no model called has cost 1 (costs are {used}); costs are relative to"
      " the verifier's, whose calls must be given"
    )
  total = sum(
    used[model] * checks.count(f"calls of {model}", num, 0)
    for model, num in calls.items()
  )
  if not total > 0:
    raise ValueError("all calls are 0; SWI needs at least one verifier call")
  return num_tokens / total
