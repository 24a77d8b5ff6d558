"""How much of a verifier's text a draft vocabulary covers, by its size.

  python -m benchmarks.draft_coverage --verifier out/smollm/model \\
    --texts out/written/predictions.jsonl --prompts held_out.jsonl

Tokens are counted in texts; see `speccascade.draft_vocabulary`. For the
prompts, which should be others, the verifier writes texts. Of each size it
prints the share of their tokens that is kept, the verifier's probability of the
kept tokens, in the mean over places, and with --drafter how likely a draft is
accepted at the temperature: the mean of sum_v min(p, q), where q is the
drafter's distribution over the kept tokens. "lowest ids" counts nothing.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import cli
from speccascade.generate import teacher_forcing
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.tasks.inputs import Inputs
from speccascade.text import frequent_tokens

SIZES = (2048, 4096, 8192, 16384, 32768)


@functools.partial(jax.jit, static_argnames="has_drafter")
def measured(pair, sampling, inputs, tokens, is_kept, *, has_drafter):
  """Returns (p of kept tokens, acceptance) [M, B, T] of M kept sets.

  Args:
    pair: (drafter, verifier).
    sampling: how logits become distributions.
    inputs: [B, S] int32.
    tokens: [B, T] int32, what the verifier wrote.
    is_kept: [M, V] bool.
    has_drafter: whether there is a drafter; else acceptance is 0.
  """
  drafter, verifier = pair
  _, p = sampling.laws(teacher_forcing.read(verifier, inputs, tokens).logits)
  logits = None
  if has_drafter:
    logits = teacher_forcing.read(drafter, inputs, tokens).logits

  def of_set(kept):
    kept = jnp.broadcast_to(kept, p.shape)
    inside = jnp.sum(jnp.where(kept, p, 0), axis=-1)
    if logits is None:
      return inside, jnp.zeros_like(inside)
    _, q = sampling.laws(jnp.where(kept, logits, -jnp.inf))
    return inside, jnp.sum(jnp.minimum(p, q), axis=-1)

  return jax.lax.map(of_set, is_kept)


def kept_sets(ids, sizes, vocab_size: int) -> np.ndarray:
  """Returns [M, V] bool: the first ids of a list, for each size."""
  sets = np.zeros((len(sizes), vocab_size), bool)
  for kept, size in zip(sets, sizes):
    kept[np.asarray(ids[:size])] = True
  return sets


def main():
  parser = cli.Parser("draft_coverage", __doc__, "benchmarks")
  add = parser.add_argument
  add("--verifier", required=True, help="a Hugging Face directory")
  add("--drafter", help="checkpoint of a drafter")
  add("--texts", nargs="+", required=True, help="files that are counted")
  add("--prompts", required=True, help="JSON lines with inputs or messages")
  add("--sizes", type=int, nargs="+", default=SIZES, help="tokens kept")
  add("--temperature", type=float, default=1.0)
  add("--max_decode_len", type=int, default=128)
  add("--trials", type=int, default=1, help="texts for each prompt")
  args = parser.parse_args()
  spec = PairSpec(
    drafter_checkpoint=args.drafter,
    verifier_checkpoint=args.verifier,
    kernel_dtype="bfloat16",
  )
  lengths = {"inputs": 1024}
  inputs = Inputs(input_file=args.prompts, task_feature_lengths=lengths)
  sources = inputs.read(spec.vocabulary_path).fit_padding()
  vocabulary = sources.vocabulary
  pair = spec.load(vocabulary, needs_drafter=args.drafter is not None)
  lms = pair.drafter_lm, pair.verifier_lm
  num_all = pair.verifier_lm.vocab_size
  sizes = [size for size in args.sizes if size < num_all] + [num_all]
  run = Run(max_decode_len=args.max_decode_len, num_lengths=1, batch_size=24)
  session = Session(pair, sources, run)
  point = Point("verifier", temperature=args.temperature)
  found = frequent_tokens.count(
    frequent_tokens.texts_of(args.texts), vocabulary, num_all, fill=True
  )
  in_order = dict.fromkeys(
    [*frequent_tokens.special_ids(vocabulary), *range(num_all)]
  )
  orders = {"counted": found.ids, "lowest ids": [*in_order]}
  sets = np.concatenate(
    [kept_sets(ids, sizes, num_all) for ids in orders.values()]
  )
  batches, num_tokens = session.batches(point), 0
  totals = np.zeros((3, len(sets)))
  for trial in range(args.trials):
    decoded = batches.decode_all(session.examples, trial)
    for row, example in enumerate(session.examples):
      length = int(decoded.lengths[row])
      tokens = np.asarray(decoded.tokens[row : row + 1])
      inside, accepted = measured(
        lms,
        point.sampling,
        session.pad_examples([example], 1),
        tokens,
        sets,
        has_drafter=args.drafter is not None,
      )
      totals[0] += sets[:, tokens[0, :length]].sum(1)
      totals[1] += np.asarray(inside)[:, 0, :length].sum(1)
      totals[2] += np.asarray(accepted)[:, 0, :length].sum(1)
      num_tokens += length
  print(
    f"{found.num_tokens} tokens were counted; {num_tokens} tokens of"
    f" {len(session.examples)} prompts at temperature {args.temperature:g}\n"
  )
  titles = ["kept", "tokens", "verifier's probability"]
  if args.drafter is not None:
    titles += ["acceptance", "of all tokens'"]
  print(f"| {' | '.join(titles)} |")
  print(f"|{' ---: |' * len(titles)}")
  shares = (totals / num_tokens).reshape(3, len(orders), len(sizes))
  for number, name in enumerate(orders):
    for size, *values in zip(sizes, *shares[:, number]):
      if args.drafter is None:
        values = values[:2]
      else:
        values.append(values[2] / shares[2, number, -1])
      cells = [f"{size}, {name}", *(f"{value:.3f}" for value in values)]
      print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
  main()
