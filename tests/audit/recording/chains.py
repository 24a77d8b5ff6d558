"""Every method on chains that are tables, and every kind of drafter."""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from speccascade import decoding
from tests.audit.recording.finding import named
from tests.audit.recording.record import Record

V, EOS, ROWS = 7, 1, 12
LENGTH = 12
# Methods whose drafter is made of several models, largest first.
SEVERAL = ("cascade_drafting", "spec_cascade_opt_three")
TREES: dict[str, dict[str, Any]] = {
  "branching": {"tree": (3, 2), "gamma": 2},
  "parents": {"tree": (-1, -1, -1, 0, 0, 1, 3), "gamma": 3},
  "paths": {"drafts": 3, "gamma": 3},
}
# What is tried beside the default of one tree after another.
TREE_WAYS = [
  ("branching", "iid", "token"),
  ("branching", "without_replacement", "traversal"),
  ("parents", "greedy_and_random", "token"),
  ("parents", "top_k", "traversal"),
  ("parents", "without_replacement", "token"),
  ("paths", "iid", "k_seq"),
]
FILTERS: dict[str, dict[str, float]] = {
  "temperature": {"temperature": 0.6},
  "top_k": {"top_k": 3},
  "top_p": {"top_p": 0.7},
  "min_p": {"min_p": 0.2},
  "all": {"temperature": 1.3, "top_k": 5, "top_p": 0.8, "min_p": 0.05},
}
PROMPTS = ((3,), (0, 2), (2, 0, 1, 5), (4, 4, 3), (0, 0, 0, 0, 6))


@struct.dataclass
class TableHeads:
  """Draft heads that are tables [K, V, V], after the last token."""

  table: jax.Array
  width = 3  # the source, and two tokens of context

  @property
  def num_heads(self) -> int:
    return self.table.shape[0]

  @property
  def vocab_size(self) -> int:
    return self.table.shape[-1]

  def head_logits(self, verifier, hidden, num):
    last = hidden[:, -1].astype(jnp.int32)
    return jnp.moveaxis(self.table[:num, last], 0, 1)


def chains(*, prompted: bool = False) -> list:
  """Returns three models, smallest first, whose distributions have zeros."""
  rng = np.random.default_rng(5)
  shape = (ROWS, V, V, V)
  tables = [rng.normal(0, 1.5, shape)]
  for noise in (0.8, 1.0):
    tables.append(0.75 * tables[-1] + rng.normal(0, noise, shape))
  tables.reverse()
  for number, table in enumerate(tables):
    table[..., EOS] -= 0.5
    table[:, number, number, (number + 2) % V] = -np.inf
  lm = named("MarkovLM")
  return [
    lm(jnp.asarray(table, jnp.float32), prompted=prompted) for table in tables
  ]


def keys(rows: int = ROWS, seed: int = 0):
  return decoding.row_keys(seed, 0, jnp.arange(rows))


def sources():
  return jnp.arange(ROWS, dtype=jnp.int32)[:, None]


def ragged():
  """Returns [B, S] prompts of several lengths, padded at either end."""
  rows = np.full((len(PROMPTS), 8), decoding.prompts.PAD, np.int32)
  for place, text in enumerate(PROMPTS):
    start = place % (8 - len(text) + 1)
    rows[place, start : start + len(text)] = text
  return jnp.asarray(rows)


def decode(
  record: Record,
  name: str,
  method: str,
  drafter,
  verifier,
  *,
  alphas=(None,),
  temperature: float = 1.0,
  filters: dict | None = None,
  inputs=None,
  **settings,
):
  """Records a decode of one method at some alphas, or why it is refused."""
  inputs = sources() if inputs is None else inputs
  settings = {
    "gamma": 3,
    "max_decode_len": LENGTH,
    "eos_id": EOS,
    "trace": True,
    "log_probs": True,
  } | settings
  sampling = {"temperature": temperature} | (filters or {})
  with record.refusals(name):
    decoder = decoding.decoder(method, **settings)
    for alpha in alphas:
      chosen = alpha
      if alpha is None:
        chosen = decoding.METHODS[method].default_alpha
      decoded = decoder(
        drafter,
        verifier,
        inputs,
        keys(len(inputs)),
        chosen,
        decoding.Sampling.create(**sampling),
      )
      record.add(name if alpha is None else f"{name}, {alpha}", decoded)


def record_methods(record: Record):
  """Every method, greedy and sampled, with both kinds of bonus token."""
  small, medium, large = chains()
  # Shared programs are compiled once for many methods.
  ways: dict[str, dict[str, Any]] = {
    "T=1": {"shared": True},
    "T=0": {"shared": True, "temperature": 0, "trace": False},
    "T=1, bonus verifier": {
      "shared": True,
      "bonus": "verifier",
      "trace": False,
      "log_probs": False,
    },
  }
  for method in decoding.METHODS:
    drafter = (medium, small) if method in SEVERAL else small
    for way, settings in ways.items():
      name = f"methods/{method}, {way}"
      decode(record, name, method, drafter, large, **settings)


def record_settings(record: Record):
  """Filters, verifications, lengths of drafts, alphas, and shared programs."""
  small, _, large = chains()
  rule = "spec_cascade_opt"
  for name, filters in FILTERS.items():
    decode(record, f"filters/{name}", rule, small, large, filters=filters)
  for method in ("spec_decode", "spec_cascade_token_v3"):
    name = f"chains/{method}, block"
    decode(record, name, method, small, large, verification="block")
  for policy in ("max_prob", "token_prob"):
    length = decoding.DraftLength(policy, 0.3)
    decode(record, f"chains/{policy}", rule, small, large, draft_length=length)
  decode(
    record,
    "chains/shared",
    rule,
    small,
    large,
    alphas=(-0.5, 0.0, 0.3),
    shared=True,
    trace=False,
    log_probs=False,
  )
  decode(
    record,
    "chains/several ends",
    rule,
    small,
    large,
    eos_id=(1, 4),
    trace=False,
  )


def record_trees(record: Record):
  """Trees of every shape, drawing and verification."""
  small, _, large = chains()
  for shape, drawing, verification in TREE_WAYS:
    decode(
      record,
      f"trees/{shape}, {drawing}, {verification}",
      "spec_cascade_opt",
      small,
      large,
      drawing=drawing,
      verification=verification,
      **TREES[shape] | {"trace": "trees"},
    )
  decode(
    record,
    "trees/greedy",
    "spec_decode",
    small,
    large,
    temperature=0,
    **TREES["parents"],
  )
  decode(
    record,
    "trees/verifier's bonus",
    "spec_cascade_opt",
    small,
    large,
    bonus="verifier",
    **TREES["branching"],
  )
  rng = np.random.default_rng(9)
  heads = TableHeads(jnp.asarray(rng.normal(0, 1.5, (4, V, V)), jnp.float32))
  for temperature, name, settings in (
    (0, "chain", {}),
    (1, "chain", {}),
    (1, "tree", TREES["branching"]),
  ):
    decode(
      record,
      f"heads/{name}, T={temperature}",
      "spec_cascade_opt",
      heads,
      large,
      temperature=temperature,
      **settings,
    )


def record_drafters(record: Record):
  """Drafters that are made by hand, and cascades of them."""
  small, medium, large = chains()
  copier = decoding.MaxGramDrafter(jnp.zeros((V,), jnp.int32), 2)
  alone = decoding.AutoregressiveDrafter(small, 2, behind=6)
  other = decoding.AutoregressiveDrafter(medium, 2, behind=6)
  stop = decoding.StopPolicy(jnp.float32(0.3), before_draw=True)
  drafters = {
    "stop": decoding.AutoregressiveDrafter(small, 3, stop, behind=0),
    "copier": copier,
    "horizontal": decoding.HorizontalDrafter((other, alone, copier)),
    "vertical": decoding.VerticalDrafter(
      drafter=alone, reviewer=medium, alpha=jnp.float32(0.2), width=3
    ),
    "cascade": decoding.cascade_drafter(
      (medium, small), copier, [[3, 0, 1], [0, 2, 1], [0, 0, 2]]
    ),
    "lenient cascade": decoding.cascade_drafter(
      (medium, small), copier, [[3, 0, 1], [0, 2, 1], [0, 0, 2]], lenience=2.0
    ),
    "several": decoding.SeveralDrafters((alone, other)),
    "branched": decoding.BranchedDrafter(
      decoding.HorizontalDrafter((other, alone)), num_first=3
    ),
  }
  for name, drafter in drafters.items():
    tree = drafter.tree
    for temperature in (0, 1):
      decode(
        record,
        f"drafters/{name}, T={temperature}",
        "spec_decode",
        drafter,
        large,
        temperature=temperature,
        trace=temperature == 1,
        log_probs=temperature == 1,
        gamma=drafter.width if tree is None else tree.depth,
      )


def record_turns(record: Record):
  """Prompts of several lengths: whole, streamed with a turn, side by side."""
  small, _, large = chains(prompted=True)
  prompts = ragged()
  for temperature, method in (
    (0, "spec_decode"),
    (1, "spec_cascade_chow"),
    (1, "token_cascade_chow"),
  ):
    name = f"prompts/{method}, T={temperature}"
    decode(
      record,
      name,
      method,
      small,
      large,
      temperature=temperature,
      inputs=prompts,
    )
  decoder = decoding.decoder(
    "spec_cascade_opt", gamma=3, max_decode_len=LENGTH, eos_id=EOS, trace=True
  )
  sampling, alpha = decoding.Sampling.create(1.0), 0.1
  stream = decoding.Stream(
    decoder,
    small,
    large,
    prompts,
    keys(len(prompts)),
    alpha,
    sampling,
    room=4 * LENGTH,
  )
  for number in range(3):
    record.add(f"stream/rounds {number}", stream.advance(rounds=1 + number))
  stream.turn(prompts[::-1], keys(len(prompts), 1))
  record.add("stream/turn", stream.advance(rounds=LENGTH))
  record.add("stream/ended", (stream.ended, stream.used))
  batches = decoding.decode_continuously(
    decoder,
    small,
    large,
    np.asarray(prompts),
    keys(len(prompts)),
    alpha,
    sampling,
    rows=2,
    refill=1,
  )
  for number, batch in enumerate(batches):
    record.add(f"continuous/{number}", batch)


PARTS = {
  "methods": record_methods,
  "settings": record_settings,
  "trees": record_trees,
  "drafters": record_drafters,
  "turns": record_turns,
}
