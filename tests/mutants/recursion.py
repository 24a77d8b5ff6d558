"""Wrong recursions, and the tests that must notice each of them.

A record: name, the file, the text in it (once), what stands there instead, and
the tests, of which at least one has to fail.
"""

_REVIEWED = "speccascade/decoding/drafters/vertical.py"
_HORIZONTAL = "speccascade/decoding/drafters/horizontal.py"
_MAX_GRAM = "speccascade/decoding/drafters/max_gram.py"
_CASCADE = "speccascade/decoding/drafters/cascade.py"
_FEEDING = "speccascade/decoding/feeding.py"
_METHODS = "speccascade/decoding/methods.py"
_AUTOREGRESSIVE = "speccascade/decoding/drafters/autoregressive.py"
_REVIEW = "speccascade/decoding/review.py"
_SPECULATIVE = "speccascade/decoding/executions/speculative.py"
_DECODERS = "speccascade/decoding/decoders.py"
_PATHS = "tests/decoding/test_paths.py::test_every_path_of_the_speculative_loop"
_TESTS = "tests/decoding/drafters/"
_INNER = _TESTS + "test_inner_reviews.py::"
_EXACT = _TESTS + "test_exact.py::test_stated_laws_are_those_drawn_from"
_LAWS = _TESTS + "test_laws.py::"
_DECODING = _TESTS + "test_decoding.py::"

MUTANTS = [
  {
    "name": "a lenient token is said to be the reviewer's",
    "file": _REVIEWED,
    "old": "drafts = (block.pi, confidence, bad)",
    "new": "drafts = (block.p, confidence, bad)",
    "tests": [f"{_EXACT}[lenient-False]"],
  },
  {
    "name": "laws stand one row too far",
    "file": _REVIEWED,
    "old": 'emission.write_block(carry["drafts"], drafts, count)',
    "new": 'emission.write_block(carry["drafts"], drafts, count + 1)',
    "tests": [f"{_EXACT}[lossless-False]"],
  },
  {
    "name": "the bonus law is the last token's",
    "file": _REVIEWED,
    "old": "self.width + bool(bonus_law)",
    "new": "self.width",
    "tests": [f"{_EXACT}[lossless-True]"],
  },
  {
    "name": "lenience at the top level",
    "file": _METHODS,
    "old": 'speculative, lossless, "CS Drafting"',
    "new": 'speculative, defer_tokens(lenient_cs_paper), "CS Drafting"',
    "tests": [f"{_LAWS}test_lossless_outer_law_is_the_verifiers[copies]"],
  },
  {
    "name": "the reviewer's cache keeps what was rejected",
    "file": _REVIEWED,
    "old": '"state": self.rewind(state, length + total - 1)',
    "new": '"state": (self.rewind(state, length + total - 1)[0], reviewing)',
    "tests": [
      f"{_DECODING}test_what_the_verifier_itself_reviewed_is_always_accepted"
    ],
  },
  {
    "name": "the inner drafter's cache keeps what was rejected",
    "file": _REVIEWED,
    "old": '"state": self.rewind(state, length + total - 1)',
    "new": '"state": (drafting, self.rewind(state, length + total - 1)[1])',
    "tests": [
      f"{_DECODING}test_drafts_of_the_reviewers_twin_are_never_cut",
      f"{_EXACT}[three models-False]",
    ],
  },
  {
    "name": "the outer loop does not rewind the reviewer",
    "file": _REVIEWED,
    "old": "      self.reviewer.rewind(state[1], length),",
    "new": "      state[1],",
    "tests": [
      f"{_DECODING}test_what_the_verifier_itself_reviewed_is_always_accepted"
    ],
  },
  {
    "name": "what a proposal cut stays in the caches",
    "file": _REVIEWED,
    "old": 'return self.rewind(carry["state"], length + self.width), Proposal(',
    "new": 'return carry["state"], Proposal(',
    "tests": [
      f"{_DECODING}test_what_the_verifier_itself_reviewed_is_always_accepted"
    ],
  },
  {
    "name": "discarded draws are used again",
    "file": _REVIEWED,
    "old": 'draws.fold_in(rngs, carry["round"])',
    "new": "rngs",
    "tests": [f"{_LAWS}test_stated_laws_fit_the_draws[token]"],
  },
  {
    "name": "drafters in a row share their draws",
    "file": _HORIZONTAL,
    "old": "draws.fold_in(rngs, i)",
    "new": "rngs",
    "tests": [f"{_EXACT}[in a row, lenient-False]"],
  },
  {
    "name": "the second drafter does not see what the first wrote",
    "file": _HORIZONTAL,
    "old": "      length + count,\n        draws",
    "new": "      length,\n        draws",
    "tests": [
      f"{_DECODING}test_what_the_verifier_itself_reviewed_is_always_accepted"
    ],
  },
  {
    "name": "a finished row keeps the others waiting",
    "file": _REVIEWED,
    "old": "jnp.where(active, 0, jnp.full_like(length, need))",
    "new": "jnp.zeros_like(length)",
    "tests": [
      f"{_DECODING}test_lenience_and_temperature_are_traced_and_finished_rows"
      "_are_idle"
    ],
  },
  {
    "name": "confidence at the sampling temperature",
    "file": _REVIEWED,
    "old": "self.target.probs(*plain, alpha=self.alpha)",
    "new": "block.pi",
    "tests": [f"{_LAWS}test_three_models_cascade_has_the_composed_law"],
  },
  {
    "name": "the rightmost occurrence is copied",
    "file": _MAX_GRAM,
    "old": "jnp.min(jnp.where(ends, place, size)) + 1",
    "new": "jnp.max(jnp.where(ends, place, -1)) + 1",
    "tests": [_TESTS + "test_max_gram.py::test_worked_cases"],
  },
  {
    "name": "the last token is part of the text searched",
    "file": _MAX_GRAM,
    "old": "text, source_len + length - 1, tokens",
    "new": "text, source_len + length, tokens",
    "tests": [_TESTS + "test_max_gram.py::test_equals_brute_force"],
  },
  {
    "name": "K is always read as increments",
    "file": _CASCADE,
    "old": "added = [b - a for a, b in zip([0, *added], added)]",
    "new": "added = list(added)",
    "tests": [_TESTS + "test_cascade.py::test_both_published_forms_of_k"],
  },
  {
    "name": "a row that lacks much loses the tokens to be read",
    "file": _FEEDING,
    "old": "jnp.minimum(missing - narrow, wide)",
    "new": "jnp.minimum(missing - 1, wide)",
    "tests": [_TESTS + "test_feeding.py"],
  },
  # What is proposed.
  {
    "name": "a token comes from the reviewer in spite of lenience",
    "file": _CASCADE,
    "old": "targets.lossy",
    "new": "targets.lossless",
    "tests": [f"{_INNER}test_a_token_is_drawn_from_the_inner_target"],
  },
  {
    "name": "lenience has no rule of its own at temperature 0",
    "file": _REVIEWED,
    "old": "sampling.greedy and self.greedy_target is not None",
    "new": "False and self.greedy_target is not None",
    "tests": [
      f"{_INNER}test_greedily_lenience_keeps_a_draft_where_q_is_at_most_l_p"
    ],
  },
  {
    "name": "confidence is that of one-hot laws in greedy decoding",
    "file": _REVIEWED,
    "old": "self.target.probs(*plain, alpha=self.alpha)",
    "new": "block.pi if sampling.greedy else"
    " self.target.probs(*plain, alpha=self.alpha)",
    "tests": [
      f"{_INNER}test_confidence_is_at_temperature_1_in_greedy_decoding_too"
    ],
  },
  {
    "name": "inner blocks are always verified token by token",
    "file": _CASCADE,
    "old": "      verify=verify,\n",
    "new": "",
    "tests": [f"{_INNER}test_inner_blocks_are_verified_as_asked"],
  },
  {
    "name": "a fault inside a reviewed pair is not passed on",
    "file": _REVIEWED,
    "old": "bad=bad & in_use",
    "new": "bad=jnp.zeros_like(bad)",
    "tests": [
      f"{_INNER}test_a_fault_of_a_nested_drafter_ends_its_row[reviewer]"
    ],
  },
  {
    "name": "a fault in a row of drafters is not passed on",
    "file": _HORIZONTAL,
    "old": "part.bad",
    "new": "part.bad & False",
    "tests": [
      f"{_INNER}test_a_fault_of_a_nested_drafter_ends_its_row[first in a row]"
    ],
  },
  {
    "name": "a drafter that stopped early leaves a gap",
    "file": _HORIZONTAL,
    "old": "count += part.count",
    "new": "count += drafter.width",
    "tests": [f"{_INNER}test_the_next_drafter_goes_on_where_one_stopped"],
  },
  {
    "name": "behind a row of drafters there is no law",
    "file": _HORIZONTAL,
    "old": "bonus_law=bonus_law and is_last",
    "new": "bonus_law=False",
    "tests": [f"{_INNER}test_the_law_behind_a_row_is_its_last_drafters"],
  },
  {
    "name": "padding stands between the source and the text",
    "file": _MAX_GRAM,
    "old": "source_len = jnp.sum(source > 0, dtype=jnp.int32)",
    "new": "source_len = jnp.int32(source.shape[0])",
    "tests": [_TESTS + "test_max_gram.py::test_worked_cases"],
  },
  # Around the loop.
  {
    "name": "the printed bonus stands behind a full block only",
    "file": _REVIEW,
    "old": "at_bonus = step == count",
    "new": "at_bonus = step == width",
    "tests": [_PATHS + "[printed bonus, stop]"],
  },
  {
    "name": "the last draft is fed for nothing",
    "file": _AUTOREGRESSIVE,
    "old": "if bonus_law or step + 1 < self.width:",
    "new": "if True:",
    "tests": [_PATHS + "[lossless]"],
  },
  {
    "name": "what was rejected was not expected",
    "file": _SPECULATIVE,
    "old": "jnp.where(is_examined, chance, 0)",
    "new": "jnp.where(is_accepted, chance, 0)",
    "tests": [_PATHS + "[lossless]"],
  },
  {
    "name": "the policies of draft length change places",
    "file": _DECODERS,
    "old": "before_draw=policy == MAX_PROB",
    "new": "before_draw=policy == TOKEN_PROB",
    "tests": [_PATHS + "[stop before]"],
  },
  {
    "name": "BiLD never falls back unless told to",
    "file": "speccascade/decoding/executions/bild.py",
    "old": "jnp.float32(FALLBACK)",
    "new": "jnp.float32(0.0)",
    "tests": ["tests/decoding/test_executions.py::test_bild_defaults"],
  },
  {
    "name": "the default cascade reviews two tokens, whatever gamma",
    "file": _METHODS,
    "old": "matrix[0][0], matrix[-1][-1] = gamma, copied",
    "new": "matrix[-1][-1] = copied",
    "tests": [
      "tests/decoding/test_methods.py::"
      "test_the_default_cascade_reviews_gamma_tokens_and_copies_two"
    ],
  },
  {
    "name": "the smaller of two drafters reviews the larger",
    "file": _METHODS,
    "old": "medium, small = models",
    "new": "small, medium = models",
    "tests": [f"{_LAWS}test_three_models_cascade_has_the_composed_law"],
  },
]
