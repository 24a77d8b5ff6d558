"""How much a rule could keep on right prefixes, if it knew the right token.

  python -m benchmarks.rule_room --rule out/rule

--rule is the OUTPUT_DIR of `python -m speccascade.learned_rule`, which holds
rows of right tokens y and the fitted heads. At a place where a maximal coupling
of q and p draws two different tokens, which has the chance TV(q, p), deferring
gains (p(y) - q(y)) / TV right tokens in the mean. Deferring everywhere gains
the mean of p(y) - q(y) a token, at TV rejections a token. A rule that defers at
some places keeps a part of the gain for a part of the rejections. Those parts
are printed for OPT, for the learned heads, and for the best rule of all, which
would know y. The difference of the last two is all that other features, other
networks and more rows could add to the rightness of the next token.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import cli
from speccascade.checkpoints import rule_files
from speccascade.decoding.laws import learned
from speccascade.runtime import array_files
from speccascade.training.rule_fitting import TokenRows

TV = learned.FEATURES.index("total_variation")
RESAMPLES = 300
RUN = 100  # tokens that a bootstrap draws together


def read_rows(folder: pathlib.Path, split: str) -> TokenRows:
  """Returns the rows that the command of learned rules left of a split."""
  parts = sorted((folder / "rows" / split).iterdir())
  parts = [TokenRows(**array_files.read_npz(part)) for part in parts]
  return TokenRows(*map(np.concatenate, zip(*parts)))


def predicted(network: learned.Network, features: Any) -> jax.Array:
  """Returns the gain that heads predict, [N]."""
  g_q, g_p = learned.confidences(network, jnp.asarray(features))
  return (g_p - g_q) / jnp.maximum(features[:, TV], 1e-6)


def kept(
  values: np.ndarray, gain: np.ndarray, tv: np.ndarray, shares: Sequence[float]
) -> np.ndarray:
  """Returns the gain that a rule keeps at shares of all rejections, [K].

  1 is the gain of deferring everywhere; more is possible, because some gains
  are negative.

  Args:
    values: [N]; the rule defers where they are large.
    gain: [N], the gain of deferring at each place, TV times its mean where the
      models differ.
    tv: [N], the rejections that it costs.
    shares: [K] numbers in [0, 1].

  >>> kept(np.array([3, 1]), np.array([0.2, -0.1]), np.ones(2), [0.5]).round(6)
  array([2.])
  """
  order = np.argsort(-values, kind="stable")
  costs, gains = np.cumsum(tv[order]), np.cumsum(gain[order])
  starts = np.insert(costs, 0, 0), np.insert(gains, 0, 0)
  return np.interp(np.asarray(shares) * costs[-1], *starts) / gains[-1]


def room(rows: TokenRows, heads: learned.Network):
  """Prints the gain that rules keep on right prefixes, and the best rule's.

  The intervals of the differences are a bootstrap over runs of 100 tokens.
  """
  shares = (0.5, 0.6, 0.7, 0.8, 0.9)
  tv = np.asarray(rows.features)[:, TV].astype(np.float64)
  gain = np.asarray(rows.p_gold - rows.q_gold, np.float64)
  rules = {
    "OPT": gain_of_opt(rows.features),
    "heads": np.asarray(predicted(heads, rows.features)),
    "knows y": gain / np.maximum(tv, 1e-9),
  }
  run = np.arange(len(tv)) // RUN
  rng, several = np.random.default_rng(0), []
  for number in range(1 + RESAMPLES):
    weights = np.ones(run[-1] + 1)
    if number:
      drawn = rng.integers(len(weights), size=len(weights))
      weights = np.bincount(drawn, minlength=len(weights))
    weights = weights[run]
    several.append(
      [kept(x, weights * gain, weights * tv, shares) for x in rules.values()]
    )
  several = np.array(several)
  differences = {"OPT": None, "heads": (1, 0), "knows y": (2, 1)}
  print(
    f"{len(tv)} right prefixes: TV {tv.mean():.4f}, gain {gain.mean():.4f} a"
    f" token; the share of it that is kept at {shares} of the rejections, and"
    " over the rule above"
  )
  for place, (name, pair) in enumerate(differences.items()):
    cells = [f"{x:.3f}" for x in several[0, place]]
    if pair is not None:
      gaps = several[1:, pair[0]] - several[1:, pair[1]]
      ends = np.quantile(gaps, [0.025, 0.975], axis=0).T
      cells = [
        f"{cell} [{low:+.3f}, {high:+.3f}]"
        for cell, (low, high) in zip(cells, ends)
      ]
    print(f"| {name} |", " | ".join(cells), "|")


def gain_of_opt(features: Any) -> np.ndarray:
  """Returns the gain that OPT's plug-ins predict, [N]."""
  features = np.asarray(features)
  difference = features[:, 1] - features[:, 0]
  return difference / np.maximum(features[:, TV], 1e-6)


def main():
  parser = cli.Parser("rule_room", __doc__, "benchmarks")
  add = parser.add_argument
  add("--rule", type=pathlib.Path, required=True, help="a folder")
  add("--split", default="validation", help="whose rows are read")
  args = parser.parse_args()
  file = rule_files.read(args.rule / "rule.npz")
  heads = file.parameters[learned.HEADS.name]
  room(read_rows(args.rule, args.split), heads)


if __name__ == "__main__":
  main()
