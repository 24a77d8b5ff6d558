"""What a draft of a state reader costs, measured.

  python -m benchmarks.state_reader --kept 8192

A verifier of the shape of SmolLM2-135M, with random weights, takes turns with
state readers of one layer at batch 1: it feeds one token, and each reader
drafts blocks after it, so that its weights are read from memory as in a decode.
c is the time of a draft over that of the verifier's token. Intervals are 95%,
of the median over turns, by a bootstrap.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.draft_vocabulary import (
  HELD,
  SLOTS,
  VERIFIER,
  feed,
  filled,
  interval,
  random_model,
)
from speccascade import cli
from speccascade.decoding import StateDrafter
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.models import StateReader, StateReaderConfig
from speccascade.models.parameters import (
  DRAFTER_KERNEL_DTYPES,
  param_shapes,
  tree,
)


def random_reader(kernel_dtype: str) -> StateReader:
  """Returns a reader of the verifier's shape with random weights."""
  config, rng = (
    StateReaderConfig().shaped_like(VERIFIER),
    np.random.default_rng(0),
  )
  flat = {
    name: rng.normal(size=shape).astype(np.float32) / shape[-1] ** 0.5
    for name, shape in param_shapes(config).items()
  }
  return StateReader.create(config, tree(flat), kernel_dtype=kernel_dtype)


@functools.partial(jax.jit, static_argnames="gamma")
def draft(reader, verifier, tokens, sampling, *, gamma):
  """Drafts a block after `HELD` tokens, whose last state is made up."""
  drafter = StateDrafter.of(reader.reading_model(verifier), gamma)
  inputs = tokens[:, :1]
  shape = (1, 0, VERIFIER.emb_dim)
  follower = drafter.drafter.model
  held = follower.begin(inputs, jnp.zeros(shape), capacity=SLOTS)
  length = jnp.full((1,), HELD, jnp.int32)
  held = held.replace(
    inner=held.inner.replace(length=length),
    states=held.states + 0.1,
    first=length - 1,
    known=length,
  )
  prefix = Prefix(tokens, length + 1, jnp.ones((1,), bool))
  _, drafted = drafter.propose(
    ((held,),),
    prefix,
    draws.row_keys(0, 0, jnp.arange(1)),
    sampling,
    needs_bonus_law=False,
  )
  # What a verification reads of q.
  return jnp.take_along_axis(
    drafted.q[:, :gamma], drafted.tokens[..., None], axis=2
  ).sum()


def main():
  parser = cli.Parser("state_reader", __doc__, "benchmarks")
  add = parser.add_argument
  add("--kept", type=int, default=8192, help="tokens of a cut head")
  add(
    "--dtypes",
    nargs="+",
    default=["bfloat16", "int8"],
    choices=DRAFTER_KERNEL_DTYPES,
    help="of the readers' kernels",
  )
  add("--gamma", type=int, default=4, help="drafts of a block (%(default)s)")
  add("--temperature", type=float, default=1.0)
  add("--turns", type=int, default=15)
  args = parser.parse_args()
  verifier = random_model(VERIFIER, "bfloat16")
  state, tokens = filled(verifier)
  ids = np.random.default_rng(2).choice(
    verifier.vocab_size, args.kept, replace=False
  )
  sampling, calls = Sampling.create(args.temperature), {}
  token = functools.partial(feed, verifier, state, tokens, num=1)
  for dtype in args.dtypes:
    reader = random_reader(dtype)
    for name, each in (
      (f"{dtype}, all tokens", reader),
      (f"{dtype}, {args.kept} tokens", reader.cut_to(ids, verifier)),
    ):
      calls[name] = functools.partial(
        draft, each, verifier, jnp.asarray(tokens), sampling, gamma=args.gamma
      )
  times = {name: [] for name in ["verifier", *calls]}
  for turn in range(args.turns + 1):
    for name, call in calls.items():
      start_s = time.perf_counter()
      jax.block_until_ready(token())
      drafts_s = time.perf_counter()
      jax.block_until_ready(call())
      end_s = time.perf_counter()
      if turn:
        times["verifier"].append((drafts_s - start_s) * 1000)
        times[name].append((end_s - drafts_s) * 1000 / args.gamma)
  least = min(times["verifier"])
  print(f"verifier: {interval(np.array(times['verifier']))} ms a token")
  for name in calls:
    taken = np.array(times[name])
    print(
      f"{name}: {interval(taken)} ms a draft, least {taken.min():.3g}; c of the"
      f" least {taken.min() / least:.3g}"
    )


if __name__ == "__main__":
  main()
