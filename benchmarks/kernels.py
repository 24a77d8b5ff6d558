"""What kernels in bfloat16 change, and how far a block is from single steps.

  python -m benchmarks.kernels --pair out/quickstart
  python -m benchmarks.kernels --pair out/multi30k --max_decode_len 64 \\
    --vocabulary multi30k.model --test_files data/test_2016_flickr

Each model of a pair writes the test sentences greedily with kernels of each
type; then the large one reads what it wrote, six tokens at a time and one by
one, and its logits are compared. Activations are float32, which the last type
rounds where kernels multiply them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import built_in
from speccascade.checkpoints import restore
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.records import text_of
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.models import T5LM
from speccascade.models.parameters import KERNEL_DTYPES
from speccascade.tasks import quality, tasks
from speccascade.tasks.generated import task
from speccascade.tasks.inputs import Inputs

BLOCK = 6


def written(session: Session, point: Point):
  """Returns the outputs of all examples, tokens [N, T] and texts."""
  decoded = session.batches(point).decode_all(session.examples)
  ends = zip(decoded.tokens, decoded.lengths)
  texts = [text_of(session.vocabulary, row[:end]) for row, end in ends]
  return np.asarray(decoded.tokens), texts


@functools.partial(jax.jit, static_argnames="width")
def logits(lm, source, fed, width: int):
  """Returns [T, V], the logits after each of the tokens fed [1, T]."""

  def read(state, block):
    state, out = lm.extend(state, block[None], jnp.full((1,), width, jnp.int32))
    return state, out.logits[0]

  state = lm.prefill(source, capacity=fed.shape[1])
  return jax.lax.scan(read, state, fed.reshape(-1, width))[1].reshape(
    fed.shape[1], -1
  )


def block_against_steps(session: Session, lm, tokens, num: int) -> tuple:
  """Returns (largest difference of logits, greedy choices that differ)."""
  largest, differ = 0.0, 0
  for example, row in list(zip(session.examples, tokens))[:num]:
    source = session.pad_examples([example], 1)
    fed = np.pad(row, (1, 0))[None, : len(row) // BLOCK * BLOCK]
    block, steps = (
      np.asarray(logits(lm, source, fed, width)) for width in (BLOCK, 1)
    )
    largest = max(largest, float(np.abs(block - steps).max()))
    differ += int((block.argmax(-1) != steps.argmax(-1)).sum())
  return largest, differ


def main():
  parser = built_in.parser("kernels", __doc__)
  add = parser.add_argument
  add("--test_files", help="NAME of NAME.en and NAME.de; None: built-in task")
  add("--vocabulary", help="of the test files")
  add("--num_examples", type=int, default=500)
  add("--num_blocks", type=int, default=32, help="outputs read in blocks")
  add("--max_decode_len", type=int, default=built_in.MAX_DECODE_LEN)
  args = parser.parse_args()
  name = task.register()
  if args.test_files is not None:
    name = tasks.register_text_task(
      "kernels_task",
      tasks.TextSplits(test=args.test_files),
      vocabulary=args.vocabulary,
    )
  sources = Inputs(
    {"inputs": 96},
    mixture_or_task_name=name,
    split="test",
    num_examples=args.num_examples,
  ).read()
  metric = sources.metrics[0]
  references = [example.references for example in sources.examples]
  run = Run(max_decode_len=args.max_decode_len, progress=False)
  outputs, scores, read = {}, {}, {}
  for kernels in KERNEL_DTYPES:
    pair = PairSpec(
      drafter_checkpoint=str(args.pair / "small"),
      verifier_checkpoint=str(args.pair / "large"),
      kernel_dtype=kernels,
    ).load(sources.vocabulary)
    session = Session(pair, sources.fit_padding(), run)
    for role in ("drafter", "verifier"):
      tokens, texts = written(session, Point(role, temperature=0.0))
      outputs[role, kernels] = tokens
      [score] = quality.metric(metric)(texts, references)
      scores[role, kernels] = score.value, score.bootstrap()
    how = session, pair.verifier_lm, tokens, args.num_blocks
    read[f"{kernels}, native"] = block_against_steps(*how)
  checkpoint = restore.load(args.pair / "large")
  plain = T5LM.create(checkpoint.config, checkpoint.params, "float32")
  how = session, plain, outputs["verifier", "float32"], args.num_blocks
  read["float32, XLA's product"] = block_against_steps(*how)
  first, *others = KERNEL_DTYPES
  print(f"| model | kernels | {metric} | over {first} | same outputs |")
  print("| --- | --- | ---: | ---: | ---: |")
  for role in ("drafter", "verifier"):
    (wide, many), tokens = scores[role, first], outputs[role, first]
    print(f"| {role} | {first} | {wide:.2f} | | |")
    for kernels in others:
      half, drawn = scores[role, kernels]
      low, high = np.percentile(drawn - many, [2.5, 97.5])
      same = np.mean(np.all(tokens == outputs[role, kernels], axis=1))
      print(
        f"| {role} | {kernels} | {half:.2f} | {half - wide:+.2f} [{low:+.2f},"
        f" {high:+.2f}] | {same:.1%} of {len(tokens)} |"
      )
  print("\n| kernels | largest difference of logits | other greedy choices |")
  print("| --- | ---: | ---: |")
  for name, (largest, differ) in read.items():
    print(f"| {name} | {largest:.2g} | {differ} |")


if __name__ == "__main__":
  main()
