"""Trains one drafter by every loss and every kind of text, and compares them.

  python -m benchmarks.distillation --data data --vocabulary multi30k.model \\
    --drafter out/small --verifier out/wide --output_dir out/distillation

Each drafter begins at the same checkpoint, takes --steps more steps by
configs/experiments/multi30k/distil.gin, and drafts for the verifier on a test
set. The first drafter is the checkpoint itself. Where a run was killed, the
same command continues. OUTPUT_DIR/curves.png has quality against calls, and
OUTPUT_DIR/table.md has a row for each drafter and method:
the acceptance rate and the tokens of a block, with 95% intervals over the
sentences, and the BLEU of the method's curve at --calls verifier calls a token.
Acceptance and that BLEU are compared with the drafter --baseline, paired over
the sentences.
"""

import argparse
import json
import math
import pathlib
import shlex
import subprocess
import sys

import matplotlib
from matplotlib.figure import Figure
import numpy as np

from speccascade.checkpoints import restore
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.runtime import files
from speccascade.study.measuring import infer
from speccascade.tasks import quality
from speccascade.tasks.inputs import Inputs
from speccascade.text import text_files

CONFIGS = "configs/experiments/multi30k"
GAMMA = 3
# The losses: a name, and the gin macros that choose it.
LOSSES = {
  "cross_entropy": {"LOSS": '"cross_entropy"'},
  "forward_kl": {"LOSS": '"forward_kl"'},
  "reverse_kl": {"LOSS": '"reverse_kl"'},
  "jsd_0.1": {"LOSS": "@objectives.GeneralJSD()", "JSD_BETA": 0.1},
  "jsd_0.5": {"LOSS": "@objectives.GeneralJSD()", "JSD_BETA": 0.5},
  "tvd": {"LOSS": '"tvd"'},
  "acceptance_opt": {
    "LOSS": "@objectives.RejectionLoss()",
    "ACCEPTANCE_METHOD": '"spec_cascade_opt"',
    "ACCEPTANCE_ALPHA": -0.3,
  },
  "acceptance_token_v3": {
    "LOSS": "@objectives.RejectionLoss()",
    "ACCEPTANCE_METHOD": '"spec_cascade_token_v3"',
    "ACCEPTANCE_ALPHA": 0.6,
  },
}
# The kinds of text. The teacher writes its text once, before any training.
TEXTS = {
  "gold": {},
  "teacher": {},
  "student": {"STUDENT_TEXT": 1.0},
  "mixed": {"STUDENT_TEXT": 0.5},
}
# The methods, with the alphas at which quality is compared at equal calls.
METHODS = {
  "spec_decode": [None],
  "spec_cascade_opt": [-0.9, -0.6, -0.3, 0.0, 0.3],
  "spec_cascade_token_v3": [0.2, 0.4, 0.6, 0.8, 0.95, 0.99],
}
# The drafter that all others begin at.
FIRST = "no further steps"
# The columns of the table.
COLUMNS = (
  "drafter",
  "method",
  "alpha",
  "acceptance",
  "accepted more than the baseline",
  "tokens a block",
  "verifier calls a token",
  "BLEU",
  "BLEU at equal calls",
  "BLEU more than the baseline",
)


def drafters() -> list[str]:
  """Returns the names "loss on text" of the drafters that are compared.

  A model that learns its own text by cross-entropy learns nothing: that pair is
  left out.
  """
  return [
    f"{loss} on {text}"
    for loss in LOSSES
    for text in TEXTS
    if loss != "cross_entropy" or text in ("gold", "teacher")
  ]


def macros_of(name: str) -> dict:
  """Returns the gin macros of a drafter, by its name of `drafters`."""
  loss, _, text = name.partition(" on ")
  return LOSSES[loss] | TEXTS[text]


def run(module: str, config: str, macros: dict):
  """Runs a command of the package; raises CalledProcessError if it fails."""
  flags = [f"--gin.{name}={value}" for name, value in macros.items()]
  command = [sys.executable, "-m", module, f"--gin_file={CONFIGS}/{config}"]
  print(shlex.join(["python", *command[1:], *flags]), flush=True)
  subprocess.run([*command, *flags], check=True)


def text(value) -> str:
  """Returns a path as a gin string."""
  return json.dumps(str(value))


def write_teacher_text(args, folder: pathlib.Path) -> pathlib.Path:
  """Returns JSON lines of the training sources, with the verifier's outputs."""
  path = folder / "teacher.jsonl"
  if path.exists():
    return path
  run(
    "speccascade.decode",
    "decode.gin",
    {
      "METHOD": '"verifier"',
      "DRAFTER_CHECKPOINT": None,
      "VERIFIER_CHECKPOINT": text(args.verifier),
      "VOCABULARY": text(args.vocabulary),
      "TEMPERATURE": 1.0,
      "TEST_FILES": text(args.data / args.test),
      "TRAIN_FILES": text(args.data / "train"),
      "SPLIT": '"train"',
      "MAX_DECODE_LEN": 40,
      "NUM_EXAMPLES": args.num_written,
      "OUTPUT_DIR": text(folder / "written"),
    },
  )
  lines = (folder / "written" / "predictions.jsonl").read_text().splitlines()
  pairs = []
  for line in lines:
    record = json.loads(line)
    pairs.append({"inputs": record["inputs"], "targets": record["prediction"]})
  write_lines(path, [pair for pair in pairs if pair["targets"]])
  return path


def write_lines(path: pathlib.Path, objects: list[dict]):
  """Writes a file of JSON lines."""
  files.write_whole(path, (json.dumps(each) + "\n" for each in objects))


def train(args, name: str, folder: pathlib.Path, first_step: int):
  """Trains a drafter in a folder; a folder with its last step is left."""
  steps = first_step + args.steps
  if (folder / f"checkpoint_{steps}").exists():
    return
  train_files = args.data / "train"
  if name.endswith(" on teacher"):
    train_files = write_teacher_text(args, args.output_dir)
  run(
    "speccascade.train",
    "distil.gin",
    macros_of(name)
    | {
      "TRAIN_FILES": text(train_files),
      "VALIDATION_FILES": text(args.data / "val"),
      "VOCABULARY": text(args.vocabulary),
      "TEACHER_CHECKPOINT": text(args.verifier),
      "INITIAL_CHECKPOINT_PATH": text(args.drafter),
      "INITIAL_STEP": first_step,
      "TRAIN_STEPS": steps,
      "EVAL_PERIOD": args.steps,
      "NUM_DECODED_EXAMPLES": 0,
      **({"BUCKETS": args.buckets} if args.buckets else {}),
      "MODEL_DIR": text(folder),
    },
  )


def point(
  args, test: pathlib.Path, drafter, folder: pathlib.Path, method, alpha
):
  """Returns a measured point of the table, decoding it where it is missing.

  All points are decoded in this process, so that drafters share programs.

  Args:
    args: the flags.
    test: JSON lines of the test set.
    drafter: a checkpoint.
    folder: where the outputs go.
    method: a name of `METHODS`.
    alpha: its parameter, or None.

  Returns:
    What `summary` returns.
  """
  place = folder / "points" / f"{method}_{alpha}"
  if not (place / "metrics.json").exists():
    print(f"decoding {place}", flush=True)
    infer.infer(
      pair=PairSpec(
        drafter_checkpoint=drafter, verifier_checkpoint=args.verifier
      ),
      inputs=Inputs(
        {"inputs": 64, "targets": 64},
        input_file=test,
        vocabulary=args.vocabulary,
        num_examples=args.num_examples,
        prompt="source",
      ),
      point=Point(method, alpha, gamma=GAMMA, temperature=1.0),
      run=Run(
        output_dir=place, max_decode_len=64, batch_size=50, progress=False
      ),
    )
  lines = (place / "predictions.jsonl").read_text().splitlines()
  records = [json.loads(line) for line in lines]
  examples = text_files.read_texts(test, len(records))
  return summary(
    [each["aux"]["counts"] for each in records],
    [each["prediction"] for each in records],
    [list(example.references) for example in examples],
  )


def summary(
  counts: list[dict], predictions: list[str], references: list[list[str]]
) -> dict[str, np.ndarray]:
  """Returns ratios of sums over sentences, and BLEU, an array each.

  The first is of the sentences as they are, the others are of resamples. A
  sentence is drawn as a whole, since drafts of one sentence depend on each
  other. Equally many sentences have equal resamples, so that the numbers of two
  drafters can be compared resample by resample.

  >>> counts = [{"accepted": 1, "examined": 2, "num_tokens": 4,
  ...            "num_blocks": 2, "verifier_calls": 2}]
  >>> measured = summary(counts, ["a b c d e"], [["a b c d e"]])
  >>> interval(measured["acceptance"])
  (0.5, 0.5, 0.5)
  >>> round(measured["BLEU"][0])
  100
  """
  ratios = {
    "acceptance": ("accepted", "examined"),
    "tokens a block": ("num_tokens", "num_blocks"),
    "verifier calls a token": ("verifier_calls", "num_tokens"),
  }
  statistics = {
    label: quality.Statistics(
      label,
      np.array([[each[top], each[bottom]] for each in counts], np.float64),
      lambda totals: totals[0] / max(totals[1], 1),
      "",
    )
    for label, (top, bottom) in ratios.items()
  }
  (statistics["BLEU"],) = quality.bleu(predictions, references)
  return {
    label: np.array([each.value, *each.bootstrap()])
    for label, each in statistics.items()
  }


def interval(values: np.ndarray) -> tuple[float, float, float]:
  """Returns a number of `summary`, and the ends of its 95% interval.

  Resamples without the number (NaN) do not count.
  """
  low, high = np.nanquantile(values[1:], (0.025, 0.975))
  return float(values[0]), float(low), float(high)


def at_calls(points: list[dict], calls: float) -> np.ndarray:
  """Returns the BLEU of a method at a number of verifier calls a token.

  It is read from the line between the two measured alphas around the number, in
  each resample; NaN where the alphas' calls do not reach it.

  >>> points = [{"verifier calls a token": np.full(2, c),
  ...            "BLEU": np.array([b, b + 1])}
  ...           for c, b in ((0.4, 30.0), (0.6, 34.0))]
  >>> at_calls(points, 0.45)
  array([31., 32.])
  """
  xs = np.stack([each["verifier calls a token"] for each in points], axis=1)
  ys = np.stack([each["BLEU"] for each in points], axis=1)
  order = np.argsort(xs, axis=1)
  xs, ys = (np.take_along_axis(array, order, axis=1) for array in (xs, ys))
  return np.array(
    [
      np.interp(calls, x, y, left=math.nan, right=math.nan)
      for x, y in zip(xs, ys)
    ]
  )


def shown(values: np.ndarray | None, form: str) -> str:
  """Returns a number with its interval as a cell; empty where there is none."""
  if values is None or np.isnan(values[0]):
    return ""
  value, low, high = (format(number, form) for number in interval(values))
  return f"{value} [{low}, {high}]"


def write_table(
  measured: dict, baseline: str, calls: float, path: pathlib.Path
):
  """Writes the table of {(drafter, method, alpha): point}, in Markdown.

  Args:
    measured: the points.
    baseline: the drafter that the others are compared with.
    calls: the verifier calls a token at which quality is compared.
    path: of the table.
  """
  lines = [
    f"| {' | '.join(COLUMNS)} |",
    f"| {' | '.join(['---'] * 3 + ['---:'] * (len(COLUMNS) - 3))} |",
  ]

  def curve_at_calls(name: str, method: str) -> np.ndarray | None:
    """Returns what `at_calls` says of a drafter, or None without a curve."""
    curve = [x for key, x in measured.items() if key[:2] == (name, method)]
    return at_calls(curve, calls) if len(curve) > 1 else None

  for (name, method, alpha), each in measured.items():
    cells = [name, method, "" if alpha is None else f"{alpha:g}"]
    other = measured.get((baseline, method, alpha))
    compares = other is not None and name != baseline
    more = each["acceptance"] - other["acceptance"] if compares else None
    cells += [
      shown(each["acceptance"], ".3f"),
      shown(more, "+.3f"),
      shown(each["tokens a block"], ".3f"),
      shown(each["verifier calls a token"], ".3f"),
      shown(each["BLEU"], ".1f"),
    ]
    # Said once for each curve.
    equal = gap = None
    if alpha == METHODS[method][0]:
      equal = curve_at_calls(name, method)
      theirs = curve_at_calls(baseline, method)
      if compares and equal is not None and theirs is not None:
        gap = equal - theirs
    cells += [shown(equal, ".1f"), shown(gap, "+.1f")]
    lines.append(f"| {' | '.join(cells)} |")
  files.write_whole(path, "\n".join(lines) + "\n")


def draw(measured: dict, path: pathlib.Path):
  """Draws BLEU against verifier calls, a panel for each method with alphas.

  A colour is a loss, and a way of drawing the line is a kind of text.
  """
  panels = [name for name, alphas in METHODS.items() if len(alphas) > 1]
  colors = dict(zip(LOSSES, matplotlib.color_sequences["tab10"]))
  ways = dict(zip(TEXTS, ("-", "--", ":", "-.")))
  figure = Figure(figsize=(11, 4.6), layout="constrained")
  axes = figure.subplots(1, len(panels), sharey=True)
  names = list(dict.fromkeys(name for name, _, _ in measured))
  for axis, method in zip(axes, panels):
    for name in names:
      curve = [x for key, x in measured.items() if key[:2] == (name, method)]
      curve.sort(key=lambda each: each["verifier calls a token"][0])
      loss, _, source = name.partition(" on ")
      axis.plot(
        [each["verifier calls a token"][0] for each in curve],
        [each["BLEU"][0] for each in curve],
        color=colors.get(loss, "black"),
        linestyle=ways.get(source, "-"),
        marker=".",
        label=name,
      )
    axis.set_title(method)
    axis.set_xlabel("verifier calls a token")
  axes[0].set_ylabel("BLEU")
  handles, labels = axes[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside right center", fontsize=8)
  figure.savefig(path, dpi=120)


def main(argv=None):
  """Trains, measures and writes the table, which is printed too."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  for name in ("data", "vocabulary", "drafter", "verifier", "output_dir"):
    parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
  parser.add_argument("--test", default="test_2016_flickr")
  parser.add_argument("--steps", type=int, default=600)
  parser.add_argument("--num_examples", type=int, default=500)
  parser.add_argument("--num_written", type=int, default=29000)
  parser.add_argument(
    "--buckets",
    nargs="+",
    type=int,
    help="widths of batches; one compiles once",
  )
  parser.add_argument("--only", nargs="+", choices=drafters(), metavar="NAME")
  parser.add_argument(
    "--baseline",
    default="tvd on gold",
    metavar="NAME",
    help="the drafter that the others are compared with (%(default)s)",
  )
  parser.add_argument(
    "--calls",
    type=float,
    default=0.35,
    help="verifier calls a token at which quality is compared (%(default)s)",
  )
  parser.add_argument(
    "--methods", nargs="+", choices=METHODS, default=list(METHODS)
  )
  args = parser.parse_args(argv)
  first_step = restore.load(args.drafter, lazy=True).step
  args.output_dir.mkdir(parents=True, exist_ok=True)
  test = args.output_dir / f"{args.test}.jsonl"
  examples = text_files.read(args.data / args.test)
  write_lines(
    test,
    [{"inputs": x.inputs, "targets": x.references[0]} for x in examples],
  )
  table = args.output_dir / "table.md"
  measured = {}
  for name in (FIRST, *(args.only or drafters())):
    folder = args.output_dir / name.replace(" ", "_")
    drafter = args.drafter if name == FIRST else folder
    if name != FIRST:
      train(args, name, folder, first_step)
    for method in args.methods:
      for alpha in METHODS[method]:
        key = (name, method, alpha)
        measured[key] = point(args, test, drafter, folder, method, alpha)
    write_table(measured, args.baseline, args.calls, table)
  draw(measured, args.output_dir / "curves.png")
  print(table.read_text())


if __name__ == "__main__":
  main()
