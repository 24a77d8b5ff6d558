"""Says what whole decodes take, relative to the verifier alone.

`walltime_s` is the time of one example at batch 1. The encoder counts;
compilation does not.
"""

import dataclasses
from typing import Annotated

import numpy as np

from speccascade.settings import fields

RESAMPLES = 1000  # bootstrap resamples of an interval
REPLICATES = 200  # how many resampled latencies a `Latency` holds
_DIGITS = 5  # decimals of a resampled latency
# Timed examples needed to fit the time of a token to their lengths.
_LEAST_EXAMPLES = 8

_Time = Annotated[float, fields.Bounds(0, low_open=True)]


@dataclasses.dataclass(frozen=True)
class Latency:
  """The latency of one competitor over the timed examples.

  Intervals are bootstraps over examples. A resample draws the same examples for
  the competitor and for the reference.

  Attributes:
    walltime_s: the mean over examples of the median over repeats.
    by_repeat_s: the mean over examples in each repeat, which shows the spread.
    relative_latency: `walltime_s` divided by the reference's `walltime_s` on
      the same examples.
    relative_low: the lower end of the 95% interval of `relative_latency`.
    relative_high: the upper end of the interval.
    num_examples: how many examples were timed.
    repeats: how often each example was timed.
    replicates: relative latencies of resampled examples. For equally many timed
      examples, the i-th resample holds the same examples for every competitor.
    num_tokens: the sum of the timed outputs' tokens, EOS included; None where
      tokens were not counted.
    per_token: the seconds per token divided by the reference's seconds per
      token, then the lower and the upper end of the 95% interval; None where
      tokens were not counted.
    token_s: the seconds that one token more takes, by outputs of two lengths,
      see `seconds_per_token`; None where the lengths do not determine it.
  """

  walltime_s: _Time
  by_repeat_s: tuple[_Time, ...]
  relative_latency: _Time
  relative_low: _Time
  relative_high: _Time
  num_examples: fields.Positive
  repeats: fields.Positive
  replicates: tuple[_Time, ...] = ()
  num_tokens: fields.NonNegative | None = None
  per_token: tuple[_Time, _Time, _Time] | None = None
  token_s: _Time | None = None

  def __post_init__(self):
    fields.freeze(self)


def latency(
  seconds: np.ndarray,
  reference: np.ndarray,
  tokens: tuple[np.ndarray, np.ndarray] | None = None,
) -> Latency:
  """Returns the latency of a competitor relative to a reference.

  Args:
    seconds: [repeats, examples], what `timing.interleave` gave for it.
    reference: [repeats, examples], the seconds of the reference, the verifier
      alone, in the same run on the same examples.
    tokens: a pair of [examples] ints, the lengths of the competitor's and of
      the reference's outputs; None leaves the latency per token out.
  """
  # The median over repeats drops a repeat in which the machine did other work.
  times, reference_times = (
    np.median(seconds, axis=0),
    np.median(reference, axis=0),
  )
  num = times.size
  # The seed is fixed, so `picks` [RESAMPLES, num] are the same example numbers
  # for every competitor, and replicates of two competitors are paired.
  picks = np.random.default_rng(0).integers(0, num, (RESAMPLES, num))
  ratios = times[picks].mean(axis=1) / reference_times[picks].mean(axis=1)
  low, high = np.quantile(ratios, [0.025, 0.975])
  num_tokens = per_token = token_s = None
  if tokens is not None:
    num_tokens = int(tokens[0].sum())
    token_s = seconds_per_token(times, tokens[0])
    # An output without a token counts as one token: it must not divide by 0.
    lengths, reference_lengths = (np.maximum(each, 1) for each in tokens)
    value = times.sum() / reference_times.sum() * reference_lengths.sum()
    value /= lengths.sum()
    resampled = ratios * reference_lengths[picks].sum(axis=1)
    resampled /= lengths[picks].sum(axis=1)
    per_token_low, per_token_high = np.quantile(resampled, [0.025, 0.975])
    per_token = (float(value), float(per_token_low), float(per_token_high))
  return Latency(
    walltime_s=float(times.mean()),
    by_repeat_s=tuple(float(x) for x in seconds.mean(axis=1)),
    relative_latency=float(times.mean() / reference_times.mean()),
    relative_low=float(low),
    relative_high=float(high),
    num_examples=num,
    repeats=len(seconds),
    replicates=tuple(np.round(ratios[:REPLICATES], _DIGITS).tolist()),
    num_tokens=num_tokens,
    per_token=per_token,
    token_s=token_s,
  )


def seconds_per_token(times: np.ndarray, lengths: np.ndarray) -> float | None:
  """Returns the seconds that one token more takes, by outputs of two lengths.

  A decode takes a fixed time, which is the encoder's and that of a call, and
  then a time for each token. Two outputs of different lengths have the same
  fixed time: the difference of their times over that of their lengths is the
  time of a token. The median over all such pairs lets no single example that
  was disturbed decide (Theil and Sen's slope).

  Args:
    times: [N] seconds of the examples.
    lengths: [N] tokens of their outputs.

  Returns:
    The seconds, above 0; None where fewer than 8 examples were timed, where all
    outputs have one length, or where longer outputs took no longer.

  >>> round(seconds_per_token(0.5 + 0.1 * np.arange(8), np.arange(8)), 6)
  0.1
  """
  if len(times) < _LEAST_EXAMPLES:
    return None
  first, second = np.triu_indices(len(times), 1)
  more = np.subtract(lengths[second], lengths[first], dtype=np.float64)
  slopes = (times[second] - times[first])[more != 0] / more[more != 0]
  slope = float(np.median(slopes)) if slopes.size else 0.0
  return slope if slope > 0 else None
