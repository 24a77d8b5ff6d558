"""Wrong recursions, and the tests that must notice each of them.

A record: name, the file, the text in it (once), what stands there instead, and
the tests, of which at least one has to fail.
"""

_REVIEWED = "speccascade/decoding/drafters/reviewed.py"
_HORIZONTAL = "speccascade/decoding/drafters/horizontal.py"
_MAX_GRAM = "speccascade/decoding/drafters/max_gram.py"
_CASCADE = "speccascade/decoding/drafters/cascade.py"
_FEEDING = "speccascade/decoding/feeding.py"
_METHODS = "speccascade/decoding/methods.py"
_TESTS = "tests/decoding/drafters/"
_EXACT = _TESTS + "test_exact.py::test_stated_laws_are_those_drawn_from"
_LAWS = _TESTS + "test_laws.py::"
_DECODING = _TESTS + "test_decoding.py::"

MUTANTS = [
  {
    "name": "a lenient token is said to be the reviewer's",
    "file": _REVIEWED,
    "old": 'emission.write_block(carry["q"], block.pi, at - length)',
    "new": 'emission.write_block(carry["q"], block.p, at - length)',
    "tests": [f"{_EXACT}[lenient-False]"],
  },
  {
    "name": "laws stand one row too far",
    "file": _REVIEWED,
    "old": 'emission.write_block(carry["q"], block.pi, at - length)',
    "new": 'emission.write_block(carry["q"], block.pi, at - length + 1)',
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
    "new": "speculative, defer_tokens(deferral.lenient_cs_paper),"
    ' "CS Drafting"',
    "tests": [f"{_LAWS}test_lossless_outer_law_is_the_verifiers[copies]"],
  },
  {
    "name": "the reviewer's cache keeps what was rejected",
    "file": _REVIEWED,
    "old": "feeding.rewind(self.reviewer, states[1], held)",
    "new": "states[1]",
    "tests": [
      f"{_DECODING}test_what_the_verifier_itself_reviewed_is_always_accepted"
    ],
  },
  {
    "name": "the inner drafter's cache keeps what was rejected",
    "file": _REVIEWED,
    "old": '"drafter": self.drafter.rewind(states[0], held)',
    "new": '"drafter": states[0]',
    "tests": [
      f"{_DECODING}test_drafts_of_the_reviewers_twin_are_never_cut",
      f"{_EXACT}[three models-False]",
    ],
  },
  {
    "name": "the outer loop does not rewind the reviewer",
    "file": _REVIEWED,
    "old": "      feeding.rewind(self.reviewer, state.reviewer, length),",
    "new": "      state.reviewer,",
    "tests": [
      f"{_DECODING}test_what_the_verifier_itself_reviewed_is_always_accepted"
    ],
  },
  {
    "name": "what a proposal cut stays in the caches",
    "file": _REVIEWED,
    "old": "return self.rewind(state, length + self.width), Proposal(",
    "new": "return state, Proposal(",
    "tests": [
      f"{_DECODING}test_what_the_verifier_itself_reviewed_is_always_accepted"
    ],
  },
  {
    "name": "discarded draws are used again",
    "file": _REVIEWED,
    "old": 'sampling_lib.fold_in(rngs, carry["round"])',
    "new": "rngs",
    "tests": [f"{_LAWS}test_stated_laws_fit_the_draws[token]"],
  },
  {
    "name": "drafters in a row share their draws",
    "file": _HORIZONTAL,
    "old": "sampling_lib.fold_in(rngs, i)",
    "new": "rngs",
    "tests": [f"{_EXACT}[in a row, lenient-False]"],
  },
  {
    "name": "the second drafter does not see what the first wrote",
    "file": _HORIZONTAL,
    "old": "      length + count,\n        sampling_lib",
    "new": "      length,\n        sampling_lib",
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
    "old": "pi1 = target(*plain, alpha=self.alpha, sampled=plain)",
    "new": "pi1 = block.pi",
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
    "old": "following(text, source_len + length - 1, tokens",
    "new": "following(text, source_len + length, tokens",
    "tests": [_TESTS + "test_max_gram.py::test_equals_brute_force"],
  },
  {
    "name": "K is always read as increments",
    "file": _CASCADE,
    "old": "own = [b - a for a, b in zip([0, *own], own)]",
    "new": "own = list(own)",
    "tests": [_TESTS + "test_cascade.py::test_both_published_forms_of_k"],
  },
  {
    "name": "a row that lacks much loses the tokens to be read",
    "file": _FEEDING,
    "old": "jnp.minimum(missing - narrow, wide)",
    "new": "jnp.minimum(missing - 1, wide)",
    "tests": [_TESTS + "test_feeding.py"],
  },
]
