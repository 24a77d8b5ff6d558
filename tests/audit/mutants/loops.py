"""Wrong loops, counts, records and caches; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== decoding/verification/review.py decoding/loops/test_paths.py
the bonus comes from p by default <- test_speculative_paths[token]
@ _mix
- has_bonus_law = settings.needs_bonus_law and proposal.has_bonus_law
+ has_bonus_law = False
a bonus without a distribution of the drafter's is weighed by one <-
  ../drafting/test_stated_laws.py::test_a_bonus_without_a_law_is_the_verifiers
@ _mix
- settings.needs_bonus_law and proposal.has_bonus_law
+ settings.needs_bonus_law
p is one position behind q <- test_speculative_paths[lossless]
@ _mix
- settings.sampling.step(logits, found=law)
+ settings.sampling.step(jnp.roll(logits, 1, axis=1), found=law)
the draw has the uniform of an acceptance <- test_speculative_paths[lossless]
@ verify
- draw_rngs = draws.fold_in(rngs, draws.DRAW_TAG)
+ draw_rngs = draws.fold_in(rngs, draws.ACCEPT_TAG)
a verifier's NaN goes unseen <-
  test_faults.py::test_a_fault_ends_its_row[spec_decode-nan]
@ _mix
- bad = ~is_law | proposal.bad
+ bad = proposal.bad
the printed bonus follows a full block only <-
  test_speculative_paths[printed bonus, stop]
@ verify
- step < proposal.count[:, None]
+ step < step.shape[1] - 1

=== decoding/loops/speculative.py
    decoding/loops/test_paths.py::test_speculative_paths[lossless]
every block has the same key
@ speculative.round_of
- draws.fold_in(rngs, carry.stats.num_blocks)
+ draws.fold_in(rngs, 0 * carry.stats.num_blocks)
the drafter's cache keeps what was rejected
@ speculative.round_of
- drafting = drafter.rewind(drafting, held)
+ pass
the verifier's cache keeps what was rejected
@ speculative.round_of
- verifying = verifier.rewind(verifying, held)
+ pass

=== decoding/loops/tracing.py
the token's distribution is taken for the verifier's <-
  test_log_probs.py::test_speculative[quick]
@ of_review
- pi=block.pi
+ pi=block.p

=== decoding/loops/counting.py
    decoding/loops/test_paths.py::test_speculative_paths[lossless]
drafts after an end are counted
@ counts
- examined = jnp.minimum(block.verdict.examined, emitted)
+ examined = block.verdict.examined
what was rejected was not expected
@ counts
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
@ start
- model.prompted
+ False
a token outside the vocabulary passes <- test_what_is_not_a_prompt_is_refused
@ check
- is_empty | (pieces > 1) | bad.any(axis=1)
+ is_empty | (pieces > 1)

=== decoding/loops/rounds.py
    decoding/programs/test_streaming.py::test_rounds_and_turns_are_the_whole
all rounds run at once <- [spec_cascade_opt-whole]
@ Loop.advance
- (counted[0] + 1, step(counted[1]))
+ (counted[0], step(counted[1]))
a turn has what the turns before left of the limit <- [spec_cascade_opt-whole]
@ commit
- settings.max_decode_len + carry.begun - carry.length
+ settings.max_decode_len + 1 - carry.length
models do not read external tokens <- [spec_cascade_opt-whole]
@ Loop.turn
- upto = jnp.where(has_turn, length - 1, 0)
+ upto = 0 * length
a turn is counted with those before <- [spec_cascade_opt-whole]
@ Loop.turn
- jax.tree.map(jnp.zeros_like, carry.stats)
+ carry.stats
an active row continues without a turn <-
  test_streaming.py::test_a_row_that_is_going_stops_where_it_has_no_turn
@ Loop.turn
- done=~has_turn
+ done=carry.done & ~has_turn
the place of a fault counts the turns before its own <-
  test_streaming.py::test_a_fault_in_a_later_turn_is_where_the_turn_has_it
@ commit
- jnp.where(bad, length - carry.begun, carry.bad_step)
+ jnp.where(bad, length - 1, carry.bad_step)
a row without a distribution takes another turn <-
  test_streaming.py::test_a_turn_that_cannot_be
@ Loop.turn
- jnp.where(carry.bad_step < 0, prompts.lengths(new), 0)
+ prompts.lengths(new)

=== decoding/programs/streaming.py
a turn may fill the room to the last token <- test_a_turn_that_cannot_be
@ Stream._check_room
- used + more + least > self.room
+ used + more > self.room
padding of a turn takes room twice <- test_a_wide_turn_needs_room_for_its_width
@ Stream._check_room
- more = np.sum(tokens != prompts.PAD, axis=1)
+ more = np.full(len(tokens), tokens.shape[1])
a wide turn needs no room for its padding <- test_a_wide_turn_needs_room_for_its
@ Stream._check_room
- max(tokens.shape[1], self._decoder.max_decode_len)
+ self._decoder.max_decode_len

=== decoding/programs/continuous.py
    decoding/programs/test_continuous.py::test_rows_are_those_of_whole_batches
rounds end with the first row that ends <- [spec_cascade_opt-whole]
- rows - refill if
+ rows - 1 if
what only fills a reading takes the first row's place <-
  [spec_cascade_opt-whole]
@ decode_continuously
- np.full(refill, rows)
+ np.full(refill, 0)
rows that wait are read when all others ended <-
  test_continuous.py::test_a_long_row_delays_no_other
- rows - refill if
+ 0 if

=== decoding/records/token_buffers.py
all ends have to come at once <- test_one_of_several_ends_is_enough
- is_eos = jnp.any(
+ is_eos = jnp.all(
an EOS inside a block does not end it <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
@ cut
- is_end &= position < num[:, None]
+ is_end &= position == num[:, None] - 1
a block runs over the limit <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
@ cut
-   num = jnp.minimum(num, room)
a finished row has no room for the others' block <- test_the_buffer_holds_a
@ buffer_size
- return 1 + max_decode_len + width + 1
+ return 1 + max_decode_len + width
a row continues when it is full <-
  ../test_exact_laws.py::test_output_has_the_law_of[spec_cascade_opt-token]
@ cut
- has_end | (num >= room)
+ has_end | (num > room)

=== decoding/loops/rounds.py decoding/test_constraints.py
a stop ends nothing <- test_a_stop_cuts_the_text_that_would_have_been
@ commit
- settings.eos_id, is_stop
+ settings.eos_id
a stop that began in an earlier block is not seen <-
  test_a_stop_cuts_the_text_that_would_have_been
@ commit
- carry = carry.replace(stop=_last(states, before, emitted))
+ pass
a row's text ends at the stops of another <-
  test_a_stop_of_one_row_ends_no_other[spec_cascade_opt]
@ Loop._stop_states
- return self.settings.begins
+ return jnp.full((rows,), START, jnp.int32)

=== decoding/programs/continuous.py decoding/test_constraints.py
a row that takes another's place has its stops <-
  test_a_stop_of_one_row_ends_no_other[spec_cascade_opt]
@ decode_continuously.read
- begins = begins[padded]
+ begins = begins[: len(padded)]

=== decoding/records/masked_model.py decoding/test_constraints.py
the token before a text is read as its first <-
  test_texts_have_the_law_of_the_masked_conditionals[spec_cascade_opt]
@ MaskedModel._follow
- is_text = slots > state.begun[:, None]
+ is_text = slots >= state.begun[:, None]
a rejected draft stays in the automaton <-
  test_texts_have_the_law_of_the_masked_conditionals[spec_cascade_opt]
@ MaskedModel._follow
- self.automaton.follow(self._before(state, start), tokens, is_text)
+ self.automaton.follow(state.after[:, -1], tokens, is_text)
a node follows the node before it <-
  test_texts_have_the_law_of_the_masked_conditionals[spec_decode tree]
@ MaskedModel._follow_tree.step
- parent = numerics.of_token(window, parents[:, place])
+ parent = window[:, width - num + place - 1]
the states of a kept path are those of the first nodes <-
  test_texts_have_the_law_of_the_masked_conditionals[spec_cascade_opt traversal]
@ MaskedModel.keep
- slots = jnp.minimum(start[:, None] + path, state.after.shape[1] - 1)
+ slots = start[:, None] + 0 * path
a fault at a banned token goes unseen <-
  test_a_fault_of_a_model_is_not_masked_away
@ _masked
- jnp.where(is_law(logits)[..., None], kept, jnp.nan)
+ kept
a drafter without mass on the mask is broken <-
  test_a_drafter_without_mass_on_the_mask_drafts_uniformly
@ _masked
- kept = jnp.where(has_mass | ~mask, kept, 0)
+ pass
a turn continues the text before it <-
  test_every_turn_of_a_stream_is_a_text_of_its_own[spec_decode]
@ begin_text
- return part.begin_text(cast(MaskedState, state), begun)
+ return state

=== decoding/programs/call_checks.py decoding/test_constraints.py
a distribution that no mask reaches is mixed in <-
  test_a_law_that_no_mask_reaches_is_refused_in_a_mixture
@ _check_constraints
- not draft_models.row_of(drafter).is_maskable(drafter)
+ False

=== constraints/stops.py constraints/test_stops.py
a stop inside of a longer one is not seen <-
  test_a_stop_inside_of_another_is_complete_first
@ _search
- is_whole[node] |= is_whole[suffix[node]]
+ pass

=== constraints/automaton_tables.py constraints/test_expressions.py
a way into a dead end stays open <-
  test_grammar_ends.py::test_a_branch_that_cannot_end_is_masked
@ without_dead_ends
- pruned = allowed & ~is_dead[tables.moves]
+ pruned = allowed
a state that can continue for ever counts as one that ends <-
  test_grammar_ends.py::test_a_branch_that_cannot_end_is_masked
- if ends is None:
-     is_dead = _dead_ends(before, after, len(tables.moves))
+ if True:
+     is_dead = _dead_ends(before, after, len(tables.moves))
a grammar ends by the first of several EOS ids alone <-
  test_grammar_ends.py::test_a_grammar_ends_by_any_eos
@ without_dead_ends
- last = np.unique(tables.classes[list(ends or ())])
+ last = np.unique(tables.classes[list(ends or ())[:1]])
only the last state before an end leads to it <-
  test_grammar_ends.py::test_a_branch_that_cannot_end_is_masked
@ leading_to
- new = new[~is_seen[new]]
+ new = new[:0]

=== constraints/byte_tables.py constraints/test_grammar_ends.py
the grammar allows the first of several EOS ids alone <-
  test_a_grammar_ends_by_any_eos
@ of_language
- is_eos[list(eos_ids)] = True
+ is_eos[list(eos_ids)[:1]] = True
a special token is a stop inside of texts alone <-
  test_byte_tables.py::test_searches_are_those_of_texts[joint]
@ of_search
- halts[START] = (halts_first | always)[halters]
+ halts[START] = halts_first[halters]

=== constraints/limits.py constraints/test_grammar_ends.py
a grammar need not end <- test_a_grammar_that_cannot_end_is_refused
@ constraints
- ends if has_grammar else None
+ None
a least length of two masks nothing <- test_the_least_length_counts_from_two
@ _masks
- limits.min_decode_len > 1
+ limits.min_decode_len > 2
a least length is of the first EOS alone <-
  test_the_least_length_counts_from_two
@ _masks
- np.isin(np.arange(num), eos_ids), after, allowed
+ np.isin(np.arange(num), eos_ids[:1]), after, allowed

=== constraints/expression_sandbox.py constraints/test_grammar_ends.py
an expression continues from its first match alone <-
  test_a_text_continues_after_a_match_in_every_spelling
@ _marked
- return rf"\\x00\\x00{group}\\z|"
+ return rf"\\x00\\x00{group}|"
matches that begin later are followed <-
  test_repeats_take_time_by_their_number
@ _marked
- return rf"\\x00\\x00{group}\\z|"
+ return rf"\\x00\\x00{group}\\z"

=== constraints/stops.py constraints/test_special_tokens.py
a run of bytes that is not UTF-8 is read byte by byte <-
  test_a_run_that_is_not_utf8_has_no_stop
@ _tables
- whole_runs=len(known.byte_tokens) > 0
+ whole_runs=False
a special token is not a stop <-
  test_a_stop_that_is_a_special_token_is_its_id[bytes]
@ _tables
- ids += [known.special[text] for text in texts if text in known.special]
+ pass
a half character that begins no stop is forgotten <-
  test_tokens_of_bytes_are_read_as_they_are_decoded[fallback]
- (found == 0) & (after > 0), half + after, found
+ (found == 0) & (after > 8), half + after, found

=== decoding/loops/stepwise.py decoding/loops/test_paths.py
every step has the same key <- test_stepwise_paths[verifier]
@ stepwise.write_one
- draws.fold_in(rngs, step)
+ draws.fold_in(rngs, 0 * step)
the keys of a turn follow those before <-
  ../programs/test_streaming.py::test_rounds_and_turns_are_the_whole[verifier-whole]
@ stepwise.write_one
- step = carry.length - carry.begun
+ step = carry.length - 1
a token that was never written counts as deferred <-
  test_faults.py::test_a_fault_ends_its_row[token_cascade_chow-nan]
@ stepwise.write_one
- deferred = record.deferred & is_written
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
@ sequential_cascade.advance
-     bad |= deferred & ~is_p

=== decoding/loops/sequence_cascade.py decoding/loops/test_paths.py
the rewrite repeats the discarded draft's randomness <-
  test_sequence_paths[seq_cascade_chow-0.93]
@ _decode
- draws.fold_in(rngs, REWRITE_TAG)
+ rngs
the mean score counts the limit, not the tokens <-
  test_sequence_paths[seq_cascade_chow_norm-0.6]
@ _decode
- jnp.maximum(draft.lengths, 1).astype(score.dtype)
+ settings.max_decode_len
a faulty draft is silently written again <-
  test_faults.py::test_a_fault_ends_its_row[seq_cascade_chow-nan]
@ _decode
- keep = (score >= settings.alpha) | is_bad
+ keep = score >= settings.alpha

=== decoding/loops/stepwise.py
    decoding/loops/test_paths.py::test_sequence_paths[seq_cascade_chow-0.93]
a sequence is scored by its sampled distribution
- plain, law, token, is_law = settings
+ law, plain, token, is_law = settings
a drafter alone draws from its confidence, says the record
@ sampling_loop.advance
- q1=plain, q=law, pi=law
+ q1=plain, q=plain, pi=law
the score of an ended sequence continues
@ sampling_loop.advance
- jnp.where(prefix.active, jnp.log(prob), 0).astype(score.dtype)
+ jnp.log(prob).astype(score.dtype)

=== decoding/loops/bild.py
BiLD asks the drafter at once after a rollback <- test_bild_worked
@ BildDrafter.propose
- is_asked = prefix.length == expected
+ is_asked = expected > 0
BiLD rolls back what the verifier would say itself <- test_bild_against_its[2]
@ bild.rollback
- (first < width) & ~is_agreed
+ first < width
BiLD's window is shorter by one <- test_bild_defaults
@ module
- WINDOW = 10
+ WINDOW = 9
BiLD judges what was not drafted <- test_bild_against_its_decisions_by_hand[2]
@ bild.rollback
- (-jnp.log(prob) > alpha) & (index < count[:, None])
+ -jnp.log(prob) > alpha
BiLD asks the drafter again after a whole window only <-
  test_bild_against_its_decisions_by_hand[2]
@ BildDrafter.propose
- state = (held, prefix.length + count + 1)
+ state = (held, prefix.length + self.width + 1)
BiLD asks the drafter first in a later turn <-
  ../programs/test_streaming.py::test_rounds_and_turns_are_the_whole[bild-whole]
@ BildDrafter.catch_up
- return held, jnp.full_like(expected, -1)
+ return held, upto + 1
BiLD never falls back without a threshold <- test_bild_defaults
@ bild
- jnp.float32(FALLBACK)
+ jnp.float32(0.0)

=== decoding/records/feeding.py
rows that are fed nothing are counted a pass <- test_rows_that_need_nothing_get
@ feed_to.feed_some
- return state, logits, passes + fed.astype(jnp.int32)
+ return state, logits, passes + 1
a row that lacks much loses the tokens to be read
@ feed_to.feed_some
- jnp.minimum(missing - narrow, wide)
+ jnp.minimum(missing - 1, wide)
a row that lacks as much as a pass holds takes two <- test_rows_are_fed_apart
@ feed_to.feed_some
- missing <= wide, missing
+ missing < wide, missing

=== decoding/loops/tracing.py decoding/loops/test_paths.py
a record trusts a distribution that was never asked for <-
  test_stepwise_paths[token_cascade_chow]
@ write
- known = new.known_q & jnp.asarray(new.known_p)
+ known = new.known_q
a distribution that was never asked for finds a token likely <-
  test_log_probs.py::test_stepwise[quick]
@ log_probs
- p=log_prob(new.p, new.known_p)
+ p=log_prob(new.p)
a filtered distribution is reported as that of temperature 1 <-
  test_log_probs.py::test_stepwise[quick]
@ log_probs
- p1=log_prob(new.p1, new.known_p)
+ p1=log_prob(new.p, new.known_p)
a baseline is compared with what its own filter left <-
  test_log_probs.py::test_a_baseline_and_a_rule_are_compared
@ _compare
- p, known = new.p1, new.known_p
+ p, known = new.p, new.known_p
a copied token has the likelihood of its copy <-
  test_log_probs.py::test_copied_tokens_have_no_q
@ log_probs
- q=log_prob(new.q, new.known_q1)
+ q=log_prob(new.q, new.known_q)
likelihoods continue after an end <- test_log_probs.py::test_speculative[quick]
@ mask_log_probs
- jnp.where(inside, x, jnp.nan)
+ x
what has no target has a pi <- test_bild.py::test_bild_worked
@ mask_log_probs
- has_target
+ True

=== decoding/loops/oracle_cascade.py
    decoding/loops/test_paths.py::test_stepwise_paths
a record's rule is that of the unscaled pair <- [oracle_cascade_opt]
@ oracle_cascade.advance
- draw, alpha=settings.alpha_after(prefix), sampled=(q, p)
+ draw, alpha=settings.alpha_after(prefix), sampled=None
an oracle asks for every token <- [oracle_cascade_diff]
@ oracle_cascade.advance
- verifier_calls=deferred[:, 0]
+ verifier_calls=calls

=== decoding/programs/families.py
    decoding/programs/test_families.py::test_a_choice_is_the_target_that_it_names
a chosen target mixes the unscaled pair
@ Choice.at.at
- q, p, tokens, alpha=alpha, sampled=sampled
+ q, p, tokens, alpha=alpha, sampled=None
a chosen target has the first one's properties
@ Choice.reads_tokens
- jnp.asarray(flags)[self.index]
+ jnp.asarray(flags)[0]
a chosen target asks early what the first one asks <-
  test_families.py::test_a_choice_asks_early_what_its_target_asks
@ Choice.early
- self._switch(Target.early, q, alpha)
+ self.targets[0].early(q, alpha)

=== decoding/programs/methods.py decoding/drafting/test_sampled_drafts.py
lenience at the top level <- test_lossless_outer_law_is_the[copies-False]
@ METHODS
- lossless, "CS Drafting"
+ defer_tokens(lenient_cs_paper), "CS Drafting"
the default cascade reviews two tokens, whatever gamma <-
  ../programs/test_methods.py::test_the_default_cascade_reviews_gamma_tokens
@ _cascade_drafting
- matrix[0][0], matrix[-1][-1] = gamma, copied
+ matrix[-1][-1] = copied
the smaller of two drafters reviews the larger <- test_three_models_cascade_has
@ _reviewed_pair.compose
- medium, small = models
+ small, medium = models

=== decoding/programs/decoders.py
    decoding/loops/test_paths.py::test_speculative_paths[stop before]
the policies of draft length change places
@ Decoder.start
- before_draw=policy == MAX_PROB
+ before_draw=policy == TOKEN_PROB
each threshold of a draft length is a program <-
  ../programs/test_families.py::test_thresholds_of_a_draft_length_share_a_program
@ Decoder._program
- shape["draft_length"] = DraftLength(self.draft_length.policy)
+ shape["draft_length"] = self.draft_length

=== generate/records.py study/measuring/test_infer.py::test_log_probs
a distribution that gives a token nothing is written as unknown
@ _to_lists.convert
- return least
+ return None

=== generate/points/least_times.py
turns end although a time was less <- test_least_seconds
@ least_seconds
- settled = 0 if is_less else settled + 1
+ settled += 1

=== study/evaluation/efficiency.py
    study/evaluation/test_efficiency.py::test_mean_log_probs
what is not known counts in a mean
@ _known
- values[~np.isnan(values)]
+ np.nan_to_num(values)

=== tools/exchange/decode_folder.py tools/exchange/test_formats.py
a trace of other blocks is taken <- test_what_is_refused
@ _lengths
- (len(lengths), sum(lengths)) != (counts.num_blocks, counts.num_tokens)
+ False
the steps of two models are tokens <- test_a_model_alone_writes_a_token_a_step
@ _lengths
- is_alone = execution.needs_drafter != execution.needs_verifier
+ is_alone = True

=== tools/exchange/speed_bench.py tools/exchange/test_formats.py
a conditional rate is over the first length <- test_speed_bench
@ _rates
- before = joint[name]
+ before = 1.0

=== tools/exchange/vllm_metrics.py tools/exchange/test_formats.py
a block that an EOS ended counts a bonus token <- test_vllm
@ metrics
- rates["mean_acceptance_length"]
+ 1 + counts.accepted / counts.num_blocks
""")
