"""Samples of draft heads and of look-ahead embeddings, and their distribution.

The distribution is written down token by token, from the tables of a random
chain.
"""

import functools

import jax.numpy as jnp
import numpy as np

from speccascade.decoding import METHODS, Sampling
from speccascade.judge import goodness
from tests import method_laws, toy, toy_chains
from tests.decoding.verification.tree_driving import WAYS

V, LENGTH = 3, 4


def random_chain() -> tuple[np.ndarray, np.ndarray]:
  """Returns logits of a chain [V, V], and of four places ahead [4, V, V]."""
  rng = np.random.default_rng(3)
  p = rng.normal(0, 1.2, (V, V))
  p[:, toy_chains.EOS] = np.clip(p[:, toy_chains.EOS], -1.0, 0.0)
  ahead = 0.5 * p[None] + rng.normal(0, 1.0, (4, V, V))
  ahead[0, 2, 0] = -np.inf
  return p, ahead


def _acceptance(q, pi, num_children: int) -> np.ndarray:
  """Returns [V], the chance that each token is accepted as a draft.

  All drafts but one are certain: the likeliest tokens, which need no trial.

  Args:
    q: [V], the distribution of the draft.
    pi: [V], the target.
    num_children: the drafts of the place.
  """
  certain = np.argsort(-q, kind="stable")[: num_children - 1]
  rest = q.copy()
  rest[certain] = 0
  accepted = np.minimum(rest / max(rest.sum(), 1e-300), pi)
  accepted[certain] = pi[certain]
  return accepted


@method_laws.in_float64
def law_of_blocks(
  method, alpha, sampling, branching, logits, num: int, *, reads_last: bool
):
  """Returns the distribution of the sequences that are written, token by token.

  A token has the distribution T(q, p) of what drafts its place in its block,
  and p where nothing drafts. Whatever of pi is not accepted is the end of the
  block.

  Args:
    method: a name of the table.
    alpha: of the method.
    sampling: a `Sampling`.
    branching: children at each depth.
    logits: [K, V, V], of each place of a block, after each token that was read.
    num: how many of the K places have a distribution.
    reads_last: whether a block reads the last token before it, as embeddings
      do. Else it reads the last token but one, and the first block none.
  """
  p_logits, _ = random_chain()
  p1, p = (np.asarray(x) for x in sampling.laws(jnp.asarray(p_logits)))
  q1, q = (np.asarray(x) for x in sampling.laws(jnp.asarray(logits)))
  # [K, V, V, V]: of each place, after each token read, at each context.
  shape = (len(logits), V, V, V)
  wide = [np.broadcast_to(x[:, :, None], shape) for x in (q1, q)]
  wide += [np.broadcast_to(x[None, None], shape) for x in (p1, p)]
  q1s, qs, p1s, ps = map(jnp.asarray, wide)
  target = METHODS[method].target
  pi = np.asarray(target.probs(q1s, p1s, alpha=alpha, sampled=(qs, ps)))
  law: dict[tuple, float] = {}

  def go(text, chance, read, place):
    last = text[-1] if text else 0
    if text and (last == toy_chains.EOS or len(text) == LENGTH):
      law[text] = law.get(text, 0.0) + chance
      return
    accepted, all_of = np.zeros(V), p[last]
    if read is not None and place < num:
      all_of = pi[place, read, last]
      if place < len(branching):
        accepted = _acceptance(q[place, read], all_of, branching[place])
    for token in range(V):
      if accepted[token] > 0:
        go((*text, token), chance * accepted[token], read, place + 1)
      ends = all_of[token] - accepted[token]
      if ends > 1e-15:
        go((*text, token), chance * ends, token if reads_last else last, 0)

  go((), 1.0, 0 if reads_last else None, 0)
  got = np.array(
    [law.get(tuple(x), 0.0) for x in toy_chains.sequences(V, LENGTH)]
  )
  return got / got.sum()


def law(kind: str, method, alpha, sampling, branching, num: int) -> np.ndarray:
  """Returns the distribution of the sequences that are written with drafts of a
  kind.

  Args:
    kind: "heads", of which head k drafts place k of a block, and reads the
      token before the one that was drawn last. Or "embeddings": the first place
      of a block has the distribution p, and the places after it have the
      distributions of the embeddings, after the last token of the text.
    method: a name of the table.
    alpha: of the method.
    sampling: a `Sampling`.
    branching: children at each depth.
    num: the heads or embeddings.
  """
  p, logits = random_chain()
  point = method, alpha, sampling, branching
  if kind == "heads":
    return law_of_blocks(*point, logits, num, reads_last=False)
  logits = np.concatenate([p[None], logits])
  return law_of_blocks(*point, logits, num + 1, reads_last=True)


@functools.cache
def telling_alpha(kind: str, method, branching, num: int) -> float:
  """Returns the alpha at which a distribution shows best that there are `num`
  places.

  Args:
    kind: see `law`.
    method: a name of the table.
    branching: children at each depth.
    num: the heads or embeddings, compared with one fewer.
  """
  if METHODS[method].is_lossless:
    return 0.0
  low, high = METHODS[method].alpha_interval.ends(V)
  grid = np.linspace(max(low, -1.0), min(high, 1.0), 9)[1:-1].tolist()
  sampling = Sampling.create(0.9)

  def distance(alpha):
    return goodness.tv(
      *(
        law(kind, method, alpha, sampling, branching, x) for x in (num - 1, num)
      )
    )

  return max(grid, key=distance)


def assert_samples(kind, drafter, method, num, rows: int, seed: int, **options):
  """Decodes many rows, and compares them with the distribution by chi-square.

  Args:
    kind: see `law`.
    drafter: heads or embeddings of `random_chain`.
    method: a name of the table.
    num: how many heads or embeddings there are.
    rows: the samples.
    seed: of their keys.
    **options: settings of `Decoder`.
  """
  sampling = Sampling.create(0.9)
  branching = options.get("tree", (1,) * options["gamma"])
  alpha = telling_alpha(kind, method, branching, num)
  p_logits, _ = random_chain()
  counts = toy.sample(
    method,
    (drafter, toy.MarkovLM(jnp.asarray(p_logits, jnp.float32)[None])),
    alpha,
    sampling,
    inputs=lambda num: jnp.zeros((num, 1), jnp.int32),
    num=rows,
    seed=seed,
    max_decode_len=LENGTH,
    **options,
  )
  want = law(kind, method, alpha, sampling, branching, num)
  assert goodness.p_value(counts, want) > toy.LEVEL


# The methods that take heads and embeddings, and the ways of trees.
TAKING = [
  name
  for name, row in METHODS.items()
  if row.has_blocks and row.compose is None and not row.greedy_only
]
TREES = {
  f"{drawing}, {verification}": {
    "gamma": 2,
    "tree": (2, 2),
    "drawing": drawing,
    "verification": verification,
  }
  for drawing, verification in WAYS
}
