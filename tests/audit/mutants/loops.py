"""Wrong loops, counts, records and caches; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== decoding/verification/review.py decoding/loops/test_paths.py
the bonus comes from p by default <- test_speculative_paths[token]
- has_bonus_law = settings.needs_bonus_law and proposal.has_bonus_law
+ has_bonus_law = False
a bonus without a law of the drafter's is weighed by one <-
  ../drafting/test_stated_laws.py::test_a_bonus_without_a_law_is_the_verifiers
- settings.needs_bonus_law and proposal.has_bonus_law
+ settings.needs_bonus_law
p stands one position behind q <- test_speculative_paths[lossless]
- settings.sampling.step(logits)
+ settings.sampling.step(jnp.roll(logits, 1, axis=1))
the draw has the uniform of an acceptance <- test_speculative_paths[lossless]
- draw_rngs = draws.fold_in(rngs, draws.DRAW_TAG)
+ draw_rngs = draws.fold_in(rngs, draws.ACCEPT_TAG)
a verifier's NaN goes unseen <-
  test_faults.py::test_a_fault_ends_its_row[spec_decode-nan]
- bad = ~is_law | proposal.bad
+ bad = proposal.bad
the printed bonus stands behind a full block only <-
  test_speculative_paths[printed bonus, stop]
-     step < proposal.count[:, None],
+     step < step.shape[1] - 1,

=== decoding/loops/speculative.py
    decoding/loops/test_paths.py::test_speculative_paths[lossless]
every block has the same key
- draws.fold_in(rngs, carry.stats.num_blocks)
+ draws.fold_in(rngs, 0 * carry.stats.num_blocks)
the drafter's cache keeps what was rejected
- drafting = drafter.rewind(drafting, held)
+ pass
the verifier's cache keeps what was rejected
- verifying = verifier.rewind(verifying, held)
+ pass

=== decoding/loops/tracing.py
the token's law is taken for the verifier's <-
  test_log_probs.py::test_speculative[quick]
- pi=block.pi,
+ pi=block.p,

=== decoding/loops/counting.py
    decoding/loops/test_paths.py::test_speculative_paths[lossless]
drafts behind an end are counted
- examined = jnp.minimum(block.verdict.examined, emitted)
+ examined = block.verdict.examined
what was rejected was not expected
- jnp.where(is_examined, chance, 0)
+ jnp.where(is_accepted, chance, 0)

=== decoding/records/prompts.py
a prompt stays where its padding left it <- test_prompts_are_read_wherever_they
- jnp.minimum(first[:, None] + place
+ jnp.minimum(0 * first[:, None] + place
the last token of a prompt is held, too <- test_greedy_tokens_follow_from_the
- [:, :-1], 0), lengths(inputs) - 1
+ [:, :-1], 0), lengths(inputs)
rows start from the start token <- test_greedy_tokens_follow_from_the_whole_text
- if model.prompted:
+ if False:
a token outside the vocabulary passes <- test_what_is_no_prompt_is_refused
- is_empty | (pieces > 1) | bad.any(axis=1)
+ is_empty | (pieces > 1)

=== decoding/loops/rounds.py
    decoding/programs/test_streaming.py::test_rounds_and_turns_are_the_whole
all rounds run at once <- [spec_cascade_opt-whole]
- (counted[0] + 1, step(counted[1]))
+ (counted[0], step(counted[1]))
a turn has what the turns before left of the limit <- [spec_cascade_opt-whole]
- settings.max_decode_len + carry.begun - carry.length
+ settings.max_decode_len + 1 - carry.length
models do not read what others wrote <- [spec_cascade_opt-whole]
- upto = jnp.where(has_turn, length - 1, 0)
+ upto = 0 * length
a turn is counted with those before <- [spec_cascade_opt-whole]
- jax.tree.map(jnp.zeros_like, carry.stats)
+ carry.stats
a row that is going goes on without a turn <-
  test_streaming.py::test_a_row_that_is_going_stops_where_it_has_no_turn
- done=~has_turn,
+ done=carry.done & ~has_turn,
the place of a fault counts the turns before its own <-
  test_streaming.py::test_a_fault_in_a_later_turn_is_where_the_turn_has_it
- jnp.where(bad, length - carry.begun, carry.bad_step)
+ jnp.where(bad, length - 1, carry.bad_step)
a row without a law takes another turn <-
  test_streaming.py::test_a_turn_that_cannot_be
- jnp.where(carry.bad_step < 0, prompts.lengths(new), 0)
+ prompts.lengths(new)

=== decoding/programs/streaming.py
a turn may fill the room to the last token <- test_a_turn_that_cannot_be
- used + more + least > self.room
+ used + more > self.room
padding of a turn takes room twice <- test_a_wide_turn_needs_room_for_its_width
- more = np.sum(tokens != prompts.PAD, axis=1)
+ more = np.full(len(tokens), tokens.shape[1])
a wide turn needs no room for its padding <- test_a_wide_turn_needs_room_for_its
- max(tokens.shape[1], self._decoder.max_decode_len)
+ self._decoder.max_decode_len

=== decoding/programs/continuous.py
    decoding/programs/test_continuous.py::test_rows_are_those_of_whole_batches
rounds end with the first row that ends <- [spec_cascade_opt-whole]
- rows - refill if
+ rows - 1 if
what only fills a reading takes the first row's place <-
  [spec_cascade_opt-whole]
- np.full(refill, rows)
+ np.full(refill, 0)
rows that wait are read when all others ended <-
  test_continuous.py::test_a_long_row_holds_nobody
- rows - refill if
+ 0 if

=== decoding/records/token_buffers.py
all ends have to come at once <- test_one_of_several_ends_is_enough
- is_eos = jnp.any(
+ is_eos = jnp.all(
an EOS inside a block does not end it <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
- is_end &= position < num[:, None]
+ is_end &= position == num[:, None] - 1
a block runs over the limit <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
-   num = jnp.minimum(num, room)
a finished row has no room for the others' block <- test_the_buffer_holds_a
- return 1 + max_decode_len + width + 1
+ return 1 + max_decode_len + width
a row goes on when it is full <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
- has_end | (num >= room)
+ has_end | (num > room)

=== decoding/loops/rounds.py decoding/test_constraints.py
a stop ends nothing <- test_a_stop_cuts_the_text_that_would_have_been
- settings.eos_id, is_stop
+ settings.eos_id
a stop that began in an earlier block is not seen <-
  test_a_stop_cuts_the_text_that_would_have_been
- carry = carry.replace(stop=jnp.where(emitted > 0, last, before))
+ pass
a row's text ends at the stops of another <-
  test_a_stop_of_one_row_ends_no_other[spec_cascade_opt]
- return self.settings.begins
+ return jnp.full((rows,), START, jnp.int32)

=== decoding/programs/continuous.py decoding/test_constraints.py
a row that takes another's place has its stops <-
  test_a_stop_of_one_row_ends_no_other[spec_cascade_opt]
- begins = begins[padded]
+ begins = begins[: len(padded)]

=== decoding/records/masked_model.py decoding/test_constraints.py
the token before a text is read as its first <-
  test_texts_have_the_law_of_the_masked_conditionals[spec_cascade_opt]
- is_text = slots > state.begun[:, None]
+ is_text = slots >= state.begun[:, None]
a rejected draft stays in the automaton <-
  test_texts_have_the_law_of_the_masked_conditionals[spec_cascade_opt]
- self.automaton.follow(self._before(state, start), tokens, is_text)
+ self.automaton.follow(state.after[:, -1], tokens, is_text)
a node follows the node before it <-
  test_texts_have_the_law_of_the_masked_conditionals[spec_decode tree]
- parent = numerics.of_token(window, parents[:, place])
+ parent = window[:, width - num + place - 1]
the states of a kept path are those of the first nodes <-
  test_texts_have_the_law_of_the_masked_conditionals[spec_cascade_opt traversal]
- slots = jnp.minimum(start[:, None] + path, state.after.shape[1] - 1)
+ slots = start[:, None] + 0 * path
a fault at a banned token goes unseen <-
  test_a_fault_of_a_model_is_not_masked_away
- jnp.where(is_law(logits)[..., None], kept, jnp.nan)
+ kept
a drafter without mass on the mask is broken <-
  test_a_drafter_without_mass_on_the_mask_drafts_uniformly
- kept = jnp.where(has_mass | ~mask, kept, 0)
+ pass
a turn goes on from the text before it <-
  test_every_turn_of_a_stream_is_a_text_of_its_own[spec_decode]
- return part.begin_text(cast(MaskedState, state), begun)
+ return state

=== decoding/programs/call_checks.py decoding/test_constraints.py
a law that no mask reaches is mixed in <-
  test_a_law_that_no_mask_reaches_is_refused_in_a_mixture
- if not draft_models.row_of(drafter).is_maskable(drafter):
+ if False:

=== constraints/stops.py constraints/test_stops.py
a stop inside of a longer one is not seen <-
  test_a_stop_inside_of_another_is_complete_first
- is_whole[node] |= is_whole[suffix[node]]
+ pass

=== constraints/automaton_tables.py constraints/test_expressions.py
a way into a dead end stays open <-
  test_grammar_ends.py::test_a_branch_that_cannot_end_is_masked
- pruned = allowed & ~is_dead[tables.moves]
+ pruned = allowed
a state that can go on for ever counts as one that ends <-
  test_grammar_ends.py::test_a_branch_that_cannot_end_is_masked
- if ends is None:
-     is_dead = _dead_ends(before, after, len(tables.moves))
+ if True:
+     is_dead = _dead_ends(before, after, len(tables.moves))
a grammar ends by the first of several EOS ids alone <-
  test_grammar_ends.py::test_a_grammar_ends_by_any_eos
- last = np.unique(tables.classes[list(ends or ())])
+ last = np.unique(tables.classes[list(ends or ())[:1]])
only the last state before an end leads to it <-
  test_grammar_ends.py::test_a_branch_that_cannot_end_is_masked
- new = new[~is_seen[new]]
+ new = new[:0]

=== constraints/byte_tables.py constraints/test_grammar_ends.py
the grammar allows the first of several EOS ids alone <-
  test_a_grammar_ends_by_any_eos
- is_eos[list(eos_ids)] = True
+ is_eos[list(eos_ids)[:1]] = True
a special token is a stop inside of texts alone <-
  test_byte_tables.py::test_searches_are_those_of_texts[joint]
- halts[START] = (halts_first | always)[halters]
+ halts[START] = halts_first[halters]

=== constraints/limits.py constraints/test_grammar_ends.py
a grammar need not end <- test_a_grammar_that_cannot_end_is_refused
- ends if has_grammar else None
+ None
a least length of two masks nothing <- test_the_least_length_counts_from_two
- if limits.min_decode_len > 1:
+ if limits.min_decode_len > 2:
a least length is of the first EOS alone <-
  test_the_least_length_counts_from_two
- np.isin(np.arange(num), eos_ids), after, allowed
+ np.isin(np.arange(num), eos_ids[:1]), after, allowed

=== constraints/expression_sandbox.py constraints/test_grammar_ends.py
an expression goes on from its first match alone <-
  test_a_text_goes_on_after_a_match_in_every_spelling
- return rf"\\x00\\x00{group}\\z|"
+ return rf"\\x00\\x00{group}|"
matches that begin later are followed <-
  test_repeats_take_time_by_their_number
- return rf"\\x00\\x00{group}\\z|"
+ return rf"\\x00\\x00{group}\\z"

=== constraints/stops.py constraints/test_special_tokens.py
a run of bytes that is not UTF-8 is read byte by byte <-
  test_a_run_that_is_not_utf8_has_no_stop
- whole_runs=len(known.byte_tokens) > 0
+ whole_runs=False
a special token is no stop <-
  test_a_stop_that_is_a_special_token_is_its_id[bytes]
- ids += [known.special[text] for text in texts if text in known.special]
+ pass
a half character that begins no stop is forgotten <-
  test_tokens_of_bytes_are_read_as_they_are_decoded[fallback]
- (found == 0) & (after > 0), half + after, found
+ (found == 0) & (after > 8), half + after, found

=== decoding/loops/stepwise.py decoding/loops/test_paths.py
every step has the same key <- test_stepwise_paths[verifier]
- draws.fold_in(rngs, step)
+ draws.fold_in(rngs, 0 * step)
the keys of a turn go on from those before <-
  ../programs/test_streaming.py::test_rounds_and_turns_are_the_whole[verifier-whole]
- step = carry.length - carry.begun
+ step = carry.length - 1
a token that was never written counts as deferred <-
  test_faults.py::test_a_fault_ends_its_row[token_cascade_chow-nan]
- deferred = record.deferred & (emitted > 0)[:, None]
+ deferred = record.deferred

=== decoding/loops/sequential_cascade.py decoding/loops/test_loops.py
the asked verifier reads the last token only <- test_token_cascade_is_the_oracle
- feeding.feed_to(
-       verifier,
-       large,
+ feeding.feed_to(
+       verifier,
+       large.replace(length=jnp.maximum(large.length, prefix.length - 1)),
a fault of the asked verifier goes unseen <-
  test_faults.py::test_a_fault_ends_its_row[token_cascade_chow-nan]
-     bad |= deferred & ~is_p

=== decoding/loops/sequence_cascade.py decoding/loops/test_paths.py
the rewrite repeats the discarded draft's randomness <-
  test_sequence_paths[seq_cascade_chow-0.93]
- draws.fold_in(rngs, REWRITE_TAG)
+ rngs
the mean score counts the limit, not the tokens <-
  test_sequence_paths[seq_cascade_chow_norm-0.6]
- jnp.maximum(draft.lengths, 1).astype(score.dtype)
+ settings.max_decode_len
a faulty draft is silently written again <-
  test_faults.py::test_a_fault_ends_its_row[seq_cascade_chow-nan]
- keep = (score >= settings.alpha) | is_bad
+ keep = score >= settings.alpha

=== decoding/loops/stepwise.py
    decoding/loops/test_paths.py::test_sequence_paths[seq_cascade_chow-0.93]
a sequence is scored by its sampled law
- plain, law, token, is_law = settings
+ law, plain, token, is_law = settings
a drafter alone draws from its confidence, says the record
- q1=plain, q=law, pi=law
+ q1=plain, q=plain, pi=law
the score of an ended sequence goes on
- jnp.where(prefix.active, jnp.log(prob), 0).astype(score.dtype)
+ jnp.log(prob).astype(score.dtype)

=== decoding/loops/bild.py
BiLD asks the drafter at once after a rollback <- test_bild_worked
- is_asked = prefix.length == expected
+ is_asked = expected > 0
BiLD rolls back what the verifier would say itself <- test_bild_against_its[2]
- (first < width) & ~is_agreed
+ first < width
BiLD's window is shorter by one <- test_bild_defaults
- WINDOW = 10
+ WINDOW = 9
BiLD judges what was not drafted <- test_bild_against_its_decisions_by_hand[2]
- (-jnp.log(prob) > alpha) & (index < count[:, None])
+ -jnp.log(prob) > alpha
BiLD asks the drafter again behind a whole window only <-
  test_bild_against_its_decisions_by_hand[2]
- state = (held, prefix.length + count + 1)
+ state = (held, prefix.length + self.width + 1)
BiLD asks the drafter first in a later turn <-
  ../programs/test_streaming.py::test_rounds_and_turns_are_the_whole[bild-whole]
- return held, jnp.full_like(expected, -1)
+ return held, upto + 1
BiLD never falls back unless told to <- test_bild_defaults
- jnp.float32(FALLBACK)
+ jnp.float32(0.0)

=== decoding/records/feeding.py
rows that are fed nothing are counted a pass <- test_rows_that_need_nothing_get
- return state, logits, passes + fed.astype(jnp.int32)
+ return state, logits, passes + 1
a row that lacks much loses the tokens to be read
- jnp.minimum(missing - narrow, wide)
+ jnp.minimum(missing - 1, wide)
a row that lacks as much as a pass holds takes two <- test_rows_are_fed_apart
- missing <= wide, missing
+ missing < wide, missing

=== decoding/loops/tracing.py decoding/loops/test_paths.py
a record trusts a law that was never asked for <-
  test_stepwise_paths[token_cascade_chow]
- known = new.known_q & jnp.asarray(new.known_p)
+ known = new.known_q
a law that was never asked for finds a token likely <-
  test_log_probs.py::test_stepwise[quick]
- p=log_prob(new.p, new.known_p),
+ p=log_prob(new.p),
a filtered law is told as that of temperature 1 <-
  test_log_probs.py::test_stepwise[quick]
- p1=log_prob(new.p1, new.known_p),
+ p1=log_prob(new.p, new.known_p),
a baseline is compared with what its own filter left <-
  test_log_probs.py::test_a_baseline_and_a_rule_are_compared
- p, known = new.p1, new.known_p
+ p, known = new.p, new.known_p
a copied token has the likelihood of its copy <-
  test_log_probs.py::test_copied_tokens_have_no_q
- q=log_prob(new.q, new.known_q1),
+ q=log_prob(new.q, new.known_q),
likelihoods go on behind an end <- test_log_probs.py::test_speculative[quick]
- jnp.where(inside, x, jnp.nan)
+ x
what has no target has a pi <- test_bild.py::test_bild_worked
- if has_target:
+ if True:

=== decoding/loops/oracle_cascade.py
    decoding/loops/test_paths.py::test_stepwise_paths
a record's rule is that of the unscaled pair <- [oracle_cascade_opt]
- draw, alpha=settings.alpha, sampled=(q, p)
+ draw, alpha=settings.alpha, sampled=None
an oracle asks for every token <- [oracle_cascade_diff]
- verifier_calls=deferred[:, 0]
+ verifier_calls=calls

=== decoding/programs/families.py
    decoding/programs/test_families.py::test_a_choice_is_the_target_that_it_names
a chosen target mixes the unscaled pair
- q, p, tokens, alpha=alpha, sampled=sampled
+ q, p, tokens, alpha=alpha, sampled=None
a chosen target has the first one's properties
- jnp.asarray(flags)[self.index]
+ jnp.asarray(flags)[0]
a chosen target asks early what the first one asks <-
  test_families.py::test_a_choice_asks_early_what_its_target_asks
- self._switch(Target.early, q, alpha)
+ self.targets[0].early(q, alpha)

=== decoding/programs/methods.py decoding/drafting/test_sampled_drafts.py
lenience at the top level <- test_lossless_outer_law_is_the[copies-False]
- lossless, "CS Drafting"
+ defer_tokens(lenient_cs_paper), "CS Drafting"
the default cascade reviews two tokens, whatever gamma <-
  ../programs/test_methods.py::test_the_default_cascade_reviews_gamma_tokens
- matrix[0][0], matrix[-1][-1] = gamma, copied
+ matrix[-1][-1] = copied
the smaller of two drafters reviews the larger <- test_three_models_cascade_has
- medium, small = models
+ small, medium = models

=== decoding/programs/decoders.py
    decoding/loops/test_paths.py::test_speculative_paths[stop before]
the policies of draft length change places
- before_draw=policy == MAX_PROB
+ before_draw=policy == TOKEN_PROB
each threshold of a draft length is a program <-
  ../programs/test_families.py::test_thresholds_of_a_draft_length_share_a_program
- shape["draft_length"] = DraftLength(self.draft_length.policy)
+ shape["draft_length"] = self.draft_length

=== generate/records.py study/measuring/test_infer.py::test_log_probs
a law that gives a token nothing is written as unknown
- return least
+ return None

=== generate/points/least_times.py
turns end although a time was less <- test_least_seconds
- settled = 0 if is_less else settled + 1
+ settled += 1

=== study/evaluation/efficiency.py
    study/evaluation/test_efficiency.py::test_mean_log_probs
what is not known counts in a mean
- values[~np.isnan(values)]
+ np.nan_to_num(values)

=== tools/exchange/decode_folder.py tools/exchange/test_formats.py
a trace of other blocks is taken <- test_what_is_refused
- if (len(lengths), sum(lengths)) != (counts.num_blocks, counts.num_tokens):
+ if False:
the steps of two models are tokens <- test_a_model_alone_writes_a_token_a_step
- is_alone = execution.needs_drafter != execution.needs_verifier
+ is_alone = True

=== tools/exchange/speed_bench.py tools/exchange/test_formats.py
a conditional rate is over the first length <- test_speed_bench
- before = joint[name]
+ before = 1.0

=== tools/exchange/vllm_metrics.py tools/exchange/test_formats.py
an acceptance length has no bonus after an EOS <- test_vllm
- 1 + counts.accepted / counts.num_blocks
+ counts.num_tokens / counts.num_blocks
""")
