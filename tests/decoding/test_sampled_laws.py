"""The compiled decoders, sampled: their output against the exact distribution.

Chi-square tests at level 1e-6 each, on 200,000 rows a case; a known mistake
must fail the same test. A few cases run daily, too, on a fifth of the rows.
What enumeration proves of the parts, this shows of the program with its keys.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.decoding import METHODS, DraftLength, Sampling, row_keys
from speccascade.decoding.laws import targets
from speccascade.decoding.records import prompts
from speccascade.judge import goodness
from speccascade.models import (
  T5LM,
  LlamaConfig,
  LlamaLM,
  T5GemmaConfig,
  T5GemmaLM,
)
from speccascade.models.markov_lm import MarkovLM
from tests import chunk_laws, method_laws, toy, toy_chains
from tests.decoding.test_exact_laws import telling_alpha
from tests.decoding.test_execution_laws import sequence_law

ROWS = 200_000


def test_the_test_itself():
  rng = np.random.default_rng(0)
  law = toy_chains.chain_law(toy.pair(3, 2), np.full((9, 3), 1 / 3), 4)
  counts = rng.multinomial(ROWS, law)
  assert goodness.p_value(counts, law) > toy.LEVEL
  other = law.copy()
  other[np.argsort(law)[-2:]] *= [0.6, 1.4]
  assert goodness.p_value(counts, other) < toy.LEVEL
  impossible = np.flatnonzero(law == 0)[0]  # continues after an EOS
  counts[impossible] = 1
  assert goodness.p_value(counts, law) == 0


def assert_samples(
  name,
  models,
  alpha,
  sampling,
  inputs,
  laws,
  mistakes,
  *,
  seed,
  rows=ROWS,
  **options,
):
  """Decodes rows of each source; tests them against distributions and mistakes.

  Args:
    name: of the method.
    models: (drafter, verifier).
    alpha: as a user gives it.
    sampling: a `Sampling`.
    inputs: [K, S], the sources.
    laws: the distribution of the sequences of each.
    mistakes: for each the distributions that must not fit, where they are far
      enough.
    seed: of the keys.
    rows: how many of each source.
    **options: settings of the decoder.
  """
  kind = np.arange(20_000) % len(inputs)
  counts = 0
  for batch in range(rows * len(inputs) // len(kind)):
    index = jnp.arange(len(kind)) + batch * len(kind)
    options["keys"] = row_keys(seed, 0, index)
    texts = jnp.asarray(inputs[kind], jnp.int32)
    decoded = toy.decode(name, models, alpha, sampling, inputs=texts, **options)
    size = models[1].vocab_size, options["max_decode_len"]
    kinds = range(len(inputs))
    counts += np.stack([toy.counts(decoded, *size, kind == k) for k in kinds])
  near = 0.02 * math.sqrt(ROWS / rows)  # so many rows do not distinguish them
  for seen, law, wrong_laws in zip(counts, laws, mistakes):
    assert seen.sum() == rows
    assert goodness.p_value(seen, law) > toy.LEVEL
    far = [wrong for wrong in wrong_laws if goodness.tv(wrong, law) > near]
    assert all(goodness.p_value(seen, wrong) < toy.LEVEL for wrong in far)
    assert far or law is not laws[0]


def with_rows(cases: list[tuple], daily: list[tuple]) -> list:
  """Returns a test's parameters: all cases by night, and a few by day.

  The last parameter is how many rows of each source a case decodes.
  """
  nightly = [
    pytest.param(*case, ROWS, marks=pytest.mark.slow, id="-".join(case))
    for case in cases
  ]
  quick = [
    pytest.param(*case, ROWS // 5, id="-".join((*case, "few")))
    for case in daily
  ]
  return nightly + quick


# name, settings, sampling
BLOCK = {"verification": "block"}
QUICK = {
  "opt": ("spec_cascade_opt", {"gamma": 3}, {"temperature": 1.0}),
  "block": ("spec_cascade_token_v3", BLOCK, {"temperature": 0.8}),
  "top-p": ("spec_decode", {}, {"temperature": 1.3, "top_p": 0.8}),
  "token cascade": ("token_cascade_chow", {}, {"temperature": 1.0}),
}
POLICIES = {
  "stop before": {"draft_length": DraftLength("max_prob", 0.55), "gamma": 3},
  "stop after": {"draft_length": DraftLength("token_prob", 0.4), "gamma": 3},
  "block": {"verification": "block", "gamma": 3},
  "printed bonus": {"bonus": "verifier"},
}
NIGHTLY = (
  {
    f"{name} {label}": (name, {}, settings)
    for name, row in METHODS.items()
    if row.target is not None and row.compose is None and not row.greedy_only
    for label, settings in (
      ("plain", {"temperature": 1.0}),
      ("top-k", {"temperature": 1.7, "top_k": 2}),
    )
  }
  | {
    "min-p": ("spec_decode", {}, {"temperature": 1.3, "min_p": 0.4}),
  }
  | {
    f"{name} {label}": (name, options, {"temperature": 1.0})
    for name in ("spec_cascade_chow", "spec_decode_lossy_star", "mentored")
    for label, options in POLICIES.items()
  }
)
# Two sources, so that neighbours in the batch differ.
PAIRS = toy.pair(3, 2), toy.pair(3, 2, 15)
SOURCES = np.arange(2)[:, None]
LENGTH = 4


def models_of_pairs() -> tuple:
  """Returns (drafter, verifier), each with both sources."""
  return tuple(
    MarkovLM(jnp.concatenate([model.table for model in role]))
    for role in zip(*(pair.models() for pair in PAIRS))
  )


@pytest.mark.parametrize(
  ("case", "num_rows"),
  with_rows([(x,) for x in QUICK | NIGHTLY], [(x,) for x in QUICK]),
)
def test_samples_have_the_exact_law(case, num_rows):
  name, options, settings = (QUICK | NIGHTLY)[case]
  options = {"gamma": 2, "max_decode_len": LENGTH, "rows": num_rows} | options
  sampling = Sampling.create(**settings)
  alpha = telling_alpha(name, 3, 2)
  laws, mistakes = [], []
  for pair in PAIRS:
    law = method_laws.laws(pair, METHODS[name].target, alpha, sampling)
    table, other = (law.q, law.p) if name == "drafter" else (law.pi, law.q)
    right = toy_chains.chain_law(pair, table, LENGTH)
    if "bonus" in options:
      size = options["gamma"], LENGTH
      right = chunk_laws.verifier_bonus_law(pair, law, *size)
    laws.append(right)
    # The other model, and a rejected draft replaced from pi.
    wrong = chunk_laws.wrong_replacement_law(pair, law, LENGTH)
    mistakes.append([toy_chains.chain_law(pair, other, LENGTH), wrong])
  models = models_of_pairs()
  assert_samples(
    name, models, alpha, sampling, SOURCES, laws, mistakes, seed=17, **options
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "alpha"),
  [("seq_cascade_chow", 0.9), ("seq_cascade_chow_norm", 0.55)],
)
def test_samples_of_the_sequence_cascade(name, alpha):
  sampling, laws, mistakes = Sampling.create(0.8), [], []
  for pair in PAIRS:
    law = method_laws.laws(pair, targets.lossless, 0.0, sampling)
    laws.append(sequence_law(pair, law, alpha, name.endswith("norm")))
    mistakes.append([toy_chains.chain_law(pair, law.q, LENGTH)])
  options = {"max_decode_len": LENGTH, "gamma": 1}
  models = models_of_pairs()
  assert_samples(
    name, models, alpha, sampling, SOURCES, laws, mistakes, seed=3, **options
  )


# A tiny T5.


T5_LENGTH, T5_VOCAB = 3, 8
SIZES = {"vocab_size": T5_VOCAB, "emb_dim": 16, "head_dim": 8}
PROMPTS = toy.padded(toy.PROMPTS[2:4], "left")
T5_SOURCES = np.array([[5, 3, 7, 1], [6, 1, 0, 0]], np.int32)  # ragged


def tiny_t5(seed: int) -> T5LM:
  """Returns a T5 that has opinions."""
  config = toy.t5_config(**SIZES, num_heads=2, mlp_dim=16)
  return opinionated(T5LM.init(config, jax.random.key(seed)), config.emb_dim)


# A Gemma 2 with Gemma 3's angles, whose caps and window are small enough to
# change the distributions.
GEMMA = {
  "norm_offset": 1,
  "post_norms": True,
  "scaled_embedding": True,
  "mlp_activations": ("gelu", "linear"),
  "query_pre_attn_scalar": 4.0,
  **{"attention_cap": 1.0, "logit_cap": 2.0},
  **{"window": 3, "windowed_layers": (0,), "local_rope_theta": 100.0},
}


# As a T5Gemma 2.
MERGED = {
  **{"query_key_norm": True, "local_rope_theta": 100.0, "split_window": True},
  **{"merged_attention": True, "shared_embedding": True},
  **{"attention_cap": None, "logit_cap": None, "encoder_emb_dim": None},
}


def tiny_t5gemma(seed: int, **changes) -> T5GemmaLM:
  """Returns a T5Gemma with grouped queries that has opinions."""
  heads = {"num_heads": 2, "num_kv_heads": 1, "logits_via_embedding": False}
  layers = {"num_decoder_layers": 2, "num_encoder_layers": 1}
  wide = {"encoder_emb_dim": 24, "window": 2, "windowed_layers": (0,)}
  sizes = SIZES | heads | layers | wide | {"mlp_dim": 16} | changes
  config = T5GemmaConfig(**sizes)
  lm = T5GemmaLM.init(config, jax.random.key(seed))
  return opinionated(lm, config.emb_dim)


def tiny_llama(seed: int, **fields) -> LlamaLM:
  """Returns a Llama with grouped queries that has opinions."""
  heads = {"num_heads": 2, "num_kv_heads": 1, "logits_via_embedding": False}
  sizes = SIZES | heads | {"num_decoder_layers": 2, "mlp_dim": 16}
  config = LlamaConfig(**sizes, **fields)
  return opinionated(LlamaLM.init(config, jax.random.key(seed)), config.emb_dim)


def opinionated(model, width: int):
  """Returns the model with a head that gives logits of spread 1.5."""
  head = model.params["decoder"]["logits_dense"]["kernel"]
  spread = 1.5 / float(jnp.std(head)) / math.sqrt(width)
  decoder = model.params["decoder"] | {
    "logits_dense": {"kernel": head * spread}
  }
  return model.replace(params=model.params | {"decoder": decoder})


def forced_laws(model, sources, sampling) -> list:
  """Returns for each source the distributions after every prefix, [V, V, 3, V]
  each.

  At temperature 1 and as sampled. Teacher forced in one pass, not step by step:
  index [x, y, t] is the distribution of token t after the first t of (x, y).
  """
  x, y = np.meshgrid(np.arange(T5_VOCAB), np.arange(T5_VOCAB), indexing="ij")
  laws = []
  for source in jnp.asarray(sources):
    first = int(prompts.start(model, source[None])[0])
    tokens = np.stack([0 * x + first, x, y], axis=-1).reshape(-1, 3)
    inputs = jnp.broadcast_to(source, (len(tokens), len(source)))
    state = model.prefill(inputs, capacity=4)
    count = jnp.full(len(tokens), 3, jnp.int32)
    _, out = model.extend(state, jnp.asarray(tokens, jnp.int32), count)
    shape = (T5_VOCAB, T5_VOCAB, 3, T5_VOCAB)
    laws.append(
      [np.asarray(z).reshape(shape) for z in sampling.laws(out.logits)]
    )
  return laws


def t5_sequence_law(pi: np.ndarray) -> np.ndarray:
  """Returns sequence probabilities, in the order of `toy_chains.sequences`."""
  first, second, third = pi[0, 0, 0], pi[:, 0, 1], pi[:, :, 2]
  one = np.where(np.arange(T5_VOCAB) == toy_chains.EOS, first, 0)
  continues = (first - one)[:, None] * second
  two = np.where(np.arange(T5_VOCAB) == toy_chains.EOS, continues, 0)
  three = (continues - two)[..., None] * third
  law = np.concatenate([x.reshape(-1) for x in (one, two, three)])
  return law / law.sum()  # it is in float32


T5_CASES = {
  "opt": ("spec_cascade_opt", {"gamma": 2}, {"temperature": 1.0}),
  "token rule, block": (
    "spec_cascade_token_v3",
    {"gamma": 3, **BLOCK},
    {"temperature": 0.7},
  ),
  "lossless": ("spec_decode", {"gamma": 1}, {"temperature": 1.3, "top_k": 5}),
  "token cascade": ("token_cascade_chow", {"gamma": 1}, {"temperature": 1.0}),
  "oracle": ("oracle_cascade_diff", {"gamma": 1}, {"temperature": 1.0}),
  "copies": ("cascade_drafting", {"gamma": 2}, {"temperature": 1.0}),
  # Three tokens take two rounds of the first tree, and of the second mostly.
  "tree": (
    "spec_cascade_opt",
    {"gamma": 1, "tree": (3,)},
    {"temperature": 1.0},
  ),
  "traversal": (
    "spec_cascade_token_v3",
    {
      "gamma": 2,
      "tree": (2, 2),
      "drawing": "without_replacement",
      "verification": "traversal",
    },
    {"temperature": 0.7},
  ),
}
# Models of which every distribution depends on all that was read, and their
# inputs.
KINDS = {
  "t5": (lambda: (tiny_t5(1), tiny_t5(2)), T5_SOURCES),
  "t5gemma": (lambda: (tiny_t5gemma(1), tiny_t5gemma(2)), T5_SOURCES),
  "t5gemma2": (
    lambda: (tiny_t5gemma(1, **MERGED), tiny_t5gemma(2, **MERGED)),
    T5_SOURCES,
  ),
  "llama": (lambda: (tiny_llama(1), tiny_llama(2)), PROMPTS),
  "gemma": (lambda: (tiny_llama(1, **GEMMA), tiny_llama(2, **GEMMA)), PROMPTS),
  "prompted": (toy.whole, PROMPTS),
}
ON_TEXTS = [
  *itertools.product(("t5", "t5gemma", "t5gemma2", "prompted"), T5_CASES),
  *itertools.product(
    ("llama", "gemma"), ("copies", "token rule, block", "tree", "traversal")
  ),
]


@pytest.mark.parametrize(
  ("kind", "case", "num_rows"),
  with_rows(ON_TEXTS, [(x, "opt") for x in ("t5", "t5gemma", "t5gemma2")]),
)
def test_samples_have_the_law_of_the_whole_text(kind, case, num_rows):
  name, options, settings = T5_CASES[case]
  row, sampling = METHODS[name], Sampling.create(**settings)
  make, sources = KINDS[kind]
  models = make()
  q, p = (forced_laws(model, sources, sampling) for model in models)

  def laws(alpha):
    """Returns for each source distributions (output, drafter, verifier)."""
    for (q1, q_law), (p1, p_law) in zip(q, p):
      pi = row.target.probs(q1, p1, alpha=alpha, sampled=(q_law, p_law))
      tables = (np.asarray(x, np.float64) for x in (pi, q_law, p_law))
      yield [t5_sequence_law(x) for x in tables]

  def distance(alpha):
    return min(
      goodness.tv(pi, x) for pi, *others in laws(alpha) for x in others
    )

  low, high = row.alpha_interval.ends(T5_VOCAB)
  grid = np.linspace(max(low, -1.0), min(high, 1.0), 21)[1:-1].tolist()
  alpha = max(grid, key=distance) if row.target.uses_q else 0.0
  right, *wrong = zip(*laws(alpha))
  options = {"max_decode_len": T5_LENGTH, "rows": num_rows} | options
  laws_of = right, list(zip(*wrong))
  assert_samples(
    name, models, alpha, sampling, sources, *laws_of, seed=5, **options
  )
