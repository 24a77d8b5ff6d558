"""Wrong loops, records and caches of the core; records as in `core`."""

_CORE = "speccascade/decoding/"
_EXECUTIONS = _CORE + "executions/"
_EMISSION = _CORE + "emission.py"
_FEEDING = _CORE + "feeding.py"
_TRACING = _CORE + "tracing.py"
_FAMILIES = _CORE + "families.py"
_TESTS = "tests/decoding/"
_LOOPS = _TESTS + "test_executions.py::"
_FAULT = _LOOPS + "test_a_row_that_meets_a_fault_ends_there"
_CHOICE = _TESTS + "test_families.py::test_a_choice_is_the_target_that_it_names"
_FED = _TESTS + "drafters/test_feeding.py::"
_STEPWISE = _TESTS + "test_paths.py::test_every_path_of_the_stepwise_loop"
_SEQUENCE = _TESTS + "test_paths.py::test_every_path_of_the_sequence_cascade"

MUTANTS = [
  {
    "name": "a finished row has no room for the others' block",
    "file": _EMISSION,
    "old": "return 1 + max_decode_len + width + 1",
    "new": "return 1 + max_decode_len + width",
    "tests": [
      _TESTS + "test_emission.py::"
      "test_the_buffer_holds_a_block_written_at_the_end"
    ],
  },
  {
    "name": "a row goes on when it is full",
    "file": _EMISSION,
    "old": "has_eos | (num >= room)",
    "new": "has_eos | (num > room)",
    "tests": [_TESTS + "test_emission.py::test_cut"],
  },
  {
    "name": "a rewind to more than is held counts as held",
    "file": "speccascade/models/markov_lm.py",
    "old": "return state.replace(length=jnp.minimum(state.length, length))",
    "new": "return state.replace(length=length)",
    "tests": [_FED + "test_a_rewind_holds_no_more_than_before"],
  },
  {
    "name": "rows that are fed nothing are counted a pass",
    "file": _FEEDING,
    "old": "return state, logits, passes + fed.astype(jnp.int32)",
    "new": "return state, logits, passes + 1",
    "tests": [_FED + "test_rows_that_need_nothing_get_zeros"],
  },
  {
    "name": "a record trusts a law that was never asked for",
    "file": _TRACING,
    "old": "known = new.known_q & jnp.asarray(new.known_p)",
    "new": "known = new.known_q",
    "tests": [_STEPWISE + "[token_cascade_chow]"],
  },
  {
    "name": "a record's rule is that of the unscaled pair",
    "file": _EXECUTIONS + "oracle_cascade.py",
    "old": "draw, alpha=settings.alpha, sampled=(q, p)",
    "new": "draw, alpha=settings.alpha, sampled=None",
    "tests": [_STEPWISE + "[oracle_cascade_opt]"],
  },
  {
    "name": "a chosen target mixes the unscaled pair",
    "file": _FAMILIES,
    "old": "q, p, tokens, alpha=alpha, sampled=sampled",
    "new": "q, p, tokens, alpha=alpha, sampled=None",
    "tests": [_CHOICE],
  },
  {
    "name": "a chosen target has the first one's properties",
    "file": _FAMILIES,
    "old": "jnp.asarray(flags)[self.index]",
    "new": "jnp.asarray(flags)[0]",
    "tests": [_CHOICE],
  },
  {
    "name": "the score of an ended sequence goes on",
    "file": _EXECUTIONS + "one_model.py",
    "old": "jnp.where(prefix.active, jnp.log(prob), 0).astype(score.dtype)",
    "new": "jnp.log(prob).astype(score.dtype)",
    "tests": [_SEQUENCE + "[seq_cascade_chow]"],
  },
  {
    "name": "a token that was never written counts as deferred",
    "file": _EXECUTIONS + "stepwise.py",
    "old": "deferred = record.deferred & (emitted > 0)[:, None]",
    "new": "deferred = record.deferred",
    "tests": [_FAULT + "[token_cascade_chow-nan]"],
  },
  {
    "name": "a fault of the asked verifier goes unseen",
    "file": _EXECUTIONS + "sequential_cascade.py",
    "old": "    bad |= deferred & ~is_law(p_logits)\n",
    "new": "",
    "tests": [_FAULT + "[token_cascade_chow-nan]"],
  },
  {
    "name": "the mean score counts the limit, not the tokens",
    "file": _EXECUTIONS + "sequence_cascade.py",
    "old": "jnp.maximum(draft.lengths, 1).astype(score.dtype)",
    "new": "settings.max_decode_len",
    "tests": [_SEQUENCE + "[seq_cascade_chow_norm]"],
  },
  {
    "name": "a faulty draft is silently written again",
    "file": _EXECUTIONS + "sequence_cascade.py",
    "old": "keep = (score >= settings.alpha) | is_bad",
    "new": "keep = score >= settings.alpha",
    "tests": [_FAULT + "[seq_cascade_chow-nan]"],
  },
  {
    "name": "an oracle asks for every token",
    "file": _EXECUTIONS + "oracle_cascade.py",
    "old": "verifier_calls=deferred[:, 0]",
    "new": "verifier_calls=calls",
    "tests": [_STEPWISE + "[oracle_cascade_diff]"],
  },
  {
    "name": "BiLD judges what was not drafted",
    "file": _EXECUTIONS + "bild.py",
    "old": "(-jnp.log(prob) > alpha) & (index < count[:, None])",
    "new": "-jnp.log(prob) > alpha",
    "tests": [_LOOPS + "test_bild_against_its_decisions_by_hand[2]"],
  },
  {
    "name": "BiLD asks the drafter again behind a whole window only",
    "file": _EXECUTIONS + "bild.py",
    "old": "state = BildState(draft, length + count + 1)",
    "new": "state = BildState(draft, length + self.width + 1)",
    "tests": [_LOOPS + "test_bild_against_its_decisions_by_hand[2]"],
  },
]
