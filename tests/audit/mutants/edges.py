"""Wrong clocks, counts, shares of time and edges; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== study/search/candidates.py study/search/test_advisor.py
the good end of an interval is enough to pay <- test_what_the_clock_has_not
@ Candidate.pays
- 1 / self.measured.relative_high > LEAST_SPEEDUP
+ 1 / self.measured.relative_low > LEAST_SPEEDUP
the middle of an interval is enough to pay <- test_what_the_clock_has_not
@ Candidate.pays
- 1 / self.measured.relative_high > LEAST_SPEEDUP
+ 1 / self.measured.relative_latency > LEAST_SPEEDUP

=== study/search/tree_search.py study/search/test_advisor.py
trees go without whole decodes once a share is used <- test_trees_are_priced
@ _search_all
- study, chains, rounds, steps, "costs of passes", is_needed=True
+ study, chains, rounds, steps, "costs of passes"

=== study/search/offers.py study/search/test_advisor.py
whole decodes that are needed end with a share <- test_trees_are_priced
@ measure_costs
- not budget.leaves_out(by_decodes, is_needed=is_needed)
+ not budget.leaves_out(by_decodes)

=== judge/__main__.py judge/test_command.py
code that fails in one problem is not judged in others <-
  test_a_function_that_fails_here
@ main
- all(line.raised for line in judgement.problems)
+ any(line.raised for line in judgement.problems)

=== judge/problems.py judge/test_known_errors.py
the rare token is never the last or the first <- test_a_fault_that_one_problem
@ pairs
- enumerate((2, 0, 2))
+ enumerate((1, 1, 1))
the rare token is always the last <- test_a_fault_that_one_problem
@ pairs
- enumerate((2, 0, 2))
+ enumerate((2, 2, 2))
the rare token is always the first <- test_a_fault_that_one_problem
@ pairs
- enumerate((2, 0, 2))
+ enumerate((0, 0, 0))

=== generate/points/round_times.py generate/points/test_round_times.py
sixteen passes that catch up cost as one
@ measure
- wide_s = least_s["catch_up"] / pass_loops.PASSES
+ wide_s = least_s["catch_up"]
costs know the draws of the first trial
- examples[: batches.num_rows], _TRIAL)
+ examples[: batches.num_rows])

=== decoding/drafting/fast_forward.py decoding/drafting/test_fast_forward.py
a drafter alone holds what was rejected <- test_passes_are_those
@ FastForwardDrafter._read
- held = jnp.minimum(reading.held, prefix.length - 1)
+ held = reading.held
a drafter alone has not read a turn <- test_passes_are_those
@ FastForwardDrafter.catch_up
- _Reading(length, after, jnp.maximum(reading.held, upto))
+ _Reading(length, after, reading.held)

=== decoding/drafting/draft_pace.py decoding/drafting/test_draft_pace.py
a row holds the drafts that were rejected <- test_the_drafter_does_not_hold
@ Pace.observe
- held=jnp.minimum(self.held, length - 1)
+ held=self.held

=== checkpoints/stored_arrays.py checkpoints/test_orbax_io.py
a missing chunk of a slot is zeros <- test_a_chunk_of_a_slot
@ StoredArrays.open.open_leaf
- leaf["driver"] == "zarr" and not name.startswith("target/")
+ not name.startswith("target/")

=== generate/points/draft_costs.py generate/points/test_advice.py
a pass that nothing measured has a cost <- test_costs_of_calls
- if size < widths[-1]]
+ if size <= widths[-1]]

=== tasks/few_shot.py tasks/test_few_shot.py
a shot may have no answer <- test_no_shot_is_without
@ draw
- [each for each in candidates if each.answers[0].strip()]
+ [*candidates]
a shot may have an answer of blanks <- test_no_shot_is_without
- if each.answers[0].strip()]
+ if each.answers[0]]

=== tools/exchange/spec_bench.py tools/exchange/test_formats.py
equal questions have one answer id <- test_each_of_equal_questions
@ _answer_id
- names = [key, model_id, trials[0][0].index, texts]
+ names = [key, model_id, texts]

=== training/head_losses.py training/test_head_training.py
the z-loss of heads counts as much as the verifier's <- test_each_head_has
@ _summed_with_verifier
- z_loss=of_verifier.z_loss + share * of_heads.z_loss
+ z_loss=of_verifier.z_loss + of_heads.z_loss

=== training/lesson.py training/test_head_training.py
the z-loss of every head counts the same <- test_each_head_has
@ summed
- z_loss += factor * jnp.sum(z * lesson.weights)
+ z_loss += jnp.sum(z * lesson.weights)

=== native/gpu/row_products_triton.py models/test_gpu_kernels.py
products of other halves are added to a sum <- test_products_with_what
@ _kernel
- jnp.where(is_own, x, 0.0)
+ x
the norm of a row is that of its first half <- test_products_with_what
@ _kernel
- square.reshape(splits, rows).sum(axis=0)
+ square.reshape(splits, rows)[0]

=== native/gpu/kernel_tables.py models/test_gpu_operations.py
kernels that gain less than a tenth are taken <- test_kernels_are_taken
- row["gain"] < LEAST_GAIN
+ row["gain"] < 1

=== models/gpu_passes.py models/test_gpu_passes.py
the GPU's kernels take norms with an offset <- test_the_kernels_leave_out
-   "norm_offset",
+
the GPU's kernels take norms after a layer <- test_the_kernels_leave_out
-   "post_norms",
+
the GPU's kernels take embeddings that are scaled <- test_the_kernels_leave_out
-   "scaled_embedding",
+
the GPU's kernels take queries of another scale <- test_the_kernels_leave_out
-   "query_pre_attn_scalar",
+
the GPU's kernels take scores with a cap <- test_the_kernels_leave_out
-   "attention_cap",
+
the GPU's kernels take frequencies of some layers <- test_the_kernels_leave_out
-   "local_rope_theta",
+

=== study/measuring/timed_answers.py tools/exchange/test_timed_answers.py
what a further turn compiles is timed <- test_what_is_compiled_again
- {(number > 0, x.width)
+ {(False, x.width)
an answer's time is that of its steps <- test_what_is_compiled_again
- for _, seconds in answer.calls
+ for _, seconds in steps.calls

=== generate/points/round_times.py generate/points/test_round_times.py
a disturbed prefill leaves nothing for rounds
@ measure
- max(least_s[size] - prefill_s, least_s[size] / 2)
+ (least_s[size] - prefill_s)
a narrow round may cost more than a wide one
@ measure
- rounds_s = narrower[::-1]
+ rounds_s = np.array([seconds[size] for size in sizes])
costs without size 0 are in rounds of the least size
- rounds_s[0] if not sizes[0] else
+ rounds_s[0] if True else

=== decoding/drafting/draft_pace.py decoding/drafting/test_draft_pace.py
an idle row asks one round later <- test_the_edges
@ Pace.is_idle
- length - self.length < IDLE_ROUNDS
+ length - self.length <= IDLE_ROUNDS
a chain's own first pass counts as catching up <- test_the_edges
@ Pace.passes
- jnp.where(lacks > first, passes, 0)
+ jnp.where(lacks > 1, passes, 0)
a row without drafts has read its text <- test_the_edges
@ Pace.draft
- jnp.where(self.gamma > 0, length + num_fed, self.held)
+ length + num_fed

=== decoding/loops/bild.py decoding/loops/test_bild.py
BiLD drafts at once after some turns <- test_every_turn_begins
@ BildDrafter.catch_up
- return held, jnp.full_like(expected, -1)
+ return held, expected

=== decoding/loops/rounds.py decoding/test_constraints.py
a row that ended moves its stop on <- test_a_stop_of_one_row_ends_no_other
@ _last
- jnp.where(emitted > 0, last, before)
+ last

=== decoding/programs/streaming.py decoding/programs/test_streaming.py
a turn that just fits is refused <- test_a_wide_turn_needs_room
@ Stream._check_room
- used + more + least > self.room
+ used + more + least >= self.room

=== generate/turns/text_stream.py
    generate/test_decoder_only.py::test_a_turn_fits_up_to_the_last_slot
a turn that just fits its caches is begun again
@ TokenStream.fits
- end <= self._stream.room
+ end < self._stream.room
a turn may be longer than the models read
-  and self._prompt_len + end <= window
+
a turn does not count its prompt
@ TokenStream.fits
- self._prompt_len + end <= window
+ end <= window
a turn wider than its answer has no room
@ TokenStream.fits
- least = max(num, self._run.max_decode_len)
+ least = self._run.max_decode_len

=== study/search/candidates.py study/search/test_effort.py
rounds begin after their share <- test_one_round_may_begin
@ run_rounds
- is_needed=needs_one and not measured
+ is_needed=needs_one
the clock continues after its share <- test_timings_end
@ time_in_turns
- is_over=steps.budget.is_spent
+ is_over=steps.budget.is_over

=== study/search/offers.py
    study/search/test_effort.py::test_timings_end_with_their_share
hot loops continue after their share
@ measure_costs
-       tick=budget.tick_of(name),
-       is_over=budget.is_spent
+       tick=budget.tick_of(name),
+       is_over=budget.is_over
whole decodes continue after their share
@ measure_costs
- tick=budget.tick_of(by_decodes),
-         is_over=budget.is_spent
+ tick=budget.tick_of(by_decodes),
+         is_over=budget.is_over

=== study/search/effort.py study/search/test_effort.py
a decode ends at the limit, not a compilation <- test_timings_end
@ Budget.tick_of.tick
- num == 0
+ num >= 0

=== training/trainer.py training/test_trainer.py
a run may end at its first step <- test_an_initial_checkpoint_that_does_not
@ TrainingJob.run
- train_steps <= first_step
+ train_steps < first_step
a run stopped before its first step saves <- test_a_run_that_is_stopped
@ TrainingJob.run
- int(state.step) > start
+ int(state.step) >= start
evaluations count as training time <- test_loop.py::test_evaluations_are_no
@ TrainingJob.take_steps
- meter.leave_out(time.monotonic() - start_s)
+ meter.leave_out(0.0)

=== training/objectives.py training/test_loop.py
smoothing ends a step late <- test_smoothing_ends
@ CrossEntropy.__call__
- lesson.step < self.smoothing_ends
+ lesson.step <= self.smoothing_ends

=== training/training_batches.py training/test_training_batches.py
a full batch of a bucket joins the next one <- test_small_sets
@ _sort_into_buckets
- len(rows[i]) < sizes[i]
+ len(rows[i]) <= sizes[i]
every epoch has one order <- test_an_epoch
@ TrainBatches._plan
- np.random.default_rng([self.seed, epoch])
+ np.random.default_rng([self.seed, 0])
a run that continues keeps the plan of another epoch <- test_an_epoch
@ TrainBatches._plan
- self._last_plan.get("epoch") != epoch
+ "epoch" not in self._last_plan

=== generate/batches/padding.py generate/batches/test_padding.py
a text that fills a bucket is padded to the next one <- test_buckets_are_few
@ bucket_of
- length <= bucket
+ length < bucket

=== study/rows/run_folder.py study/rows/test_run_folder.py
a shard may have more records than examples <- test_a_shard_has
@ _read_records
- line != num
+ line < num
shards are merged again <-
  ../measuring/test_infer.py::test_a_killed_run_ends_as_an_unbroken_one
-     if not self._merged.exists():
-       texts
+     if True:
+       texts
""")
