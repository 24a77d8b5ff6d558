"""A learned rule that is fitted to roll-outs, compared with right answers.

  python -m benchmarks.rule_rollouts --pair speccascade/built_in \\
    --rule out/rule --output out/rollouts

--rule is the OUTPUT_DIR of `python -m speccascade.learned_rule`. That rule is
fitted to prefixes of right outputs, and to whether the next token is the right
one. Here the rule of equal form is fitted to prefixes that a decode wrote, and
to what becomes of the whole output:

1. That rule decodes training sentences, at --alpha and temperature 1.
2. A place of a written text where a maximal coupling of q and p draws two
   different tokens is drawn: a place has the chance TV(q, p), the drafter's
   token comes from norm(max(0, q - p)), and the verifier's token from
   norm(max(0, p - q)). Elsewhere both models write the same token, and nothing
   depends on the rule.
3. Both texts are written to their ends by the rule's own distribution, with the
   same random numbers. The gain is the metric of the current texts with the
   verifier's text added, minus the same with the drafter's text added, times
   the number of texts, over 100.
4. The heads are fitted so that (g_p - g_q) / TV predicts the gain. Deferring
   at a place gains TV times the expected gain and costs TV rejections, so the
   best place rule defers where the expected gain is above alpha. That is the
   rule `spec_cascade_learned` with these heads: g_q < g_p - alpha TV.

A control has the same loss and the same chance of a place, but right prefixes,
and (p(y) - q(y)) / TV of the right token y for the gain. The parts of the
rolled-out gain that the rules keep for parts of the rejections are printed; the
heads of roll-outs predict sentences that they were not fitted to. With --trials
above 0 the rules decode the test split, each at alphas that are quantiles of
its predictions, and are compared at equal verifier calls. What was rolled out
stays in --output, where the same command finds it.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import built_in, learned_rules
from benchmarks.rollout_gains import METHOD, Gains, roll_out
from benchmarks.rule_room import TV, gain_of_opt, kept, predicted, read_rows
from speccascade.checkpoints import rule_files
from speccascade.decoding.laws import learned
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.runtime import array_files
from speccascade.study.measuring.study import Measuring, Study
from speccascade.tasks.generated import task
from speccascade.tasks.inputs import Inputs
from speccascade.training import rule_fitting
from speccascade.training.rule_fitting import Fitting, TokenRows

FOLDS = 4
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
RESAMPLES = 300


def gains_of_right_tokens(rows: TokenRows, num: int, seed: int) -> Gains:
  """Returns (p(y) - q(y)) / TV at places that have the chance TV."""
  tv = np.asarray(rows.features)[:, TV].astype(np.float64)
  rng = np.random.default_rng(seed)
  picks = rng.choice(len(tv), num, p=tv / tv.sum())
  gain = (rows.p_gold - rows.q_gold)[picks] / tv[picks]
  # Stretches of 2048 rows, which are of whole sentences but for their ends,
  # stand for sentences.
  return Gains(rows.features[picks], gain.astype(np.float32), picks // 2048)


def _loss(network: learned.Network, rows: Gains, key: jax.Array) -> jax.Array:
  return jnp.square(predicted(network, rows.features) - rows.gain)


def part(gains: Gains, chosen: np.ndarray) -> Gains:
  """Returns the places where `chosen` [N] is True."""
  return Gains(*(np.asarray(x)[chosen] for x in gains))


def fit(rows: Gains, held_out: Gains) -> learned.Network:
  """Returns heads that predict the gains of rows."""
  fitting = Fitting(steps=600, learning_rate=0.003)
  plug_in = learned.HEADS.plug_in()
  return rule_fitting.fit_network(_loss, plug_in, rows, held_out, fitting)


def cross_fit(gains: Gains) -> tuple[learned.Network, np.ndarray]:
  """Returns heads for gains, and [N] predictions of heads for other sentences.

  The sentences are in `FOLDS` folds. The prediction at a place is made by heads
  that were neither fitted to its fold nor stopped by it. The heads that are
  returned are those that leave fold 0 out.
  """
  fold = np.asarray(gains.example) % FOLDS
  heads, values = [], np.zeros(len(fold))
  for number in range(FOLDS):
    stop = (number + 1) % FOLDS
    is_here = fold == number
    network = fit(
      part(gains, ~is_here & (fold != stop)), part(gains, fold == stop)
    )
    values[is_here] = predicted(network, part(gains, is_here).features)
    heads.append(network)
  return heads[0], values


def judge(gains: Gains, rules: dict[str, np.ndarray], base: str):
  """Prints what rules keep of the rolled-out gains, and the gap to a base.

  All places have one weight, because their chance was TV. The intervals are a
  bootstrap over sentences.

  Args:
    gains: at N places.
    rules: [N] predictions of each rule; it defers where they are large.
    base: the name of the rule that the others are compared with.
  """
  gain = np.asarray(gains.gain, np.float64)
  spread = gain.std() / np.sqrt(len(gain))
  print(
    f"{len(gain)} places: gain {gain.mean():.4f} +- {spread:.4f}, standard"
    f" deviation {gain.std():.3f}; {np.mean(gain == 0):.2f} are 0,"
    f" {np.mean(gain < 0):.2f} below; the part that is kept at {SHARES} of the"
    f" rejections, and the difference from {base}"
  )
  sentence = np.unique(gains.example, return_inverse=True)[1]
  rng = np.random.default_rng(0)
  weights = [np.ones(len(gain))]
  for _ in range(RESAMPLES):
    drawn = rng.integers(sentence.max() + 1, size=sentence.max() + 1)
    counts = np.bincount(drawn, minlength=sentence.max() + 1)
    weights.append(counts[sentence].astype(np.float64))
  several = {
    name: np.array([kept(values, w * gain, w, SHARES) for w in weights])
    for name, values in rules.items()
  }
  for name, values in rules.items():
    gaps = several[name] - several[base]
    ends = np.quantile(gaps[1:], [0.025, 0.975], axis=0)
    cells = [
      f"{at:.3f} ({gap:+.3f} [{low:+.3f}, {high:+.3f}])"
      for at, gap, low, high in zip(several[name][0], gaps[0], *ends)
    ]
    correlation = np.corrcoef(values, gain)[0, 1]
    print(f"| {name} |", " | ".join(cells), f"| r {correlation:.3f} |")


def main():
  parser = built_in.parser("rule_rollouts", __doc__)
  add = parser.add_argument
  add("--rule", type=pathlib.Path, required=True, help="a folder")
  add("--output", type=pathlib.Path, required=True, help="a folder")
  add("--num_train", type=int, default=2000, help="sentences that are decoded")
  add("--places", type=int, default=6000, help="that are rolled out")
  add("--alpha", type=float, default=-0.3, help="of the decodes")
  add("--num_examples", type=int, default=500, help="of the test split")
  add("--max_decode_len", type=int, default=64)
  add("--trials", type=int, default=1, help="of the test; 0 decodes nothing")
  add("--calls", type=float, nargs="+", help="a token, where to compare")
  args = parser.parse_args()
  name = task.register()
  args.output.mkdir(parents=True, exist_ok=True)

  def study(split: str, num: int) -> Study:
    sources = Inputs(
      {"inputs": 96}, mixture_or_task_name=name, split=split, num_examples=num
    ).read()
    pair = PairSpec(
      drafter_checkpoint=str(args.pair / "small"),
      verifier_checkpoint=str(args.pair / "large"),
    ).load(sources.vocabulary)
    run = Run(
      max_decode_len=args.max_decode_len,
      batch_size=50,
      num_lengths=1,
      progress=False,
    )
    return Study(
      Session(pair, sources.fit_padding(), run), Measuring(num_timed=0)
    )

  teacher = args.rule / "rule.npz"
  point = Point(METHOD, gamma=5, rule_parameters=str(teacher), alpha=args.alpha)
  file = rule_files.read(teacher)
  path = args.output / "gains.npz"
  if not path.exists():
    roll_out(study("train", args.num_train), point, args.places, 0, path)
  gains = Gains(**array_files.read_npz(path))
  right = gains_of_right_tokens(read_rows(args.rule, "train"), 20000, 0)
  right_heads = file.parameters[learned.HEADS.name]
  fold = np.asarray(right.example) % FOLDS
  held_out = part(right, fold == 0)
  difference_heads = fit(part(right, fold != 0), held_out)
  difference_values = predicted(difference_heads, held_out.features)
  rollout_heads, rollout_values = cross_fit(gains)
  seen = gains.features
  rules = {
    "OPT": gain_of_opt(seen),
    "right answers": np.asarray(predicted(right_heads, seen)),
    "right differences": np.asarray(predicted(difference_heads, seen)),
    "roll-outs": rollout_values,
    "knows the gain": np.asarray(gains.gain),
  }
  judge(gains, rules, base="right answers")
  curves = {"right answers": (str(teacher), None)}
  for label, network, values in (
    ("right differences", difference_heads, difference_values),
    ("roll-outs", rollout_heads, rollout_values),
  ):
    path = args.output / f"{label.replace(' ', '_')}.npz"
    fitted = {**file.parameters, learned.HEADS.name: network}
    rule_files.write(path, fitted, {"fitted_to": label})
    alphas = np.quantile(values, [0.02, 0.1, 0.25, 0.45, 0.65, 0.85])
    curves[label] = (str(path), np.round(alphas, 4).tolist())
  print(json.dumps({label: alphas for label, (_, alphas) in curves.items()}))
  if not args.trials:
    return
  test = study("test", args.num_examples)
  metric = test.metrics[0]
  decodes: dict[str, list[learned_rules.Decodes]] = {}
  grid = point.spec.alpha_interval.grid[:-1]
  for label, (rule, alphas) in curves.items():
    for alpha in alphas or grid:
      each = point.of(METHOD, alpha=alpha, rule_parameters=rule)
      each = learned_rules.decode(test, each, args.trials, metric)
      decodes.setdefault(label, []).append(each)
      calls = each.calls.sum() / each.tokens.sum()
      print(
        f"{label} {alpha:g}: {each.statistics.value:.2f} at {calls:.4f}",
        flush=True,
      )
  learned_rules.compare(decodes, metric, args.calls, base="right answers")


if __name__ == "__main__":
  main()
