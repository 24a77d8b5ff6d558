"""Measures the time of a draft with a whole and with a truncated head.

  python -m benchmarks.draft_vocabulary --kept 8192

Models of the shapes of SmolLM2-135M and of its drafter, with random weights,
take turns at batch 1: the verifier feeds one token, and the drafter drafts
blocks with all tokens and with each number of kept tokens. c is the time of a
draft over that of the verifier's token. Intervals are 95%, of the median over
turns, by a bootstrap.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from speccascade import cli
from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.laws import draws
from speccascade.decoding.laws.sampling import Sampling
from speccascade.decoding.records.token_buffers import Prefix
from speccascade.models.llama.config import LlamaConfig
from speccascade.models.llama_lm import LlamaLM
from speccascade.models.parameters import KERNEL_DTYPES, param_shapes, tree

DRAFTER = LlamaConfig(
  vocab_size=49152,
  emb_dim=192,
  num_heads=6,
  num_kv_heads=2,
  num_decoder_layers=6,
  head_dim=32,
  mlp_dim=768,
)
VERIFIER = LlamaConfig(
  vocab_size=49152,
  emb_dim=576,
  num_heads=9,
  num_kv_heads=3,
  num_decoder_layers=30,
  head_dim=64,
  mlp_dim=1536,
)
HELD, SLOTS = 64, 128  # tokens of a row, and the room of its cache


def random_model(config: LlamaConfig, kernel_dtype: str) -> LlamaLM:
  """Returns a model with random weights."""
  rng = np.random.default_rng(0)
  flat = {
    name: rng.normal(size=shape).astype(np.float32) / shape[-1] ** 0.5
    for name, shape in param_shapes(config).items()
  }
  params = tree(flat)
  return LlamaLM.create(config, params, kernel_dtype=kernel_dtype, donate=True)


def filled(lm: LlamaLM):
  """Returns a state that holds `HELD` tokens, and the tokens."""
  tokens = np.random.default_rng(1).integers(3, 49152, (1, SLOTS), np.int32)
  state = lm.prefill(jnp.asarray(tokens[:, :1]), capacity=SLOTS)
  count = jnp.full((1,), HELD, jnp.int32)
  return lm.extend(state, jnp.asarray(tokens[:, :HELD]), count)[0], tokens


@functools.partial(jax.jit, static_argnames=("gamma", "num"))
def draft(lm, state, tokens, sampling, *, gamma, num):
  """Drafts a block after the same tokens again and again."""
  drafter = AutoregressiveDrafter(lm, gamma, behind=0)
  length = state.length

  def block(i, carry):
    held, total = carry
    rngs = draws.row_keys(i, 0, jnp.arange(1))
    prefix = Prefix(tokens, length + 1, jnp.ones((1,), bool))
    (held,), drafted = drafter.propose(
      (held,), prefix, rngs, sampling, needs_bonus_law=False
    )
    # What a verification reads of q.
    picked = jnp.take_along_axis(
      drafted.q[:, :gamma], drafted.tokens[..., None], axis=2
    )
    return lm.rewind(held, length), total + picked.sum()

  return jax.lax.fori_loop(0, num, block, (state, jnp.zeros(())))[1]


@functools.partial(jax.jit, static_argnames="num")
def feed(lm, state, tokens, *, num):
  """Feeds one token again and again."""
  length = state.length

  def token(i, carry):
    held, total = carry
    fed, out = lm.extend(held, tokens[:, :1], jnp.ones((1,), jnp.int32))
    return lm.rewind(fed, length), total + out.logits.max() + i

  return jax.lax.fori_loop(0, num, token, (state, jnp.zeros(())))[1]


def in_turns(calls, parts, turns: int) -> dict[str, np.ndarray]:
  """Returns the milliseconds of a part of each call, [turns], by name.

  Args:
    calls: functions without arguments, by name; each is called once a turn.
    parts: how many drafts or tokens each call makes.
    turns: the number of turns; one more before them compiles.
  """
  times = {name: [] for name in calls}
  for turn in range(turns + 1):
    for name, call in calls.items():
      start_s = time.perf_counter()
      jax.block_until_ready(call())
      if turn:
        taken = time.perf_counter() - start_s
        times[name].append(taken / parts[name] * 1000)
  return {name: np.array(each) for name, each in times.items()}


def interval(values: np.ndarray) -> str:
  """Returns the median of values with its 95% interval."""
  samples = np.random.default_rng(0).choice(values, (2000, len(values)))
  low, high = np.quantile(np.median(samples, axis=1), [0.025, 0.975])
  return f"{np.median(values):.3g} [{low:.3g}, {high:.3g}]"


def main():
  parser = cli.Parser("draft_vocabulary", __doc__, "benchmarks")
  add = parser.add_argument
  add("--kept", type=int, nargs="+", default=[8192], help="sizes of heads")
  add("--kernel_dtype", choices=KERNEL_DTYPES, default="bfloat16")
  add("--gamma", type=int, default=4, help="drafts of a block (%(default)s)")
  add("--temperature", type=float, default=1.0)
  add("--turns", type=int, default=15)
  args = parser.parse_args()
  whole = random_model(DRAFTER, args.kernel_dtype)
  drafters = {"all": whole}
  rng = np.random.default_rng(2)
  for size in args.kept:
    ids = rng.choice(whole.vocab_size, size, replace=False)
    drafters[str(size)] = whole.cut_to(ids)
  verifier = random_model(VERIFIER, args.kernel_dtype)
  state, tokens = filled(verifier)
  calls, num_each = (
    {"verifier": lambda: feed(verifier, state, tokens, num=2)},
    4,
  )
  sampling = Sampling.create(args.temperature)
  for name, lm in drafters.items():
    held, tokens = filled(lm)
    calls[name] = functools.partial(
      draft, lm, held, tokens, sampling, gamma=args.gamma, num=num_each
    )
  parts = {name: args.gamma * num_each for name in drafters} | {"verifier": 2}
  times = in_turns(calls, parts, args.turns)
  print(f"verifier: {interval(times['verifier'])} ms a token")
  for name in drafters:
    c = interval(times[name] / times["verifier"])
    ratio = interval(times[name] / times["all"])
    print(
      f"{name} tokens: {interval(times[name])} ms a draft, least"
      f" {times[name].min():.3g}; c {c}; of the whole head's {ratio}"
    )


if __name__ == "__main__":
  main()
