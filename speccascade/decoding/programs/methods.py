"""The table of methods: execution x target, one line each.

The `target` of a row is the distribution that the row's output is sampled from,
so one parametrised test covers the table. Labels are the papers' own.
"""

import functools

import jax
import jax.numpy as jnp

from speccascade.decoding.drafting.autoregressive import AutoregressiveDrafter
from speccascade.decoding.drafting.max_gram import MaxGramDrafter
from speccascade.decoding.laws.acceptance_rules import (
  cactus,
  lossy_from_p,
  mentored_tv,
)
from speccascade.decoding.laws.deferral import (
  bild_js,
  bild_kl,
  bild_nll,
  bild_tv,
  chow,
  chow_log,
  diff,
  diff_log,
  opt,
  opt_log,
)
from speccascade.decoding.laws.greedy_lenience import (
  lenient_cs_code,
  lenient_cs_paper,
  lenient_leviathan,
)
from speccascade.decoding.laws.learned import (
  chow_calibrated,
  diff_calibrated,
  learned,
  mixture,
  opt_calibrated,
)
from speccascade.decoding.laws.lossy_targets import (
  ensemble,
  lossy,
  lossy_star,
  mentored,
)
from speccascade.decoding.laws.targets import (
  Target,
  defer,
  defer_tokens,
  lossless,
)
from speccascade.decoding.laws.token_rules import (
  min2,
  token_v1,
  token_v2,
  token_v3,
  top_k,
  typical,
)
from speccascade.decoding.loops.bild import bild
from speccascade.decoding.loops.oracle_cascade import oracle_cascade
from speccascade.decoding.loops.sequence_cascade import (
  per_token_sequence,
  sequence_cascade,
)
from speccascade.decoding.loops.sequential_cascade import sequential_cascade
from speccascade.decoding.loops.speculative import speculative
from speccascade.decoding.loops.stepwise import drafter_alone, verifier_alone
from speccascade.decoding.nested.cascade import cascade_drafter
from speccascade.decoding.nested.vertical import VerticalDrafter
from speccascade.decoding.programs.method import Compose, Method
from speccascade.decoding.records.decode_settings import block_width
from speccascade.decoding.records.drafter import Drafter
from speccascade.decoding.records.language_model import LanguageModel
from speccascade.settings import in_words

Array = jax.Array


def _cascade_drafting(
  models: tuple[LanguageModel, ...], gamma: int, alpha: Array
) -> Drafter:
  """Returns the default cascade: gamma reviewed tokens, two copied tokens."""
  # The first drafter writes the gamma tokens that it writes in plain
  # speculative decoding, in fewer calls, each of which reviews two tokens of
  # the smaller drafters. So there are no more calls, whatever is copied. Text
  # that repeats itself deserves longer copies, as a drafter of
  # `cascade_drafter` has them; `speccascade.cascade_search` finds its K.
  size = models[0].vocab_size
  copied = 2
  copier = MaxGramDrafter(jnp.zeros((size,), jnp.int32), copied)
  # Two neural drafters and gamma 5 have K = [[5, 0, 2], [0, 2, 2], [0, 0, 2]]:
  # each drafter adds two tokens, but for the gamma of the first one, and the
  # last column is that of the copier.
  num = len(models) + 1
  matrix = [[0] * num for _ in range(num)]
  for i in range(num - 1):
    matrix[i][i], matrix[i][-1] = copied, copied
  matrix[0][0], matrix[-1][-1] = gamma, copied
  return cascade_drafter(models, copier, matrix)


def _reviewed_pair(inner: Target) -> Compose:
  """Returns a `compose` of two models, one of which reviews the other's."""

  def compose(
    models: tuple[LanguageModel, ...], gamma: int, alpha: Array
  ) -> Drafter:
    medium, small = models
    return VerticalDrafter(
      # The others may have written a whole block since it drafted last.
      drafter=AutoregressiveDrafter(small, gamma, behind=block_width(gamma)),
      reviewer=medium,
      alpha=alpha,
      width=gamma,
      target=inner,
    )

  return compose


# Methods of one execution.
_spec = functools.partial(Method, speculative)
_sequential = functools.partial(Method, sequential_cascade)
_oracle = functools.partial(Method, oracle_cascade)

METHODS = {
  # References: one model alone.
  "drafter": Method(drafter_alone, lossless, "Small model"),
  "verifier": Method(verifier_alone, lossless, "Large model"),
  # Speculative decoding, lossless and lossy.
  "spec_decode": _spec(lossless, "SpecDecode"),
  "spec_decode_lossy": _spec(lossy, "SpecDecode [Lossy]"),
  "spec_decode_lossy_star": _spec(lossy_star, "SpecDecode [Lossy*]"),
  "spec_decode_lossy_from_p": _spec(
    lossy_from_p, "SpecDecode [Lossy, replaced from p]"
  ),
  "mentored": _spec(mentored, "Mentored"),
  "mentored_tv": _spec(mentored_tv, "Mentored [TV]"),
  "cactus": _spec(cactus, "Cactus"),
  "bild_star": _spec(defer(bild_tv), "BiLD*"),
  "bild_star_kl": _spec(defer(bild_kl), "BiLD* [KL]"),
  "bild_star_js": _spec(defer(bild_js), "BiLD* [JS]"),
  "bild_star_nll": _spec(defer(bild_nll), "BiLD* [NLL]"),
  "bild": Method(bild, None, "BiLD", greedy_only=True),
  # Sequential cascades and oracles.
  "seq_cascade_chow": Method(sequence_cascade, None, "SeqCascade [Chow]"),
  "seq_cascade_chow_norm": Method(
    per_token_sequence, None, "SeqCascade [Chow, per token]"
  ),
  "token_cascade_chow": _sequential(defer(chow), "TokenCascade [Chow]"),
  "token_cascade_chow_log": _sequential(
    defer(chow_log), "TokenCascade [Chow, log]"
  ),
  "oracle_cascade_diff": _oracle(defer(diff), "Oracle [Diff]"),
  "oracle_cascade_chow": _oracle(defer(chow), "Oracle [Chow]"),
  "oracle_cascade_opt": _oracle(defer(opt), "Oracle [OPT]"),
  "oracle_cascade_diff_log": _oracle(defer(diff_log), "Oracle [Diff, log]"),
  "oracle_cascade_opt_log": _oracle(defer(opt_log), "Oracle [OPT, log]"),
  # Speculative cascades.
  "spec_cascade_chow": _spec(defer(chow), "SpecCascade [Chow]"),
  "spec_cascade_diff": _spec(defer(diff), "SpecCascade [Diff]"),
  "spec_cascade_opt": _spec(defer(opt), "SpecCascade [OPT]"),
  "spec_cascade_chow_log": _spec(defer(chow_log), "SpecCascade [Chow, log]"),
  "spec_cascade_diff_log": _spec(defer(diff_log), "SpecCascade [Diff, log]"),
  "spec_cascade_opt_log": _spec(defer(opt_log), "SpecCascade [OPT, log]"),
  "spec_cascade_token_v1": _spec(
    defer_tokens(token_v1), "SpecCascade [Token V1]"
  ),
  "spec_cascade_token_v2": _spec(
    defer_tokens(token_v2), "SpecCascade [Token V2]"
  ),
  "spec_cascade_token_v3": _spec(
    defer_tokens(token_v3), "SpecCascade [Token V3]"
  ),
  "spec_cascade_typical": _spec(defer_tokens(typical), "SpecCascade [Typical]"),
  "spec_cascade_top_k": _spec(defer_tokens(top_k), "SpecCascade [Top-k]"),
  "spec_cascade_min2": _spec(defer_tokens(min2), "SpecCascade [Min2]"),
  "ensemble": _spec(ensemble, "Ensemble"),
  # Rules and a mixture that are fitted to right answers.
  "spec_cascade_learned": _spec(defer(learned), "SpecCascade [Learned]"),
  "spec_cascade_mixture": _spec(mixture, "SpecCascade [Mixture]"),
  "spec_cascade_chow_calibrated": _spec(
    defer(chow_calibrated), "SpecCascade [Chow, calibrated]"
  ),
  "spec_cascade_diff_calibrated": _spec(
    defer(diff_calibrated), "SpecCascade [Diff, calibrated]"
  ),
  "spec_cascade_opt_calibrated": _spec(
    defer(opt_calibrated), "SpecCascade [OPT, calibrated]"
  ),
  "token_cascade_chow_calibrated": _sequential(
    defer(chow_calibrated), "TokenCascade [Chow, calibrated]"
  ),
  "oracle_cascade_learned": _oracle(defer(learned), "Oracle [Learned]"),
  # Drafters that are cascades themselves.
  "cascade_drafting": _spec(lossless, "CS Drafting", compose=_cascade_drafting),
  "spec_cascade_opt_three": _spec(
    defer(opt),
    "SpecCascade [OPT, three models]",
    compose=_reviewed_pair(defer(opt)),
    num_drafters=2,
    most_drafters=2,
  ),
  # Greedy lenience: four papers, four rules (the fourth is Token V3).
  "lenient_leviathan": _spec(
    defer_tokens(lenient_leviathan), "Lenient [Leviathan]", greedy_only=True
  ),
  "lenient_cs_paper": _spec(
    defer_tokens(lenient_cs_paper),
    "Lenient [CS Drafting, paper]",
    greedy_only=True,
  ),
  "lenient_cs_code": _spec(
    defer_tokens(lenient_cs_code),
    "Lenient [CS Drafting, code]",
    greedy_only=True,
  ),
}


def find(name: str) -> Method:
  """Returns the method called `name`.

  Raises:
    ValueError: there is none; the message has the near misses.
  """
  if name not in METHODS:
    raise ValueError(
      f"unknown method {name!r}; {in_words.suggest(name, METHODS)}"
    )
  return METHODS[name]
