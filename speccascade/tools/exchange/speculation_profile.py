"""The acceptance of a decode as a `speculation_profile.json`.

NVIDIA's `specdec_bench` writes this file beside a draft checkpoint, for
simulators and schedulers that want to know how many drafts are accepted: Dynamo
reads conditional rates, vLLM's synthetic acceptance reads marginal rates.

Source: `SCHEMA_VERSION` 1.0 and `build_profile` of
`examples/specdec_bench/specdec_bench/speculation_profile.py` of
github.com/NVIDIA/Model-Optimizer, at 095124e and edf879d.
"""

from collections.abc import Sequence
import dataclasses
import itertools
import json
import statistics
from typing import Any

from speccascade.decoding.programs import methods
from speccascade.generate.points.point_settings import PointSettings
from speccascade.tools.exchange.decode_folder import DecodeFolder

# Bounds of the profile's own check, and its digits after the point.
_TOLERANCE = 0.02
_DIGITS = 6


def text(folder: DecodeFolder) -> str:
  """Returns `speculation_profile.json`.

  Raises:
    ValueError: the method drafted nothing, or the folder does not say how many
      tokens each block wrote.
  """
  row, settings = folder.row, folder.row.settings
  if not row.counts.drafted:
    raise ValueError(
      f"{folder.path} is of {row.label}, which drafted no tokens: a profile is"
      " of drafts"
    )
  folder.check_lengths()
  by_answer = [answer.lengths for answer in folder.answers if answer.lengths]
  lengths = list(itertools.chain(*by_answer))
  # Of a block that wrote n tokens, n - 1 drafts count as accepted.
  marginal = _marginal_rates(lengths, len(row.counts.accepted_by_position))
  before = [1.0, *marginal[:-1]]
  conditional = [x / y if y else 0.0 for x, y in zip(marginal, before)]
  mean = statistics.fmean(lengths)
  per_answer = statistics.fmean(map(statistics.fmean, by_answer))
  implied = 1 + sum(marginal)
  profile = {
    "schema_version": "1.0",
    "measured": True,
    "method": settings.method,
    "draft_checkpoint": {"id": settings.drafter},
    "target_model": {"id": settings.verifier},
    "num_speculative_tokens": len(marginal),
    "block_size": None,
    "max_supported_k": len(marginal),
    "verification_method": _verification(settings),
    "conditional_accept_rates": _rounded(conditional),
    "marginal_accept_rates": _rounded(marginal),
    "mean_accept_length": round(mean, _DIGITS),
    "mean_accept_length_per_request": round(per_answer, _DIGITS),
    "accept_length_model": _extrapolation(settings),
    "accept_length_by_k": {str(len(marginal)): round(mean, _DIGITS)},
    "acceptance_length_histogram": {
      str(length): lengths.count(length) for length in sorted(set(lengths))
    },
    "per_category": _by_category(folder),
    "measurement_conditions": {
      "engine": "speccascade",
      "dataset": settings.task,
      "num_examples": settings.num_examples,
      "max_decode_len": settings.max_decode_len,
      "concurrency": 1 if folder.is_timed else None,
      "alpha": settings.alpha,
      **(dataclasses.asdict(settings.phases) if settings.phases else {}),
      "temperature": settings.temperature,
      "dtype": settings.dtype,
      "environment": row.environment,
    },
    "validation": {
      "mean_consistency": {
        "implied_mean_accept_length": round(implied, _DIGITS),
        "reported_mean_accept_length": round(mean, _DIGITS),
        "abs_delta": round(abs(implied - mean), _DIGITS),
        "tolerance": _TOLERANCE,
        "passed": abs(implied - mean) <= _TOLERANCE,
      },
      # The share of steps that are at least so long cannot grow with a length.
      "marginal_monotonicity": {"passed": True, "violations": []},
    },
  }
  return json.dumps(profile, indent=2, ensure_ascii=False) + "\n"


def _marginal_rates(lengths: Sequence[int], num: int) -> list[float]:
  """Returns the shares of steps that accept at least 1 to `num` drafts.

  >>> _marginal_rates([1, 2, 2, 4], 4)
  [0.75, 0.25, 0.25, 0.0]
  """
  return [
    sum(length > accepted for length in lengths) / len(lengths)
    for accepted in range(1, num + 1)
  ]


def _verification(settings: PointSettings) -> str:
  """Returns how drafts are accepted, in the schema's words."""
  # A prefix of drafts that a joint draw decides on is no longest right prefix.
  is_joint = settings.verification in ("block", "traversal")
  return "block" if is_joint else "longest_prefix"


def _extrapolation(settings: PointSettings) -> str:
  """Returns whether the rates hold at another gamma, in the schema's words."""
  # The drafts of a shorter block are the first ones of a longer block, where
  # one drafter drafts a chain of fixed length that is verified token by token.
  is_chain = (
    not settings.block_changes
    and settings.verification in (None, "token")
    and methods.find(settings.method).compose is None
  )
  return "chain_analytic" if is_chain else "measured_per_k"


def _by_category(folder: DecodeFolder) -> dict[str, Any] | None:
  """Returns the mean length of each category; None where none is known."""
  by_category: dict[str, list[int]] = {}
  for answer in folder.answers:
    if (category := answer.question.get("category")) is not None:
      by_category.setdefault(category, []).extend(answer.lengths or ())
  return {
    name: {"mean_accept_length": round(statistics.fmean(lengths), _DIGITS)}
    for name, lengths in by_category.items()
    if lengths
  } or None


def _rounded(rates: Sequence[float]) -> list[float]:
  return [round(rate, _DIGITS) for rate in rates]
